"""A rebuild of the version that readers use: the same code fills tables of its own beside it, and takes over with no gap."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, append_many, positions, rows, working

from rota import ConfigurationError, NotPossible
from rota.events.event import Event
from rota.facts import ProjectionStopped
from rota.projections.builds import GIVE_UP_BUILDS
from rota.projections.checkpoint import Owned, declare_projection, take_projection
from rota.projections.rebuild import may_switch
from rota.testing import TestRota, fact, until

WAITS = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
# what of the second build has not come to its end yet: only partitions that no stream is in go on
REPLAYS = """
    select
    from rota.projections as projection
    where build = 2
      and (position < 0 or state = 'running' and exists (
          select from rota.events where rota.partition_of(stream, projection.partitions) = projection.partition
      ))
"""


class Gate:
    """While it is closed, a build stops at its third event: nothing stays open, which would hold up all who read."""

    closed = False

    def pass_through(self, event: Event, build: int) -> None:
        assert not (build > 1 and self.closed and event.version is not None and event.version > 2)


def declare(app: TestRota, gate: Gate, **options: Any) -> Any:
    async def prepare(connection: Any, build: int) -> None:
        await connection.execute(f"create table public.seen_{build} (position bigint)")

    async def switch(connection: Any, build: int) -> None:
        await connection.execute(f"create or replace view public.seen as select position from public.seen_{build}")

    @app.projection("seen", source=Log(), batch=2, prepare=prepare, switch=switch, **options)
    async def seen(event: Event, connection: Any, build: int) -> None:
        gate.pass_through(event, build)
        await connection.execute(f"insert into public.seen_{build} values (%s)", [event.position])

    return seen


def live(db: Db) -> list[int]:
    return [build for (build,) in rows(db, "select distinct build from rota.projections where live_at is not null")]


def in_view(db: Db) -> list[int]:
    return [position for (position,) in rows(db, "select position from public.seen order by 1")]


@pytest.mark.parametrize("options", [{}, {"partition_by": "stream", "partitions": 3}], ids=["whole", "partitions"])
async def test_a_rebuild_replays_beside_what_readers_use_and_takes_over_when_it_has_caught_up(
    rota_app: TestRota, db: Db, options: Any
) -> None:
    for number in range(4):
        append_many(db, 5, str(number))
    gate = Gate()
    seen = declare(rota_app, gate, **options)

    async with working(rota_app):
        await until(lambda: live(db) == [1], timeout=20, what="it is live")
        db.execute("insert into public.seen_1 values (-1)")  # what a rebuild is to mend
        gate.closed = True
        begun = await rota_app.projections.rebuild("seen", by="ann")
        await until(lambda: not rows(db, REPLAYS), timeout=20, what="it replays, and stops")
        append(db, "one")
        await seen.wait_caught_up(timeout=20)
        beside, status = in_view(db), await seen.status()
        gate.closed = False
        await rota_app.projections.resume("seen", build=2)
        await until(lambda: live(db) == [2], timeout=20, what="it takes over")
        append(db, "two")
        await seen.wait_caught_up(timeout=20)
        after = await seen.status()
        told = rota_app.projections

        assert [each.build for each in await told.builds("seen")] == [2]

    assert begun.build == 2
    assert beside == [-1, *sorted(positions(db))[:21]]
    assert (status.view.build, status.caught_up, status.rebuild is not None) == (1, True, True)
    assert status.rebuild is not None
    assert 0 < status.rebuild.progress < 1
    assert status.rebuild.eta_seconds is not None
    assert (after.view.build, after.rebuild, after.caught_up) == (2, None, True)
    assert in_view(db) == sorted(positions(db))
    assert set(rows(db, "select build, state from rota.projections")) == {(1, "retired"), (2, "running")}
    assert rows(db, "select actor, action, details ->> 'build' from rota.audit order by id")[0] == (
        "ann",
        "projection.rebuild",
        "2",
    )


async def test_a_rebuild_that_is_begun_again_or_cancelled_leaves_the_live_one_alone(rota_app: TestRota, db: Db) -> None:
    append_many(db, 5)
    gate = Gate()
    seen = declare(rota_app, gate)

    async with working(rota_app):
        await until(lambda: live(db) == [1], timeout=20, what="it is live")
        with pytest.raises(NotPossible, match="no build of version 1 is under way"):
            await rota_app.projections.rebuild("seen", cancel=True)
        gate.closed = True
        await rota_app.projections.rebuild("seen")
        await rota_app.projections.rebuild("seen")
        await until(
            lambda: rows(db, "select from pg_class where relname = 'seen_3'"), timeout=20, what="the third begins"
        )
        await rota_app.projections.rebuild("seen", cancel=True)
        append(db)
        await seen.wait_caught_up(timeout=20)
        builds = await rota_app.projections.builds("seen")

    assert [(each.build, each.state, each.live_at is not None) for each in builds] == [(1, "running", True)]
    assert live(db) == [1]
    assert in_view(db) == positions(db)


async def test_a_rebuild_that_is_cancelled_while_it_takes_over_has_taken_over(rota_app: TestRota, db: Db) -> None:
    append_many(db, 5)
    switching, ended = asyncio.Event(), asyncio.Event()

    async def prepare(connection: Any, build: int) -> None:
        await connection.execute(f"create table public.seen_{build} (position bigint)")

    async def switch(connection: Any, build: int) -> None:
        if build == 2:
            switching.set()
            await ended.wait()
        await connection.execute(f"create or replace view public.seen as select position from public.seen_{build}")

    @rota_app.projection("seen", source=Log(), prepare=prepare, switch=switch)
    async def seen(event: Event, connection: Any, build: int) -> None:
        await connection.execute(f"insert into public.seen_{build} values (%s)", [event.position])

    async with working(rota_app):
        await until(lambda: live(db) == [1], timeout=20, what="it is live")
        await rota_app.projections.rebuild("seen")
        await asyncio.wait_for(switching.wait(), 20)
        cancelling = asyncio.create_task(rota_app.projections.rebuild("seen", cancel=True))
        await until(lambda: cancelling.done() or rows(db, WAITS), timeout=20, what="it waits for the switch")
        ended.set()
        with pytest.raises(NotPossible, match="There is no rebuild"):
            await cancelling
        append(db)
        await seen.wait_caught_up(timeout=20)

    assert rows(db, "select build, state from rota.projections order by 1") == [(1, "retired"), (2, "running")]
    assert in_view(db) == positions(db)


async def test_readers_are_not_given_a_build_that_is_just_given_up(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    await rota_app.database.run(declare_projection("seen", 1, {}))
    owned = Owned("seen", 1, 1)
    await rota_app.database.run(take_projection(owned))

    with psycopg.connect(rota_database) as other:
        other.execute(GIVE_UP_BUILDS.sql("rota").encode(), {"name": "seen", "version": 1})
        asking = asyncio.create_task(rota_app.database.run(may_switch(owned)))
        await until(lambda: asking.done() or rows(db, WAITS), timeout=20, what="it waits")

    assert await asking is False


async def test_rebuilds_that_are_asked_for_at_once_come_one_after_another(rota_app: TestRota, db: Db) -> None:
    declare(rota_app, Gate())
    await rota_app.database.run(declare_projection("seen", 1, {}))

    begun = await asyncio.gather(*(rota_app.projections.rebuild("seen") for _ in range(5)))

    assert sorted(each.build for each in begun) == [2, 3, 4, 5, 6]
    assert rows(db, "select build from rota.projections where state = 'running'") == [(6,)]


async def test_trouble_of_a_rebuild_does_not_stop_what_readers_use(rota_app: TestRota, db: Db) -> None:
    append_many(db, 5)
    gate = Gate()
    seen = declare(rota_app, gate)

    async with working(rota_app):
        await until(lambda: live(db) == [1], timeout=20, what="it is live")
        gate.closed = True
        stopped = fact(rota_app.facts, ProjectionStopped)
        await rota_app.projections.rebuild("seen")
        told = await stopped
        append(db)
        await seen.wait_caught_up(timeout=20)
        builds = await rota_app.projections.builds("seen")
        skipped = await rota_app.projections.skip("seen", build=2)
        gate.closed = False
        await rota_app.projections.resume("seen", build=2)
        await until(lambda: live(db) == [2], timeout=20, what="it takes over")

    assert told.build == 2
    assert [(each.build, each.state) for each in builds] == [(1, "running"), (2, "stopped")]
    assert skipped.position == positions(db)[2]
    assert in_view(db) == [each for each in positions(db) if each != skipped.position]


async def test_the_next_worker_goes_on_with_the_live_one_and_the_rebuild(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    append_many(db, 5)
    gate, other = Gate(), TestRota(rota_database)
    declare(rota_app, gate)
    seen = declare(other, gate)
    async with working(rota_app):
        await until(lambda: live(db) == [1], timeout=20, what="it is live")
        gate.closed = True
        await rota_app.projections.rebuild("seen")
        await until(lambda: rows(db, "select from pg_class where relname = 'seen_2'"), timeout=20, what="it begins")

    gate.closed = False
    append(db)
    async with working(other):
        await rota_app.projections.resume("seen")
        await until(lambda: live(db) == [2], timeout=20, what="it takes over")
        await seen.wait_caught_up(timeout=20)

    assert in_view(db) == positions(db)


def test_a_build_is_for_the_function_and_both_hooks(rota_app: TestRota) -> None:
    async def prepare(connection: Any, build: int) -> None: ...

    async def switch(connection: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"has no switch=\.\.\.") as told:

        @rota_app.projection("seen", source=Log(), prepare=switch)
        async def seen(event: Event, connection: Any, build: int) -> None: ...

    assert "of the function and its prepare only one takes a build" in str(told.value)
    with pytest.raises(ConfigurationError, match="its prepare only one takes a build"):

        @rota_app.projection("seen", source=Log(), prepare=prepare, switch=switch)
        async def seen_again(event: Event, connection: Any) -> None: ...
