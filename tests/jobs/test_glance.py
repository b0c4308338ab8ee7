"""What an idle worker sees along with its beats: all that a look would find, and nothing that would keep it from looking."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.jobs.statements import Db, ask, join

from rota.clock import boottime
from rota.facts import JobLost, JobSucceeded, MemberIdentityLost
from rota.jobs.chores import Chores, find_chores
from rota.jobs.glance import Glance, glance
from rota.jobs.lanes import find_lanes
from rota.jobs.source import JobSource
from rota.jobs.worker import WorkerSettings
from rota.leases.members import leave_member
from rota.testing import TestRota, fact, until

RESTS = pytest.mark.direct("who hears nothing looks more often than it beats")

NOBODY = uuid4()
NOTHING = Chores(lost=False, cancelled=False, closings=False, bulks=False, held=frozenset())


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def seen(db: Db, queues: list[str] | None = None, member: UUID = NOBODY) -> Glance:
    found: Glance = ask(db, glance(queues, member))
    return found


# The statement


@pytest.mark.parametrize("queues", [None, ["a"], ["nowhere", "a", "a"]])
def test_it_tells_when_the_first_job_of_any_lane_is_due(db: Db, queues: list[str] | None) -> None:
    db.execute(
        "insert into rota.jobs (task, queue, priority, due_at) values "
        "('t', 'a', 5, rota.now() + interval '2 hours'), ('t', 'a', 0, rota.now() + interval '1 hour')"
    )

    due_in = seen(db, queues).due_in

    assert due_in is not None
    assert 3590 < due_in <= 3600
    assert min(lane.due_in for lane in ask(db, find_lanes(queues)).lanes) == pytest.approx(due_in, abs=5)


def test_what_is_due_in_other_queues_is_not_seen(db: Db) -> None:
    db.execute("insert into rota.jobs (task, queue) values ('t', 'b')")

    assert seen(db, ["a", "c"]).due_in is None
    assert (seen(db, ["b"]).due_in or 1) <= 0
    assert (seen(db).due_in or 1) <= 0


@pytest.mark.parametrize("queues", [None, ["a"]])
def test_a_job_that_is_to_join_its_line_is_seen(db: Db, queues: list[str] | None) -> None:
    db.execute("insert into rota.jobs (task, queue, state, due_at) values ('t', 'a', 'blocked', rota.now())")

    assert (seen(db, queues).due_in or 1) <= 0


@pytest.mark.parametrize(("queues", "is_seen"), [(None, True), (["a"], True), (["b"], False)])
def test_a_line_that_is_ready_is_seen(db: Db, queues: list[str] | None, is_seen: bool) -> None:
    db.execute(
        "insert into rota.lines (id, task, queue, priority, ready_at) values (gen_random_uuid(), 't', 'a', 0, rota.now())"
    )

    assert (seen(db, queues).due_in is not None) == is_seen


def test_without_anything_there_is_nothing_to_see(db: Db) -> None:
    assert seen(db)[:2] == seen(db, ["a"])[:2] == (None, False)


@pytest.mark.parametrize(
    "left",
    [
        "update rota.members set ended_at = now(), end_reason = 'left'",
        "insert into rota.jobs (task, cancel_requested_at) values ('t', now())",
        "insert into rota.closings (batch) values (1)",
    ],
)
def test_what_a_look_for_chores_would_find_is_seen(db: Db, left: str) -> None:
    member = join(db)
    db.execute(
        "insert into rota.jobs (task, state, token, member, attempt, claimed_at) values ('t', 'running', 7, %s, 1, now())",
        [member],
    )
    assert not seen(db).chores
    assert ask(db, find_chores(NOBODY)) == NOTHING

    db.execute(left.encode())

    assert seen(db).chores
    assert ask(db, find_chores(NOBODY)) != NOTHING


def test_what_it_holds_without_knowing_is_a_chore(db: Db) -> None:
    member = join(db)
    db.execute(
        "insert into rota.jobs (task, state, token, member, attempt, claimed_at) values ('t', 'running', 7, %s, 1, now())",
        [member],
    )

    assert seen(db, member=member).chores
    assert not seen(db).chores


# A worker that has been idle for a while


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine keeps nobody from resting."""
    monkeypatch.setattr("rota.jobs.glance._LONG_SECONDS", 3600.0)


def source_of(app: TestRota) -> JobSource:
    (working,) = app.workings
    return working._worker._source


