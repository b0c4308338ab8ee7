"""Statements on async connections of ours: large ones, those that are cut short, and those whose connection is closed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from rota.postgres.connection import Connector, OwnConnection
from rota.postgres.dsn import Dsn
from rota.testing import until


@pytest.fixture
async def connection(rota_database: str) -> AsyncIterator[OwnConnection]:
    async with await Connector(Dsn(rota_database), "test").connect() as connection:
        connection.prompt = False
        yield connection


async def value(connection: OwnConnection, sql: str, *params: object) -> object:
    row = await (await connection.execute(sql, params)).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return row[0]


async def runs(connection: OwnConnection, observer: OwnConnection) -> bool:
    found = "select state = 'active' and query like %s from pg_stat_activity where pid = %s"
    return bool(await value(observer, found, "%pg_sleep%", connection.info.backend_pid))


async def test_what_fits_no_buffer_is_written_and_read_piece_by_piece(connection: OwnConnection) -> None:
    text = "ab" * 10_000_000

    assert await value(connection, "select %s::text || 'c'", text) == text + "c"


@pytest.mark.parametrize("prompt", [False, True])
async def test_the_loop_goes_on_while_a_statement_runs(
    connection: OwnConnection, rota_database: str, prompt: bool
) -> None:
    connection.prompt = prompt
    waits = "select exists (select from pg_locks where pid = %s and not granted)"
    async with await Connector(Dsn(rota_database), "test").connect() as other:
        await value(other, "select pg_advisory_lock(1)")
        slow = asyncio.create_task(value(connection, "select 1 from pg_advisory_xact_lock(1)"))

        await until(lambda: value(other, waits, connection.info.backend_pid), what="the statement waits")

        assert not slow.done()
        await value(other, "select pg_advisory_unlock(1)")
        assert await slow == 1


async def test_an_error_of_the_server_reaches_the_caller_and_the_connection_goes_on(connection: OwnConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await value(connection, "select 1 / %s", 0)

    assert await value(connection, "select 2") == 2


async def test_one_that_is_cancelled_is_ended_at_the_server_and_the_connection_can_be_used(
    connection: OwnConnection, rota_database: str
) -> None:
    async with await Connector(Dsn(rota_database), "test").connect() as observer:
        sleeping = asyncio.create_task(value(connection, "select 1 from pg_sleep(600)"))
        await until(lambda: runs(connection, observer), what="the statement runs")

        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping

        assert await value(connection, "select 3") == 3


async def test_one_that_is_cancelled_takes_a_prompt_connection_with_it(
    connection: OwnConnection, rota_database: str
) -> None:
    async with await Connector(Dsn(rota_database), "test").connect() as observer:
        connection.prompt = True
        sleeping = asyncio.create_task(value(connection, "select 1 from pg_sleep(600)"))
        await until(lambda: runs(connection, observer), what="the statement runs")

        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping

        assert connection.closed


async def test_who_waits_is_told_when_the_connection_is_closed_by_another(
    connection: OwnConnection, rota_database: str
) -> None:
    async with await Connector(Dsn(rota_database), "test").connect() as observer:
        sleeping = asyncio.create_task(value(connection, "select 1 from pg_sleep(600)"))
        await until(lambda: runs(connection, observer), what="the statement runs")

        connection.pgconn.finish()

        with pytest.raises(psycopg.OperationalError, match="closed"):
            await asyncio.wait_for(sleeping, 20)


async def test_who_waits_is_told_when_the_server_ends_the_session(
    connection: OwnConnection, rota_database: str
) -> None:
    async with await Connector(Dsn(rota_database), "test").connect() as observer:
        sleeping = asyncio.create_task(value(connection, "select 1 from pg_sleep(600)"))
        await until(lambda: runs(connection, observer), what="the statement runs")

        await value(observer, "select pg_terminate_backend(%s)", connection.info.backend_pid)

        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(sleeping, 20)
