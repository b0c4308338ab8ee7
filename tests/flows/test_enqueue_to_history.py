"""A job from the call to its place in history, with one process."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

import rota
from rota import (
    ConfigurationError,
    InvalidArguments,
    JobFailed,
    JobNotFound,
    Package,
    PayloadTooLarge,
    Retry,
    current_job,
)
from rota.testing import TestRota


async def test_a_flood_in_one_queue_does_not_keep_another_waiting(rota_app: TestRota) -> None:
    order: list[str] = []

    @rota_app.task
    async def work(queue: str) -> None:
        order.append(queue)
        await asyncio.sleep(0)

    await rota_app.enqueue_many([work.using(queue="flood").bind("flood") for _ in range(3000)])
    await rota_app.enqueue_many([work.using(queue="calm").bind("calm") for _ in range(5)])
    await rota_app.drain(concurrency=5)

    assert len(order) == 3005
    assert max(place for place, queue in enumerate(order) if queue == "calm") < 1500


async def test_an_async_task_is_called_with_what_it_was_enqueued_with(rota_app: TestRota) -> None:
    @rota_app.task
    async def greet(name: str, *, loud: bool = False) -> str:
        return name.upper() if loud else name

    quiet, loud = await greet.enqueue("ana"), await greet.enqueue("bo", loud=True)
    assert await rota_app.drain() == 2

    assert [await quiet.wait(), await loud.wait()] == ["ana", "BO"]
    settled = await loud.refresh()
    assert (settled.state, settled.attempt, settled.args, settled.errors) == (
        "succeeded",
        1,
        {"name": "bo", "loud": True},
        (),
    )
    assert settled.started_at is not None
    assert settled.finished_at is not None
    assert settled.created_at <= settled.started_at <= settled.finished_at


def test_a_sync_task_runs_in_a_thread_and_sync_code_can_do_it_all(rota_app: TestRota) -> None:
    @rota_app.task
    def where() -> str:
        return threading.current_thread().name

    job = where.enqueue_sync()
    rota_app.drain_sync()

    assert job.wait_sync(20).startswith("rota-task")
    assert rota_app.jobs.get_sync(job.id).state == "succeeded"
    assert [found.id for found in rota_app.jobs.list_sync()] == [job.id]


async def test_the_function_stays_a_function(rota_app: TestRota) -> None:
    @rota_app.task
    async def later(n: int) -> int:
        """Twice."""
        return 2 * n

    @rota_app.task
    def now(n: int) -> int:
        return 3 * n

    assert await later(2) == 4
    assert now(2) == 6
    assert (later.__name__, later.__doc__, later.name) == (
        "later",
        "Twice.",
        "later",
    )


async def test_options_of_the_next_job_come_in_a_separate_call(rota_app: TestRota) -> None:
    order: list[str] = []

    @rota_app.task
    async def note(word: str) -> None:
        order.append(word)

    urgent = note.using(priority=10)
    await note.enqueue("second")
    await urgent.enqueue("first")
    later = await note.using(delay="5m").enqueue("third")
    at = await note.using(at=datetime.now(UTC) + timedelta(hours=2)).enqueue("fourth")
    elsewhere = await note.using(queue="other", tags=["user:1"]).enqueue("elsewhere")

    await rota_app.drain(queues=["default"], concurrency=1)
    assert order == ["first", "second"]
    assert [job.id for job in await rota_app.jobs.list(state="queued")] == [elsewhere.id, at.id, later.id]

    rota_app.advance("5m")
    await rota_app.drain(queues=["default"])
    assert order == ["first", "second", "third"]

    rota_app.advance("2h")
    await rota_app.drain()
    assert sorted(order[3:]) == ["elsewhere", "fourth"]
    assert [job.id for job in await rota_app.jobs.list(tag="user:1")] == [elsewhere.id]


async def test_many_jobs_are_added_in_one_go_and_in_order(rota_app: TestRota) -> None:
    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    @rota_app.task(queue="other")
    async def word(text: str) -> str:
        return text

    mixed = [
        double.bind(n) if n % 3 else word.using(delay="1s", tags=[f"n:{n}", 'odd "tag", \\']).bind(f"w{n}")
        for n in range(6_000)  # more than one statement takes
    ]
    jobs = await rota_app.enqueue_many(mixed)
    rota_app.advance("1s")
    assert await rota_app.drain() == 6_000

    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert [job.task for job in jobs[:4]] == [word.name, double.name, double.name, word.name]
    assert [await jobs[n].wait() for n in (0, 1, 7, 5_997)] == ["w0", 2, 14, "w5997"]
    assert (await jobs[3].refresh()).tags == ("n:3", 'odd "tag", \\')
    assert await rota_app.enqueue_many([]) == []


async def test_enqueueing_many_is_all_or_nothing(rota_app: TestRota) -> None:
    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute("alter table rota.jobs add check ((args ->> 'n')::int <> 9999)")
    with pytest.raises(rota.RotaError, match="violates check constraint"):
        await rota_app.enqueue_many([double.bind(n) for n in range(10_000)])

    assert rota_app.enqueued() == []


async def test_a_failing_task_is_retried_and_then_dead_with_every_error_on_record(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=3, base="1m", jitter=False))
    def fail(word: str) -> None:
        raise ValueError(f"no {word} in attempt {current_job().attempt}")

    job = await fail.enqueue("luck")
    for _ in range(3):
        await rota_app.drain()
        rota_app.advance("10m")

    with pytest.raises(JobFailed, match="dead after 3 attempt.*ValueError: no luck in attempt 3"):
        await job.wait()
    dead = await job.refresh()
    assert (dead.state, dead.attempt) == ("dead", 3)
    assert [(e.attempt, e.kind, e.type, e.message) for e in dead.errors] == [
        (n, "failed", "ValueError", f"no luck in attempt {n}") for n in (1, 2, 3)
    ]
    trace = dead.errors[0].trace
    assert trace is not None
    assert "raise ValueError" in trace
    assert "rota/jobs" not in trace


async def test_a_pause_between_attempts_is_kept_in_the_database(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=2, base=60, jitter=False))
    async def flaky() -> int:
        if current_job().attempt == 1:
            raise ConnectionError("not now")
        return current_job().attempt

    job = await flaky.enqueue()
    await rota_app.drain()
    await rota_app.drain()
    assert (await job.refresh()).state == "queued"

    rota_app.advance("61s")
    await rota_app.drain()
    assert await job.wait() == 2


@pytest.mark.parametrize("how", ["exit", "cancel", "unstorable result", "odd error", "broken backoff"])
async def test_whatever_a_body_does_fails_that_job_and_never_the_worker(rota_app: TestRota, how: str) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("even its text")

    def broken(n: int, error: BaseException) -> float:
        raise KeyError("backoff")

    @rota_app.task(retry=Retry(1, backoff=broken) if how != "broken backoff" else Retry(5, backoff=broken))
    async def misbehave() -> object:
        match how:
            case "exit":
                sys.exit(3)
            case "cancel":
                raise asyncio.CancelledError
            case "unstorable result":
                return object()
            case "odd error":
                raise Odd("\0 \ud800")
        raise ValueError

    @rota_app.task
    async def behave() -> str:
        return "well"

    bad, good = await misbehave.enqueue(), await behave.enqueue()
    await rota_app.drain()

    assert await good.wait() == "well"
    assert (await bad.refresh()).state == "dead"


async def test_a_timeout_ends_an_attempt(rota_app: TestRota) -> None:
    @rota_app.task(timeout="50ms", retry=None)
    async def forever() -> None:
        await asyncio.Event().wait()

    job = await forever.enqueue()
    await rota_app.drain()

    with pytest.raises(JobFailed, match="TimeoutError"):
        await job.wait()


async def test_a_payload_that_no_longer_fits_fails_that_one_job(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def typed(n: int) -> int:
        return n

    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute("select rota.enqueue(%s, '{\"m\": true}')", [typed.name])
    good = await typed.enqueue(1)
    await rota_app.drain()

    assert await good.wait() == 1
    (dead,) = await rota_app.jobs.list(state="dead")
    assert (await dead.refresh()).errors[0].type == "InvalidArguments"


async def test_plain_sql_enqueues_in_the_callers_transaction(rota_app: TestRota) -> None:
    @rota_app.task(name="add")
    async def add(a: int, b: int = 1) -> int:
        return a + b

    with psycopg.connect(rota_app.database.dsn.conninfo) as connection:
        connection.execute("select rota.enqueue('add', '{\"a\": 1}')")
        connection.rollback()
        row = connection.execute("select rota.enqueue('add', '{\"a\": 2}', priority => 3, queue => 'sql')").fetchone()
        connection.commit()
    assert await rota_app.drain() == 1

    assert row is not None
    job = await rota_app.jobs.get(row[0])
    assert (job.result, job.priority, job.queue) == (3, 3, "sql")


async def test_inside_a_task_the_job_is_known(rota_app: TestRota) -> None:
    @rota_app.task
    async def who() -> list[object]:
        job = current_job()
        await asyncio.sleep(0)
        assert job is current_job()
        return [job.id, job.attempt, job.task, job.idempotency_key, job.stopping]

    @rota_app.task
    def who_in_a_thread() -> int:
        return current_job().id

    first, second = await who.enqueue(), await who_in_a_thread.enqueue()
    await rota_app.drain()

    assert await first.wait() == [first.id, 1, who.name, f"rota:{first.id}", False]
    assert await second.wait() == second.id
    with pytest.raises(rota.RotaError, match="no current job"):
        current_job()


async def test_jobs_enqueued_by_jobs_are_drained_too(rota_app: TestRota) -> None:
    @rota_app.task
    async def countdown(n: int) -> None:
        if n:
            await countdown.enqueue(n - 1)

    await countdown.enqueue(5)

    assert await rota_app.drain() == 6


async def test_a_package_gives_a_library_tasks_without_the_app(rota_app: TestRota) -> None:
    mail = Package("mail")

    @mail.task
    async def send(to: str) -> str:
        return f"sent to {to}"

    with pytest.raises(ConfigurationError, match=r"app\.package"):
        await send.enqueue("ana")

    rota_app.package(mail)

    @mail.task
    async def bounce(to: str) -> str:
        return f"bounced from {to}"

    sent, bounced = await send.enqueue("ana"), await bounce.enqueue("bo")
    await rota_app.drain()
    assert sent.task == "mail.send"
    assert [await sent.wait(), await bounced.wait()] == ["sent to ana", "bounced from bo"]

    named = rota_app.package("billing")

    @named.task(name="charge")
    async def charge() -> None: ...

    assert charge.name == "billing.charge"
    assert "billing.charge" in rota_app.tasks


def test_inline_mode_needs_no_database_at_all() -> None:
    app = rota.Rota("host=127.0.0.1 port=1")

    @app.task
    async def outer(n: int) -> list[int]:
        return [n, await (await inner.enqueue(n)).wait()]

    @app.task
    def inner(n: int) -> int:
        return 10 * n + current_job().attempt

    @app.task
    def fail() -> None:
        raise LookupError("seen by the caller")

    with app.inline():
        job = outer.enqueue_sync(4)
        assert (job.state, job.wait_sync()) == ("succeeded", [4, 41])
        assert [j.wait_sync() for j in app.enqueue_many_sync([inner.bind(1), inner.bind(2)])] == [11, 21]
        with pytest.raises(LookupError, match="seen by the caller"):
            fail.enqueue_sync()
        with pytest.raises(InvalidArguments):
            inner.enqueue_sync("x")  # type: ignore[arg-type]
    with pytest.raises(rota.DatabaseUnavailable):
        inner.enqueue_sync(1)


@pytest.mark.one_server
async def test_bad_input_is_refused_with_the_field_named_and_nothing_is_stored(rota_app: TestRota) -> None:
    @rota_app.task
    async def task(n: int, text: str = "", anything: object = None) -> None: ...

    for arguments, says in [
        (("7",), "n"),
        ((1, "a\0b"), "text"),
        ((1, "\ud800"), "text"),
        ((1, "", float("nan")), "anything"),
        ((1, "", object()), "anything"),
        ((1, "", {1: 2}), "anything"),
        ((), "n"),
    ]:
        with pytest.raises(InvalidArguments, match=says):
            await task.enqueue(*arguments)  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        await task.enqueue(1, "x" * 2_000_000)
    for options, says in [
        ({"urgency": 5}, "cannot be enqueued using urgency"),
        ({"delay": "soon"}, "delay cannot be 'soon'"),
        ({"delay": 1, "at": datetime.now(UTC)}, "both delay"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),
        ({"priority": 40_000}, "priority cannot be 40000"),
        ({"queue": ""}, "queue cannot be ''"),
        ({"tags": "user:1"}, "tags cannot be 'user:1'"),
    ]:
        with pytest.raises(rota.RotaError, match=says):
            task.using(**options)
    with pytest.raises(ConfigurationError, match=r"item 1 is 5.*task\.bind"):
        await rota_app.enqueue_many([task.bind(1), 5])  # type: ignore[list-item]

    assert rota_app.enqueued() == []


@pytest.mark.one_server
def test_bad_declarations_are_refused_where_they_are_written(rota_app: TestRota) -> None:
    for options, says in [
        ({"retries": 3}, "does not know retries"),
        ({"queue": "x" * 201}, "queue cannot be"),
        ({"timeout": 0}, "timeout cannot be"),
        ({"priority": "high"}, "priority cannot be"),
        ({"name": ""}, "a task name cannot be"),
    ]:
        with pytest.raises(ConfigurationError, match=says):
            rota_app.task(**options)(lambda: None)
    rota_app.task(name="twice")(lambda: None)
    with pytest.raises(ConfigurationError, match="Two tasks are called 'twice'"):
        rota_app.task(name="twice")(lambda: 1)
    with pytest.raises(ConfigurationError, match="cannot be a task"):
        rota_app.task(5)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"queues=\['mail'\]"):
        rota_app.work_sync(queues="mail")


async def test_looking_at_jobs_by_page_and_filter(rota_app: TestRota) -> None:
    @rota_app.task
    async def ok() -> None: ...

    @rota_app.task(retry=None, queue="bad")
    async def bad() -> None:
        raise ValueError

    jobs = [*await rota_app.enqueue_many([ok.bind() for _ in range(5)]), await bad.enqueue()]
    await rota_app.drain()
    waiting = await ok.enqueue()
    ids = [job.id for job in [*jobs, waiting]]

    assert [job.id for job in await rota_app.jobs.list()] == ids[::-1]
    page = await rota_app.jobs.list(limit=3)
    assert [job.id for job in await rota_app.jobs.list(limit=3, after=page[-1].id)] == ids[::-1][3:6]
    assert [job.id for job in await rota_app.jobs.list(state="dead")] == [jobs[-1].id]
    assert [job.id for job in await rota_app.jobs.list(queue="bad")] == [jobs[-1].id]
    assert {job.state for job in await rota_app.jobs.list(task=ok.name)} == {"succeeded", "queued"}
    with pytest.raises(ConfigurationError, match="No job is ever 'lost'"):
        await rota_app.jobs.list(state="lost")
    for missing in (999_999, -1, 2**80):
        with pytest.raises(JobNotFound):
            await rota_app.jobs.get(missing)
    with pytest.raises(TimeoutError, match="still queued"):
        await waiting.wait(timeout=0.05)


@pytest.mark.parametrize("first_id", [2**31 - 2, 2**53 + 1])
async def test_ids_beyond_32_bits_and_beyond_what_a_float_holds(rota_app: TestRota, first_id: int) -> None:
    @rota_app.task
    async def me() -> int:
        return current_job().id

    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as admin:
        admin.execute("select setval('rota.jobs_id_seq', %s, false)", [first_id])
    jobs = await rota_app.enqueue_many([me.bind() for _ in range(4)])
    await rota_app.drain()

    assert [await job.wait() for job in jobs] == [first_id + n for n in range(4)]
