"""What goes around every job: around its run in all its kinds, and around its enqueue in both colours and from all doors."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import rota
from rota import ConfigurationError, InvalidArguments, Limit, NewJob, Retry, Rota, RunningJob, Snooze
from rota.facts import JobSnoozed, WorkerStarted
from rota.testing import TestRota, fact

pytestmark = pytest.mark.usefixtures("history_aside")

CallNext = Callable[[], Awaitable[Any]]
request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


@dataclass
class Pool:
    name: str = "primary"


class Refused(Exception): ...


async def test_it_goes_around_every_run_the_first_outermost(rota_app: TestRota) -> None:
    log: list[str] = []

    @rota_app.middleware
    async def outer(job: RunningJob, call_next: CallNext) -> Any:
        log.append(f"outer before {job.task} {job.arguments}")
        result = await call_next()
        log.append(f"outer after {result}")
        return result + 1

    @rota_app.middleware
    class Inner:
        async def run(self, job: RunningJob, call_next: CallNext) -> Any:
            log.append(f"inner before {job.attempt}")
            result = await call_next()
            log.append(f"inner after {result}")
            return result * 10

    @rota_app.task
    async def on_the_loop(n: int) -> int:
        log.append("body")
        return n

    @rota_app.task
    def in_a_thread(n: int) -> int:
        log.append("body")
        return n

    for task in (on_the_loop, in_a_thread):
        log.clear()
        job = await task.enqueue(2)
        await rota_app.drain()
        assert await job.wait() == 21
        assert log == [
            f"outer before {task.name} {{'n': 2}}",
            "inner before 1",
            "body",
            "inner after 2",
            "outer after 20",
        ]


async def test_it_sees_what_the_body_raised_and_says_what_becomes_of_it(rota_app: TestRota) -> None:
    seen: list[BaseException] = []

    @rota_app.middleware
    async def forgive(job: RunningJob, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.append(error)
            if isinstance(error, ConnectionError):
                raise Snooze("1h") from error
            if isinstance(error, KeyError):
                return "forgiven"
            raise

    @rota_app.task(retry=None)
    async def fail(how: str) -> str:
        raise {"key": KeyError("k"), "away": ConnectionError("c"), "value": ValueError("v")}[how]

    @rota_app.task(retry=None, timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    jobs = [await fail.enqueue(how) for how in ("key", "away", "value")] + [await slow.enqueue()]
    unreadable = await rota_app.enqueue(replace(fail.bind("key"), args='{"how": 1}'))
    with rota_app.facts.recorded(JobSnoozed) as snoozed:
        await rota_app.drain(concurrency=1)

    assert await jobs[0].wait() == "forgiven"
    assert [each.pause for each in snoozed] == [3600.0]
    assert [(await job.refresh()).state for job in (*jobs, unreadable)] == [
        "succeeded",
        "queued",
        "dead",
        "dead",
        "dead",
    ]
    assert [type(each) for each in seen] == [KeyError, ConnectionError, ValueError, TimeoutError, InvalidArguments]


async def test_a_body_that_is_not_called_does_not_run_and_the_job_has_what_was_returned(rota_app: TestRota) -> None:
    ran: list[str] = []

    @rota_app.middleware
    async def skip(job: RunningJob, call_next: CallNext) -> Any:
        return "skipped"

    @rota_app.task
    async def body() -> str:
        ran.append("body")
        return "ran"

    job = await body.enqueue()
    await rota_app.drain()

    assert await job.wait() == "skipped"
    assert ran == []


async def test_it_sets_the_context_of_the_body(rota_app: TestRota) -> None:
    @rota_app.middleware
    async def scope(job: RunningJob, call_next: CallNext) -> Any:
        request.set(f"of job {job.id}")
        assert rota.current_job() is job
        return await call_next()

    @rota_app.task
    async def on_the_loop() -> str:
        return request.get()

    @rota_app.task
    def in_a_thread() -> str:
        return request.get()

    jobs = [await on_the_loop.enqueue(), await in_a_thread.enqueue()]
    await rota_app.drain(concurrency=1)

    assert [await job.wait() for job in jobs] == [f"of job {job.id}" for job in jobs]
    assert request.get() == "none"


async def test_it_may_want_resources(rota_app: TestRota) -> None:
    @rota_app.resource
    def pool() -> Pool:
        return Pool()

    @rota_app.middleware
    class Named:
        async def run(self, job: RunningJob, call_next: CallNext, pool: Pool = rota.inject()) -> Any:
            return f"{await call_next()} with {pool.name}"

    @rota_app.task
    async def body() -> str:
        return "ran"

    job = await body.enqueue()
    await rota_app.drain()
    with rota_app.inline():
        inline = body.enqueue_sync()

    assert await job.wait() == inline.result == "ran with primary"


async def test_what_it_wants_and_nothing_provides_is_told_at_the_start(rota_app: TestRota) -> None:
    @rota_app.middleware
    async def named(job: RunningJob, call_next: CallNext, pool: Pool = rota.inject()) -> Any: ...

    with pytest.raises(ConfigurationError, match="middleware 'named' wants Pool for 'pool', and nothing provides it"):
        await rota_app.work()


async def test_a_worker_that_stops_hands_back_a_body_with_something_around_it(rota_app: TestRota) -> None:
    began, seen = asyncio.Event(), []

    @rota_app.middleware
    async def around(job: RunningJob, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            seen.append(type(error))
            raise

    @rota_app.task
    async def slow() -> None:
        began.set()
        await asyncio.Event().wait()

    job = await slow.enqueue()
    started = fact(rota_app.facts, WorkerStarted)
    working = asyncio.create_task(rota_app.work(grace=0))
    await started
    await began.wait()
    rota_app.stop()
    await working

    assert seen == [asyncio.CancelledError]
    handed_back = await job.refresh()
    assert (handed_back.state, handed_back.attempt) == ("queued", 0)


def _stamp(new: NewJob) -> NewJob:
    return replace(new, queue="stamped", tags=(*new.tags, f"request:{request.get()}"), priority=3, key="k")


async def test_what_is_enqueued_can_be_changed_through_every_door(rota_app: TestRota, rota_database: str) -> None:
    rota_app.middleware(_stamp)

    @rota_app.task
    def send(n: int) -> None: ...

    request.set("7")
    single = await send.using(tags=["mail"]).enqueue(1)
    sync = await asyncio.to_thread(send.enqueue_sync, 2)
    many = await rota_app.enqueue_many([send.bind(3), send.bind(4)])
    many_sync = await asyncio.to_thread(rota_app.enqueue_many_sync, [send.bind(5)])
    with psycopg.connect(rota_database) as connection:
        on = send.on(connection).enqueue_sync(6)
        (on_many,) = rota_app.enqueue_many_sync([send.bind(7)], on=connection)
    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        on_async = await send.on(connection).enqueue(8)
    unique = await send.using(unique=True).enqueue(9)

    jobs = [await job.refresh() for job in (single, sync, *many, *many_sync, on, on_many, on_async, unique)]
    assert [job.args["n"] for job in jobs] == list(range(1, 10))
    assert {(job.queue, job.priority, job.key) for job in jobs} == {("stamped", 3, "k")}
    assert [job.tags for job in jobs] == [("mail", "request:7"), *[("request:7",)] * 8]


@pytest.mark.parametrize(
    ("change", "named", "key"),
    [
        (lambda new: new.with_arguments(owner="acme"), None, "acme"),
        (lambda new: new.with_arguments(owner="acme"), "by hand", "by hand"),
        (lambda new: replace(new, key="other"), None, "other"),
        (lambda new: replace(new.with_arguments(owner="acme"), key=None), "by hand", "acme"),
        (lambda new: replace(new, priority=3), None, "nobody"),
    ],
)
async def test_a_job_waits_in_the_line_of_what_it_was_changed_to(
    rota_app: TestRota, rota_database: str, change: Callable[[NewJob], NewJob], named: str | None, key: str
) -> None:
    @rota_app.task(name="t", limit=Limit(running=1, by="owner"))
    def send(owner: str = "nobody") -> None: ...

    rota_app.middleware(lambda new: change(new))
    job = await send.using(key=named).enqueue()

    with psycopg.connect(rota_database) as db:
        ((stored, line),) = db.execute("select key, line from rota.jobs where id = %s", [job.id]).fetchall()
    assert (job.key, stored, line) == (key, key, send.bind(key).line)


async def test_an_enqueue_can_be_refused_and_then_nothing_is_added(rota_app: TestRota) -> None:
    @rota_app.middleware
    class Quota:
        def enqueue(self, new: NewJob) -> NewJob:
            if new.arguments["n"] > 2:
                raise Refused(new.task)
            return new

    @rota_app.task
    def send(n: int) -> None: ...

    with pytest.raises(Refused, match="send"):
        await send.enqueue(3)
    with pytest.raises(Refused):
        send.enqueue_sync(3)
    with pytest.raises(Refused):
        await rota_app.enqueue_many([send.bind(1), send.bind(3)])

    assert rota_app.enqueued() == []
    await send.enqueue(1)
    assert len(rota_app.enqueued()) == 1


async def test_arguments_that_it_adds_are_checked_like_those_of_a_call(rota_app: TestRota) -> None:
    @rota_app.middleware
    def tenant(new: NewJob) -> NewJob:
        return new.with_arguments(tenant=request.get())

    @rota_app.task
    def send(n: int, *, tenant: str = "nobody") -> str:
        return tenant

    @rota_app.task
    def other(n: int) -> None: ...

    @rota_app.task
    def numbered(tenant: int = 0) -> None: ...

    request.set("acme")
    job = await send.using(unique=True).enqueue(1)
    again = await send.using(unique=True).enqueue(1)
    await rota_app.drain()

    assert await job.wait() == "acme"
    assert again.id == job.id  # the unique key is that of the call as it was written
    with pytest.raises(InvalidArguments, match="as middleware changed its arguments: tenant is not a parameter"):
        await other.enqueue(1)
    with pytest.raises(InvalidArguments, match=r"tenant is 'acme' \(str\), expected an integer"):
        await numbered.enqueue()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda new: None, "returned None for a job of 'send'. Let it return the job, or raise why not"),
        (lambda new: replace(new, task="other"), "changed task of a job of 'send'"),
        (lambda new: replace(new, version=2, redact=("n",)), "changed version, redact of a job of 'send'"),
        (lambda new: replace(new, queue=""), "queue"),
        (lambda new: replace(new, priority=10**6), "priority cannot be 1000000"),
        (lambda new: replace(new, tags="mail"), "tags cannot be 'mail'"),
        (lambda new: replace(new, delay="soon"), "delay"),
        (lambda new: replace(new, delay=1.0, at=1), "both a delay and a time"),
        (lambda new: replace(new, args="[]"), "arguments cannot be"),
    ],
)
async def test_a_change_that_cannot_be_is_refused(change: Any, why: str) -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")

    @app.task(name="send")
    def send(n: int) -> None: ...

    app.middleware(change)

    with pytest.raises(ConfigurationError, match=why):
        await send.enqueue(1)


async def _not_asked(new: NewJob) -> NewJob: ...  # type: ignore[empty-body]


async def _around(job: RunningJob, call_next: CallNext) -> Any: ...


class _Nothing: ...


class _NotAsync:
    def run(self, job: RunningJob, call_next: CallNext) -> Any: ...


class _Awaited:
    async def enqueue(self, new: NewJob) -> NewJob: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("middleware", "why"),
    [
        (_Nothing, "'_Nothing' does nothing"),
        (_NotAsync, "let its `run` be an `async def`"),
        (_Awaited, "let its `enqueue` be a `def`, as sync code enqueues too"),
        (_not_asked, r"cannot go around a run: let it take \(job, call_next\). It is _not_asked\(new"),
        (lambda job, call_next: None, r"cannot be asked at an enqueue: let it take \(new\)"),
    ],
)
def test_what_is_no_middleware_is_refused_where_it_is_declared(middleware: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Rota("postgresql://127.0.0.1:1/nowhere").middleware(middleware)


async def test_it_goes_around_what_runs_inline_in_both_colours() -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")
    app.middleware(_stamp)

    @app.middleware
    async def double(job: RunningJob, call_next: CallNext) -> Any:
        return 2 * await call_next()

    @app.task
    async def on_the_loop(n: int) -> int:
        return n

    @app.task
    def plain(n: int) -> int:
        return asyncio.run(on_the_loop.function(n))

    with app.inline():
        jobs = [
            on_the_loop.enqueue_sync(1),
            plain.enqueue_sync(1),
            await on_the_loop.enqueue(1),
            await plain.enqueue(1),
        ]
        jobs += [*app.enqueue_many_sync([plain.bind(1)]), *await app.enqueue_many([plain.bind(1)])]

    assert [(job.result, job.queue) for job in jobs] == [(2, "stamped")] * 6


CHILD = """
import asyncio, os, sys
import rota

