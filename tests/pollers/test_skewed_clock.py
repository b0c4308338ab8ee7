"""A worker whose machine is hours off: when rows are due, what is stamped and how long a failure waits is the database's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.faketime import libfaketime
from tests.pollers.tables import NOON, stop_clock

from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.long]

Db = psycopg.Connection[Any]

APP = """
from datetime import UTC, datetime
import psycopg
from rota import Adaptive, Retry, Rota, current_poll

app = Rota()
looks = {"table": "feeds", "idle": "0.2s"}
hourly = looks | {"interval": "1h"}

@app.poller(**hourly, name="delay", last="delay_at")
def delay(feed: dict) -> None:
    with psycopg.connect(app.database.dsn.conninfo) as db:
        db.execute("insert into told values (%s)", [datetime.now(UTC)])

@app.poller(**hourly, name="rate", last="rate_at", counted_from="start")
def rate(feed: dict) -> None: ...

@app.poller(**hourly, name="due", due="due_at")
def due(feed: dict) -> None: ...

@app.poller(**looks, name="pace", last="pace_at", adaptive=Adaptive(min="1h", max="1h"))
def pace(feed: dict) -> None: ...

@app.poller(**hourly, name="flaky", last="flaky_at", retry=Retry(5, "constant", "1h", cap="1h", jitter=False))
async def flaky(feed: dict) -> None:
    if feed["id"] == 1 and current_poll().attempt == 1:
        raise ValueError("not yet")
"""


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def move_clock(db: Db, at: datetime) -> None:
    """At one stroke, as a worker goes by it meanwhile."""
    db.execute("update stopped_clock set at = %s", [at])


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("set timezone to 'UTC'")
        connection.execute(
            "create table feeds (id int primary key, delay_at timestamptz, rate_at timestamp, due_at timestamptz, "
            "pace_at timestamptz, flaky_at timestamptz)"
        )
        connection.execute("create table told (at timestamptz)")
        # the second poller keeps its rows to a grid: due half an hour ago, and an hour before that
        connection.execute("insert into feeds (id, rate_at) values (1, %s)", [at(-90).replace(tzinfo=None)])
        stop_clock(connection, NOON)
        yield connection


def feed(db: Db, id: int) -> list[datetime | None]:
    """When it was polled by delay and rate, when it is due, and when it was polled by pace and flaky."""
    (row,) = db.execute(
        "select delay_at, rate_at at time zone 'UTC', due_at, pace_at, flaky_at from feeds where id = %s", [id]
    )
    return list(row)


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_worker_whose_clock_is_hours_off_polls_and_stamps_by_the_clock_of_the_database(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], db: Db, hours: int
) -> None:
    if (faking := libfaketime()) is None:
        pytest.skip("the clock of a worker is set by libfaketime: apt-get install faketime")
    rota_worker(APP, env={"LD_PRELOAD": str(faking), "FAKETIME": f"{hours:+d}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})

    polled = [at(0), at(-30), at(60), at(0), None]
    until_sync(lambda: feed(db, 1) == polled, what="the first is polled, and fails once")
    retry_at = "select retry_at from rota.poll_claims where poller = 'flaky'"
    until_sync(lambda: db.execute(retry_at).fetchall() == [(at(60),)], what="its failure waits for an hour")

    move_clock(db, at(20))
    db.execute("insert into feeds (id) values (2)")
    until_sync(lambda: feed(db, 2) == [at(20), at(20), at(80), at(20), at(20)], what="each of them has looked")
    early = feed(db, 1)
    move_clock(db, at(61))
    until_sync(lambda: feed(db, 1) == [at(61), at(30), at(121), at(61), at(61)], what="it is polled again")

    assert early == polled
    ((told,),) = db.execute("select max(at) from told")
    assert abs(told - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=5)
