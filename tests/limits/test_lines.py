"""Jobs in line: in which order they begin, how many at once, and what brings them there."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from rota import Limit, Retry, Unique
from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


class Stage:
    """What bodies do, watched: who runs, how many at once, in which order they began; they stay until they are let go."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.running: Counter[Any] = Counter()
        self.most: Counter[Any] = Counter()
        self._go = asyncio.Event()
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    async def play(self, part: Any, group: Any = None) -> None:
        self.began.append(part)
        self.running[group] += 1
        self.most[group] = max(self.most[group], self.running[group])
        try:
            await self._go.wait()
            await asyncio.sleep(0)
        finally:
            self.running[group] -= 1

    @property
    def now(self) -> int:
        return self.running.total()


@contextlib.asynccontextmanager
async def working(app: TestRota, **options: Any) -> AsyncIterator[None]:
    worker = asyncio.create_task(app.work(grace=0, **options))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def lines(db: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return db.execute("select task, key, ready_at is not null from rota.lines order by task, key").fetchall()


async def test_of_one_key_one_runs_at_a_time_and_other_keys_beside_it(rota_app: TestRota) -> None:
    stage = Stage()

    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int, n: int) -> None:
        await stage.play((order, n), order)

    await rota_app.enqueue_many([ship.bind(order, n) for n in range(10) for order in range(3)])
    assert await rota_app.drain() == 30

    assert set(stage.most.values()) == {1}
    for order in range(3):
        assert [n for which, n in stage.began if which == order] == list(range(10))


async def test_a_limit_without_a_key_is_for_all_jobs_of_the_task(rota_app: TestRota) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=2)
    async def ship(n: int) -> None:
        await stage.play(n, "ship")

    @rota_app.task
    async def other(n: int) -> None:
        await stage.play(n, "other")

    await rota_app.enqueue_many([*(ship.bind(n) for n in range(9)), *(other.bind(n) for n in range(9))])
    async with working(rota_app):
        await until(lambda: stage.running == {"ship": 2, "other": 9}, what="two of the one, all of the other")
        stage.let_go()
        await until(lambda: len(stage.began) == 18 and stage.now == 0, what="all have run")
    assert stage.most["ship"] == 2


async def test_jobs_of_a_key_begin_in_the_order_in_which_their_transactions_committed(
    rota_app: TestRota, rota_database: str
) -> None:
    began = []

    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int, who: str) -> None:
        began.append(who)

    with psycopg.connect(rota_database) as first, psycopg.connect(rota_database) as second:
        ship.on(first).enqueue_sync(1, "inserted first, committed last")
        with second.transaction():
            ship.on(second).enqueue_sync(1, "inserted second, committed first")
        await ship.enqueue(1, "came between")
        first.commit()
    await rota_app.drain()

    assert began == [
        "inserted second, committed first",
        "came between",
        "inserted first, committed last",
    ]


