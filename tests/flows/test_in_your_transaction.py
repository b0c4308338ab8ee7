"""`task.on(connection)`: the job is part of the caller's transaction, whatever library that speaks through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.drivers import (
    ASYNC,
    SYNC,
    Oops,
    User,
    asyncpg_connection,
    django_wrapper,
    opened_by,
    psycopg_async,
    psycopg_connection,
    sqlalchemy_connection,
)

from rota import ConfigurationError, JobExists, Unique
from rota.jobs import enqueue as enqueue_room
from rota.postgres.notify import wake_channel
from rota.postgres.query import identifier
from rota.testing import TestRota

pytestmark = pytest.mark.one_server  # what is shown here is up to the drivers


@pytest.fixture(params=opened_by(SYNC, "psycopg", "sqlalchemy_scoped_session", "django_wrapper"))
def user(request: pytest.FixtureRequest, rota_database: str) -> Iterator[User]:
    with request.param(rota_database) as opened:
        yield opened


@pytest.fixture(params=opened_by(ASYNC, "asyncpg_pooled", "sqlalchemy_connection_asyncpg", "sqlalchemy_scoped_session"))
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
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs are as many as one statement carries."""
    monkeypatch.setattr(enqueue_room, "BATCH_ROWS", 2)


def statements(dsn: str) -> int:
    """How many statements have put the jobs there are, in one transaction."""
    with psycopg.connect(dsn) as db:
        counted = db.execute("select count(distinct cmin::text), count(distinct xmin::text) from rota.jobs").fetchone()
    assert counted is not None
    assert counted[1] == 1
    return int(counted[0])


@pytest.mark.usefixtures("small_parts")
def test_more_than_one_statement_carries_goes_in_parts_on_a_sync_connection(
    rota_app: TestRota, rota_database: str, user: User
) -> None:
    @rota_app.task
    def greet(name: str) -> None: ...

    with user.transaction():
        many = rota_app.enqueue_many_sync([greet.bind(name) for name in "abcde"], on=user.native)
        assert rota_app.jobs.list_sync() == []

    assert [(job.id, job.args) for job in many] == [(job.id, job.args) for job in rota_app.jobs.list_sync()[::-1]]
    assert [job.args["name"] for job in many] == list("abcde")
    assert statements(rota_database) == 3


@pytest.mark.usefixtures("small_parts")
async def test_more_than_one_statement_carries_goes_in_parts_on_an_async_connection(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task
    async def greet(name: str) -> None: ...

    async with opening(rota_database) as user, user.transaction():
        many = await rota_app.enqueue_many([greet.bind(name) for name in "abcde"], on=user.native)
        assert await rota_app.jobs.list() == []

    assert [job.args["name"] for job in many] == list("abcde")
    assert statements(rota_database) == 3


@pytest.mark.usefixtures("small_parts")
def test_a_job_that_exists_refuses_all_parts_on_a_sync_connection(rota_app: TestRota, user: User) -> None:
    @rota_app.task(unique=Unique(conflict="raise"))
    def greet(name: str) -> None: ...

    there = greet.enqueue_sync("c")
    with user.transaction():
        before = greet.on(user.native).enqueue_sync("z")
        with pytest.raises(JobExists):
            rota_app.enqueue_many_sync([greet.bind(name) for name in "abcde"], on=user.native)

    assert [job.id for job in rota_app.jobs.list_sync()] == [before.id, there.id]


@pytest.mark.usefixtures("small_parts")
async def test_a_job_that_exists_refuses_all_parts_on_an_async_connection(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task(unique=Unique(conflict="raise"))
    async def greet(name: str) -> None: ...

    there = await greet.enqueue("c")
    async with opening(rota_database) as user, user.transaction():
        before = await greet.on(user.native).enqueue("z")
        with pytest.raises(JobExists):
            await rota_app.enqueue_many([greet.bind(name) for name in "abcde"], on=user.native)

    assert [job.id for job in await rota_app.jobs.list()] == [before.id, there.id]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "opening",
    [
        partial(psycopg_connection, autocommit=True),
        django_wrapper,
    ],
    ids=["psycopg", "django"],
)
def test_parts_are_committed_together_where_each_statement_would_be_on_a_sync_connection(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task(unique=Unique(conflict="raise"))
    def greet(name: str) -> None: ...

    there = greet.enqueue_sync("c")
    with opening(rota_database) as user:
        with pytest.raises(JobExists):
            rota_app.enqueue_many_sync([greet.bind(name) for name in "abc"], on=user.native)
        assert [job.id for job in rota_app.jobs.list_sync()] == [there.id]

        rota_app.enqueue_many_sync([greet.bind(name) for name in "xyz"], on=user.native)

        assert [job.args["name"] for job in rota_app.jobs.list_sync()] == list("zyxc")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "opening", [partial(psycopg_async, autocommit=True), asyncpg_connection], ids=["psycopg", "asyncpg"]
)
async def test_parts_are_committed_together_where_each_statement_would_be_on_an_async_connection(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task(unique=Unique(conflict="raise"))
    async def greet(name: str) -> None: ...

    there = await greet.enqueue("c")
    async with opening(rota_database) as user:
        with pytest.raises(JobExists):
            await rota_app.enqueue_many([greet.bind(name) for name in "abc"], on=user.native)
        assert [job.id for job in await rota_app.jobs.list()] == [there.id]

        await rota_app.enqueue_many([greet.bind(name) for name in "xyz"], on=user.native)

        assert [job.args["name"] for job in await rota_app.jobs.list()] == list("zyxc")


@pytest.mark.usefixtures("small_parts")
def test_what_cannot_be_committed_together_is_refused(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task
    def greet(name: str) -> None: ...

    with (
        sqlalchemy_connection(rota_database, isolation_level="AUTOCOMMIT") as user,
        pytest.raises(ConfigurationError, match="AUTOCOMMIT"),
    ):
        rota_app.enqueue_many_sync([greet.bind(name) for name in "abc"], on=user.native)

    assert rota_app.jobs.list_sync() == []


@pytest.mark.usefixtures("small_parts")
async def test_parts_in_a_pipeline_of_the_users_are_waited_for(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task
    async def greet(name: str) -> None: ...

    async with psycopg_async(rota_database) as user, user.native.pipeline():
        await rota_app.enqueue_many([greet.bind(name) for name in "abcde"], on=user.native)

    assert statements(rota_database) == 3


@pytest.fixture
def heard(direct_database: str) -> Iterator[Callable[[float], list[str]]]:
    """The queues whose workers were woken, up to now or, given a time, until one is."""
    with psycopg.connect(direct_database, autocommit=True) as listener:
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


@pytest.mark.writes_nothing
async def test_a_sync_call_on_an_async_connection_says_what_to_write(
    rota_app: TestRota, rota_database: str, opening: Any
) -> None:
    @rota_app.task
    def greet() -> None: ...

    async with opening(rota_database) as user:
        with pytest.raises(ConfigurationError, match="can only be used with await"):
            greet.on(user.native).enqueue_sync()
