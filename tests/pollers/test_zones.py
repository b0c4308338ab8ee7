"""A row is due at the same moment, and its stamp is the same, wherever the database, the role and the session think they are."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import tuple_row
from tests.pollers.tables import Db, poller, round_of, stop_clock

from rota import Adaptive
from rota.pollers.claim import Claims
from rota.pollers.due import Plan
from rota.pollers.inspect import preview_rows
from rota.pollers.plan import plan_of
from rota.pollers.running import current_poll
from rota.pollers.settle import Finish
from rota.postgres.query import Query
from rota.testing import TestRota

pytestmark = pytest.mark.long

# half an hour after clocks went forward in America/St_Johns: that day has 23 hours there
JUMP = datetime(2024, 3, 10, 6, 0, tzinfo=UTC)
ZONES = ("Pacific/Chatham", "America/St_Johns")


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        yield connection


TABLE = """
    create table rows (
        id int primary key, naive timestamp, aware timestamptz, due timestamp, due_tz timestamptz, pace interval, minutes int
    );
    insert into rows
    select
        number, moment, moment at time zone 'UTC', moment, moment at time zone 'UTC',
        case number % 4 when 0 then interval '1 day' when 1 then '23 hours' when 2 then '1 month' else '0.5 hours' end, 60 * number
    from (
        select number, (select at from stopped_clock) at time zone 'UTC' - number * interval '1 hour' as moment
        from generate_series(-3, 40) as number
    ) as rows;
    insert into rows (id, pace, minutes) values (100, '1 day', 1);
