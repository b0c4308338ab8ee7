"""Which rows are due, and what their stamp is: in every form, and for every type of column."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.pollers.tables import NOON, Db, column, due_rows, stop_clock

from rota.pollers.running import current_poll
from rota.testing import TestRota

UNITS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        stop_clock(connection)
        yield connection


def at(**ago: float) -> datetime:
    return NOON - timedelta(**ago)


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
async def test_row_is_due_when_its_interval_has_passed_since_the_last_poll(
    rota_app: TestRota, db: Db, kind: str
) -> None:
    db.execute(f"create table rows (id int primary key, last {kind}, enabled bool default true)")  # type: ignore[arg-type]
    insert = (
        "insert into rows values (%s, %s at time zone 'UTC', %s)"
        if kind == "timestamp"
        else "insert into rows values (%s, %s, %s)"
    )
    lasts = [(1, at(minutes=4, seconds=59)), (2, at(minutes=5)), (3, at(hours=9)), (4, None), (6, at(seconds=-30))]
    for number, last in lasts:
        db.execute(insert, [number, last, True])  # type: ignore[arg-type]
    db.execute(insert, [5, at(hours=10), False])  # type: ignore[arg-type]

    polled = await due_rows(rota_app, last="last", interval="5m", where="enabled")

    assert polled == [4, 3, 2]
    stamps = column(db, "last")
    now = NOON.replace(tzinfo=None) if kind == "timestamp" else NOON
    assert [stamps[number] for number in (2, 3, 4)] == [now] * 3
    assert stamps[1] == now - timedelta(minutes=4, seconds=59)
    assert stamps[5] == now - timedelta(hours=10)
    assert stamps[6] == now + timedelta(seconds=30)


async def counted(app: TestRota, db: Db, kind: str, unit: Any) -> list[int]:
    db.execute(f"create table rows (id int primary key, last timestamptz, pace {kind})")  # type: ignore[arg-type]
    length = UNITS[unit] * timedelta(seconds=1)
    db.execute(
        "insert into rows values (1, %s, 3), (2, %s, 3), (3, %s, 2), (4, null, 3), (5, %s, null), (6, null, null)",
        [NOON - 3 * length, NOON - 3 * length + length / 100, NOON - 2.5 * length, NOON - 9 * length],
    )
    return sorted(await due_rows(app, last="last", interval="pace", unit=unit))


@pytest.mark.by_default("millisecond", "week")
@pytest.mark.parametrize("unit", UNITS)
async def test_number_in_a_column_counts_in_its_unit(rota_app: TestRota, db: Db, unit: Any) -> None:
    assert await counted(rota_app, db, "int", unit) == [1, 3, 4, 6]


@pytest.mark.by_default("smallint", "real", "numeric(9,2)")
@pytest.mark.parametrize("kind", ["smallint", "bigint", "real", "float8", "numeric", "numeric(9,2)"])
async def test_numbers_of_every_type_count(rota_app: TestRota, db: Db, kind: str) -> None:
    assert await counted(rota_app, db, kind, "minute") == [1, 3, 4, 6]


async def test_interval_in_a_column_counts_as_the_calendar_has_it(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz, pace interval)")
    db.execute(
        """
        insert into rows values
            (1, %(now)s::timestamptz - interval '31 days', '1 month'),
            (2, %(now)s::timestamptz - interval '30 days', '1 month'),
            (3, %(now)s::timestamptz - interval '24 hours', '1 day'),
            (4, %(now)s::timestamptz - interval '23:59:59', '1 day'),
            (5, %(now)s::timestamptz - interval '92 s', '00:01:30'),
            (6, %(now)s::timestamptz - interval '9 years', null),
            (7, null, null)
        """,
        {"now": NOON},
    )

    polled = await due_rows(rota_app, last="last", interval="pace")

    assert (polled[:2], sorted(polled)) == ([7, 5], [1, 3, 5, 7])


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
async def test_due_column_of_a_row_that_goes_on_moves_on_from_the_end(rota_app: TestRota, db: Db, kind: str) -> None:
    db.execute(f"create table rows (id int primary key, due {kind}, seen timestamptz)")  # type: ignore[arg-type]
    db.execute(
        """
        insert into rows (id, due) values
            (1, timestamp '2024-06-01 11:59'), (2, timestamp '2024-06-01 12:00'), (3, timestamp '2024-06-01 12:00:01'), (4, null)
        """
    )

    assert await due_rows(rota_app, due="due", interval="1h", last="seen") == [4, 1, 2]
    assert await due_rows(rota_app, due="due", interval="1h") == []
    later = datetime(2024, 6, 1, 13, tzinfo=None if kind == "timestamp" else UTC)
    assert column(db, "due") == {1: later, 2: later, 3: later - timedelta(minutes=59, seconds=59), 4: later}
    assert column(db, "seen") == {1: NOON, 2: NOON, 3: None, 4: NOON}


@pytest.mark.parametrize(("pace", "after"), [(90, timedelta(seconds=90)), (0, timedelta(0)), (-5, timedelta(0))])
async def test_due_column_moves_on_by_the_interval_of_its_row(
    rota_app: TestRota, db: Db, pace: int, after: timedelta
) -> None:
    db.execute("create table rows (id int primary key, due timestamptz, pace int)")
    db.execute("insert into rows values (1, %s, %s)", [at(minutes=1), pace])

    await due_rows(rota_app, max_rows=1, due="due", interval="pace", unit="second")

    assert column(db, "due") == {1: NOON + after}


async def test_row_that_is_due_once_is_emptied_and_one_with_no_time_waits(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, due timestamptz)")
    db.execute("insert into rows values (1, %s), (2, %s), (3, null)", [at(days=1), at(days=-1)])

    assert await due_rows(rota_app, due="due") == [1]
    assert column(db, "due") == {1: None, 2: at(days=-1), 3: None}


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "date"])
async def test_due_may_be_an_expression_of_any_kind_of_time(rota_app: TestRota, db: Db, kind: str) -> None:
    db.execute(f"create table rows (id int primary key, first {kind}, second {kind}, sent bool default false)")  # type: ignore[arg-type]
    db.execute(
        """
        insert into rows values
            (1, '2024-06-02', '2024-05-30'), (2, '2024-05-31', null), (3, '2024-06-02', '2024-06-03'), (4, null, null)
        """
    )

    polled = await due_rows(
        rota_app, due="least(first, second) -- the sooner", done="sent = true -- once", where="not sent -- yet"
    )

    assert polled == [1, 2]
    assert column(db, "sent") == {1: True, 2: True, 3: False, 4: False}


async def test_due_expression_is_stamped_through_the_column_last(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamp)")
    db.execute("insert into rows values (1, '2024-06-01 10:00'), (2, '2024-06-01 11:30')")

    assert await due_rows(rota_app, due="last + interval '1 hour'", last="last") == [1]
    assert column(db, "last")[1] == datetime(2024, 6, 1, 12)


async def test_state_with_done_is_left_by_the_statement(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, status text, tries int default 0)")
    db.execute("insert into rows values (3, 'paid'), (1, 'paid'), (2, 'new')")

    polled = await due_rows(rota_app, where="status = 'paid'", done="status = 'sent', tries = tries + 1")

    assert polled == [1, 3]
    assert column(db, "status") == {1: "sent", 2: "new", 3: "sent"}
    assert column(db, "tries") == {1: 1, 2: 0, 3: 1}


async def test_state_without_done_is_left_by_the_handler_or_the_poll_failed(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, status text)")
    db.execute("insert into rows values (1, 'paid'), (2, 'paid')")

    @rota_app.poller(table="rows", where="status = 'paid'", name="ship")
    async def ship(row: dict[str, Any]) -> None:
        if row["id"] == 1:
            async with current_poll().transaction() as tx:
                await tx.execute("update rows set status = 'sent' where id = 1")

    stats = await ship.run_once()

    assert (stats.claimed, stats.completed) == (2, 1)
    assert len(stats.errors) == 1
    assert "NotDone: row 2 was polled for its state and is still in it" in stats.errors[0]