@pytest.fixture
def unaided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that rests looks for nothing by itself."""
    monkeypatch.setattr("rota.jobs.source._RESTING", (10_000.0, 10_000.0))


@asynccontextmanager
async def resting(app: TestRota) -> AsyncIterator[JobSource]:
    """One that does nothing but beat, until the block ends."""
    working = asyncio.create_task(app.work(["a"]))
    await until(lambda: bool(app.workings and app.workings[0]._worker.started), timeout=60, what="it works")
    await until(lambda: source_of(app).glances.wanted, timeout=60, what="it rests")
    try:
        yield source_of(app)
    finally:
        app.stop()
        await working


@pytest.mark.usefixtures("unaided")
@RESTS
async def test_a_job_that_nobody_was_told_of_is_started(rota_app: TestRota, db: Db) -> None:
    rota_app.task(name="echo")(lambda: None)

    async with resting(rota_app):
        done = fact(rota_app.facts, JobSucceeded, timeout=60)
        db.execute("insert into rota.jobs (task, queue) values ('echo', 'a')")

        assert (await done).task == "echo"


@pytest.mark.usefixtures("unaided")
@RESTS
async def test_a_job_for_later_that_nobody_was_told_of_is_started_in_its_time(rota_app: TestRota, db: Db) -> None:
    rota_app.task(name="echo")(lambda: None)

    async with resting(rota_app) as source:
        done = fact(rota_app.facts, JobSucceeded, timeout=60)
        db.execute("insert into rota.jobs (task, queue, due_at) values ('echo', 'a', rota.now() + interval '1 hour')")
        await until(
            lambda: source._claimer.next_look_in < 4000 and source.glances.wanted, timeout=60, what="it knows of it"
        )
        rota_app.advance("2h")

        assert (await done).task == "echo"


@pytest.mark.usefixtures("unaided")
@RESTS
async def test_while_it_rests_it_asks_nothing_but_along_with_its_beats(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, rescue_every=3600))

    async with resting(rota_app) as source:
        session = rota_app.workings[0]._worker._claiming
        rested, statements = boottime(), session.statements
        await until(lambda: source.glances.no_chores_at > rested, timeout=60, what="a glance")
        second = boottime()
        await until(lambda: source.glances.no_chores_at > second, timeout=60, what="another")

        assert source.glances.wanted
        assert session.statements == statements


@pytest.mark.usefixtures("unaided")
@RESTS
async def test_what_others_left_is_taken_over_by_one_that_rests(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, rescue_every=2.5))
    rota_app.task(name="echo")(lambda: None)

    async with resting(rota_app) as source:
        await until(lambda: source.glances.no_chores_at > 0, timeout=60, what="a glance")
        rescued = fact(rota_app.facts, JobLost, timeout=60)
        member = join(db)
        db.execute(
            "insert into rota.jobs (task, queue, state, token, member, attempt, claimed_at) "
            "values ('echo', 'a', 'running', 7, %s, 1, now())",
            [member],
        )
        ask(db, leave_member(member))

        assert (await rescued).member == member


@RESTS
async def test_one_that_sees_what_is_not_for_it_looks_by_itself_for_a_while(rota_app: TestRota, db: Db) -> None:
    async with resting(rota_app) as source:
        db.execute("insert into rota.jobs (task, queue) values ('of another app', 'a')")

        await until(
            lambda: source.waits and source.glances._useless_until > boottime() and not source.glances.wanted,
            timeout=60,
            what="it has seen that",
        )


@RESTS
async def test_a_table_that_is_locked_for_long_costs_no_lease(rota_app: TestRota, rota_database: str) -> None:
    rota_app.task(name="echo")(lambda: None)

    async with resting(rota_app) as source:
        with rota_app.facts.recorded(MemberIdentityLost) as lost:
            done = fact(rota_app.facts, JobSucceeded, timeout=60)
            with psycopg.connect(rota_database) as other:
                other.execute("lock table rota.jobs in access exclusive mode")
                await until(
                    lambda: source.glances._useless_until > boottime(), timeout=60, what="a glance was given up"
                )
            renewed = source._control().renewed_ago
            await until(lambda: source._control().renewed_ago < renewed or renewed < 1, timeout=60, what="it beats")
            with psycopg.connect(rota_database) as other:
                other.execute("insert into rota.jobs (task, queue) values ('echo', 'a')")

            assert (await done).task == "echo"
        assert lost == []
