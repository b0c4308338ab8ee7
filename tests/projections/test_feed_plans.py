"""What looks read of a long table: no more rows than they are worth, though PostgreSQL knows nothing of the table yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.projections.logs import SOURCE, Db, append_many

from rota.postgres.query import Query
from rota.projections.checkpoint import declare_projection
from rota.projections.feed import Feed, Pair
from rota.projections.projecting import _LOOKING
from rota.testing import TestRota

NOTHING = dict.fromkeys(("stream", "type", "metadata", "version", "created_at", "shape", "log"))
TABLE = replace(SOURCE, table='"public"."happened"', position='"id"', order_xid='"txid"', data='"body"', **NOTHING)


@pytest.fixture(autouse=True)
def _planned_as_by_a_worker(rota_app: TestRota, db: Db) -> None:
    rota_app.database.run_sync(declare_projection("totals", 1, {}))
    for name, value in _LOOKING.items():
        db.execute(f"set {name} = '{value}'")


def test_of_history_a_look_reads_its_page_and_the_last_event_is_found_at_once(db: Db) -> None:
    db.execute("create table public.happened (id bigint primary key, txid xid8, body jsonb not null)")
    db.execute("create index on public.happened (txid, id)")
    db.execute("alter table public.happened set (autovacuum_enabled = off)")
    db.execute("insert into public.happened select n, null, '{}' from generate_series(1, 3000) as n")
    db.execute("insert into public.happened select n, '3', '{}' from generate_series(3001, 4000) as n")
    feed = Feed("totals", 1, TABLE)

    assert most_read(db, feed.look(50), "happened") <= 50
    assert most_read(db, feed.last(), "happened") <= 1
    assert most_read(db, feed.first(), "happened") <= 1


def test_one_event_of_a_log_is_found_by_its_key(db: Db) -> None:
    append_many(db, 3000)

    query = Feed("totals", 1, SOURCE).read(Pair(5, 2000))

    assert "order_xid" in "".join(node.get("Index Cond", "") for node in nodes(db, query))


def most_read(db: Db, query: Query[Any], table: str) -> float:
    """The most rows that one scan of the table goes through."""
    scans = [node for node in nodes(db, query) if node.get("Relation Name") == table]
    return float(
        max((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)
    )


def nodes(db: Db, query: Query[Any]) -> list[dict[str, Any]]:
    text, names = query.statement.numbered("rota")
    cursor = psycopg.RawCursor(db)
    cursor.execute(b"explain (analyze, format json) " + text, [query.params[name] for name in names])
    (plans,) = cursor.fetchone() or ([],)
    return list(_walked(plans[0]["Plan"]))


def _walked(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for each in node.get("Plans", []):
        yield from _walked(each)
