"""A rebuild of the version that readers use: the same code fills tables of its own beside it, and takes over with no gap."""

from __future__ import annotations

from typing import Any

import pytest
from tests.projections.logs import Db, Log, append, append_many, positions, rows, working

from rota import ConfigurationError, NotPossible
from rota.events.event import Event
from rota.facts import ProjectionStopped
from rota.testing import TestRota, fact, until


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
        await until(
            lambda: (
                not rows(
                    db,
                    "select from rota.projections where build = 2 and (position < 0 or state = 'running' and partitions = 1)",
                )
            ),
            timeout=20,
            what="it replays, and stops",
        )
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
