"""A dump that was restored into another cluster: it is noticed, and rebased without a gap or a repetition."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, make_seen, positions, restore_elsewhere, rows, seen, working

from rota import ForeignDatabase, NotPossible, Park
from rota.events.event import Event
from rota.testing import TestRota

SEE = "insert into public.seen (position) values (%s)"


def overtake(db: Db, dsn: str) -> None:
    """Two events whose positions are not in the order of their transactions."""
    with psycopg.connect(dsn) as early, psycopg.connect(dsn) as late:
        early.execute("select pg_current_xact_id()")
        append(late, "x")
        append(early, "y")


@pytest.fixture
def totals(rota_app: TestRota, db: Db) -> Any:
    make_seen(db)

    @rota_app.projection("totals", source=Log(), on_error=Park(), batch=3)
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        assert not event.data.get("bad")

    return totals


async def test_a_worker_refuses_events_of_another_server_and_says_what_to_do(
    rota_app: TestRota, db: Db, totals: Any
) -> None:
    append(db)
    restore_elsewhere(db)

    with pytest.raises(ForeignDatabase, match="rota projections rebase"):
        await rota_app.work()


async def test_after_a_rebase_it_goes_on_where_it_was_and_nothing_is_missing_or_repeated(
    rota_app: TestRota, rota_database: str, db: Db, totals: Any
) -> None:
    append(db, "a")
    append(db, "a", data={"bad": True})
    overtake(db, rota_database)
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    overtake(db, rota_database)
    append(db, "a")
    before = positions(db)
    restore_elsewhere(db)

    rebased = await rota_app.projections.rebase()
    again = positions(db)
    append(db, "a")
    overtake(db, rota_database)
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    parked = await rota_app.projections.parked("totals")

    assert (rebased.events, rebased.projections) == (7, 1)
    assert again == before
    assert [position for position in positions(db) if position not in seen(db)] == [parked[0].position] == [before[1]]
    assert len(seen(db)) == len(set(seen(db))) == 9
    assert rows(db, "select order_xid::text::bigint from rota.parked_events") == [(3,)]


async def test_what_was_not_restored_is_not_rebased(rota_app: TestRota, db: Db) -> None:
    append(db)

    with pytest.raises(NotPossible, match="nothing to rebase"):
        await rota_app.projections.rebase()
