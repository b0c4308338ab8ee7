"""Limits, turns and what is blocked, with several workers at once: the mechanism. `bench/flow.py` has the figures."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from tests.jobs.statements import ask, join
from tests.limits.test_lines import Stage, working
from tests.limits.test_queue_rules import rule

from rota import Limit
from rota.jobs.claim import ClaimedJob, claim_flow, new_token
from rota.jobs.lanes import Lane
from rota.jobs.outcome import Succeeded
from rota.jobs.settle import succeed
from rota.testing import TestRota, WorkerProcess, until

pytestmark = pytest.mark.usefixtures("history_aside")

APP = """
import time
from rota import Limit, Rota

app = Rota()

@app.task(name="ship", limit=Limit(running=1, by="order"))
async def ship(order: int) -> list[float]:
    began = time.monotonic()
    return [began, time.monotonic()]

@app.task(name="hold")
def hold() -> None:
    time.sleep(3600)
"""


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def fill(db: psycopg.Connection[Any], task: str, key: str, jobs: int) -> None:
    """Jobs in one line, by plain SQL."""
    db.execute(
        """
        insert into rota.jobs (task, args, key, line, state, place)
        select %(task)s, '{}', %(key)s, rota.line_of(%(task)s, %(key)s), 'blocked', -(pg_current_xact_id()::text::bigint)
        from generate_series(1, %(jobs)s)
        """,
        {"task": task, "key": key, "jobs": jobs},
    )


@pytest.mark.long
@pytest.mark.one_server
async def test_of_a_key_one_runs_at_a_time_under_several_processes(
    rota_app: TestRota, rota_database: str, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(name="ship", limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None: ...

    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(APP, dsn=rota_database)) for _ in range(4)]
        for worker in workers:
            worker.wait_until_working()
        await rota_app.enqueue_many([ship.bind(n % 40) for n in range(800)])
        await until(lambda: db.execute("select count(*) from rota.history").fetchone() == (800,), 60, "all have run")

    spans = db.execute(
        "select key, (result ->> 0)::float8, (result ->> 1)::float8, member from rota.history order by 1, 2"
    ).fetchall()
    overlaps = [(before, after) for before, after in pairwise(spans) if before[0] == after[0] and after[1] < before[2]]
    assert overlaps == []
    assert len({member for *_, member in spans}) > 1  # or nobody had anyone to keep apart from


async def test_few_of_other_keys_do_not_wait_for_the_many_of_one(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    behind: Counter[str] = Counter()
    ran: Counter[str] = Counter()

    @rota_app.task(name="send", limit=Limit(by="tenant"))
    async def send(tenant: str = "flood") -> None:
        ran[tenant] += 1
        if tenant != "flood":
            behind[tenant] = ran["flood"]

    fill(db, "send", "flood", 3_000)
    await rota_app.enqueue_many([send.bind(f"tenant {n}") for n in range(20) for _ in range(5)])
    await rota_app.drain()

    assert ran.total() == 3_100
    assert max(behind.values()) < 1_000


@pytest.mark.long
def test_what_waits_for_one_key_costs_others_nothing(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    db.execute("insert into rota.limits (task, running, by_key) values ('ship', 1, true)")
    member = join(db)

    def take(most: int) -> list[ClaimedJob]:
        lane = Lane("default", 0, 0.0, lines=True)
        jobs: list[ClaimedJob] = ask(
            db,
            claim_flow(
                lanes=[(lane, None)],
                tasks={"ship": 1},
                limited=["ship"],
                limit=most,
                most_losses=0,
                token=new_token(),
                member=member,
            ),
        )
        return jobs

    def passing() -> float:
        """Blocks that it takes to claim and settle two hundred of fifty keys."""
        for n in range(50):
            fill(db, "ship", str(n), 4)
        before = _blocks(db)
        for _ in range(4):
            jobs = take(50)
            assert len(jobs) == 50
            ask(db, succeed([Succeeded(job, None, 0.0) for job in jobs]))
        return _blocks(db) - before

    passing()
    without = passing()
    fill(db, "ship", "crowded", 20_000)
    (first,) = take(1)
    beside = passing()

    assert beside < 1.5 * without

    before = _blocks(db)
    for _ in range(20):
        ask(db, succeed([Succeeded(first, None, 0.0)]))
        (first,) = take(1)
    assert (_blocks(db) - before) / 20 < 300


def _blocks(db: psycopg.Connection[Any]) -> float:
    """How many blocks of Rota's tables and indexes have been read, by this session and all before it."""
    db.execute("select pg_stat_force_next_flush()")
    row = db.execute(
        """
        select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::float8
        from pg_statio_user_tables where schemaname = 'rota'
        """
    ).fetchone()
    assert row is not None
    return float(row[0])


async def test_a_limit_that_is_lowered_and_raised_under_load_holds_and_lets_nobody_stand(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    stage = Stage()
    most: Counter[str] = Counter()
    phase = "wide"

    @rota_app.task
    async def work(n: int) -> None:
        most[phase] = max(most[phase], stage.now + 1)
        await stage.play(n)

    rule(db, "default", running_limit=10)
    await rota_app.enqueue_many([work.bind(n) for n in range(600)])
    stage.hold()
    async with working(rota_app), working(rota_app), working(rota_app):
        await until(lambda: stage.now == 10, what="ten run")
        rule(db, "default", running_limit=2)
        phase = "narrow"
        stage.let_go()
        await until(lambda: len(stage.began) >= 60, what="they go on, two by two")
        stage.hold()
        await until(lambda: stage.now == 2, what="two run")
        phase = "wide"
        rule(db, "default", running_limit=10)
        await until(lambda: stage.now == 10, what="ten run again")
        stage.let_go()
        await until(lambda: len(stage.began) == 600, 30, what="all have run")
    assert most == {"wide": 10, "narrow": 2}


@pytest.mark.long
@pytest.mark.one_server
async def test_the_slots_of_a_process_that_was_killed_are_used_again(
    rota_app: TestRota, rota_database: str, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(name="hold")
    async def hold() -> None: ...

    def running() -> dict[int, int]:
        return dict(
            db.execute(
                "select pid, count(*) from rota.jobs join rota.members on members.id = jobs.member "
                "where jobs.state = 'running' group by 1"
            ).fetchall()
        )

    rule(db, "default", running_limit=3)
    await rota_app.enqueue_many([hold.bind() for _ in range(10)])
    with WorkerProcess(APP, dsn=rota_database) as first:
        await until(lambda: running() == {first.pid: 3}, 30, "the first has all slots")
        with WorkerProcess(APP, dsn=rota_database).start().wait_until_working() as second:
            first.kill()
            await until(lambda: running().get(second.pid) == 3, 30, "the second has them")
            await asyncio.sleep(2.5)  # a suspect is let in each second: what is counted is what does not happen
            assert running() == {second.pid: 3}


@pytest.mark.long
async def test_very_many_that_become_due_at_once_hold_up_no_claim(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    ran = []

    @rota_app.task(name="ship", limit=Limit(running=1, by="order"))
    async def ship(order: int) -> None:
        ran.append(len(ran) and db.execute("select count(*) from rota.jobs where place is null").fetchone())

    await rota_app.drain()
    await rota_app.enqueue_many([ship.using(delay="1h").bind(n) for n in range(1_500)])
    rota_app.advance("1h")
    assert await rota_app.drain() == 1_500

    assert any(left != (0,) for left in ran[1:])  # not all were put into line before the first was taken