"""

OPTIONS: list[dict[str, Any]] = [
    {"last": "naive", "interval": "1d"},
    {"last": "aware", "interval": "1d", "counted_from": "start"},
    {"last": "naive", "interval": "pace", "counted_from": "start"},
    {"last": "aware", "interval": "pace", "counted_from": "start"},
    {"last": "naive", "interval": "minutes", "unit": "minute"},
    {"due": "due", "interval": "pace"},
    {"due": "due_tz", "interval": "pace", "counted_from": "start"},
    {"due": "due_tz", "interval": "pace"},
    {"due": "due", "last": "aware", "interval": "1w"},
    {"due": "due + interval '1 day'", "last": "naive"},
]


def asked(db: Db, query: Query[Any]) -> Any:
    return query.read(db.cursor(row_factory=tuple_row).execute(query.statement.sql("rota"), query.params).fetchall())  # type: ignore[arg-type]


def polled_in(db: Db, zone: str, plan: Plan) -> tuple[Any, ...]:
    """What would be taken, what is, and what the table is like after the stamps, in a session of this time zone; then undone."""
    member = UUID(int=1)
    with db.transaction(force_rollback=True):
        db.execute("select set_config('timezone', %s, true)", [zone])
        seen = [row.key for row in asked(db, preview_rows(plan, 100))]
        taken = asked(db, Claims(plan).due(limit=100, token=1, member=member)).rows
        fates = asked(db, Finish(plan).many(taken, [False] * len(taken)))
        # a time with a time zone is read as it is in any
        after = db.execute(
            "select to_jsonb(rows) - 'aware' - 'due_tz', extract(epoch from aware), extract(epoch from due_tz) from rows order by id"
        )
        return seen, [(row.key, row.occurrence) for row in taken], fates, after.fetchall()


async def planned(app: TestRota, options: dict[str, Any]) -> Plan:
    made, _ = poller(app, **options)
    looking = app.database.apart("test", size=1, settings={"search_path": None})
    try:
        return await plan_of(looking, made.definition)
    finally:
        await looking.close()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_due_set_and_stamps_are_the_same_in_zones_where_a_day_has_23_hours(
    rota_app: TestRota, db: Db, options: dict[str, Any]
) -> None:
    stop_clock(db, JUMP)
    db.execute(TABLE)
    plan = await planned(rota_app, options)

    seen = polled_in(db, "UTC", plan)

    assert seen[0] == [key for key, _ in seen[1]] != []
    assert [polled_in(db, zone, plan) for zone in ZONES] == [seen, seen]


async def test_due_set_and_stamps_are_the_same_in_every_zone_there_is(rota_app: TestRota, db: Db) -> None:
    stop_clock(db, JUMP)
    db.execute(TABLE)
    plan = await planned(rota_app, {"last": "naive", "due": "due_tz", "interval": "pace", "counted_from": "start"})
    zones = [name for (name,) in db.execute("select name from pg_timezone_names where name not like 'posix/%'")]

    seen = polled_in(db, "UTC", plan)

    assert len(zones) > 300
    assert [zone for zone in zones if polled_in(db, zone, plan) != seen] == []


@pytest.mark.parametrize("whose", ["database", "role"])
@pytest.mark.direct("a session there began before it was set up so")
async def test_zone_of_the_database_or_role_changes_nothing(
    rota_app: TestRota, rota_database: str, db: Db, whose: str
) -> None:
    name, role = db.execute("select current_database(), current_user").fetchone() or ("", "")
    place = f'role "{role}" in database "{name}"' if whose == "role" else f'database "{name}"'
    db.execute(f"alter {place} set timezone to 'America/St_Johns'")  # type: ignore[arg-type]
    stop_clock(db, JUMP)
    db.execute(TABLE)
    # in the handler's own transaction the session is as the database and the role have it
    zones = []

    @rota_app.poller(table="rows", due="due_tz", last="naive", interval="pace", where="id in (1, 2, 4)", name="own")
    async def own(row: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            zones.append((await (await tx.execute("show timezone")).fetchone())[0])

    stats = await round_of(rota_app, own)

    assert (stats.completed, set(zones)) == (3, {"America/St_Johns"})
    after = db.execute("select id, naive, due_tz from rows where id in (1, 2, 4) order by id").fetchall()
    now = JUMP.replace(tzinfo=None)
    assert after == [
        (1, now, JUMP + timedelta(hours=23)),
        (2, now, datetime(2024, 4, 10, 6, tzinfo=UTC)),
        (4, now, JUMP + timedelta(days=1)),
    ]


async def test_stamp_through_a_connection_of_the_users_in_another_zone_is_right(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    stop_clock(db, JUMP)
    db.execute(TABLE)

    @rota_app.poller(table="rows", last="naive", due="due_tz", interval="pace", where="id in (1, 4)", name="own")
    def own(row: dict[str, Any]) -> None:
        with psycopg.connect(rota_database) as mine:
            mine.execute(
                "set timezone to 'America/St_Johns'; set datestyle to 'SQL, DMY'; set intervalstyle to 'sql_standard'"
            )
            mine.commit()
            with current_poll().transaction(on=mine):
                pass

    await round_of(rota_app, own)

    after = db.execute("select id, naive, due_tz from rows where id in (1, 4) order by id").fetchall()
    assert after == [
        (1, JUMP.replace(tzinfo=None), JUMP + timedelta(hours=23)),
        (4, JUMP.replace(tzinfo=None), JUMP + timedelta(days=1)),
    ]


async def test_pace_that_rota_keeps_is_counted_in_hours_of_the_same_length(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    stop_clock(db, JUMP - timedelta(hours=12))
    db.execute("create table rows (id int primary key, last timestamptz); insert into rows values (1, null)")

    @rota_app.poller(
        table="rows", last="last", interval="1d", adaptive=Adaptive(min="1h", max="9d", slower=2), name="own"
    )
    def own(row: dict[str, Any]) -> None:
        with psycopg.connect(rota_database) as mine:
            mine.execute("set timezone to 'America/St_Johns'")
            mine.commit()
            with current_poll().transaction(on=mine):
                pass

    await round_of(rota_app, own)

    assert db.execute("select due_at from rota.poll_intervals").fetchall() == [(JUMP + timedelta(hours=36),)]
