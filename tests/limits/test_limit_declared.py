"""What `Limit(...)` takes, and what of it ends up in the database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.limits.test_lines import working

from rota import ConfigurationError, InvalidArguments, Limit
from rota.jobs.enqueue import digest
from rota.jobs.rounds import Rounds
from rota.postgres.keys import lock_key
from rota.testing import TestRota, until


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"running": 0}, "running is 0"),
        ({"running": -1}, "running is -1"),
        ({"running": True}, "running is True"),
        ({"running": 1.5}, "running is 1.5"),
        ({"running": 2**31}, "running is 2147483648"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "0/1s"}, "rate"),
        ({"rate": 5}, "rate is 5"),
        ({"running": 1, "by": ""}, "by is ''"),
        ({"running": 1, "by": 7}, "by is 7"),
        ({"running": 1, "retries": "never"}, "retries is 'never'"),
        ({}, "it says nothing"),
    ],
)
def test_a_limit_that_cannot_hold_is_refused_where_it_is_declared_with_the_field_named(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Limit(**options)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Limit(running=1, by="order"), "order"),
        (Limit(running=1, by=lambda order: order), "order"),
        (Limit(running=1, by=str), "cannot be called with arguments by their names"),
        (Limit(running=1, by=lambda parcel, /: parcel), "it takes parcel by position only"),
        (Limit(running=1, by=lambda *parcels: parcels), r"it takes *parcels by position only"),
        ("1", "limit cannot be '1'"),
        (True, "limit cannot be True"),
        (0, "running is 0"),
    ],
)
def test_a_key_of_what_the_task_does_not_have_is_refused_where_it_is_declared(
    rota_app: TestRota, limit: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:

        @rota_app.task(limit=limit)
        async def ship(parcel: int) -> None: ...

    assert said in str(refused.value)


@pytest.mark.parametrize("key", [None, object(), lambda: 1], ids=["none", "object", "function"])
async def test_a_call_whose_key_is_no_text_is_refused_and_nothing_is_stored(rota_app: TestRota, key: Any) -> None:
    @rota_app.task(limit=Limit(running=1, by=lambda order: key))
    async def ship(order: int) -> None: ...

    with pytest.raises(InvalidArguments, match="limit key"):
        await ship.enqueue(7)
    assert await rota_app.jobs.list() == []


@pytest.mark.parametrize("key", [object(), lambda: 1, [object()]], ids=["object", "function", "list of objects"])
def test_a_given_key_that_is_no_text_is_refused_where_it_is_given(rota_app: TestRota, key: Any) -> None:
    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None: ...

    with pytest.raises(ConfigurationError, match="key cannot be"):
        ship.using(key=key)


async def test_the_key_is_what_the_limit_is_by_unless_one_is_given(rota_app: TestRota) -> None:
    @rota_app.task(limit=Limit(running=1, by=lambda order: f"order-{order}"))
    async def ship(order: int, note: str = "") -> None: ...

    jobs = await rota_app.enqueue_many([ship.bind(1), ship.bind(1, note="x"), ship.using(key="other").bind(1)])
    long = await rota_app.enqueue_many([ship.using(key="a" * 500).bind(1)])

    assert [job.key for job in jobs] == ["order-1", "order-1", "other"]
    assert {job.state for job in (*jobs, *long)} == {"blocked"}


@pytest.mark.parametrize("order", ["ü 7", "", "ü" * 500, "ü" * 501], ids=["short", "empty", "longest", "longer"])
async def test_python_and_sql_find_the_same_line(rota_app: TestRota, db: psycopg.Connection[Any], order: str) -> None:
    @rota_app.task(name="ship", limit=Limit(running=1, by="order"))
    async def ship(order: str) -> None: ...

    await rota_app.drain()  # a worker writes down what tasks declare
    job = await ship.enqueue(order)
    db.execute("select rota.enqueue('ship', jsonb_build_object('order', %s::text))", [order])
    db.execute("select rota.enqueue('ship', '{\"order\": \"other\"}', key => %s)", [order])
    # as it comes from a schedule, or from whoever knows of no limit, when a worker has met it
    db.execute(
        "insert into rota.jobs (task, args, state) values ('ship', %s, 'blocked')", [json.dumps({"order": order})]
    )
    db.execute("select rota.join_lines(10)")

    lines = db.execute("select line, count(*) from rota.jobs group by line").fetchall()
    assert lines == [(digest("ship", job.key or ""), 4)]


async def test_a_key_of_any_length_has_a_line(rota_app: TestRota) -> None:
    @rota_app.task(limit=Limit(running=1, by="path"))
    async def read(path: str) -> None: ...

    keys = [(await read.enqueue(path)).key for path in ("x" * 10_000, "x" * 10_001, "")]

    assert len(set(keys)) == 3
    assert await rota_app.drain() == 3


@pytest.mark.parametrize("key", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
async def test_a_key_that_postgresql_cannot_hold_has_a_line(rota_app: TestRota, key: str) -> None:
    @rota_app.task(limit=Limit(running=1, by=lambda: key))
    async def read() -> None: ...

    jobs = await rota_app.enqueue_many([read.bind(), read.bind()])

    assert jobs[0].key == jobs[1].key
    assert await rota_app.drain() == 2


async def test_a_limit_holds_before_all_lines_have_followed_and_they_follow_apart(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(name="a", limit=Limit(running=3, by="n"))
    async def work(n: int) -> None: ...

    await rota_app.drain()
    await rota_app.enqueue_many([work.bind(n) for n in range(2)])
    rota_app.tasks._tasks.clear()

    @rota_app.task(name="a", limit=Limit(running=2, by="n"))
    async def same(n: int) -> None: ...

    def declared() -> list[tuple[Any, ...]]:
        return db.execute("select running, declared_at = '-infinity' from rota.limits").fetchall()

    with psycopg.connect(rota_app.settings.dsn.conninfo) as someone:  # type: ignore[union-attr]
        someone.execute("select from rota.lines for update")
        draining = asyncio.create_task(rota_app.drain())
        await until(lambda: declared() == [(2, True)], what="the rule is there, and lines follow")
    assert await draining == 2
    assert declared() == [(2, False)]


async def test_a_worker_mends_lines_that_nobody_else_does(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task(name="a", limit=1)
    async def work() -> None: ...

    await rota_app.drain()
    await work.enqueue()
    db.execute("update rota.lines set ready_at = null")  # as if it were full

    async with working(rota_app):
        await until(lambda: db.execute("select from rota.jobs").fetchall() == [], what="it has run")


async def test_a_worker_that_found_the_upkeep_taken_comes_again_soon(
    rota_app: TestRota, db: psycopg.Connection[Any], direct_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is at it may be a worker that was just cut off: nothing follows its upkeep."""
    was_taken, upkeep = asyncio.Event(), Rounds._upkeep

    async def noted(rounds: Rounds, key: int, *, counts: bool) -> Any:
        done = await upkeep(rounds, key, counts=counts)
        if done is None:
            was_taken.set()
        return done

    monkeypatch.setattr(Rounds, "_upkeep", noted)
    monkeypatch.setattr("rota.jobs.rounds._FIRST_COUNT_SECONDS", (600.0, 600.0))  # which would be the next round

    @rota_app.task(name="a", limit=1)
    async def work() -> None: ...

    await rota_app.drain()
    await work.enqueue()
    db.execute("update rota.lines set ready_at = null")

    # a pooler could give the session that has the lock to the worker, for whom it would be free
    with psycopg.connect(direct_database, autocommit=True) as other:
        other.execute("select pg_advisory_lock(%s)", [lock_key("rota", "upkeep", "history")])
        async with working(rota_app):
            await was_taken.wait()
            other.close()
            await until(lambda: db.execute("select from rota.jobs").fetchall() == [], timeout=20, what="it has run")


