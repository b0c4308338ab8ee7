"""A new version beside the one that readers use: its own tables, and a switch at which nothing is missing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, append_many, positions, rows, working

from rota import ConfigurationError, NotPossible
from rota.events.event import Event
from rota.facts import DatabaseLost, HookHindered, ProjectionHindered, ProjectionStopped
from rota.projections.checkpoint import Owned, declare_projection, move_checkpoint, take_projection
from rota.projections.feed import START, Pair
from rota.projections.rebuild import may_prepare, may_switch
from rota.testing import TestRota, fact, until

CHANGED = "select from information_schema.columns where table_name = 'seen' and column_name = 'more'"
VIEW = "create or replace view public.seen as select position from public.seen_{0}"
TABLE = "create table if not exists public.seen_{0} (position bigint); truncate public.seen_{0}"


def declare(app: TestRota, version: int, *, is_async: bool = True, held: threading.Event | None = None) -> Any:
    """A version that has a table of its own, behind a view that readers use."""
    options: dict[str, Any] = {"source": Log(), "version": version, "batch": 10}
    insert = f"insert into public.seen_{version} values (%s)"
    if is_async:

        async def prepare(connection: Any) -> None:
            await connection.execute(TABLE.format(version), prepare=False)

        async def switch(connection: Any) -> None:
            await connection.execute(VIEW.format(version))

        @app.projection("seen", **options, prepare=prepare, switch=switch)
        async def seen(event: Event, connection: Any) -> None:
            await asyncio.to_thread(lambda: held is None or held.wait(20))
            await connection.execute(insert, [event.position])

        return seen

    @app.projection(
        "seen",
        **options,
        prepare=lambda connection: connection.execute(TABLE.format(version), prepare=False),
        switch=lambda connection: connection.execute(VIEW.format(version)),
    )
    def seen_in_a_thread(event: Event, connection: Any) -> None:
        assert held is None or held.wait(20)
        connection.execute(insert, [event.position])

    return seen_in_a_thread


def live(db: Db) -> list[int]:
    return [version for (version,) in rows(db, "select version from rota.projections where live_at is not null")]


@pytest.mark.parametrize("is_async", [True, False], ids=["loop", "thread"])
async def test_a_new_version_takes_over_when_it_is_as_far_and_the_old_one_retires(
    rota_app: TestRota, rota_database: str, db: Db, is_async: bool
) -> None:
    append_many(db, 35)
    newer = TestRota(rota_database)
    old = declare(rota_app, 1, is_async=is_async)
    go_on = threading.Event()
    new = declare(newer, 2, is_async=is_async, held=go_on)

    async with working(rota_app):
        await until(lambda: live(db) == [1], what="the first is used as soon as it has caught up")
        async with working(newer):
            append(db)
            await old.wait_caught_up(timeout=10)
            beside = rows(db, "select position from public.seen")
            go_on.set()
            await until(lambda: live(db) == [2], what="the second takes over")
            append(db)
            await new.wait_caught_up(timeout=10)

    assert len(beside) == 36
    assert [position for (position,) in rows(db, "select position from public.seen order by 1")] == sorted(
        positions(db)
    )
    assert rows(db, "select count(*) from public.seen_1") == [(36,)]
    assert rows(db, "select version, state from rota.projections order by 1") == [(1, "retired"), (2, "running")]


async def test_readers_are_given_nothing_while_all_there_is_waits_for_an_older_transaction(
    rota_app: TestRota, rota_database: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.projections.standing._HINDERED_SECONDS", 0.1)
    seen = declare(rota_app, 1)
    with psycopg.connect(rota_database) as older:
        older.execute("select pg_current_xact_id()")
        append_many(db, 3)
        waits = fact(rota_app.facts, ProjectionHindered)

        async with working(rota_app):
            await waits
            before = live(db)
            older.rollback()
            await seen.wait_caught_up(timeout=10)
            await until(lambda: live(db) == [1], what="it is live")

    assert before == []


async def test_readers_are_not_given_a_version_that_is_behind(rota_app: TestRota, db: Db) -> None:
    append_many(db, 3)
    first, last = positions(db)[0], positions(db)[-1]
    old, new = Owned("seen", 1, 1), Owned("seen", 2, 1)
    places = [Pair(*row) for row in rows(db, "select order_xid::text::bigint, position from rota.events order by 1, 2")]
    for owned, to in ((old, places[-1]), (new, places[0])):
        await rota_app.database.run(declare_projection(owned.name, owned.version, {}))
        await rota_app.database.run(take_projection(owned))
        await rota_app.database.run(move_checkpoint(owned, START, to))

    behind = await rota_app.database.run(may_switch(new))
    await rota_app.database.run(move_checkpoint(new, places[0], places[-1]))
    level = await rota_app.database.run(may_switch(new))
    stale = await rota_app.database.run(may_switch(Owned("seen", 2, 0)))

    assert first < last
    assert (behind, level, stale) == (False, True, False)


async def test_a_version_that_is_not_live_is_built_anew_and_one_that_is_not_touched(rota_app: TestRota, db: Db) -> None:
    append_many(db, 5)
    seen = declare(rota_app, 1)
    async with working(rota_app):
        await until(lambda: live(db) == [1], what="it is live")
        with pytest.raises(NotPossible, match="readers use it"):
            await rota_app.projections.rebuild("seen")
        db.execute("update rota.projections set live_at = null, state = 'stopped'")
        db.execute("insert into public.seen_1 values (-1)")
        await rota_app.projections.rebuild("seen")
        await until(lambda: live(db) == [1], what="it is live again")
        status = await seen.status()

    assert [position for (position,) in rows(db, "select position from public.seen")] == positions(db)
    assert (status.progress, status.eta_seconds, status.caught_up) == (1.0, 0.0, True)


async def test_how_far_it_is_and_how_long_the_rest_takes_is_told(rota_app: TestRota, db: Db) -> None:
    append_many(db, 101)
    go_on = asyncio.Event()

    @rota_app.projection("half", source=Log(), batch=51)
    async def half(event: Event, connection: Any) -> None:
        if event.version == 52:
            await go_on.wait()

    async with working(rota_app):
        await until(lambda: rows(db, "select from rota.projections where position > 0"), what="the first half is done")
        status = await half.status()
        go_on.set()

    assert status.progress == 0.5
    assert status.eta_seconds == pytest.approx(status.view.building_seconds, rel=0.01)


async def test_a_version_whose_tables_cannot_be_made_stops_before_its_first_event(rota_app: TestRota, db: Db) -> None:
    append(db)

    async def prepare(connection: Any) -> None:
        await connection.execute("create table public.seen (nothing nonsense)")

    @rota_app.projection("seen", source=Log(), prepare=prepare)
    async def seen(event: Event, connection: Any) -> None: ...

    stopped = fact(rota_app.facts, ProjectionStopped)
    async with working(rota_app):
        told = await stopped

    assert "nonsense" in str(told.error)
    assert (await seen.status()).view.position is None


@pytest.mark.parametrize("hook", ["prepare", "switch"])
async def test_a_lock_that_others_hold_is_told_of_as_what_it_is_and_waited_for(
    rota_app: TestRota, rota_database: str, db: Db, hook: str
) -> None:
    append(db)
    db.execute("create table public.seen (position bigint)")

    def change(connection: Any) -> None:
        connection.execute("set local lock_timeout = '50ms'")
        connection.execute("alter table public.seen add column more text")

    @rota_app.projection("seen", source=Log(), **{hook: change})
    def seen(event: Event, connection: Any) -> None:
        connection.execute("insert into public.seen values (%s)", [event.position])

    with psycopg.connect(rota_database) as reader, rota_app.facts.recorded(DatabaseLost, ProjectionStopped) as wrong:
        reader.execute("select * from public.seen")
        hindered = fact(rota_app.facts, HookHindered)
        async with working(rota_app):
            told = await hindered
            await until(lambda: rows(db, "select from rota.projections where error_type is not null"), what="on record")
            reader.rollback()
            await until(lambda: rows(db, CHANGED), what="it is changed")
            await seen.wait_caught_up(timeout=10)

    assert (told.hook, type(told.error)) == (hook, psycopg.errors.LockNotAvailable)
    assert wrong == []
    assert rows(db, "select failures, error_type from rota.projections") == [(0, "psycopg.errors.LockNotAvailable")]
    assert rows(db, "select position from public.seen") == [(positions(db)[0],)]


async def test_a_connection_that_is_lost_is_no_fault_of_a_hook(rota_app: TestRota, db: Db) -> None:
    append(db)
    cut: list[int] = []

    async def prepare(connection: Any) -> None:
        if not cut:
            cut.append(connection.info.backend_pid)
            db.execute("select pg_terminate_backend(%s)", cut)
        await connection.execute("create table public.seen (position bigint)")

    @rota_app.projection("seen", source=Log(), prepare=prepare)
    async def seen(event: Event, connection: Any) -> None: ...

    async with working(rota_app):
        await seen.wait_caught_up(timeout=20)

    assert len(cut) == 1
    assert (await seen.status()).view.error_type is None


async def test_one_that_has_taken_in_events_without_a_prepare_is_given_none_unless_it_begins_anew(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    append(db)
    db.execute("create table public.seen (position bigint)")
    later, insert = TestRota(rota_database), "insert into public.seen values (%s)"

    @rota_app.projection("seen", source=Log())
    def seen(event: Event, connection: Any) -> None:
        connection.execute(insert, [event.position])

    @later.projection(
        "seen", source=Log(), prepare=lambda connection: connection.execute("truncate public.seen", prepare=False)
    )
    def seen_later(event: Event, connection: Any) -> None:
        connection.execute(insert, [event.position])

    async with working(rota_app):
        await seen.wait_caught_up(timeout=10)
    append(db)
    async with working(later):
        await seen_later.wait_caught_up(timeout=10)
        went_on = rows(db, "select position from public.seen order by 1")
        await later.projections.rewind("seen")
        await seen_later.wait_caught_up(timeout=10)

    assert went_on == [(position,) for position in positions(db)]
    assert rows(db, "select position from public.seen order by 1") == went_on
    assert rows(db, "select prepared_at is not null from rota.projections") == [(True,)]


async def test_tables_are_not_made_when_the_first_event_was_taken_in_meanwhile(rota_app: TestRota, db: Db) -> None:
    append(db)
    owned = Owned("seen", 1, 1)
    place = Pair(*rows(db, "select order_xid::text::bigint, position from rota.events")[0])
    await rota_app.database.run(declare_projection(owned.name, owned.version, {}))
    await rota_app.database.run(take_projection(owned))

    before = await rota_app.database.run(may_prepare(owned))
    await rota_app.database.run(move_checkpoint(owned, START, place))
    after = await rota_app.database.run(may_prepare(owned))
    stale = await rota_app.database.run(may_prepare(Owned("seen", 1, 0)))

    assert (before, after, stale) == (True, False, False)


def test_hooks_are_of_the_colour_of_the_handler(rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError, match="async if the handler is"):

        @rota_app.projection("seen", source=Log(), switch=print)
        async def seen(event: Event, connection: Any) -> None: ...
