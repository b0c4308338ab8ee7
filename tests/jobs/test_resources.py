"""What bodies share: opened once per worker or per attempt, filled in by type, closed in order, stood in for in tests."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NewType

import pytest

import rota
from rota import ConfigurationError, InvalidArguments, Package, ResourceUnavailable, Retry, Rota, RotaError, Term
from rota.facts import JobFailed, JobSnoozed, MemberLeft, ResourceAwaited, StageFailed, WorkerStarted
from rota.service.filling import Opened
from rota.service.inject import Key, inject
from rota.service.loop import leave_stuck
from rota.testing import TestRota, WorkerProcess, fact, until, until_sync
from rota.testing.app import pointed_at

pytestmark = pytest.mark.usefixtures("history_aside")


@dataclass
class Pool:
    name: str = "primary"
    log: list[str] = field(default_factory=list)


@dataclass
class Cache:
    pool: Pool


@dataclass
class Session:
    pool: Pool
    state: str = "open"


Replica = Annotated[Pool, "replica"]


async def started(app: Rota) -> asyncio.Task[None]:
    told = fact(app.facts, WorkerStarted)
    working = asyncio.create_task(app.work())
    await told
    return working


async def test_it_is_opened_once_per_worker_before_its_first_job_and_closed_after_its_last_in_reverse(
    rota_app: TestRota,
) -> None:
    log: list[str] = []

    @rota_app.resource
    async def cache(pool: Pool = rota.inject()) -> AsyncIterator[Cache]:
        log.append("open cache")
        yield Cache(pool)
        log.append("close cache")

    @rota_app.resource
    async def pool() -> AsyncIterator[Pool]:
        log.append("open pool")
        yield Pool()
        log.append("close pool")

    @rota_app.task
    async def get(n: int, cache: Cache = rota.inject(), pool: Pool = rota.inject()) -> bool:
        log.append(f"job {n}")
        return cache.pool is pool

    jobs = [await get.enqueue(n) for n in range(2)]
    with rota_app.facts.recorded(MemberLeft) as left:
        rota_app.facts.subscribe(lambda _: log.append("left"), MemberLeft)
        await rota_app.drain(concurrency=1)

    assert [await job.wait() for job in jobs] == [True, True]
    assert log == ["open pool", "open cache", "job 0", "job 1", "left", "close cache", "close pool"]
    assert len(left) == 1
    assert [job.args for job in await rota_app.jobs.list(task=get)] == [{"n": 1}, {"n": 0}]


@pytest.mark.by_default("coroutine", "generator", "async manager", "made")
@pytest.mark.parametrize(
    "kind", ["plain", "coroutine", "generator", "async generator", "manager", "async manager", "made"]
)
async def test_a_provider_may_be_any_kind_of_function(rota_app: TestRota, kind: str) -> None:
    closed: list[str] = []

    def plain() -> Pool:
        return Pool(kind)

    async def coroutine() -> Pool:
        return Pool(kind)

    def generator() -> Iterator[Pool]:
        yield Pool(kind)
        closed.append(kind)

    async def async_generator() -> AsyncIterator[Pool]:
        yield Pool(kind)
        closed.append(kind)

    def made() -> contextlib.AbstractAsyncContextManager[Pool]:
        return contextlib.asynccontextmanager(async_generator)()

    kinds: dict[str, Any] = {
        "plain": plain,
        "coroutine": coroutine,
        "generator": generator,
        "async generator": async_generator,
        "manager": contextlib.contextmanager(generator),
        "async manager": contextlib.asynccontextmanager(async_generator),
        "made": made,
    }
    for scope in ("worker", "job"):
        app = TestRota(rota_app.settings.dsn.conninfo)  # type: ignore[union-attr]
        assert app.resource(scope=scope)(kinds[kind]) is kinds[kind]  # type: ignore[call-overload]

        @app.task(name=f"async {scope}")
        async def coroutine_task(pool: Pool = rota.inject()) -> str:
            return pool.name

        @app.task(name=f"sync {scope}")
        def thread_task(pool: Pool = rota.inject()) -> str:
            return pool.name

        jobs = [await coroutine_task.enqueue(), await thread_task.enqueue()]
        await app.drain()
        assert [await job.wait() for job in jobs] == [kind, kind]
        await app.close()

    assert closed == ([] if kind in ("plain", "coroutine") else [kind] * 3)


async def test_one_of_a_job_is_opened_for_each_attempt_and_sees_how_it_ended(rota_app: TestRota) -> None:
    states: list[str] = []

    @rota_app.resource
    def pool() -> Pool:
        return Pool()

    @rota_app.resource(scope="job")
    async def session(pool: Pool = rota.inject()) -> AsyncIterator[Session]:
        session = Session(pool)
        try:
            yield session
        except ValueError:
            session.state = "rolled back"
            raise
        else:
            session.state = "committed"
        finally:
            states.append(session.state)

    @rota_app.resource(scope="job")
    def cache(session: Session = rota.inject()) -> Cache:
        return Cache(session.pool)

    @rota_app.task(retry=Retry(2, base=0.0, backoff="constant"))
    async def on_the_loop(session: Session = rota.inject(), cache: Cache = rota.inject()) -> bool:
        if rota.current_job().attempt == 1:
            raise ValueError("once")
        return cache.pool is session.pool and session.state == "open"

    @rota_app.task(retry=Retry(2, base=0.0, backoff="constant"))
    def in_a_thread(session: Session = rota.inject(), cache: Cache = rota.inject()) -> bool:
        if rota.current_job().attempt == 1:
            raise ValueError("once")
        return cache.pool is session.pool and session.state == "open"

    for task in (on_the_loop, in_a_thread):
        states.clear()
        job = await task.enqueue()
        await rota_app.drain()
        assert await job.wait() is True
        assert states == ["rolled back", "committed"]
        (error,) = (await job.refresh()).errors
        assert error.trace is not None
        assert "service/filling.py" not in error.trace


async def test_one_of_a_job_that_is_not_async_is_opened_in_the_thread_of_the_body(rota_app: TestRota) -> None:
    threads: list[int] = []

    @rota_app.resource(scope="job")
    def pool() -> Iterator[Pool]:
        threads.append(threading.get_ident())
        yield Pool()
        threads.append(threading.get_ident())

    @rota_app.task
    def body(pool: Pool = rota.inject()) -> None:
        threads.append(threading.get_ident())

    await body.enqueue()
    await rota_app.drain()

    assert len(threads) == 3
    assert set(threads) == {threads[0]} != {threading.get_ident()}


async def test_one_of_a_job_that_cannot_be_closed_fails_the_attempt(rota_app: TestRota) -> None:
    @rota_app.resource(scope="job")
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        raise ValueError("the commit failed")

    @rota_app.task(retry=None)
    async def save(pool: Pool = rota.inject()) -> None: ...

    @rota_app.task(retry=None)
    def save_in_a_thread(pool: Pool = rota.inject()) -> None: ...

    jobs = [await save.enqueue(), await save_in_a_thread.enqueue()]
    await rota_app.drain()

    for job in jobs:
        assert [each.message for each in (await job.refresh()).errors] == ["the commit failed"]


async def test_two_of_one_type_are_told_apart_by_name(rota_app: TestRota) -> None:
    @rota_app.resource
    async def primary() -> Pool:
        return Pool("primary")

    @rota_app.resource
    async def replica() -> AsyncIterator[Annotated[Pool, "replica"]]:
        yield Pool("replica")

    @rota_app.task
    async def names(one: Pool = rota.inject(), other: Replica = rota.inject()) -> list[str]:
        return [one.name, other.name]

    job = await names.enqueue()
    await rota_app.drain()

    assert await job.wait() == ["primary", "replica"]


async def test_a_resource_is_none_of_the_arguments(rota_app: TestRota) -> None:
    @rota_app.resource
    def pool() -> Pool:
        return Pool()

    @rota_app.task
    def save(n: int, *rest: int, pool: Pool = rota.inject(), **more: int) -> None: ...

    with pytest.raises(InvalidArguments, match=r"pool is filled in where the job runs \(rota.inject\(\)\)"):
        await save.enqueue(1, pool=Pool())
    with pytest.raises(InvalidArguments, match=r"pool is filled in where the job runs"):
        save.signature.read({"n": 1, "pool": {}})
    assert save.signature.names == ("n", "rest", "more")


async def test_called_by_hand_it_takes_what_it_is_given_and_else_what_its_worker_has(rota_app: TestRota) -> None:
    @rota_app.resource
    def pool() -> Pool:
        return Pool("the worker's")

    @rota_app.task
    async def name(pool: Pool = rota.inject()) -> str:
        return pool.name

    @rota_app.task
    def name_sync(pool: Pool = rota.inject()) -> str:
        return pool.name

    @rota_app.task
    async def both() -> list[str]:
        return [
            await name(),
            await asyncio.to_thread(name_sync),
            await name(Pool("mine")),
            name_sync(pool=Pool("ours")),
        ]

    assert await name(Pool("given")) == name_sync(pool=Pool("given")) == "given"
    with pytest.raises(RotaError, match=r"Pool is not open here.* pass it as an argument.*app.override\(Pool"):
        await name()
    with pytest.raises(RotaError, match="Pool is not open here"):
        name_sync()
    job = await both.enqueue()
    await rota_app.drain()
    assert await job.wait() == ["the worker's", "the worker's", "mine", "ours"]


async def test_a_worker_of_one_app_fills_in_nothing_for_the_tasks_of_another(rota_app: TestRota) -> None:
    other = Rota("postgresql://127.0.0.1:1/nowhere")
    for app in (rota_app, other):

        @app.resource
        def pool() -> Pool:
            return Pool()

    @other.task
    async def theirs(pool: Pool = rota.inject()) -> str:
        return pool.name

    @rota_app.task(retry=None)
    async def ours(pool: Pool = rota.inject()) -> str:
        return await theirs()

    job = await ours.enqueue()
    await rota_app.drain()

    (error,) = (await job.refresh()).errors
    assert "Pool is not open here" in str(error.message)


def test_what_was_never_filled_in_says_so_when_it_is_used() -> None:
    with pytest.raises(AttributeError, match=r"This is rota.inject\(\).*Pass the resource as an argument"):
        inject().execute("select 1")
    assert repr(inject()) == "rota.inject()"
    assert not hasattr(inject(), "__len__")


async def test_what_nothing_provides_is_told_at_the_start_all_at_once(rota_app: TestRota) -> None:
    @rota_app.resource
    def cache(pool: Pool = rota.inject()) -> Cache:
        return Cache(pool)

    @rota_app.resource(scope="job")
    def replica() -> Replica:
        return Pool()

    @rota_app.resource
    def session(pool: Replica = rota.inject()) -> Session:
        return Session(pool)

    @rota_app.task(name="save")
    async def save(pool: Pool = rota.inject()) -> None: ...

    @rota_app.singleton("index")
    async def index(term: Term, pool: Pool = rota.inject()) -> None: ...

    with pytest.raises(ConfigurationError) as refused:
        await rota_app.work()

    for said in (
        "task 'save' wants Pool for 'pool', and nothing provides it",
        "singleton 'index' wants Pool for 'pool'",
        "resource 'cache' wants Pool for 'pool'",
        "resource 'session' lives as long as a worker and wants Annotated[Pool, \"replica\"], which lives as long as a job",
    ):
        assert said in str(refused.value)


def test_two_providers_of_one_type_are_refused_with_both_named() -> None:
    app, library = Rota("postgresql://127.0.0.1:1/nowhere"), Package("library")

    @app.resource
    def one() -> Pool:
        return Pool()

    @library.resource
    def other() -> Pool:
        return Pool()

    with pytest.raises(
        ConfigurationError, match=r'provide Pool: one \(.*:\d+\) and other \(.*Annotated\[Pool, "a name"\]'
    ):
        app.package(library)
    app.resource(one)  # the same again is no other


def test_resources_that_need_each_other_are_refused_where_the_circle_closes() -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")

    @app.resource
    def cache(pool: Pool = rota.inject()) -> Cache:
        return Cache(pool)

    @app.resource
    def session(cache: Cache = rota.inject()) -> Session:
        return Session(cache.pool)

    def pool(session: Session = rota.inject()) -> Pool:
        return session.pool

    with pytest.raises(ConfigurationError, match="needs itself, by way of Pool -> Session -> Cache -> Pool"):
        app.resource(pool)
    assert Key(Pool) not in app.tasks.resources.providers


def _nothing():  # type: ignore[no-untyped-def]
    yield


def _bare() -> Iterator:  # type: ignore[type-arg]
    yield


def _none() -> None: ...


def _unknown() -> Missing: ...  # type: ignore[name-defined]  # noqa: F821


def _asking(host: str, port: int = 5432) -> Pool: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_asking, "nobody would give it host. Let each default to rota.inject"),
        (_nothing, "annotate what it returns or yields"),
        (_bare, r"write Iterator\[Pool\]"),
        (_none, "nothing can be found by it"),
        (_unknown, "name 'Missing' is not defined"),
        (Pool, "it is a function"),
    ],
)
def test_a_provider_that_does_not_say_what_it_provides_or_cannot_be_called_is_refused(function: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Rota("postgresql://127.0.0.1:1/nowhere").resource(function)


def test_a_scope_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="scope='request': it is 'worker'.*or 'job'"):
        Rota("postgresql://127.0.0.1:1/nowhere").resource(scope="request")(lambda: None)  # type: ignore[call-overload]


def _unannotated(pool=rota.inject()) -> None: ...  # type: ignore[no-untyped-def]


def _in_the_middle(pool: Pool = rota.inject(), n: int = 1) -> None: ...


def _uncalled(pool: Pool = rota.inject) -> None: ...  # type: ignore[assignment]


def _by_position(pool: Pool = rota.inject(), /) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_unannotated, "'pool' filled in: it has no annotation"),
        (_uncalled, r"'pool' default to rota.inject itself: write rota.inject\(\)"),
        (_in_the_middle, r"takes 'n' after 'pool', which is filled in.*Put what is injected last, or after a \*"),
        (_by_position, "'pool' filled in, which is passed by position only"),
    ],
)
def test_a_parameter_that_cannot_be_filled_in_is_refused_where_it_is_declared(function: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Rota("postgresql://127.0.0.1:1/nowhere").task(function)


async def test_one_that_cannot_be_opened_is_waited_for_and_costs_no_job_an_attempt(rota_app: TestRota) -> None:
    away, opened = ["refused", "refused", "no password"], []

    @rota_app.resource
    async def cache() -> AsyncIterator[Replica]:
        opened.append("replica")
        yield Pool("replica")

    @rota_app.resource
    async def pool(replica: Replica = rota.inject()) -> Pool:
        if away:
            raise ConnectionError(away.pop(0))
        return Pool()

    @rota_app.task
    async def attempt(pool: Pool = rota.inject()) -> int:
        return rota.current_job().attempt

    job = await attempt.enqueue()
    with rota_app.facts.recorded(ResourceAwaited, JobFailed) as told:
        awaited = fact(rota_app.facts, ResourceAwaited)
        working = asyncio.create_task(rota_app.work())
        await awaited
        assert [each.state for each in rota_app.workings] == ["starting"]
        assert await job.wait(30) == 1
        rota_app.stop()
        await working

    assert [each.error for each in told] == [
        f"Resource 'pool', which provides Pool, could not be opened: ConnectionError: {why}"
        for why in ("refused", "no password")
    ]
    assert opened == ["replica"]  # what was open stays so meanwhile


async def test_a_drain_does_not_wait_for_it_and_what_was_open_is_closed(rota_app: TestRota) -> None:
    closed: list[str] = []

    @rota_app.resource
    async def replica() -> AsyncIterator[Replica]:
        yield Pool()
        closed.append("replica")

    @rota_app.resource
    def pool(replica: Replica = rota.inject()) -> Pool:
        raise ConnectionError("refused")

    @rota_app.task
    async def save(pool: Pool = rota.inject()) -> None: ...

    job = await save.enqueue()
    with pytest.raises(
        ResourceUnavailable, match="'pool', which provides Pool, could not be opened: ConnectionError: refused"
    ) as told:
        await rota_app.drain()

    assert isinstance(told.value.__cause__, ConnectionError)
    assert closed == ["replica"]
    assert (await job.refresh()).attempt == 0


async def test_one_that_is_waited_for_is_not_waited_for_by_who_cancels_the_worker(rota_app: TestRota) -> None:
    opening, ended = asyncio.Event(), []

    @rota_app.resource
    async def pool() -> AsyncIterator[Pool]:
        opening.set()
        try:
            await asyncio.Event().wait()
            yield Pool()
        finally:
            ended.append("opening")

    @rota_app.task
    async def save(pool: Pool = rota.inject()) -> None: ...

    working = asyncio.create_task(rota_app.work())
    await opening.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert ended == ["opening"]


async def test_one_that_says_its_configuration_is_wrong_ends_the_worker(rota_app: TestRota) -> None:
    @rota_app.resource
    def pool() -> Pool:
        raise ConfigurationError("there is no POOL_URL")

    @rota_app.task
    async def save(pool: Pool = rota.inject()) -> None: ...

    with pytest.raises(ConfigurationError, match="there is no POOL_URL"):
        await rota_app.work()


async def test_one_that_cannot_be_closed_is_told_and_keeps_no_other_open(rota_app: TestRota) -> None:
    closed: list[str] = []

    @rota_app.resource
    async def replica() -> AsyncIterator[Replica]:
        yield Pool()
        closed.append("replica")

    @rota_app.resource
    async def pool(replica: Replica = rota.inject()) -> AsyncIterator[Pool]:
        yield Pool()
        raise ZeroDivisionError("no end")

    @rota_app.task
    async def save(pool: Pool = rota.inject()) -> None: ...

    with rota_app.facts.recorded(StageFailed) as failed:
        await rota_app.drain()

    assert [(each.name, str(each.error)) for each in failed] == [("resource pool", "no end")]
    assert closed == ["replica"]


async def test_it_is_opened_and_closed_by_the_same_task(rota_app: TestRota) -> None:
    tasks: list[Any] = []

    @rota_app.resource
    async def pool() -> AsyncIterator[Pool]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60), asyncio.TaskGroup():  # which say so if it is another that leaves them
            yield Pool()
        tasks.append(asyncio.current_task())

    @rota_app.task
    async def save(pool: Pool = rota.inject()) -> None: ...

    with rota_app.facts.recorded(StageFailed) as failed:
        await rota_app.drain()

    assert failed == []
    assert tasks[0] is tasks[1]


async def test_only_what_someone_wants_is_opened(rota_app: TestRota) -> None:
    opened: list[str] = []

    @rota_app.resource
    def pool() -> Pool:
        opened.append("pool")
        return Pool()

    @rota_app.task
    async def save() -> None: ...

    await rota_app.drain()

    assert opened == []


async def test_a_value_that_overrides_is_used_instead_and_nothing_is_opened_for_it(rota_app: TestRota) -> None:
    opened: list[str] = []

    @rota_app.resource
    def pool() -> Pool:
        opened.append("pool")
        return Pool("real")

    @rota_app.resource
    def cache(pool: Pool = rota.inject()) -> Cache:
        opened.append(f"cache of {pool.name}")
        return Cache(pool)

    @rota_app.task
    async def name(pool: Pool = rota.inject(), cache: Cache = rota.inject()) -> list[str]:
        return [pool.name, cache.pool.name]

    with rota_app.override(Pool, Pool("fake")), rota_app.override(Pool, Pool("other")):
        job = await name.enqueue()
        await rota_app.drain()
        assert await job.wait() == ["other", "other"]
        with rota_app.override(Cache, Cache(Pool("made"))):
            assert await name() == ["other", "made"]
    assert opened == ["cache of other"]
    with pytest.raises(RotaError, match="Pool is not open here"):
        await name()


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (None, "Nothing can be overridden by None: nothing can be found by it. Name the type that is asked for."),
        ("Pool", "Nothing can be overridden by 'Pool': it is no type. Name the type that is asked for."),
        (3, "Nothing can be overridden by 3: it is no type."),
        (Pool("real"), "it is no type"),
        (Annotated["Pool", "replica"], "it is no type"),
    ],
)
def test_only_what_is_asked_for_by_type_can_be_overridden(rota_app: TestRota, kind: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)), rota_app.override(kind, 3):
        pass


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    "kind", [Pool, Annotated[Pool, "replica"], list[Pool], NewType("Ours", Pool), Pool | None, Callable[[], Pool]]
)
def test_every_form_of_a_type_can_be_overridden(rota_app: TestRota, kind: Any) -> None:
    with rota_app.override(kind, 3):
        pass


async def test_what_stood_in_when_the_worker_started_and_is_gone_is_told(rota_app: TestRota) -> None:
    @rota_app.resource
    def pool() -> Pool:
        return Pool()

    @rota_app.task(retry=None)
    async def name(pool: Pool = rota.inject()) -> str:
        return pool.name

    with rota_app.override(Pool, Pool("fake")):
        working = await started(rota_app)
    job = await name.enqueue()
    with pytest.raises(rota.JobFailed, match="nothing wanted resource 'pool' when this worker started"):
        await job.wait(10)
    rota_app.stop()
    await working


async def test_a_test_of_an_app_has_its_resources_and_what_stands_in_for_them(rota_database: str) -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")

    @app.resource
    def pool() -> Pool:
        return Pool()

    @app.task
    async def name(pool: Pool = rota.inject()) -> str:
        return pool.name

    tested = TestRota(rota_database, of=app)
    with pointed_at(app, tested):

        @tested.resource
        def cache(pool: Pool = rota.inject()) -> Cache:
            return Cache(pool)

        job = await name.enqueue()
        await tested.drain()
        with app.override(Pool, Pool("fake")):
            other = await name.enqueue()
            await tested.drain()
        assert [await job.wait(), await other.wait()] == ["primary", "fake"]
        await tested.close()

    assert list(app.tasks.resources.providers) == [Key(Pool)]


async def test_a_function_does_not_wait_for_the_event_loop_that_it_is_called_on(rota_app: TestRota) -> None:
    @rota_app.resource(scope="job")
    async def pool() -> Pool:
        return Pool()

    @rota_app.task
    def name(pool: Pool = rota.inject()) -> str:
        return pool.name

    @rota_app.task
    async def by_hand() -> str:
        with pytest.raises(RotaError, match=r"would wait for itself. Call it with asyncio.to_thread\(\)"):
            name()
        return await asyncio.to_thread(name)

    job = await by_hand.enqueue()
    await rota_app.drain()
    assert await job.wait() == "primary"


def test_a_thread_does_not_wait_for_an_event_loop_that_is_gone() -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")

    @app.resource(scope="job")
    async def pool() -> Pool:
        loop.call_soon(loop.stop)
        await asyncio.Event().wait()
        return Pool()

    @app.task
    def name(pool: Pool = rota.inject()) -> str:
        return pool.name

    async def opened() -> Opened:
        return Opened(app.tasks.resources)

    loop = asyncio.new_event_loop()
    with loop.run_until_complete(opened()).standing():
        with pytest.raises(RotaError, match="The worker whose event loop has this resource has ended"):
            name()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        until_sync(loop.is_running)
        with pytest.raises(RotaError, match="The worker whose event loop has this resource has ended"):
            name()
        thread.join()
        loop.run_until_complete(leave_stuck())
        loop.close()
        with pytest.raises(RotaError, match="The worker whose event loop has this resource has ended"):
            name()


async def test_inline_opens_what_the_body_wants_for_it_alone(rota_app: TestRota) -> None:
    log: list[str] = []
    app = Rota("postgresql://127.0.0.1:1/nowhere")

    @app.resource
    async def pool() -> AsyncIterator[Pool]:
        log.append("open")
        yield Pool("real")
        log.append("close")

    @app.resource(scope="job")
    def session(pool: Pool = rota.inject()) -> Session:
        return Session(pool)

    @app.task
    async def name(session: Session = rota.inject()) -> str:
        return session.pool.name

    @app.task
    def name_sync(session: Session = rota.inject()) -> str:
        return asyncio.run(_later(session.pool.name))  # as a body in a thread may

    with app.inline():
        assert (await name.enqueue()).result == (await name_sync.enqueue()).result == "real"
        assert name.enqueue_sync().result == name_sync.enqueue_sync().result == "real"
        assert log == ["open", "close"] * 4
        with app.override(Pool, Pool("fake")):
            assert (await name.enqueue()).result == name_sync.enqueue_sync().result == "fake"
    assert log == ["open", "close"] * 4


async def _later(value: str) -> str:
    return value


async def test_a_library_brings_its_resources(rota_app: TestRota) -> None:
    library = Package("library")

    @library.resource
    def pool() -> Pool:
        return Pool("the library's")

    @library.task
    async def name(pool: Pool = rota.inject(), cache: Cache = rota.inject()) -> str:
        return cache.pool.name

    rota_app.package(library)

    @library.resource
    def cache(pool: Pool = rota.inject()) -> Cache:
        return Cache(pool)

    job = await name.enqueue()
    await rota_app.drain()

    assert await job.wait() == "the library's"


async def test_schedules_and_singletons_have_them_too(rota_app: TestRota) -> None:
    led: list[str] = []
    leading = asyncio.Event()

    @rota_app.resource
    def pool() -> Pool:
        return Pool()

    @rota_app.every("1h")
    async def hourly(pool: Pool = rota.inject()) -> str:
        return pool.name

    @rota_app.singleton("index")
    async def index(term: Term, pool: Pool = rota.inject()) -> None:
        led.append(pool.name)
        leading.set()
        await asyncio.Event().wait()

    working = await started(rota_app)
    await leading.wait()
    rota_app.advance("2h")
    await until(lambda: rota_app.jobs.list_sync(state="succeeded"))
    rota_app.stop()
    await working

    assert led == ["primary"]
    assert {job.result for job in await rota_app.jobs.list(state="succeeded")} == {"primary"}


async def test_pollers_have_them_too(rota_app: TestRota) -> None:
    seen: list[tuple[int, str]] = []

    async with rota_app.lock("set up") as connection:
        await connection.execute("create table sources (id int primary key, state text)")
        await connection.execute("insert into sources values (1, 'new'), (2, 'new')")

    @rota_app.resource
    def pool() -> Pool:
        return Pool()

    @rota_app.poller(table="sources", where="state = 'new'", done="state = 'done'", name="async")
    async def fetch(row: dict[str, Any], pool: Pool = rota.inject()) -> None:
        seen.append((row["id"], pool.name))

    await rota_app.drain()

    assert sorted(seen) == [(1, "primary"), (2, "primary")]


CHILD = """
import asyncio, os
from collections.abc import AsyncIterator
from pathlib import Path
import rota

