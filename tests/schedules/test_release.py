"""Runs that wait for another to end: they begin soon after it has, and cost nothing while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.jobs.statements import ask
from tests.schedules.rows import Db, add, pages, row, runs, waiting

from rota import ConfigurationError, Discard, Rota, current_job
from rota.schedules import scheduler as scheduler_room
from rota.schedules.due import conclude, find_due, fire, look_ahead, walk_waiting
from rota.schedules.plan import make_plan
from rota.testing import TestRota, until

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that neither polls nor tidies: it learns of what happens by being told."""

    async def _tidy(self: Any, session: Any) -> None:
        self._tidy_at = float("inf")

    monkeypatch.setattr(scheduler_room, "_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(scheduler_room.Scheduler, "_tidy", _tidy)


def wait(db: Db, name: str, slots: int = 1, *, live: bool = True, **columns: Any) -> None:
    """A schedule with a run that goes on, and slots that wait for its end."""
    add(db, name, **{"overlap": "queue", **columns})
    if live:
        db.execute(
            "insert into rota.jobs (task, state, attempt, token, member, schedule, slot_at) "
            "values ('noop', 'running', 1, 1, gen_random_uuid(), %s, rota.now())",
            [name],
        )
    db.execute(
        "insert into rota.slots (schedule, slot_at, cause) "
        "select %s, rota.now() + i * interval '1 second', 'due' from generate_series(1, %s) as i",
        [name, slots],
    )


@asynccontextmanager
async def at_work(app: TestRota) -> AsyncIterator[None]:
    working = asyncio.create_task(app.work())
    try:
        yield
    finally:
        app.stop()
        await working


@pytest.mark.by_default("succeeded", "dead")
@pytest.mark.usefixtures("only_told")
@pytest.mark.parametrize("outcome", ["succeeded", "dead", "cancelled"])
async def test_a_run_that_waits_begins_when_the_one_before_it_has_ended(
    rota_app: TestRota, db: Db, outcome: str
) -> None:
    began: list[asyncio.Event] = []

    @rota_app.task(name="noop", retry=1)
    async def noop() -> None:
        began.append(asyncio.Event())
        await began[-1].wait()
        if outcome != "succeeded":
            raise Discard("no") if outcome == "cancelled" else ValueError("no")

    add(db, "tick", every="1m", due_in=-61, overlap="queue", misfire="all", max_runs=2)
    async with at_work(rota_app):
        await until(lambda: len(began) == 1 and waiting(db, "tick") == 1)

        began[0].set()

        await until(lambda: len(began) == 2)
        assert waiting(db, "tick") == 0
        began[1].set()


@pytest.mark.usefixtures("only_told")
async def test_a_run_that_waits_begins_when_the_one_before_it_is_cancelled_by_someone(
    rota_app: TestRota, db: Db
) -> None:
    @rota_app.task(name="noop", queue="others")
    async def noop() -> None: ...

    await rota_app.schedules.put("tick", task="noop", overlap="queue")
    job = await rota_app.schedules.trigger("tick")
    wait(db, "another", live=False)
    db.execute("update rota.slots set schedule = 'tick' where job_id is null")
    async with at_work(rota_app):
        await rota_app.jobs.cancel(job.id)

        await until(lambda: waiting(db, "tick") == 0)


@pytest.mark.usefixtures("only_told")
async def test_what_waited_during_a_pause_begins_when_it_is_resumed(rota_app: TestRota, db: Db) -> None:
    @rota_app.task(name="noop")
    async def noop() -> None: ...

    await rota_app.schedules.put("tick", task="noop", overlap="queue")
    await rota_app.schedules.pause("tick")
    wait(db, "another", live=False)
    db.execute("update rota.slots set schedule = 'tick'")
    await rota_app.drain()
    assert waiting(db, "tick") == 1
    async with at_work(rota_app):
        await rota_app.schedules.resume("tick")

        await until(lambda: waiting(db, "tick") == 0)


@pytest.mark.usefixtures("only_told")
async def test_runs_that_need_wait_no_longer_begin_beside_the_one_that_goes_on(rota_app: TestRota, db: Db) -> None:
    rota_app.task(name="noop")(lambda: None)
    wait(db, "tick", 3)
    async with at_work(rota_app):
        await rota_app.schedules.put("tick", task="noop", overlap="allow")

        await until(lambda: waiting(db, "tick") == 0)
        # the one that goes on is left
        await until(lambda: db.execute("select count(*) from rota.jobs").fetchone() == (1,))


@pytest.mark.usefixtures("only_told")
async def test_an_end_whose_schedule_someone_has_locked_is_not_forgotten(
    rota_app: TestRota, db: Db, direct_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_POLL_DEAF_SECONDS", 3600.0)
    taken: list[int] = []
    monkeypatch.setattr(scheduler_room, "conclude", lambda most: (taken.append(most), conclude(most))[1])
    rota_app.task(name="noop")(lambda: None)
    wait(db, "tick", live=False)
    db.execute("insert into rota.schedule_ends (schedule, outcome) values ('tick', 'none')")
    with psycopg.connect(direct_database) as other:
        other.execute("select from rota.schedules for update")
        working = asyncio.create_task(rota_app.work())
        await until(lambda: bool(taken))
        assert waiting(db, "tick") == 1

    await until(lambda: waiting(db, "tick") == 0)
    rota_app.stop()
    await working


@pytest.mark.usefixtures("only_told")
async def test_runs_that_someone_asks_for_begin_at_once(rota_app: TestRota, db: Db) -> None:
    ran: list[str] = []

    @rota_app.task
    async def parent() -> None:
        await current_job().activate("child")
        await until(lambda: "child" in ran)

    @rota_app.task
    async def noop(name: str) -> None:
        ran.append(name)

    await rota_app.schedules.put("filled", task="noop", args={"name": "filled"}, cron="0 0 1 * *")
    await rota_app.schedules.put("listens", task="noop", args={"name": "listens"}, on="call")
    await rota_app.schedules.put("parent", task="parent")
    await rota_app.schedules.put("child", task="noop", args={"name": "child"}, after="parent", dormant=True)
    async with at_work(rota_app):
        await rota_app.schedules.backfill("filled", EPOCH, EPOCH + timedelta(days=50))
        await until(lambda: ran == ["filled", "filled"])
        await rota_app.emit("call")
        await until(lambda: ran[2:] == ["listens"])
        await rota_app.schedules.trigger("parent")
        await until(lambda: ran[3:] == ["child"])


async def test_a_leader_finds_runs_that_wait_for_one_that_left_no_trace(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(scheduler_room, "_POLL_DEAF_SECONDS", 3600.0)
    monkeypatch.setattr(scheduler_room, "_TIDY_MORE_SECONDS", 0.05)
    monkeypatch.setattr(scheduler_room, "_WALKED", 4)
    rota_app.task(name="noop")(lambda: None)
    names = ["strays", *(f"tick-{number}" for number in range(5))]
    for name in names:
        wait(db, name, live=name < "tick-3")
    db.execute("delete from rota.schedules where name = 'strays'")

    async with at_work(rota_app):
        await until(lambda: [waiting(db, name) for name in names] == [0, 1, 1, 1, 0, 0])
    assert runs(db, "strays") == []


async def test_a_drain_finds_runs_that_wait_for_one_that_left_no_trace(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_WALKED", 2)
    rota_app.task(name="noop")(lambda: None)
    for number in range(5):
        wait(db, f"tick-{number}", live=False)

    assert await rota_app.drain() == 5


def test_runs_of_a_paused_schedule_wait_on_and_nobody_looks_at_them(db: Db) -> None:
    wait(db, "tick", live=False)
    db.execute("update rota.schedules set paused_at = rota.now()")
    db.execute("insert into rota.schedule_ends (schedule, outcome) values ('tick', 'none')")

    assert ask(db, conclude(10)).taken == 1
    assert ask(db, walk_waiting("", 10)) == ("", False)
    assert not ask(db, look_ahead()).ends
    assert waiting(db, "tick") == 1


def test_nothing_begins_beside_a_run_that_goes_on_and_nobody_looks_at_it(db: Db) -> None:
    wait(db, "tick")
    db.execute("insert into rota.schedule_ends (schedule, outcome) values ('tick', 'none')")

    assert ask(db, conclude(10)).taken == 1
    assert ask(db, walk_waiting("", 10)) == ("", False)
    assert not ask(db, look_ahead()).ends
    assert waiting(db, "tick") == 1


def test_so_many_begin_at_once_and_the_others_are_not_forgotten(db: Db) -> None:
    wait(db, "beside", 25, overlap="allow")
    for name in ("a", "b", "c"):
        wait(db, name, 2, live=False)
    for name in ("beside", "a", "b", "c"):
        db.execute("insert into rota.schedule_ends (schedule, outcome) values (%s, 'none')", [name])

    begun = []
    while ask(db, conclude(10)).taken:
        begun.append(sum(len(runs(db, name)) for name in ("beside", "a", "b", "c")))

    assert begun == [10, 20, 28]
    assert [waiting(db, name) for name in ("beside", "a", "b", "c")] == [0, 1, 1, 1]


def test_what_says_that_a_run_may_begin_begins_no_pause(db: Db) -> None:
    add(db, "feed", kind="delay", every="10m", delay="10 minutes")
    db.execute("insert into rota.schedule_ends (schedule, outcome) values ('feed', 'none')")

    assert ask(db, conclude(10)).taken == 1
    assert row(db, "feed", "next_at, failures, succeeded_at") == (None, 0, None)


async def test_a_pause_begins_when_the_run_that_waited_has_ended(rota_app: TestRota, db: Db) -> None:
    rota_app.task(name="noop")(lambda: None)
    await rota_app.schedules.put("feed", task="noop", every="10m", counted_from="end", overlap="queue")
    rota_app.advance("9m")
    await rota_app.schedules.trigger("feed")
    rota_app.advance("2m")
    await rota_app.drain(queues=["others"])
    assert waiting(db, "feed") == 1
    db.execute("delete from rota.jobs where schedule = 'feed'")
    db.execute("insert into rota.schedule_ends (schedule, job_id, outcome) values ('feed', 1, 'succeeded')")

    ask(db, conclude(10))
    assert (waiting(db, "feed"), row(db, "feed", "next_at")) == (0, (None,))
    await rota_app.drain()
    assert row(db, "feed", "next_at is not null, runs") == (True, 1)


def test_a_run_that_is_younger_than_who_asks_is_under_way(db: Db) -> None:
    """Its statement began, waited for a lock, and read what was put meanwhile."""
    add(db, "tick", due_in=-1)
    wait(db, "waits", live=False)
    for name in ("tick", "waits"):
        db.execute(
            "insert into rota.jobs (task, schedule, created_at, due_at) "
            "select 'noop', %s, moment, moment from (select rota.now() + interval '1 minute') as its(moment)",
            [name],
        )
        db.execute("insert into rota.schedule_ends (schedule, outcome) values (%s, 'none')", [name])

    (fired,) = ask(db, fire([make_plan(due, lambda _: None) for due in ask(db, find_due(10))]))
    ask(db, conclude(10))
    assert (fired.fired, fired.skipped) == (0, 1)
    assert (runs(db, "waits"), waiting(db, "waits")) == ([], 1)

    db.execute(
        "update rota.schedules set overlap = 'queue', next_slot = rota.now(), next_at = rota.now() where name = 'tick'"
    )
    ask(db, fire([make_plan(due, lambda _: None) for due in ask(db, find_due(10))]))
    assert (runs(db, "tick"), waiting(db, "tick")) == ([], 1)


def test_what_waits_for_runs_that_go_on_costs_a_round_nothing(db: Db) -> None:
    db.execute(
        "insert into rota.schedules (name, task, kind, every, overlap) "
        "select 'waits-' || i, 'noop', 'every', '1d', 'queue' from generate_series(1, 20000) as i"
    )
    db.execute(
        "insert into rota.jobs (task, state, attempt, token, member, schedule) "
        "select 'noop', 'running', 1, 1, gen_random_uuid(), 'waits-' || i from generate_series(1, 20000) as i"
    )
    db.execute(
        "insert into rota.slots (schedule, slot_at, cause) "
        "select 'waits-' || i, rota.now(), 'due' from generate_series(1, 20000) as i"
    )
    db.execute("delete from rota.jobs where schedule = 'waits-7'")
    db.execute("insert into rota.schedule_ends (schedule, job_id, outcome) values ('waits-7', 1, 'succeeded')")
    db.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    ask(db, conclude(1000))  # what is read once per session
    db.execute("insert into rota.schedule_ends (schedule, job_id, outcome) values ('waits-8', 1, 'succeeded')")
    db.execute("delete from rota.jobs where schedule = 'waits-8'")

    assert pages(db, look_ahead()) < 60
    # twenty thousand would be many thousands; a part of this is the catalogue, read anew when someone has analysed a table
    assert pages(db, conclude(1000)) < 1000
    assert len(runs(db, "waits-8")) == 1


async def test_how_often_a_leader_looks_unasked_can_be_said(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(scheduler_room, "_POLL_DEAF_SECONDS", 3600.0)
    looks = 0
    look = scheduler_room.look_ahead

    def counted() -> Any:
        nonlocal looks
        looks += 1
        return look()

    monkeypatch.setattr(scheduler_room, "look_ahead", counted)
    add(db, "later", due_in=7200)
    rota_app.settings = replace(rota_app.settings, schedule_poll=timedelta(seconds=0.1))
    async with at_work(rota_app):
        await until(lambda: looks > 5)


@pytest.mark.parametrize("poll", ["1ms", "2h", "often"])
def test_how_often_a_leader_looks_is_within_reason(poll: str) -> None:
    with pytest.raises(ConfigurationError, match="schedule_poll"):
        Rota("postgresql://nowhere/x", schedule_poll=poll)
