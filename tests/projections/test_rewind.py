"""Reading again from a place, from a time or from the beginning, and knowing first how many events that is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.projections.logs import Db, Log, append, make_seen, positions, rows, working

from rota import ConfigurationError, NotPossible
from rota.events.event import Event
from rota.testing import TestRota

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _table(db: Db) -> None:
    make_seen(db)


def totals_of(app: TestRota, **options: Any) -> Any:
    @app.projection("totals", source=Log(), **options)
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute("insert into public.seen (position) values (%s)", [event.position])

    return totals


async def taken_in(app: TestRota, db: Db, hours: Sequence[int], **options: Any) -> list[int]:
    """Events that were stored so many hours after noon, all of them taken in; returns their positions."""
    for place, _ in enumerate(hours):
        append(db, f"order-{place}", "Paid" if place % 2 == 0 else "Sent", wake=False)
    given = positions(db)
    for position, hour in zip(given, hours, strict=True):
        at = NOON + timedelta(hours=hour)
        db.execute("update rota.events set created_at = %s where position = %s", [at, position])
    totals = totals_of(app, **options)
    async with working(app):
        await totals.wait_caught_up(timeout=30)
    return given


def seen(db: Db) -> list[int]:
    return [position for (position,) in rows(db, "select position from public.seen order by position")]


async def test_as_many_are_read_again_as_a_preview_told(rota_app: TestRota, db: Db) -> None:
    given = await taken_in(rota_app, db, [0, 1, 2, 3])
    before = rows(db, "select order_xid, position, state from rota.projections")

    preview = await rota_app.projections.preview_rewind("totals", given[2])
    untouched = rows(db, "select order_xid, position, state from rota.projections")
    await rota_app.projections.rewind("totals", given[2])
    async with working(rota_app):
        await rota_app.projections["totals"].wait_caught_up(timeout=30)

    assert untouched == before
    assert (preview.position, preview.events, preview.more) == (given[2], 2, False)
    assert seen(db) == sorted([*given, given[2], given[3]])


async def test_only_those_that_concern_it_are_counted(rota_app: TestRota, db: Db) -> None:
    await taken_in(rota_app, db, [0, 1, 2, 3, 4], types=["Paid"])

    assert (await rota_app.projections.preview_rewind("totals")).events == 3


async def test_of_partitions_each_counts_its_own(rota_app: TestRota, db: Db) -> None:
    await taken_in(rota_app, db, [0, 1, 2, 3, 4, 5], partition_by="stream", partitions=3)

    everything = await rota_app.projections.preview_rewind("totals")
    parts = [await rota_app.projections.preview_rewind("totals", partition=each) for each in range(3)]

    assert everything.events == 6
    assert sum(each.events or 0 for each in parts) == 6


async def test_a_time_is_the_first_event_stored_then_or_later(rota_app: TestRota, db: Db) -> None:
    given = await taken_in(rota_app, db, [0, 1, 2, 3])

    exactly = await rota_app.projections.preview_rewind("totals", since=NOON + timedelta(hours=2))
    between = await rota_app.projections.preview_rewind("totals", since=NOON + timedelta(minutes=30))
    long_ago = rota_app.projections.preview_rewind_sync("totals", since=NOON - timedelta(days=1))
    await rota_app.projections.rewind("totals", since=NOON + timedelta(hours=2))

    assert (exactly.position, exactly.events) == (given[2], 2)
    assert (between.position, between.events) == (given[1], 3)
    assert (long_ago.position, long_ago.events) == (given[0], 4)
    assert rows(db, "select position from rota.projections") == [(given[2] - 1,)]


async def test_one_that_was_stored_out_of_turn_is_not_passed_over(rota_app: TestRota, db: Db) -> None:
    given = await taken_in(rota_app, db, [0, 3, 1, 2])

    preview = await rota_app.projections.preview_rewind("totals", since=NOON + timedelta(hours=2))

    assert preview.position == given[1]


async def test_what_cannot_be_is_said_before(rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    given = await taken_in(rota_app, db, [0, 1])
    append(db, wake=False)
    later = positions(db)[-1]
    stored = "update rota.events set created_at = %s where position = %s"
    db.execute(stored, [NOON + timedelta(hours=9), later])
    rewind = rota_app.projections.preview_rewind

    with pytest.raises(NotPossible, match="No event has been stored in orders since 2030-02-01"):
        await rewind("totals", since=NOON + timedelta(days=1))
    with pytest.raises(NotPossible, match="it has not come that far"):
        await rewind("totals", since=NOON + timedelta(hours=5))
    with pytest.raises(NotPossible, match="There is no event at position"):
        await rewind("totals", later + 1000)
    with pytest.raises(ConfigurationError, match="cannot both say"):
        await rewind("totals", given[0], since=NOON)
    with pytest.raises(ConfigurationError, match="needs a time zone"):
        await rewind("totals", since=datetime(2030, 1, 31))
    monkeypatch.setattr("rota.projections.feed._COUNTED", 2)
    with pytest.raises(NotPossible, match="More events than are gone through"):
        await rewind("totals", since=NOON)
