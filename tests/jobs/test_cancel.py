"""Ending jobs that nobody wants any more, from any process, whatever they do at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from rota import ClaimLost, JobCancelled, JobNotFound, Retry, current_job
from rota.facts import JobClaimLost
from rota.jobs.worker import WorkerSettings
from rota.testing import TestRota, WorkerProcess, until, until_sync

pytestmark = pytest.mark.usefixtures("history_aside")

StartWorker = Callable[..., WorkerProcess]

DEAF_APP = """
import time
from rota import Rota

app = Rota()

@app.task(name="deaf")
def deaf() -> None:
    time.sleep(3600)
"""


def rows(app: TestRota, sql: str) -> list[Any]:
    with psycopg.connect(app.database.dsn.conninfo, autocommit=True) as connection:
        return connection.execute(sql).fetchall()


@contextlib.asynccontextmanager
async def at_work(app: TestRota) -> AsyncIterator[None]:
    working = asyncio.create_task(app.work())
    try:
        yield
    finally:
        app.stop()
        await working


@pytest.fixture
def other_app(rota_database: str) -> TestRota:
    """Another process as far as anyone can tell: it shares nothing with the first but the database."""
    return TestRota(rota_database)


async def test_a_queued_job_is_cancelled_at_once_and_never_runs(rota_app: TestRota) -> None:
    @rota_app.task
    async def never() -> None:
        raise AssertionError("it ran")

    job = await never.enqueue()
    cancelled = await rota_app.jobs.cancel(job.id, "a mistake")
    await rota_app.drain()

    assert (cancelled.state, cancelled.reason, cancelled.attempt) == ("cancelled", "a mistake", 0)
    assert (await job.refresh()).state == "cancelled"
    with pytest.raises(JobCancelled, match="was cancelled: a mistake"):
        await job.wait(20)


def test_sync_code_cancels_and_a_job_cancels_itself_through_its_handle(rota_app: TestRota) -> None:
    @rota_app.task
    def never() -> None: ...

    first, second = never.enqueue_sync(), never.using(delay="1h").enqueue_sync()

    assert first.cancel_sync("no need").state == "cancelled"
    assert rota_app.jobs.cancel_sync(second.id).state == "cancelled"
    with pytest.raises(JobCancelled, match="was cancelled: no need"):
        first.wait_sync(20)


async def test_a_job_that_waits_for_its_next_attempt_is_cancelled_with_its_errors_on_record(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=3, base="1m", jitter=False))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue()
    await rota_app.drain()
    cancelled = await job.cancel("enough")
    rota_app.advance("1h")
    await rota_app.drain()

    assert (cancelled.state, cancelled.attempt) == ("cancelled", 1)
    assert [error.message for error in (await job.refresh()).errors] == ["no"]


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Workers that hear of a wish to cancel, and would find it by looking only after a minute; a pooler lets nothing be heard."""
    if not pytestconfig.getoption("--pooled"):
        looks = functools.partial(WorkerSettings, cancel_every=60, cancel_deaf=60)
        monkeypatch.setattr("rota.workers.WorkerSettings", looks)


@pytest.mark.usefixtures("told_only")
async def test_a_running_coroutine_is_cancelled_within_a_second_from_elsewhere(
    rota_app: TestRota, other_app: TestRota
) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @rota_app.task
    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    job = await forever.enqueue()
    async with at_work(rota_app):
        await started.wait()
        began = time.monotonic()
        told = await other_app.jobs.cancel(job.id, "from elsewhere")
        with pytest.raises(JobCancelled, match="from elsewhere"):
            await job.wait(20)
        took = time.monotonic() - began

    assert told.state in ("running", "cancelled")
    assert ended.is_set()
    assert took < 10
    settled = await job.refresh()
    assert (settled.state, settled.reason, settled.attempt, settled.errors) == ("cancelled", "from elsewhere", 1, ())


async def test_a_body_in_a_thread_sees_that_it_should_stop(rota_app: TestRota) -> None:
    started = threading.Event()

    @rota_app.task
    def poll() -> str:
        started.set()
        until_sync(lambda: current_job().stopping, what="told to stop")
        return "what it had"

    job = await poll.enqueue()
    async with at_work(rota_app):
        await asyncio.to_thread(started.wait)
        assert (await job.cancel("enough")).cancel_requested_at is not None
        with pytest.raises(JobCancelled, match="enough"):
            await job.wait(20)

    assert (await job.refresh()).result is None


async def test_a_failure_after_the_cancel_is_no_reason_to_try_again(rota_app: TestRota) -> None:
    started = threading.Event()

    @rota_app.task(retry=Retry(attempts=5, base=0.001))
    def fail_when_told() -> None:
        started.set()
        until_sync(lambda: current_job().stopping, what="told to stop")
        raise ValueError("torn off")

    job = await fail_when_told.enqueue()
    async with at_work(rota_app):
        await asyncio.to_thread(started.wait)
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.wait(20)

    assert (await job.refresh()).attempt == 1


