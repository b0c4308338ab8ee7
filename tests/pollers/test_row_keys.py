"""The key of a row goes through a claim and back as what it is, whatever its type and whatever the session's settings."""

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.pollers.tables import Db, poller, round_of, stop_clock

from rota import Retry
from rota.errors import ConfigurationError, NotPossible
from rota.facts import RowFailed
from rota.pollers.running import current_poll
from rota.testing import TestRota

pytestmark = pytest.mark.long

HALF = timezone(timedelta(hours=5, minutes=30))


class Counted(NamedTuple):
    n: int


class Colour(Enum):
    RED = "red"


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        stop_clock(connection)
        connection.execute("create type colour as enum ('red', 'bl''ue')")
        connection.execute("create domain code as varchar(9) check (value <> '')")
        connection.execute("create domain inner_id as bigint; create domain outer_id as inner_id")
        yield connection


KEYS: list[tuple[str, list[str], list[Any]]] = [
    ("smallint", ["-32768", "7"], [-32768, 7]),
    ("int", ["-2147483648", "0"], [-2147483648, 0]),
    ("bigint", ["-9223372036854775808", "9223372036854775807"], [-(2**63), 2**63 - 1]),
    ("oid", ["0", "4294967295"], ["0", 4294967295]),
    ("bool", ["true", "false"], [True, False]),
    ("numeric", ["0.1234567890123456789012345", "1.00", "1e30", "NaN"], [Decimal("0.1234567890123456789012345"), 1, 10**30, "NaN"]),
    ("numeric(12,2)", ["1.50", "10"], [Decimal("1.5"), 10]),
    ("numeric(9,0)", ["12", "2"], [12, 2]),
    ("text", ["", " x ", "ä\\n'\"%s{key}\\", "null", "7"], ["", " x ", "ä\\n'\"%s{key}\\", "null", "7"]),
    ("varchar(5)", ["abcde", "abc"], ["abcde", "abc"]),
    ("char(5)", ["a", "abcde"], ["a", "abcde"]),
    ("name", ["x"], ["x"]),
    ("uuid", [str(uuid.UUID(int=1)), str(uuid.UUID(int=2**127))], [uuid.UUID(int=1), str(uuid.UUID(int=2**127)).upper()]),
    ("date", ["2024-02-29", "0044-03-15 BC", "infinity"], [date(2024, 2, 29), "0044-03-15 BC", "infinity"]),
    ("timestamp", ["2024-02-29 01:02:03.12", "-infinity"], [datetime(2024, 2, 29, 1, 2, 3, 120000), "-infinity"]),
    ("timestamptz", ["2024-02-29 01:02:03.123456+00", "2024-01-01 00:00+00"],
     [datetime(2024, 2, 29, 1, 2, 3, 123456, tzinfo=UTC), datetime(2024, 1, 1, 5, 30, tzinfo=HALF)]),
    ("colour", ["red", "bl'ue"], [Colour.RED, "bl'ue"]),
    ("bytea", ["\\x00ff", "\\x"], [b"\x00\xff", b""]),
    ("inet", ["10.0.0.1", "10.0.0.0/8", "::1"], ["10.0.0.1/32", "10.0.0.0/8", "::1"]),
    ("code", ["abc"], ["abc"]),
    ("outer_id", ["7"], [7]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "stored", "given"), KEYS, ids=[kind for kind, *_ in KEYS])
async def test_rows_are_polled_whatever_the_type_of_their_key(
    rota_app: TestRota, db: Db, kind: str, stored: list[str], given: list[Any]
) -> None:
    name = db.info.dbname
    for setting in ("datestyle to 'SQL, DMY'", "intervalstyle to 'iso_8601'", "bytea_output to 'escape'"):
        db.execute(f'alter database "{name}" set {setting}')  # type: ignore[arg-type]
    db.execute(f"create table rows (k {kind} primary key, last timestamptz, n int default 0)")  # type: ignore[arg-type]
    for value in stored:
        db.execute("insert into rows values (%s)", [value])

    seen = set()

    async def polled(row: Counted) -> None:
        seen.add(current_poll().idempotency_key)

    made = rota_app.poller(table="rows", key="k", last="last", interval="1h", done="n = n + 1", name="keys")(polled)
    stats = await round_of(rota_app, made)
    for value in given:
        assert (await made.poll(value)).completed == 1

    assert stats.completed == len(stored)
    assert len(seen) == 2 * len(stored)
    assert db.execute("select n, count(*) from rows group by n").fetchall() == [(2, len(stored))]
    assert db.execute("select count(*) from rota.poll_claims").fetchone() == (0,)


