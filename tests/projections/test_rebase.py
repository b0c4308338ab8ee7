"""A dump that was restored into another cluster: it is noticed, and rebased without a gap or a repetition."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, make_seen, positions, restore_elsewhere, rows, seen, working

from rota import ForeignDatabase, NotPossible, Park
from rota.errors import DatabaseUnavailable
from rota.events.event import Event
from rota.postgres.query import statement
from rota.projections.checkpoint import declare_projection
from rota.testing import TestRota

# a row takes longer than a statement of ours may
SLOW = """
    do $$ begin execute format('alter database %I set statement_timeout = ''300ms''', current_database()); end $$;
    create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return new; end $$;
    create trigger slow before update on rota.events for each row execute function public.slow()
"""
IMPATIENT = statement("rebase_limits", "select set_config('lock_timeout', '50ms', true)")
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


async def test_a_worker_refuses_a_checkpoint_of_another_server_whose_table_was_made_history(
    rota_app: TestRota, db: Db
) -> None:
    make_seen(db)
    db.execute("create table public.happened (id int primary key, data jsonb, xid xid8 default pg_current_xact_id())")
    db.execute("insert into public.happened values (1, '{}'), (2, '{}')")
    happened = rota_app.event_table("happened", position="id", xid="xid", data="data")

    @rota_app.projection("totals", source=happened)
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    db.execute("insert into public.happened values (3, '{}')")
    restore_elsewhere(db)
    db.execute("update public.happened set xid = null")

    with pytest.raises(ForeignDatabase, match=r"rota projections rewind totals \[--to POSITION\]"):
        await rota_app.work()
    await rota_app.projections.rewind("totals", 3)
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert seen(db) == [1, 2, 3]


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


# what was appended between the restore and the rebase


async def test_what_was_appended_since_the_restore_comes_behind_what_was_restored_and_is_read_once(
    rota_app: TestRota, rota_database: str, db: Db, totals: Any
) -> None:
    append(db, "a")
    overtake(db, rota_database)
    append(db, "b")
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    append(db, "b")
    before = positions(db)
    restore_elsewhere(db)
    # an id of this server's past, and that of what was restored of its stream
    since = [append(db, "new")[0], append(db, "a")[0], append(db, "y")[0], append(db, "a")[0]]

    rebased = await rota_app.projections.rebase()
    again = positions(db)
    append(db, "a")
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert (rebased.events, rebased.appended) == (len(before) + 4, 4)
    assert again == before + since
    assert seen(db) == positions(db)
    assert rows(db, "select version from rota.events where stream = 'a' order by order_xid, position") == [
        (version,) for version in range(1, 5)
    ]


async def test_a_checkpoint_before_the_first_event_stays_there_whatever_was_appended_since(
    rota_app: TestRota, db: Db, totals: Any
) -> None:
    first, _ = append(db, "a")
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    await rota_app.projections.rewind("totals", first)
    restore_elsewhere(db)
    append(db, "new")

    await rota_app.projections.rebase()
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert seen(db) == [first, *positions(db)]


def restore_by_inserts(db: Db) -> None:
    """As if the dump had its rows one by one, each of which is then a transaction of its own."""
    restore_elsewhere(db)
    for position in positions(db):
        db.execute("update rota.events set type = type where position = %s", [position])


async def test_where_it_cannot_be_told_what_was_appended_since_nothing_is_changed_before_someone_says_so(
    rota_app: TestRota, rota_database: str, db: Db, totals: Any
) -> None:
    append(db, "a")
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    append(db, "b")
    restored_to, _ = append(db, "a")
    restore_by_inserts(db)
    append(db, "a")
    before = rows(db, "select * from rota.events order by position")

    with pytest.raises(NotPossible, match="--restored-to POSITION"):
        await rota_app.projections.rebase()
    untouched = rows(db, "select * from rota.events order by position")
    rebased = await rota_app.projections.rebase(restored_to=restored_to)
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert untouched == before
    assert (rebased.events, rebased.appended) == (4, 1)
    assert seen(db) == positions(db)


async def test_an_event_that_a_checkpoint_stands_at_was_not_appended_since(
    rota_app: TestRota, db: Db, totals: Any
) -> None:
    with db.transaction():
        append(db, "a")
        append(db, "a")
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    restore_by_inserts(db)

    with pytest.raises(NotPossible, match="--restored-to POSITION"):
        await rota_app.projections.rebase()


# what is none of its business


async def test_a_table_that_is_called_like_a_log_is_left_alone_and_so_is_a_log_of_this_server(
    rota_app: TestRota, db: Db
) -> None:
    append(db, "a")
    restore_elsewhere(db)
    rota_app.event_log("ours").append_sync("a", "Paid")
    db.execute("create table public.orders (id bigint primary key, xid xid8, data jsonb)")
    adopted = rota_app.event_table("orders", position="id", xid="xid", data="data")

    @rota_app.projection("of_the_table", source=adopted)
    async def of_the_table(event: Event, connection: Any) -> None: ...

    await rota_app.database.run(declare_projection("of_the_log", 1, {"source": "orders", "kind": "log"}))
    await rota_app.database.run(declare_projection("of_ours", 1, {"source": "ours", "kind": "log"}))
    await rota_app.database.run(declare_projection(of_the_table.name, 1, of_the_table.definition.told()))
    db.execute("update rota.projections set order_xid = '8000000000', position = 7")
    ours = rows(db, "select * from rota.events where log = 'ours'")

    rebased = await rota_app.projections.rebase()

    assert (rebased.events, rebased.projections) == (1, 1)
    assert rows(db, "select name, order_xid::text, position from rota.projections order by 1") == [
        ("of_ours", "8000000000", 7),
        ("of_the_log", "3", positions(db)[0]),
        ("of_the_table", "8000000000", 7),
    ]
    assert rows(db, "select * from rota.events where log = 'ours'") == ours


# time and turns


async def test_it_may_take_longer_than_any_other_statement_and_says_who_is_in_the_way(
    rota_app: TestRota, rota_database: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(db, "a")
    restore_elsewhere(db)
    monkeypatch.setattr("rota.postgres.pool._PATIENCE_SECONDS", 0.2)
    db.execute(SLOW)
    rota_app.database.run_sync(declare_projection("totals", 1, {}))

    rebased = await rota_app.projections.rebase(dry_run=True)
    rebased_sync = rota_app.projections.rebase_sync(dry_run=True)
    with psycopg.connect(rota_database) as writer:
        append(writer, "a")
        monkeypatch.setattr("rota.projections.rebase.LIMITS", IMPATIENT)
        with pytest.raises(DatabaseUnavailable, match="pg_locks tells who"):
            await rota_app.projections.rebase()

    assert rebased == rebased_sync
    assert rows(db, "select distinct order_xid > '1000000000' from rota.events") == [(True,)]
