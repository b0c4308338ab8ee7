"""Intervals that move with what the handler finds: in a column of the user's, or in Rota's own table."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from tests.pollers.tables import NOON, Db, column, due_rows, poller, round_of, stop_clock

from rota import Adaptive, Changed
from rota.errors import ConfigurationError
from rota.pollers.plan import plan_of
from rota.pollers.running import current_poll
from rota.pollers.tidy import tidy
from rota.testing import TestRota

pytestmark = pytest.mark.long

MINUTE = timedelta(minutes=1)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        stop_clock(connection)
        yield connection


@pytest.mark.parametrize(
    ("kind", "unit", "before", "changed", "after"),
    [
        ("int", "minute", 10, True, 5),
        ("int", "minute", 10, False, 15),
        ("int", "minute", 3, True, 2),  # the shortest
        ("int", "minute", 2, True, 2),
        ("int", "minute", 3, False, 5),  # a whole number moves up
        ("int", "minute", 50, False, 60),  # the longest
        ("int", "minute", 1000, False, 60),
        ("int", "minute", 1000, True, 60),
        ("int", "minute", 0, False, 2),
        ("int", "minute", -9, True, 2),
        ("int", "minute", None, False, 60),
        ("bigint", "second", 600, False, 900),
        ("smallint", "minute", 5, True, 2),
        ("numeric", "minute", Decimal(5), True, Decimal("2.5")),
        ("numeric(5,0)", "minute", Decimal(5), True, Decimal(2)),
        ("numeric(5,0)", "minute", Decimal(3), False, Decimal(5)),
        ("numeric", "minute", Decimal("NaN"), True, Decimal(60)),
        ("numeric", "minute", Decimal("1e400"), False, Decimal(60)),
        ("float8", "minute", 5.0, True, 2.5),
        ("real", "minute", 5.0, False, 7.5),
        ("interval", None, 10 * MINUTE, True, 5 * MINUTE),
        ("interval", None, 10 * MINUTE, False, 15 * MINUTE),
        ("interval", None, 3 * MINUTE, True, 2 * MINUTE),
        ("interval", None, 59 * MINUTE, False, 60 * MINUTE),
        ("interval", None, None, False, 60 * MINUTE),
    ],
)
async def test_interval_in_the_users_column_moves_between_its_bounds(
    rota_app: TestRota, db: Db, kind: str, unit: Any, before: Any, changed: bool, after: Any
) -> None:
    db.execute(f"create table rows (id int primary key, last timestamptz, due timestamptz, pace {kind})")  # type: ignore[arg-type]
    db.execute("insert into rows (id, pace) values (1, %s), (2, %s)", [before, before])
    for number, form in ((1, "last"), (2, "due")):
        options = {form: form, "interval": "pace", "unit": unit, "adaptive": Adaptive(min="2m", max="1h")}
        made, _ = poller(rota_app, Changed() if changed else None, where=f"id = {number}", **options)
        await round_of(rota_app, made, 1)

    assert column(db, "pace") == {1: after, 2: after}
    seconds = after.total_seconds() if unit is None else float(after) * {"minute": 60, "second": 1}[unit]
    assert column(db, "due")[2] == NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("kind", "unit", "bounds", "problem"),
    [
        ("smallint", "second", ("1m", "1d"), "smallint out of range"),
        ("numeric(3,1)", "second", ("1m", "1d"), "numeric field overflow"),
        ("numeric(5,0)", "minute", ("20s", "1d"), "'pace' cannot hold the shortest interval of Adaptive"),
        ("small", "minute", ("1m", "2h"), "violates check constraint"),
    ],
)
async def test_bounds_that_the_users_column_cannot_hold_are_refused(
    rota_app: TestRota, db: Db, kind: str, unit: Any, bounds: tuple[str, str], problem: str
) -> None:
    db.execute("create domain small as int check (value < 100)")
    db.execute(f"create table rows (id int primary key, last timestamptz, pace {kind})")  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match=problem):
        await due_rows(rota_app, last="last", interval="pace", unit=unit, adaptive=Adaptive(*bounds))


async def test_generated_column_cannot_be_moved(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz, pace int generated always as (id) stored)")

    with pytest.raises(ConfigurationError, match="generated, and adaptive= cannot move it"):
        await due_rows(rota_app, last="last", interval="pace", unit="hour", adaptive=Adaptive("1m", "1d"))


async def paces(db: Db) -> dict[int, tuple[timedelta, datetime]]:
    rows = db.execute("select (key ->> 0)::int, pace, due_at from rota.poll_intervals order by 1").fetchall()
    return {number: (pace, due_at) for number, pace, due_at in rows}


@pytest.mark.parametrize("order_by", [None, "id desc"])
async def test_interval_that_rota_keeps_moves_between_its_bounds(
    rota_app: TestRota, db: Db, order_by: str | None
) -> None:
    db.execute("create table rows (id int primary key, last timestamptz); insert into rows values (1), (2)")
    polls: list[tuple[int, datetime]] = []
    now = NOON

    async def fetch(row: dict[str, Any]) -> Changed | None:
        polls.append((row["id"], now))
        return Changed() if row["id"] == 1 else None

    adaptive = Adaptive(min="2m", max="10m")
    made = rota_app.poller(
        table="rows", last="last", interval="6m", adaptive=adaptive, order_by=order_by, name="fetch"
    )(fetch)
    for minute in range(20):
        now = NOON + minute * MINUTE
        stop_clock(db, now)
        await round_of(rota_app, made)

    at = {number: [(when - NOON) // MINUTE for each, when in polls if each == number] for number in (1, 2)}
    assert at == {1: [0, 3, *range(5, 20, 2)], 2: [0, 9, 19]}
    assert column(db, "last") == {1: NOON + 19 * MINUTE, 2: NOON + 19 * MINUTE}


async def test_first_interval_is_the_shortest_unless_told(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz); insert into rows values (1)")

    await due_rows(rota_app, last="last", adaptive=Adaptive(min="2m", max="10m", slower=2))

    assert await paces(db) == {1: (4 * MINUTE, NOON + 4 * MINUTE)}


@pytest.mark.parametrize("order_by", [None, "id"])
async def test_row_polled_before_the_poller_adapted_is_due_when_no_interval_could_be_longer(
    rota_app: TestRota, db: Db, order_by: str | None
) -> None:
    db.execute("create table rows (id int primary key, last timestamptz)")
    db.execute("insert into rows values (1, %s), (2, %s)", [NOON - 10 * MINUTE, NOON - 9 * MINUTE])

    polled = await due_rows(rota_app, last="last", adaptive=Adaptive(min="2m", max="10m"), order_by=order_by)

    assert polled == [1]
    assert await paces(db) == {1: (3 * MINUTE, NOON + 3 * MINUTE)}


async def test_rows_are_found_by_their_own_pace_and_not_by_their_stamp(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz, enabled bool default true)")
    db.execute("insert into rows select number, %s from generate_series(1, 5) as number", [NOON - 5 * MINUTE])
    db.execute("update rows set last = null where id = 5; update rows set enabled = false where id = 4")
    made, seen = poller(
        rota_app, last="last", adaptive=Adaptive(min="2m", max="10m"), where="enabled", concurrency=1, batch=9
    )
    for number, minutes in ((1, -1), (2, -3), (3, 1), (4, -9), (5, 9), (77, -9)):
        db.execute(
            "insert into rota.poll_intervals values (%s, %s, '4 minutes', %s)",
            [made.name, f"[{number}]", NOON + minutes * MINUTE],
        )

    await round_of(rota_app, made)

    assert seen == [5, 2, 1]


async def test_pace_of_a_deleted_row_is_forgotten_when_it_is_due(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz); insert into rows values (1), (2)")
    made, _ = poller(rota_app, last="last", adaptive=Adaptive(min="2m", max="10m"))
    await round_of(rota_app, made)
    db.execute("delete from rows where id = 1")
    stop_clock(db, NOON + 3.5 * MINUTE)
    looking = rota_app.database.apart("test", size=1, settings={"search_path": None})

    await round_of(rota_app, made)
    await looking.run(tidy(await plan_of(looking, made.definition)))
    await looking.close()

    assert set(await paces(db)) == {2}


async def test_change_is_told_through_the_transaction_as_well(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz, pace int)")
    db.execute("insert into rows values (1, null, 40)")

    @rota_app.poller(table="rows", last="last", interval="pace", unit="minute", adaptive=Adaptive("1m", "1h"), name="t")
    async def fetch(row: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            tx.changed = True

    await round_of(rota_app, fetch)

    assert column(db, "pace") == {1: 20}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"min": "0s", "max": "1h"}, "min is '0s' and max '1h'; min is more than nothing"),
        ({"min": "2h", "max": "1h"}, "max not less than it"),
        ({"min": "1h", "max": timedelta.max}, "nor more than 365,000 days"),
        (
            {"min": "1h", "max": "2h", "faster": 1},
            "faster is 1; the interval is multiplied by it, so it is more than 0 and",
        ),
        ({"min": "1h", "max": "2h", "faster": "x"}, "faster is 'x'"),
        ({"min": "1h", "max": "2h", "slower": 1}, "slower is 1; .* more than 1 and less than 1,000"),
        ({"min": "1h", "max": "2h", "slower": float("inf")}, "slower is inf"),
        ({"min": "1h", "max": "2h", "faster": 0, "slower": float("nan")}, "faster is 0.*slower is nan"),
        ({"min": "soon", "max": "2h"}, "cannot be 'soon'"),
    ],
)
def test_bounds_and_factors_that_make_no_sense_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Adaptive(**given)
