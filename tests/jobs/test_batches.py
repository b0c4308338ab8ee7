"""Batches: many jobs under one handle, with a callback that comes exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from rota import (
    BatchNotFound,
    ConfigurationError,
    InvalidArguments,
    NotPossible,
    Progress,
    Retry,
    WaitTimedOut,
)
from rota.testing import TestRota

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("history_aside")]


class Tasks:
    def __init__(self, app: TestRota) -> None:
        self.told: list[Progress] = []
        self.hold: asyncio.Event | None = None

        @app.task(name="work", retry=Retry(attempts=1))
        async def work(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            if n == 0 and self.hold is not None:
                await self.hold.wait()
            return n

        @app.task(name="report")
        async def report(progress: Progress, to: str = "all") -> None:
            self.told.append(progress)

        @app.task(name="ring")
        async def ring() -> None:
            self.told.append(Progress(0, 0))

        self.work, self.report, self.ring = work, report, ring


@pytest.fixture
def tasks(rota_app: TestRota) -> Tasks:
    return Tasks(rota_app)


async def test_the_callback_comes_once_with_what_became_of_all(rota_app: TestRota, tasks: Tasks) -> None:
    members = [tasks.work.bind(n) for n in (1, 2, -1)]
    batch = await rota_app.batches.start(
        [*members, tasks.work.using(delay="1h").bind(4)], then=tasks.report, name="nightly"
    )
    await rota_app.drain()
    midway, told_midway = await batch.progress(), list(tasks.told)
    rota_app.advance("1h")
    await rota_app.drain()

    assert midway == Progress(batch.id, 4, succeeded=2, dead=1, waiting=1, name="nightly")
    assert (midway.left, midway.done, told_midway) == (1, 3, [])
    assert tasks.told == [Progress(batch.id, 4, succeeded=3, dead=1, name="nightly")]
    assert await batch.wait(5) == tasks.told[0]
    closed = await rota_app.batches.get(batch.id)
    assert (closed.name, closed.total, closed.closed_at is not None) == ("nightly", 4, True)


async def test_a_letter_that_is_retried_counts_again_and_calls_nobody(rota_app: TestRota, tasks: Tasks) -> None:
    batch = await rota_app.batches.start([tasks.work.bind(-1), tasks.work.bind(1)], then=tasks.report)
    await rota_app.drain()
    (letter,) = await rota_app.dead.list()
    await rota_app.dead.retry(letter.id, {"n": 1})
    during = await batch.progress()
    await rota_app.drain()

    assert during == Progress(batch.id, 2, succeeded=1, waiting=1)
    assert await batch.progress() == Progress(batch.id, 2, succeeded=2)
    assert len(tasks.told) == 1


async def test_an_empty_batch_calls_back_too(rota_app: TestRota, tasks: Tasks) -> None:
    batch = await rota_app.batches.start([], then=tasks.report)
    waiting = [job.state for job in await rota_app.jobs.list()]
    await rota_app.drain()

    assert waiting == ["queued"]  # it was looked at when it was started
    assert tasks.told == [await batch.wait(5)] == [Progress(batch.id, 0)]


async def test_the_rest_of_a_batch_is_cancelled_and_the_callback_comes(rota_app: TestRota, tasks: Tasks) -> None:
    tasks.hold = asyncio.Event()
    batch = await rota_app.batches.start([tasks.work.bind(n) for n in range(6)], then=tasks.ring)
    working = asyncio.create_task(rota_app.work(concurrency=1))
    while not (await batch.progress()).running:
        await asyncio.sleep(0.01)
    would = await rota_app.batches.cancel(batch.id, dry_run=True)
    before = await batch.progress()
    cancelled = await batch.cancel("too late")
    progress = await batch.wait(20)
    while not tasks.told:
        await asyncio.sleep(0.01)
    rota_app.stop()
    await working

    assert would == before.left
    assert progress.cancelled == cancelled > 0
    assert progress.succeeded + progress.cancelled == 6
    assert len(tasks.told) == 1
    reasons = {job.reason for job in await rota_app.jobs.list(state="cancelled")}
    assert reasons == {"too late"}


async def test_progress_outlives_the_history(rota_app: TestRota, tasks: Tasks, rota_database: str) -> None:
    batch = await rota_app.batches.start([tasks.work.bind(1), tasks.work.bind(-1)])
    await rota_app.drain()
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("delete from rota.history")

    assert await batch.progress() == Progress(batch.id, 2, succeeded=1, dead=1)


async def test_batches_are_listed_and_links_of_chains_are_not(rota_app: TestRota, tasks: Tasks) -> None:
    await tasks.work.bind(1).then(tasks.work).enqueue()
    first = await rota_app.batches.start([tasks.work.bind(1)], name="a")
    second = await rota_app.batches.start([tasks.work.using(delay="1h").bind(1)], name="b")
    await rota_app.drain()

    assert [each.id for each in await rota_app.batches.list()] == [second.id, first.id]
    assert [each.id for each in await rota_app.batches.list(open=True)] == [second.id]
    assert [each.id for each in await rota_app.batches.list(name="a")] == [first.id]
    assert [each.id for each in await rota_app.batches.list(after=second.id, limit=1)] == [first.id]


def test_sync_code_has_batches_too(rota_app: TestRota, tasks: Tasks) -> None:
    batch = rota_app.batches.start_sync([tasks.work.bind(1)], then=tasks.ring)
    empty = rota_app.batches.start_sync([])
    waiting = batch.progress_sync()
    rota_app.drain_sync()

    assert waiting.waiting == 1
    assert batch.wait_sync(5).succeeded == 1
    assert batch.cancel_sync() == 0
    assert rota_app.batches.get_sync(empty.id).closed_at is not None
    assert [each.id for each in rota_app.batches.list_sync()] == [empty.id, batch.id]


async def test_a_batch_is_part_of_the_callers_transaction(rota_app: TestRota, tasks: Tasks, rota_database: str) -> None:
    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        batch = await rota_app.batches.start([tasks.work.bind(1)], then=tasks.ring, on=connection)
        await connection.rollback()
    await rota_app.drain()

    assert tasks.told == []
    with pytest.raises(BatchNotFound, match=f"There is no batch {batch.id}"):
        await batch.progress()


async def test_a_wait_for_a_batch_ends_in_time(rota_app: TestRota, tasks: Tasks) -> None:
    batch = await rota_app.batches.start([tasks.work.bind(1)])

    with pytest.raises(WaitTimedOut, match=f"Batch {batch.id} has 1 of 1 jobs left after 0.01 s"):
        await batch.wait(0.01)


async def test_what_is_no_batch_is_refused(rota_app: TestRota, tasks: Tasks) -> None:
    with pytest.raises(ConfigurationError, match="item 0 is"):
        await rota_app.batches.start([tasks.work])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="item 0 is"):
        await rota_app.batches.start([tasks.work.bind(1).then(tasks.ring)])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="then= cannot be 7"):
        await rota_app.batches.start([], then=7)  # type: ignore[arg-type]
    unbound: Any = tasks.work.bind
    with pytest.raises(InvalidArguments, match="n is missing"):
        await rota_app.batches.start([unbound()])
    with pytest.raises(ConfigurationError, match="'x' is no id of a batch"):
        await rota_app.batches.get("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="limit cannot be 0"):
        await rota_app.batches.list(limit=0)
    with pytest.raises(NotPossible, match="inside app.inline"), rota_app.inline():
        await rota_app.batches.start([])


async def test_old_batches_are_forgotten_when_nothing_is_left_of_them(
    rota_app: TestRota, tasks: Tasks, rota_database: str
) -> None:
    ended = await rota_app.batches.start([tasks.work.bind(1)])
    dead = await rota_app.batches.start([tasks.work.bind(-1)])
    await tasks.work.bind(1).then(tasks.ring).enqueue()
    await rota_app.drain()
    waiting = await rota_app.batches.start([tasks.work.using(delay="90d").bind(1)])
    rota_app.advance("8d")
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("select rota.prune_batches(100)")
        left = db.execute("select id from rota.batches order by id desc").fetchall()

    # neither the one that has ended nor the link of the chain; a worker that was just stopped may have done it
    assert left == [(waiting.id,), (dead.id,)]
    assert [each.id for each in await rota_app.batches.list()] == [waiting.id, dead.id]
    with pytest.raises(BatchNotFound):
        await rota_app.batches.get(ended.id)
