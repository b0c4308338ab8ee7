"""`task.on(connection)`: the job is part of the caller's transaction, whatever library that speaks through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.drivers import ASYNC, SYNC, Oops, User

from rota import ConfigurationError, Unique
from rota.facts import WorkerStarted
from rota.testing import TestRota, fact

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


async def test_workers_are_woken_by_the_commit(rota_app: TestRota, rota_database: str, opening: Any) -> None:
    loop = asyncio.get_running_loop()

    @rota_app.task
    async def when() -> float:
        return loop.time()

    started = fact(rota_app.facts, WorkerStarted)
    working = asyncio.create_task(rota_app.work())
    await started
    async with opening(rota_database) as user:
        await asyncio.sleep(0.3)  # idle for longer than the first quick looks, shorter than the poll
        async with user.transaction():
            job = await when.on(user.native).enqueue()
            await asyncio.sleep(0.1)
            committing = loop.time()
    ran = await job.wait(10)
    rota_app.stop()
    await working

    assert 0 <= ran - committing < 1.0


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
