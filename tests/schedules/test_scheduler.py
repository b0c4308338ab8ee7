"""What the scheduler gives out, and what follows from what has ended: on a real database, with a clock that is moved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.jobs.statements import ask
from tests.schedules.rows import Db, add, now, row, runs, waiting

from rota import Discard
from rota.facts import ScheduleBroken, ScheduleMissed, ScheduleSkipped
from rota.schedules.due import conclude, find_due, fire
from rota.schedules.every import Delay
from rota.schedules.plan import make_plan
from rota.testing import TestRota, until

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def noop(rota_app: TestRota) -> Any:
    @rota_app.task(name="noop")
    async def noop() -> None: ...

    return noop


async def test_each_slot_runs_once_when_its_time_has_come(rota_app: TestRota, noop: Any, db: Db) -> None:
    add(db, "tick", due_in=30)
    (first,) = row(db, "tick", "next_slot")
    assert await rota_app.drain() == 0

    rota_app.advance("31s")
    assert await rota_app.drain() == 1
    assert await rota_app.drain() == 0
    assert runs(db, "tick") == [first]
    assert row(db, "tick", "next_slot, next_at, last_slot, runs") == (first + MINUTE, first + MINUTE, first, 1)
    (job,) = await rota_app.jobs.list()
    assert db.execute("select schedule, slot_at from rota.history where id = %s", [job.id]).fetchone() == (
        "tick",
        first,
    )

    rota_app.advance("1m")
    assert await rota_app.drain() == 1
    assert runs(db, "tick") == [first, first + MINUTE]


@pytest.mark.parametrize(
    "meanwhile",
    [
        "update rota.schedules set revision = revision + 1",
        "update rota.schedules set paused_at = rota.now()",
        "update rota.schedules set next_at = next_at + interval '1 second'",
        "delete from rota.schedules",
    ],
    ids=["it was changed", "it was paused", "it was given out by another", "it was deleted"],
)
def test_a_plan_that_is_out_of_date_changes_nothing(db: Db, meanwhile: str) -> None:
    add(db, "tick", due_in=-1)
    plans = [make_plan(due, lambda _: None) for due in ask(db, find_due(10))]
    db.execute(meanwhile)  # type: ignore[arg-type]
    before = db.execute("select * from rota.schedules").fetchall()

    assert ask(db, fire(plans)) == []
    assert runs(db, "tick") == []
    assert db.execute("select * from rota.schedules").fetchall() == before


def test_a_plan_made_by_a_clock_that_is_fast_is_not_carried_out_early(db: Db) -> None:
    add(db, "tick", due_in=-1)
    (due,) = ask(db, find_due(10))
    db.execute(
        "update rota.schedules set next_slot = next_slot + interval '1 hour', next_at = next_at + interval '1 hour'"
    )
    early = make_plan(due._replace(next_at=due.next_at + timedelta(hours=1)), lambda _: None)

    assert ask(db, fire([early])) == []


def test_a_slot_that_was_given_out_before_is_not_given_out_again(db: Db) -> None:
    add(db, "tick", due_in=-1)
    (due,) = ask(db, find_due(10))
    assert [fired.fired for fired in ask(db, fire([make_plan(due, lambda _: None)]))] == [1]
    # someone set it back by hand
    db.execute("update rota.schedules set next_slot = %s, next_at = %s", [due.next_slot, due.next_at])
    db.execute("delete from rota.jobs")
    (again,) = ask(db, find_due(10))

    assert [fired.fired for fired in ask(db, fire([make_plan(again, lambda _: None)]))] == [0]
    assert runs(db, "tick") == [due.next_slot]


async def test_a_run_that_is_under_way_makes_the_next_slot_be_left_out(rota_app: TestRota, noop: Any, db: Db) -> None:
    add(db, "tick", due_in=-1)
    plans = [make_plan(due, lambda _: None) for due in ask(db, find_due(10))]
    ask(db, fire(plans))
    rota_app.advance("1m")

    with rota_app.facts.recorded(ScheduleSkipped) as skipped:
        await rota_app.drain(queues=["others"])
    assert skipped == [ScheduleSkipped("tick", 1)]
    assert row(db, "tick", "runs, skipped") == (1, 1)


@pytest.mark.parametrize(("overlap", "at_once"), [("queue", 1), ("allow", 3)])
def test_runs_that_may_wait_or_overlap_are_not_left_out(db: Db, overlap: str, at_once: int) -> None:
    for _ in range(3):
        if runs(db, "tick"):
            db.execute("update rota.test_clock set shift = shift + interval '1 minute'")
        else:
            add(db, "tick", due_in=-1, overlap=overlap)
        ask(db, fire([make_plan(due, lambda _: None) for due in ask(db, find_due(10))]))

    assert (len(runs(db, "tick")), waiting(db, "tick")) == (at_once, 3 - at_once)
    assert db.execute("select count(*) from rota.jobs").fetchone() == (at_once,)


async def test_slots_that_come_late_together_run_one_after_the_other(rota_app: TestRota, db: Db) -> None:
    """After a failover: each would have run in its own time, so none is left out because of another."""
    running, most = 0, 0

    @rota_app.task(name="noop")
    async def noop() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    add(db, "tick", every="20s", due_in=-50)

    assert await rota_app.drain() == 3
    assert most == 1
    slots = runs(db, "tick")
    assert slots == sorted(slots)
    assert len(set(slots)) == 3


@pytest.mark.parametrize(
    ("misfire", "fired", "missed"), [("once", 1, 180), ("skip", 0, 181), ("all", 181, 0)], ids=["once", "skip", "all"]
)
async def test_after_three_hours_without_a_scheduler_each_policy_gives_its_own_number(
    rota_app: TestRota, noop: Any, db: Db, misfire: str, fired: int, missed: int
) -> None:
    add(db, "tick", due_in=0, misfire=misfire, misfire_grace="10s", misfire_limit=500, overlap="allow")
    (first,) = row(db, "tick", "next_slot")
    rota_app.advance("3h 30s")

    with rota_app.facts.recorded(ScheduleMissed) as told:
        assert await rota_app.drain() == fired
    assert [fact.runs for fact in told] == ([missed] if missed else [])
    assert row(db, "tick", "runs, missed, next_slot") == (fired, missed, first + 181 * MINUTE)
    assert runs(db, "tick")[-1:] == ([first + 180 * MINUTE] if fired else [])


@pytest.mark.by_default("all-30m-slots0-0-in flight", "once-30m-slots1-2-in flight", "skip-1s-slots5-2-in flight")
@pytest.mark.parametrize("in_flight", [pytest.param(False, marks=pytest.mark.long), True], ids=["idle", "in flight"])
@pytest.mark.parametrize(
    ("misfire", "late", "slots", "missed"),
    [
        ("all", "30m", [0, 1, 2, 3], 0),
        ("once", "30m", [0, 3], 2),
        ("skip", "30m", [0], 3),
        # the last one is in time; to `once` it stands for the others, and `skip` asks for no more than it did before
        pytest.param("all", "1s", [0, 1, 2, 3], 0, marks=pytest.mark.long),
        pytest.param("once", "1s", [0, 3], 2, marks=pytest.mark.long),
        ("skip", "1s", [0, 3], 2),
    ],
)
async def test_an_outage_is_made_up_for_by_its_policy_though_a_run_was_in_flight_when_it_began(
    rota_app: TestRota, db: Db, misfire: str, late: str, slots: list[int], missed: int, *, in_flight: bool
) -> None:
    running, most = 0, 0

    @rota_app.task(name="noop")
    async def noop() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    add(db, "tick", due_in=0, every="1h", misfire=misfire)
    (first,) = row(db, "tick", "next_slot")
    await rota_app.drain(queues=["others"] if in_flight else None)
    rota_app.advance("3h")
    rota_app.advance(late)

    await rota_app.drain(queues=["others"])
    await rota_app.drain()
    left_out = int(in_flight and (misfire, late) == ("skip", "1s"))
    assert runs(db, "tick") == [first + n * HOUR for n in slots][: len(slots) - left_out]
    assert row(db, "tick", "runs, missed, skipped") == (len(slots) - left_out, missed, left_out)
    assert most == 1


async def test_outages_while_one_run_goes_on_are_made_up_for_once(rota_app: TestRota, noop: Any, db: Db) -> None:
    for name in ("once", "all"):
        add(db, name, due_in=0, every="1h", misfire=name)
    for _ in range(3):
        await rota_app.drain(queues=["others"])
        rota_app.advance("2h 20m")

    assert (row(db, "once", "runs, missed, skipped"), waiting(db, "once")) == ((2, 2, 1), 1)
    assert (row(db, "all", "runs, missed, skipped"), waiting(db, "all")) == ((5, 0, 0), 4)


async def test_it_ends_after_so_many_runs(rota_app: TestRota, noop: Any, db: Db) -> None:
    add(db, "tick", due_in=0, every="1s", max_runs=3, misfire="all", overlap="allow")
    rota_app.advance("1h")

    assert await rota_app.drain() == 3
    assert row(db, "tick", "runs, next_at") == (3, None)


async def test_a_pause_begins_when_the_run_has_ended(rota_app: TestRota, noop: Any, db: Db) -> None:
    add(db, "feed", due_in=0, kind="delay", every="10m", delay="10 minutes")
    rota_app.advance("3s")
    assert await rota_app.drain() == 1
    (next_at,) = row(db, "feed", "next_at")
    assert timedelta(minutes=9, seconds=50) < next_at - now(db) <= timedelta(minutes=10)

    rota_app.advance("11m")
    assert await rota_app.drain() == 1


@pytest.mark.by_default("1 month-Pacific/Apia", "24h-Pacific/Apia", "25h 1ms-Pacific/Apia")
@pytest.mark.parametrize(
    "session_zone",
    [
        pytest.param("UTC", marks=pytest.mark.long),
        pytest.param("Europe/Berlin", marks=pytest.mark.long),
        "Pacific/Apia",
    ],
)
@pytest.mark.parametrize("every", ["1 day", "24h", "2w", "1 month", "1 year", "90s", "25h 1ms"])
def test_a_pause_is_as_long_in_the_database_as_it_is_in_words(
    rota_app: TestRota, noop: Any, db: Db, every: str, session_zone: str
) -> None:
    """Elapsed time, and months of UTC: whatever clocks do, and whatever zone the session has, as behind a pooler."""
    rota_app.schedules.put_sync("feed", task="noop", every=every, counted_from="end", tz="Europe/Berlin")
    db.execute("select set_config('timezone', %s, false)", [session_zone])
    for end in (datetime(2026, month, day, 1, 30, tzinfo=UTC) for month, day in ((3, 28), (10, 24), (1, 31), (2, 27))):
        db.execute("update rota.schedules set next_slot = null, next_at = null")
        db.execute(
            "insert into rota.schedule_ends (schedule, job_id, outcome, ended_at) values ('feed', 1, 'succeeded', %s)",
            [end],
        )
        ask(db, conclude(10))

        (next_at,) = row(db, "feed", "next_at")
        assert next_at.astimezone(UTC) == Delay(every, "Europe/Berlin").next(end)


async def test_a_child_runs_once_for_each_success_of_its_parent(rota_app: TestRota, noop: Any, db: Db) -> None:
    """Two successes while the child is at work are two more runs of it."""
    ran: list[str] = []
    gate = asyncio.Event()

    @rota_app.task(name="child")
    async def child() -> None:
        ran.append("child")
        await gate.wait()

    add(db, "parent", due_in=0, every="1m")
    add(db, "child", kind="after", task="child", overlap="queue", after=("parent",))
    working = asyncio.create_task(rota_app.work())
    await until(lambda: ran == ["child"])
    for count in (1, 2):
        rota_app.advance("1m")
        await until(lambda count=count: waiting(db, "child") == count)  # type: ignore[misc]
    assert ran == ["child"]
    gate.set()

    await until(lambda: len(ran) == 3)
    await until(lambda: db.execute("select count(*) from rota.jobs").fetchone() == (0,))
    rota_app.stop()
    await working
    assert runs(db, "child") == runs(db, "parent")


async def test_a_child_of_several_runs_when_each_of_them_has_succeeded(rota_app: TestRota, noop: Any, db: Db) -> None:
    add(db, "fast", due_in=0, every="1m")
    add(db, "slow", due_in=0, every="2m")
    add(db, "sum", kind="after", overlap="queue", after=("fast", "slow"))
    add(db, "each", kind="after", overlap="queue", after=("fast",))
    for _ in range(4):
        await rota_app.drain()
        rota_app.advance("1m")

    assert [len(runs(db, name)) for name in ("fast", "slow", "each", "sum")] == [4, 2, 4, 2]


@pytest.mark.by_default("dead")
@pytest.mark.parametrize("outcome", ["dead", "cancelled"])
async def test_a_child_does_not_follow_a_run_that_failed(rota_app: TestRota, db: Db, outcome: str) -> None:
    ran = 0

    @rota_app.task(name="noop", retry=1)
    async def noop() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise Discard("no") if outcome == "cancelled" else ValueError("no")

    @rota_app.task(name="child")
    async def child() -> None: ...

    add(db, "parent", due_in=0)
    add(db, "child", kind="after", task="child", overlap="queue", after=("parent",))

    await rota_app.drain()
    assert runs(db, "child") == []
    assert row(db, "parent", "failures, failed_at is not null") == ((1, True) if outcome == "dead" else (0, False))

    # nor is it kept for later
    rota_app.advance("1m")
    await rota_app.drain()
    assert runs(db, "child") == runs(db, "parent")[1:]
    assert waiting(db, "child") == 0
    assert row(db, "parent", "failures") == (0,)


async def test_a_broken_schedule_is_marked_and_the_others_run(rota_app: TestRota, noop: Any, db: Db) -> None:
    @rota_app.task(name="typed")
    async def typed(n: int) -> None: ...

    add(db, "expression", kind="cron", cron="99 * * * *", due_in=-1)
    add(db, "zone", kind="cron", cron="0 0 * * *", tz="Nowhere/Land", due_in=-1)
    add(db, "arguments", task="typed", args={"n": "many"}, due_in=-1)
    add(db, "exclusion", exclude={"weekdays": "never"}, due_in=-1)
    add(db, "healthy", due_in=0)

    with rota_app.facts.recorded(ScheduleBroken) as broken:
        assert await rota_app.drain() == 1
    assert runs(db, "healthy")
    assert sorted(fact.name for fact in broken) == ["arguments", "exclusion", "expression", "zone"]
    for name in ("arguments", "exclusion", "expression", "zone"):
        problem, next_at = row(db, name, "problem, next_at")
        assert problem
        assert next_at is None
        assert runs(db, name) == []


async def test_an_event_runs_those_who_listen_with_its_payload(rota_app: TestRota, db: Db) -> None:
    heard: list[tuple[int, str]] = []

    @rota_app.task(name="paid")
    async def paid(order_id: int, how: str = "cash") -> None:
        heard.append((order_id, how))

    add(
        db,
        "receipt",
        kind="event",
        event="order.paid",
        task="paid",
        args={"order_id": 0, "how": "card"},
        overlap="queue",
    )
    with db.transaction():
        assert db.execute("""select rota.emit('order.paid', '{"order_id": 7}')""").fetchone() == (1,)
        assert db.execute("""select rota.emit('order.lost', '{"order_id": 8}')""").fetchone() == (0,)

    await rota_app.drain()
    assert heard == [(7, "card")]


async def test_nothing_is_written_while_nothing_is_due(rota_app: TestRota, noop: Any, db: Db) -> None:
    add(db, "later", due_in=3600)
    for _ in range(3):
        await rota_app.drain()

    (written,) = db.execute("select count(*) from rota.slots").fetchone() or (None,)
    assert written == 0


async def test_a_worker_that_runs_gives_out_slots_in_time_and_is_woken_by_changes(
    rota_app: TestRota, noop: Any, db: Db
) -> None:
    working = asyncio.create_task(rota_app.work())
    await asyncio.sleep(0)
    add(db, "tick", every="50ms", due_in=0)

    await until(lambda: len(runs(db, "tick")) >= 5)
    rota_app.stop()
    await working
    late = db.execute("select max(extract(epoch from created_at - slot_at)) from rota.slots").fetchone()
    assert late is not None
    slots = runs(db, "tick")
    assert len(slots) == len(set(slots))


async def test_a_backfill_does_not_make_what_is_due_be_left_out(rota_app: TestRota, noop: Any, db: Db) -> None:
    """It waits behind it, once: more would pile up."""
    add(db, "tick", due_in=30)
    (slot,) = row(db, "tick", "next_slot")
    assert await rota_app.schedules.backfill("tick", slot - 5 * MINUTE, slot) == 5
    rota_app.advance("31s")
    for _ in range(3):
        ask(db, fire([make_plan(due, lambda _: None) for due in ask(db, find_due(10))]))
        ask(db, conclude(10))
        rota_app.advance("1m")

    await rota_app.drain()
    assert runs(db, "tick") == [slot + n * MINUTE for n in range(-5, 1)]
    assert row(db, "tick", "skipped") == (3,)
