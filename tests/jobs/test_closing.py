"""How the end of a batch is noticed: by whom, when, and at what cost to those who settle its jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from tests.interleave import Sessions, at_once, orders
from tests.jobs.statements import CHANNEL, Db, ask, commit, join, step
from tests.jobs.test_chain_model import FAILURE, run_steps, taking

from rota import Progress, group
from rota.jobs.chains import plan, put_plan
from rota.jobs.claim import ClaimedJob
from rota.jobs.close import Closed, close_batches
from rota.jobs.job import Owner
from rota.jobs.outcome import Buried, Succeeded
from rota.jobs.resolve import retry_letter
from rota.jobs.settle import settle, succeed
from rota.testing import TestRota

pytestmark = pytest.mark.one_server


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def put_group(db: Db, size: int) -> tuple[list[ClaimedJob], int]:
    """A group whose jobs all run, and the id of the job that waits for them."""
    chain = group([taking.bind(n) for n in range(size)]).then(taking)
    jobs = run_steps(db, put_plan(plan(chain), cast(Owner, None))).jobs
    member = (
        join(db, UUID(int=7)) if db.execute("select count(*) from rota.members").fetchone() == (0,) else UUID(int=7)
    )
    db.execute(
        "update rota.jobs set state = 'running', token = id, member = %s, attempt = 1, claimed_at = now() where state = 'queued'",
        [member],
    )
    return [ClaimedJob(j.id, "default", "taking", 0, 1, 0, 0.0, "{}", j.id) for j in jobs[:-1]], jobs[-1].id


def success(*jobs: ClaimedJob) -> Any:
    return succeed([Succeeded(job, str(job.id), 0.1) for job in jobs])


def waiting(db: Db, id: int) -> Any:
    return db.execute("select state, after is null, inputs -> 'results' from rota.jobs where id = %s", [id]).fetchone()


def closed_to_the_end(db: Db) -> int:
    """How many batches had ended."""
    ended = 0
    while True:
        closed = ask(db, close_batches())
        ended += closed.ended
        if not closed.may_be_more:
            return ended


ORDERS = list(orders([2, 2, 2]))


@pytest.mark.parametrize(
    "some", [ORDERS[::9], pytest.param([o for o in ORDERS if o not in ORDERS[::9]], marks=pytest.mark.long)]
)
def test_of_two_who_settle_the_last_jobs_at_once_one_is_found_to_be_the_last(
    db: Db, rota_database: str, some: Sequence[tuple[int, ...]]
) -> None:
    sessions = Sessions(rota_database, 3)
    try:
        for order in some:
            (one, two), last = put_group(db, 2)
            look = [step(close_batches()), commit]
            told = sessions.run([[step(success(one)), commit], [step(success(two)), commit], look], order)
            found = told[2][0].ended + closed_to_the_end(db)

            assert found == 1, order
            assert waiting(db, last) == ("queued", True, [one.id, two.id]), order
    finally:
        sessions.close()


def test_two_who_look_at_one_batch_let_go_once(db: Db, rota_database: str) -> None:
    sessions = Sessions(rota_database, 2)
    try:
        for order in orders([2, 2]):
            jobs, last = put_group(db, 2)
            for job in jobs:
                ask(db, success(job))
            look = [step(close_batches()), commit]
            sessions.run([look, look], order)
            state = waiting(db, last)
            db.execute("insert into rota.closings (batch) select max(id) from rota.batches")
            again = ask(db, close_batches())

            assert state == ("queued", True, [job.id for job in jobs]), order
            assert again == Closed(1, 1, [])  # that it has ended is seen again, and nobody waits for it any more
            assert waiting(db, last) == state
    finally:
        sessions.close()


def test_a_letter_that_is_retried_while_someone_looks_keeps_the_batch_open(db: Db, rota_database: str) -> None:
    """Between the first look and the decision there may be a wait for a lock, and what was dead may be live after it."""
    (one, two), last = put_group(db, 2)
    ask(db, success(one))
    ask(db, settle([Buried(two, FAILURE, 0.1)], CHANNEL))
    lock = "select from rota.batches for update"
    with psycopg.connect(rota_database) as looking, psycopg.connect(rota_database, autocommit=True) as retrying:

        def look() -> Any:
            found = ask(looking, close_batches())
            looking.commit()
            return found

        (found,) = at_once(db, lock, [look], then=lambda: run_steps(retrying, retry_letter(two.id, CHANNEL, "me")))

    assert found.result() == Closed(2, 0, [])
    assert waiting(db, last)[:2] == ("blocked", False)


def test_those_who_settle_write_no_row_together(db: Db) -> None:
    """Of the batch itself nothing is written until it has ended, and one row is added for each statement that took jobs from it."""
    jobs, _ = put_group(db, 40)
    before = db.execute("select xmin, ctid from rota.batches").fetchall()
    for at in range(0, 30, 10):
        ask(db, success(*jobs[at : at + 10]))
    closings = db.execute("select count(*) from rota.closings").fetchone()
    looked = ask(db, close_batches())

    assert closings == (3,)
    assert looked == Closed(3, 0, [])
    assert db.execute("select xmin, ctid from rota.batches").fetchall() == before


def test_many_that_wait_for_one_are_let_go_a_few_at_a_time(db: Db) -> None:
    chain = taking.bind().then(group([taking] * 25)).then(taking)
    first, *members, _ = run_steps(db, put_plan(plan(chain), cast(Owner, None))).jobs
    db.execute("update rota.jobs set state = 'running', token = 1, member = %s where id = %s", [join(db), first.id])
    ask(db, succeed([Succeeded(ClaimedJob(first.id, "default", "taking", 0, 1, 0, 0.0, "{}", 1), "7", 0.1)]))
    queued = 'select count(*) from rota.jobs where state = \'queued\' and inputs = \'{"takes": "given", "result": 7}\''

    counts = []
    for _ in range(4):
        db.execute("select rota.close_batches(100, 1000, 10)")
        counts += db.execute(queued).fetchone() or ()

    assert counts == [10, 20, 25, 25]
    assert len(members) == 25
    assert db.execute("select count(*) from rota.closings").fetchone() == (0,)


def test_what_is_larger_than_may_be_handed_on_is_told_instead(db: Db) -> None:
    jobs, last = put_group(db, 3)
    ask(db, succeed([Succeeded(job, '"ten chars"', 0.1) for job in jobs]))
    db.execute("select rota.close_batches(100, 32)")

    (told,) = db.execute("select inputs from rota.jobs where id = %s", [last]).fetchone() or ()
    assert told == {
        "takes": "given",
        "missing": "the 3 result(s) it waited for take 33 bytes as JSON, and no more than 32 are handed on: store them elsewhere "
        "and return keys",
    }


@pytest.mark.parametrize(("size", "rounds"), [(1_000, 1), pytest.param(20_000, 3, marks=pytest.mark.long)])
async def test_a_large_batch_costs_its_jobs_little(
    rota_app: TestRota, rota_database: str, size: int, rounds: int
) -> None:
    """Beside the same jobs in none, in turns, as machines have moods."""
    told: list[int] = []

    @rota_app.task
    async def work(n: int) -> None: ...

    @rota_app.task
    async def done() -> None:
        told.append(1)

    async def drained() -> float:
        begun = time.perf_counter()
        await rota_app.drain(concurrency=100)
        return (time.perf_counter() - begun) / size

    plain, batched = [], []
    for _ in range(rounds):
        await rota_app.enqueue_many([work.bind(n) for n in range(size)])
        plain.append(await drained())
        batch = await rota_app.batches.start([work.bind(n) for n in range(size)], then=done)
        batched.append(await drained())
        assert (await batch.progress()).succeeded == size

    assert len(told) == rounds
    print(f"{size} jobs: {min(plain) * 1e6:.0f} us each, in a batch {min(batched) * 1e6:.0f} us each")
    # a figure of a busy machine says little; that it does not grow with the batch, it does say
    assert rounds == 1 or min(batched) < 2 * min(plain)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_batch_of_100_000_ends_once_and_its_row_is_written_once(rota_app: TestRota, rota_database: str) -> None:
    told: list[Progress] = []

    @rota_app.task
    async def work(n: int) -> None: ...

    @rota_app.task
    async def done(progress: Progress) -> None:
        told.append(progress)

    batch = await rota_app.batches.start([work.bind(n) for n in range(100_000)], then=done)
    with psycopg.connect(rota_database, autocommit=True) as db:
        # nothing changed since it was made, until it has ended
        made = db.execute("select xmin from rota.batches").fetchone()
        await asyncio.gather(rota_app.drain(concurrency=100), _unchanged(db, made))
        assert told == [Progress(batch.id, 100_000, succeeded=100_000)]
        assert db.execute("select count(*) from rota.closings").fetchone() == (0,)


async def _unchanged(db: Db, made: Any) -> None:
    while db.execute("select count(*) from rota.jobs where batch_id is not null limit 1").fetchone() != (0,):
        assert db.execute("select xmin from rota.batches where closed_at is null").fetchone() in (made, None)
        await asyncio.sleep(0.5)
