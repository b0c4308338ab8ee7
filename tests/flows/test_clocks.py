"""Time is the database's: neither the clock of a machine nor the time zone of a session changes anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota import Retry
from rota.testing import TestRota, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

#: Run by the interpreter before anything else: whoever asks this process for the time is told a wrong one.
SKEW = """
import datetime, os, time

by = datetime.timedelta(hours=float(os.environ["SKEW_HOURS"]))
true, seconds, nanoseconds, gettime = datetime.datetime, time.time, time.time_ns, time.clock_gettime

class Either(type):
    def __instancecheck__(cls, value):
        return isinstance(value, true)

class Skewed(true, metaclass=Either):
    __slots__ = ()

    @classmethod
    def now(cls, tz=None):
        return true.now(tz) + by

    @classmethod
    def utcnow(cls):
        return true.utcnow() + by

datetime.datetime = Skewed
time.time = lambda: seconds() + by.total_seconds()
time.time_ns = lambda: nanoseconds() + round(by.total_seconds() * 1e9)
time.clock_gettime = lambda clock: gettime(clock) + by.total_seconds() * (clock == time.CLOCK_REALTIME)
"""
APP = """
from datetime import UTC, datetime
from rota import Retry, Rota, current_job

app = Rota()

@app.task(name="look")
async def look() -> datetime:
    return datetime.now(UTC)

@app.task(name="flaky", retry=Retry(2, "constant", "30m", cap="1h", jitter=False))
def flaky() -> None:
    if current_job().attempt == 1:
        raise ValueError("not yet")
"""


def rows(dsn: str, sql: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as db:
        return db.execute(sql).fetchall()


@pytest.mark.parametrize("hours", [-1, pytest.param(1, marks=pytest.mark.long)])
async def test_a_worker_whose_clock_is_an_hour_off_changes_nothing(
    rota_app: TestRota, rota_database: str, rota_worker: StartWorker, tmp_path: Path, hours: int
) -> None:
    @rota_app.task(name="look")
    def look() -> datetime: ...

    @rota_app.task(name="flaky", retry=Retry(2))
    def flaky() -> None: ...

    (tmp_path / "sitecustomize.py").write_text(SKEW)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    rota_worker(APP, env={"PYTHONPATH": path, "SKEW_HOURS": str(hours)})
    later, fails = await look.using(delay="30m").enqueue(), await flaky.enqueue()

    async def round_of_the_worker() -> None:
        told = await (await look.enqueue()).wait(10)
        assert abs(told - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=1)

    async def states() -> list[tuple[str, int]]:
        return [(job.state, job.attempt) for job in (await later.refresh(), await fails.refresh())]

    await round_of_the_worker()
    rota_app.advance("29m")
    await round_of_the_worker()
    waiting = await states()
    rota_app.advance("2m")
    await later.wait(40)
    await fails.wait(40)

    assert waiting == [("queued", 0), ("queued", 1)]
    assert await states() == [("succeeded", 1), ("succeeded", 2)]
    in_order = (
        "created_at <= claimed_at and due_at <= claimed_at and claimed_at <= finished_at and finished_at <= rota.now()"
    )
    assert rows(rota_database, f"select bool_and({in_order}), sum(losses) from rota.history") == [(True, 0)]
    lease = "ended_at is null and expires_at between statement_timestamp() and statement_timestamp() + interval '15 s'"
    assert rows(rota_database, f"select {lease} from rota.members") == [(True,)]


@pytest.mark.by_default("America/New_York")
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Chatham", "America/New_York"])
async def test_the_time_zone_of_the_sessions_changes_no_moment(
    direct_database: str, rota_app: TestRota, rota_database: str, zone: str
) -> None:
    with psycopg.connect(direct_database, autocommit=True) as admin:
        admin.execute(f"alter database {admin.info.dbname} set timezone = '{zone}'")
    task = rota_app.task(name="t")(lambda: None)
    at = datetime(2031, 3, 30, 1, 30, tzinfo=UTC)
    ((before, shown),) = rows(rota_database, "select statement_timestamp(), current_setting('timezone')")

    async with await psycopg.AsyncConnection.connect(rota_database) as mine:
        now = [await task.enqueue(), await task.on(mine).enqueue()]
        hour = [await task.using(delay="1h").enqueue(), await task.using(delay="1h").on(mine).enqueue()]
        then = [await task.using(at=at).enqueue(), await task.using(at=at).on(mine).enqueue()]
        await mine.execute("select rota.enqueue('t'), rota.enqueue('t', due_at => %s)", [at])
    await rota_app.drain()
    ((after,),) = rows(rota_database, "select statement_timestamp()")

    assert shown == zone
    assert all(before <= job.created_at <= after for job in now + hour + then)
    assert [job.due_at - job.created_at for job in now + hour] == [timedelta(0)] * 2 + [timedelta(hours=1)] * 2
    assert [job.due_at for job in then] == [at, at]
    assert rows(rota_database, "select due_at from rota.jobs order by due_at desc limit 3") == [(at,)] * 3
    times = "select count(*), min(created_at), min(started_at), max(claimed_at), max(finished_at) from rota.history"
    ((settled, *moments),) = rows(rota_database, times)
    assert settled == 3
    assert all(before <= moment <= after for moment in moments)
