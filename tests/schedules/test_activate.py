"""A run tells a dormant schedule that follows its own to run; and every run knows whose it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from rota import ClaimLost, InvalidArguments, NotPossible, Retry, Rota, ScheduleNotFound, current_job
from rota.jobs.claim import ClaimedJob
from rota.jobs.errand import Errand, Standing, written_errand
from rota.testing import TestRota

Body = Callable[[], Any]
seen: list[Any] = []


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    seen.clear()

    @rota_app.task(queue="later")
    def child(a: int = 0, b: int = 0) -> None:
        seen.append((a, b))

    rota_app.schedules.put_sync("parent", task="parent")
    rota_app.schedules.put_sync("child", task=child, args={"a": 1}, after="parent", dormant=True)
    return rota_app


async def activating(app: TestRota, *args: Any) -> Any:
    """What job.activate does in a run of the parent."""
    came: list[Any] = []

    @app.task(name="parent", retry=Retry(attempts=1))
    async def parent() -> None:
        try:
            came.append(await current_job().activate(*args))
        except Exception as error:
            came.append(error)

    await app.schedules.trigger("parent")
    await app.drain(queues=["default"])
    del app.tasks._tasks["parent"]
    return came[0]


async def test_a_dormant_schedule_runs_when_a_run_of_its_parent_says_so(app: TestRota) -> None:
    assert await activating(app, "child", {"b": 2}) is True
    await app.drain()

    assert seen == [(1, 2)]
    (run,) = await app.schedules.history("child")
    (parent,) = await app.schedules.history("parent")
    assert (run.cause, run.state, run.parent_job, run.slot_at) == ("activated", "succeeded", parent.job, parent.slot_at)


async def test_without_that_it_does_not_run(app: TestRota) -> None:
    app.task(name="parent")(lambda: None)
    await app.schedules.trigger("parent")
    await app.drain()

    assert seen == []
    child = await app.schedules.get("child")
    assert (child.state, child.when) == ("waiting", "When a run of 'parent' activates it")
    assert child.why_idle == "it waits until 'parent' activates it"


async def test_one_that_waits_runs_or_is_paused_is_not_activated_again(app: TestRota) -> None:
    assert await activating(app, "child") is True
    assert await activating(app, "child") is False
    await app.drain()
    assert await activating(app, "child") is True
    await app.drain()
    await app.schedules.pause("child")
    assert await activating(app, "child") is False

    assert len(seen) == 2


async def test_an_activated_run_counts_and_no_more_than_so_many_are_given(app: TestRota) -> None:
    await app.schedules.put("child", task="child", args={"a": 1}, after="parent", dormant=True, max_runs=2)

    assert [await activate_and_run(app) for _ in range(3)] == [True, True, False]

    assert len(seen) == 2
    child, (newest, _) = await app.schedules.get("child"), await app.schedules.history("child")
    assert (child.runs, child.last_slot, child.state) == (2, newest.slot_at, "ended")
    assert child.why_idle == "it has had its 2 run(s)"


async def test_nothing_is_activated_outside_of_its_time(app: TestRota, db: psycopg.Connection[Any]) -> None:
    ((clock,),) = db.execute("select rota.now()").fetchall()
    await app.schedules.put(
        "child",
        task="child",
        after="parent",
        dormant=True,
        start_at=clock + timedelta(hours=1),
        end_at=clock + timedelta(hours=2),
    )

    came = []
    for _ in range(3):
        came.append(await activate_and_run(app))
        app.advance("1h")

    assert came == [False, True, False]


async def activate_and_run(app: TestRota) -> Any:
    came = await activating(app, "child")
    await app.drain()
    return came


async def test_only_dormant_children_of_its_own_schedule_can_be_activated(app: TestRota) -> None:
    await app.schedules.put("awake", task="child", after="parent")
    await app.schedules.put("others", task="child", after="awake", dormant=True)

    awake, stranger, unknown = [await activating(app, name) for name in ("awake", "others", "nobody")]
    wrong = await activating(app, "child", {"b": object()})

    assert isinstance(awake, NotPossible)
    assert "is not dormant" in str(awake)
    assert isinstance(stranger, NotPossible)
    assert "does not follow" in str(stranger)
    assert isinstance(unknown, ScheduleNotFound)
    assert isinstance(wrong, InvalidArguments)


async def test_a_job_of_no_schedule_activates_nothing(app: TestRota) -> None:
    @app.task
    def loose() -> None:
        with pytest.raises(NotPossible, match="does not follow"):
            current_job().activate_sync("child")
        seen.append((current_job().schedule, current_job().slot_at))

    await loose.enqueue()
    await app.drain()

    assert seen == [(None, None)]


async def test_an_attempt_that_lost_its_claim_activates_nothing(app: TestRota, db: psycopg.Connection[Any]) -> None:
    @app.task(name="parent")
    def parent() -> None:
        db.execute("update rota.jobs set token = token + 1 where state = 'running'")
        with pytest.raises(ClaimLost):
            current_job().activate_sync("child")
        db.execute("update rota.jobs set token = token - 1 where state = 'running'")

    await app.schedules.trigger("parent")
    await app.drain()

    assert [run.state for run in await app.schedules.history("parent")] == ["succeeded"]
    assert await app.schedules.history("child") == []


async def test_a_codec_keeps_the_arguments_of_an_activation(rota_database: str, db: psycopg.Connection[Any]) -> None:
    class Reversed:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    seen.clear()
    app = Rota(rota_database, codec=Reversed())
    app.task(name="parent")(lambda: current_job().activate_sync("child", {"b": 2}))
    app.task(name="child")(lambda a, b: seen.append((a, b)))
    async with app:
        await app.schedules.put("parent", task="parent")
        await app.schedules.put("child", task="child", args={"a": 1}, after="parent", dormant=True)
        await app.schedules.trigger("parent")
        await app.work(drain=True)

    assert seen == [(1, 2)]
    assert db.execute("select bool_and(args ? 'rota:coded') from rota.history").fetchall() == [(True,)]


async def test_a_run_knows_its_schedule_and_the_moment_it_stands_for(app: TestRota) -> None:
    @app.task
    def who() -> None:
        seen.append((current_job().schedule, current_job().slot_at))

    put = await app.schedules.put("hourly", task=who, every="1h")
    app.advance("1h 10s")
    await app.drain()

    assert seen == [("hourly", put.next_slot)]
    assert seen[0][1].utcoffset() == timedelta(0)
    (run,) = await app.schedules.history("hourly")
    assert run.job is not None
    job = await app.jobs.get(run.job)
    assert (job.schedule, job.slot_at) == ("hourly", put.next_slot)
    assert [(each.schedule, each.slot_at) for each in await app.jobs.list()] == [("hourly", put.next_slot)]


def test_a_run_in_a_process_of_its_own_knows_them_too() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    scheduled = ClaimedJob(1, "q", "t", 0, 1, 0, 0.0, "{}", token=3, schedule="s", slot_at=moment)
    plain = ClaimedJob(1, "q", "t", 0, 1, 0, 0.0, "{}", token=3)

    standing = Standing(7, "t", (), "path", "rota", "dsn")
    for job in (scheduled, plain):
        sent = json.loads(written_errand(job, standing.number, None))
        assert Errand.from_message(sent, {7: standing}).job == job
