"""`task.on(connection)`: the job is part of the caller's transaction, whatever library that speaks through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from tests.drivers import ASYNC, SYNC, Oops, User

from rota import ConfigurationError, Unique
from rota.postgres.notify import wake_channel
from rota.postgres.query import identifier
from rota.testing import TestRota

pytestmark = pytest.mark.one_server  # what is shown here is up to the drivers


@pytest.fixture(params=SYNC.values(), ids=SYNC.keys())
def user(request: pytest.FixtureRequest, rota_database: str) -> Iterator[User]:
    with request.param(rota_database) as opened:
        yield opened


@pytest.fixture(params=ASYNC.values(), ids=ASYNC.keys())
def opening(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_job_on_a_sync_connection_appears_with_the_commit_or_not_at_all(rota_app: TestRota, user: User) -> None:
    @rota_app.task
    def greet(name: str) -> str:
        return name

    with user.transaction():
        job = greet.on(user.native).enqueue_sync("ada")
        assert rota_app.jobs.list_sync() == []
    with suppress(Oops), user.transaction():
        greet.using(priority=3).on(user.native).enqueue_sync("bo")
        raise Oops
    with user.transaction():
        many = rota_app.enqueue_many_sync([greet.bind("cy"), greet.bind("di")], on=user.native)

    rota_app.drain_sync()
    assert [found.id for found in rota_app.jobs.list_sync()] == [many[1].id, many[0].id, job.id]
    assert [each.wait_sync() for each in (job, *many)] == ["ada", "cy", "di"]


async def test_a_job_on_an_async_connection_appears_with_the_commit_or_not_at_all(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task
    async def greet(name: str) -> str:
        return name

    async with opening(rota_database) as user:
        async with user.transaction():
            job = await greet.on(user.native).enqueue("ada")
            assert await rota_app.jobs.list() == []
        with suppress(Oops):
            async with user.transaction():
                await greet.on(user.native).using(delay=5, tags=["x"]).enqueue("bo")
                raise Oops
        async with user.transaction():
            many = await rota_app.enqueue_many([greet.bind("cy"), greet.bind("di")], on=user.native)

    await rota_app.drain()
    assert [found.id for found in await rota_app.jobs.list()] == [many[1].id, many[0].id, job.id]
    assert [await each.wait() for each in (job, *many)] == ["ada", "cy", "di"]


async def test_a_unique_job_conflicts_across_connections(rota_app: TestRota, rota_database: str, opening: Any) -> None:
    @rota_app.task(unique=Unique(by=lambda name: name))
    async def greet(name: str) -> str:
        return name

    first = await greet.enqueue("ada")
    async with opening(rota_database) as user, user.transaction():
        again = await greet.on(user.native).enqueue("ada")
        other = await greet.on(user.native).enqueue("bo")

    assert (again.id, again.existing, other.existing) == (first.id, True, False)


@pytest.fixture
def heard(rota_database: str) -> Iterator[Callable[[float], list[str]]]:
    """The queues whose workers were woken, up to now or, given a time, until one is."""
    with psycopg.connect(rota_database, autocommit=True) as listener:
        listener.execute(f"listen {identifier(wake_channel('rota'))}")

        def heard(timeout: float) -> list[str]:
            listener.execute("select")  # brings along what has come
            return [notify.payload for notify in listener.notifies(timeout=timeout, stop_after=1 if timeout else None)]

        yield heard


def test_workers_are_woken_by_the_commit_of_a_sync_connection(
    rota_app: TestRota, user: User, heard: Callable[[float], list[str]]
) -> None:
    @rota_app.task(queue="mail")
    def greet() -> None: ...

    with user.transaction():
        greet.on(user.native).enqueue_sync()
        too_early = heard(0)

    assert (too_early, heard(10)) == ([], ["mail"])


async def test_workers_are_woken_by_the_commit_of_an_async_connection(
    rota_app: TestRota, rota_database: str, opening: Any, heard: Callable[[float], list[str]]
) -> None:
    @rota_app.task(queue="mail")
    async def greet() -> None: ...

    async with opening(rota_database) as user, user.transaction():
        await greet.on(user.native).enqueue()
        too_early = heard(0)

    assert (too_early, heard(10)) == ([], ["mail"])


def test_what_is_no_connection_is_refused(rota_app: TestRota) -> None:
    @rota_app.task
    def greet() -> None: ...

    with pytest.raises(ConfigurationError, match=r"cannot join the transaction of a builtins\.str"):
        greet.on("postgresql://")


async def test_a_sync_call_on_an_async_connection_says_what_to_write(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task
    def greet() -> None: ...

    async with opening(rota_database) as user:
        with pytest.raises(ConfigurationError, match="can only be used with await"):
            greet.on(user.native).enqueue_sync()
