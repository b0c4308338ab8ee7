"""Schedules by the beginning of their names: what has it stands together, and nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from tests.jobs.statements import ask
from tests.schedules.rows import Db

from rota.postgres.query import Query
from rota.schedules.store import beyond, lock_rows
from rota.schedules.view import list_schedules
from rota.testing import TestRota

ROWS = 50_000
LAST = chr(0x10FFFF)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@given(st.text(min_size=1, max_size=3), st.text(max_size=3))
def test_what_has_a_prefix_lies_between_it_and_what_is_beyond(prefix: str, other: str) -> None:
    # as PostgreSQL compares what is stored as UTF-8
    low, high, told = (text.encode() for text in (prefix, beyond(prefix), other))

    assert (low <= told < high) == other.startswith(prefix)
    assert low <= (prefix + other).encode() < high


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("a", "b"), ("tenant-7/", "tenant-70"), ("\ud7ff", "\ue000"), (f"a{LAST}{LAST}", "b"), (LAST, LAST * 201)],
)
def test_beyond_a_prefix_is_the_next_text_that_does_not_have_it(prefix: str, expected: str) -> None:
    assert beyond(prefix) == expected


def test_names_are_sorted_by_code_point_and_a_prefix_is_not_a_pattern(rota_app: TestRota) -> None:
    rota_app.task(name="noop")(lambda: None)
    names = ["a%b", "a_b", "aXb", "A-1", "a-1", "ä-1", "a", "b", "日-1", f"a{LAST}"]
    rota_app.schedules.put_many_sync([{"name": name, "task": "noop"} for name in names])

    def listed(**options: Any) -> list[str]:
        return [each.name for each in rota_app.schedules.list_sync(**options)]

    assert listed() == listed(prefix="") == sorted(names)
    assert listed(prefix="a") == ["a", "a%b", "a-1", "aXb", "a_b", f"a{LAST}"]
    assert listed(prefix="a", after="a-1", limit=2) == ["aXb", "a_b"]
    assert [listed(prefix=each) for each in ("a%", "a_", "ä", "日", "c")] == [["a%b"], ["a_b"], ["ä-1"], ["日-1"], []]

    put = rota_app.schedules.put_many_sync([{"name": "a-1", "task": "noop"}], prune_prefix="a")
    assert put.deleted == ("a", "a%b", "aXb", "a_b", f"a{LAST}")
    assert listed() == sorted(["A-1", "a-1", "ä-1", "b", "日-1"])


def test_names_of_schedules_are_sorted_alike_wherever_they_stand(db: Db) -> None:
    """Else no index would do for a join; and the prefix tests say little where the database itself sorts by code point."""
    found = db.execute(
        "select table_name, column_name, collation_name from information_schema.columns "
        "where table_schema = 'rota' and (column_name = 'schedule' and data_type = 'text' "
        "or table_name = 'schedules' and column_name = 'name' or table_name like 'schedule\\_%' "
        "and column_name in ('child', 'parent')) and table_name not like 'history\\_%'"
    ).fetchall()

    assert {f"{table}.{column}" for table, column, _ in found} >= {"jobs.schedule", "schedules.name", "slots.schedule"}
    assert {collation for *_, collation in found} == {"C"}
    assert len(found) == 10


@pytest.mark.by_default("force_generic_plan")
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_what_has_a_prefix_is_found_without_reading_the_rest(db: Db, plan: str) -> None:
    db.execute(
        "insert into rota.schedules (name, task, kind, every) "
        "select 'tenant-' || i %% 1000 || '/' || i, 'noop', 'every', '1d' from generate_series(1, %s) as i",
        [ROWS],
    )
    db.execute("analyze rota.schedules")
    db.execute("select set_config('plan_cache_mode', %s, false)", [plan])
    listing = list_schedules(None, prefix="tenant-77/", state=None, limit=100, after=None)
    page = list_schedules(None, prefix=None, state=None, limit=20, after="tenant-77/")
    locking = lock_rows(["tenant-5/5"], "tenant-77/")

    assert [len(ask(db, query)) for query in (listing, page, locking)] == [50, 20, 51]
    assert pages_as_prepared(db, listing) < 1500  # with what is told of each: some twenty
    assert pages_as_prepared(db, page) < 800
    assert pages_as_prepared(db, locking) < 800


def pages_as_prepared(db: Db, query: Query[Any]) -> int:
    names = list(query.params)
    text = query.statement.sql("rota") % {name: f"${number}" for number, name in enumerate(names, 1)}
    db.execute(f"prepare asked as {text}")  # type: ignore[arg-type]
    values = sql.SQL(", ").join(query.params[name] for name in names)
    plan = db.execute(sql.SQL("explain (analyze, buffers, format json) execute asked ({})").format(values))
    db.execute("deallocate asked")
    (told,) = plan.fetchone() or ([],)
    return int(told[0]["Plan"]["Shared Hit Blocks"] + told[0]["Plan"]["Shared Read Blocks"])
