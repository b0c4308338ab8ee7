"""Intervals: counted from the end of a poll or kept to a grid, and what one row may have in its column without stopping others."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.pollers.tables import NOON, Db, column, due_rows, poller, round_of, stop_clock

from rota.facts import PollerHindered, RowFailed
from rota.testing import TestRota

pytestmark = pytest.mark.long


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        stop_clock(connection)
        yield connection


class Numbered(NamedTuple):
    id: int


def later(**by: float) -> datetime:
    return NOON + timedelta(**by)


@pytest.mark.parametrize(("counted_from", "stamp"), [("end", later(minutes=7)), ("start", later(minutes=0))])
async def test_last_is_the_end_of_the_poll_or_the_moment_when_it_was_due(
    rota_app: TestRota, db: Db, counted_from: str, stamp: datetime
) -> None:
    db.execute("create table rows (id int primary key, last timestamptz)")
    db.execute("insert into rows values (1, %s)", [later(minutes=-30)])
    stop_clock(db, later(minutes=3))  # late

    async def slow(row: dict[str, Any]) -> None:
        stop_clock(db, later(minutes=7))

    made = rota_app.poller(table="rows", last="last", interval="10m", counted_from=counted_from, name="slow")(slow)  # type: ignore[arg-type]
    await round_of(rota_app, made, 1)

    assert column(db, "last") == {1: stamp}


@pytest.mark.parametrize(("counted_from", "following"), [("end", later(minutes=17)), ("start", later(minutes=10))])
async def test_next_time_is_an_interval_after_the_end_or_the_next_one_on_the_grid(
    rota_app: TestRota, db: Db, counted_from: str, following: datetime
) -> None:
    db.execute("create table rows (id int primary key, due timestamptz)")
    db.execute("insert into rows values (1, %s)", [later(minutes=-30)])
    stop_clock(db, later(minutes=3))

    async def slow(row: dict[str, Any]) -> None:
        stop_clock(db, later(minutes=7))

    made = rota_app.poller(table="rows", due="due", interval="10m", counted_from=counted_from, name="slow")(slow)  # type: ignore[arg-type]
    await round_of(rota_app, made, 1)

    assert column(db, "due") == {1: following}


async def test_grid_begins_with_the_start_of_the_first_poll(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamp, due timestamptz)")
    db.execute("insert into rows values (1)")

    async def slow(row: dict[str, Any]) -> None:
        stop_clock(db, later(minutes=7))

    for column_name in ("last", "due"):
        stop_clock(db)
        options: dict[str, Any] = {column_name: column_name, "interval": "10m", "counted_from": "start"}
        await round_of(rota_app, rota_app.poller(table="rows", name=column_name, **options)(slow), 1)

    assert column(db, "last") == {1: NOON.replace(tzinfo=None)}
    assert column(db, "due") == {1: later(minutes=10)}


@pytest.mark.parametrize(
    ("pace", "last", "now", "stamp", "following"),
    [
        # a month that is shorter than PostgreSQL takes one for: the stamp moves, or the row would be due for two more days
        ("1 month", "2023-02-01", "2023-03-01", "2023-03-01", "2023-04-01"),
        ("1 month", "2023-02-01", "2023-03-01 12:00", "2023-03-01", "2023-04-01"),
        ("1 month", "2024-07-01", "2024-08-31 12:00", "2024-08-01", "2024-09-01"),
        ("1 year", "2023-03-01", "2024-03-01", "2024-03-01", "2025-03-01"),
        ("1 year", "2024-03-01", "2025-03-01", "2025-03-01", "2026-03-01"),
        ("1 month", "2024-01-31", "2024-03-01", "2024-02-29", "2024-03-31"),
        ("1 month", "2024-01-31", "2024-03-31", "2024-03-31", "2024-04-30"),
        ("1 month", "1924-01-31", "2024-06-01", "2024-05-31", "2024-06-30"),
        ("1 month", "1924-01-31", "2024-05-30 23:59", "2024-04-30", "2024-05-31"),
        ("7 days", "2024-01-01", "2024-02-01", "2024-01-29", "2024-02-05"),
        ("00:00:00.1", "1924-01-01", "2024-06-01 00:00:00.05", "2024-06-01", "2024-06-01 00:00:00.1"),
        ("1 month 1 day", "2024-01-01", "2024-03-05", "2024-03-03", "2024-04-04"),
    ],
)
async def test_grid_follows_the_calendar(
    rota_app: TestRota, db: Db, pace: str, last: str, now: str, stamp: str, following: str
) -> None:
    stop_clock(db, f"{now} UTC")
    db.execute("create table rows (id int primary key, last timestamp, due timestamp, pace interval)")
    db.execute("insert into rows values (1, %s, %s, %s)", [last, last, pace])

    assert await due_rows(rota_app, 1, last="last", interval="pace", counted_from="start") == [1]
    assert await due_rows(rota_app, 1, due="due", interval="pace", counted_from="start") == [1]

    (stamps,) = db.execute("select last, due from rows").fetchall()
    assert stamps == (datetime.fromisoformat(stamp), datetime.fromisoformat(following))


async def test_grid_begins_anew_where_the_time_before_is_none(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamp, due timestamptz)")
    db.execute("insert into rows values (1, '-infinity', '-infinity')")

    async def polled(row: Numbered) -> None: ...

    for name in ("last", "due"):
        options: dict[str, Any] = {name: name, "interval": "10m", "counted_from": "start"}
        await round_of(rota_app, rota_app.poller(table="rows", name=name, **options)(polled))

    assert (column(db, "last"), column(db, "due")) == ({1: NOON.replace(tzinfo=None)}, {1: later(minutes=10)})


async def test_row_that_is_polled_early_by_hand_keeps_its_grid(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz, due timestamptz)")
    db.execute("insert into rows values (1, %s, %s)", [later(minutes=-4), later(minutes=6)])

    for options in ({"last": "last"}, {"due": "due"}):
        made, seen = poller(rota_app, interval="10m", counted_from="start", **options)
        assert (await made.poll(1)).completed == 1
        assert seen == [1]

    assert (column(db, "last"), column(db, "due")) == ({1: later(minutes=-4)}, {1: later(minutes=6)})


ABSURD = {
    "smallint": ["0", "-1", "-32768", "32767"],
    "int": ["0", "-2147483648", "2147483647"],
    "bigint": ["0", "-9223372036854775808", "9223372036854775807"],
    "real": ["0", "NaN", "Infinity", "-Infinity", "1e-45", "-3e38", "3e38"],
    "float8": ["0", "NaN", "Infinity", "-Infinity", "5e-324", "-1e308", "1e308"],
    "numeric": ["0", "NaN", "Infinity", "-Infinity", "1e-500", "-1e500", "1e500"],
    "interval": [
        "0",
        "-1 day",
        "-178000000 years",
        "178000000 years",
        "6000001 months -180000000 days",
        "-5999999 months 180000000 days",
        "2147483647 days",
        "-2147483648 days",
    ],
}
FORMS: list[dict[str, Any]] = [
    {"last": "last"},
    {"last": "last", "counted_from": "start"},
    {"due": "due"},
    {"due": "due", "counted_from": "start"},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", ABSURD)
async def test_absurd_interval_of_one_row_stops_no_other(
    rota_app: TestRota, db: Db, kind: str, form: dict[str, Any]
) -> None:
    db.execute(
        f"create table rows (id int primary key, last timestamptz, due timestamp, pace {kind}, ok bool default false)"
    )  # type: ignore[arg-type]
    healthy = "1 hour" if kind == "interval" else "60"
    absurd = (
        ABSURD[kind]
        if kind != "interval" or db.info.server_version < 170000
        else [*ABSURD[kind], "infinity", "-infinity"]
    )
    for number, pace in enumerate([healthy, *absurd, healthy]):
        db.execute("insert into rows (id, last, due, pace) values (%s, '2024-05-01', '2024-05-01', %s)", [number, pace])
    unit: dict[str, Any] = {} if kind == "interval" else {"unit": "minute"}
    seen = []

    async def polled(row: Numbered) -> None:
        seen.append(row.id)

    # what is due always is polled as often as a round may poll: it is taken out after the first time
    options = {"interval": "pace", "where": "not ok", "done": "ok = true", **unit, **form}
    stats = await round_of(rota_app, rota_app.poller(table="rows", name="absurd", **options)(polled))

    assert {0, len(absurd) + 1} <= set(seen)
    assert (stats.completed, len(set(seen))) == (len(seen), len(seen))
    assert db.execute("select count(*) from rota.poll_claims").fetchone() == (0,)


@pytest.mark.parametrize(("kind", "options"), [("int", {"unit": "minute"}), ("interval", {})])
async def test_row_whose_interval_is_nothing_waits_behind_all_that_are_due(
    rota_app: TestRota, db: Db, kind: str, options: dict[str, Any]
) -> None:
    db.execute(f"create table rows (id int primary key, last timestamptz, pace {kind})")  # type: ignore[arg-type]
    minutes = "{} minutes" if kind == "interval" else "{}"
    for number, ago, pace in ((1, 10, -1000000), (2, 16, 5), (3, 12, 0)):
        db.execute("insert into rows values (%s, %s, %s)", [number, later(minutes=-ago), minutes.format(pace)])

    assert await due_rows(rota_app, 3, last="last", interval="pace", **options) == [3, 2, 1]


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
@pytest.mark.parametrize(
    "options",
    [
        {"last": "moment", "interval": "5m"},
        {"last": "moment", "interval": "5m", "counted_from": "start"},
        {"last": "moment", "interval": "pace"},
        {"last": "moment", "interval": "pace", "counted_from": "start"},
        {"due": "moment"},
        {"due": "moment", "interval": "pace", "counted_from": "start"},
    ],
    ids=str,
)
async def test_time_that_python_cannot_hold_stops_nobody(
    rota_app: TestRota, db: Db, kind: str, options: dict[str, Any]
) -> None:
    db.execute(f"create table rows (id int primary key, moment {kind}, pace interval default '1 hour')")  # type: ignore[arg-type]
    db.execute(
        """
        insert into rows values
            (1, 'infinity'), (2, '-infinity'), (3, '294276-12-31 23:59:59'), (4, '4713-01-01 BC'), (5, '0001-01-01'), (6, '2024-01-01')
        """
    )
    seen = []

    async def polled(row: Any) -> None:
        seen.append(row["id"])

    made = rota_app.poller(table="rows", name="absurd", **options)(polled)
    with rota_app.facts.recorded(PollerHindered, RowFailed) as hindered:
        preview = await made.preview()
        stats = await made.run_once()

    assert [row.key for row in preview] == [[2], [4], [5], [6]]
    assert [fact for fact in hindered if isinstance(fact, PollerHindered)] == []
    assert seen == [5, 6]
    assert (stats.claimed, stats.completed, len(stats.errors)) == (4, 2, 2)
    assert "moment" in stats.errors[0]


async def test_next_look_is_told_of_no_row_that_is_never_due(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, due timestamptz, last timestamptz)")
    db.execute("insert into rows values (1, 'infinity', 'infinity')")
    for options in ({"due": "due"}, {"last": "last", "interval": "365000d"}):
        assert await due_rows(rota_app, **options) == []
