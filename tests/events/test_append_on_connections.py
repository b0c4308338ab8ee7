"""Appending in a transaction of the user's, with every driver that the queue takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from tests.drivers import ASYNC, SYNC, Oops, User, opened_by
from tests.events.reading import read_to_end

from rota import ConfigurationError, WrongVersion, current_job
from rota.testing.app import TestRota

pytestmark = pytest.mark.one_server  # what is shown here is up to the drivers

DATA = {"text": "grüße 'x' \\ % :y %(z)s $1", "n": [1, 2.5, None]}


@pytest.fixture(params=opened_by(SYNC, "psycopg", "sqlalchemy_connection", "sqlalchemy_session", "django_proxy"))
def user(request: pytest.FixtureRequest, rota_database: str) -> Iterator[User]:
    with request.param(rota_database) as opened:
        yield opened


@pytest.fixture(
    params=opened_by(ASYNC, "psycopg", "asyncpg", "sqlalchemy_connection_psycopg", "sqlalchemy_session_asyncpg")
)
def opening(request: pytest.FixtureRequest) -> Any:
    return request.param


def types(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select type from rota.events order by position")]


def test_on_a_sync_connection_events_commit_with_the_users_writes(
    user: User, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")
    on = orders.on(user.native)

    with user.transaction():
        user.execute("create table public.mine (n int)")
        first = on.append_sync("order-7", "OrderPlaced", DATA, metadata=DATA)
        rest = on.append_many_sync([on.bind("order-7", "OrderPaid"), on.bind("order-8", "OrderPlaced")])
        own = on.read_sync("order-7")
        invisible = types(rota_database)

    assert invisible == []
    assert [(event.version, event.type) for event in own] == [(1, "OrderPlaced"), (2, "OrderPaid")]
    assert own[0].data == own[0].metadata == DATA
    assert own[0].created_at is not None
    assert own[0].created_at.utcoffset() is not None
    assert [each.version for each in (first, *rest)] == [1, 2, 1]
    assert types(rota_database) == ["OrderPlaced", "OrderPaid", "OrderPlaced"]
    assert len(read_to_end(orders, 3)) == 3


async def test_on_an_async_connection_events_commit_with_the_users_writes(
    opening: Any, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")
    async with opening(rota_database) as user:
        on = orders.on(user.native)

        async with user.transaction():
            await user.execute("create table public.mine (n int)")
            first = await on.append("order-7", "OrderPlaced", DATA, metadata=DATA)
            rest = await on.append_many([on.bind("order-7", "OrderPaid"), on.bind("order-8", "OrderPlaced")])
            own = await on.read("order-7")
            invisible = types(rota_database)

    assert invisible == []
    assert [(event.version, event.type) for event in own] == [(1, "OrderPlaced"), (2, "OrderPaid")]
    assert own[0].data == own[0].metadata == DATA
    assert [each.version for each in (first, *rest)] == [1, 2, 1]
    assert types(rota_database) == ["OrderPlaced", "OrderPaid", "OrderPlaced"]
    assert len(read_to_end(orders, 3)) == 3


def test_on_a_sync_connection_events_are_rolled_back_with_the_users_writes(
    user: User, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")

    with suppress(Oops), user.transaction():
        orders.on(user.native).append_sync("order-7", "OrderPlaced")
        raise Oops

    assert types(rota_database) == []
    assert orders.append_sync("order-7", "OrderPlaced", expected_version=0).version == 1


async def test_on_an_async_connection_events_are_rolled_back_with_the_users_writes(
    opening: Any, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")

    async with opening(rota_database) as user:
        with suppress(Oops):
            async with user.transaction():
                await orders.on(user.native).append("order-7", "OrderPlaced")
                raise Oops

    assert types(rota_database) == []
    assert (await orders.append("order-7", "OrderPlaced", expected_version=0)).version == 1


def test_a_wrong_version_leaves_the_transaction_of_a_sync_connection_as_it_was(
    user: User, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")
    orders.append_sync("order-7", "OrderPlaced")
    on = orders.on(user.native)

    with user.transaction():
        on.append_sync("order-8", "OrderPlaced")
        with pytest.raises(WrongVersion) as caught:
            on.append_sync("order-7", "OrderPaid", expected_version=3)
        on.append_sync("order-7", "OrderPaid", expected_version=caught.value.actual)

    assert types(rota_database) == ["OrderPlaced", "OrderPlaced", "OrderPaid"]


async def test_a_wrong_version_leaves_the_transaction_of_an_async_connection_as_it_was(
    opening: Any, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")
    await orders.append("order-7", "OrderPlaced")

    async with opening(rota_database) as user:
        on = orders.on(user.native)
        async with user.transaction():
            await on.append("order-8", "OrderPlaced")
            with pytest.raises(WrongVersion) as caught:
                await on.append_many(
                    [on.bind("order-9", "OrderPlaced"), on.bind("order-7", "OrderPaid")],
                    expected_versions={"order-7": 3, "order-9": 0},
                )
            await on.append("order-7", "OrderPaid", expected_version=caught.value.actual)

    assert types(rota_database) == ["OrderPlaced", "OrderPlaced", "OrderPaid"]
    assert (await orders.append("order-9", "OrderPlaced", expected_version=0)).version == 1


def test_a_stream_that_changed_since_a_stricter_transaction_began_is_the_drivers_error(
    rota_app: TestRota, rota_database: str
) -> None:
    """At REPEATABLE READ the version there is cannot be seen: the transaction begins anew, as with any other row."""
    orders = rota_app.event_log("orders")
    orders.append_sync("order-7", "OrderPlaced")
    orders.append_sync("order-8", "OrderPlaced")

    with psycopg.connect(rota_database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        on = orders.on(connection)
        assert on.append_sync("order-8", "OrderPaid", expected_version=1).version == 2
        orders.append_sync("order-7", "OrderPaid")
        with pytest.raises(psycopg.errors.SerializationFailure):
            on.append_sync("order-7", "OrderPaid", expected_version=1)
        connection.rollback()

    assert [event.version for event in orders.read_sync("order-7")] == [1, 2]
    assert [event.version for event in orders.read_sync("order-8")] == [1]


@pytest.mark.writes_nothing
def test_what_is_no_connection_is_refused(rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError, match="Rota cannot join the transaction of a builtins.object"):
        rota_app.event_log("orders").on(object())


async def test_in_the_transaction_of_a_job_events_commit_with_its_success(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    @rota_app.task
    async def pay(order: str) -> None:
        async with current_job().transaction() as tx:
            await orders.on(tx).append(order, "OrderPaid")

    await pay.enqueue("order-7")
    await rota_app.drain()

    assert [event.type for event in await orders.read("order-7")] == ["OrderPaid"]
