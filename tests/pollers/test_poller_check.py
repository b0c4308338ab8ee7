"""`poller.check()` and `poller.ddl()`: whether an index leads to due rows, and that what is printed makes one that does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from rota import Adaptive, ConfigurationError, Rota
from rota.facts import RowPolled
from rota.pollers.claim import Claims
from rota.pollers.index import name_within
from rota.pollers.plan import plan_of
from rota.pollers.poller import Poller
from rota.pollers.sessions import _LOOKING
from rota.pollers.source import PollSource
from rota.postgres.query import Statement
from rota.testing import TestRota, fact

pytestmark = pytest.mark.long

Db = psycopg.Connection[Any]

FEEDS = """
    create table feeds (
        id bigint primary key, enabled boolean not null default true, polled_at timestamptz, checked_at timestamp,
        minutes integer not null default 60, pause interval not null default '1 hour', next_at timestamptz,
        status text not null default 'idle', priority integer not null default 0, created_at timestamptz default now()
    )
"""
# one in a hundred is due
FILL = """
    insert into feeds (id, enabled, polled_at, checked_at, next_at, status, priority)
    select n, n %% 10 > 0,
           now() - case when n %% 100 = 1 then interval '3 hours' else interval '1 minute' end,
           (now() - case when n %% 100 = 1 then interval '3 hours' else interval '1 minute' end) at time zone 'UTC',
           now() + case when n %% 100 = 1 then interval '-1 hour' else interval '1 hour' end,
           case when n %% 100 = 1 then 'paid' else 'idle' end, n %% 5
    from generate_series(1, %(rows)s) as n
"""
LAST = {"last": "polled_at", "interval": "1h"}
PAID = {"where": "status = 'paid'", "done": "status = 'sent'"}
FORMS: dict[str, dict[str, Any]] = {
    "last": LAST,
    "last, without time zone": {"last": "checked_at", "interval": "1h"},
    "last and where": LAST | {"where": "enabled"},
    "a column of minutes": {"last": "polled_at", "interval": "minutes", "unit": "minute"},
    "a column of intervals": {"last": "polled_at", "interval": "pause", "where": "enabled -- not the others"},
    "due": {"due": "next_at", "interval": "1h"},
    "due once": {"due": "next_at"},
    "due by an expression": {"due": "checked_at + pause", "done": "checked_at = null"},
    "state": PAID,
    "state in an order": PAID | {"order_by": "priority desc"},
    "adaptive": {"last": "polled_at", "adaptive": Adaptive(min="1m", max="1h")},
}


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute(FEEDS)
        yield connection


def make(app: Rota, name: str = "fetch", table: Any = "feeds", **options: Any) -> Poller[..., Any]:
    @app.poller(name=name, table=table, **options)
    async def handler(row: dict[str, Any]) -> None: ...

    return handler


def fill(db: Db, rows: int = 20_000) -> None:
    db.execute(FILL, {"rows": rows})
    db.execute("analyze feeds")


def apply(db: Db, text: str) -> None:
    """As psql does: one statement after the other, none of them in a block."""
    for each in text.split(";\n"):
        db.execute(each.encode())


def rows_read(app: TestRota, poller: Poller[..., Any]) -> int:
    """How many rows of the user's table a look really reads."""

    async def explained() -> Any:
        looking = app.database.apart("poll", size=1, settings=_LOOKING)
        claim = Claims(await plan_of(looking, poller.definition)).due(limit=100, token=1, member=UUID(int=1))
        asked = claim.statement
        explain = Statement("explain", f"explain (analyze, format json) {asked.text}", asked.parts)
        try:
            return await looking.run(explain.query(claim.params, read=lambda rows: rows[0][0][0]["Plan"]))
        finally:
            await looking.close()

    def count(node: dict[str, Any]) -> int:
        own = node.get("Relation Name") == "feeds" and (
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        )
        return int(own) + sum(count(child) for child in node.get("Plans", ()))

    return count(asyncio.run(explained()))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_printed_makes_an_index_that_leads_to_due_rows(rota_app: TestRota, db: Db, form: str) -> None:
    poller = make(rota_app, **FORMS[form])
    fill(db)
    before = poller.check_sync()

    apply(db, poller.ddl_sync())

    after = poller.check_sync()
    assert before.missing is not None
    assert (before.scans, before.index, before.is_fit, before.rows) == (True, None, False, 20_000)
    assert (after.scans, after.index, after.missing, after.is_fit) == (False, before.missing.name, None, True)
    assert before.missing.name in after.plan
    assert after.warnings == ()
    assert rows_read(rota_app, poller) <= 200  # what is due


