"""What was done, minute by minute and hour by hour: counted once, and told of as pictures need it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from rota import ConfigurationError, Rota
from rota.jobs.tally import STEP, keep_tallies, longest
from rota.jobs.trends import Trend, TrendBucket
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

SETTLED = """
    insert into rota.history (
        id, created_at, due_at, started_at, finished_at, token, attempt, losses, priority, version, state, queue, task, args
    )
    select %(first)s + n, %(at)s, %(at)s, %(at)s + %(wait)s, %(at)s + %(wait)s + %(run)s, 1, 1, 0, 0, 1, %(state)s, %(queue)s,
           %(task)s, '{}'
    from generate_series(1, %(jobs)s) as n
"""
Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_app: TestRota) -> Iterator[Db]:
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as connection:
        yield connection


def settle(db: Db, at: datetime, jobs: int, **more: Any) -> None:
    given = {"queue": "q", "task": "t", "state": "succeeded", "wait": timedelta(0), "run": timedelta(0), **more}
    first = db.execute("select coalesce(max(id), 0) from rota.history").fetchone()
    db.execute(SETTLED, {"at": at, "jobs": jobs, "first": (first or [0])[0], **given})


def minute(db: Db, back: timedelta) -> datetime:
    """A moment in the minute that began so long ago, or a little more."""
    row = db.execute("select date_trunc('minute', rota.now(), 'UTC') - %s + interval '1 s'", [back]).fetchone()
    assert row is not None
    return datetime.astimezone(row[0], UTC)


async def count(app: Rota) -> int:
    """Rounds until there is nothing more to count; returns how many."""
    rounds = 0
    while told := await app.database.run_steps(keep_tallies()):
        rounds += 1
        if not told.unfinished:
            break
    return rounds


def at(trend: Trend, moment: datetime) -> TrendBucket:
    (found,) = [bucket for bucket in trend.buckets if bucket.at <= moment < bucket.at + trend.width]
    return found


async def test_jobs_are_counted_in_the_minute_they_settled_in(rota_app: TestRota, db: Db) -> None:
    moment = minute(db, timedelta(minutes=30))
    settle(db, moment, 95, wait=timedelta(seconds=1), run=timedelta(milliseconds=10))
    settle(db, moment, 5, wait=timedelta(seconds=20), run=timedelta(seconds=9), task="u", queue="p")
    settle(db, moment + timedelta(minutes=1), 3, state="cancelled")

    await count(rota_app)
    trend = await rota_app.trends.series("1h")

    assert trend == rota_app.trends.series_sync("1h")
    assert trend.width == timedelta(minutes=1)
    assert trend.complete_until is not None
    told = at(trend, moment)
    assert (told.succeeded, told.cancelled, told.failed) == (100, 0, 0)
    assert told.wait_p50 is not None
    assert told.wait_p99 is not None
    assert told.run_p95 is not None
    assert 1 <= told.wait_p50 <= 1 * STEP
    assert 20 <= told.wait_p99 <= 20 * STEP
    assert 0.010 <= told.run_p95 <= 0.010 * STEP
    assert at(trend, moment + timedelta(minutes=1)).cancelled == 3
    assert sum(bucket.succeeded for bucket in trend.buckets) == 100
    assert at(await rota_app.trends.series("1h", queue="p"), moment).succeeded == 5
    assert at(await rota_app.trends.series("1h", task="t"), moment).succeeded == 95
    assert at(await rota_app.trends.series("1h", task="nobody"), moment).wait_p50 is None


async def test_failed_attempts_are_counted_with_the_task_of_their_job(rota_app: TestRota) -> None:
    tries = []

    @rota_app.task(name="shaky", queue="q", retry=2)
    def shaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")

    bad = rota_app.task(name="bad", retry=None)(lambda: 1 / 0)
    await shaky.enqueue()
    await bad.enqueue()
    await rota_app.drain()
    rota_app.advance("1h")
    await rota_app.drain()
    rota_app.advance("10m")
    await count(rota_app)

    trend = await rota_app.trends.series("3h")
    of_task = await rota_app.trends.series("3h", task="shaky")
    (cell,) = [cell for cell in await rota_app.trends.heat("4h") if cell.task == "bad"]

    assert [sum(getattr(bucket, name) for bucket in trend.buckets) for name in ("succeeded", "failed", "dead")] == [
        1,
        2,
        1,
    ]
    assert sum(bucket.failed for bucket in of_task.buckets) == 1
    assert (cell.succeeded, cell.failed, cell.dead) == (0, 1, 1)


async def test_counting_twice_counts_nothing_twice_and_takes_in_what_came_late(rota_app: TestRota, db: Db) -> None:
    moment = minute(db, timedelta(minutes=2))
    settle(db, moment, 3)
    await count(rota_app)
    assert await count(rota_app) == 0  # that was a moment ago
    settle(db, moment, 2)
    rota_app.advance("50s")

    await count(rota_app)

    assert at(await rota_app.trends.series("1h"), moment).succeeded == 5


async def test_hours_are_made_of_minutes_when_they_are_over(rota_app: TestRota, db: Db) -> None:
    # the hours of many zones begin at other minutes
    long_ago = minute(db, timedelta(hours=20)).replace(minute=5)
    settle(db, long_ago, 60, wait=timedelta(seconds=2))
    settle(db, long_ago + timedelta(hours=1), 40, wait=timedelta(seconds=2))
    recent = minute(db, timedelta(minutes=5))
    settle(db, recent, 7)

    rounds = await count(rota_app)
    trend = await rota_app.trends.series("24h")

    assert rounds > 1  # a long past is counted part by part
    assert trend.width == timedelta(hours=1)
    assert all(bucket.at.minute == 0 for bucket in trend.buckets)
    assert at(trend, long_ago).succeeded == 60
    assert at(trend, long_ago + timedelta(hours=1)).succeeded == 40
    assert at(trend, recent).succeeded == 7  # of an hour that is not over
    assert sum(bucket.succeeded for bucket in trend.buckets) == 107
    told = at(trend, long_ago)
    assert told.wait_p50 is not None
    assert 2 <= told.wait_p50 <= 2 * STEP
    cells = {(cell.task, cell.at.hour): cell.succeeded for cell in await rota_app.trends.heat("24h")}
    assert cells[("t", long_ago.hour)] == 60


async def test_what_waits_is_sampled_for_each_queue(rota_app: TestRota) -> None:
    task = rota_app.task(name="t", queue="q")(lambda: None)
    await rota_app.enqueue_many([task.bind(), task.bind(), task.using(delay="1h").bind()])
    await count(rota_app)
    rota_app.advance("1m")

    (told,) = await rota_app.trends.depths()

    assert (told.queue, told.due, told.later, told.blocked, told.running, told.at_least) == ("q", 2, 1, 0, 0, False)
    assert rota_app.trends.depths_sync(queue="other") == []


async def test_marks_tell_what_happened_meanwhile(rota_app: TestRota, db: Db) -> None:
    await rota_app.task(name="t")(lambda: None).using(delay="1h").enqueue()
    await rota_app.drain()  # a process that joined and left
    (job,) = rota_app.enqueued()
    await rota_app.jobs.cancel(job.id, by="ana")
    db.execute(
        "insert into rota.terms (name, epoch, member, holder, host, pid, acquired_at, ended_at, end_reason) "
        "values ('indexer', 1, gen_random_uuid(), 'a', 'h', 1, now() - interval '2 hours', now() - interval '1 hour', 'lost')"
    )

    marks = await rota_app.trends.marks()

    assert {(mark.kind, mark.what.split()[0]) for mark in marks} >= {("failover", "indexer"), ("action", "cancel")}
    assert "started" in {mark.kind for mark in marks}
    assert marks == sorted(marks, key=lambda mark: mark.at, reverse=True)
    assert [mark.kind for mark in rota_app.trends.marks_sync("90m", "30m")] == ["failover"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"since": "1h", "until": "2h"}, "Nothing is between '1h' and '2h'"),
        ({"since": datetime(2020, 1, 1)}, "since cannot be .* time zone"),
        ({"width": "30s"}, "width cannot be '30s' here: it is a number of whole minutes"),
        ({"since": "20d", "width": "10m"}, "whole hours"),
        ({"queue": "q", "task": "t"}, "of a queue or of a task"),
    ],
)
async def test_what_cannot_be_told_is_refused(rota_app: TestRota, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        await rota_app.trends.series(**wrong)


def test_a_step_ends_where_the_next_begins() -> None:
    assert longest(0) == pytest.approx(0.001)
    assert longest(4) == pytest.approx(0.002)
    assert longest(5) / longest(4) == pytest.approx(STEP)
