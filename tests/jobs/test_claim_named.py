"""Jobs that someone named: an idle worker takes them without a look, and nothing that a look would leave alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.jobs.statements import Db, ask, join

from rota.jobs.claim import ClaimedJob, claim_named, new_token
from rota.jobs.claimer import Claimer
from rota.postgres.keys import channel
from rota.postgres.notify import wake_message
from rota.postgres.query import identifier
from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def member(db: Db) -> UUID:
    return join(db)


def add(db: Db, due_in: int = 0, **columns: Any) -> int:
    given = {"task": "t", **columns}
    names = ", ".join(["due_at", *given])
    values = ", ".join(["rota.now() + %s * interval '1 second'", *["%s"] * len(given)])
    row = db.execute(f"insert into rota.jobs ({names}) values ({values}) returning id", [due_in, *given.values()])  # type: ignore[arg-type]
    return int(row.fetchall()[0][0])


def taken(db: Db, member: UUID, *ids: int, limit: int = 10, **given: Any) -> list[ClaimedJob]:
    known: dict[str, Any] = {"queues": None, "tasks": {"t": 1}, "limited": (), **given}
    return ask(db, claim_named(ids=ids, limit=limit, token=new_token(), member=member, **known))


def test_those_that_are_named_are_taken_the_most_urgent_first_and_no_others(db: Db, member: UUID) -> None:
    late, other, urgent = add(db), add(db), add(db, priority=5)

    jobs = taken(db, member, late, urgent)

    assert [job.id for job in jobs] == [urgent, late]
    assert [(job.priority, job.attempt, job.queue, job.args) for job in jobs] == [
        (5, 1, "default", "{}"),
        (0, 1, "default", "{}"),
    ]
    assert db.execute("select id from rota.jobs where state = 'queued'").fetchall() == [(other,)]
    assert [job.id for job in taken(db, member, other, late, limit=1)] == [other]


@pytest.mark.parametrize(
    "columns",
    [
        {"due_in": 60},
        {"task": "unknown"},
        {"version": 2},
        {"queue": "b"},
        {"losses": 1},
    ],
    ids=str,
)
def test_what_a_look_would_leave_alone_is_left_alone(db: Db, member: UUID, columns: dict[str, Any]) -> None:
    assert taken(db, member, add(db, **columns), queues=["default"]) == []


def test_what_is_to_be_cancelled_is_left_alone(db: Db, member: UUID) -> None:
    id = add(db)
    db.execute("update rota.jobs set cancel_requested_at = rota.now()")

    assert taken(db, member, id) == []


@pytest.mark.parametrize("name", ["default", ""])
@pytest.mark.parametrize(
    "steered",
    [
        "running_limit = 100",
        "rate_count = 100, rate_seconds = 60",
        "paused_at = rota.now()",
        "paused_at = rota.now(), paused_until = rota.now() + interval '1 minute'",
    ],
)
def test_what_is_limited_or_paused_is_left_to_a_look(db: Db, member: UUID, name: str, steered: str) -> None:
    id = add(db)
    db.execute("insert into rota.queues (name) values (%s) on conflict do nothing", [name])
    db.execute(f"update rota.queues set {steered} where name = %s", [name])  # type: ignore[arg-type]

    assert taken(db, member, id) == []


def test_a_pause_that_is_over_holds_nothing_up(db: Db, member: UUID) -> None:
    id = add(db)
    db.execute("insert into rota.queues (name, paused_at, paused_until) values ('default', rota.now(), rota.now())")

    assert [job.id for job in taken(db, member, id)] == [id]


def test_an_ended_member_takes_nothing(db: Db) -> None:
    assert taken(db, uuid4(), add(db)) == []


def test_what_another_has_just_taken_is_not_waited_for(db: Db, member: UUID, rota_database: str) -> None:
    id = add(db)
    with psycopg.connect(rota_database) as other:
        other.execute("select from rota.jobs where id = %s for update", [id])

        assert taken(db, member, id) == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("mail", ("mail", None)),
        ("mail\x1f17", ("mail", 17)),
        ("a\x1fb\x1f17", ("a\x1fb", 17)),
        ("mail\x1f", ("mail\x1f", None)),
        ("mail\x1f-1", ("mail\x1f-1", None)),
        ("mail\x1f\u0661", ("mail\x1f\u0661", None)),
        pytest.param("mail\x1f" + "9" * 19, ("mail\x1f" + "9" * 19, None), id="more than an id can be"),
        pytest.param("mail\x1f" + "9" * 5000, ("mail\x1f" + "9" * 5000, None), id="more than Python reads"),
        ("", ("", None)),
    ],
)
def test_a_message_names_a_queue_and_maybe_a_job(said: str, meant: tuple[str, int | None]) -> None:
    assert wake_message(said) == meant


@pytest.mark.direct("nobody hears anything there")
async def test_one_that_is_due_at_once_is_named_and_one_that_is_not_is_not(rota_app: TestRota, db: Db) -> None:
    @rota_app.task
    async def t() -> None: ...

    db.execute(f"listen {identifier(channel('rota', 'wake'))}")  # type: ignore[arg-type]

    first = await t.enqueue()
    later = t.using(delay="1m", queue="later")
    await later.enqueue()

    heard = [note.payload for note in db.notifies(timeout=5, stop_after=2)]
    assert heard == [f"default\x1f{first.id}", "later"]


@pytest.mark.direct("nobody hears anything there")
async def test_an_idle_worker_takes_what_it_is_told_of_without_a_look(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, named = asyncio.Event(), []
    take_named = Claimer.claim_named

    async def taking(claimer: Claimer, ids: list[int], *given: Any, **more: Any) -> list[ClaimedJob]:
        jobs = await take_named(claimer, ids, *given, **more)
        named.extend(job.id for job in jobs)
        return jobs

    monkeypatch.setattr(Claimer, "claim_named", taking)

    @rota_app.task
    async def t() -> None:
        ran.set()

    working = asyncio.create_task(rota_app.work())
    jobs = []
    for _ in range(100):  # a look that is under way just then may be sooner
        ran.clear()
        jobs.append(await t.enqueue())
        await asyncio.wait_for(ran.wait(), 20)
        if named:
            break
    rota_app.stop()
    await working

    assert named == [jobs[-1].id]


async def test_who_is_told_of_a_job_that_is_not_for_it_looks_all_the_same(rota_app: TestRota, db: Db) -> None:
    ran = asyncio.Event()

    @rota_app.task
    async def t() -> None:
        ran.set()

    db.execute("insert into rota.queues (name, running_limit) values ('default', 5)")
    working = asyncio.create_task(rota_app.work())
    await t.enqueue()

    await asyncio.wait_for(ran.wait(), 20)

    rota_app.stop()
    await working
