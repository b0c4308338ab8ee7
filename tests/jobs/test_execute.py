"""What becomes of attempts: retries, snoozes, discards, timeouts, versions, secrets."""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import statistics
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

import psycopg
import pytest

from rota import (
    ConfigurationError,
    Discard,
    InvalidArguments,
    JobCancelled,
    JobFailed,
    Retry,
    Rota,
    Snooze,
    WaitTimedOut,
    current_job,
)
from rota.facts import JobCancelled as JobCancelledFact
from rota.facts import JobFailed as JobFailedFact
from rota.facts import JobSnoozed, JobStuck, JobSucceeded, WorkerStarted, WorkerStopped
from rota.jobs.claim import ClaimedJob
from rota.jobs.definition import Task
from rota.jobs.execute import Executor
from rota.jobs.job import Job
from rota.jobs.outcome import Succeeded
from rota.jobs.running import Desk
from rota.jobs.worker import WorkerSettings
from rota.postgres.query import scalar, statement
from rota.testing import TestRota, fact, until

pytestmark = pytest.mark.usefixtures("history_aside")


async def test_a_snoozed_job_comes_back_later_at_no_cost(rota_app: TestRota) -> None:
    runs: list[int] = []

    @rota_app.task(retry=None)
    async def poll() -> str:
        runs.append(current_job().attempt)
        if len(runs) < 3:
            raise Snooze("10m")
        return "ready"

    job = await poll.enqueue()
    with rota_app.facts.recorded(JobSnoozed) as snoozed:
        await rota_app.drain()
        assert (await job.refresh()).state == "queued"
        rota_app.advance("10m")
        await rota_app.drain()
        rota_app.advance("10m")
        await rota_app.drain()

    assert await job.wait() == "ready"
    assert runs == [1, 1, 1]
    assert [each.pause for each in snoozed] == [600, 600]
    assert (await job.refresh()).errors == ()


async def test_a_pause_beyond_all_measure_is_cut_and_spoils_no_other_outcome(rota_app: TestRota) -> None:
    @rota_app.task
    async def sleepy() -> None:
        raise Snooze("9000000d")

    @rota_app.task(retry=Retry(attempts=2, backoff=lambda n: 1e12))
    async def failing() -> None:
        raise ValueError

    jobs = [await sleepy.enqueue(), await failing.enqueue()]
    await rota_app.drain()

    assert [(await job.refresh()).state for job in jobs] == ["queued", "queued"]


async def test_a_discarded_job_is_cancelled_for_its_reason_and_not_tried_again(rota_app: TestRota) -> None:
    @rota_app.task
    async def greet() -> None:
        raise Discard("the user is gone")

    job = await greet.enqueue()
    with rota_app.facts.recorded(JobCancelledFact) as cancelled:
        await rota_app.drain()

    assert [each.reason for each in cancelled] == ["the user is gone"]
    with pytest.raises(JobCancelled, match=r"was cancelled: the user is gone\."):
        await job.wait()
    assert (await job.refresh()).reason == "the user is gone"


async def test_always_failing_work_is_tried_so_often_so_far_apart_and_then_dead(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=4, backoff="exponential", base=10, cap=25, jitter=False))
    async def fail() -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    job = await fail.enqueue()
    pauses = []
    with rota_app.facts.recorded(JobFailedFact) as failed:
        for _ in range(4):
            await rota_app.drain()
            rota_app.advance("25s")
    pauses = [each.retry_in for each in failed]

    assert pauses == [10, 20, 25, None]
    dead = await job.refresh()
    assert (dead.state, dead.attempt) == ("dead", 4)
    assert [(error.attempt, error.kind, error.type, error.message) for error in dead.errors] == [
        (n, "failed", "ValueError", f"attempt {n}") for n in (1, 2, 3, 4)
    ]
    assert all(error.trace and error.member and error.started_at for error in dead.errors)


@pytest.mark.parametrize("on", [ConnectionError, (ConnectionError, KeyError)])
async def test_only_chosen_errors_are_tried_again(rota_app: TestRota, on: Any) -> None:
    @rota_app.task(retry=Retry(attempts=3, base=0, on=on))
    async def fail(kind: str) -> None:
        raise {"connection": ConnectionError, "value": ValueError}[kind]

    tried, not_tried = await fail.enqueue("connection"), await fail.enqueue("value")
    await rota_app.drain()

    assert ((await tried.refresh()).attempt, (await not_tried.refresh()).attempt) == (3, 1)


