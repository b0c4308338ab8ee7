"""What went down with a process before is under the rules of its queue as all else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.limits.test_lines import Stage, working
from tests.limits.test_queue_rules import paused, rule

from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("queue", ["default", ""], ids=["queue", "all queues"])
async def test_one_that_was_lost_is_counted_among_those_that_may_run(
    rota_app: TestRota, db: psycopg.Connection[Any], queue: str
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task
    async def work(n: int) -> None:
        await stage.play(n, "all")

    rule(db, queue, running_limit=2)
    await rota_app.enqueue_many([work.bind(n) for n in range(6)])
    db.execute("update rota.jobs set losses = 1")
    async with working(rota_app), working(rota_app):
        await until(lambda: stage.now == 2, what="two run")
        stage.let_go()
        await until(lambda: len(stage.began) == 6 and stage.now == 0, 20, what="all have run")
    assert stage.most["all"] == 2


async def test_one_that_was_lost_waits_while_its_queue_is_paused(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task
    async def work() -> None: ...

    await rota_app.enqueue_many([work.bind(), work.using(queue="other").bind()])
    db.execute("update rota.jobs set losses = 1")
    paused(db, "default")
    assert await rota_app.drain() == 1
    db.execute("delete from rota.queues")
    assert await rota_app.drain() == 1
