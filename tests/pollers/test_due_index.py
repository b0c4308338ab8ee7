"""With the index that a poller asks for, a look reads what is due, and nothing else."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.pollers.tables import Db, poller, stop_clock

from rota import Adaptive
from rota.pollers.claim import Claims
from rota.pollers.due import Plan
from rota.pollers.plan import plan_of
from rota.testing import TestRota

pytestmark = pytest.mark.long

# Of 20,000 rows that are enabled 5 were never polled, and 5 are due; 5,000 will never be due again. 5,000 are not enabled.
ROWS = """
    create table rows (
        id int primary key, naive timestamp, aware timestamptz, due timestamptz, pace interval, minutes int, hours numeric,
        enabled bool
    );
    insert into rows
    select number, moment, moment at time zone 'UTC', moment at time zone 'UTC' + interval '1 hour', pace,
        extract(epoch from pace) / 60, extract(epoch from pace) / 3600, number > 5000
    from (
        select number,
            case
                when number <= 5000 then timestamp '2000-01-01'
                when number % 2000 = 1 then null
                when number % 2000 = 2 then timestamp '2024-06-01 10:00'
                else timestamp '2024-06-01 11:59' + number * interval '1 ms'
            end as moment,
            case when number % 4 > 0 or number % 2000 in (1, 2) then interval '1 hour' end as pace
        from generate_series(1, 25000) as number
    ) as rows
"""
FORMS: list[dict[str, Any]] = [
    {"last": "naive", "interval": "1h"},
    {"last": "aware", "interval": "1h"},
    {"last": "naive", "interval": "pace"},
    {"last": "aware", "interval": "pace"},
    {"last": "aware", "interval": "minutes", "unit": "minute"},
    {"last": "naive", "interval": "hours", "unit": "hour"},
    {"due": "due", "interval": "pace"},
    {"due": "due"},
    {"due": "naive + interval '1 hour'", "last": "naive"},
    {"last": "aware", "interval": "pace", "order_by": "id desc"},
    {"last": "aware", "interval": "1h", "order_by": "minutes"},
    {"due": "due", "order_by": "minutes"},
    {"last": "aware", "adaptive": Adaptive("1m", "1h")},
]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        stop_clock(connection)
        yield connection


def read_rows(node: dict[str, Any]) -> int:
    """How many rows of the table the plan has read."""
    below = sum(read_rows(child) for child in node.get("Plans", ()))
    if node.get("Relation Name") != "rows":
        return below
    removed = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
    return below + round((node["Actual Rows"] + removed) * node["Actual Loops"])


def rows_read(db: Db, plan: Plan, limit: int) -> int:
    claim = Claims(plan).due(limit=limit, token=1, member=UUID(int=1))
    with db.transaction(force_rollback=True):
        explained = db.execute(f"explain (analyze, format json) {claim.statement.sql('rota')}", claim.params).fetchone()  # type: ignore[arg-type]
    assert explained is not None
    return read_rows(explained[0][0]["Plan"])


async def planned(app: TestRota, options: dict[str, Any]) -> Plan:
    made, _ = poller(app, **options)
    looking = app.database.apart("test", size=1, settings={"search_path": None})
    try:
        return await plan_of(looking, made.definition)
    finally:
        await looking.close()


@pytest.mark.parametrize("options", FORMS, ids=str)
async def test_look_reads_only_what_is_due(rota_app: TestRota, db: Db, options: dict[str, Any]) -> None:
    db.execute(ROWS)
    plan = await planned(rota_app, {"where": "enabled", **options})
    db.execute(f"create index on rows ({', '.join(plan.index_on)}) where (enabled)")  # type: ignore[arg-type]
    db.execute("analyze rows")

    # ten never polled, and ten due; what is never due again is not planned as if it were
    assert 10 <= rows_read(db, plan, 100) <= 25
    assert rows_read(db, plan, 3) <= (25 if plan.definition.order_by else 6)


@pytest.mark.parametrize("order_by", [None, "minutes desc -- the longest"])
async def test_look_for_a_state_reads_only_what_it_takes(rota_app: TestRota, db: Db, order_by: str | None) -> None:
    db.execute(ROWS)
    plan = await planned(rota_app, {"where": "not enabled", "done": "enabled = true", "order_by": order_by})
    db.execute(f"create index on rows ({', '.join(plan.index_on)}) where (not enabled)")  # type: ignore[arg-type]
    db.execute("analyze rows")

    assert rows_read(db, plan, 50) == 50


async def test_look_by_paces_reads_only_rows_whose_time_has_come(rota_app: TestRota, db: Db) -> None:
    db.execute(ROWS)
    plan = await planned(rota_app, {"last": "aware", "adaptive": Adaptive("1m", "1h"), "where": "enabled"})
    db.execute(
        """
        insert into rota.poll_intervals
        select %s, jsonb_build_array(id), '5 minutes', rota.now() + interval '5 minutes' * case when id %% 2000 = 7 then -1 else 1 end
        from rows where enabled and aware is not null and id %% 2000 <> 2
        """,
        [plan.definition.name],
    )
    db.execute(f"create index on rows ({', '.join(plan.index_on)}) where (enabled)")  # type: ignore[arg-type]
    db.execute("analyze rows; analyze rota.poll_intervals")

    # ten of each: never polled, due by their pace, and old without one
    assert 30 <= rows_read(db, plan, 100) <= 35
