"""A worker goes back to the lines it has made room in, without a look at all there is; and looks when someone tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest
from tests.jobs.statements import Db, ask, join, put
from tests.limits.test_limits_isolation import taken
from tests.limits.test_lines import Stage, working

import rota.jobs.claimer
from rota import Limit
from rota.jobs.claim import ClaimedJob
from rota.jobs.claimer import Claimer
from rota.jobs.enqueue import digest
from rota.jobs.job import NewJob
from rota.jobs.limit import declare_limits
from rota.jobs.outcome import Succeeded
from rota.jobs.settle import succeed
from rota.jobs.source import JobSource
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rota.jobs.claimer, "_LOOK_FROM_START_SECONDS", 3600)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def member(db: Db) -> UUID:
    return join(db)


class Noted(Session):
    """A session that keeps the names of the statements it ran."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ran: list[str] = []

    async def run(self, query: Query[T]) -> T:
        self.ran.append(query.statement.name)
        return await super().run(query)


@pytest.fixture
async def session(rota_app: TestRota) -> AsyncIterator[Noted]:
    session = Noted(rota_app.database.connector("claim"), rota_app.settings.schema)
    yield session
    await session.close()


@pytest.fixture
def claimer(session: Noted) -> Claimer:
    return Claimer(session, queues=None, tasks={"in line": 1, "plain": 1}, sooner=lambda: None)


def in_line(db: Db, limit: Limit, count: int) -> None:
    taken(db, declare_limits({"in line": limit}))
    ask(db, put(*(NewJob("in line", "{}", key="k", line=digest("in line", "k")) for _ in range(count))))


async def claimed(claimer: Claimer, member: UUID, limit: int) -> list[ClaimedJob]:
    return await claimer.claim(limit, member, still_valid=lambda: True, most_losses=0)


def tasks(jobs: list[ClaimedJob]) -> list[str]:
    return [job.task for job in jobs]


async def test_the_next_of_a_line_is_taken_without_a_look_though_other_lanes_have_more(
    db: Db, member: UUID, claimer: Claimer, session: Noted
) -> None:
    in_line(db, Limit(running=1, by="k"), 2)
    (first,) = await claimed(claimer, member, 1)
    ask(db, put(*(NewJob("plain", "{}") for _ in range(9))))
    claimer.look()
    assert tasks(await claimed(claimer, member, 1)) == ["plain"]  # the line is full: the look has not found it
    session.ran.clear()

    ask(db, succeed([Succeeded(first, None, 0.1)]))
    claimer.return_to_lines({("default", 0)})

    assert sorted(tasks(await claimed(claimer, member, 3))) == ["in line", "plain", "plain"]
    assert set(session.ran) == {"claim", "claim_flow"}


async def test_what_is_more_urgent_comes_before_a_line_that_is_returned_to(
    db: Db, member: UUID, claimer: Claimer
) -> None:
    in_line(db, Limit(running=1, by="k"), 2)
    (first,) = await claimed(claimer, member, 1)
    ask(db, put(*(NewJob("plain", "{}", priority=5) for _ in range(3))))
    claimer.look()
    assert tasks(await claimed(claimer, member, 1)) == ["plain"]

    ask(db, succeed([Succeeded(first, None, 0.1)]))
    claimer.return_to_lines({("default", 0)})

    assert tasks(await claimed(claimer, member, 1)) == ["plain"]
    assert tasks(await claimed(claimer, member, 2)) == ["plain", "in line"]


async def test_returning_to_a_line_that_waits_for_its_rate_tells_when_that_has_room(
    db: Db, member: UUID, claimer: Claimer
) -> None:
    in_line(db, Limit(rate="1/1h", by="k"), 2)
    (first,) = await claimed(claimer, member, 1)
    ask(db, succeed([Succeeded(first, None, 0.1)]))
    claimer.return_to_lines({("default", 0)})

    assert await claimed(claimer, member, 1) == []
    assert 3500 < claimer.next_look_in < 3800


@pytest.mark.parametrize("queue", ["default", ""], ids=["queue", "all queues"])
async def test_a_queue_is_known_to_be_limited_until_it_is_seen_that_it_is_not(
    db: Db, member: UUID, claimer: Claimer, queue: str
) -> None:
    in_line(db, Limit(by="k"), 9)
    db.execute("insert into rota.queues (name, running_limit) values (%s, 1)", [queue])
    await claimed(claimer, member, 1)
    assert claimer.is_limited("default")

    db.execute("delete from rota.queues")
    claimer.look()
    await claimed(claimer, member, 1)
    assert not claimer.is_limited("default")


async def test_a_worker_returns_to_the_line_of_a_job_that_has_ended(rota_app: TestRota) -> None:
    stage = Stage()
    stage.hold()
    began: list[str] = []

    @rota_app.task(limit=1)
    async def one(n: int) -> None:
        began.append("in line")
        await stage.play(n)

    @rota_app.task
    async def other(n: int) -> None:
        began.append("plain")
        if n == 5:
            stage.let_go()
        await asyncio.sleep(0.01)

    await rota_app.enqueue_many([one.bind(n) for n in range(2)])
    async with working(rota_app, concurrency=2):
        await until(lambda: stage.now == 1, what="the line is full")
        await rota_app.enqueue_many([other.bind(n) for n in range(300)])
        await until(lambda: len(began) == 302, 30, what="all have begun")

    assert "plain" in began[began.index("in line", 1) :]


@pytest.mark.parametrize("held_by", ["line", "queue"])
async def test_who_has_made_room_waits_for_nobody_to_go_on(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch, held_by: str
) -> None:
    monkeypatch.setattr(JobSource, "wait_for_more", lambda self: self._woken.wait())
    began: list[int] = []

    @rota_app.task(limit=1 if held_by == "line" else None)
    async def work(n: int) -> None:
        began.append(n)

    if held_by == "queue":
        db.execute("insert into rota.queues (name, running_limit) values ('default', 1)")
    async with working(rota_app):
        await rota_app.enqueue_many([work.bind(n) for n in range(5)])
        await until(lambda: began == [0, 1, 2, 3, 4], what="each made room for the next")


@pytest.mark.direct("nobody is woken there")
async def test_who_is_woken_looks_at_lanes_that_the_last_look_did_not_find(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = asyncio.Event()
    wake = JobSource.wake

    def noted(self: JobSource, job: int | None = None) -> None:
        wake(self, job)
        woken.set()

    monkeypatch.setattr(JobSource, "wake", noted)
    began: list[str] = []

    @rota_app.task
    async def usual(n: int) -> None:
        began.append("usual")
        if n == 5:
            woken.clear()
            await urgent.enqueue()
            await woken.wait()
        await asyncio.sleep(0.01)

    @rota_app.task(priority=9)
    async def urgent() -> None:
        began.append("urgent")

    await rota_app.enqueue_many([usual.bind(n) for n in range(100)])
    async with working(rota_app, concurrency=1):
        await until(lambda: len(began) == 101, 30, what="all have begun")

    assert began[-1] == "usual"
