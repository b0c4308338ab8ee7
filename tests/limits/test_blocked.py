"""Jobs that wait in lines, for those who hurry, list or count them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from rota import Limit, NotPossible, Retry
from rota.postgres.notify import wake_channel
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.mark.long
async def test_a_delayed_job_of_a_limited_task_can_be_run_now(rota_app: TestRota) -> None:
    task = rota_app.task(name="t", limit=1)(lambda: None)
    job = await task.using(delay="1h").enqueue()

    again = await job.retry()

    assert (again.id, await rota_app.drain()) == (job.id, 1)


async def test_one_that_holds_its_line_until_another_attempt_can_be_tried_now(rota_app: TestRota) -> None:
    ran: list[int] = []

    @rota_app.task(name="t", limit=Limit(running=1, by="key", retries="hold_line"), retry=Retry(2, base=3600))
    async def task(key: str, number: int) -> None:
        ran.append(number)
        if ran == [1]:
            raise ConnectionError

    first, second = await rota_app.enqueue_many([task.bind("k", 1), task.bind("k", 2)])
    await rota_app.drain()
    explained = await rota_app.jobs.explain(second.id)
    await first.retry()
    await rota_app.drain()

    assert f"To try it now: rota jobs retry {first.id}." in str(explained)
    assert ran == [1, 1, 2]


async def test_one_that_is_due_waits_for_others_and_is_not_hurried(rota_app: TestRota) -> None:
    task = rota_app.task(name="t", limit=1)(lambda: None)
    job = await task.enqueue()

    with pytest.raises(NotPossible, match=f"Job {job.id} is blocked: it is due, and waits for other jobs"):
        await job.retry()


async def test_one_that_waits_for_a_batch_is_not_hurried(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    (id,) = db.execute(
        "insert into rota.jobs (task, state, after, due_at) values ('t', 'blocked', 7, now() + interval '1 hour') returning id"
    ).fetchone() or (0,)

    with pytest.raises(NotPossible, match="is blocked"):
        await rota_app.jobs.retry(id)


def test_a_test_finds_what_waits_in_a_line_among_what_was_enqueued(rota_app: TestRota) -> None:
    limited = rota_app.task(name="limited", limit=1)(lambda: None)
    plain = rota_app.task(name="plain")(lambda: None)
    for task in (limited, plain, limited.using(delay="1h")):
        task.enqueue_sync()

    assert [job.task for job in rota_app.enqueued()] == ["limited", "plain", "limited"]
    assert len(rota_app.enqueued(limited)) == 2


@pytest.mark.direct("it is about notifications, which a pooler does not pass on")
def test_workers_are_woken_for_what_is_to_join_a_line_when_a_test_moves_the_clock(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    rota_app.task(name="t", queue="later", limit=1)(lambda: None).using(delay="1h").enqueue_sync()
    db.execute(sql.SQL("listen {}").format(sql.Identifier(wake_channel("rota"))))

    rota_app.advance("1h")

    assert [heard.payload for heard in db.notifies(timeout=20, stop_after=1)] == ["later"]
