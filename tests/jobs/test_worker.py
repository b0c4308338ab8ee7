"""A worker as a whole: how it is stopped, and what it does beside running jobs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.jobs.statements import Db, ask, join

from rota.clock import boottime
from rota.facts import HistoryKept, JobLost
from rota.jobs.chores import Chores, find_chores
from rota.jobs.retention import upkeep
from rota.jobs.worker import Worker, WorkerSettings
from rota.leases.control import Control
from rota.leases.members import leave_member
from rota.postgres.query import Query, Row
from rota.testing import TestRota, fact, until, until_sync


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def release() -> threading.Event:
    return threading.Event()


def stubborn(started: threading.Event, release: threading.Event) -> Callable[[], Coroutine[Any, Any, None]]:
    """A body that ignores its cancellation."""

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    return stubborn


async def test_asked_twice_to_stop_it_waits_for_no_body(rota_app: TestRota, release: threading.Event) -> None:
    started = threading.Event()
    job = await rota_app.task(stubborn(started, release)).enqueue()
    working = asyncio.create_task(rota_app.work(grace=3600))
    await until(started.is_set, what="it runs")

    rota_app.stop()
    rota_app.stop()
    try:
        await asyncio.wait_for(asyncio.shield(working), 10)
    finally:
        release.set()

    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)


@pytest.mark.one_server
def test_work_sync_leaves_a_coroutine_behind_that_ignores_its_cancellation(
    rota_app: TestRota, release: threading.Event
) -> None:
    started = threading.Event()
    job = rota_app.task(stubborn(started, release)).enqueue_sync()
    working = threading.Thread(target=rota_app.work_sync, kwargs={"grace": 0.1}, daemon=True)
    working.start()
    until_sync(started.is_set, what="it runs")

    rota_app.stop()
    working.join(10)

    assert not working.is_alive()
    release.set()
    assert (rota_app.jobs.get_sync(job.id).state, rota_app.jobs.get_sync(job.id).attempt) == ("queued", 0)


def worker_of(app: TestRota) -> Worker:
    (working,) = app.workings
    return working._worker


def lose(db: Db, task: str) -> int:
    """A job whose worker has ended."""
    member = join(db)
    row = db.execute(
        "insert into rota.jobs (task, state, token, member, attempt, claimed_at) "
        "values (%s, 'running', 1, %s, 1, rota.now()) returning id",
        [task, member],
    ).fetchone()
    assert row is not None
    ask(db, leave_member(member))
    return int(row[0])


async def test_a_member_that_ends_during_a_round_of_rescue_is_not_left_to_the_next(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    def last_step(member: UUID) -> Query[Chores]:
        query = find_chores(member)

        def read(rows: Sequence[Row]) -> Chores:
            if not lost:
                lost.append(lose(db, "echo"))
                worker_of(rota_app).reactions.on_ended([])
            return query.read(rows)

        return replace(query, read=read)

    monkeypatch.setattr("rota.jobs.rounds.find_chores", last_step)
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, rescue_every=3600))
    rota_app.task(name="echo")(lambda: None)

    rescued = fact(rota_app.facts, JobLost)
    working = asyncio.create_task(rota_app.work())

    assert (await rescued).job == lost[0]
    rota_app.stop()
    await working


async def test_what_a_rescuer_that_died_has_left_is_found_without_a_word(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, rescue_every=0.1))
    rota_app.task(name="echo")(lambda: None)
    left = lose(db, "echo")

    rescued = fact(rota_app.facts, JobLost)
    working = asyncio.create_task(rota_app.work())

    assert (await rescued).job == left
    rota_app.stop()
    await working


async def test_a_worker_that_has_just_started_leaves_the_counting_for_later(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    passed = 0.0
    monkeypatch.setattr("rota.jobs.rounds.boottime", lambda: boottime() + passed)
    monkeypatch.setattr("rota.jobs.rounds._FIRST_COUNT_SECONDS", (600.0, 600.0))
    monkeypatch.setattr("rota.jobs.rounds.upkeep", lambda key: rounds.append(key) or upkeep(key))
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, upkeep_every=0.01))

    def has_counted() -> bool:
        return bool(db.execute("select from rota.tallied where kept_at is not null").fetchall())

    working = asyncio.create_task(rota_app.work())
    await until(lambda: len(rounds) > 3, what="it has come by several times")
    assert not has_counted()
    passed = 600.0
    await until(has_counted, what="it counts")
    rota_app.stop()
    await working


async def test_one_of_very_many_leaves_the_upkeep_to_the_others(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    rounds: list[int] = []

    def live(control: Control) -> int:
        asked.append(len(rounds))
        return 1 if len(asked) > 20 else 10**9

    monkeypatch.setattr(Control, "live", property(live, lambda control, count: None), raising=False)
    monkeypatch.setattr("rota.jobs.rounds.upkeep", lambda key: rounds.append(key) or upkeep(key))
    monkeypatch.setattr("rota.jobs.rounds._MOST_LEFT", 100)
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, upkeep_every=0.01))

    working = asyncio.create_task(rota_app.work())
    await until(lambda: len(rounds) > 3, timeout=60, what="it is alone again")
    rota_app.stop()
    await working

    assert len(set(asked[:20])) == 1  # the first are nobody else's


async def test_no_member_leaves_all_of_the_upkeep_to_others(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    monkeypatch.setattr(Control, "live", property(lambda control: 10**9, lambda control, count: None), raising=False)
    monkeypatch.setattr("rota.jobs.rounds.upkeep", lambda key: rounds.append(key) or upkeep(key))
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, upkeep_every=0.01))

    working = asyncio.create_task(rota_app.work())
    await until(lambda: len(rounds) > 3, timeout=60, what="its turn, though there are very many")
    rota_app.stop()
    await working


async def test_an_upkeep_that_is_refused_is_told_once_and_the_work_goes_on(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rota_app.task
    async def echo(n: int) -> int:
        return n

    rounds: list[int] = []
    monkeypatch.setattr("rota.jobs.rounds.upkeep", lambda key: rounds.append(key) or upkeep(key))
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, upkeep_every=0.01))
    db.execute("alter function rota.upkeep rename to gone")
    with rota_app.facts.recorded(HistoryKept) as told:
        working = asyncio.create_task(rota_app.work())
        await until(lambda: len(rounds) > 3, what="it is tried again and again")
        assert await (await echo.enqueue(7)).wait(10) == 7
        db.execute("alter function rota.gone rename to upkeep")
        await until(lambda: len(told) > 1, what="it is told that it works again")
        rota_app.stop()
        await working

    assert ["upkeep was refused" in reason for reason in told[0].hindered] == [True]
    assert told[1].hindered == ()
