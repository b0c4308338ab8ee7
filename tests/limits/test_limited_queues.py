"""What comes to a queue that is limited or paused another way: jobs that were lost before, and such as belong in a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.limits.test_lines import Stage, working
from tests.limits.test_queue_rules import paused, rule

from rota import Limit
from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("queue", ["default", ""], ids=["queue", "all queues"])
async def test_suspects_count_for_the_limit_of_their_queue(
    rota_app: TestRota, db: psycopg.Connection[Any], queue: str
) -> None:
    @rota_app.task(name="work")
    async def work() -> None: ...

    rule(db, queue, running_limit=1)
    db.execute(
        "insert into rota.members (id, name, host, pid, release, expires_at) "
        "values (gen_random_uuid(), 'other', 'h', 1, '0', now() + interval '1 hour')"
    )
    db.execute(
        "insert into rota.jobs (task, args, state, token, member, claimed_at, attempt) "
        "select 'work', '{}', 'running', 1, id, now(), 1 from rota.members"
    )
    await rota_app.enqueue_many([work.bind() for _ in range(3)])
    db.execute("update rota.jobs set losses = 1 where state = 'queued'")
    assert await rota_app.drain() == 0

    db.execute("delete from rota.jobs where state = 'running'")
    assert await rota_app.drain() == 3


async def test_suspects_of_a_paused_queue_wait_with_the_others(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    ran = []

    @rota_app.task
    async def work(queue: str) -> None:
        ran.append(queue)

    for queue in ("closed", "open"):
        await rota_app.enqueue_many([work.using(queue=queue).bind(queue) for _ in range(2)])
    db.execute("update rota.jobs set losses = 1")
    paused(db, "closed")
    await rota_app.drain()
    assert ran == ["open", "open"]

    db.execute("update rota.queues set paused_at = null")
    await rota_app.drain()
    assert sorted(ran) == ["closed", "closed", "open", "open"]


async def test_a_suspect_from_a_line_keeps_others_out_whatever_was_claimed_with_it(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=Limit(running=1, by="k"))
    async def poison(k: int) -> None:
        await stage.play(k, "poison")

    @rota_app.task(priority=9)
    async def plain(n: int) -> None:
        await stage.play(n, "plain")

    await rota_app.enqueue_many([*(poison.bind(k) for k in range(3)), plain.bind(1)])
    db.execute("update rota.jobs set losses = 2 where line is not null")
    async with working(rota_app, concurrency=8):
        await until(lambda: stage.running == {"plain": 1, "poison": 1}, what="one of each runs")
        await plain.enqueue(2)
        await until(lambda: stage.running["plain"] == 2, what="others are claimed beside it")
        stage.let_go()
        await until(lambda: len(stage.began) == 5 and stage.now == 0, what="all have run")
    assert stage.most["poison"] == 1


async def test_a_job_that_came_to_a_limited_queue_unaware_of_the_limit_of_its_task_is_under_both(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(name="ship", limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None:
        await stage.play(order, order)

    rule(db, "default", running_limit=5)
    db.execute("insert into rota.jobs (task, args) select 'ship', '{\"order\": 7}' from generate_series(1, 3)")
    async with working(rota_app):
        await until(lambda: stage.now == 1, what="one runs")
        stage.let_go()
        await until(lambda: len(stage.began) == 3 and stage.now == 0, what="all have run")
    assert stage.most == {7: 1}