app = rota.Rota("postgresql://nobody@127.0.0.1:1/nowhere")


@app.middleware
async def pid(job, call_next):
    try:
        return [os.getpid(), *await call_next()]
    except ValueError as error:
        raise rota.Discard(f"{job.task}: {error}") from error


@app.task(executor="process")
async def on_the_loop(n: int) -> list[int]:
    return [os.getpid(), n]


@app.task(executor="process")
def plain(n: int) -> list[int]:
    if n < 0:
        raise ValueError("below zero")
    return asyncio.run(on_the_loop.function(n))


@app.task(executor="process", timeout=0.5, retry=None)
def slow() -> None:
    import time
    try:
        time.sleep(60)
    finally:
        print("cleaned up", file=sys.stderr, flush=True)
"""


@pytest.fixture
def in_children(rota_app: TestRota, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module whose tasks run in children, on the database of the test."""
    (tmp_path / "around_children.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("around_children")
    module.app.use(dsn=rota_app.settings.dsn.conninfo)  # type: ignore[union-attr]
    yield module
    del sys.modules["around_children"]


async def test_it_goes_around_the_body_in_a_child(in_children: Any, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [await in_children.on_the_loop.enqueue(1), await in_children.plain.enqueue(1)]
    discarded, slow = await in_children.plain.enqueue(-1), await in_children.slow.enqueue()
    await in_children.app.work(concurrency=1, drain=True)
    results = [await job.wait() for job in jobs]
    ended = [await job.refresh() for job in (discarded, slow)]
    await in_children.app.close()

    for around, body, n in results:
        assert around == body
        assert n == 1
    assert [(job.state, job.reason) for job in ended] == [("cancelled", "plain: below zero"), ("dead", "failed")]
    assert "longer than its timeout" in str(ended[1].errors[0].message)
    assert "cleaned up" in capfd.readouterr().err


async def test_the_middleware_of_a_test_is_forgotten_after_it(rota_app: TestRota, rota_database: str) -> None:
    from rota.testing.app import pointed_at

    app = Rota("postgresql://127.0.0.1:1/nowhere")
    app.middleware(_stamp)
    other = TestRota(rota_database, of=app)
    with pointed_at(app, other):
        app.middleware(lambda new: new)
        other.middleware(_around)
        assert len(app.middlewares.at_enqueue) == 2

    assert [name for name, _ in app.middlewares.at_enqueue] == ["_stamp"]
    assert app.middlewares.around_run == []


async def test_an_attempt_that_is_tried_again_is_gone_around_again(rota_app: TestRota) -> None:
    attempts: list[int] = []

    @rota_app.middleware
    async def count(job: RunningJob, call_next: CallNext) -> Any:
        attempts.append(job.attempt)
        return await call_next()

    @rota_app.task(retry=Retry(3, base=0.0, backoff="constant"))
    async def flaky() -> int:
        if len(attempts) < 3:
            raise ValueError
        return len(attempts)

    job = await flaky.enqueue()
    await rota_app.drain()

    assert await job.wait() == 3
    assert attempts == [1, 2, 3]
