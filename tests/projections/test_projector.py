"""Projections in workers: what the handler wrote and the checkpoint are committed together, by one owner of all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, append_many, make_seen, positions, rows, seen, working

from rota import ConfigurationError, NotPossible, WaitTimedOut
from rota.events.event import Event
from rota.facts import EventsProjected, ProjectionAbandoned, ProjectionStalled, StandingBy
from rota.projections.projector import Projector
from rota.testing import TestRota, WorkerProcess, fact, until, until_sync

# sessions of handlers
INSIDE = """
    select from pg_stat_activity
    where datname = current_database() and application_name like 'rota:project@%%' and xact_start is not null
"""
SEE = "insert into public.seen (position) values (%s)"


@pytest.fixture(autouse=True)
def _table(db: Db) -> None:
    make_seen(db)


# taking in


async def test_each_event_is_taken_in_once_and_in_order_with_what_it_says(rota_app: TestRota, db: Db) -> None:
    append(db, "a", "Paid", {"sum": 5})
    append(db, "a", "Paid", {"sum": 7})
    given: list[Event] = []

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        given.append(event)
        await connection.execute(SEE, [event.position])

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
        append(db, "b")
        await totals.wait_caught_up(timeout=10)

    assert seen(db) == positions(db)
    assert [(event.stream, event.version, event.type, event.data) for event in given[:2]] == [
        ("a", 1, "Paid", {"sum": 5}),
        ("a", 2, "Paid", {"sum": 7}),
    ]


async def test_a_handler_that_is_no_coroutine_runs_in_a_thread_with_a_sync_connection(
    rota_app: TestRota, db: Db
) -> None:
    append_many(db, 20)
    threads = set[int]()

    @rota_app.projection("totals", source=Log(), batch=7)
    def totals(event: Event, connection: Any) -> None:
        threads.add(threading.get_ident())
        connection.execute(SEE, [event.position])

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert seen(db) == positions(db)
    assert threading.get_ident() not in threads


async def test_a_handler_that_takes_a_list_is_given_whole_batches_and_a_backlog_of_2500_is_read_to_its_end(
    rota_app: TestRota, db: Db
) -> None:
    append_many(db, 2500)
    sizes: list[int] = []

    @rota_app.projection("totals", source=Log(), batch=1000)
    async def totals(events: list[Event], connection: Any) -> None:
        sizes.append(len(events))
        async with connection.cursor() as cursor:
            await cursor.executemany(SEE, [[event.position] for event in events])

    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)

    assert sizes == [1000, 1000, 500]
    assert seen(db) == positions(db)


async def test_only_the_types_and_streams_that_were_asked_for_are_taken_in(rota_app: TestRota, db: Db) -> None:
    append(db, "a", "Seen")
    wanted = [append(db, "a")[0], append(db, "b-1")[0]]
    append(db, "c")

    @rota_app.projection("totals", source=Log(), types=["Paid"], streams=["a", "b-*"])
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
        await until(lambda: at(db) == positions(db)[-1], what="the checkpoint moves over what concerns nobody")

    assert seen(db) == wanted


@pytest.mark.direct("no message arrives there: it is found by polling")
async def test_an_append_wakes_it_at_once(rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.projections.projector._POLL_SECONDS", 3600.0)
    monkeypatch.setattr("rota.projections.projector._POLL_DEAF_SECONDS", 3600.0)

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None: ...

    async with working(rota_app):
        await until(lambda: owner(db), what="someone reads for it")
        taken = fact(rota_app.facts, EventsProjected)
        append(db)

        assert (await taken).events == 1


async def test_what_was_appended_without_a_word_right_after_another_is_found_soon(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, sleep = asyncio.Event(), Projector._sleep

    async def sleeping(self: Projector, seconds: float) -> None:
        rests.set()
        await sleep(self, seconds)

    monkeypatch.setattr(Projector, "_sleep", sleeping)

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None: ...

    append(db, wake=False)
    first = fact(rota_app.facts, EventsProjected)
    async with working(rota_app):
        await first
        # from here on no other look would come
        monkeypatch.setattr("rota.projections.projector._POLL_SECONDS", 3600.0)
        monkeypatch.setattr("rota.projections.projector._POLL_DEAF_SECONDS", 3600.0)
        rests.clear()
        await asyncio.wait_for(rests.wait(), 20)
        second = fact(rota_app.facts, EventsProjected)
        append(db, wake=False)

        assert (await second).events == 1


async def test_what_was_appended_without_a_word_behind_what_concerns_nobody_is_found_soon(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()

    def is_to_pass(self: Projector, found: Any) -> bool:
        looked.set()
        return False

    @rota_app.projection("totals", source=Log(), types=["Paid"])
    async def totals(event: Event, connection: Any) -> None: ...

    append(db, wake=False)
    first = fact(rota_app.facts, EventsProjected)
    async with working(rota_app):
        await first
        # from here on no other look would come
        for pause in ("_POLL_SECONDS", "_POLL_DEAF_SECONDS", "_PASS_SECONDS"):
            monkeypatch.setattr(f"rota.projections.projector.{pause}", 3600.0)
        monkeypatch.setattr(Projector, "_is_to_pass", is_to_pass)
        append(db, type="Other", wake=False)
        await asyncio.wait_for(looked.wait(), 20)
        second = fact(rota_app.facts, EventsProjected)
        append(db, wake=False)

        assert (await second).events == 1


@pytest.mark.slow
async def test_while_nothing_happens_it_asks_no_more_than_once_a_second(rota_app: TestRota, db: Db) -> None:
    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None: ...

    looks = 0
    run = type(rota_app.database).run

    async def counted(self: Any, query: Any) -> Any:
        nonlocal looks
        looks += query.statement.name == "look_for_events"
        return await run(self, query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(rota_app.database), "run", counted)
        async with working(rota_app):
            await until(lambda: owner(db), what="someone reads for it")
            before, began = looks, time.monotonic()
            await asyncio.sleep(4)  # nothing can be waited for
            asked, took = looks - before, time.monotonic() - began

    assert asked <= took + 1


async def test_a_stop_ends_between_two_events_with_what_was_done_committed_and_the_term_resigned(
    rota_app: TestRota, db: Db
) -> None:
    append_many(db, 200)
    entered = asyncio.Event()

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        entered.set()
        await asyncio.sleep(0.05)  # far longer for all than the stop takes

    work = asyncio.create_task(rota_app.work())
    await asyncio.wait_for(entered.wait(), 10)
    rota_app.stop()
    await asyncio.wait_for(work, 10)

    done = seen(db)
    assert 0 < len(done) < 200
    assert done == positions(db)[: len(done)]
    assert at(db) == done[-1]
    assert owner(db) is None


async def test_projections_are_spread_over_the_workers_and_each_has_one_owner(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    other = TestRota(rota_database)
    for app in (rota_app, other):
        for name in ("one", "two"):

            @app.projection(name, source=Log())
            async def handler(event: Event, connection: Any) -> None: ...

    async with working(rota_app):
        waits = fact(other.facts, StandingBy, timeout=20)
        async with working(other):
            await waits
            await until(
                lambda: len(set(rows(db, "select member from rota.leases where name like 'rota.projection/%%'"))) == 2,
                timeout=20,
                what="each leads one",
            )


async def test_a_handler_that_hangs_is_told_of(rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.projections.projector._STALLED_SECONDS", 0.05)
    append(db)
    go_on = asyncio.Event()

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await go_on.wait()

    stalled = fact(rota_app.facts, ProjectionStalled)
    async with working(rota_app):
        told = await stalled
        go_on.set()

    assert (told.projection, told.position) == ("totals", positions(db)[0])


async def test_another_goes_on_when_the_term_of_one_that_hangs_is_taken_away(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    append(db)
    other, hung = TestRota(rota_database), asyncio.Event()

    @rota_app.projection("totals", source=Log())
    async def hangs(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        hung.set()
        await asyncio.Event().wait()

    @other.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])

    async with working(rota_app):
        await asyncio.wait_for(hung.wait(), 10)
        waits = fact(other.facts, StandingBy)
        async with working(other):
            await waits
            await rota_app.leaders.resign("rota.projection/totals/1", force=True)
            await totals.wait_caught_up(timeout=20)

    assert seen(db) == positions(db)


@pytest.mark.parametrize("kind", ["thread", "loop"])
async def test_a_handler_that_does_not_end_with_its_process_is_not_waited_for_and_writes_nothing_afterwards(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("rota.projections.projector.STOP_SECONDS", 0.1)
    append(db)
    hung, go_on, refused = threading.Event(), threading.Event(), threading.Event()

    def late(connection: Any, position: int) -> None:
        connection.execute(SEE, [position])
        hung.set()
        go_on.wait(30)
        try:
            connection.execute(SEE, [position])
        except psycopg.OperationalError:
            refused.set()
            raise

    async def refuses_to_be_cancelled(connection: Any, position: int) -> None:
        await connection.execute(SEE, [position])
        hung.set()
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        try:
            await connection.execute(SEE, [position])
        except psycopg.OperationalError:
            refused.set()

    if kind == "thread":
        rota_app.projection("totals", source=Log())(lambda event, connection: late(connection, event.position))
    else:

        @rota_app.projection("totals", source=Log())
        async def totals(event: Event, connection: Any) -> None:
            await refuses_to_be_cancelled(connection, event.position)

    abandoned = fact(rota_app.facts, ProjectionAbandoned)
    async with working(rota_app):
        assert await asyncio.to_thread(hung.wait, 10)
    await abandoned
    left = rows(db, INSIDE)
    go_on.set()

    assert await asyncio.to_thread(refused.wait, 10)
    assert (left, owner(db)) == ([], None)
    assert seen(db) == []
    assert at(db) < 0


async def test_whoever_leads_again_after_a_handler_hung_in_a_thread_has_another_thread(
    rota_app: TestRota, db: Db
) -> None:
    append(db)
    hung, go_on = threading.Event(), threading.Event()

    @rota_app.projection("totals", source=Log())
    def totals(event: Event, connection: Any) -> None:
        connection.execute(SEE, [event.position])
        if not hung.is_set():
            hung.set()
            go_on.wait(30)

    async with working(rota_app):
        assert await asyncio.to_thread(hung.wait, 10)
        await rota_app.leaders.resign("rota.projection/totals/1", force=True)
        await totals.wait_caught_up(timeout=20)
        go_on.set()

    assert seen(db) == positions(db)


STUCK = """
import time
from tests.projections.logs import Log
from rota import Rota