async def test_a_function_may_choose_the_pause_by_the_error(rota_app: TestRota) -> None:
    class RateLimited(Exception):
        def __init__(self, after: float) -> None:
            self.after = after

    @rota_app.task(retry=Retry(attempts=2, backoff=lambda n, error: getattr(error, "after", 1)))
    async def call() -> None:
        raise RateLimited(42)

    await call.enqueue()
    with rota_app.facts.recorded(JobFailedFact) as failed:
        await rota_app.drain()

    assert [each.retry_in for each in failed] == [42]


@pytest.mark.parametrize("backoff", [lambda n: 7 * n, lambda n, error: 7 * n, lambda *given: 7 * given[0]])
async def test_a_function_of_the_count_alone_will_do(rota_app: TestRota, backoff: Any) -> None:
    @rota_app.task(retry=Retry(attempts=2, backoff=backoff))
    async def call() -> None:
        raise ConnectionError

    await call.enqueue()
    with rota_app.facts.recorded(JobFailedFact) as failed:
        await rota_app.drain()

    assert [each.retry_in for each in failed] == [7]


async def test_a_wait_looks_once_more_when_its_time_is_up(rota_app: TestRota) -> None:
    @rota_app.task
    async def quick() -> int:
        return 7

    job = await quick.enqueue()
    with pytest.raises(WaitTimedOut, match="is still queued") as timed_out:
        await job.wait(timeout=0)
    assert isinstance(timed_out.value, TimeoutError)
    await rota_app.drain()

    assert await job.wait(timeout=0) == 7
    assert job.wait_sync(timeout=0) == 7