app = rota.Rota("postgresql://nobody@127.0.0.1:1/nowhere")
LOG, AWAY = Path({folder!r}) / "log", Path({folder!r}) / "away"


def log(what: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{{what}} {{os.getpid()}}\\n")


class Pool:
    pid = os.getpid()


class Session: ...


@app.resource
async def pool() -> AsyncIterator[Pool]:
    if AWAY.exists():
        raise ConnectionError("refused")
    log("open")
    yield Pool()
    log("close")


@app.resource(scope="job")
async def session(pool: Pool = rota.inject()) -> AsyncIterator[Session]:
    log("begin")
    yield Session()
    log("end")


async def pid() -> int:
    return os.getpid()


@app.task(executor="process", retry=None)
async def on_the_loop(pool: Pool = rota.inject(), session: Session = rota.inject()) -> list[int]:
    return [pool.pid, os.getpid()]


@app.task(executor="process", retry=None)
def plain(pool: Pool = rota.inject(), session: Session = rota.inject()) -> list[int]:
    return [pool.pid, asyncio.run(pid())]
"""


@pytest.fixture
def in_children(rota_app: TestRota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module whose tasks run in children, on the database of the test."""
    (tmp_path / "in_children.py").write_text(CHILD.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("in_children")
    module.app.use(dsn=rota_app.settings.dsn.conninfo)  # type: ignore[union-attr]
    yield module
    del sys.modules["in_children"]


async def test_a_child_opens_them_once_and_closes_them_when_it_ends(in_children: Any) -> None:
    jobs = [
        await in_children.on_the_loop.enqueue(),
        await in_children.plain.enqueue(),
        await in_children.plain.enqueue(),
    ]
    await in_children.app.work(concurrency=1, drain=True)
    pids = [await job.wait() for job in jobs]
    await in_children.app.close()

    (child,) = {pid for each in pids for pid in each}
    assert in_children.LOG.read_text().split("\n")[:-1] == [
        f"{what} {child}" for what in ("open", *["begin", "end"] * 3, "close")
    ]


async def test_a_child_that_cannot_open_one_costs_the_job_no_attempt(in_children: Any) -> None:
    in_children.AWAY.touch()
    job = await in_children.plain.enqueue()
    with in_children.app.facts.recorded(ResourceAwaited, JobSnoozed) as told:
        await in_children.app.work(drain=True)
    refreshed = await job.refresh()
    await in_children.app.close()

    assert [type(each) for each in told] == [ResourceAwaited, JobSnoozed]
    assert told[0].error == "Resource 'pool', which provides Pool, could not be opened: ConnectionError: refused"  # type: ignore[union-attr]
    assert (refreshed.state, refreshed.attempt, refreshed.errors) == ("queued", 0, ())


async def test_what_stands_in_for_one_is_refused_where_it_would_not_hold(in_children: Any) -> None:
    job = await in_children.plain.enqueue()
    with in_children.app.override(in_children.Pool, object()):
        await in_children.app.work(drain=True)
    (error,) = (await job.refresh()).errors
    await in_children.app.close()

    assert "app.override(Pool, ...) does not hold" in str(error.message)


WORKER = """
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
import rota

app = rota.Rota()
LOG = Path({folder!r}) / "log"


class Pool: ...


@app.resource
async def pool() -> AsyncIterator[Pool]:
    yield Pool()
    LOG.write_text(LOG.read_text() + "closed")


@app.task
async def slow(pool: Pool = rota.inject()) -> None:
    LOG.write_text("began, ")
    while not rota.current_job().stopping:
        await asyncio.sleep(0.01)
    LOG.write_text(LOG.read_text() + "ended, ")
"""


async def test_a_worker_process_that_is_told_to_stop_closes_them_after_its_last_job(
    rota_app: TestRota, tmp_path: Path
) -> None:
    (tmp_path / "shared.py").write_text(WORKER.format(folder=str(tmp_path)))
    rota_app.task(name="slow")(lambda: None)
    await rota_app.tasks["slow"].enqueue()
    with WorkerProcess("shared:app", dsn=rota_app.settings.dsn.conninfo, cwd=tmp_path) as worker:  # type: ignore[union-attr]
        await until((tmp_path / "log").exists)
        worker.terminate()
        assert worker.wait() == 0

    assert (tmp_path / "log").read_text() == "began, ended, closed"