@pytest.mark.parametrize("kind", ["numeric", "citext"])
async def test_key_that_is_written_in_another_way_is_the_same_key(rota_app: TestRota, db: Db, kind: str) -> None:
    first, second = ("1.0", "1.000") if kind == "numeric" else ("Abc", "aBC")
    if kind == "citext":
        db.execute("create extension citext")
    db.execute(f"create table rows (k {kind} primary key, last timestamptz)")  # type: ignore[arg-type]
    db.execute("insert into rows values (%s)", [first])
    seen = []

    async def polled(row: dict[str, Any]) -> None:
        # meanwhile the application writes it in another way, and someone else looks
        db.execute("update rows set k = %s", [second])
        seen.append(await made.preview())
        raise ValueError("no")

    made = rota_app.poller(
        table="rows", key="k", last="last", interval="1h", retry=Retry(attempts=3, base=60), name="keys"
    )(polled)
    with rota_app.facts.recorded(RowFailed) as failed:
        await made.run_once()
        stop_clock(db, "2024-06-02 00:00+00")
        await made.run_once()

    assert [fact.attempt for fact in failed] == [1, 2]
    assert seen == [[], []]
    assert db.execute("select attempts, member from rota.poll_claims").fetchall() == [(2, None)]


async def test_key_of_many_columns_keeps_their_order_and_types(rota_app: TestRota, db: Db) -> None:
    db.execute(
        "create table rows (a int, b text, c numeric, d timestamptz, last timestamptz, primary key (d, c, b, a))"
    )
    db.execute(
        "insert into rows values (1, '1', 1.10, '2024-01-01Z'), (1, '1', 1.1, '2024-01-02Z'), (2, '1', 1.1, '2024-01-01Z')"
    )
    made, _ = poller(rota_app, key=["b", "a", "d", "c"], last="last", interval="1h")

    assert (await round_of(rota_app, made)).completed == 3
    assert (await made.poll("1", 2, datetime(2024, 1, 1, tzinfo=UTC), Decimal("1.1"))).completed == 1
    assert (await made.poll(("1", 1, datetime(2024, 1, 2, tzinfo=UTC), 1.1))).completed == 1
    with pytest.raises(NotPossible, match="there is none in public.rows"):
        await made.poll("1", 3, datetime(2024, 1, 1, tzinfo=UTC), 1)
    with pytest.raises(ConfigurationError, match="the key of .* is b, a, d, c"):
        await made.poll("1", 3)


async def test_longer_key_than_its_column_holds_is_no_other_row(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (k varchar(3) primary key, last timestamptz); insert into rows values ('abc')")
    made, _ = poller(rota_app, key="k", last="last", interval="1h")

    with pytest.raises(NotPossible):
        await made.poll("abcd")
    assert (await made.poll("abc")).completed == 1


@pytest.mark.parametrize("kind", ["float8", "json", "jsonb", "int[]", "interval", "point", "int4range"])
async def test_key_whose_values_cannot_be_told_again_is_refused(rota_app: TestRota, db: Db, kind: str) -> None:
    db.execute(f"create table rows (k {kind} not null, last timestamptz)")  # type: ignore[arg-type]
    made, _ = poller(rota_app, key="k", last="last", interval="1h")

    with pytest.raises(
        ConfigurationError, match="the column 'k' of the key is of the type .* not the same for everyone"
    ):
        await made.run_once()


@pytest.mark.parametrize(("kind", "stored", "given"), KEYS, ids=[kind for kind, *_ in KEYS])
async def test_row_that_is_held_or_parked_is_found_by_its_key(
    rota_app: TestRota, db: Db, kind: str, stored: list[str], given: list[Any]
) -> None:
    db.execute(f"create table rows (k {kind} primary key, last timestamptz, n int)")  # type: ignore[arg-type]
    db.execute("insert into rows values (%s)", [stored[0]])
    held = []

    async def polled(row: Counted) -> None:
        held.append((await made.poll(given[0])).held_by)
        raise ValueError("no")

    made = rota_app.poller(table="rows", key="k", last="last", interval="1h", retry=Retry(attempts=1), name="keys")(
        polled
    )
    await made.run_once()

    assert len(held) == 1
    assert held[0] not in (None, "someone who has just ended")
    assert await rota_app.pollers.release("keys", given[1:2] if len(stored) > 1 else ["other"]) == 0
    assert await rota_app.pollers.release("keys", given[:1]) == 1


@pytest.mark.direct("a session there began before it was set up so")
async def test_styles_of_the_database_change_no_value(rota_app: TestRota, db: Db) -> None:
    for setting in ("datestyle to 'SQL, DMY'", "intervalstyle to 'iso_8601'"):
        db.execute(f'alter database "{db.info.dbname}" set {setting}')  # type: ignore[arg-type]
    db.execute("create table rows (k int primary key, made timestamptz, pace interval, last timestamptz)")
    db.execute("insert into rows values (1, '2024-02-03 00:00Z', '1 day 01:00', '2024-02-04 00:00Z')")
    made, seen = poller(rota_app, key="k", last="last", interval="pace", where="made < timestamptz '4/2/2024'")

    await round_of(rota_app, made)

    (row,) = seen
    assert (row["made"], row["pace"]) == (datetime(2024, 2, 3, tzinfo=UTC), timedelta(days=1, hours=1))