async def test_a_sync_body_that_raises_stop_iteration_fails_and_hangs_nobody(rota_app: TestRota) -> None:
    @rota_app.task(retry=1)
    def first() -> int:
        return next(iter([]))

    job = await first.enqueue()
    await rota_app.drain()

    dead = await job.refresh()
    assert (dead.state, dead.errors[-1].message) == ("dead", "the body raised StopIteration")


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that look when they are told to or something is due, but hardly ever for the sake of looking."""
    rounds = {"poll": 60, "poll_deaf": 60, "rescue_every": 60, "cancel_every": 60, "cancel_deaf": 60}
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, **rounds))


NOW = statement("now", "select {schema}.now()")


async def timer(app: TestRota, due_at: datetime) -> float:
    """How late a plain timer is, and one who then asks the database: no job can start sooner on this machine just now."""
    now = NOW.query(read=scalar)
    await asyncio.sleep((due_at - await app.database.run(now)).total_seconds())
    late: timedelta = await app.database.run(now) - due_at
    return late.total_seconds()


async def lateness(job: Job[Any]) -> float:
    """How late a job has started."""
    settled = await job.refresh()
    assert settled.started_at is not None
    return (settled.started_at - settled.due_at).total_seconds()


async def all_on_time(play: Callable[[], Awaitable[tuple[Sequence[float], Sequence[float]]]]) -> None:
    """Play a round, which tells how late jobs and timers were: most jobs start within 50 ms of the timers, and none too early.

    That is the bar for an idle machine. On one that is not, plain timers are late as well, and the round is played again.
    """
    for _ in range(5):
        late, timers = await play()
        beyond = statistics.median(job - timer for job, timer in zip(late, timers, strict=True))
        assert min(late) >= 0
        if beyond < 0.05:
            return
        assert max(timers) > 0.01, f"jobs started so many seconds late: {late}, while timers were on time: {timers}"
    assert beyond < 0.2, f"jobs started so many seconds late: {late}, and timers on this busy machine: {timers}"


@pytest.mark.usefixtures("seldom")
async def test_delayed_jobs_start_within_50_ms_of_their_time_and_hardly_a_look_is_made_before(
    rota_app: TestRota,
) -> None:
    @rota_app.task
    async def at() -> None: ...

    async def play() -> tuple[Sequence[float], Sequence[float]]:
        started, stopped = fact(rota_app.facts, WorkerStarted), fact(rota_app.facts, WorkerStopped, timeout=30)
        working = asyncio.create_task(rota_app.work())
        await started
        await at.using(delay=60).enqueue()
        # looks come 0.4 and 1.7 s after the last one that was told, and then seldom: none of these is found by chance
        jobs = [await at.using(delay=2.2 + 0.3 * n).enqueue() for n in range(5)]
        timers = await asyncio.gather(*(timer(rota_app, job.due_at) for job in jobs))
        await asyncio.gather(*(job.wait(10) for job in jobs))
        rota_app.stop()
        await working
        assert (await stopped).statements < 60  # a look every 50 ms would be as many alone
        return [await lateness(job) for job in jobs], timers

    await all_on_time(play)


@pytest.mark.usefixtures("seldom")
async def test_retried_jobs_start_within_50_ms_of_their_time_however_long_they_ran_before(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=2, backoff="constant", base=0.25, jitter=False))
    async def flaky(seconds: float) -> None:
        if current_job().attempt == 1:
            # by then the worker waits for its next look, and that comes more than a second later
            await asyncio.sleep(seconds)
            raise ConnectionError

    async def timer_of(job: Job[Any]) -> float:
        await fact(rota_app.facts, JobFailedFact, where=lambda failed: failed.job == job.id)
        return await timer(rota_app, (await job.refresh()).due_at)

    async def play() -> tuple[Sequence[float], Sequence[float]]:
        jobs = await rota_app.enqueue_many([flaky.bind(0.6 + 0.1 * n) for n in range(5)])
        working = asyncio.create_task(rota_app.work())
        timers = await asyncio.gather(*(timer_of(job) for job in jobs))
        await asyncio.gather(*(job.wait(10) for job in jobs))
        rota_app.stop()
        await working
        return [await lateness(job) for job in jobs], timers

    await all_on_time(play)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_attempt_that_takes_too_long_fails_and_is_tried_again(rota_app: TestRota, kind: str) -> None:
    release = threading.Event()

    @rota_app.task(name="async", timeout=0.1, retry=Retry(attempts=2, base=0))
    async def slow() -> None:
        await asyncio.sleep(60)

    @rota_app.task(name="sync", timeout=0.1, retry=Retry(attempts=2, base=0))
    def slow_sync() -> None:
        while not current_job().stopping:
            release.wait(0.01)

    job = await rota_app.tasks[kind].enqueue()
    await rota_app.drain()

    with pytest.raises(JobFailed, match=r"longer than its timeout of 0\.1 s"):
        await job.wait()
    assert [error.type for error in (await job.refresh()).errors] == ["TimeoutError", "TimeoutError"]


async def test_a_thread_that_ignores_its_timeout_is_settled_and_fenced_and_keeps_its_slot(rota_app: TestRota) -> None:
    release = threading.Event()
    late: list[str] = []

    @rota_app.task(timeout=0.1, retry=None)
    def deaf() -> None:
        release.wait()
        try:
            current_job().progress_sync(1)
        except Exception as error:
            late.append(type(error).__name__)

    @rota_app.task
    def next_one() -> None: ...

    stuck = await deaf.enqueue()
    working = asyncio.create_task(rota_app.work(concurrency=1))
    with rota_app.facts.recorded(JobStuck, JobSucceeded) as facts:
        with pytest.raises(JobFailed, match="longer than its timeout"):
            await stuck.wait(10)
        waiting = await next_one.enqueue()
        await asyncio.sleep(0.3)
        assert (await waiting.refresh()).state == "queued"
        release.set()
        await waiting.wait(10)
    rota_app.stop()
    await working

    assert [type(each) for each in facts] == [JobStuck, JobSucceeded]
    assert late == ["ClaimLost"]


async def test_a_coroutine_that_refuses_to_be_cancelled_is_settled_and_keeps_its_slot(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.jobs.execute._PATIENCE_SECONDS", 0.2)
    release = asyncio.Event()

    @rota_app.task(timeout=0.1, retry=None)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    @rota_app.task
    async def next_one() -> None: ...

    stuck = await stubborn.enqueue()
    working = asyncio.create_task(rota_app.work(concurrency=1))
    with rota_app.facts.recorded(JobStuck) as facts:
        with pytest.raises(JobFailed, match="longer than its timeout"):
            await stuck.wait(10)
        waiting = await next_one.enqueue()
        await asyncio.sleep(0.2)
        assert (await waiting.refresh()).state == "queued"
        release.set()
        await waiting.wait(10)
    rota_app.stop()
    await working

    assert len(facts) == 1
    assert (await stuck.refresh()).attempt == 1


async def test_jobs_of_a_newer_version_are_left_to_newer_workers(rota_app: TestRota, rota_database: str) -> None:
    newer = Rota(rota_database)

    @rota_app.task(name="greet")
    async def greet(name: str) -> str:
        return f"old {name}"

    @newer.task(name="greet", version=2)
    async def greet_anew(first: str, last: str) -> str:
        return f"new {first} {last}"

    @greet_anew.upgrade
    def split(arguments: dict[str, Any], version: int) -> dict[str, Any]:
        first, _, last = arguments["name"].partition(" ")
        return {"first": first, "last": last}

    old, new = await greet.enqueue("Ada Lovelace"), await greet_anew.enqueue("Alan", "Turing")
    second = await greet.enqueue("Grace Hopper")
    await rota_app.drain()
    assert ((await old.refresh()).state, (await new.refresh()).state) == ("succeeded", "queued")
    third = await greet.enqueue("Edsger Dijkstra")
    await newer.work(drain=True)

    assert await new.wait() == "new Alan Turing"
    assert [await old.wait(), await second.wait()] == ["old Ada Lovelace", "old Grace Hopper"]
    assert (await rota_app.jobs.get(third.id)).result == "new Edsger Dijkstra"
    assert (await new.refresh()).attempt == 1
    await newer.close()


async def test_a_payload_that_no_longer_fits_fails_that_one_job(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task(retry=None)
    async def greet(name: str) -> str:
        return name

    good = await greet.enqueue("ada")
    with psycopg.connect(rota_database, autocommit=True) as db:
        for args in ('{"nom": "x"}', '{"name": 7}', "{}"):
            db.execute("select rota.enqueue(%s, %s)", [greet.name, args])
    await rota_app.drain()

    assert await good.wait() == "ada"
    dead = await rota_app.jobs.list(state="dead")
    assert [(await job.refresh()).errors[0].type for job in dead] == ["InvalidArguments"] * 3


async def test_secrets_are_kept_from_people_but_not_from_the_body(rota_app: TestRota) -> None:
    @rota_app.task(redact=["password"], retry=None)
    async def log_in(user: str, password: str) -> None:
        raise PermissionError(f"{user} may not log in with {password}")

    job = await log_in.enqueue("ada", "open sesame")
    assert job.args == {"user": "ada", "password": "•••"}
    with rota_app.facts.recorded(JobFailedFact) as failed:
        await rota_app.drain()

    dead = await job.refresh()
    assert [str(each.error) for each in failed] == ["ada may not log in with •••"]
    assert dead.args == {"user": "ada", "password": "•••"}
    assert dead.errors[0].message == "ada may not log in with •••"
    assert "open sesame" not in (dead.errors[0].trace or "")


def test_redacting_what_is_no_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot redact secret: it has no such parameter, only user"):
        Rota("dbname=nowhere").task(redact=["secret"])(lambda user: None)


class Reversed:
    """A codec that everyone can undo, and that shows that it was used."""

    def encode(self, text: str) -> str:
        return base64.b64encode(text.encode()).decode()[::-1]

    def decode(self, text: str) -> str:
        return base64.b64decode(text[::-1]).decode()


async def test_a_codec_is_all_that_the_database_sees(rota_app: TestRota, rota_database: str) -> None:
    app = Rota(rota_database, codec=Reversed())

    @app.task(name="t", unique=True)
    async def echo(word: str) -> str:
        if current_job().saved is None:
            await current_job().checkpoint(["secret checkpoint"])
        assert current_job().saved == ["secret checkpoint"]
        return word + "!"

    job = await echo.enqueue("secret word")
    (many,) = await app.enqueue_many([echo.using(unique=None).bind("secret bulk")])
    with psycopg.connect(rota_database, autocommit=True) as db:
        stored = db.execute("select args::text from rota.jobs").fetchall()
        await app.work(drain=True)
        stored += db.execute("select args::text || result::text from rota.history").fetchall()

    assert [await job.wait(), await many.wait()] == ["secret word!", "secret bulk!"]
    assert (job.args, (await job.refresh()).args) == ({"word": "secret word"}, {"word": "secret word"})
    assert (await job.refresh()).result == "secret word!"
    assert (await rota_app.jobs.get(job.id)).args.keys() == {"rota:coded"}
    assert len(stored) == 4
    assert all("secret" not in text and "rota:coded" in text for (text,) in stored)
    await app.close()


async def test_a_payload_that_its_codec_cannot_read_fails_that_one_job(rota_app: TestRota, rota_database: str) -> None:
    app = Rota(rota_database, codec=Reversed())
    echo = app.task(name="t", retry=None)(lambda word: word)
    await echo.enqueue("x")
    plain = rota_app.task(name="t", retry=None)(lambda word: word)
    job = await plain.enqueue("y")
    await rota_app.drain()

    assert await job.wait() == "y"
    (dead,) = await rota_app.jobs.list(state="dead")
    assert "This payload was stored by a codec, and this app has none" in (
        (await dead.refresh()).errors[0].message or ""
    )
    await app.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"version": 0}, "version cannot be 0"),
        ({"executor": "fork"}, "executor cannot be 'fork'"),
        ({"redact": "password"}, "redact cannot be 'password': it is a list of parameter names"),
        ({"colour": 1}, "@task does not know colour"),
    ],
)
def test_options_that_cannot_work_are_refused(options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Rota("dbname=nowhere").task(**options)(lambda: None)


async def test_a_retention_class_that_nobody_declared_is_refused_before_work(rota_app: TestRota) -> None:
    rota_app.task(retention="audit")(lambda: None)

    with pytest.raises(ConfigurationError, match="retention 'audit'"):
        await rota_app.work(drain=True)


async def test_bad_input_is_refused_at_enqueue_with_the_field_named(rota_app: TestRota) -> None:
    @rota_app.task
    async def greet(name: str, age: int) -> None: ...

    with pytest.raises(InvalidArguments, match="argument age"):
        await greet.enqueue("ada", "old")  # type: ignore[arg-type]
    assert await rota_app.jobs.list() == []


@pytest.mark.direct("it listens")
@pytest.mark.usefixtures("seldom")
async def test_a_worker_is_told_of_a_cancel_and_need_not_look(rota_app: TestRota) -> None:
    entered = asyncio.Event()

    @rota_app.task
    async def long() -> None:
        entered.set()
        await asyncio.sleep(600)

    job = await long.enqueue()
    working = asyncio.create_task(rota_app.work())
    await entered.wait()
    await job.cancel()

    await until(lambda: rota_app.jobs.get_sync(job.id).state == "cancelled", what="the body was ended")
    rota_app.stop()
    await working


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Workers that hear of a wish to cancel, and would find it by looking only after a minute; a pooler lets nothing be heard."""
    if not pytestconfig.getoption("--pooled"):
        looks = functools.partial(WorkerSettings, cancel_every=60, cancel_deaf=60)
        monkeypatch.setattr("rota.workers.WorkerSettings", looks)


