"""Schedules that are broken, locked, very many at once, or asked for later: each of them hinders itself and no other."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest
from tests.jobs.statements import ask
from tests.schedules.rows import Db, add, pages, row, runs, waiting

from rota import Retry, Rota
from rota.facts import ScheduleBroken, ScheduleRoundBegan, ScheduleRoundEnded, ScheduleUnclaimed
from rota.integrations.logging import words
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.schedules import scheduler as scheduler_room
from rota.schedules.due import conclude, find_due, fire, look_ahead
from rota.schedules.plan import make_plan
from rota.testing import TestRota, until

T = TypeVar("T")

MINUTE = timedelta(minutes=1)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def noop(rota_app: TestRota) -> None:
    @rota_app.task(name="noop")
    async def noop() -> None: ...

    @rota_app.task(name="typed")
    async def typed(n: int) -> None: ...


@pytest.mark.parametrize(
    "nonsense",
    [
        "at = 'infinity'",
        "end_at = 'infinity'",
        "start_at = '-infinity'",
        "anchor = 'infinity'",
        "last_slot = 'infinity'",
        "next_slot = 'infinity'",
        "next_slot = '20000-01-01'",
        "paused_at = 'infinity'",
        "jitter = '100000000 years'",
        "misfire_grace = '100000000 years'",
        "misfire_limit = 2147483647",
        "kind = 'delay', delay = '100000 years'",
        "runs = 9223372036854775807",
        "missed = 9223372036854775807",
    ],
)
def test_what_could_not_be_read_or_added_to_is_refused_by_the_database(db: Db, nonsense: str) -> None:
    add(db, "tick", due_in=60)
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.IntervalFieldOverflow)):
        db.execute(f"update rota.schedules set {nonsense}")  # type: ignore[arg-type]


DEEP = json.dumps("[" * 3000 + "]" * 3000)[1:-1]


@pytest.mark.by_default("arguments too deep", "exclude too long", "no zone")
@pytest.mark.parametrize(
    "nonsense",
    [
        f"exclude = '{DEEP}'",
        f"exclude = '{{\"weekdays\": [{'9' * 5000}]}}'",
        f"task = 'typed', args = '{{\"n\": {DEEP}}}'",
        "kind = 'cron', every = null, cron = repeat('1,', 100000) || '1 * * * *'",
        "tz = '../../etc/passwd'",
        "every = 'now and then'",
    ],
    ids=["exclude too deep", "exclude too long", "arguments too deep", "cron too long", "no zone", "no pace"],
)
async def test_a_row_that_makes_no_sense_is_marked_and_hinders_no_other(
    rota_app: TestRota, db: Db, nonsense: str
) -> None:
    add(db, "bad", due_in=-2)
    db.execute(f"update rota.schedules set {nonsense}")  # type: ignore[arg-type]
    add(db, "healthy", due_in=-1)

    with rota_app.facts.recorded(ScheduleBroken) as broken:
        await rota_app.drain()
    assert len(runs(db, "healthy")) == 1
    assert [fact.name for fact in broken] == ["bad"]
    assert row(db, "bad", "problem is not null, next_at") == (True, None)


async def test_one_that_the_database_refuses_is_found_among_many(rota_app: TestRota, db: Db) -> None:
    for number in range(7):
        add(db, f"tick-{number}", due_in=-1)
    db.execute("alter table rota.jobs add check (schedule <> 'tick-3')")

    with rota_app.facts.recorded(ScheduleBroken) as broken:
        assert await rota_app.drain() == 6
    assert [fact.name for fact in broken] == ["tick-3"]
    problem, next_at = row(db, "tick-3", "problem, next_at")
    assert "could not be given out" in problem
    assert next_at is None


@pytest.mark.parametrize("when", ["every = '1 day'", "kind = 'cron', every = null, cron = '* * * * *'"])
async def test_a_slot_of_the_year_one_is_not_counted_from(rota_app: TestRota, db: Db, when: str) -> None:
    add(db, "old", due_in=-1)
    db.execute(f"update rota.schedules set next_slot = '0001-01-02 UTC', {when}")  # type: ignore[arg-type]

    async with asyncio.timeout(10):
        await rota_app.drain()
    (next_slot,) = row(db, "old", "next_slot")
    assert next_slot.year > 2000


async def test_a_month_of_milliseconds_is_missed_and_a_drain_ends_all_the_same(rota_app: TestRota, db: Db) -> None:
    await rota_app.schedules.put("tick", task="noop", every="1ms", misfire_limit=3)
    rota_app.advance("30d")

    assert await rota_app.drain() == 3
    (missed,) = row(db, "tick", "missed")
    assert missed > 2**31


async def test_very_many_slots_are_given_out_a_part_at_a_time(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_BATCH_SLOTS", 20)
    for number in range(5):
        add(db, f"tick-{number}", every="1m", due_in=-600, misfire="all", overlap="allow")
    statements: list[int] = []
    given = scheduler_room.fire
    monkeypatch.setattr(
        scheduler_room, "fire", lambda plans: (statements.append(sum(len(p.slots) for p in plans)), given(plans))[1]
    )

    assert await rota_app.drain() == 55
    assert statements == [22, 22, 11]


class Counted(Session):
    ran = 0

    async def run(self, query: Query[T]) -> T:
        Counted.ran += query.statement.name in ("look_ahead", "find_due_schedules", "fire")
        return await super().run(query)


async def test_rows_that_someone_has_locked_hold_up_no_others_and_are_not_asked_for_all_the_time(
    rota_app: TestRota, db: Db, direct_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_BATCH", 10)
    monkeypatch.setattr(scheduler_room, "Session", Counted)
    for number in range(10):
        add(db, f"locked-{number}", due_in=-5)
    add(db, "parent", due_in=-4)
    add(db, "child", kind="after", overlap="queue", after=("parent",))
    add(db, "healthy", every="100ms", due_in=-1)
    with psycopg.connect(direct_database) as other:
        other.execute("update rota.schedules set note = 'x' where name like 'locked-%' or name = 'child'")
        working = asyncio.create_task(rota_app.work())
        await until(lambda: len(runs(db, "healthy")) > 12)
        before, Counted.ran = len(runs(db, "healthy")), 0
        await until(lambda: len(runs(db, "healthy")) > before + 10)
        asked = Counted.ran
        assert runs(db, "locked-0") == []
        assert db.execute("select count(*) from rota.schedule_ends where schedule = 'parent'").fetchone() == (1,)
    await until(lambda: runs(db, "locked-0") and runs(db, "child"))
    rota_app.stop()
    await working

    assert asked < 150


def test_what_a_locked_schedule_has_ended_holds_up_no_other_however_much_it_is(db: Db, direct_database: str) -> None:
    for name in ("locked", "parent", "healthy"):
        add(db, name)
    add(db, "child", kind="after", overlap="queue", after=("parent",))
    for name, ends in (("locked", 30), ("parent", 30), ("healthy", 25), ("locked", 5)):
        db.execute(
            "insert into rota.schedule_ends (schedule, job_id, outcome) "
            "select %s, i, case when i %% 2 = 0 then 'succeeded' else 'dead' end from generate_series(1, %s) as i",
            [name, ends],
        )
    with psycopg.connect(direct_database) as other:
        other.execute("update rota.schedules set note = 'x' where name in ('locked', 'child')")
        taken = [ask(db, conclude(10)).taken for _ in range(4)]

        # nor is any of theirs taken before what they had ended earlier
        assert taken == [10, 10, 5, 0]
        left = db.execute("select schedule, count(*) from rota.schedule_ends group by 1 order by 1").fetchall()
        assert left == [("locked", 35), ("parent", 30)]

    while ask(db, conclude(10)).taken:
        pass
    assert row(db, "locked", "failures") == (1,)
    assert row(db, "child", "runs") == (15,)


async def test_a_run_that_someone_wants_later_leaves_out_no_slot(rota_app: TestRota, db: Db) -> None:
    await rota_app.schedules.put("tick", task="noop", every="1m")
    await rota_app.schedules.put("pause", task="noop", every="1m", counted_from="end")
    for name in ("tick", "pause"):
        await rota_app.schedules.trigger(name, delay="7d")
    for _ in range(3):
        rota_app.advance("2m")
        await rota_app.drain()

    assert row(db, "tick", "skipped") == row(db, "pause", "skipped") == (0,)
    assert row(db, "pause", "runs") == (3,)


async def test_the_last_run_is_not_lost_when_it_is_left_out(rota_app: TestRota, db: Db) -> None:
    add(db, "tick", due_in=-1, max_runs=2)
    for _ in range(2):  # the second time the first is still queued
        ask(db, fire([make_plan(due, lambda _: None) for due in ask(db, find_due(10))]))
        rota_app.advance("1m")
    assert row(db, "tick", "runs, skipped") == (1, 1)

    await rota_app.drain()
    rota_app.advance("1m")
    await rota_app.drain()
    assert row(db, "tick", "runs, next_at") == (2, None)


def test_successes_of_many_with_many_children_are_used_in_one_go(db: Db) -> None:
    add(db, "a")
    add(db, "b")
    db.execute(
        "insert into rota.schedules (name, task, kind, overlap) "
        "select 'c' || i, 'noop', 'after', 'queue' from generate_series(1, 300) as i"
    )
    db.execute("insert into rota.schedule_parents select 'c' || i, 'a' from generate_series(1, 300) as i")
    db.execute("insert into rota.schedule_parents select 'c' || i, 'b' from generate_series(1, 300, 3) as i")
    for parent, successes in (("a", 50), ("b", 20)):
        db.execute(
            "insert into rota.schedule_ends (schedule, job_id, outcome) "
            "select %s, %s + i, 'succeeded' from generate_series(1, %s) as i",
            [parent, 1000 * len(parent) + (5000 if parent == "b" else 0), successes],
        )
    while ask(db, conclude(1000)).taken:
        pass

    # one of each has begun
    assert (waiting(db, "c2"), waiting(db, "c1")) == (49, 19)
    assert row(db, "c2", "runs") == (50,)
    assert db.execute("select parent, count(*) from rota.schedule_feed group by parent").fetchall() == [("a", 3000)]


async def test_each_round_is_told_with_what_others_were_faster_at(
    rota_app: TestRota, db: Db, direct_database: str
) -> None:
    add(db, "tick", due_in=-1)
    add(db, "locked", due_in=-1)
    db.execute("insert into rota.schedule_ends (schedule, outcome) values ('tick', 'none')")
    with psycopg.connect(direct_database) as other:
        other.execute("select from rota.schedules where name = 'locked' for update")
        with rota_app.facts.recorded(ScheduleRoundBegan, ScheduleRoundEnded) as told:
            await rota_app.drain(queues=["others"])

    began, ended, *_ = told
    assert isinstance(began, ScheduleRoundBegan)
    assert (ended.given_out, ended.elsewhere, ended.ends) == (1, 1, 1)
    assert len(told) % 2 == 0
    level, line = words(ended) or (0, "")
    assert (level, line.partition(" in ")[0]) == (
        logging.DEBUG,
        "scheduler: 1 schedule(s) given out, 1 taken, changed or locked by others, 1 end(s) concluded",
    )


async def test_it_is_told_when_no_live_worker_knows_the_task(rota_app: TestRota, db: Db) -> None:
    add(db, "report", task="gone", due_in=-1)
    with rota_app.facts.recorded(ScheduleUnclaimed) as told:
        await rota_app.drain()

    assert told == [ScheduleUnclaimed("report", "gone")]
    assert len(runs(db, "report")) == 1  # it waits for a worker that does
    assert row(db, "report", "problem") == (None,)


async def test_an_older_leader_leaves_what_it_does_not_know_to_others(rota_app: TestRota, db: Db) -> None:
    add(db, "newer", task="typed", args={"n": 1, "region": "eu"}, version=2, due_in=-1)

    await rota_app.drain()
    assert row(db, "newer", "problem") == (None,)


async def test_what_newer_code_put_is_given_out_by_an_older_leader_and_judged_where_it_runs(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    newer = Rota(rota_database)
    ran: list[int] = []

    @newer.task(name="typed")
    async def typed(n: int, copies: int = 1) -> None:
        ran.append(copies)

    async with newer:
        await newer.schedules.put("put", task="typed", args={"n": 1, "copies": 2}, every="1h", queue="new")
    rota_app.advance("61m")
    with rota_app.facts.recorded(ScheduleBroken) as broken:
        await rota_app.drain(queues=["old"])
    assert (broken, row(db, "put", "problem, runs")) == ([], (None, 1))
    async with newer:
        await newer.work(queues=["new"], drain=True)
    assert ran == [2]

    # what someone writes over it is what nobody has checked
    db.execute("""update rota.schedules set args = '{"n": 1, "sides": 2}'""")
    rota_app.advance("61m")
    await rota_app.drain(queues=["old"])
    (problem,) = row(db, "put", "problem")
    assert "sides is not a parameter" in problem


async def test_a_codec_that_fails_breaks_no_schedule(rota_database: str, rota_app: TestRota, db: Db) -> None:
    class Away:
        encode = staticmethod(str)

        def decode(self, text: str) -> str:
            raise ConnectionError("the key service does not answer")

    app = Rota(rota_database, codec=Away())
    app.task(name="mail", retry=Retry(attempts=2, base=3600))(lambda to: None)
    async with app:
        await app.schedules.put("mail", task="mail", args={"to": "me"}, every="1h")
        db.execute("update rota.schedules set checked = null")  # as if its task had not been at hand
        rota_app.advance("61m")
        await app.work(drain=True)

    assert row(db, "mail", "problem, runs") == (None, 1)
    assert db.execute("select attempt, state from rota.jobs").fetchone() == (1, "queued")


async def test_what_waits_for_a_schedule_that_is_gone_is_forgotten(rota_app: TestRota, db: Db) -> None:
    db.execute("insert into rota.slots (schedule, slot_at, cause) values ('gone', rota.now(), 'event')")
    add(db, "tick", due_in=3600)
    working = asyncio.create_task(rota_app.work())

    await until(lambda: db.execute("select count(*) from rota.slots").fetchone() == (0,))
    rota_app.stop()
    await working


async def test_a_pace_that_leaves_no_rest_leaves_time_for_all_else(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_BATCH", 10)
    for number in range(45):
        add(db, f"tick-{number}", every="1ms", due_in=0, misfire_limit=1, misfire_grace="0", max_runs=1_000_000)
    db.execute("insert into rota.slots (schedule, slot_at, cause) values ('gone', rota.now(), 'event')")
    add(db, "gone-too")
    working = asyncio.create_task(rota_app.work(queues=["others"]))
    await until(lambda: len(runs(db, "tick-44")) > 0)
    db.execute("insert into rota.schedule_ends (schedule, job_id, outcome) values ('gone-too', 1, 'succeeded')")

    await until(lambda: waiting(db, "gone") == 0 and row(db, "gone-too", "succeeded_at") != (None,))
    rota_app.stop()
    await working


async def test_conclusions_are_drawn_between_the_pages_of_what_is_due(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_room, "_BATCH", 10)
    monkeypatch.setattr(scheduler_room, "_BETWEEN_SECONDS", 0)
    monkeypatch.setattr(scheduler_room, "_CONCLUDE_SECONDS", 60)  # however busy the machine is
    db.execute(
        "insert into rota.schedules (name, task, kind, every, next_slot, next_at) "
        "select 'due-' || i, 'noop', 'every', '1h', at, at from generate_series(1, 25) as i, rota.now() as at"
    )
    db.execute("insert into rota.schedule_ends (schedule, outcome) select 'due-1', 'none' from generate_series(1, 95)")
    left: list[tuple[int]] = []
    given = scheduler_room.fire

    def fire(plans: Any) -> Any:
        left.extend(db.execute("select count(*) from rota.schedule_ends").fetchall())
        return given(plans)

    monkeypatch.setattr(scheduler_room, "fire", fire)
    await rota_app.drain(queues=["others"])

    # the first is given out while the conclusions that follow it may have begun
    assert len(left) == 3
    assert left[1:] == [(0,), (0,)]


@pytest.mark.parametrize("due", [1000, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(120)])])
def test_thousands_that_are_due_in_one_second_are_given_out_in_bounded_batches(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch, due: int
) -> None:
    """How long that takes: bench/schedules.py."""
    db.execute(
        "insert into rota.schedules (name, task, kind, cron, next_slot, next_at) "
        "select 'due-' || i, 'noop', 'cron', i %% 60 || ' ' || i %% 24 || ' * * *', at, at "
        "from generate_series(1, %s) as i, (select date_trunc('second', rota.now()) as at) as slot",
        [due],
    )
    batches: list[int] = []
    given = scheduler_room.fire
    monkeypatch.setattr(scheduler_room, "fire", lambda plans: (batches.append(len(plans)), given(plans))[1])

    rota_app.drain_sync(queues=["others"])
    assert db.execute("select count(*), count(distinct schedule) from rota.jobs").fetchone() == (due, due)
    assert max(batches) <= 500
    assert sum(batches) == due


def test_what_is_due_is_found_without_reading_what_is_not(db: Db) -> None:
    db.execute(
        "insert into rota.schedules (name, task, kind, every, next_slot, next_at) "
        "select 'idle-' || i, 'noop', 'every', '1d', at, at "
        "from generate_series(1, 20000) as i, (select rota.now() + interval '1 day' as at) as slot"
    )
    add(db, "tick", due_in=-1)
    db.execute("set enable_seqscan = off; set enable_bitmapscan = off")
    for query in (look_ahead(), find_due(500)):
        assert pages(db, query) < 60
