"""Moments that come once a year: many open files, rights taken away, bodies that never end, a server that falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from rota import JobFailed, Rota
from rota.facts import DatabaseLost, JobClaimLost, JobStuck, WorkerStarted
from rota.jobs.claim import give_back_claim
from rota.testing import TcpProxy, TestRota, fact, until

pytestmark = pytest.mark.chaos


@pytest.fixture
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1500:
        pytest.skip(f"this machine allows {hard} open files, and the test needs 1500")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(socket.socket())
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
async def test_more_than_a_thousand_open_files_stop_nothing(rota_app: TestRota) -> None:
    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    working = asyncio.create_task(rota_app.work())
    first = await double.enqueue(1)
    assert await first.wait(10) == 2
    second = await double.enqueue(2)
    assert await second.wait(10) == 4
    rota_app.stop()
    await working


async def test_an_outcome_after_the_claim_ended_changes_nothing_and_is_reported(rota_app: TestRota) -> None:
    # the control thread looks so rarely that the settle comes before the news
    lease = dataclasses.replace(rota_app.settings.lease, interval=timedelta(seconds=30))
    rota_app.settings = dataclasses.replace(rota_app.settings, lease=lease)
    finish = asyncio.Event()

    @rota_app.task
    async def hold() -> str:
        await finish.wait()
        return "too late"

    job = await hold.enqueue()
    working = asyncio.create_task(rota_app.work())
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "running", what="the job runs")
    holder = rota_app.jobs.get_sync(job.id).member
    assert holder is not None
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        token = admin.execute("select token from rota.jobs").fetchone()[0]  # type: ignore[index]
        admin.execute("update rota.jobs set due_at = rota.now() + interval '1 hour'")
        given_back = give_back_claim(holder, token)
        admin.execute(given_back.statement.sql("rota"), given_back.params)
    told = fact(rota_app.facts, JobClaimLost)

    finish.set()

    lost = await told
    assert (lost.job, lost.token, lost.finished) == (job.id, token, True)
    assert rota_app.jobs.get_sync(job.id).state == "queued"
    rota_app.stop()
    await working


async def test_a_settle_that_is_refused_for_lack_of_rights_waits_and_blames_no_job(rota_app: TestRota) -> None:
    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute(
            "create function rota.refuse() returns trigger language plpgsql as "
            "$$ begin raise insufficient_privilege using message = 'not today'; end $$"
        )
        admin.execute("create trigger refuse before insert on rota.history for each row execute function rota.refuse()")
        refused = fact(rota_app.facts, DatabaseLost, where=lambda lost: "not today" in lost.error)
        jobs = await rota_app.enqueue_many([double.bind(n) for n in range(20)])
        working = asyncio.create_task(rota_app.work())
        await refused

        admin.execute("drop trigger refuse on rota.history")

    assert [await job.wait(10) for job in jobs] == [2 * n for n in range(20)]
    rota_app.stop()
    await working


async def test_one_outcome_that_cannot_be_stored_fails_alone(rota_app: TestRota) -> None:
    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute(
            "create function rota.refuse() returns trigger language plpgsql as "
            "$$ begin if new.result = '14' then raise numeric_value_out_of_range; end if; return new; end $$"
        )
        admin.execute("create trigger refuse before insert on rota.history for each row execute function rota.refuse()")
    jobs = await rota_app.enqueue_many([double.bind(n) for n in range(20)])
    await rota_app.drain()

    assert [await job.wait() for job in jobs if job is not jobs[7]] == [2 * n for n in range(20) if n != 7]
    with pytest.raises(JobFailed, match="could not be stored"):
        await jobs[7].wait()


async def test_bodies_that_never_end_keep_their_slots_and_take_none_from_the_others(rota_app: TestRota) -> None:
    release = threading.Event()
    threads: set[str] = set()

    @rota_app.task(timeout="100ms", retry=None)
    def stuck() -> None:
        release.wait()

    @rota_app.task(timeout="30s", retry=None)
    def healthy(n: int) -> int:
        threads.add(threading.current_thread().name)
        return n

    for _ in range(2):
        await stuck.enqueue()
    jobs = [await healthy.enqueue(n) for n in range(6)]
    try:
        with rota_app.facts.recorded(JobStuck) as stuck_bodies:
            await asyncio.wait_for(rota_app.drain(concurrency=3), 20)
    finally:
        release.set()

    assert [await job.wait() for job in jobs] == list(range(6))
    assert len(threads) == 1
    assert len(stuck_bodies) == 2
    dead = await rota_app.jobs.list(state="dead")
    assert len(dead) == 2
    with pytest.raises(JobFailed, match=r"took longer than its timeout of 0\.1 s"):
        await dead[0].wait()


@pytest.mark.slow
async def test_a_stop_is_not_held_up_by_a_server_that_is_silent(rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    with TcpProxy(dsn) as proxy:
        app = Rota(proxy.dsn(dsn))
        app.task(name="t")(lambda: None)
        started = fact(app.facts, WorkerStarted)
        working = asyncio.create_task(app.work(grace=1))
        await started

        proxy.blackhole()
        began = time.monotonic()
        app.stop()
        await working
        took = time.monotonic() - began

        proxy.heal()
        await app.close()
    assert took < 15


@pytest.mark.long
async def test_a_claim_that_was_committed_after_all_is_found_and_given_back(rota_app: TestRota) -> None:
    """Its reply never came, and when we asked what had become of it, it was not committed yet."""

    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    job = await double.using(delay="1h").enqueue(21)
    working = asyncio.create_task(rota_app.work())
    await until(rota_app.members_sync, what="a worker has joined")
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute(
            "update rota.jobs set state = 'running', token = 4711, attempt = 1, due_at = rota.now(), "
            "member = (select id from rota.members where ended_at is null)"
        )

    assert await job.wait(30) == 42
    assert (await job.refresh()).attempt == 1
    rota_app.stop()
    await working
