"""A signal from its arrival to the exit of the process: nothing is lost, and nothing is charged for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rota import Retry, current_job
from rota.facts import Drained, MemberJoined, MemberLeft, WorkerStopped
from rota.postgres.query import nothing, statement
from rota.testing import TestRota, WorkerProcess, fact, until

StartWorker = Callable[..., WorkerProcess]

APP = """
import asyncio, threading, time
from rota import Retry, Rota, current_job

app = Rota()

@app.task(name="nap")
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"

@app.task(name="nap_in_a_thread")
def nap_in_a_thread(seconds: float) -> str:
    time.sleep(seconds)
    return "rested"

@app.task(name="nap_beside")
async def nap_beside(seconds: float) -> None:
    await asyncio.to_thread(time.sleep, seconds)

@app.task(name="watchful")
def watchful() -> str:
    while not current_job().stopping:
        time.sleep(0.01)
    return "saw the stop"

@app.task(name="once", retry=Retry(attempts=1, losses=1))
async def once(file: str) -> None:
    with open(file, "a") as begun:
        begun.write("begun ")
    await asyncio.sleep(3600)

@app.task(name="stubborn")
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""


UNKNOWING = statement("unknowing", "update {schema}.jobs set lost_limit = null")


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    rota_app.task(name="nap")(_nap)
    rota_app.task(name="nap_in_a_thread")(_nap)
    rota_app.task(name="nap_beside")(_nap)
    rota_app.task(name="watchful")(_watchful)
    rota_app.task(name="stubborn")(_stubborn)
    return rota_app


def _nap(seconds: float) -> str:
    raise AssertionError("runs in the worker process")


def _watchful() -> str:
    raise AssertionError("runs in the worker process")


def _stubborn() -> None:
    raise AssertionError("runs in the worker process")


async def running(app: TestRota, count: int) -> None:
    async def there() -> bool:
        return len(await app.jobs.list(state="running")) == count

    await until(there, what=f"{count} running jobs")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
async def test_running_jobs_finish_and_the_process_leaves(app: TestRota, rota_worker: StartWorker, number: int) -> None:
    worker = rota_worker(APP)
    jobs = [await app.tasks[name].enqueue(0.5) for name in ("nap", "nap_in_a_thread")]
    await running(app, 2)

    worker.signal(number)
    assert worker.wait(10) == 0

    assert [await job.wait() for job in jobs] == ["rested", "rested"]
    (member,) = await app.members(ended=True)
    assert (member.state, member.end_reason) == ("ended", "left")


@pytest.mark.long
async def test_claiming_stops_at_once_and_what_waits_stays_for_others(app: TestRota, rota_worker: StartWorker) -> None:
    worker = rota_worker(APP, concurrency=1)
    first = await app.tasks["nap"].enqueue(0.5)
    await running(app, 1)
    rest = [await app.tasks["nap"].enqueue(0) for _ in range(5)]

    worker.terminate()
    assert worker.wait(10) == 0

    assert await first.wait() == "rested"
    assert [((await job.refresh()).state, (await job.refresh()).attempt) for job in rest] == [("queued", 0)] * 5


@pytest.mark.parametrize("by", ["python", "sql"])
@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.long
async def test_what_may_begin_only_once_is_buried_when_its_worker_goes(
    app: TestRota, rota_worker: StartWorker, tmp_path: Path, how: str, by: str
) -> None:
    """Whoever enqueued it: plain SQL does not know what the task says."""
    once = app.task(name="once", retry=Retry(attempts=1, losses=1))(lambda file: None)
    worker = rota_worker(APP)
    job = await once.enqueue(str(tmp_path / "file"))
    if by == "sql":
        await app.database.run(UNKNOWING.query(read=nothing))
    (tmp_path / "file").touch()
    await until(lambda: (tmp_path / "file").read_text() == "begun ", what="it has begun")
    if how == "killed":
        worker.kill()
    else:
        worker.terminate()
        worker.wait_for_output("stopping")
        worker.terminate()
        assert worker.wait(10) == 0
    rota_worker(APP)

    await until(lambda: app.jobs.get_sync(job.id).state == "dead", what="it is buried")
    letter = await app.dead.get(job.id)
    assert letter.reason == "lost"
    assert (tmp_path / "file").read_text() == "begun "

    again = await job.retry()
    await until(lambda: (tmp_path / "file").read_text() == "begun begun ", what="someone who may has it begun again")
    assert again.id != job.id


@pytest.mark.long
async def test_what_does_not_finish_in_time_is_handed_back_without_costing_an_attempt(
    app: TestRota, rota_worker: StartWorker
) -> None:
    worker = rota_worker(APP, args=["--grace", "0.2"])
    jobs = [await app.tasks["nap"].enqueue(60) for _ in range(2)]
    await running(app, 2)

    worker.terminate()
    assert worker.wait(10) == 0

    settled = [await job.refresh() for job in jobs]
    assert [(job.state, job.attempt, job.losses, job.errors) for job in settled] == [("queued", 0, 0, ())] * 2


