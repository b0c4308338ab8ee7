"""The app a test gets: work is done when asked for, and time is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
import pytest

from rota import ConfigurationError, LeadershipHeld, Retry, Rota, RotaError
from rota.facts import LeadershipGained
from rota.leases.member_view import MemberView
from rota.testing import TestRota, WorkerProcess, until, until_sync
from rota.testing.app import guarded, pointed_at

APP = """
from rota import Rota
app = Rota()

@app.task(queue="later")
async def remind(name: str) -> str:
    return f"hello {name}"
"""

OTHERS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


async def test_drain_runs_what_is_due_and_what_that_enqueues(rota_app: TestRota) -> None:
    @rota_app.task
    async def first() -> None:
        await second.enqueue()

    @rota_app.task
    def second() -> str:
        return "done"

    await first.enqueue()
    await second.using(delay="1h").enqueue()

    assert await rota_app.drain() == 2
    assert [job.task for job in rota_app.enqueued()] == [second.name]


def test_sync_tests_drain_too(rota_app: TestRota) -> None:
    @rota_app.task
    async def double(number: int) -> int:
        return 2 * number

    job = double.enqueue_sync(21)

    assert rota_app.drain_sync() == 1
    assert job.wait_sync() == 42


async def test_drain_counts_jobs_not_attempts(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=2, base=60.0, cap=60.0))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue()

    assert await rota_app.drain() == 0
    rota_app.advance("1m")
    assert await rota_app.drain() == 1
    assert (await job.refresh()).state == "dead"


@pytest.mark.one_server
async def test_drain_sync_inside_a_loop_says_what_to_write(rota_app: TestRota) -> None:
    with pytest.raises(RotaError, match="await rota_app.drain"):
        rota_app.drain_sync()


def test_enqueued_lists_the_newest_last_and_filters_by_task(rota_app: TestRota) -> None:
    @rota_app.task
    async def one(number: int) -> None: ...

    @rota_app.task
    async def other() -> None: ...

    one.enqueue_sync(1)
    other.enqueue_sync()
    one.enqueue_sync(2)

    assert [job.args for job in rota_app.enqueued(one)] == [{"number": 1}, {"number": 2}]
    assert [job.task for job in rota_app.enqueued(other.name)] == [other.name]
    assert len(rota_app.enqueued()) == 3


async def test_advance_wakes_a_worker_process_that_is_already_running(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess]
) -> None:
    @rota_app.task(name="remind", queue="later")
    async def remind(name: str) -> str:
        raise NotImplementedError

    rota_worker(APP, queues=["later"])
    job = await remind.using(delay="1h").enqueue("you")

    rota_app.advance("59m")
    rota_app.advance("1m")

    assert await job.wait(timeout=20) == "hello you"


@pytest.mark.one_server
@pytest.mark.long
async def test_leases_keep_real_time(rota_app: TestRota, rota_worker: Callable[..., WorkerProcess]) -> None:
    worker = rota_worker(APP)
    [member] = await rota_app.members()

    rota_app.advance("30d")
    [renewed] = await until(lambda: renewals(rota_app, after=member.renewed_at), what="a renewal after the jump")

    assert renewed.id == member.id
    assert worker.returncode is None


async def renewals(app: Rota, after: datetime) -> list[MemberView]:
    return [member for member in await app.members() if member.renewed_at > after]


def test_advance_refuses_a_database_that_is_not_the_kits(rota_database: str) -> None:
    with TestRota(rota_database, schema="plain") as app:
        app.migrate_sync()

        with pytest.raises(ConfigurationError, match="no database of the test kit"):
            app.advance("1h")


@pytest.mark.one_server
def test_time_only_goes_forward(rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError, match="only goes forward"):
        rota_app.advance(-1)


@pytest.mark.one_server
def test_connections_end_with_the_event_loop_that_opened_them(rota_app: TestRota, rota_database: str) -> None:
    async def use() -> None:
        await rota_app.members()

    asyncio.run(use())
    asyncio.run(use())

    with psycopg.connect(rota_database, autocommit=True) as connection:
        until_sync(lambda: connection.execute(OTHERS).fetchone() == (0,), what="no other connection")


@pytest.mark.one_server
async def test_connections_of_a_loop_that_lives_on_are_closed_when_asked(rota_app: TestRota) -> None:
    loop = asyncio.new_event_loop()
    try:
        await asyncio.to_thread(loop.run_until_complete, rota_app.members())

        await asyncio.to_thread(rota_app.close_everywhere)

        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()


@pytest.mark.one_server
async def test_an_app_under_test_leads_and_locks_on_the_database_of_the_test(rota_database: str) -> None:
    app = Rota("postgresql://nobody@127.0.0.1:1/real")
    test_app = TestRota(rota_database, of=app)

    with (
        guarded(app, "app"),
        pointed_at(app, test_app),
        app.facts.recorded(LeadershipGained) as gained,
    ):
        async with app.leadership("indexer") as term, app.lock("refill"), term.transaction():
            assert [view.epoch for view in await test_app.leaders.list()] == [term.epoch]
            with pytest.raises(LeadershipHeld):
                async with test_app.leadership("indexer"):
                    pass

    assert [fact.name for fact in gained] == ["indexer"]


@pytest.mark.one_server
def test_an_app_leaves_no_connection_of_its_locks_behind(rota_database: str) -> None:
    app = TestRota(rota_database)

    async def lock() -> None:
        async with app.lock("refill"):
            pass

    asyncio.run(lock())
    with app.lock("refill"):
        pass
    app.close_everywhere()

    with psycopg.connect(rota_database, autocommit=True) as connection:
        until_sync(lambda: connection.execute(OTHERS).fetchone() == (0,), what="no other connection")


@pytest.mark.one_server
def test_an_app_under_test_forgets_what_the_test_has_declared_of_events_and_who_leads(rota_database: str) -> None:
    app = Rota("postgresql://nobody@127.0.0.1:1/real")
    orders = app.event_log("orders")

    def declare() -> None:
        @orders.event("Paid")
        class Paid(NamedTuple):
            amount: int

        @app.event_log("mails").event("Sent")
        class Sent(NamedTuple):
            to: str

        orders.upcast("Refunded", from_shape=1)(lambda data: data)

        @app.projection("totals", source=orders)
        async def totals(event: Any, connection: Any) -> None: ...

        @app.singleton("indexer")
        async def indexer(term: Any) -> None: ...

    with guarded(app, "app"), pointed_at(app, TestRota(rota_database, of=app)):
        declare()
        known = set(app.projections)

    # all of it is new again
    with guarded(app, "app"), pointed_at(app, TestRota(rota_database, of=app)):
        declare()

    assert known == {"totals"}
    assert not app.projections
    assert not app.singletons


@pytest.mark.one_server
def test_the_logs_of_an_app_under_test_have_its_types(rota_database: str) -> None:
    app = Rota("postgresql://nobody@127.0.0.1:1/real")

    @app.event_log("orders").event
    class Paid(NamedTuple):
        amount: int

    log = TestRota(rota_database, of=app).event_log("orders")
    log.append_sync("a", Paid(7))

    assert [event.data for event in log.read_sync("a")] == [Paid(7)]
