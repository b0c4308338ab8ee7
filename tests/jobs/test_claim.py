"""The claimer: when it looks again, and that nothing it has taken is forgotten. The statements themselves: see test_settle."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest
from tests.jobs.statements import Db, ask, join

from rota.errors import DatabaseUnavailable
from rota.jobs.claim import ClaimedJob
from rota.jobs.claimer import Claimer
from rota.jobs.lanes import find_lanes, revisit_lanes
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.testing import TcpProxy, TestRota

T = TypeVar("T")

ANY = 99  # losses


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def member(db: Db) -> UUID:
    return join(db)


class Watched(Session):
    """A session that lets something happen between the answer to a statement and its arrival."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def run(self, query: Query[T]) -> T:
        answer = await super().run(query)
        self.meanwhile()
        return answer


@pytest.fixture
async def session(rota_app: TestRota) -> AsyncIterator[Watched]:
    session = Watched(rota_app.database.connector("claim"), rota_app.settings.schema)
    yield session
    await session.close()


class Sooner:
    """Counts how often it was said that a job is due sooner than known."""

    def __init__(self) -> None:
        self.said = 0

    def __call__(self) -> None:
        self.said += 1


@pytest.fixture
def sooner() -> Sooner:
    return Sooner()


@pytest.fixture
def claimer(session: Watched, sooner: Sooner) -> Claimer:
    return Claimer(session, queues=None, tasks={"t": 1}, sooner=sooner)


def add(db: Db, task: str = "t", due_in: int = 0, **columns: Any) -> None:
    names = ", ".join(["task", "due_at", *columns])
    values = ", ".join(["%s", "rota.now() + %s * interval '1 second'", *["%s"] * len(columns)])
    db.execute(f"insert into rota.jobs ({names}) values ({values})", [task, due_in, *columns.values()])  # type: ignore[arg-type]


def standing(db: Db) -> list[tuple[Any, ...]]:
    return db.execute("select state, attempt, losses, member, token from rota.jobs order by id").fetchall()


async def taken(claimer: Claimer, member: UUID, *, most_losses: int = ANY, valid: bool = True) -> list[ClaimedJob]:
    return await claimer.claim(10, member, still_valid=lambda: valid, most_losses=most_losses)


def test_lanes_tell_when_their_next_job_is_due_also_behind_one_that_is(db: Db) -> None:
    add(db, due_in=-5, queue="a")
    add(db, due_in=7200, queue="a")
    add(db, due_in=3600, queue="a")
    add(db, due_in=60, queue="b")
    add(db, due_in=-5, queue="c")

    lanes = ask(db, find_lanes(None)).lanes

    assert [(lane.queue, lane.due_in <= 0) for lane in lanes] == [("a", True), ("b", False), ("c", True)]
    assert 3590 < lanes[0].next_due_in <= 3600
    assert lanes[1].next_due_in == lanes[1].due_in
    assert lanes[2].next_due_in is None


@pytest.mark.parametrize(
    "head",
    [
        {"task": "unknown"},
        {"version": 2},
        {"losses": 1},
        {"cancel_requested_at": "now"},
    ],
    ids=["of an unknown task", "of a newer version", "that is a suspect", "that is to be cancelled"],
)
async def test_the_next_due_time_is_known_behind_a_job_that_cannot_be_claimed(
    db: Db, member: UUID, claimer: Claimer, head: dict[str, Any]
) -> None:
    add(db, **head)
    add(db, due_in=3600)

    assert await taken(claimer, member, most_losses=0) == []
    assert 3590 < claimer.next_look_in <= 3600


async def test_what_is_expected_while_a_look_is_under_way_is_not_forgotten(
    db: Db, member: UUID, claimer: Claimer, session: Watched, sooner: Sooner
) -> None:
    add(db, due_in=600)
    await taken(claimer, member)
    claimer.look()
    session.meanwhile = lambda: claimer.expect(700)  # later than what was known, and the look did not see it
    db.execute("delete from rota.jobs")
    add(db, due_in=3600)

    await taken(claimer, member)

    assert 690 < claimer.next_look_in <= 700
    assert sooner.said == 1


async def test_it_is_said_when_a_job_is_due_sooner_than_known(
    db: Db, member: UUID, claimer: Claimer, sooner: Sooner
) -> None:
    add(db, due_in=600)
    await taken(claimer, member)

    claimer.expect(700)
    assert (sooner.said, claimer.next_look_in > 500) == (0, True)
    claimer.expect(300)
    assert (sooner.said, claimer.next_look_in < 500) == (1, True)


async def test_a_suspect_that_was_taken_before_a_claim_was_cut_off_is_given_back_too(
    db: Db, member: UUID, rota_app: TestRota, rota_database: str
) -> None:
    add(db, losses=1)
    add(db)
    with TcpProxy(rota_database) as proxy:
        connector = Connector(Dsn(proxy.dsn(rota_database)), "claim")
        session = Session(connector, rota_app.settings.schema)
        claimer = Claimer(session, queues=None, tasks={"t": 1}, sooner=lambda: None)
        proxy.cut_after(b"rota:claim ")
        with pytest.raises(DatabaseUnavailable):
            await taken(claimer, member)
        held = standing(db)
        under_way = claimer.under_way

        await claimer.give_back_unknown()
        await session.close()

    assert [(state, attempt) for state, attempt, *_ in held] == [("running", 1), ("running", 1)]
    assert under_way == {token for *_, token in held}
    assert standing(db) == [("queued", 0, 1, None, None), ("queued", 0, 0, None, None)]
    assert claimer.under_way == set()


