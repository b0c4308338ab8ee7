"""Keys as people type them become what the claims have, whatever the column's type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from rota import ConfigurationError, NotPossible
from rota.pollers.keys import read_keys_sync
from rota.testing import TestRota

pytestmark = pytest.mark.long

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    ("kind", "value", "typed"),
    [
        ("bigint", "9007199254740993", "9007199254740993"),
        ("numeric", "1.10", "1.10"),
        ("boolean", "true", "yes"),
        ("text", "5", "5"),
        ("text", '["5"]', '["5"]'),
        ("text", "50% {key} it's", "50% {key} it's"),
        ("uuid", "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "6BA7B8109DAD41D180B400C04FD430C8"),
        ("date", "2030-01-31", "2030-1-31"),
        ("timestamp", "2030-01-31 09:00", "2030-01-31T09:00"),
        ("timestamptz", "2030-01-31 09:00Z", "2030-01-31 09:00"),
        ("timestamptz", "2030-01-31 09:00Z", "2030-01-31 11:00+02"),
        ("bytea", "\\x00ff", "00ff"),
        ("inet", "10.0.0.1", "10.0.0.1/32"),
    ],
)
def test_a_typed_key_is_that_of_the_row(rota_app: TestRota, db: Db, kind: str, value: str, typed: str) -> None:
    db.execute(f"create table t (k {kind} primary key, polled_at timestamptz)".encode())
    db.execute(f"insert into t values (%s::text::{kind})".encode(), [value])

    @rota_app.poller(table="t", key="k", last="polled_at", interval="1h", name="p")
    async def poll(row: dict[str, Any]) -> None: ...

    (row,) = poll.preview_sync()
    assert read_keys_sync(rota_app.database, "p", [typed], poll.definition) == [row.key]


def test_without_the_app_it_goes_by_what_was_declared(rota_app: TestRota, db: Db) -> None:
    db.execute("create table e (k bigint primary key, polled_at timestamptz)")
    rota_app.poller(table="e", key="k", last="polled_at", interval="1h", name="p")(print).run_once_sync()

    assert read_keys_sync(rota_app.database, "p", ["5", "6"]) == [[5], [6]]
    with pytest.raises(NotPossible, match="no poller 'q'"):
        read_keys_sync(rota_app.database, "q", ["5"])


@pytest.mark.parametrize(
    ("schema", "table"),
    [("my.schema", "t"), ("my.schema", "t.u"), ("public", "t.u"), (".", "."), ('a"b.c', "Ü.%s")],
)
def test_a_schema_or_table_whose_name_holds_a_dot_is_found_by_what_was_declared(
    rota_app: TestRota, db: Db, schema: str, table: str
) -> None:
    db.execute(sql.SQL("create schema if not exists {}").format(sql.Identifier(schema)))
    name = sql.Identifier(schema, table)
    db.execute(sql.SQL("create table {} (k uuid primary key, polled_at timestamptz)").format(name))
    db.execute(sql.SQL("insert into {} values ('6ba7b810-9dad-41d1-80b4-00c04fd430c8')").format(name))
    seen: list[Any] = []
    poll = rota_app.poller(table=(schema, table), key="k", last="polled_at", interval="1h", name="p")(seen.append)
    assert poll.run_once_sync().completed == 1

    (key,) = read_keys_sync(rota_app.database, "p", ["6BA7B8109DAD41D180B400C04FD430C8"])

    assert key == ["6ba7b810-9dad-41d1-80b4-00c04fd430c8"]
    assert poll.poll_sync(*key).completed == 1


def test_a_table_that_has_lost_a_column_of_its_key_is_told_of(rota_app: TestRota, db: Db) -> None:
    db.execute("create table e (k bigint primary key, polled_at timestamptz)")
    rota_app.poller(table="e", key="k", last="polled_at", interval="1h", name="p")(print).run_once_sync()
    db.execute("alter table e rename k to id")

    with pytest.raises(ConfigurationError, match="'5' is no key of poller 'p'"):
        read_keys_sync(rota_app.database, "p", ["5"])
