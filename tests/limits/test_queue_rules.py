"""What someone has said about a queue, honoured by workers: pauses, limits, rates and weights. The rows are written here as
`app.queues` writes them, which has tests of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.limits.test_lines import Stage, working

import rota.jobs.claimer
import rota.jobs.source
from rota import Limit
from rota.clock import boottime
from rota.jobs.claimer import Claimer, weighed
from rota.jobs.lanes import Lane, Start
from rota.jobs.source import JobSource
from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")


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


@pytest.mark.parametrize("queue", ["default", ""], ids=["queue", "all queues"])
async def test_a_worker_that_returns_to_a_line_finds_it_paused(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    # as where a look is dear: a worker that takes the next of a line in which one has ended does without
    monkeypatch.setattr(rota.jobs.claimer, "_LOOK_FROM_START_SECONDS", 3600)
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=Limit(running=1, by="k"))
    async def work(k: int, n: int) -> None:
        await stage.play((k, n))

    await rota_app.enqueue_many([work.bind(k, n) for n in range(5) for k in range(2)])
    async with working(rota_app):
        await until(lambda: stage.now == 2, what="the first of each line")
        paused(db, queue)
        stage.let_go()
        await until(lambda: db.execute("select from rota.history").rowcount == 2, what="they have ended")
        await rota_app.enqueue_many([work.using(queue="other").bind(9, 9)])
        if queue:
            await until(lambda: (9, 9) in stage.began, what="the worker has looked, and taken what is not paused")
    assert {n for k, n in stage.began if k != 9} == {0}


@pytest.mark.parametrize("held_by", [None, "line", "queue"])
async def test_a_pause_ends_when_its_time_is_over(
    rota_app: TestRota, db: psycopg.Connection[Any], held_by: str | None
) -> None:
    @rota_app.task(limit=1 if held_by == "line" else None)
    async def work() -> None: ...

    await work.enqueue()
    paused(db, "default", until="1 hour")
    if held_by == "queue":
        rule(db, "default", running_limit=1)
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


async def woken(source: JobSource) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await source._woken.wait()


async def test_lines_leave_the_room_of_a_limit_to_other_queues_in_turn(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rota.jobs.claimer, "_LOOK_FROM_START_SECONDS", 3600)
    # whoever has waited for long looks, and on a busy machine that is soon
    monkeypatch.setattr(JobSource, "wait_for_more", woken)
    began: list[str] = []

    @rota_app.task(queue="in line", limit=Limit(by="k"))
    async def one(k: int, n: int) -> None:
        began.append("in line")

    @rota_app.task(queue="plain")
    async def other(n: int) -> None:
        began.append("plain")

    rule(db, "", running_limit=1)
    await rota_app.enqueue_many([*(one.bind(n % 3, n) for n in range(60)), *(other.bind(n) for n in range(60))])
    async with working(rota_app, concurrency=4):
        await until(lambda: len(began) >= 60, what="half of them")

    assert 10 < began[:60].count("plain") < 50  # which lane is first is left to chance: about half


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
        await asyncio.sleep(0.002)  # so that claims are small, and many

    rule(db, "heavy", weight=9.0)
    for queue in ("heavy", "light"):
        await rota_app.enqueue_many([work.using(queue=queue).bind(queue) for _ in range(600)])
    await rota_app.drain(concurrency=2)

    assert shares["heavy"] > 1.5 * shares.get("light", 0)


def test_a_lane_comes_first_as_often_as_its_weight_says() -> None:
    light, heavy, urgent = Lane("light", 0, 0.0), Lane("heavy", 0, 0.0, weight=3.0), Lane("urgent", 5, 0.0)
    lanes: list[tuple[Lane, Start | None]] = [(lane, None) for lane in (light, heavy, urgent)]

    orders = [[lane.queue for lane, _ in weighed(lanes)] for _ in range(4000)]

    assert {order[0] for order in orders} == {"urgent"}
    assert 0.7 < sum(order[1] == "heavy" for order in orders) / 4000 < 0.8


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When workers of this process have looked for jobs."""
    times: list[float] = []
    claim = Claimer.claim

    async def noted(self: Claimer, *args: Any, **options: Any) -> Any:
        times.append(boottime())
        return await claim(self, *args, **options)

    monkeypatch.setattr(Claimer, "claim", noted)
    return times


@pytest.mark.direct("a worker that is not woken looks twice a second")
@pytest.mark.parametrize("held_by", ["line", "queue", "unknown task"])
async def test_a_worker_looks_ever_more_rarely_for_what_it_may_not_take(
    rota_app: TestRota, db: psycopg.Connection[Any], looks: list[float], held_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rota.jobs.source, "boottime", lambda: boottime() * 10)  # so that they have waited long, soon
    stage = Stage()
    stage.hold()

    @rota_app.task(name="work", limit=Limit(running=1, by="k") if held_by == "line" else None)
    async def work(k: int, n: int) -> None:
        await stage.play(n)

    if held_by == "queue":
        rule(db, "default", running_limit=1)
    elif held_by == "unknown task":
        db.execute("insert into rota.limits (task, running) values ('elsewhere', 1)")
        db.execute("select rota.enqueue('elsewhere')")
    await rota_app.enqueue_many([work.bind(1, n) for n in range(1 if held_by == "unknown task" else 5)])
    async with working(rota_app):
        await until(lambda: stage.now == 1, what="one runs")
        looks.clear()
        await until(lambda: len(looks) > 1 and looks[-1] - looks[-2] > 1, 10, what="two looks are far apart")
        assert len(looks) < 30
        stage.let_go()
        await until(lambda: stage.now == 0, what="it has ended")


async def test_what_another_process_has_freed_is_taken_soon(
    rota_app: TestRota, db: psycopg.Connection[Any], looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(queue="theirs")
    async def first() -> None:
        await stage.play("first")

    @rota_app.task(queue="ours")
    async def second() -> None:
        await stage.play("second")

    rule(db, "", running_limit=1)
    async with working(rota_app, queues=["ours"]):
        await until(lambda: len(looks) > 1, what="we have nothing to do")
        monkeypatch.setattr(rota.jobs.source, "boottime", lambda: boottime() + 3600)
        await until(lambda: len(looks) > 3, what="and still have not, after an hour")
        await first.enqueue()
        async with working(rota_app, queues=["theirs"]):
            await until(lambda: stage.now == 1, what="they have the only place")
            await second.enqueue()
            looks.clear()
            # looks for what nobody holds up are two seconds apart by then
            await until(lambda: len(looks) > 12, 5, what="we look for it often")
            stage.let_go()
            await until(lambda: stage.began == ["first", "second"], what="we have the place")
