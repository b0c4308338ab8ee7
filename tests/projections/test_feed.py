"""What a look finds: everything that is committed, once, in an order that no late commit can break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest
from tests.projections.logs import SOURCE, Db, append, append_many, positions, rows

from rota.failure import describe
from rota.projections import feed as feed_room
from rota.projections.checkpoint import (
    CheckpointMoved,
    Owned,
    declare_projection,
    fail_projection,
    move_checkpoint,
    take_projection,
)
from rota.projections.feed import START, Feed, Found, Pair
from rota.testing import TestRota, until_sync

OWNED = Owned("totals", 1, 1)


class Reader:
    """Reads like a projection does, with no handler."""

    def __init__(self, app: TestRota, feed: Feed) -> None:
        self.app, self.feed = app, feed
        app.database.run_sync(declare_projection("totals", 1, {}))
        app.database.run_sync(take_projection(OWNED))

    def look(self, batch: int = 100) -> Found:
        found = self.app.database.run_sync(self.feed.look(batch))
        assert found is not None
        return found

    def read(self, batch: int = 100) -> list[int]:
        found = self.look(batch)
        self.app.database.run_sync(move_checkpoint(OWNED, found.at, found.end))
        return [row.position for row in found.rows]

    def await_(self, count: int) -> None:
        """Until so many can be read: whoever writes anywhere on the server holds the horizon."""
        until_sync(lambda: len(self.look(10_000).rows) >= count, what=f"{count} can be read")

    def all(self, batch: int, count: int) -> list[int]:
        self.await_(count)
        seen: list[int] = []
        while page := self.read(batch):
            seen += page
        return seen


@pytest.fixture
def reader(rota_app: TestRota) -> Reader:
    return Reader(rota_app, Feed("totals", 1, SOURCE))


@pytest.fixture
def other(rota_database: str) -> Iterator[Callable[[], Db]]:
    """Opens sessions whose transactions the test ends."""
    opened: list[Db] = []

    def another() -> Db:
        opened.append(psycopg.connect(rota_database))
        return opened[-1]

    yield another
    for each in opened:
        each.close()


# late commits


def test_an_event_that_commits_late_with_a_smaller_position_is_read_once_and_first(
    reader: Reader, db: Db, other: Callable[[], Db]
) -> None:
    late = other()
    first, _ = append(late, "a")
    second, _ = append(db, "b")

    before = reader.look()
    late.commit()
    reader.await_(2)
    after = reader.read()

    assert (before.rows, before.pending) == ([], True)
    assert after == [first, second]
    assert reader.read() == []


def test_what_is_readable_below_the_horizon_is_read_while_someone_is_open(
    reader: Reader, db: Db, other: Callable[[], Db]
) -> None:
    first, _ = append(db, "a")
    late = other()
    second, _ = append(late, "b")
    third, _ = append(db, "c")

    reader.await_(1)
    early = reader.read()
    late.commit()
    reader.await_(2)

    assert early == [first]
    assert reader.read() == [second, third]


def test_an_event_with_a_smaller_position_than_one_that_was_read_is_not_passed_over(
    reader: Reader, db: Db, other: Callable[[], Db]
) -> None:
    early, late = other(), other()
    early.execute("select pg_current_xact_id()")
    first, _ = append(late, "a")
    second, _ = append(early, "b")
    early.commit()

    reader.await_(1)
    before = reader.read()
    late.commit()
    reader.await_(1)

    assert first < second
    assert (before, reader.read()) == ([second], [first])


def test_a_transaction_that_began_first_and_appends_last_comes_behind_what_it_builds_on(
    reader: Reader, db: Db, other: Callable[[], Db]
) -> None:
    early = other()
    early.execute("create temp table elsewhere ()")
    early.execute("select pg_current_xact_id()")
    first, one = append(db, "a")
    second, two = append(early, "a")
    early.commit()

    assert (one, two) == (1, 2)
    assert reader.all(1, 2) == [first, second]


def test_rolled_back_events_and_savepoints_leave_gaps_that_hold_nobody_up(
    reader: Reader, db: Db, other: Callable[[], Db]
) -> None:
    writer = other()
    first, _ = append(writer, "a")
    with writer.transaction(force_rollback=True):
        append(writer, "a")
    second, version = append(writer, "a")
    writer.commit()
    append(writer, "b")
    writer.rollback()
    third, _ = append(db, "b")
    reader.await_(3)

    assert (version, reader.read()) == (2, [first, second, third])


def test_a_backlog_of_one_transaction_is_read_in_pages_without_gap_or_repetition(reader: Reader, db: Db) -> None:
    append_many(db, 2500)

    assert reader.all(1000, 2500) == positions(db)
    assert reader.look().at == Pair(*rows(db, "select order_xid::text::bigint, position from rota.events")[-1])


def test_pages_are_cut_in_the_order_of_the_pair(reader: Reader, db: Db, other: Callable[[], Db]) -> None:
    early, late = other(), other()
    early.execute("select pg_current_xact_id()")
    last, _ = append(late, "a")
    first, _ = append(early, "b")
    early.commit()
    late.commit()

    assert reader.all(1, 2) == [first, last]


# only some of it


def test_what_concerns_nobody_is_passed_over_and_not_read_again(rota_app: TestRota, db: Db) -> None:
    reader = Reader(rota_app, Feed("totals", 1, SOURCE, types=["Paid"], streams=["a", "b-*"]))
    append_many(db, 12_000, type="Seen")
    wanted = [append(db, "a")[0], append(db, "b-7")[0]]
    append(db, "b")
    append(db, "a", "Seen")
    until_sync(lambda: not reader.look().pending, what="all can be read")

    looks = []
    while (found := reader.look()).end != found.at:
        looks.append(reader.read())

    assert [page for page in looks if page] == [wanted]
    assert len(looks) == 3
    assert reader.look().at.position == positions(db)[-1]


def test_a_page_that_is_full_is_not_walked_past(rota_app: TestRota, db: Db) -> None:
    reader = Reader(rota_app, Feed("totals", 1, SOURCE, types=["Paid"]))
    append_many(db, 5)
    reader.await_(5)

    assert reader.read(2) == positions(db)[:2]
    assert reader.read(2) == positions(db)[2:4]


def test_another_log_is_none_of_its_business(rota_app: TestRota, db: Db) -> None:
    reader = Reader(rota_app, Feed("totals", 1, replace(SOURCE, log="others")))
    append(db)

    assert reader.look().end == START


def test_a_look_at_the_end_of_a_long_log_is_led_there_by_an_index(reader: Reader, db: Db) -> None:
    append_many(db, 5000)
    query = reader.feed.look(500)
    for setting in ("plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_bitmapscan = off"):
        db.execute(f"set {setting}")

    plan = "\n".join(row[0] for row in db.execute("explain " + query.statement.sql("rota"), query.params))

    assert "Seq Scan on events" not in plan
    assert plan.count("ROW(order_xid,") == 2


LONG = """
    insert into rota.events (order_xid, log, stream, version, type, data)
    select n::text::xid8, 'orders', 's', n, 'Paid', '{}' from generate_series(1, 20000) as n
