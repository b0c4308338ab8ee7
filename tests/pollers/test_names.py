"""Names are found in the catalog and quoted, whatever they are; what is no table to poll is refused, with all reasons at once."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.pollers.tables import Db, due_rows, poller, round_of, stop_clock

from rota.errors import ConfigurationError
from rota.testing import TestRota

pytestmark = pytest.mark.long

NASTY = [
    "Mixed Case",
    'quo"ted',
    "apo'strophe",
    "dot.ted",
    "per%cent",
    "%(poller)s",
    "%%",
    "{schema}",
    "{table}{key}",
    "--",
    "/* x",
    "a; drop table sentinel; --",
    '"; drop table sentinel; --',
    "select",
    "ä" * 31 + "b",  # 63 bytes
    "x" * 63,
    "rota_now",
    " ",
    "\\",
    "new\nline",
]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        stop_clock(connection)
        connection.execute("create table sentinel (id int)")
        yield connection
        connection.execute("select from sentinel")


def quoted(text: str, *names: str) -> sql.Composed:
    return sql.SQL(text).format(*map(sql.Identifier, names))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NASTY)
async def test_names_that_need_quoting_work_everywhere(rota_app: TestRota, db: Db, name: str) -> None:
    last, pace = f"{name[:-1]}1", f"{name[:-1]}2"
    db.execute(quoted("create schema {}", name))
    db.execute(
        quoted("create table {}.{} ({} int, {} timestamptz, {} interval, other int)", name, name, name, last, pace)
    )
    db.execute(quoted("alter table {}.{} add primary key (other, {})", name, name, name))
    db.execute(quoted("insert into {}.{} values (1, null, '1 hour', 2), (2, '2024-01-01', '1 hour', 2)", name, name))
    seen = []

    async def polled(row: dict[str, Any]) -> None:
        seen.append((row[name], row["other"]))

    made = rota_app.poller(
        table=(name, name),
        key=[name, "other"],
        last=last,
        interval=pace,
        where=f'"{name.replace(chr(34), chr(34) * 2)}" > 0',
        name=name.replace("\n", " "),
        concurrency=1,
    )(polled)
    preview = await made.preview()
    await round_of(rota_app, made)

    assert seen == [(1, 2), (2, 2)]
    assert [row.key for row in preview] == [[1, 2], [2, 2]]
    assert (await made.poll(2, 2)).completed == 1


@pytest.mark.parametrize("option", ["table", "key", "last", "interval"])
@pytest.mark.parametrize("name", ["x" * 64, "ä" * 32, "", "nul\0", "\ud800"])
def test_names_that_no_catalog_can_hold_are_refused_when_declared(rota_app: TestRota, option: str, name: str) -> None:
    options = {"table": "rows", "key": "id", "last": "last", "interval": "pace", option: name}

    with pytest.raises(ConfigurationError, match="cannot name anything in PostgreSQL"):
        poller(rota_app, **options)


@pytest.mark.parametrize("option", ["table", "key", "last", "due", "interval"])
async def test_names_that_try_to_inject_are_refused(rota_app: TestRota, db: Db, option: str) -> None:
    db.execute("create table rows (id int primary key, last timestamptz, pace interval)")
    db.execute("insert into rows values (1)")
    evil = 'last"; drop table sentinel; --'
    form = {"due": "last"} if option == "due" else {"last": "last"}

    with pytest.raises(ConfigurationError):
        await due_rows(rota_app, **{"interval": "pace", **form, option: evil})


async def test_unquoted_names_are_taken_as_in_the_catalog(rota_app: TestRota, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz)")
    for options in ({"table": "Rows"}, {"key": "ID"}, {"last": "Last"}):
        with pytest.raises(ConfigurationError, match="no such table|does not exist"):
            await due_rows(rota_app, **{"last": "last", "interval": "1h", **options})


@pytest.mark.direct("a session there began before it was set up so")
async def test_table_is_found_as_in_a_session_of_the_users(rota_app: TestRota, db: Db) -> None:
    name, role = db.execute("select current_database(), current_user").fetchone() or ("", "")
    db.execute("create schema one; create schema two")
    for number, schema in enumerate(("public", "one", "two")):
        db.execute(quoted("create table {}.rows (id int primary key, last timestamptz)", schema))
        db.execute(quoted("insert into {}.rows values (%s)", schema), [number])

    assert await due_rows(rota_app, last="last", interval="1h") == [0]
    db.execute(quoted("alter database {} set search_path to one, public", name))
    await rota_app.close()  # what is open keeps the path that it has
    assert await due_rows(rota_app, last="last", interval="1h") == [1]
    db.execute(quoted("alter role {} in database {} set search_path to two", role, name))
    await rota_app.close()
    assert await due_rows(rota_app, last="last", interval="1h") == [2]
    db.execute("update rows set last = null; update one.rows set last = null; update two.rows set last = null")
    assert await due_rows(rota_app, table="one.rows", last="last", interval="1h") == [1]
    assert await due_rows(rota_app, table=("public", "rows"), last="last", interval="1h") == [0]


async def test_table_whose_name_holds_a_dot_is_found(rota_app: TestRota, db: Db) -> None:
    db.execute('create table "a.b" (id int primary key, last timestamptz); insert into "a.b" values (1)')

    assert await due_rows(rota_app, table="a.b", last="last", interval="1h") == [1]


@pytest.mark.parametrize(
    ("made_by", "reason"),
    [
        ("create view rows as select 1 as id, now() as last", "it is a view: a row of it cannot be locked"),
        ("create materialized view rows as select 1 as id, now() as last", "it is a materialized view"),
        ("create sequence rows", "it is a sequence"),
        ("create foreign data wrapper w; create server s foreign data wrapper w; create foreign table rows (id int) server s",
         "it is a foreign table, whose rows cannot be locked"),
        ("create table rows (id int primary key, last timestamptz); create table child () inherits (rows)",
         "it is a table that others inherit from"),
        ("create type rows as (id int)", "there is no such table in the schemas that are searched"),
        ("create temporary table rows (id int primary key, last timestamptz)", "there is no such table|it is a temporary table"),
        ("create table other (id int constraint rows primary key)", "there is no such table"),
    ],
)  # fmt: skip
async def test_what_is_no_table_is_refused_with_a_reason(rota_app: TestRota, db: Db, made_by: str, reason: str) -> None:
    db.execute(made_by)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match=reason):
        await due_rows(rota_app, last="last", interval="1h")


async def test_temporary_table_of_another_session_is_refused(rota_app: TestRota, db: Db) -> None:
    db.execute("create temporary table rows (id int primary key, last timestamptz)")
    (schema,) = db.execute("select nspname from pg_namespace where oid = pg_my_temp_schema()").fetchone() or ("",)

    with pytest.raises(ConfigurationError, match="a temporary table, which only the session that made it can read"):
        await due_rows(rota_app, table=(schema, "rows"), last="last", interval="1h")


async def test_table_that_inherits_is_polled_alone(rota_app: TestRota, db: Db) -> None:
    db.execute("create table parents (id int primary key, last timestamptz); insert into parents values (1)")
    db.execute("create table rows (primary key (id)) inherits (parents); insert into rows values (1), (2)")

    assert sorted(await due_rows(rota_app, last="last", interval="1h")) == [1, 2]
    assert db.execute("select last from only parents").fetchall() == [(None,)]


async def test_partitioned_table_is_polled_by_a_key_of_several_columns(rota_app: TestRota, db: Db) -> None:
    db.execute(
        """
        create table rows (id int, day date, last timestamptz, primary key (id, day)) partition by range (day);
        create table rows_1 partition of rows for values from ('2024-01-01') to ('2024-02-01');
        create table rows_2 partition of rows for values from ('2024-02-01') to ('2024-03-01') partition by list (id);
        create table rows_2_1 partition of rows_2 for values in (1);
        create table rows_2_d partition of rows_2 default;
        insert into rows values (1, '2024-01-05', null), (1, '2024-02-05', null), (2, '2024-02-05', null);
        insert into rows values (3, '2024-02-05', '2024-06-01 11:55Z');
        """
    )
    made, seen = poller(rota_app, key=["id", "day"], last="last", interval="1h")

    stats = await round_of(rota_app, made)

    assert (stats.completed, sorted(seen)) == (3, [1, 1, 2])
    assert (await made.poll(3, "2024-02-05")).completed == 1
    with pytest.raises(ConfigurationError, match="two rows may have the same id"):
        await due_rows(rota_app, key="id", last="last", interval="1h")


@pytest.mark.parametrize(
    "made_by",
    [
        "id int, last timestamptz",
        "id int unique, last timestamptz",  # two rows may have none
        "id int, other int, last timestamptz, primary key (id, other)",
        "id int primary key deferrable, last timestamptz",
    ],
)
async def test_key_that_two_rows_may_share_is_refused(rota_app: TestRota, db: Db, made_by: str) -> None:
    db.execute(f"create table rows ({made_by})")  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="two rows may have the same id, or none"):
        await due_rows(rota_app, last="last", interval="1h")


@pytest.mark.parametrize(
    "index", ["(id) where last is null", "(abs(id))", "(id) include (last)", "(last) include (id)"]
)
async def test_unique_index_makes_a_key_if_it_is_on_the_key_alone(rota_app: TestRota, db: Db, index: str) -> None:
    db.execute("create table rows (id int not null, last timestamptz not null)")
    db.execute(f"create unique index on rows {index}")  # type: ignore[arg-type]
    db.execute("insert into rows values (1, '2024-01-01')")

    if index == "(id) include (last)":
        assert await due_rows(rota_app, last="last", interval="1h") == [1]
        return
    with pytest.raises(ConfigurationError, match="two rows may have the same id, or none"):
        await due_rows(rota_app, last="last", interval="1h")


async def test_all_that_does_not_fit_is_told_at_once(rota_app: TestRota, db: Db) -> None:
    db.execute(
        "create table rows (id float8 primary key, last date, pace text, made timestamptz generated always as (null) stored)"
    )

    async def polled(row: dict[str, Any]) -> None: ...

    made = rota_app.poller(
        table="rows", key=["id", "missing"], last="last", due="made", interval="pace", where="nowhere = 1",
        order_by="pace desc nonsense", done="id = 'x' ||", name="wrong",
    )(polled)  # fmt: skip
    with pytest.raises(ConfigurationError) as refused:
        await made.run_once()

    said = str(refused.value)
    assert said.startswith("Poller 'wrong' cannot poll public.rows: ")
    for problem in (
        "the column 'missing', named by key, does not exist",
        "the column 'id' of the key is of the type double precision, whose values are not the same for everyone",
        "the column 'last', named by last, is of the type date; it must be a timestamp",
        "the column 'made', named by due, is generated, and cannot be stamped",
        "the column 'pace', named by interval, is of the type text: neither an interval nor a number",
        """PostgreSQL says of where='nowhere = 1': column "nowhere" does not exist""",
        """PostgreSQL says of order_by='pace desc nonsense': syntax error at or near "nonsense\"""",
        """PostgreSQL says of done="id = 'x' ||": syntax error at or near "where\"""",
        "The table has id, last, pace, made.",
    ):
        assert problem in said


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("pace int", {"interval": "pace"}, "'pace', named by interval, has numbers: say of what, with unit='minute'"),
        ("pace interval", {"interval": "pace", "unit": "minute"}, "is of the type interval, and unit= is for numbers"),
        ("pace int", {"interval": "5 minutes"}, "'5 minutes', named by interval, does not exist .and it is no duration"),
        ("pace int", {"due": "now() + id", "done": "id = id"}, "operator does not exist"),
        ("pace int", {"due": "id + 1", "done": "id = id"}, "due='id . 1' gives a integer; it must be a time"),
        ("pace int", {"due": "now()"}, "due is an expression, so done= must say"),
        ("pace int", {"due": "now()", "interval": "1h", "done": "pace = 1"}, "an expression, which interval= cannot move on"),
        ("due timestamptz not null", {"due": "due"}, "the column 'due' cannot be emptied when a row is done"),
        ("pace int", {"where": "id = 1; drop table sentinel", "done": "id = 2"}, "says of where=.*syntax error"),
        ("pace int", {"where": "id = 1) or (true", "order_by": "missing", "done": "id = 2"}, "says of order_by='missing'"),
        ("pace int", {"where": "id = 1 /*", "done": "id = 2"}, "says of where=.*unterminated"),
        ("pace int", {"where": "id = 1", "done": "missing = 2"}, "says of done='missing = 2': column .missing."),
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_told_with_its_option(
    rota_app: TestRota, db: Db, columns: str, options: dict[str, Any], problem: str
) -> None:
    db.execute(f"create table rows (id int primary key, last timestamptz, {columns})")  # type: ignore[arg-type]
    clock = {} if "due" in options or "done" in options else {"last": "last"}

    with pytest.raises(ConfigurationError, match=problem):
        await due_rows(rota_app, **clock, **options)


@pytest.mark.direct("a pooler knows its own users only")
async def test_missing_right_is_told(rota_app: TestRota, rota_database: str, db: Db) -> None:
    db.execute("create table rows (id int primary key, last timestamptz)")
    db.execute("drop role if exists rota_poller_guest")
    db.execute("create role rota_poller_guest login")
    try:
        db.execute(
            "grant usage on schema rota to rota_poller_guest; grant all on all tables in schema rota to rota_poller_guest"
        )
        app = TestRota(psycopg.conninfo.make_conninfo(rota_database, user="rota_poller_guest"))
        with pytest.raises(ConfigurationError, match="permission denied for table rows"):
            await due_rows(app, last="last", interval="1h", where="id > 0")
    finally:
        db.execute("drop owned by rota_poller_guest; drop role rota_poller_guest")
