"""Keys too long for the index of claims: their rows are told of and left out, and hold up no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.pollers.feeds import Db, one

from rota import NotPossible, Rota
from rota.facts import PollerHindered, RowsLeftOut
from rota.pollers.poller import Poller
from rota.testing import TestRota, until

POLLED = "select count(*) from t where polled_at is not null"


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def text(length: int) -> str:
    """Text that cannot be packed."""
    return "".join(chr(random.randrange(33, 127)) for _ in range(length))


def polling(app: Rota, **options: Any) -> Poller[..., Any]:
    async def poll(row: dict[str, Any]) -> None: ...

    return app.poller(
        table="t", key="k", last="polled_at", interval="1h", **{"name": "a poller of long keys", **options}
    )(poll)


@pytest.mark.parametrize("kind", ["text", "bytea"])
async def test_a_row_whose_key_is_too_long_is_told_of_and_holds_up_no_other(
    rota_app: TestRota, db: Db, kind: str
) -> None:
    long = text(2690) if kind == "text" else random.randbytes(2600)
    db.execute(f"create table t (k {kind} primary key, polled_at timestamptz)".encode())
    for key in (long, long[:5]):
        db.execute("insert into t values (%s, null)", [key])
    poll = polling(rota_app)

    with rota_app.facts.recorded(RowsLeftOut, PollerHindered) as told:
        stats = await poll.run_once()

    assert (stats.claimed, stats.completed, stats.errors) == (1, 1, [])
    (left_out,) = told
    assert isinstance(left_out, RowsLeftOut)
    found = db.execute(left_out.find.encode()).fetchall()
    assert found == [(long,)]
    with pytest.raises(NotPossible, match="cannot poll row .*: its key is too long for a claim"):
        await poll.poll(long)


@pytest.mark.long
@pytest.mark.parametrize("name", ["p", "p" * 200, "ü" * 200])
async def test_every_row_is_either_polled_or_left_out(rota_app: TestRota, db: Db, name: str) -> None:
    db.execute("create table t (k text primary key, polled_at timestamptz)")
    lengths = range(2100, 2690, 3)
    for length in lengths:
        db.execute("insert into t values (%s, null)", [text(length)])
    poll = polling(rota_app, name=name)

    with rota_app.facts.recorded(RowsLeftOut, PollerHindered) as told:
        stats = await poll.run_once(max_rows=1000)

    (left_out,) = told
    assert isinstance(left_out, RowsLeftOut)
    assert stats.completed + len(db.execute(left_out.find.encode()).fetchall()) == len(lengths)
    assert one(db, "select bool_and(polled_at is not null) from t where length(k) < 2600 - %s", len(name.encode()))


async def test_a_worker_goes_on_with_the_others_and_says_it_once(rota_app: TestRota, db: Db) -> None:
    db.execute("create table t (k text primary key, polled_at timestamptz)")
    db.execute("insert into t values (%s, null), ('a', null)", [text(2690)])
    polling(rota_app, idle=0.1)

    with rota_app.facts.recorded(RowsLeftOut, PollerHindered) as told:
        working = asyncio.create_task(rota_app.work())
        await until(lambda: one(db, POLLED) == 1, what="the other is polled")
        db.execute("insert into t values (%s, null), ('b', null)", [text(2690)])
        await until(lambda: one(db, POLLED) == 2, what="and one that comes later")
        rota_app.stop()
        await working

    assert [type(fact) for fact in told] == [RowsLeftOut]
