"""In which order due rows are taken, how many of them, and that a preview says the same."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pollers.tables import NOON, Db, column, due_rows, poller, round_of, stop_clock

from rota import Adaptive, Retry
from rota.pollers.pollers import Pollers
from rota.testing import TestRota

pytestmark = pytest.mark.long

SOURCES = """
    create table rows (
        id int primary key,
        last_fetched_at timestamp,
        fetch_interval_minutes int not null default 5,
        enabled bool not null default true,
        priority int not null default 0
    )
"""
FETCH: dict[str, Any] = {
    "last": "last_fetched_at",
    "interval": "fetch_interval_minutes",
    "unit": "minute",
    "where": "enabled",
}


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        stop_clock(connection)
        connection.execute(SOURCES)
        yield connection


def add(
    db: Db, number: int, minutes_ago: float | None, interval: int = 5, enabled: bool = True, priority: int = 0
) -> None:
    last = None if minutes_ago is None else NOON - timedelta(minutes=minutes_ago)
    db.execute(
        "insert into rows values (%s, %s at time zone 'UTC', %s, %s, %s)", [number, last, interval, enabled, priority]
    )


# The seed's query: the limit counts before the due test, which its loop makes afterwards.
OLD_QUERY = """
    select id, now.at - last_fetched_at >= fetch_interval_minutes * interval '1 minute' as is_due
    from rows, (select at at time zone 'UTC' as at from stopped_clock) as now
    where enabled
    order by last_fetched_at nulls first
    limit 2
