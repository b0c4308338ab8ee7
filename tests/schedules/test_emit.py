"""Events: whoever listens runs, in the transaction of whoever tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session
from tests.drivers import asyncpg_connection, sqlalchemy_engine

from rota import ConfigurationError, InvalidArguments, Rota
from rota.postgres.notify import schedule_channel
from rota.testing import TestRota

runs: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    runs.clear()

    @rota_app.task
    def ship(order_id: int, *, express: bool = False) -> None:
        runs.append(("ship", {"order_id": order_id, "express": express}))

    @rota_app.task
    def bill(order_id: int) -> None:
        runs.append(("bill", {"order_id": order_id}))

    rota_app.schedules.put_sync("shipping", task=ship, args={"express": True}, on="order.paid")
    rota_app.schedules.put_sync("billing", task=bill, on="order.paid")
    rota_app.schedules.put_sync("other", task=bill, args={"order_id": 0}, on="order.lost")
    return rota_app


async def test_an_event_runs_all_that_listen_with_its_payload_over_their_arguments(app: TestRota) -> None:
    assert await app.emit("order.paid", {"order_id": 7}) == 2
    assert await app.emit("nobody.listens") == 0
    await app.drain()

    assert sorted(runs, key=lambda run: run[0]) == [
        ("bill", {"order_id": 7}),
        ("ship", {"order_id": 7, "express": True}),
    ]
    (run,) = await app.schedules.history("shipping")
    assert (run.cause, run.state) == ("event", "succeeded")
    assert (await app.schedules.get("shipping")).when == "On event 'order.paid'"


def test_sync_code_emits_too(app: TestRota) -> None:
    assert app.emit_sync("order.paid", {"order_id": 7}) == 2
    assert app.drain_sync() == 2


async def test_the_payload_is_kept_by_the_job_alone(app: TestRota, db: psycopg.Connection[Any]) -> None:
    await app.emit("order.lost", {"order_id": 7})
    await app.drain()

    # whoever erases the job must find no copy of it
    assert db.execute("select args from rota.slots").fetchall() == [(None,)]
    assert runs == [("bill", {"order_id": 7})]


async def test_where_there_is_no_database_nobody_listens() -> None:
    app = Rota("postgresql://nobody@127.0.0.1:1/nowhere")

    with app.inline():
        assert await app.emit("order.paid", {"order_id": 7}) == 0
        assert app.emit_sync("order.paid") == 0


async def test_each_event_is_a_run_one_after_another(app: TestRota) -> None:
    for number in range(5):
        await app.emit("order.lost", {"order_id": number})
    await app.drain()

    assert [run["order_id"] for _, run in runs] == [0, 1, 2, 3, 4]


async def test_an_event_in_a_transaction_counts_when_that_commits(app: TestRota, rota_database: str) -> None:
    connection = await psycopg.AsyncConnection.connect(rota_database)
    async with connection:
        assert await app.emit.on(connection)("order.lost", {"order_id": 1}) == 1
        await connection.rollback()
        await app.drain()
        assert runs == []
        await app.emit.on(connection)("order.lost", {"order_id": 2})
        await connection.commit()
    await app.drain()

    assert runs == [("bill", {"order_id": 2})]


async def test_asyncpg_can_carry_an_event(app: TestRota, rota_database: str) -> None:
    async with asyncpg_connection(rota_database) as user, user.transaction():
        assert await app.emit.on(user.native)("order.lost", {"order_id": 3}) == 1
    await app.drain()

    assert runs == [("bill", {"order_id": 3})]


def test_a_session_can_carry_an_event(app: TestRota, rota_database: str) -> None:
    with sqlalchemy_engine(rota_database) as engine, Session(engine) as session:
        assert app.emit_sync.on(session)("order.lost", {"order_id": 4}) == 1
        session.commit()

    assert app.drain_sync() == 1


def test_what_is_paused_or_out_of_its_time_does_not_hear(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.pause_sync("other")
    app.schedules.put_sync(
        "past", task="bill", on="order.lost", args={"order_id": 1}, end_at=datetime(2020, 1, 1, tzinfo=UTC)
    )
    app.schedules.put_sync(
        "future", task="bill", on="order.lost", args={"order_id": 1}, start_at=datetime(2090, 1, 1, tzinfo=UTC)
    )

    assert app.emit_sync("order.lost") == 0
    assert app.schedules.get_sync("past").state == "ended"
    app.schedules.resume_sync("other")
    assert app.emit_sync("order.lost") == 1
    app.advance(timedelta(days=365 * 70))
    assert app.emit_sync("order.lost") == 2


@pytest.mark.direct("it is about notifications, which a pooler does not pass on")
def test_an_event_tells_the_scheduler(app: TestRota, db: psycopg.Connection[Any]) -> None:
    db.execute(f"listen {schedule_channel('rota')}")

    app.emit_sync("order.lost")

    assert len(list(db.notifies(timeout=5, stop_after=1))) == 1


def test_sql_emits_too(app: TestRota, db: psycopg.Connection[Any]) -> None:
    assert db.execute("""select rota.emit('order.paid', '{"order_id": 7}')""").fetchall() == [(2,)]
    assert app.drain_sync() == 2
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no JSON object"):
        db.execute("select rota.emit('order.paid', '7')")


def test_a_payload_that_cannot_be_is_refused(app: TestRota) -> None:
    with pytest.raises(InvalidArguments, match="Event 'order.lost' was not emitted: payload"):
        app.emit_sync("order.lost", {"order_id": object()})
    with pytest.raises(ConfigurationError, match="payload cannot be"):
        app.emit_sync("order.lost", [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="event cannot be ''"):
        app.emit_sync("")
    with pytest.raises(ConfigurationError, match="Rota cannot join the transaction of a"):
        app.emit.on(object())


class Reversed:
    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


async def test_a_codec_keeps_the_payload_too(rota_database: str, db: psycopg.Connection[Any]) -> None:
    seen: list[Any] = []
    app = Rota(rota_database, codec=Reversed())
    app.task(name="note")(lambda a, b: seen.append((a, b)))
    async with app:
        await app.schedules.put("s", task="note", args={"a": 1}, on="e")
        assert await app.emit("e", {"b": 2}) == 1
        with psycopg.connect(rota_database) as connection:
            assert app.emit_sync.on(connection)("e", {"b": 3}) == 1
        assert db.execute("select bool_and(args ? 'rota:coded') from rota.slots").fetchall() == [(True,)]
        await app.work(drain=True)

    assert seen == [(1, 2), (1, 3)]
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="a codec keeps the arguments"):
        db.execute("select rota.emit('e')")


@pytest.mark.one_server
def test_with_a_codec_who_may_only_enqueue_is_told_what_is_missing(rota_app: TestRota, rota_database: str) -> None:
    rota_app.migrate_sync(roles=True)
    app = Rota(rota_database, codec=Reversed())
    app.task(name="note")(lambda a=0: None)
    with app, psycopg.connect(rota_database) as connection:
        app.schedules.put_sync("s", task="note", on="e")
        connection.execute("set role rota_enqueue")
        with pytest.raises(
            ConfigurationError, match="'e' was not emitted: this app has a codec, .* role 'rota_enqueue'"
        ):
            app.emit_sync.on(connection)("e", {"a": 1})
        # and the transaction goes on
        connection.execute("reset role")
        connection.execute("grant select (name, args, event) on rota.schedules to rota_enqueue")
        connection.execute("set role rota_enqueue")
        assert app.emit_sync.on(connection)("e", {"a": 1}) == 1
        connection.rollback()