@pytest.mark.usefixtures("told_only")
async def test_an_async_body_that_is_cancelled_ends_as_cancelled_within_a_second(
    rota_app: TestRota, rota_database: str
) -> None:
    entered = asyncio.Event()

    @rota_app.task
    async def long() -> None:
        entered.set()
        await asyncio.sleep(600)

    job = await long.enqueue()
    working = asyncio.create_task(rota_app.work())
    await entered.wait()
    elsewhere = Rota(rota_database)
    begun = time.monotonic()
    told = await elsewhere.jobs.cancel(job.id, "changed my mind")
    assert told.cancel_requested_at is not None or told.state == "cancelled"
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "cancelled")

    assert time.monotonic() - begun < 10
    assert (await job.refresh()).reason == "changed my mind"
    rota_app.stop()
    await working
    await elsewhere.close()


def claimed(task: Task[..., Any], token: int) -> ClaimedJob:
    return ClaimedJob(1, "default", task.name, 0, 1, 0, 0.0, task.bind().args, token)


def executor_of(app: Rota) -> Executor:
    """One with a single thread, apart from any worker."""

    def unexpected(*_: Any) -> NoReturn:
        raise AssertionError("nothing is stuck here")

    desk = Desk(app.database, None, lambda: False)
    return Executor(
        app.tasks, threads=1, desk=desk, facts=app.facts, in_child=unexpected, stuck=unexpected, occupied=unexpected
    )