"""


async def test_limit_counts_after_the_due_test(rota_app: TestRota, db: Db) -> None:
    # polled long ago, and yet not due for as long
    add(db, 1, minutes_ago=500, interval=1440)
    add(db, 2, minutes_ago=400, interval=1440)
    add(db, 3, minutes_ago=300, interval=1440)
    add(db, 4, minutes_ago=20)
    add(db, 5, minutes_ago=10)

    assert db.execute(OLD_QUERY).fetchall() == [(1, False), (2, False)]
    assert await due_rows(rota_app, 2, **FETCH) == [4, 5]


async def test_round_takes_no_more_than_it_is_told_and_ten_unless_told(rota_app: TestRota, db: Db) -> None:
    for number in range(15):
        add(db, number, minutes_ago=60 + number)
    made, seen = poller(rota_app, **FETCH, concurrency=1, batch=3)

    two = await round_of(rota_app, made, 2)
    ten = await made.run_once()
    rest = await made.run_once()
    none = await made.run_once()

    assert [stats.claimed for stats in (two, ten, rest, none)] == [2, 10, 3, 0]
    assert seen == list(range(14, -1, -1))


@pytest.mark.parametrize(
    "options", [FETCH, {"last": "last_fetched_at", "adaptive": Adaptive(min="1m", max="2m")}], ids=str
)
async def test_limit_counts_over_all_kinds_of_due_rows(rota_app: TestRota, db: Db, options: dict[str, Any]) -> None:
    for number in range(1, 10):
        add(db, number, minutes_ago=None if number < 3 else 60 - number)
    made, seen = poller(rota_app, **options, concurrency=1)
    for number in (5, 6):
        db.execute(
            "insert into rota.poll_intervals values (%s, jsonb_build_array(%s::int), '1 m', rota.now())",
            [made.name, number],
        )

    assert [(await round_of(rota_app, made, most)).claimed for most in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert sorted(seen) == list(range(1, 10))


async def test_rows_that_are_not_due_or_not_enabled_are_not_touched(rota_app: TestRota, db: Db) -> None:
    add(db, 1, minutes_ago=4)
    add(db, 2, minutes_ago=60, enabled=False)
    add(db, 3, minutes_ago=None, enabled=False)
    add(db, 4, minutes_ago=60)
    before = db.execute("select ctid, xmin, * from rows where id < 4 order by id").fetchall()

    assert await due_rows(rota_app, **FETCH) == [4]
    # not even locked: that would have left its mark in the row
    assert db.execute("select ctid, xmin, * from rows where id < 4 order by id").fetchall() == before
    assert db.execute("select count(*) from rows where id < 4 and xmax <> '0'").fetchone() == (0,)


async def test_never_polled_come_first_then_those_that_are_due_for_longest(rota_app: TestRota, db: Db) -> None:
    add(db, 1, minutes_ago=10, interval=5)  # due for 5 minutes
    add(db, 2, minutes_ago=60, interval=59)  # for 1
    add(db, 3, minutes_ago=None)
    add(db, 4, minutes_ago=30, interval=1)  # for 29

    assert await due_rows(rota_app, **FETCH) == [3, 4, 1, 2]


@pytest.mark.parametrize(
    "order_by", ["priority desc", "priority desc -- the highest", "-priority", "rows.priority desc, 1 + 1"]
)
async def test_order_of_the_author_comes_first(rota_app: TestRota, db: Db, order_by: str) -> None:
    add(db, 1, minutes_ago=10)
    add(db, 2, minutes_ago=20)
    add(db, 3, minutes_ago=None)
    add(db, 4, minutes_ago=10, priority=5)
    add(db, 5, minutes_ago=None, priority=5)
    add(db, 6, minutes_ago=30, priority=5)
    add(db, 7, minutes_ago=1, priority=9)

    assert await due_rows(rota_app, **FETCH, order_by=order_by) == [5, 6, 4, 3, 2, 1]


async def test_state_is_polled_in_the_order_of_keys_unless_told(rota_app: TestRota, db: Db) -> None:
    for number, priority in ((3, 1), (1, 1), (2, 9)):
        add(db, number, minutes_ago=None, priority=priority)
    options = {"where": "enabled", "done": "enabled = false"}

    assert await due_rows(rota_app, **options) == [1, 2, 3]
    db.execute("update rows set enabled = true")
    assert await due_rows(rota_app, **options, order_by="priority desc") == [2, 1, 3]


ADAPTIVE = Adaptive(min="1m", max="1h")
LOOKS: list[dict[str, Any]] = [
    FETCH,
    {**FETCH, "order_by": "priority desc"},
    {"last": "last_fetched_at", "interval": "5m"},
    {"last": "last_fetched_at", "interval": "5m", "order_by": "priority"},
    {"due": "last_fetched_at", "interval": "5m"},
    {"due": "last_fetched_at"},
    {"where": "enabled", "done": "enabled = false"},
    {"where": "enabled", "done": "enabled = false", "order_by": "priority"},
    {"last": "last_fetched_at", "adaptive": ADAPTIVE},
    {"last": "last_fetched_at", "adaptive": ADAPTIVE, "order_by": "priority"},
]


@pytest.mark.parametrize("options", LOOKS, ids=str)
async def test_preview_is_what_is_taken_next(rota_app: TestRota, db: Db, options: dict[str, Any]) -> None:
    for number in range(40):
        add(db, number, [None, 90 + number, 4, 7 + number][number % 4], enabled=number % 7 > 0, priority=number // 10)
    made, seen = poller(rota_app, **options, concurrency=1, batch=1000)
    name = made.name
    # held, waiting, parked and lost rows, and rows whose pace is known
    db.execute(
        """
        insert into rota.poll_claims (poller, key, member, token, claimed_at) values (%(name)s, '[4]', gen_random_uuid(), 1, now());
        insert into rota.poll_claims (poller, key, retry_at, attempts) values
            (%(name)s, '[8]', rota.now() + interval '1 s', 1), (%(name)s, '[12]', rota.now(), 1);
        insert into rota.poll_claims (poller, key, parked_at) values (%(name)s, '[16]', now());
        insert into rota.poll_claims (poller, key, retry_at, losses) values (%(name)s, '[3]', rota.now() - interval '1 s', 1);
        insert into rota.poll_intervals (poller, key, pace, due_at) values
            (%(name)s, '[19]', '2 m', rota.now() - interval '1 s'), (%(name)s, '[23]', '2 m', rota.now() + interval '1 s'),
            (%(name)s, '[20]', '2 m', rota.now() + interval '1 s'), (%(name)s, '[99]', '2 m', rota.now() - interval '9 s'),
            (%(name)s, '[3]', '2 m', rota.now() - interval '9 s')
        """.replace("%(name)s", f"'{name}'")  # type: ignore[arg-type]
    )
    before = db.execute("select ctid, * from rows order by id").fetchall()

    preview = [row.key[0] for row in await made.preview(1000)]
    dry = await made.run_once(1000, dry_run=True)
    assert db.execute("select ctid, * from rows order by id").fetchall() == before
    assert db.execute("select count(*) from rows where xmax <> '0'").fetchone() == (0,)  # nor was one locked
    stats = await made.run_once(1000)

    assert preview[0] == 3  # lost with its process, and tried apart from the others
    assert seen == preview
    assert (dry.claimed, dry.completed) == (stats.claimed, 0) == (len(seen), 0)


async def test_preview_of_a_poller_that_rests_is_empty(rota_app: TestRota, db: Db) -> None:
    add(db, 1, minutes_ago=60)
    made, _ = poller(rota_app, **FETCH)
    await made.run_once()
    db.execute("update rows set last_fetched_at = null")
    await rota_app.pollers.pause(made.name)

    assert (await made.preview(), (await made.run_once()).claimed) == ([], 0)
    await rota_app.pollers.resume(made.name)
    assert [row.key for row in await made.preview()] == [[1]]


ROW = st.tuples(
    st.none() | st.integers(-10, 30), st.none() | st.integers(-3, 20), st.booleans(), st.integers(0, 2)
)  # minutes ago, interval, enabled, priority


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, max_size=12), most=st.integers(1, 8), by_priority=st.booleans())
def test_due_rows_are_those_of_the_model(
    rota_app: TestRota, db: Db, rows: list[tuple[Any, ...]], most: int, by_priority: bool
) -> None:
    db.execute("truncate rows; alter table rows alter fetch_interval_minutes drop not null")
    for number, row in enumerate(rows):
        add(db, number, *row)
    rota_app.pollers = Pollers(rota_app)
    rota_app.poller = rota_app.pollers.poller
    made, _ = poller(rota_app, **FETCH, **({"order_by": "priority desc"} if by_priority else {}))

    def model(number: int) -> tuple[Any, ...] | None:
        ago, interval, enabled, priority = rows[number]
        due_for = None if ago is None else -1 if interval is None else ago - max(0, interval)
        if not enabled or (due_for is not None and due_for < 0):
            return None
        return (-priority if by_priority else 0, ago is not None, -(due_for or 0))

    expected = sorted(order for number in range(len(rows)) if (order := model(number)) is not None)
    preview = [model(row.key[0]) for row in made.preview_sync(most)]
    assert preview == expected[:most]


async def test_row_is_taken_again_as_soon_as_its_interval_has_passed_and_not_before(rota_app: TestRota, db: Db) -> None:
    add(db, 1, minutes_ago=None)
    made, seen = poller(rota_app, **FETCH)
    moments = [0.0, 4.99, 5.0, 9.99, 10.0]

    for moment in moments:
        stop_clock(db, NOON + timedelta(minutes=moment))
        await round_of(rota_app, made)

    assert len(seen) == 3
    assert column(db, "last_fetched_at") == {1: (NOON + timedelta(minutes=10)).replace(tzinfo=None)}


async def test_rows_that_wait_or_are_parked_take_no_place(rota_app: TestRota, db: Db) -> None:
    for number in range(12):
        add(db, number, minutes_ago=1000 - number)
    for number in range(12, 17):
        add(db, number, minutes_ago=10)
    served = []

    async def fetch(row: dict[str, Any]) -> None:
        if row["id"] < 12:
            raise ValueError("broken")
        served.append(row["id"])

    made = rota_app.poller(table="rows", name="fetch", retry=Retry(attempts=2), **FETCH)(fetch)
    stats = await made.run_once(10)

    assert sorted(served) == [12, 13, 14, 15, 16]
    assert (stats.claimed, stats.completed, len(stats.errors)) == (17, 5, 12)