@pytest.mark.long
@pytest.mark.chaos
async def test_a_cancelled_job_whose_worker_is_killed_ends_as_cancelled_and_is_not_queued(
    rota_app: TestRota, rota_worker: StartWorker
) -> None:
    rota_app.task(name="deaf")(lambda: None)
    victim = rota_worker(DEAF_APP)
    job = await rota_app.tasks["deaf"].enqueue()
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "running", what="the job runs")
    assert (await job.cancel("unwanted")).state == "running"
    victim.kill()

    rota_worker(DEAF_APP)

    with pytest.raises(JobCancelled, match="unwanted"):
        await job.wait(20)
    settled = await job.refresh()
    assert (settled.state, settled.attempt, settled.losses) == ("cancelled", 1, 1)
    assert [error.kind for error in settled.errors] == ["lost"]
    assert rows(rota_app, "select count(*) from rota.jobs") == [(0,)]


async def test_what_is_settled_stays_as_it_is(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def do(well: bool) -> str:
        if not well:
            raise ValueError("badly")
        return "done"

    done, dead = await do.enqueue(True), await do.enqueue(False)
    await rota_app.drain()

    assert (await done.cancel("late")).state == "succeeded"
    assert (await dead.cancel("late")).state == "dead"
    assert await done.wait() == "done"
    assert rows(rota_app, "select * from rota.audit") == []
    with pytest.raises(JobNotFound):
        await rota_app.jobs.cancel(999)


async def test_a_discarded_body_can_change_nothing_any_more(rota_app: TestRota, other_app: TestRota) -> None:
    started, discarded = asyncio.Event(), asyncio.Event()
    told: list[Exception] = []

    @rota_app.task
    async def zombie() -> str:
        started.set()
        await discarded.wait()
        for write in (current_job().progress(0.5), current_job().checkpoint({"at": 1})):
            try:
                await write
            except ClaimLost as error:
                told.append(error)
        return "ignored"

    job = await zombie.enqueue()
    async with at_work(rota_app):
        await started.wait()
        ended = await other_app.jobs.discard(job.id, "stuck")
        discarded.set()

    assert (ended.state, ended.reason) == ("cancelled", "stuck")
    assert len(told) == 2
    settled = await job.refresh()
    assert (settled.state, settled.result, settled.reason) == ("cancelled", None, "stuck")
    assert rows(rota_app, "select count(*) from rota.history") == [(1,)]


async def test_a_discarded_attempt_is_told_that_its_claim_was_lost(rota_app: TestRota) -> None:
    @rota_app.task
    async def discard_itself() -> None:
        await rota_app.jobs.discard(current_job().id)

    await discard_itself.enqueue()
    with rota_app.facts.recorded(JobClaimLost) as lost:
        await rota_app.drain()

    assert [told.finished for told in lost] == [True]


async def test_a_body_whose_job_was_discarded_is_stopped(rota_app: TestRota) -> None:
    ended = asyncio.Event()
    entered = asyncio.Event()

    @rota_app.task
    async def long() -> None:
        entered.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    job = await long.enqueue()
    working = asyncio.create_task(rota_app.work())
    await entered.wait()
    await job.refresh()
    await rota_app.jobs.discard(job.id)

    await asyncio.wait_for(ended.wait(), 10)

    rota_app.stop()
    await working


async def test_a_transaction_of_a_discarded_body_is_rolled_back(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def write() -> None:
        async with current_job().transaction() as tx:
            await tx.execute("create table public.effects ()")
            await rota_app.jobs.discard(current_job().id)

    job = await write.enqueue()
    await rota_app.drain()

    assert (await job.refresh()).state == "cancelled"
    assert rows(rota_app, "select to_regclass('public.effects')") == [(None,)]


async def test_a_dead_letter_can_be_discarded(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue()
    await rota_app.drain()

    assert (await rota_app.jobs.discard(job.id, "known")).state == "cancelled"
    assert [letter.id for letter in await rota_app.dead.list(resolved=None)] == []
    with pytest.raises(JobCancelled, match="known"):
        await job.wait()


async def test_who_cancelled_or_discarded_is_on_record(rota_app: TestRota) -> None:
    @rota_app.task
    async def never() -> None: ...

    first, second, third = [await never.enqueue() for _ in range(3)]
    await rota_app.jobs.cancel(first.id, "secret reason", by="ana")
    await rota_app.jobs.discard(second.id, by="bo")
    await third.cancel()

    entries = rows(rota_app, "select actor, action, details from rota.audit order by id")
    assert entries[:2] == [("ana", "cancel", {"job": first.id}), ("bo", "discard", {"job": second.id})]
    assert entries[2][1:] == ("cancel", {"job": third.id})
    assert "@" in entries[2][0]
