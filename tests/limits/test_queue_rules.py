"""What someone has said about a queue, honoured by workers: pauses, limits, rates and weights. The rows are written here as
`app.queues` writes them, which has tests of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.jobs.statements import ask
from tests.limits.test_lines import Stage, working

from rota import Limit
from rota.jobs.limit import forget_lines
from rota.testing import TestRota, until


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def rule(db: psycopg.Connection[Any], queue: str, **said: Any) -> None:
    columns, values = ", ".join(said), ", ".join(["%s"] * len(said))
    db.execute(
        f"insert into rota.queues (name, {columns}) values (%s, {values}) "
        f"on conflict (name) do update set {', '.join(f'{name} = excluded.{name}' for name in said)}",
        [queue, *said.values()],
    )


def paused(db: psycopg.Connection[Any], queue: str, until: str | None = None) -> None:
    db.execute(
        "insert into rota.queues (name, paused_at, paused_until) values (%s, rota.now(), rota.now() + %s::interval)",
        [queue, until],
    )


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "in line"])
async def test_from_a_paused_queue_nothing_is_taken_until_it_is_resumed(
    rota_app: TestRota, db: psycopg.Connection[Any], limited: bool
) -> None:
    ran = []

    @rota_app.task(limit=Limit(running=1, by="n") if limited else None)
    async def work(n: int) -> None:
        ran.append(n)

    await rota_app.enqueue_many([work.using(queue=queue).bind(n) for n, queue in enumerate("abab")])
    paused(db, "a")
    await rota_app.drain()
    assert sorted(ran) == [1, 3]

    db.execute("update rota.queues set paused_at = null")
    await rota_app.drain()
    assert sorted(ran) == [0, 1, 2, 3]


async def test_all_queues_can_be_paused_at_once(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task
    async def work() -> None: ...

    await work.enqueue()
    paused(db, "")
    assert await rota_app.drain() == 0
    db.execute("update rota.queues set paused_at = null")
    assert await rota_app.drain() == 1


async def test_a_pause_ends_when_its_time_is_over(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task
    async def work() -> None: ...

    await work.enqueue()
    paused(db, "default", until="1 hour")
    assert await rota_app.drain() == 0
    rota_app.advance("61m")
    assert await rota_app.drain() == 1


async def test_a_worker_that_waits_hears_of_the_end_of_a_pause(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    ran = asyncio.Event()

    @rota_app.task
    async def work() -> None:
        ran.set()

    paused(db, "default", until="700 milliseconds")
    await work.enqueue()
    async with working(rota_app), asyncio.timeout(10):
        await ran.wait()
    assert db.execute("select claimed_at >= paused_until from rota.history, rota.queues").fetchall() in ([], [(True,)])


@pytest.mark.parametrize("queue", ["default", ""], ids=["queue", "all queues"])
@pytest.mark.parametrize("limited", [False, True], ids=["plain", "in line"])
async def test_no_more_run_than_the_limit_of_the_queue_allows(
    rota_app: TestRota, db: psycopg.Connection[Any], queue: str, limited: bool
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=Limit(by="n") if limited else None)
    async def work(n: int) -> None:
        await stage.play(n, "default")

    rule(db, queue, running_limit=3)
    await rota_app.enqueue_many([work.bind(n) for n in range(20)])
    async with working(rota_app), working(rota_app):
        await until(lambda: stage.now == 3, what="three run")
        rule(db, queue, running_limit=1)
        stage.let_go()
        await until(lambda: len(stage.began) >= 6, what="they go on, one by one")
        rule(db, queue, running_limit=5)
        await until(lambda: len(stage.began) == 20, what="all have run")
    assert stage.most["default"] <= 5


async def test_a_limit_of_one_queue_is_none_of_anothers_business(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task
    async def work(queue: str) -> None:
        await stage.play(queue, queue)

    rule(db, "narrow", running_limit=1)
    for queue in ("narrow", "wide"):
        await rota_app.enqueue_many([work.using(queue=queue).bind(queue) for _ in range(8)])
    async with working(rota_app):
        await until(lambda: stage.running == {"narrow": 1, "wide": 8}, what="one of the one, all of the other")
        stage.let_go()
        await until(lambda: len(stage.began) == 16, what="all have run")


async def test_what_a_lowered_limit_lets_begin_is_counted_when_the_change_is_there(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task
    async def work(n: int) -> None:
        await stage.play(n)

    rule(db, "default", running_limit=10)
    await rota_app.enqueue_many([work.bind(n) for n in range(40)])
    async with working(rota_app):
        await until(lambda: stage.now == 10, what="ten run")
        rule(db, "default", running_limit=2)
        begun = len(stage.began)
        stage.let_go()
        stage.most.clear()
        await until(lambda: len(stage.began) >= begun + 10, what="they go on")
        # one that begins finds at most one more: all ten have ended before it
        over = db.execute(
            """
            select count(*)
            from rota.history as job
            join rota.queues as queue on queue.name = job.queue
            where job.id > 10 and (
                select count(*) from rota.history as other
                where other.id > 10 and other.claimed_at <= job.claimed_at and other.finished_at > job.claimed_at
            ) > 2
            """
        ).fetchone()
        rule(db, "default", running_limit=10)
        await until(lambda: len(stage.began) == 40, what="all have run")
    assert over == (0,)


@pytest.mark.parametrize("where", ["queue", "task", "key"])
async def test_in_no_period_more_begin_than_the_rate_allows(
    rota_app: TestRota, db: psycopg.Connection[Any], where: str
) -> None:
    @rota_app.task(
        limit={
            "queue": None,
            "task": Limit(rate="10/500ms"),
            "key": Limit(rate="10/500ms", by="k"),
        }[where]
    )
    async def work(k: int) -> None: ...

    if where == "queue":
        rule(db, "default", rate_count=10, rate_seconds=0.5)
    await rota_app.enqueue_many([work.bind(n % 2 if where == "key" else 0) for n in range(40)])
    async with working(rota_app), working(rota_app):
        await until(lambda: db.execute("select count(*) from rota.history").fetchone() == (40,), 30, "all have run")

    most = db.execute(
        """
        select max((
            select count(*) from rota.history as other
            where other.key is not distinct from job.key
              and other.claimed_at >= job.claimed_at and other.claimed_at < job.claimed_at + interval '500 milliseconds'
        ))
        from rota.history as job
        """
    ).fetchone()
    assert most is not None
    assert most[0] <= 10


async def test_a_rate_over_a_long_period_lets_all_begin_at_once_and_then_none(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(limit=Limit(rate="5/1h"))
    async def work(n: int) -> None: ...

    await rota_app.enqueue_many([work.bind(n) for n in range(12)])
    assert await rota_app.drain() == 5
    rota_app.advance("59m")
    assert await rota_app.drain() == 0
    rota_app.advance("3m")
    assert await rota_app.drain() == 5


async def test_queues_share_as_their_weights_say(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    began: Counter[str] = Counter()
    shares: dict[str, int] = {}

    @rota_app.task
    async def work(queue: str) -> None:
        began[queue] += 1
        if began.total() == 600:
            shares.update(began)

    rule(db, "heavy", weight=4.0)
    for queue in ("heavy", "light"):
        await rota_app.enqueue_many([work.using(queue=queue).bind(queue) for _ in range(600)])
    await rota_app.drain(concurrency=2)

    assert shares["heavy"] > 1.5 * shares["light"] > 0


async def test_idle_workers_ask_rarely_whatever_waits_in_a_full_line(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=Limit(running=1, by="k"))
    async def work(k: int, n: int) -> None:
        await stage.play(n)

    await rota_app.enqueue_many([work.bind(1, n) for n in range(50)])
    async with working(rota_app):
        await until(lambda: stage.now == 1, what="one runs")
        began = time.monotonic()
        before = db.execute("select xact_commit from pg_stat_database where datname = current_database()").fetchone()
        await asyncio.sleep(1.5)  # what is counted is what happens in a time
        after = db.execute("select xact_commit from pg_stat_database where datname = current_database()").fetchone()
        passed = time.monotonic() - began
        stage.let_go()
        await until(lambda: len(stage.began) == 50, 20, what="all have run")
    assert before is not None
    assert after is not None
    assert (after[0] - before[0]) / passed < 30


async def test_a_rate_is_remembered_while_nobody_waits_and_forgotten_when_its_period_is_over(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(limit=Limit(rate="5/1h"))
    async def work(n: int) -> None: ...

    await rota_app.enqueue_many([work.bind(n) for n in range(3)])
    assert await rota_app.drain() == 3
    await rota_app.enqueue_many([work.bind(n) for n in range(5)])
    assert await rota_app.drain() == 2
    rota_app.advance("2h")
    assert await rota_app.drain() == 3
    rota_app.advance("2h")

    for _ in range(40):  # each begins anywhere
        ask(db, forget_lines())
    assert db.execute("select count(*) from rota.lines").fetchone() == (0,)