@pytest.mark.parametrize("timeout", [60, None])
async def test_a_body_that_is_cancelled_while_it_waits_for_a_thread_never_runs(timeout: float | None) -> None:
    app = Rota("dbname=nowhere")
    release, ran = threading.Event(), threading.Event()
    occupying = app.task(name="occupying")(release.wait)
    waiting = app.task(name="waiting", timeout=timeout)(ran.set)
    last = app.task(name="last")(lambda: ran.is_set())
    executor = executor_of(app)
    first = asyncio.create_task(executor.run(claimed(occupying, 1)))
    second = asyncio.create_task(executor.run(claimed(waiting, 2)))
    await until(lambda: len(executor.attempts()) == 2, what="one runs, and one waits for the thread")

    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    outcome = await executor.run(claimed(last, 3))
    executor.close()

    assert isinstance(outcome, Succeeded)
    assert outcome.result == "false"


async def test_nothing_is_left_of_a_body_that_ended_long_before_its_time_was_up() -> None:
    app = Rota("dbname=nowhere")

    @app.task(timeout=3600)
    async def quick() -> None: ...

    executor = executor_of(app)
    await executor.run(claimed(quick, 1))
    executor.close()

    forgotten = weakref.ref(executor)
    del executor
    gc.collect()
    assert forgotten() is None