"""


@pytest.mark.parametrize("asked", ["place", "position"])
def test_one_event_of_a_long_log_is_found_without_walking_it(reader: Reader, db: Db, asked: str) -> None:
    db.execute(LONG)
    db.execute("vacuum analyze rota.events")
    place = Pair(*rows(db, "select order_xid::text::bigint, position from rota.events where version = 15000")[0])
    query = reader.feed.read(place) if asked == "place" else reader.feed.at(place.position)

    found = reader.app.database.run_sync(query)
    plan = db.execute("explain (analyze, buffers, format json) " + query.statement.sql("rota"), query.params).fetchone()

    assert found is not None
    assert found.pair == place
    read = plan[0][0]["Plan"]  # type: ignore[index]
    assert read["Shared Hit Blocks"] + read["Shared Read Blocks"] < 40
    assert rows(db, "select pg_relation_size('rota.events') / 8192 > 200") == [(True,)]


def test_what_waits_is_counted_as_far_as_one_look_goes_and_it_is_said_that_there_may_be_more(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_room, "_COUNTED", 10)
    reader = Reader(rota_app, Feed("totals", 1, SOURCE, types=["Paid"]))
    append_many(db, 30, type="Seen")
    append(db, "a")
    append(db, "a")
    until_sync(lambda: not reader.look().pending, what="all can be read")
    last = rota_app.database.run_sync(reader.feed.last())
    assert last is not None

    far = rota_app.database.run_sync(reader.feed.lag(5))
    far_until = rota_app.database.run_sync(reader.feed.lag(1, last))
    place = Pair(*rows(db, "select order_xid::text::bigint, position from rota.events where stream = 'many-1'")[28])
    rota_app.database.run_sync(move_checkpoint(OWNED, START, place))
    near = rota_app.database.run_sync(reader.feed.lag(5))
    full = rota_app.database.run_sync(Feed("totals", 1, SOURCE).lag(3))

    assert (str(far), far_until.events, far_until.more) == ("0+", 0, True)
    assert (str(near), near.more) == ("2", False)
    assert str(full) == "3+"


# a table of the user's


def test_rows_older_than_the_column_are_history_and_read_first(rota_app: TestRota, db: Db) -> None:
    db.execute("create table public.happened (id int primary key, body jsonb not null)")
    db.execute("insert into public.happened select n, '{}' from generate_series(-3, 5) as n")
    db.execute("alter table public.happened add column txid xid8")
    db.execute("alter table public.happened alter column txid set default pg_current_xact_id()")
    db.execute("insert into public.happened values (7, '{}')")
    db.execute("insert into public.happened values (-10, '{}')")
    own = replace(
        SOURCE,
        table='"public"."happened"',
        position='"id"',
        order_xid='"txid"',
        data='"body"',
        stream=None,
        type=None,
        metadata=None,
        version=None,
        created_at=None,
        shape=None,
        log=None,
    )
    reader = Reader(rota_app, Feed("totals", 1, own))

    assert reader.all(4, 11) == [-3, -2, -1, 0, 1, 2, 3, 4, 5, 7, -10]
    assert rota_app.database.run_sync(reader.feed.last()) == reader.look().at
    for position in (-3, 7):
        found = rota_app.database.run_sync(reader.feed.at(position))
        assert found is not None
        assert rota_app.database.run_sync(reader.feed.read(found.pair)) == found


def test_history_that_fills_more_than_a_window_is_read_to_its_end_before_live_events_also_with_a_filter(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_room, "_WINDOW", 4)
    db.execute("create table public.happened (id int primary key, kind text not null, body jsonb not null, txid xid8)")
    db.execute(
        "insert into public.happened select n, case when n % 5 = 0 then 'Paid' else 'Other' end, '{}' from generate_series(1, 20) as n"
    )
    db.execute("alter table public.happened alter column txid set default pg_current_xact_id()")
    db.execute("insert into public.happened values (21, 'Paid', '{}'), (22, 'Other', '{}'), (23, 'Paid', '{}')")
    own = replace(
        SOURCE,
        table='"public"."happened"',
        position='"id"',
        order_xid='"txid"',
        data='"body"',
        type='"kind"',
        stream=None,
        metadata=None,
        version=None,
        created_at=None,
        shape=None,
        log=None,
    )
    reader = Reader(rota_app, Feed("totals", 1, own, types=["Paid"]))
    reader.await_(6)
    seen: list[int] = []

    while (found := reader.look(2)).end != found.at:
        seen += reader.read(2)

    assert seen == [5, 10, 15, 20, 21, 23]


# who may move the checkpoint


def test_the_checkpoint_of_a_stale_owner_is_refused_and_never_goes_back(reader: Reader, db: Db) -> None:
    append_many(db, 3)
    reader.await_(3)
    stale = reader.look(1)
    reader.app.database.run_sync(take_projection(Owned("totals", 1, 2)))

    with pytest.raises(CheckpointMoved, match="someone else reads for it"):
        reader.app.database.run_sync(move_checkpoint(OWNED, stale.at, stale.end))

    assert reader.look().at == START
    assert not reader.app.database.run_sync(take_projection(OWNED))


@pytest.mark.parametrize("state", ["paused", "stopped", "retired"])
def test_what_is_in_hand_when_it_is_paused_or_retired_moves_nothing(reader: Reader, db: Db, state: str) -> None:
    append_many(db, 3)
    reader.await_(3)
    in_hand = reader.look(1)
    db.execute("update rota.projections set state = %s", [state])

    with pytest.raises(CheckpointMoved):
        reader.app.database.run_sync(move_checkpoint(OWNED, in_hand.at, in_hand.end))
    failed = fail_projection(OWNED, in_hand.at, describe(ValueError("late")), stop=True)
    assert not reader.app.database.run_sync(failed)

    assert reader.look().at == START
    assert db.execute("select state from rota.projections").fetchone() == (state,)


def test_a_checkpoint_that_was_moved_meanwhile_is_not_overwritten(reader: Reader, db: Db) -> None:
    append_many(db, 3)
    reader.await_(3)
    first = reader.look(1)
    reader.read(2)

    with pytest.raises(CheckpointMoved):
        reader.app.database.run_sync(move_checkpoint(OWNED, first.at, first.end))

    assert [row.position for row in reader.look().rows] == positions(db)[2:]


def test_a_stale_owner_does_not_stop_the_projection_either(reader: Reader, db: Db) -> None:
    append(db)
    reader.app.database.run_sync(take_projection(Owned("totals", 1, 2)))

    told = reader.app.database.run_sync(fail_projection(OWNED, START, describe(ValueError("late")), stop=True))

    assert (told, reader.look().state) == (False, "running")
