"""The runs of a schedule with their outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from rota import ConfigurationError, Discard, Retry
from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(retry=Retry(attempts=1))
    def end(how: str) -> None:
        if how == "fail":
            raise RuntimeError("no luck")
        if how == "discard":
            raise Discard("not today")

    return rota_app


async def test_each_run_shows_its_outcome(app: TestRota, db: psycopg.Connection[Any]) -> None:
    await app.schedules.put("s", task="end", args={"how": "well"})
    for how in ("well", "fail", "discard"):
        await app.schedules.trigger("s", {"how": how})
        await app.drain()
    await app.schedules.trigger("s")

    queued, cancelled, dead, succeeded = await app.schedules.history("s")

    assert [run.state for run in (queued, cancelled, dead, succeeded)] == ["queued", "cancelled", "dead", "succeeded"]
    assert dead.error == "RuntimeError: no luck"
    assert (queued.started_at, queued.finished_at, queued.attempt) == (None, None, 0)
    assert succeeded.started_at is not None
    assert succeeded.finished_at is not None
    assert succeeded.attempt == dead.attempt == 1
    seen = await app.schedules.get("s")
    assert (seen.failures, seen.last_job, seen.live) == (1, queued.job, 1)


async def test_a_run_that_died_and_was_retried_shows_what_became_of_it_then(app: TestRota) -> None:
    await app.schedules.put("s", task="end", args={"how": "fail"})
    first = await app.schedules.trigger("s")
    await app.drain()
    second = await app.dead.retry(first.id)
    await app.drain()
    (dead,) = await app.schedules.history("s")
    third = await app.dead.retry(second.id, args={"how": "well"})
    (queued,) = await app.schedules.history("s")
    await app.drain()

    (run,) = await app.schedules.history("s")

    assert (dead.state, dead.job, dead.error) == ("dead", second.id, "RuntimeError: no luck")
    assert (queued.state, queued.job, queued.error) == ("queued", third.id, None)
    assert (run.state, run.job, run.slot_at, run.cause) == ("succeeded", third.id, dead.slot_at, "trigger")


async def test_runs_wait_and_are_forgotten(app: TestRota, db: psycopg.Connection[Any]) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    await app.schedules.put("s", task="end", args={"how": "well"}, cron="0 * * * *")
    await app.schedules.backfill("s", start, start + timedelta(hours=2))
    assert [run.state for run in await app.schedules.history("s")] == ["waiting", "waiting"]
    await app.drain()
    db.execute("delete from rota.history")

    runs = await app.schedules.history("s")

    assert [run.state for run in runs] == ["forgotten", "forgotten"]
    assert [run.slot_at for run in runs] == [start + timedelta(hours=1), start]


async def test_history_comes_in_pages(app: TestRota) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    await app.schedules.put("s", task="end", args={"how": "well"}, cron="0 * * * *")
    await app.schedules.backfill("s", start, start + timedelta(hours=5))

    first = await app.schedules.history("s", limit=3)
    rest = app.schedules.history_sync("s", limit=3, after=first[-1].id)

    assert [run.slot_at.hour for run in (*first, *rest)] == [4, 3, 2, 1, 0]
    assert await app.schedules.history("nobody") == []
    with pytest.raises(ConfigurationError, match="limit cannot be 0"):
        await app.schedules.history("s", limit=0)
