"""The network misbehaves as told, and behaves again when healed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import AsyncConnection

from rota.testing import TcpProxy, until, until_sync

pytestmark = pytest.mark.one_server


@pytest.fixture
def proxy(rota_database: str) -> Iterator[TcpProxy]:
    with TcpProxy(rota_database) as proxy, psycopg.connect(rota_database) as connection:
        connection.execute("create table kept (number integer)")
        connection.commit()
        yield proxy


def kept(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [number for (number,) in connection.execute("select number from kept order by number").fetchall()]


def keep(dsn: str, number: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("/* rota:keep */ insert into kept values (%s)", [number])


def test_what_is_sent_arrives_and_is_answered(proxy: TcpProxy, rota_database: str) -> None:
    with psycopg.connect(proxy.dsn(rota_database)) as connection:
        text = "x" * 1_000_000

        assert connection.execute("select %s::text", [text]).fetchone() == (text,)
        assert proxy.connections == 1
    until_sync(lambda: proxy.connections == 0, what="the connection is gone")


def test_a_delay_is_felt_each_way(proxy: TcpProxy, rota_database: str) -> None:
    with psycopg.connect(proxy.dsn(rota_database), autocommit=True) as connection:
        proxy.delay = 0.1
        started = time.monotonic()

        connection.execute("select 1")

        assert time.monotonic() - started >= 0.2
        proxy.heal()


def test_a_cut_resets_what_is_open_and_serves_what_comes(proxy: TcpProxy, rota_database: str) -> None:
    with psycopg.connect(proxy.dsn(rota_database)) as connection:
        proxy.cut()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with psycopg.connect(proxy.dsn(rota_database)) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


async def test_a_black_hole_answers_nobody_until_it_is_healed(proxy: TcpProxy, rota_database: str) -> None:
    async with await AsyncConnection.connect(proxy.dsn(rota_database)) as connection:
        proxy.blackhole()
        asked = asyncio.create_task(connection.execute("select 1"))
        connecting = asyncio.create_task(AsyncConnection.connect(proxy.dsn(rota_database)))

        done, _ = await asyncio.wait({asked, connecting}, timeout=0.2)
        proxy.heal()

        assert done == set()
        assert await (await asked).fetchone() == (1,)
        await (await connecting).close()


def test_the_reply_to_a_commit_is_lost_but_the_commit_is_not(proxy: TcpProxy, rota_database: str) -> None:
    proxy.cut_after(b"COMMIT")

    with (
        psycopg.connect(proxy.dsn(rota_database), autocommit=True) as connection,
        pytest.raises(psycopg.OperationalError),
        connection.transaction(),
    ):
        connection.execute("insert into kept values (1)")

    assert kept(rota_database) == [1]
    assert proxy.cuts == 1


def test_a_prepared_statement_is_known_by_its_name(proxy: TcpProxy, rota_database: str) -> None:
    with psycopg.connect(proxy.dsn(rota_database), autocommit=True, prepare_threshold=0) as connection:
        connection.execute("/* rota:keep */ insert into kept values (%s)", [1])
        proxy.cut_after(b"rota:keep ")

        with pytest.raises(psycopg.OperationalError):
            connection.execute("/* rota:keep */ insert into kept values (%s)", [2])

    assert kept(rota_database) == [1, 2]


def test_replies_are_lost_as_often_as_asked_for(proxy: TcpProxy, rota_database: str) -> None:
    proxy.cut_after(b"rota:keep ", times=2)

    for number in (1, 2):
        with pytest.raises(psycopg.OperationalError):
            keep(proxy.dsn(rota_database), number)
    keep(proxy.dsn(rota_database), 3)

    assert kept(rota_database) == [1, 2, 3]
    assert proxy.cuts == 2


async def test_a_proxy_may_be_left_while_nothing_gets_through(rota_database: str) -> None:
    with TcpProxy(rota_database) as proxy:
        proxy.blackhole()
        connecting = asyncio.create_task(AsyncConnection.connect(proxy.dsn(rota_database)))
        await until(lambda: len(proxy._serving) == 1, what="the connection is accepted")

    with pytest.raises(psycopg.OperationalError):
        await connecting
