"""What becomes of events and of a parent's successes that come while a run is under way."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.jobs.statements import ask
from tests.schedules.rows import Db, add, row, runs, waiting

from rota.facts import ScheduleMissed, ScheduleSkipped
from rota.schedules.due import conclude
from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def noop(rota_app: TestRota) -> None:
    rota_app.task(name="noop")(lambda: None)


def succeed(db: Db, parent: str, *jobs: int) -> None:
    for job in jobs:
        db.execute(
            "insert into rota.schedule_ends (schedule, job_id, outcome) values (%s, %s, 'succeeded')", [parent, job]
        )


@pytest.mark.by_default("allow-5-0-0")
@pytest.mark.parametrize(
    ("overlap", "begun", "waits", "skipped"), [("skip", 1, 0, 4), ("queue", 1, 4, 0), ("allow", 5, 0, 0)]
)
async def test_events_that_come_while_a_run_is_under_way_are_left_out_wait_or_run_beside_it(
    rota_app: TestRota, db: Db, overlap: str, begun: int, waits: int, skipped: int
) -> None:
    await rota_app.schedules.put("listens", task="noop", on="call", overlap=overlap)  # type: ignore[arg-type]
    for _ in range(2):
        await rota_app.emit("call")
    with rota_app.facts.recorded(ScheduleSkipped) as told:
        await rota_app.drain(queues=["others"])
        for _ in range(3):
            await rota_app.emit("call")
        await rota_app.drain(queues=["others"])

    assert (len(runs(db, "listens")), waiting(db, "listens")) == (begun, waits)
    assert row(db, "listens", "runs, skipped") == (begun, skipped)
    assert sum(fact.runs for fact in told) == skipped

    await rota_app.drain()
    await rota_app.emit("call")
    await rota_app.drain()
    assert row(db, "listens", "runs, skipped") == (6 - skipped, skipped)


@pytest.mark.by_default("queue-1-4-0", "skip-1-0-4")
@pytest.mark.parametrize(
    ("overlap", "begun", "waits", "skipped"), [("skip", 1, 0, 4), ("queue", 1, 4, 0), ("allow", 5, 0, 0)]
)
async def test_successes_that_come_while_the_child_runs_are_left_out_wait_or_run_beside_it(
    rota_app: TestRota, db: Db, overlap: str, begun: int, waits: int, skipped: int
) -> None:
    await rota_app.schedules.put("parent", task="noop")
    await rota_app.schedules.put("child", task="noop", after="parent", overlap=overlap)  # type: ignore[arg-type]
    with rota_app.facts.recorded(ScheduleSkipped) as told:
        for jobs in ((1, 2), (3, 4, 5)):
            succeed(db, "parent", *jobs)
            await rota_app.drain(queues=["others"])

    assert (len(runs(db, "child")), waiting(db, "child")) == (begun, waits)
    assert row(db, "child", "skipped") == (skipped,)
    assert sum(fact.runs for fact in told) == skipped
    assert db.execute("select count(*) from rota.schedule_feed").fetchone() == (0,)

    await rota_app.drain()
    succeed(db, "parent", 6)
    await rota_app.drain()
    assert row(db, "child", "runs, skipped") == (6 - skipped, skipped)


async def test_a_parent_that_others_never_match_fills_no_table(rota_app: TestRota, db: Db) -> None:
    for name in ("fast", "slow"):
        add(db, name)
    add(db, "child", kind="after", overlap="queue", after=("fast", "slow"))
    add(db, "alone", kind="after", overlap="queue", after=("fast",))
    with rota_app.facts.recorded(ScheduleMissed) as told:
        for start in (1, 701, 1401):
            succeed(db, "fast", *range(start, start + 700))
            await rota_app.drain(queues=["others"])
    assert told == [ScheduleMissed("child", 400), ScheduleMissed("child", 700)]
    assert (await rota_app.schedules.get("child")).missed == 1100

    succeed(db, "slow", 9000)
    await rota_app.drain(queues=["others"])
    assert db.execute("select min(job_id), count(*) from rota.schedule_feed").fetchone() == (1102, 999)
    assert row(db, "child", "runs, missed") == (1, 1100)
    assert row(db, "alone", "runs, missed") == (2100, 0)


def test_a_child_that_has_had_its_runs_leaves_nothing_out(db: Db) -> None:
    add(db, "parent")
    add(db, "child", kind="after", overlap="skip", max_runs=1, runs=1, after=("parent",))
    succeed(db, "parent", 1, 2)

    ask(db, conclude(10))
    assert row(db, "child", "runs, skipped") == (1, 0)


def test_events_whose_turn_has_not_come_are_not_left_out(db: Db) -> None:
    for name in ("a", "b", "c"):
        add(db, name, kind="event", event="call", overlap="skip")
    db.execute("select rota.emit('call')")

    assert ask(db, conclude(10_000)).taken == 3
    assert [len(runs(db, name)) for name in ("a", "b", "c")] == [1, 1, 1]

    db.execute("delete from rota.jobs")
    db.execute("select rota.emit('call')")
    db.execute("select rota.release_slots('{a,b,c}', 2)")  # two at a time
    assert [len(runs(db, name)) + waiting(db, name) for name in ("a", "b", "c")] == [2, 2, 2]
