"""Events in tables of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from tests.events.reading import Reader, read_to_end

from rota import ConfigurationError, EventTable, InvalidArguments, UndecodableEvent
from rota.events.table import ddl, find_ddl
from rota.testing.app import TestRota

Db = psycopg.Connection[Any]

MAPPED = {"position": "id", "xid": "txid", "data": "payload", "stream": "order", "type": "Kind"}


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create schema shop")
        connection.execute(
            """
            create table shop."My events" (
                id bigint generated always as identity primary key,
                "order" text,
                "Kind" text,
                payload jsonb not null default '{}',
                said_at timestamptz not null default '2026-03-04 05:06:07+00'
            )
            """
        )
        yield connection


@pytest.fixture
def adopted(db: Db) -> Db:
    """The same with two rows of history, and then the column."""
    insert(db, "Old one")
    insert(db, "Old two")
    for each in ddl("shop.My events", position="id", xid="txid"):
        db.execute(each)
    return db


def insert(db: Db, kind: str, order: str = "7", payload: str = "{}") -> None:
    db.execute('insert into shop."My events" ("order", "Kind", payload) values (%s, %s, %s)', (order, kind, payload))


def table_of(app: TestRota, **changes: Any) -> EventTable:
    return app.event_table("shop.My events", **{**MAPPED, **changes})


def test_rows_older_than_the_column_are_history_and_come_first(rota_app: TestRota, adopted: Db) -> None:
    table = table_of(rota_app, created_at="said_at")
    insert(adopted, "New one", payload='{"n": 1}')
    insert(adopted, "New two")

    events = read_to_end(table, 4)

    assert [event.type for event in events] == ["Old one", "Old two", "New one", "New two"]
    assert [event.order_xid == 0 for event in events] == [True, True, False, False]
    assert [event.position for event in events] == [1, 2, 3, 4]
    assert events[2].data == {"n": 1}
    assert (events[2].stream, events[2].version, events[2].metadata) == ("7", None, None)
    assert events[2].created_at == datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_reader_goes_on_from_history_to_what_came_after(limit: int, rota_app: TestRota, adopted: Db) -> None:
    table = table_of(rota_app)
    insert(adopted, "New one")
    insert(adopted, "New two")
    read_to_end(table, 4)
    reader = Reader(table)

    while reader.read(limit=limit):
        pass

    assert [event.type for event in reader.seen] == ["Old one", "Old two", "New one", "New two"]


def test_history_is_not_read_again_after_a_row_with_a_lower_position(rota_app: TestRota, adopted: Db) -> None:
    reader = Reader(table_of(rota_app))
    adopted.execute('insert into shop."My events" (id, "Kind") overriding system value values (0, %s)', ("New",))

    reader.read_until(3)

    assert [event.type for event in reader.seen] == ["Old one", "Old two", "New"]
    assert reader.read() == []


def test_what_is_committed_late_with_a_lower_position_is_seen_in_its_place_in_a_table_too(
    rota_app: TestRota, adopted: Db, rota_database: str
) -> None:
    reader = Reader(table_of(rota_app))

    with psycopg.connect(rota_database) as early, psycopg.connect(rota_database) as late:
        insert(early, "Early")
        insert(late, "Late")
        late.commit()
        meanwhile = reader.read()
        early.commit()

    assert [event.type for event in meanwhile] == ["Old one", "Old two"]
    assert [event.type for event in reader.read_until(4)] == ["Old one", "Old two", "Early", "Late"]
    assert reader.read() == []


async def test_a_stream_is_read_in_order(rota_app: TestRota, adopted: Db) -> None:
    insert(adopted, "New one")
    insert(adopted, "Elsewhere", order="8")

    table = table_of(rota_app)

    assert [event.type for event in await table.read("7")] == ["Old one", "Old two", "New one"]
    assert [event.type for event in await table.read("7", limit=2)] == ["Old one", "Old two"]
    assert [event.type for event in table.read_sync("8")] == ["Elsewhere"]
    with pytest.raises(InvalidArguments, match="it has no versions"):
        await table.read("7", after=1)
    with pytest.raises(ConfigurationError, match="has no streams to read one of"):
        await table_of(rota_app, stream=None).read("7")


async def test_all_columns_can_be_mapped_whatever_their_types(rota_app: TestRota, db: Db) -> None:
    db.execute(
        """
        create domain public.whole as bigint;
        create table public.log (
            seq public.whole primary key, tx xid8 default pg_current_xact_id(), entity uuid, n integer, kind integer,
            body text, meta json, v smallint, at timestamptz default '2026-03-04 05:06:07+00'
        );
        insert into public.log (seq, entity, n, kind, body, meta, v)
        values
            (20, '00000000-0000-0000-0000-000000000007', 1, 4, ' {"a": 1}', '{"u": 2}', 1),
            (10, '00000000-0000-0000-0000-000000000007', 2, 5, '[2]', null, 1)
        """
    )
    table = rota_app.event_table(
        "log",
        position="seq", xid="tx", data="body", stream="entity", type="kind", metadata="meta", version="n", created_at="at", shape="v",
    )  # fmt: skip

    first, second = await table.read("00000000-0000-0000-0000-000000000007")

    assert (first.position, first.version, first.type, first.data, first.metadata) == (20, 1, "4", {"a": 1}, {"u": 2})
    assert (second.position, second.version, second.type, second.data, second.metadata) == (10, 2, "5", [2], None)
    assert await table.read("00000000-0000-0000-0000-000000000007", after=1) == [second]
    assert [event.position for event in read_to_end(table, 2)] == [10, 20]


async def test_events_of_a_table_have_types_as_well(rota_app: TestRota, adopted: Db) -> None:
    table = table_of(rota_app)

    @table.event("Paid")
    @dataclass
    class Paid:
        amount: int

    insert(adopted, "Paid", order="9", payload='{"amount": 7}')
    insert(adopted, "Paid", order="10", payload='{"sum": 7}')

    assert [event.data for event in await table.read("9")] == [Paid(7)]
    with pytest.raises(
        UndecodableEvent, match="'shop.My events', of type 'Paid', cannot be decoded: data.sum is unknown"
    ):
        await table.read("10")


async def test_columns_that_do_not_fit_are_told_of_all_at_once_with_those_there_are(rota_app: TestRota, db: Db) -> None:
    table = table_of(rota_app, stream="ordre", position="payload", created_at="Kind")

    with pytest.raises(ConfigurationError) as caught:
        await table.check()

    assert str(caught.value) == (
        "Events cannot be read from 'shop.My events': position is column 'payload', which is jsonb, and must be a whole number that "
        "grows: bigint; xid is column 'txid', which does not exist (`rota projections ddl shop.My events` prints what adds it); "
        "stream is column 'ordre', which does not exist; created_at is column 'Kind', which is text, and must be a point in time: "
        "timestamptz. The table has id (bigint), order (text), Kind (text), payload (jsonb), said_at (timestamp with time zone). "
        "Names are as in the catalog: upper and lower case are told apart."
    )
    for reading in (table.read_all_sync, table.check_sync, lambda: table.read_sync("7")):
        with pytest.raises(ConfigurationError, match="Events cannot be read from 'shop.My events': position is"):
            reading()


async def test_a_table_that_is_not_there_is_told_of(rota_app: TestRota, db: Db) -> None:
    with pytest.raises(ConfigurationError, match='there is no table "My events" in the schema "public"'):
        await rota_app.event_table("My events", position="id", xid="txid", data="payload").read_all()


@pytest.mark.parametrize("table", ["", "a.b.c" * 20, 7, ("a", "b", "c")])
def test_what_cannot_name_a_table_is_refused_at_once(table: Any, rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError):
        rota_app.event_table(table, position="id", xid="txid", data="payload")
    with pytest.raises(ConfigurationError, match="without data=..., the name of a column"):
        rota_app.event_table("t", position="id", xid="txid", data=None)  # type: ignore[arg-type]


async def test_names_are_quoted_and_never_sql(rota_app: TestRota, db: Db) -> None:
    db.execute(
        """
        create table public."a.b""; drop table x; --%s" (
            "p ""%(x)s" bigint, "x{schema}" xid8 default pg_current_xact_id(), "d;" jsonb
        );
        insert into public."a.b""; drop table x; --%s" values (1, default, '{"a": 1}')
        """
    )
    table = rota_app.event_table(
        ("public", 'a.b"; drop table x; --%s'), position='p "%(x)s', xid="x{schema}", data="d;"
    )

    assert [event.data for event in read_to_end(table, 1)] == [{"a": 1}]


def test_the_column_is_added_without_rewriting_the_table(db: Db) -> None:
    insert(db, "Old")
    file = """select pg_relation_filenode('shop."My events"')"""
    before = db.execute(file).fetchone()

    for each in ddl("shop.My events", position="id", xid="txid"):
        db.execute(each)
    insert(db, "New")

    assert db.execute(file).fetchone() == before
    assert db.execute('select "Kind", txid is null from shop."My events" order by id').fetchall() == [
        ("Old", True),
        ("New", False),
    ]
    assert db.execute(
        "select indexdef from pg_indexes where tablename = 'My events' and indexdef like '%txid%'"
    ).fetchall() == [('CREATE INDEX "My events_txid_id_idx" ON shop."My events" USING btree (txid, id)',)]


def test_what_adds_the_column_is_made_from_the_catalog(rota_app: TestRota, db: Db) -> None:
    statements = rota_app.database.run_steps_sync(find_ddl("shop.My events"))

    assert statements == [
        "set lock_timeout = '5s';",
        'alter table "shop"."My events" add column "xid" xid8, alter column "xid" set default pg_current_xact_id();',
        "reset lock_timeout;",
        'create index concurrently on "shop"."My events" ("xid", "id");',
    ]
    for each in statements:
        db.execute(each)
    assert rota_app.database.run_steps_sync(find_ddl("shop.My events")) == [statements[-1]]


def test_a_partitioned_table_gets_its_index_without_concurrently(rota_app: TestRota, db: Db) -> None:
    db.execute(
        """
        create table public.parts (id bigint, day date, payload jsonb) partition by range (day);
        create table public.part partition of public.parts default
        """
    )

    statements = rota_app.database.run_steps_sync(find_ddl("parts", position="id", xid="txid"))
    for each in statements:
        db.execute(each)
    db.execute("insert into public.parts values (1, now(), '7')")

    assert statements[-1] == 'create index on "public"."parts" ("txid", "id");'
    table = rota_app.event_table("parts", position="id", xid="txid", data="payload")
    assert [event.data for event in read_to_end(table, 1)] == [7]


def test_a_position_is_asked_for_where_no_column_is_the_key(rota_app: TestRota, db: Db) -> None:
    db.execute("create table public.keyless (n bigint, body jsonb, xid text)")

    with pytest.raises(ConfigurationError, match=r"say which column is. The table has n \(bigint\), body"):
        rota_app.database.run_steps_sync(find_ddl("keyless"))
    with pytest.raises(
        ConfigurationError, match="xid is column 'xid', which is text, and must be the id of the transaction"
    ):
        rota_app.database.run_steps_sync(find_ddl("keyless", position="n"))
    with pytest.raises(ConfigurationError, match='there is no table "missing" in the schema "public"'):
        rota_app.database.run_steps_sync(find_ddl("missing"))


def test_a_table_says_what_projections_read_it_by(rota_app: TestRota) -> None:
    source = table_of(rota_app).source

    assert (source.name, source.table, source.log) == ("shop.My events", '"shop"."My events"', None)
    assert (source.position, source.order_xid, source.stream, source.type) == ('"id"', '"txid"', '"order"', '"Kind"')
    assert (source.metadata, source.version, source.created_at, source.shape) == (None, None, None, None)


# what is no table

COLUMNS = 'id bigint, txid xid8, payload jsonb, "order" text, "Kind" text'
FOREIGN = f"""
    create foreign data wrapper nothing;
    create server elsewhere foreign data wrapper nothing;
    create foreign table shop.theirs ({COLUMNS}) server elsewhere;
    create materialized view shop.of_yesterday as select * from shop."My events";
    create view shop.of_theirs as select * from shop.theirs where id > 0;
    create view shop.of_both as select id, txid from shop.of_theirs union all select id, txid from shop.of_yesterday;
    create table shop.parts ({COLUMNS}) partition by range (id);
    create foreign table shop.part partition of shop.parts for values from (0) to (10) server elsewhere
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("theirs", "shop.theirs is a foreign table"),
        ("of_yesterday", "shop.of_yesterday is a materialized view"),
        ("of_theirs", "shop.theirs is a foreign table"),
        ("of_both", "shop.theirs is a foreign table and shop.of_yesterday is a materialized view"),
        ("parts", "shop.part is a foreign table"),
    ],
)
def test_what_has_rows_of_another_moment_or_server_is_refused(
    name: str, told: str, rota_app: TestRota, adopted: Db
) -> None:
    adopted.execute(FOREIGN)

    with pytest.raises(ConfigurationError, match=f"{told}. Its rows are those of another moment"):
        rota_app.event_table(f"shop.{name}", **MAPPED).check_sync()


def test_a_view_of_a_table_is_read_like_the_table_and_can_be_given_no_column(rota_app: TestRota, adopted: Db) -> None:
    adopted.execute('create view shop.happened as select * from shop."My events" where "Kind" <> \'Secret\'')
    insert(adopted, "Secret")
    insert(adopted, "New")

    events = read_to_end(rota_app.event_table("shop.happened", **MAPPED), 3)

    assert [event.type for event in events] == ["Old one", "Old two", "New"]
    with pytest.raises(ConfigurationError, match="is a view"):
        rota_app.database.run_steps_sync(find_ddl("shop.happened", position="id"))