async def test_whoever_enqueues_waits_for_nobodys_open_transaction(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None: ...

    with psycopg.connect(rota_database) as open_for_long:
        ship.on(open_for_long).enqueue_sync(1)
        async with asyncio.timeout(5):
            await ship.enqueue(1)
            assert await rota_app.drain() == 1
        open_for_long.commit()
    assert await rota_app.drain() == 1


async def test_what_is_rolled_back_leaves_nothing_in_line(
    rota_app: TestRota, rota_database: str, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None: ...

    with psycopg.connect(rota_database) as connection:
        ship.on(connection).enqueue_sync(1)
        connection.rollback()
        with connection.transaction():
            with contextlib.suppress(ZeroDivisionError), connection.transaction():
                ship.on(connection).enqueue_sync(2)
                raise ZeroDivisionError
            ship.on(connection).enqueue_sync(3)

    assert [key for _, key, _ in lines(db)] == ["3"]
    assert await rota_app.drain() == 1
    assert lines(db) == []


async def test_the_more_urgent_go_first_where_there_is_one_line_for_all(rota_app: TestRota) -> None:
    began = []

    @rota_app.task(limit=1)
    async def ship(n: int) -> None:
        began.append(n)

    await rota_app.enqueue_many([ship.using(priority=p).bind(p) for p in (0, -5, 7, 7, 3)])
    await rota_app.drain()

    assert began == [7, 7, 3, 0, -5]


async def test_a_delayed_job_joins_the_line_when_it_is_due(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    began = []

    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int, n: int) -> None:
        began.append(n)

    await ship.using(delay="1h").enqueue(1, 1)
    await ship.enqueue(1, 2)
    assert await rota_app.drain() == 1
    assert lines(db) == []

    rota_app.advance("1h")
    assert await rota_app.drain() == 1
    assert began == [2, 1]


async def test_a_retry_lets_those_behind_it_pass(rota_app: TestRota) -> None:
    began = []

    @rota_app.task(limit=Limit(running=1, by="order"), retry=Retry(attempts=2, base=3600, jitter=False))
    async def ship(order: int, n: int) -> None:
        began.append(n)
        if began == [1]:
            raise ValueError

    await rota_app.enqueue_many([ship.bind(1, n) for n in (1, 2, 3)])
    assert await rota_app.drain() == 2
    rota_app.advance("2h")
    await rota_app.drain()

    assert began == [1, 2, 3, 1]


async def test_a_retry_holds_the_line_where_that_is_asked_for(rota_app: TestRota) -> None:
    began = []

    @rota_app.task(
        limit=Limit(running=1, by="order", retries="hold_line"), retry=Retry(attempts=2, base=3600, jitter=False)
    )
    async def ship(order: int, n: int) -> None:
        began.append((order, n))
        if n == 1:
            raise ValueError

    await rota_app.enqueue_many([ship.bind(order, n) for n in (1, 2) for order in (1, 2)])
    await rota_app.enqueue_many([ship.bind(3, 2)])
    await rota_app.drain()
    assert sorted(began) == [(1, 1), (2, 1), (3, 2)]

    rota_app.advance("2h")
    await rota_app.drain()
    assert sorted(began) == [(1, 1), (1, 1), (1, 2), (2, 1), (2, 1), (2, 2), (3, 2)]
    assert [n for order, n in began if order == 1] == [1, 1, 2]  # dead after its last attempt, and out of the way


async def test_who_waits_behind_a_held_line_goes_on_when_it_is_cancelled(rota_app: TestRota) -> None:
    began = []

    @rota_app.task(limit=Limit(running=1, by="order", retries="hold_line"), retry=Retry(attempts=2, base=3600))
    async def ship(order: int, n: int) -> None:
        began.append(n)
        if n == 1:
            raise ValueError

    first, _ = await rota_app.enqueue_many([ship.bind(1, n) for n in (1, 2)])
    await rota_app.drain()
    assert began == [1]

    await first.cancel()
    await rota_app.drain()
    assert began == [1, 2]


@pytest.mark.parametrize("how", ["sql", "insert", "repeat", "before"])
async def test_a_job_whose_caller_knows_nothing_of_the_limit_is_under_it_all_the_same(
    rota_app: TestRota, db: psycopg.Connection[Any], how: str
) -> None:
    stage = Stage()

    @rota_app.task(name="ship", limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None:
        await stage.play(order, order)

    if how != "before":
        await rota_app.drain()
    if how in ("sql", "before"):
        for _ in range(5):
            db.execute("select rota.enqueue('ship', '{\"order\": 7}')")
    elif how == "insert":  # as an older release of the app does
        db.execute("insert into rota.jobs (task, args) select 'ship', '{\"order\": 7}' from generate_series(1, 5)")
    else:
        jobs = [await ship.enqueue(7) for _ in range(5)]
        await rota_app.drain()
        stage.began.clear()
        for job in jobs:
            await job.retry()

    stage.hold()
    async with working(rota_app):
        await until(lambda: stage.now == 1, what="one runs")
        stage.let_go()
        await until(lambda: len(stage.began) == 5 and stage.now == 0, what="all have run")
    assert stage.most == {7: 1}


async def test_what_is_handed_back_is_first_again(rota_app: TestRota) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int, n: int) -> None:
        await stage.play(n)

    await rota_app.enqueue_many([ship.bind(1, n) for n in range(3)])
    async with working(rota_app):
        await until(lambda: stage.began == [0], what="the first runs")
    stage.let_go()
    await rota_app.drain()

    assert stage.began == [0, 0, 1, 2]


async def test_the_slot_of_a_holder_that_died_is_free_when_its_member_has_ended(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    began = []

    @rota_app.task(name="ship", limit=Limit(running=1, by="order"))
    async def ship(order: int, n: int) -> None:
        began.append(n)

    await rota_app.drain()  # a worker writes down what the task says
    await rota_app.enqueue_many([ship.bind(1, n) for n in range(3)])
    dead = db.execute(
        "insert into rota.members (id, name, host, pid, release, expires_at) "
        "values (gen_random_uuid(), 'dead', 'h', 1, '0', now() + interval '1 hour') returning id"
    ).fetchone()
    db.execute(
        "select id from rota.claim_flow('{default}', '{0}', '{true}', '{-infinity}', '{0}', '{ship}', '{1}', '{}', 9, 0, 1, %s)",
        dead,
    )
    assert db.execute("select count(*) from rota.jobs where state = 'running'").fetchone() == (1,)
    await rota_app.drain()
    assert began == []

    db.execute("update rota.members set ended_at = now(), end_reason = 'expired' where name = 'dead'")
    async with working(rota_app):
        await until(lambda: began == [0, 1, 2], what="all have run, in their order")
    assert [error.kind for error in (await rota_app.jobs.get(1)).errors] in ([], ["lost"])


async def test_a_locked_job_is_not_passed_by(rota_app: TestRota, rota_database: str) -> None:
    began = []

    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int, n: int) -> None:
        began.append((order, n))

    first, *_ = await rota_app.enqueue_many([ship.bind(order, n) for order in (1, 2) for n in (1, 2)])
    with psycopg.connect(rota_database) as someone:
        someone.execute("select from rota.jobs where id = %s for update", [first.id])
        await rota_app.drain()
        assert began == [(2, 1), (2, 2)]
    await rota_app.drain()
    assert began == [(2, 1), (2, 2), (1, 1), (1, 2)]


async def test_lines_without_a_cap_take_turns(rota_app: TestRota) -> None:
    began = []

    @rota_app.task(limit=Limit(by="tenant"))
    async def serve(tenant: str) -> None:
        began.append(tenant)

    await rota_app.enqueue_many([serve.bind("flood") for _ in range(500)])
    await rota_app.enqueue_many([serve.bind(f"small {n}") for n in range(5)])
    await rota_app.drain(concurrency=10)

    last = max(began.index(f"small {n}") for n in range(5))
    assert last < 100
    assert len(began) == 505


async def test_a_job_that_is_replaced_moves_to_the_line_of_its_new_key(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    ran = []

    @rota_app.task(limit=Limit(running=1, by="order"), unique=Unique(by="what", conflict="replace"))
    async def ship(what: str, order: int) -> None:
        ran.append((what, order))

    await ship.enqueue("this", 1)
    await ship.enqueue("this", 2)
    assert await rota_app.drain() == 1

    assert ran == [("this", 2)]
    assert lines(db) == []


async def test_a_line_that_a_poison_job_heads_goes_on_when_that_is_buried(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    ran = []

    @rota_app.task(limit=Limit(running=1, by="order"))
    async def ship(order: int, n: int) -> None:
        ran.append(n)

    poison, _ = await rota_app.enqueue_many([ship.bind(1, n) for n in (1, 2)])
    db.execute("update rota.jobs set losses = 1 where id = %s", [poison.id])
    await rota_app.drain()

    assert ran == [1, 2]


async def test_what_is_handed_back_finds_its_line_though_nobody_waited_in_it(rota_app: TestRota) -> None:
    stage = Stage()
    stage.hold()

    @rota_app.task(limit=Limit(by="tenant"))
    async def serve(tenant: str) -> None:
        await stage.play(tenant)

    await serve.enqueue("a")
    async with working(rota_app):
        await until(lambda: stage.began == ["a"], what="it runs")
    stage.let_go()
    await rota_app.drain()

    assert stage.began == ["a", "a"]
