"""Locks, deadlocks, time limits and busy pools of others: what stands in the way is waited for, gone around, or tried again."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool
from tests.chaos.faults import APP, SHORT, Admin, StartWorker, count, identities, known_tasks, now, outlived

from rota import Rota
from rota.facts import DatabaseLost
from rota.postgres.session import Session
from rota.testing import TestRota, fact, until

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]


@pytest.fixture
def admin(direct_database: str) -> Iterator[Admin]:
    with psycopg.connect(direct_database, autocommit=True) as connection:
        yield connection


# Seconds. They hold for a new session until it has said what holds for it, which a busy machine may take a while for.
LIMITS = {
    "statement_timeout": 0.2,
    "lock_timeout": 0.2,
    "idle_in_transaction_session_timeout": 0.2,
    "idle_session_timeout": 1.0,
    "transaction_timeout": 0.2,  # since PostgreSQL 17
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_time_limit_of_the_database_is_not_ours(rota_app: TestRota, admin: Admin, limit: str) -> None:
    """Every statement that takes jobs or writes outcomes takes longer than the database allows others."""
    if not admin.execute("select from pg_settings where name = %s", [limit]).rowcount:
        pytest.skip(f"this PostgreSQL knows no {limit}")
    slow = "create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.25); return null; end $$"
    admin.execute(slow)
    admin.execute(
        "create trigger slow after update or delete on rota.jobs for each statement execute function public.slow()"
    )
    database = SQL("alter database {} set {} = {}").format(
        Identifier(rota_app.database.dsn.database), Identifier(limit), f"{LIMITS[limit]}s"
    )
    admin.execute(database)

    @rota_app.task
    async def idle() -> None:
        await asyncio.sleep(LIMITS[limit] + 0.05)

    with rota_app.facts.recorded(DatabaseLost) as lost:
        jobs = await rota_app.enqueue_many([idle.bind() for _ in range(3)])
        await rota_app.drain()

    assert [(job.state, job.attempt) for job in await rota_app.jobs.list()] == [("succeeded", 1)] * len(jobs)
    assert lost == []


@pytest.mark.direct(
    "a session that is there already keeps its deadlock_timeout, which is as long as we wait for a lock"
)
async def test_a_deadlock_with_a_transaction_of_the_users_is_tried_again(
    rota_app: TestRota, admin: Admin, direct_database: str
) -> None:
    name = Identifier(rota_app.database.dsn.database)
    admin.execute(SQL("alter database {} set deadlock_timeout = '50ms'").format(name))
    finish = asyncio.Event()

    @rota_app.task
    async def wait() -> None:
        await finish.wait()

    jobs = await rota_app.enqueue_many([wait.bind() for _ in range(3)])
    working = asyncio.create_task(rota_app.work())
    await until(lambda: {job.state for job in rota_app.jobs.list_sync()} == {"running"}, what="all of them run")
    with psycopg.connect(direct_database) as user:
        user.execute("set deadlock_timeout = '1h'")  # so that it is us who are sent back
        user.execute("select from rota.jobs where id = %s for update", [jobs[1].id])
        blocked = "select from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        chosen = fact(rota_app.facts, DatabaseLost, where=lambda lost: "deadlock" in lost.error)

        finish.set()
        await until(
            lambda: admin.execute(blocked, [user.info.backend_pid]).rowcount, what="our settle waits for theirs"
        )
        # in whichever order we take them, we have one of these by now
        await asyncio.to_thread(user.execute, "select from rota.jobs for update")
        await chosen

    await until(lambda: count(admin, "history") == 3, what="all are settled")
    assert {(await job.refresh()).attempt for job in jobs} == {1}
    rota_app.stop()
    await working


async def test_a_pool_of_the_users_that_is_all_taken_stops_neither_lease_nor_settling(
    rota_app: TestRota, admin: Admin
) -> None:
    dsn = rota_app.database.dsn.conninfo
    grabbed, release = asyncio.Event(), asyncio.Event()
    async with AsyncConnectionPool(dsn, min_size=2, max_size=2, kwargs={"autocommit": True}) as pool:
        app = Rota(dsn, pool=pool, lease="1.5s")

        @app.task(name="grab")
        async def grab() -> None:
            async with pool.connection(), pool.connection():
                grabbed.set()
                await release.wait()

        @app.task(name="double")
        async def double(n: int) -> int:
            return 2 * n

        grabbing = await app.enqueue(grab.bind())
        working = asyncio.create_task(app.work())
        await asyncio.wait_for(grabbed.wait(), 20)
        holder, since = rota_app.jobs.get_sync(grabbing.id).member, now(admin)
        rota_app.task(name="double")(lambda n: n)
        jobs = await rota_app.enqueue_many([rota_app.tasks["double"].bind(n) for n in range(50)])

        results = [await job.wait(20) for job in jobs]
        await until(lambda: outlived(admin, holder, since), what="a renewal when the lease would be over")

        release.set()
        await grabbing.wait(20)
        app.stop()
        await working
    assert results == [2 * n for n in range(50)]
    assert identities(admin) == ["left"]


@pytest.mark.long
async def test_jobs_use_few_transaction_ids(own_server: Any) -> None:
    """One each for enqueue, claim and settle at the very most, in bulk next to none; and two a second to keep the lease."""

    def used() -> int:
        return int(admin.execute("select pg_current_xact_id()::text").fetchone()[0])  # type: ignore[index]

    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        async with Rota(own_server.dsn) as app:
            task = app.task(name="nothing")(lambda: None)
            working = asyncio.create_task(app.work())
            before, since = used(), time.monotonic()
            for _ in range(100):
                await (await task.enqueue()).wait(20)
            one_by_one = used() - before
            at_rest = 10 + 4 * (time.monotonic() - since)
            await app.enqueue_many([task.bind() for _ in range(1000)])
            await until(lambda: count(admin, "history") == 1100, timeout=30, what="all are settled")
            in_bulk = used() - before - one_by_one
            app.stop()
            await working

    assert one_by_one <= 3 * 100 + at_rest
    assert in_bulk <= 1000 / 4


EQUAL_KEYS = (
    """
