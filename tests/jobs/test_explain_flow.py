"""Why a job is not running though there are workers: pauses, limits, and its place in line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.jobs.test_explain import _rows_read, add, join, why

from rota.jobs.explain_flow import look_at_flow
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def worker(db: Db) -> UUID:
    return join(db, concurrency=100)


def declare(db: Db, **limits: Any) -> None:
    """What task t says about itself, as its workers declare it."""
    names, values = ", ".join(limits), ", ".join(f"%({name})s" for name in limits)
    db.execute(f"insert into rota.limits (task, {names}) values ('t', {values})", limits)


def put(db: Db, count: int = 1, *, key: str | None = None, delay: float = 0, at_once: int = 1) -> list[int]:
    """Jobs of task t, as they come into line: each in a transaction of its own, or so many `at_once`."""
    new = Jsonb([{"task": "t", "args": {}, "key": key, "delay": delay}] * at_once)
    return [id for _ in range(count) for (id,) in db.execute("select put.id from rota.put_jobs(%s) as put", [new])]


def take(db: Db, member: UUID, most: int, *, lines: bool = True) -> list[int]:
    """As a worker takes jobs from lines, and from limited queues."""
    taken = db.execute(
        "select id from rota.claim_flow('{default}', '{0}', %s, '{-infinity}', '{0}', '{t}', '{1}', '{}', %s, 0, 1, %s)",
        [[lines], most, member],
    ).fetchall()
    return sorted(int(id) for (id,) in taken)


@pytest.mark.usefixtures("worker")
def test_its_queue_is_paused_by_someone_for_a_reason_and_a_time(rota_app: TestRota, db: Db) -> None:
    job = add(db)
    rota_app.queues.pause_sync("default", "provider is down", for_="2h", by="ana")
    told = why(rota_app, job)
    assert told.startswith("Queue 'default' is paused since ")
    assert " UTC by ana: provider is down. It goes on at " in told
    assert told.endswith("min, or sooner with: rota queues resume default.")
    assert "UTC, in 1 h 59 " in told

    rota_app.queues.pause_sync("default", by="ana")
    assert why(rota_app, job).endswith(" UTC by ana. To go on: rota queues resume default.")
    rota_app.queues.resume_sync("default")
    rota_app.queues.pause_sync(None, for_="2h")
    assert "They go on at " in why(rota_app, job)
    rota_app.queues.pause_sync(None, "upgrade", by="bob")
    assert why(rota_app, job).startswith("All queues are paused since ")
    assert why(rota_app, job).endswith("by bob: upgrade. To go on: rota queues resume --all.")


@pytest.mark.usefixtures("worker")
def test_a_pause_that_ends_before_a_job_is_due_does_not_matter_to_it(rota_app: TestRota, db: Db) -> None:
    soon, late = add(db), add(db, due_at="2999-01-01 UTC")
    rota_app.queues.pause_sync("default", for_="1h")
    assert ["paused" in why(rota_app, id) for id in (soon, late)] == [True, False]
    rota_app.advance("2h")
    assert "paused" not in why(rota_app, soon)


def test_its_queue_or_all_together_run_as_many_as_they_may(rota_app: TestRota, db: Db, worker: UUID) -> None:
    rota_app.queues.limit_sync("default", running=2)
    add(db, 2, queue="other", state="running", member=worker, token=2, attempt=1, claimed_at="2024-01-01 UTC")
    add(db, 2)
    job = add(db)
    assert "run at once" not in why(rota_app, job)
    take(db, worker, 5, lines=False)

    assert why(rota_app, job) == (
        "Queue 'default' lets 2 job(s) run at once, and 2 do. More begin when fewer than that are left; to let more run: "
        "rota queues limit default --running N."
    )
    rota_app.queues.limit_sync("default", running=None)
    rota_app.queues.limit_sync(None, running=1)
    assert why(rota_app, job).startswith("All queues together let 1 job(s) run at once, and 4 do.")
    assert why(rota_app, job).endswith("rota queues limit --all --running N.")
    assert "run at once" not in why(rota_app, add(db, due_at="2999-01-01 UTC"))


def test_as_many_have_begun_as_its_queue_lets_begin(rota_app: TestRota, db: Db, worker: UUID) -> None:
    rota_app.queues.limit_sync("default", rate="2/1h")
    add(db, 2)
    job = add(db)
    assert "begin" not in why(rota_app, job)
    take(db, worker, 5, lines=False)

    told = why(rota_app, job)
    assert told.startswith("Queue 'default' lets 2/1h begin, and has room for the next at ")
    assert " UTC, in 1 h " in told
    assert told.endswith(". To let more begin: rota queues limit default --rate N/TIME.")


def test_as_many_of_its_task_run_as_may_and_others_are_in_front(rota_app: TestRota, db: Db, worker: UUID) -> None:
    declare(db, running=2)
    first, second, third, fourth = put(db, 4)
    assert why(rota_app, fourth) == f"Jobs in front of it in its line: 3. Job {first} is first."
    assert "has room for it: it is taken within moments" in why(rota_app, first)
    assert take(db, worker, 5) == [first, second]

    assert why(rota_app, fourth) == (
        f"Task 't' lets 2 of its jobs run at once, and 2 do: {first}, {second}. Its line moves on when one of them ends. "
        f"Jobs in front of it in its line: 1. Job {third} is first."
    )
    assert why(rota_app, third) == (
        f"Task 't' lets 2 of its jobs run at once, and 2 do: {first}, {second}. Its line moves on when one of them ends."
    )


def test_only_the_line_of_its_key_is_told(rota_app: TestRota, db: Db, worker: UUID) -> None:
    declare(db, running=1, by_key=True)
    (mine,), (other,) = put(db, key="ada"), put(db, key="bob")
    assert take(db, worker, 5) == [mine, other]
    (next,) = put(db, key="ada")
    put(db, 3, key="bob")

    assert why(rota_app, next).startswith(
        f"Task 't' lets 1 of its jobs with the key 'ada' run at once, and 1 do: {mine}. Its line moves on"
    )
    assert "in front" not in why(rota_app, next)


def test_of_many_that_run_some_are_named(rota_app: TestRota, db: Db, worker: UUID) -> None:
    declare(db, running=7)
    put(db, 8)
    running = take(db, worker, 8)
    (last,) = put(db)

    assert f"and 7 do: {', '.join(map(str, running[:5]))}, …. Its line" in why(rota_app, last)
    db.execute("update rota.limits set running = 2")
    assert "lets 2 of its jobs run at once, and 7 do: " in why(rota_app, last)


def test_as_many_have_begun_as_its_task_lets_begin(rota_app: TestRota, db: Db, worker: UUID) -> None:
    declare(db, rate_count=1, rate_seconds=3600, by_key=True)
    put(db, key="ada")
    (job,) = put(db, key="ada")
    take(db, worker, 5)

    told = why(rota_app, job)
    assert told.startswith("Task 't' lets 1/1h of its jobs with the key 'ada' begin, and has room for the next at ")
    assert " UTC, in 1 h " in told


@pytest.mark.usefixtures("worker")
def test_it_joins_its_line_when_it_is_due(rota_app: TestRota, db: Db) -> None:
    declare(db, running=1)
    put(db, 3)
    (job,) = put(db, delay=5400)
    told = why(rota_app, job)
    assert told.startswith("It joins its line at ")
    assert f"To have it join now: rota jobs retry {job}." in told
    assert "UTC, in 1 h 29 min, behind those that wait there: 3 now." in told

    rota_app.advance("2h")
    assert why(rota_app, job).startswith("It joins its line within moments, behind those that wait there: 3 now.")


@pytest.mark.usefixtures("worker")
def test_a_retry_holds_its_line(rota_app: TestRota, db: Db) -> None:
    declare(db, running=1, hold=True)
    first, second = put(db, 2)
    db.execute("update rota.jobs set due_at = rota.now() + interval '90 minutes', attempt = 1 where id = %s", [first])

    told = why(rota_app, second)
    assert told.startswith(f"Jobs in front of it in its line: 1. Job {first} is first. Job {first} is tried again at ")
    assert "UTC, in 1 h 29 min, and keeps its place until then: what stands behind it waits with it" in told
    assert why(rota_app, first).startswith("It is tried again at ")


@pytest.mark.usefixtures("worker")
def test_it_waits_for_a_batch(rota_app: TestRota, db: Db) -> None:
    assert why(rota_app, add(db, state="blocked", after=7)) == "It waits for the jobs of batch 7 to end."


def test_who_is_missing_is_told_of_a_blocked_job_too(rota_app: TestRota, db: Db) -> None:
    declare(db, running=1)
    _, job = put(db, 2)

    assert why(rota_app, job).endswith("is first. No worker is running. Start one: rota worker APP.")


def test_looking_at_a_long_line_ends_somewhere(rota_app: TestRota, db: Db) -> None:
    declare(db, running=1, by_key=True)
    put(db, at_once=12_000, key="ada")
    (job,) = put(db, key="ada")
    db.execute("analyze rota.jobs")
    assert "Jobs in front of it in its line with the key 'ada': 10000+. Job " in why(rota_app, job)

    query = look_at_flow(rota_app.jobs.get_sync(job))
    sql = "explain (analyze, format json) " + query.statement.sql("rota")
    plan = db.execute(sql, query.params, prepare=False).fetchone()
    assert plan is not None
    assert _rows_read(plan[0][0]["Plan"]) < 30_000