async def test_what_came_too_late_to_be_started_is_given_back_by_the_next_claim(
    db: Db, member: UUID, claimer: Claimer
) -> None:
    add(db, losses=1)
    add(db)

    assert await taken(claimer, member, valid=False) == []
    assert len(claimer.under_way) == 2
    jobs = await taken(claimer, member)

    assert [(job.attempt, job.losses) for job in jobs] == [(1, 1), (1, 0)]
    assert claimer.under_way == set()


async def test_what_is_handed_over_is_not_given_back(db: Db, member: UUID, claimer: Claimer) -> None:
    add(db)
    (job,) = await taken(claimer, member)

    assert await taken(claimer, member) == []
    assert standing(db) == [("running", 1, 0, member, job.token)]


async def test_a_job_that_is_to_be_cancelled_is_not_claimed(db: Db, member: UUID, claimer: Claimer) -> None:
    add(db, losses=1, cancel_requested_at="now")
    add(db, cancel_requested_at="now")

    assert await taken(claimer, member) == []
    assert {state for state, *_ in standing(db)} == {"queued"}


# While a look from the start is dear: a long transaction keeps dead entries, and that look walks them all


class Dear(Session):
    """A session on which a look from the start takes a minute, as far as anyone can tell."""

    async def run(self, query: Query[T]) -> T:
        answer = await super().run(query)
        if query.statement.name == "find_lanes":
            return replace(answer, seconds=60.0)  # type: ignore[type-var]
        if query.statement.name == "look_and_claim":
            look, jobs = answer  # type: ignore[misc]
            return replace(look, seconds=60.0), jobs  # type: ignore[return-value]
        return answer


@pytest.fixture
async def dear(rota_app: TestRota, db: Db, member: UUID) -> AsyncIterator[Claimer]:
    """A claimer that knows one lane, and has just looked from the start."""
    session = Dear(rota_app.database.connector("claim"), rota_app.settings.schema)
    claimer = Claimer(session, queues=None, tasks={"t": 1}, sooner=Sooner())
    assert await taken(claimer, member) == []  # what is dear once may be so by chance
    add(db)
    assert len(await taken(claimer, member)) == 1
    assert claimer.saw_all
    yield claimer
    await session.close()


async def test_a_job_of_a_known_lane_does_not_wait_for_a_dear_look(db: Db, member: UUID, dear: Claimer) -> None:
    for _ in range(2):  # also when the lane was empty in between
        assert await taken(dear, member) == []
        add(db)
        assert len(await taken(dear, member)) == 1
        assert not dear.saw_all


async def test_a_look_that_was_dear_once_holds_up_no_other(rota_app: TestRota, db: Db, member: UUID) -> None:
    session = Dear(rota_app.database.connector("claim"), rota_app.settings.schema)
    claimer = Claimer(session, queues=None, tasks={"t": 1}, sooner=Sooner())
    assert await taken(claimer, member) == []
    add(db, queue="new")

    assert len(await taken(claimer, member)) == 1
    await session.close()


async def test_what_only_a_dear_look_can_find_is_looked_for_when_its_time_has_come(
    db: Db, member: UUID, dear: Claimer
) -> None:
    assert dear.next_look_in == math.inf  # nothing is owed
    add(db, queue="new")
    add(db, due_in=-60)  # enqueued a minute ago, and committed now

    assert await taken(dear, member) == []
    assert 590 < dear.next_look_in <= 600

    dear.look(at_any_cost=True)
    assert len(await taken(dear, member)) == 2
    assert dear.saw_all
    assert dear.next_look_in == math.inf


async def test_a_wake_up_does_not_lose_its_place_in_a_backlog(db: Db, member: UUID, dear: Claimer) -> None:
    for number in range(25):
        add(db, due_in=-60, queue="default" if number % 2 else "other")
    dear.look(at_any_cost=True)
    found = []
    for _ in range(3):
        found.append(len(await taken(dear, member)))
        dear.look()
    assert found == [10, 10, 5]


async def test_a_job_that_is_due_later_does_not_hide_one_that_is_due_now(db: Db, member: UUID, dear: Claimer) -> None:
    add(db, due_in=3600)
    assert await taken(dear, member) == []
    assert 590 < dear.next_look_in <= 600

    add(db)
    assert len(await taken(dear, member)) == 1


async def test_jobs_for_others_are_not_walked_for_every_wake_up(db: Db, member: UUID, dear: Claimer) -> None:
    db.execute(
        "insert into rota.jobs (task, due_at) select 'unknown', rota.now() - interval '1 hour' from generate_series(1, 50)"
    )
    dear.look(at_any_cost=True)
    assert await taken(dear, member) == []

    known = revisit_lanes(dear._known)
    assert ask(db, known).lanes == []