def test_with_a_hundred_thousand_rows_a_look_reads_what_it_takes(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST, where="enabled")
    fill(db, 100_000)
    apply(db, poller.ddl_sync())

    assert poller.backlog_sync().rows == 1000
    assert rows_read(rota_app, poller) == 100


def test_the_statement_is_the_one_promised(rota_app: TestRota, db: Db) -> None:
    plain, minutes = (
        make(rota_app, "plain", **LAST, where="enabled"),
        make(rota_app, "m", **FORMS["a column of minutes"]),
    )

    assert plain.check_sync().missing is not None
    assert plain.check_sync().missing.statement == (  # type: ignore[union-attr]
        'create index concurrently "feeds_plain_due" on "public"."feeds" ("polled_at") where (enabled)'
    )
    expression = make(rota_app, "x", due="checked_at + pause", done="checked_at = null")
    ordered = make(rota_app, "o", **PAID, order_by="priority desc -- urgent")
    assert expression.check_sync().missing.statement.endswith(" ((checked_at + pause))")  # type: ignore[union-attr]
    remarked = make(rota_app, "r", **FORMS["a column of intervals"])
    assert remarked.check_sync().missing.statement.endswith(" where (enabled -- not the others\n)")  # type: ignore[union-attr]
    assert ordered.check_sync().missing.statement.endswith(  # type: ignore[union-attr]
        """ (priority desc -- urgent\n, "id") where (status = 'paid')"""
    )
    assert """at time zone 'UTC') + """ in minutes.check_sync().missing.statement  # type: ignore[union-attr]


@pytest.mark.parametrize("rows", [0, 3])
def test_an_index_is_missing_also_while_the_table_is_small(rota_app: TestRota, db: Db, rows: int) -> None:
    poller = make(rota_app, **LAST)
    fill(db, rows)

    before = poller.check_sync()
    apply(db, poller.ddl_sync())
    after = poller.check_sync()

    assert (before.index, before.is_fit) == (None, False)
    assert (after.index, after.is_fit, after.warnings) == ("feeds_fetch_due", True, ())


@pytest.mark.direct("a session there began before it was set up so")
def test_an_index_that_is_there_and_not_used_is_remarked_on(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST)
    fill(db)
    apply(db, poller.ddl_sync())
    db.execute(sql.SQL("alter database {} set random_page_cost = 1e9").format(sql.Identifier(db.info.dbname)))

    check = poller.check_sync()

    assert (check.scans, check.index, check.is_fit) == (True, "feeds_fetch_due", True)
    assert "reads the whole table although the index feeds_fetch_due" in " ".join(check.warnings)


def test_nothing_is_taken_and_nothing_is_left_behind(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST)
    fill(db, 20)
    before = db.execute("select count(*) from pg_class").fetchone()

    poller.check_sync()

    assert db.execute("select count(*) from rota.poll_claims").fetchone() == (0,)
    assert db.execute("select count(*) from pg_class").fetchone() == before


def test_an_index_of_the_users_own_is_as_good(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST, where="enabled")
    fill(db)
    db.execute("create index mine on feeds (enabled, polled_at)")

    assert (poller.check_sync().index, poller.check_sync().warnings) == ("mine", ())


@pytest.mark.parametrize("columns", ["polled_at desc nulls last", "priority, polled_at", "enabled", "id, polled_at"])
def test_an_index_that_leads_elsewhere_is_not(rota_app: TestRota, db: Db, columns: str) -> None:
    poller = make(rota_app, **LAST)
    fill(db)
    db.execute(f"create index mine on feeds ({columns})".encode())

    assert poller.check_sync().missing is not None


def test_an_index_with_rows_that_where_leaves_out_is_remarked_on(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST, where="enabled")
    fill(db)
    db.execute("create index mine on feeds (polled_at)")

    check = poller.check_sync()

    assert (check.index, check.is_fit) == ("mine", True)
    assert "where (enabled)`" in " ".join(check.warnings)


@pytest.mark.parametrize(
    "where",
    [
        "created_at < now()",
        "id in (select id from feeds as other)",
        "priority <= (select max(priority) from feeds)",
        "random() < 2",
        "enabled and now() is not null",
    ],
)
def test_a_condition_that_no_index_takes_is_left_out_of_it(rota_app: TestRota, db: Db, where: str) -> None:
    poller = make(rota_app, **LAST, where=where)
    fill(db)
    before = poller.check_sync()

    apply(db, poller.ddl_sync())

    assert before.missing is not None
    assert "where" not in before.missing.statement
    assert f"without where={where!r}" in " ".join(before.warnings)
    assert poller.check_sync().is_fit