app = Rota()

@app.projection("totals", source=Log())
def totals(event, connection):
    connection.execute("insert into public.seen (position) values (%s)", [event.position])
    time.sleep(3600)
"""


def test_a_handler_that_hangs_in_a_thread_does_not_keep_its_process_beyond_the_grace(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], db: Db
) -> None:
    append(db)
    worker = rota_worker(STUCK, args=["--grace", "0.2"])
    until_sync(lambda: rows(db, INSIDE), what="it is in its handler")

    worker.terminate()

    assert worker.wait(15) == 1
    assert "1 thread(s) are still in the body of a task or the handler of a poller or projection" in worker.output()
    assert "this is where its threads are" not in worker.output()  # in order, and not by the hard limit
    assert (owner(db), seen(db)) == (None, [])


async def test_a_new_version_begins_anew_beside_the_old(rota_app: TestRota, rota_database: str, db: Db) -> None:
    append_many(db, 3)
    newer = TestRota(rota_database)

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute("insert into public.seen (position, by) values (%s, 'one')", [event.position])

    @newer.projection("totals", source=Log(), version=2)
    async def totals_again(event: Event, connection: Any) -> None:
        await connection.execute("insert into public.seen (position, by) values (%s, 'two')", [event.position])

    async with working(rota_app), working(newer):
        await totals.wait_caught_up(timeout=10)
        await totals_again.wait_caught_up(timeout=10)

    assert rows(db, "select by, count(*) from public.seen group by by order by by") == [("one", 3), ("two", 3)]


# what waits


async def test_who_waits_for_it_is_told_when_it_takes_too_long_or_nobody_reads(rota_app: TestRota, db: Db) -> None:
    append(db)

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None: ...

    with pytest.raises(WaitTimedOut, match="has not caught up in time"):
        await totals.wait_caught_up(timeout=0.05)
    await rota_app.projections.pause("totals", by="ann")
    with pytest.raises(NotPossible, match="paused by ann"):
        await totals.wait_caught_up(timeout=5)


async def test_who_waits_for_one_that_is_far_behind_waits_although_none_of_the_next_events_concern_it(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.projections.feed._COUNTED", 10)
    append_many(db, 30, type="Seen")
    wanted, _ = append(db, "a")

    @rota_app.projection("totals", source=Log(), types=["Paid"])
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])

    with pytest.raises(WaitTimedOut):
        await totals.wait_caught_up(timeout=0.05)
    before = await totals.status()
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert (before.lag.events, before.lag.more, before.caught_up) == (1, False, False)
    assert seen(db) == [wanted]


# what cannot work


def test_all_that_cannot_work_is_told_at_once(rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError) as told:

        @rota_app.projection(
            "totals",
            source="orders",
            types="Paid",
            streams=[],
            batch=0,
            version=0,
            on_error="stop",  # type: ignore[arg-type]
        )
        async def totals(event: Event, connection: Any) -> None: ...

    assert all(
        part in str(told.value)
        for part in ("source is", "types is", "streams is", "batch is", "version is", "on_error")
    )


def at(db: Db) -> int:
    return int(rows(db, "select position from rota.projections")[0][0])


def owner(db: Db) -> Any:
    held = "select member from rota.leases where name = 'rota.projection/totals/1' and member is not null"
    return rows(db, held)[0][0] if rows(db, held) else None