async def test_what_a_worker_declares_replaces_what_was_and_is_lifted_when_nobody_has_it(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    def declared() -> list[tuple[Any, ...]]:
        return db.execute("select task, running, rate_count, rate_seconds, by_key, hold from rota.limits").fetchall()

    @rota_app.task(name="a", limit=Limit(running=3, rate="100/1m"))
    async def first() -> None: ...

    await rota_app.drain()
    assert declared() == [("a", 3, 100, 60.0, False, False)]

    rota_app.tasks._tasks.clear()

    @rota_app.task(name="a", limit=Limit(running=1, by="n", retries="hold_line"))
    async def second(n: int) -> None: ...

    await rota_app.drain()
    assert declared() == [("a", 1, None, None, True, True)]

    rota_app.tasks._tasks.clear()

    @rota_app.task(name="a")
    async def third() -> None: ...

    db.execute(
        "insert into rota.members (id, name, host, pid, release, expires_at, work) "
        "values (gen_random_uuid(), 'm', 'h', 1, '0', now() + interval '1 hour', '{\"limited\": [\"a\"]}')"
    )
    await rota_app.drain()
    assert declared() == [("a", 1, None, None, True, True)]  # someone else goes by it

    db.execute("update rota.members set ended_at = now(), end_reason = 'left' where name = 'm'")
    await rota_app.drain()
    assert declared() == []