def test_where_no_index_can_help_that_is_told_and_none_is_called_missing(rota_app: TestRota, db: Db) -> None:
    by_state = make(rota_app, "s", where="created_at < now() - interval '1 day'", done="created_at = now()")
    by_time = make(rota_app, "t", due="created_at + pause", done="created_at = now()")

    for poller in (by_state, by_time):
        check = poller.check_sync()
        assert check.missing is None
        assert "IMMUTABLE" in " ".join(check.warnings)


def test_what_costs_is_said(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST, order_by="priority desc", limit=3)
    fill(db)
    apply(db, poller.ddl_sync())

    check = poller.check_sync()

    assert check.is_fit  # due rows are found by the index, and sorted
    assert [warning.split()[0] for warning in check.warnings] == ["order_by='priority", "limit=3"]


def test_a_table_that_was_never_counted_and_rows_that_are_parked_are_told_of(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST)
    db.execute("insert into feeds (id) values (1)")
    db.execute(
        "insert into rota.poll_claims (poller, key, parked_at) values ('fetch', '[1]', now()), ('x', '[1]', now())"
    )

    check = poller.check_sync()

    assert check.rows is None
    assert 'run `analyze "public"."feeds"`' in " ".join(check.warnings)
    assert "1 row(s) are parked" in " ".join(check.warnings)


def test_a_key_that_no_index_leads_to_is_told_of(rota_app: TestRota, db: Db) -> None:
    db.execute('create table named (name text collate "C" not null, polled_at timestamptz)')
    db.execute('create unique index on named (name collate "POSIX")')
    poller = make(rota_app, table="named", key="name", **LAST)

    assert "no index leads to a row by its key (name)" in " ".join(poller.check_sync().warnings)


@pytest.mark.direct("the pooler knows no such role")
def test_rights_that_are_missing_are_told_with_the_grant(rota_app: TestRota, db: Db, rota_database: str) -> None:
    db.execute("drop role if exists check_reader")
    db.execute("create role check_reader login")
    db.execute("grant usage on schema rota to check_reader")
    db.execute("grant all on all tables in schema rota to check_reader")
    db.execute("grant execute on all functions in schema rota to check_reader")
    app = TestRota(make_conninfo(rota_database, user="check_reader"))
    poller = make(app, **LAST)
    try:
        none = poller.check_sync()
        db.execute("grant select on feeds to check_reader")
        reading = poller.check_sync()
        db.execute("grant update on feeds to check_reader")
        both = poller.check_sync()
    finally:
        app.close_sync()
        db.execute("drop owned by check_reader")
        db.execute("drop role check_reader")

    assert (none.plan, none.is_fit, none.missing) == ("", False, None)
    assert '`grant select, update on "public"."feeds" to "check_reader"`' in none.warnings[0]
    assert '`grant update on "public"."feeds" to "check_reader"`' in reading.warnings[0]
    assert both.plan
    assert "may not" not in " ".join(both.warnings)


@pytest.mark.direct("the pooler knows no such role")
def test_without_temporary_tables_the_index_is_proposed_untried(rota_app: TestRota, db: Db, rota_database: str) -> None:
    database = sql.Identifier(db.info.dbname)
    db.execute("drop role if exists check_plain")
    db.execute("create role check_plain login")
    db.execute("grant usage on schema rota to check_plain")
    db.execute("grant all on all tables in schema rota, public to check_plain")
    db.execute("grant execute on all functions in schema rota to check_plain")
    db.execute(sql.SQL("revoke temporary on database {} from public").format(database))
    app = TestRota(make_conninfo(rota_database, user="check_plain"))
    poller = make(app, **PAID)
    try:
        check = poller.check_sync()
    finally:
        app.close_sync()
        db.execute("drop owned by check_plain")
        db.execute("drop role check_plain")

    assert check.missing is not None
    assert check.missing.statement.endswith("where (status = 'paid')")
    assert "was not tried: permission denied to create temporary tables" in " ".join(check.warnings)


def test_an_index_whose_making_was_cut_off_is_told_of(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST)
    fill(db, 20)
    apply(db, poller.ddl_sync())
    db.execute("update pg_index set indisvalid = false where indexrelid = 'feeds_fetch_due'::regclass")

    check = poller.check_sync()

    assert check.missing is not None
    assert check.missing.name == "feeds_fetch_due_2"  # the name is taken
    assert 'run `drop index "public"."feeds_fetch_due"`' in " ".join(check.warnings)