import rota.jobs.rounds, rota.leases.session
for module in (rota.jobs.rounds, rota.leases.session):
    module.lock_key = lambda *name: 4711
"""
    + SHORT
)


@pytest.mark.direct("there are no session locks")
@pytest.mark.long
async def test_equal_lock_keys_are_harmless(
    rota_app: TestRota, rota_worker: StartWorker, admin: Admin, tmp_path: Path
) -> None:
    """Whoever finds its key taken has no proof of life but its lease, which is enough to live and to be found dead."""
    hold = known_tasks(rota_app).tasks["hold"]
    rota_worker(EQUAL_KEYS, queues=["none"])
    victim = rota_worker(EQUAL_KEYS)
    job = await hold.enqueue(str(tmp_path / "gate"))
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "running", what="the job runs")
    keys = admin.execute("select lock_key from rota.members order by started_at").fetchall()
    holder, since = rota_app.jobs.get_sync(job.id).member, now(admin)

    await until(lambda: outlived(admin, holder, since), what="without a lock it lives as long as it renews")
    victim.kill()
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "queued", timeout=20, what="its job is taken over")

    assert keys == [(4711,), (None,)]
    assert identities(admin) == [None, "expired"]


@pytest.mark.long
async def test_an_operators_lock_holds_up_no_more_than_what_it_is_on(
    rota_app: TestRota, rota_worker: StartWorker, admin: Admin, tmp_path: Path
) -> None:
    tasks = known_tasks(rota_app).tasks
    double = tasks["double"]
    worker = rota_worker(SHORT)
    with psycopg.connect(rota_app.database.dsn.conninfo) as operator:
        locked = await double.using(delay="1h").enqueue(1)
        operator.execute("select from rota.jobs where id = %s for update", [locked.id])
        others = await rota_app.enqueue_many([double.bind(n) for n in range(50)])
        assert [await job.wait(20) for job in others] == [2 * n for n in range(50)]

        operator.rollback()
        held = await tasks["hold"].enqueue(str(tmp_path / "gate"))
        await until(lambda: rota_app.jobs.get_sync(held.id).state == "running", what="a job runs")
        operator.execute("lock table rota.jobs in access exclusive mode")
        holder, since = admin.execute("select id from rota.members").fetchone()[0], now(admin)  # type: ignore[index]
        (tmp_path / "gate").touch()
        enqueueing = asyncio.create_task(double.enqueue(7))
        await until(lambda: outlived(admin, holder, since), what="a renewal when the lease would be over")
        operator.rollback()

    assert await (await enqueueing).wait(20) == 14
    await held.wait(20)
    assert (await held.refresh()).attempt == 1
    assert identities(admin) == [None]
    assert worker.returncode is None


@pytest.mark.long
async def test_an_operators_lock_on_a_running_job_holds_up_no_other_outcome(
    rota_app: TestRota, rota_worker: StartWorker, tmp_path: Path
) -> None:
    tasks = known_tasks(rota_app).tasks
    rota_worker(APP)
    held = await tasks["hold"].enqueue(str(tmp_path / "gate"))
    await until(lambda: rota_app.jobs.get_sync(held.id).state == "running", what="a job runs")
    with psycopg.connect(rota_app.database.dsn.conninfo) as operator:
        operator.execute("select from rota.jobs where id = %s for update", [held.id])

        (tmp_path / "gate").touch()
        others = await rota_app.enqueue_many([tasks["double"].bind(n) for n in range(50)])
        results = [await job.wait(20) for job in others]

        assert results == [2 * n for n in range(50)]
        assert (await held.refresh()).state == "running"
    await held.wait(20)
    assert (await held.refresh()).attempt == 1


async def test_a_settle_that_is_not_answered_in_time_is_taken_for_a_lock(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the limit of time for locks not hold, the deadline of the session does."""
    monkeypatch.setattr("rota.jobs.worker._SETTLING", {"lock_timeout": "0"})
    monkeypatch.setattr("rota.jobs.worker.Session", functools.partial(Session, deadline=1.0))
    finish = asyncio.Event()

    @rota_app.task
    async def wait() -> None:
        await finish.wait()

    jobs = await rota_app.enqueue_many([wait.bind() for _ in range(3)])
    working = asyncio.create_task(rota_app.work())
    await until(lambda: {job.state for job in rota_app.jobs.list_sync()} == {"running"}, what="all of them run")
    with psycopg.connect(rota_app.database.dsn.conninfo) as operator:
        operator.execute("select from rota.jobs where id = %s for update", [jobs[1].id])

        finish.set()
        # what comes before it in the order of settling is locked by the settle that nobody waits for any more
        await jobs[2].wait(20)

    await jobs[0].wait(20)
    await jobs[1].wait(20)
    rota_app.stop()
    await working