@pytest.mark.long
async def test_a_second_signal_hands_running_jobs_back_at_once(app: TestRota, rota_worker: StartWorker) -> None:
    worker = rota_worker(APP)
    job = await app.tasks["nap"].enqueue(60)
    await running(app, 1)

    worker.terminate()
    worker.wait_for_output("stopping")
    worker.terminate()
    assert worker.wait(10) == 0

    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)


@pytest.mark.long
async def test_a_body_can_see_that_the_worker_wants_to_stop(app: TestRota, rota_worker: StartWorker) -> None:
    worker = rota_worker(APP)
    job = await app.tasks["watchful"].enqueue()
    await running(app, 1)

    worker.terminate()
    assert worker.wait(10) == 0

    assert await job.wait() == "saw the stop"


async def test_a_worker_told_to_drain_ends_when_nothing_is_left(app: TestRota, rota_worker: StartWorker) -> None:
    jobs = await app.enqueue_many([app.tasks["nap"].bind(0.01) for _ in range(50)])

    worker = rota_worker(APP, args=["--drain"], wait=False)
    assert worker.wait(20) == 0

    assert {(await job.refresh()).state for job in jobs} == {"succeeded"}


async def test_queues_keep_workers_apart(app: TestRota, rota_worker: StartWorker) -> None:
    mine = await app.tasks["nap"].using(queue="a").enqueue(0)
    other = await app.tasks["nap"].using(queue="c").enqueue(0)

    assert rota_worker(APP, queues=["a", "b"], args=["--drain"], wait=False).wait(20) == 0

    assert [(await job.refresh()).state for job in (mine, other)] == ["succeeded", "queued"]


async def test_cancelling_work_hands_back_at_once_and_leaves(rota_app: TestRota) -> None:
    @rota_app.task
    async def forever() -> None:
        await asyncio.Event().wait()

    job = await forever.enqueue()
    working = asyncio.create_task(rota_app.work())
    await running(rota_app, 1)

    with rota_app.facts.recorded(Drained, WorkerStopped, MemberLeft) as steps:
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    # who left first would look dead while it still hands back, and a peer would run the job as well
    assert [type(step) for step in steps] == [Drained, WorkerStopped, MemberLeft]
    assert steps[0].handed_back == 1
    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)
    assert [m.end_reason for m in await rota_app.members(ended=True)] == ["left"]


async def test_a_body_that_ignores_its_cancellation_is_not_waited_for_and_its_outcome_is_void(
    rota_app: TestRota,
) -> None:
    release = asyncio.Event()

    @rota_app.task
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    job = await stubborn.enqueue()
    working = asyncio.create_task(rota_app.work(grace=0.1))
    await running(rota_app, 1)

    rota_app.stop()
    await working
    release.set()

    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)


@pytest.mark.parametrize(
    ("name", "arguments", "left"),
    [
        pytest.param("stubborn", [], "1 coroutine(s) refuse to be cancelled", marks=pytest.mark.long),
        ("nap_in_a_thread", [3600], "1 thread(s) are still in the body of a task"),
        pytest.param("nap_beside", [3600], "1 thread(s) are still in the body of a task", marks=pytest.mark.long),
    ],
)
async def test_a_body_that_cannot_be_ended_does_not_keep_the_process_and_is_told_of(
    app: TestRota, rota_worker: StartWorker, name: str, arguments: list[int], left: str
) -> None:
    worker = rota_worker(APP, args=["--grace", "0.2"])
    job = await app.tasks[name].enqueue(*arguments)
    await running(app, 1)

    worker.terminate()

    assert worker.wait(10) == 1
    assert left in worker.output()
    assert "this is where its threads are" not in worker.output()  # in order, and not by the hard limit
    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)


@pytest.mark.direct("the pooler is warned of")
async def test_a_stop_while_idle_is_immediate(app: TestRota, rota_worker: StartWorker) -> None:
    worker = rota_worker(APP)

    worker.terminate()
    assert worker.wait(20) == 0

    assert "drained: 0 finished, 0 handed back" in worker.output()
    assert "WARNING" not in worker.output()


async def test_cancelling_while_it_starts_leaves_no_member_behind(rota_app: TestRota) -> None:
    joined = fact(rota_app.facts, MemberJoined)
    working = asyncio.create_task(rota_app.work())
    rota_app.facts.subscribe(lambda _: working.get_loop().call_soon_threadsafe(working.cancel), MemberJoined)

    with pytest.raises(asyncio.CancelledError):
        await working

    await joined

    async def has_left() -> bool:
        return [member.end_reason for member in await rota_app.members(ended=True)] == ["left"]

    await until(has_left)  # the caller has not waited for it


async def test_cancelling_a_stop_under_way_hurries_it_and_is_not_swallowed(rota_app: TestRota) -> None:
    told = asyncio.Event()

    @rota_app.task
    async def forever() -> None:
        while True:
            if current_job().stopping:
                told.set()
            await asyncio.sleep(0.01)

    job = await forever.enqueue()
    working = asyncio.create_task(rota_app.work(grace=60))
    await running(rota_app, 1)
    rota_app.stop()
    await told.wait()

    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert ((await job.refresh()).state, (await job.refresh()).attempt) == ("queued", 0)
    assert [m.end_reason for m in await rota_app.members(ended=True)] == ["left"]
