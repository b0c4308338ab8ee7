"""Erasing all that is known of someone: every job with a tag, wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.interleave import at_once
from tests.jobs.test_cancel import at_work

from rota import ClaimLost, ConfigurationError, JobNotFound, Retry, Unique, current_job
from rota.jobs import erase as erase_room
from rota.jobs.erase import Erased
from rota.postgres.query import Query
from rota.testing import TestRota

TABLES = ("jobs", "dead", "history", "attempts", "uniques")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def left(db: psycopg.Connection[Any]) -> dict[str, int]:
    return {table: db.execute(f"select count(*) from rota.{table}").fetchone()[0] for table in TABLES}  # type: ignore[index]


async def test_every_trace_is_gone_and_nothing_else(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task(retry=Retry(2, base="1m"), unique=Unique(states=("queued", "running", "succeeded")))
    async def do(how: str, user: int) -> str:
        if how == "fail" or (how == "stumble" and current_job().attempt == 1):
            raise ValueError(user)
        return how

    jobs = {
        user: [
            await do.using(tags=[f"user:{user}", "all"], delay="1h" if how == "wait" else None).enqueue(how, user)
            for how in ("well", "stumble", "fail", "wait", "cancel")
        ]
        for user in (1, 2)
    }
    for some in jobs.values():
        await some[-1].cancel()
    await rota_app.drain()
    rota_app.advance("5m")
    await rota_app.drain()
    before = left(db)

    would = await rota_app.jobs.erase(tag="user:1", dry_run=True)
    assert left(db) == before
    erased = await rota_app.jobs.erase(tag="user:1", by="ana")

    assert erased == would == Erased(live=1, dead=1, history=3, attempts=3, uniques=5)
    assert left(db) == {"jobs": 1, "dead": 1, "history": 3, "attempts": 3, "uniques": 5}
    for job in jobs[1]:
        with pytest.raises(JobNotFound):
            await job.refresh()
    assert [(await job.refresh()).state for job in jobs[2]] == ["succeeded", "succeeded", "dead", "queued", "cancelled"]
    assert db.execute("select actor, details from rota.audit where action = 'erase' order by id").fetchall() == [
        (
            "ana",
            {
                "tag": "user:1",
                "live": 0,
                "dead": 1,
                "history": 0,
                "attempts": 2,
                "uniques": 1,
                "schedules": 0,
                "logs": 0,
            },
        ),
        (
            "ana",
            {
                "tag": "user:1",
                "live": 1,
                "dead": 0,
                "history": 0,
                "attempts": 0,
                "uniques": 1,
                "schedules": 0,
                "logs": 0,
            },
        ),
        (
            "ana",
            {
                "tag": "user:1",
                "live": 0,
                "dead": 0,
                "history": 3,
                "attempts": 1,
                "uniques": 3,
                "schedules": 0,
                "logs": 0,
            },
        ),
    ]


def test_that_someone_asked_is_on_record_even_if_there_was_nothing(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    assert rota_app.jobs.erase_sync(tag="nobody", dry_run=True) == Erased()
    assert rota_app.jobs.erase_sync(tag="nobody") == Erased()

    assert db.execute("select action, details ->> 'tag' from rota.audit").fetchall() == [("erase", "nobody")]
    with pytest.raises(ConfigurationError, match="a tag"):
        rota_app.jobs.erase_sync(tag="")


def test_rows_in_all_partitions_are_found(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    for number, (retention, age) in enumerate(
        [(None, "0"), (None, "3 days"), ("unheard_of", "1 day"), (None, "-2 days")]
    ):
        db.execute(
            "insert into rota.history (id, created_at, due_at, finished_at, attempt, losses, priority, version, state, queue, "
            "task, args, retention, tags) values (%s, rota.now(), rota.now(), rota.now() - %s::interval, 1, 0, 0, 1, 'succeeded', "
            "'default', 't', '{}', %s, '{a,b}')",
            [number + 1, age, retention],
        )
        db.execute(
            "insert into rota.attempts (job_id, attempt, outcome, finished_at) values (%s, 1, 'failed', rota.now() - %s::interval)",
            [number + 1, age],
        )
    assert db.execute("select count(distinct tableoid) from rota.history").fetchone() == (4,)

    assert rota_app.jobs.erase_sync(tag="b") == Erased(history=4, attempts=4)

    assert left(db) == dict.fromkeys(TABLES, 0)


def test_many_are_erased_a_stretch_at_a_time(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_room, "_STRETCH", 7)
    db.execute(
        "insert into rota.jobs (task, tags) "
        "select 't', case when n %% 3 = 0 then array['x', 'gone'] end from generate_series(1, 100) as n",
        [],
    )

    assert rota_app.jobs.erase_sync(tag="gone", dry_run=True) == Erased(live=33)
    assert rota_app.jobs.erase_sync(tag="gone") == Erased(live=33)

    assert left(db)["jobs"] == 67
    assert db.execute("select sum((details ->> 'live')::int) from rota.audit").fetchone() == (33,)


async def test_a_running_job_is_erased_and_its_body_can_change_nothing(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    started, erased = asyncio.Event(), asyncio.Event()
    told: list[Exception] = []

    @rota_app.task
    async def zombie() -> str:
        started.set()
        await erased.wait()
        try:
            await current_job().checkpoint({"at": 1})
        except ClaimLost as error:
            told.append(error)
        return "ignored"

    await zombie.using(tags=["user:1"]).enqueue()
    async with at_work(rota_app):
        await started.wait()
        assert (await rota_app.jobs.erase(tag="user:1")).live == 1
        erased.set()

    assert len(told) == 1
    assert left(db) == dict.fromkeys(TABLES, 0)


def test_a_call_that_takes_the_place_of_a_tagged_one_meanwhile_is_kept(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task
    def do(n: int) -> None: ...

    job = do.using(unique=Unique(by="one", conflict="replace"), tags=["user:1"]).enqueue_sync(1)

    def replace() -> None:
        db.execute("""update rota.jobs set tags = '{user:2}', args = '{"n": 2}'""")

    (erased,) = at_once(
        db, "select from rota.uniques for update", [lambda: rota_app.jobs.erase_sync(tag="user:1")], then=replace
    )

    assert erased.result() == Erased()
    assert job.refresh_sync().args == {"n": 2}
    assert left(db)["uniques"] == 1


ERASING = [erase_room._lock_keys([1]), erase_room._erase([1], "t", "c"), erase_room._count([1], "t")]


@pytest.mark.parametrize("query", ERASING, ids=["lock", "erase", "count"])
def test_keys_are_found_by_their_jobs(rota_app: TestRota, db: psycopg.Connection[Any], query: Query[Any]) -> None:
    """Nothing else would tell which they are but a look at all of them."""
    db.execute("insert into rota.uniques (key, job_id) select gen_random_uuid(), n from generate_series(1, 20000) as n")
    db.execute("analyze rota.uniques")

    plan = db.execute("explain " + query.statement.sql("rota"), query.params).fetchall()

    assert not [line for (line,) in plan if "Seq Scan on uniques" in line]


async def test_schedules_that_would_put_more_are_erased_too(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task
    async def remind(user: int) -> None: ...

    at = datetime.now(UTC) + timedelta(days=1)
    await rota_app.schedules.put("remind-1", task=remind, args={"user": 1}, at=at, tags=["user:1"])
    await rota_app.schedules.put("remind-2", task=remind, args={"user": 2}, at=at, tags=["user:2"])
    db.execute("insert into rota.slots (schedule, slot_at, cause) values ('remind-1', rota.now(), 'event')")

    would = await rota_app.jobs.erase(tag="user:1", dry_run=True)
    assert await rota_app.jobs.erase(tag="user:1") == would == Erased(schedules=1)
    assert [each.name for each in await rota_app.schedules.list()] == ["remind-2"]
    assert db.execute("select count(*) from rota.slots").fetchone() == (0,)
    assert db.execute("select details ->> 'schedules' from rota.audit where action = 'erase'").fetchall() == [("1",)]