def test_names_fit_and_stay_apart(rota_app: TestRota, db: Db) -> None:
    table = 'a "quoted"\ntable, 63 bytes long; drop table feeds; -- 0123456789'[:63]
    db.execute(sql.SQL("alter table feeds rename to {}").format(sql.Identifier(table)))
    one, two = (make(rota_app, f"fétch's \\ {n}", ("public", table), **LAST) for n in (1, 2))

    for poller in (one, two):
        apply(db, poller.ddl_sync(notify=True))

    assert one.check_sync().is_fit
    found = db.execute(
        "select count(*) from pg_index join pg_class on pg_class.oid = indrelid where relname = %s", [table]
    ).fetchone()
    assert found == (2,)  # that of the key, and one for both
    wakes = db.execute("select tgname, tgargs from pg_trigger where tgname like 'rota_wake%%' order by 1").fetchall()
    assert [(name, bytes(args).decode()) for name, args in wakes] == [
        (f"rota_wake_fétch's \\ {n}", f"fétch's \\ {n}\0") for n in (1, 2)
    ]


def test_a_long_name_is_cut_between_characters_and_told_apart() -> None:
    names = {name_within(f"{'é' * 40}{n}") for n in range(3)}

    assert len(names) == 3
    assert all(len(name.encode()) <= 63 for name in names)
    assert name_within("short") == "short"


def test_a_partitioned_table_is_checked_as_a_whole(rota_app: TestRota, db: Db) -> None:
    db.execute("create table events (id bigint primary key, polled_at timestamptz) partition by range (id)")
    for n in range(3):
        db.execute(
            f"create table events_{n} partition of events for values from ({n * 5000}) to ({(n + 1) * 5000})".encode()
        )
    db.execute("insert into events select n, now() - interval '1 minute' from generate_series(0, 14999) as n")
    db.execute("analyze events")
    poller = make(rota_app, table="events", **LAST)
    before = poller.check_sync()

    apply(db, poller.ddl_sync(notify=True))

    after = poller.check_sync()
    assert before.missing is not None
    assert "concurrently" not in before.missing.statement
    assert (before.rows, before.scans, after.scans, after.is_fit) == (15_000, True, False, True)


def test_what_is_there_already_is_told_and_not_made_again(rota_app: TestRota, db: Db) -> None:
    poller = make(rota_app, **LAST)
    first = poller.ddl_sync(notify=True)
    apply(db, first)

    again = poller.ddl_sync(notify=True)

    assert all(line.startswith("--") for line in again.splitlines() if line)
    assert "the index feeds_fetch_due" in again
    assert "the trigger rota_wake_fetch" in again
    (undo,) = (line.partition("to undo it: ")[2] for line in again.splitlines() if "drop trigger" in line)
    db.execute(undo.encode())
    assert "create trigger" in poller.ddl_sync(notify=True)


def test_a_trigger_leaves_out_what_we_stamp(rota_app: TestRota, db: Db) -> None:
    text = make(rota_app, last="polled_at", due="next_at", interval="1h").ddl_sync(notify=True)

    (line,) = (line for line in text.splitlines() if line.startswith("create trigger"))
    assert '"polled_at"' not in line
    assert '"next_at"' not in line
    assert line.endswith('"status", "priority", "created_at" on "public"."feeds"')


@pytest.mark.direct("no LISTEN there")
@pytest.mark.parametrize(
    "written", ["insert into feeds (id) values (2)", "update feeds set status = 'new', polled_at = null"]
)
async def test_with_the_trigger_what_is_written_wakes_an_idle_worker(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    resting = asyncio.Event()

    async def rest(self: PollSource, seconds: float, of: Any = PollSource._rest) -> None:
        resting.set()
        await of(self, 30)  # as after a minute without work

    monkeypatch.setattr(PollSource, "_rest", rest)
    poller = make(rota_app, **LAST, idle="30s")
    db.execute("insert into feeds (id, polled_at) values (1, now())")
    apply(db, await poller.ddl(notify=True))
    worker = asyncio.create_task(rota_app.work())
    await resting.wait()

    polled = fact(rota_app.facts, RowPolled, timeout=10)
    db.execute(written.encode())
    await polled

    rota_app.stop()
    await worker


def test_a_poller_that_does_not_fit_its_table_is_refused(rota_app: TestRota, db: Db) -> None:
    with pytest.raises(ConfigurationError, match="nope"):
        make(rota_app, last="nope", interval="1h").check_sync()


def test_an_app_checks_by_name(rota_app: TestRota, db: Db) -> None:
    make(rota_app, **LAST)

    assert rota_app.pollers.check_sync("fetch").poller == "fetch"
    with pytest.raises(KeyError, match="fetch"):
        rota_app.pollers.check_sync("other")
