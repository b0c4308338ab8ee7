"""Many who append to the same streams at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter

import psycopg
import pytest
from tests.conftest import OwnServer
from tests.events.crowd import Crowd
from tests.events.reading import read_to_end

from rota import Rota, WrongVersion
from rota.testing import until
from rota.testing.app import TestRota

WRITERS, EACH = 16, 10


async def test_writers_that_expect_a_version_lose_and_double_nothing(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    async def add(writer: int, number: int) -> int:
        """As a command handler does it: read, decide, append, and again if someone was first."""
        refused = 0
        while True:
            version = len(await orders.read("counter"))
            try:
                await orders.append("counter", "Added", [writer, number], expected_version=version)
            except WrongVersion as error:
                refused += error.actual > version
            else:
                return refused

    async def write(writer: int) -> int:
        return sum([await add(writer, number) for number in range(EACH)])

    refused = await asyncio.gather(*map(write, range(WRITERS)))

    events = await orders.read("counter")
    assert sum(refused) > 0
    assert [event.version for event in events] == list(range(1, WRITERS * EACH + 1))
    assert Counter(map(tuple, (event.data for event in events))) == Counter(
        (writer, number) for writer in range(WRITERS) for number in range(EACH)
    )
    assert [event.version for event in read_to_end(orders, WRITERS * EACH)] == list(range(1, WRITERS * EACH + 1))


async def test_of_writers_that_begin_a_stream_one_is_first(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    results = await asyncio.gather(
        *(orders.append("order-7", "Begun", n, expected_version=0) for n in range(WRITERS)), return_exceptions=True
    )

    assert sum(not isinstance(result, BaseException) for result in results) == 1
    assert [result.actual for result in results if isinstance(result, WrongVersion)] == [1] * (WRITERS - 1)
    assert len(await orders.read("order-7")) == 1


async def test_writers_that_expect_nothing_all_go_through_without_gaps(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")
    streams = [f"s{n}" for n in range(5)]

    async def write(writer: int) -> None:
        for number in range(EACH):
            # each in an order of its own, and yet none waits for another in a circle
            mixed = streams[(writer + number) % 5 :] + streams[: (writer + number) % 5]
            await orders.append_many([orders.bind(stream, "Changed") for stream in mixed])

    await asyncio.gather(*map(write, range(WRITERS)))

    for stream in streams:
        assert [event.version for event in await orders.read(stream)] == list(range(1, WRITERS * EACH + 1))


async def test_an_append_waits_for_the_end_of_who_holds_the_stream(rota_app: TestRota, rota_database: str) -> None:
    orders = rota_app.event_log("orders")
    await orders.append("order-7", "OrderPlaced")

    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        await orders.on(connection).append("order-7", "OrderPaid")
        waiting = asyncio.ensure_future(orders.append("order-7", "OrderShipped", expected_version=1))
        await _until_one_waits(rota_database)
        assert not waiting.done()
        await connection.rollback()

    assert (await waiting).version == 2
    assert [event.type for event in await orders.read("order-7")] == ["OrderPlaced", "OrderShipped"]


async def test_who_waited_for_a_stream_learns_the_version_it_has_then(rota_app: TestRota, rota_database: str) -> None:
    orders = rota_app.event_log("orders")

    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        await orders.on(connection).append("order-7", "OrderPlaced")
        waiting = asyncio.gather(
            orders.append("order-7", "OrderPlaced", expected_version=0),
            orders.append("order-7", "Noted"),
            return_exceptions=True,
        )
        await _until_one_waits(rota_database)
        await connection.commit()

    refused, noted = await waiting
    assert isinstance(refused, WrongVersion)
    assert refused.actual in (1, 2)  # whichever of the two went on first
    assert not isinstance(noted, BaseException)
    assert noted.version == 2


async def _until_one_waits(dsn: str) -> None:
    waiting = """
        select exists (
            select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
        )
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher:

        async def waits() -> bool:
            return bool((await (await watcher.execute(waiting)).fetchall())[0][0])

        await until(waits)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("transactions", "events"),
    [pytest.param(15, 5, id="short"), pytest.param(150, 70, id="100,000 events", marks=pytest.mark.long)],
)
def test_a_reader_beside_sixteen_writers_sees_each_committed_event_once_and_streams_in_order(
    transactions: int, events: int, own_server: OwnServer
) -> None:
    # a server of its own: no transaction of other tests holds events back
    with Rota(own_server.dsn) as app:
        log = app.event_log("orders")
        crowd = Crowd(own_server.dsn, log, writers=WRITERS, transactions=transactions, events=events, seed=7)

        crowd.run()

        assert crowd.looks > 0
        crowd.check()
