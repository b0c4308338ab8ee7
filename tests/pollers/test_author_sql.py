"""SQL of the author's stands in statements as it is: comments, percent signs, braces, and names that are also ours."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.pollers.tables import Db, column, due_rows, poller, round_of, stop_clock

from rota import Adaptive
from rota.pollers.inspect import backlog
from rota.pollers.plan import plan_of
from rota.testing import TestRota

pytestmark = pytest.mark.long


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        stop_clock(connection)
        yield connection


OURS = (
    "key",
    "poller",
    "token",
    "member",
    "attempts",
    "losses",
    "retry_at",
    "parked_at",
    "claimed_at",
    "name",
    "at",
    "now",
    "schema",
)


@pytest.mark.parametrize("form", ["last", "due", "state", "adaptive"])
async def test_columns_that_are_called_as_ours_are_the_users(rota_app: TestRota, db: Db, form: str) -> None:
    columns = ", ".join(f"{name} int default 1" for name in OURS)
    db.execute(
        f"create table rows (id int primary key, last timestamptz, due timestamptz default '2024-01-01', {columns})"
    )  # type: ignore[arg-type]
    db.execute("insert into rows (id) values (1), (2); update rows set token = 7 where id = 2")
    clock: dict[str, Any] = {
        "last": {"last": "last", "interval": "1h"},
        "due": {"due": "due", "interval": "1h"},
        "state": {},
        "adaptive": {"last": "last", "adaptive": Adaptive("1m", "1h")},
    }[form]

    polled = await due_rows(
        rota_app,
        where=" and ".join(f"{name} = 1" for name in OURS),
        done=", ".join(f"{name} = {name} + 1" for name in OURS),
        order_by="token, member desc, key",
        **clock,
    )

    assert polled == [1]
    for name in OURS:
        assert column(db, name)[1] == 2
    assert column(db, "token")[2] == 7


@pytest.mark.parametrize(
    "where",
    [
        "true -- a comment",
        "name like '50%' and name not like '%s' and name <> '%(poller)s'",
        "name <> '{schema}' and name <> '{key}' and name <> '{where}'",
        "/* one /* in another */ comment */ true",
        "exists (select from claim where claim.id = rows.id) and exists (select from given where given.id = rows.id)",
        "exists (select from held) and exists (select from stale) and exists (select from forgotten, pollers, members)",
        "id in (select id from rows as other where other.id = 1 union select 1)",
        "name = $$50% -- $$ || $tag$off$tag$",
        "rows.name is not null or false",
    ],
)
async def test_where_is_taken_as_it_is(rota_app: TestRota, db: Db, where: str) -> None:
    db.execute("create table rows (id int primary key, name text, last timestamptz, seen int default 0)")
    db.execute("insert into rows values (1, '50% -- off')")
    for table in ("claim", "given", "held", "stale", "forgotten", "pollers", "members"):
        db.execute(f"create table {table} as select 1 as id")  # type: ignore[arg-type]
    made, seen = poller(rota_app, where=where, last="last", interval="1h", done="seen = seen + 1 -- once more")
    looking = rota_app.database.apart("test", size=1, settings={"search_path": None})
    plan = await plan_of(looking, made.definition)

    before = await looking.run(backlog(plan))
    preview = await made.preview()
    await round_of(rota_app, made)
    after = await looking.run(backlog(plan))
    await looking.close()

    assert (seen, [row.key for row in preview]) == ([1], [[1]])
    assert (before.rows, before.never_polled, after.rows) == (1, 1, 0)
    assert column(db, "seen") == {1: 1}


@pytest.mark.parametrize(
    "table", ["claim", "given", "held", "pollers", "poll_claims", "rota_clock", "rota_due", "known"]
)
async def test_tables_that_are_called_as_ours_are_the_users(rota_app: TestRota, db: Db, table: str) -> None:
    db.execute(f"create table {table} (id int primary key, last timestamptz, status text default 'new')")  # type: ignore[arg-type]
    db.execute(f"insert into {table} values (1)")  # type: ignore[arg-type]

    assert await due_rows(rota_app, table=table, last="last", interval="1h", where=f"{table}.status = 'new'") == [1]
    assert await due_rows(rota_app, table=table, where=f"{table}.status = 'new'", done="status = 'old'") == [1]
    assert column(db, "status", table) == {1: "old"}


async def test_functions_of_the_users_are_found_as_in_a_session_of_theirs(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz); insert into rows values (1), (2)")
    db.execute("create function wanted(int) returns bool language sql return $1 = 2")

    assert await due_rows(rota_app, last="last", interval="1h", where="wanted(id)") == [2]


async def test_where_is_judged_for_each_row_that_was_polled(rota_app: TestRota, db: Db) -> None:
    """A row that fits no more is stamped all the same; one for its state has reached what it was polled for."""
    db.execute("create table rows (id int primary key, last timestamptz, status text default 'new')")
    db.execute("insert into rows values (1)")

    async def leave(row: dict[str, Any]) -> None:
        db.execute("update rows set status = 'old'")

    made = rota_app.poller(table="rows", last="last", interval="1h", where="status = 'new'", name="leave")(leave)
    assert (await round_of(rota_app, made)).completed == 1
    assert column(db, "last")[1] is not None

    db.execute("update rows set status = 'new'")
    made = rota_app.poller(table="rows", where="status = 'new'", name="state")(leave)
    assert (await round_of(rota_app, made)).completed == 1