@pytest.mark.long
async def test_an_operators_lock_on_a_running_job_holds_up_no_other_that_is_handed_back(
    rota_app: TestRota, rota_worker: StartWorker, tmp_path: Path
) -> None:
    hold = known_tasks(rota_app).tasks["hold"]
    worker = rota_worker(APP)
    jobs = await rota_app.enqueue_many([hold.bind(str(tmp_path / "never")) for _ in range(5)])
    await until(lambda: {rota_app.jobs.get_sync(job.id).state for job in jobs} == {"running"}, what="all of them run")
    with psycopg.connect(rota_app.database.dsn.conninfo) as operator:
        operator.execute("select from rota.jobs where id = %s for update", [jobs[0].id])

        worker.terminate()
        worker.wait_for_output("stopping")
        worker.terminate()
        assert worker.wait() == 1  # as the end of one could not be written down

        worker.wait_for_output(f"what became of job(s) {jobs[0].id} cannot be written down yet")
        worker.wait_for_output("4 handed back, 1 could not be written in time")
        left = [await job.refresh() for job in jobs]
        assert [(job.state, job.attempt) for job in left] == [("running", 1)] + [("queued", 0)] * 4


@pytest.mark.long
async def test_an_outcome_that_cannot_be_stored_at_all_holds_up_no_other(
    rota_app: TestRota, rota_worker: StartWorker, admin: Admin, tmp_path: Path
) -> None:
    tasks = known_tasks(rota_app).tasks
    (tmp_path / "gate").touch()
    admin.execute("alter table rota.dead add constraint none check (task <> 'stumble')")
    worker = rota_worker(APP)
    stumbling = await tasks["stumble"].enqueue(str(tmp_path / "gate"))
    worker.wait_for_output("could not be stored")
    assert await (await tasks["double"].enqueue(1)).wait(20) == 2
    assert (await stumbling.refresh()).state == "running"

    admin.execute("alter table rota.dead drop constraint none")

    await until(lambda: rota_app.jobs.get_sync(stumbling.id).state == "dead", what="it is buried after all")
    assert (await stumbling.refresh()).attempt == 2
    assert worker.returncode is None


@pytest.mark.long
@pytest.mark.direct("its sessions outlive the app, and tell what they have read when they end")
async def test_dead_rows_that_a_long_transaction_keeps_are_not_walked_for_every_job(
    rota_app: TestRota, admin: Admin, direct_database: str
) -> None:
    """See bench/pinned.py for what that means in jobs per second."""
    dead, woken = 200_000, 50
    read = "select idx_tup_read from pg_stat_all_indexes where schemaname = 'rota' and indexrelname = 'jobs_claimable'"

    @rota_app.task
    async def noop() -> None: ...

    @rota_app.task
    async def follow() -> None:
        await noop.using(queue="newer").enqueue()

    with psycopg.connect(direct_database) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("select count(*) from rota.jobs")
        admin.execute("insert into rota.jobs (task) select 'noop' from generate_series(1, %s)", [dead])
        admin.execute("delete from rota.jobs")
        working = asyncio.create_task(rota_app.work())
        for _ in range(woken):
            job = await noop.enqueue()
            await job.wait(timeout=30)
        late = await noop.using(queue="new", at=datetime.now(UTC) - timedelta(hours=1)).enqueue()
        await late.wait(timeout=30)
        rota_app.stop()
        await working
        # a drain sees more than what is cheap to see
        first = await follow.enqueue()
        await rota_app.drain()
        assert [job.state for job in await rota_app.jobs.list(queue="newer")] == ["succeeded"]
        assert (await first.refresh()).state == "succeeded"
    await rota_app.close()  # a session that ends tells what it has read
    sessions = "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    await until(lambda: admin.execute(sessions).rowcount == 0)

    (walked,) = admin.execute(read).fetchone() or (0,)
    assert dead <= walked < dead * woken / 2  # on a busy machine a look may seem cheap that is not
