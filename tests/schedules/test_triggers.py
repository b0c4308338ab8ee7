"""Runs by hand: whatever the rules of a schedule say, and not doubled while they wait to begin."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

import psycopg
import pytest
from tests.schedules.rows import now

from rota import ConfigurationError, InvalidArguments, Rota
from rota.testing import TestRota, until_sync


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task
    def tick(n: int = 0) -> None: ...

    @rota_app.task
    def report(day: date, copies: int = 1) -> None: ...

    return rota_app


async def test_a_trigger_runs_it_now_and_returns_its_job(app: TestRota) -> None:
    await app.schedules.put("s", task="tick", args={"n": 1}, cron="0 0 1 1 *", queue="q", tags=["t"])

    job = await app.schedules.trigger("s")

    assert (job.task, job.args, job.queue, job.tags, job.state) == ("tick", {"n": 1}, "q", ("t",), "queued")
    assert not job.existing
    await app.drain()
    assert (await job.refresh()).state == "succeeded"
    (run,) = await app.schedules.history("s")
    assert (run.cause, run.state, run.job) == ("trigger", "succeeded", job.id)


def test_a_trigger_that_is_queued_already_is_not_doubled(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 0 1 1 *")

    with ThreadPoolExecutor(10) as threads:
        jobs = list(threads.map(lambda _: app.schedules.trigger_sync("s"), range(20)))

    assert len({job.id for job in jobs}) == 1
    assert sum(not job.existing for job in jobs) == 1


def test_a_trigger_is_not_doubled_by_one_that_began_before_it_and_had_to_wait(
    app: TestRota, db: psycopg.Connection[Any], direct_database: str
) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 0 1 1 *")
    with (
        psycopg.connect(direct_database, autocommit=True) as gate,
        psycopg.connect(direct_database, autocommit=True) as slow,
        ThreadPoolExecutor(1) as thread,
    ):
        gate.execute("select pg_advisory_lock(7)")
        late = thread.submit(
            slow.execute,
            "do $$ begin perform pg_advisory_lock(7); perform rota.trigger_schedule('s'); end $$",
        )
        until_sync(
            lambda: gate.execute("select from pg_locks where locktype = 'advisory' and not granted").rowcount == 1
        )
        job = app.schedules.trigger_sync("s")
        gate.execute("select pg_advisory_unlock(7)")
        late.result(timeout=20)

    assert db.execute("select id from rota.jobs").fetchall() == [(job.id,)]


def test_a_trigger_lays_its_arguments_over_those_of_the_schedule(app: TestRota) -> None:
    app.schedules.put_sync("s", task="report", args={"day": date(2026, 1, 1), "copies": 3})

    other = app.schedules.trigger_sync("s", {"day": date(2026, 2, 2)})
    plain = app.schedules.trigger_sync("s", {"day": "2026-02-02"})
    usual = app.schedules.trigger_sync("s")

    assert other.args == {"day": "2026-02-02", "copies": 3}
    assert (plain.id, plain.existing) == (other.id, True)
    assert usual.id != other.id
    with pytest.raises(InvalidArguments, match="Schedule 's' was not triggered: .*nonsense"):
        app.schedules.trigger_sync("s", {"nonsense": 1})
    with pytest.raises(InvalidArguments, match="day is 7"):
        app.schedules.trigger_sync("s", {"day": 7})


def test_a_trigger_brings_along_what_the_schedule_leaves_open(app: TestRota) -> None:
    app.schedules.put_sync("s", task="report", args={"copies": 3}, on="day.closed")

    with pytest.raises(InvalidArguments, match="Schedule 's' was not triggered: day is missing"):
        app.schedules.trigger_sync("s")
    with pytest.raises(InvalidArguments, match="Schedule 's' was not triggered: day is missing"):
        app.schedules.trigger_sync("s", {"copies": 4})
    assert app.schedules.trigger_sync("s", {"day": date(2026, 2, 2)}).args == {"day": "2026-02-02", "copies": 3}


def test_a_trigger_may_be_for_later(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick")
    moment = now(db) + timedelta(hours=3)

    later = app.schedules.trigger_sync("s", at=moment)
    again = app.schedules.trigger_sync("s", at=moment)
    sooner = app.schedules.trigger_sync("s", delay="1h")
    at_once = app.schedules.trigger_sync("s")

    assert later.due_at == moment
    assert (again.id, again.existing) == (later.id, True)
    assert timedelta(minutes=59) < sooner.due_at - now(db) < timedelta(minutes=61)
    # one for later is not what someone wants now
    assert at_once.due_at <= now(db)
    assert len({later.id, sooner.id, at_once.id}) == 3
    with pytest.raises(ConfigurationError, match="both at= and delay="):
        app.schedules.trigger_sync("s", at=moment, delay=1)


def test_each_delay_is_a_run_of_its_own(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick")

    first, second = (app.schedules.trigger_sync("s", delay="1h") for _ in range(2))

    assert (first.id != second.id, second.existing) == (True, False)


def test_a_paused_schedule_can_be_triggered(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", every="1h")
    app.schedules.pause_sync("s")

    assert app.schedules.trigger_sync("s").state == "queued"


def test_a_trigger_is_stored_by_the_codec(rota_database: str, db: psycopg.Connection[Any]) -> None:
    class Reversed:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    app = Rota(rota_database, codec=Reversed())
    app.task(name="tick")(lambda n, m=0: None)
    with app:
        app.schedules.put_sync("s", task="tick", args={"n": 1})
        job = app.schedules.trigger_sync("s", {"m": 2})

    assert job.args == {"n": 1, "m": 2}
    assert db.execute("select args ? 'rota:coded' from rota.jobs").fetchall() == [(True,)]


def test_a_trigger_is_not_doubled_by_a_codec_that_salts(rota_database: str, db: psycopg.Connection[Any]) -> None:
    class Salted:
        def encode(self, text: str) -> str:
            return secrets.token_hex(4) + text

        def decode(self, text: str) -> str:
            if text.startswith("lost"):
                raise ValueError("no key")
            return text[8:]

    app = Rota(rota_database, codec=Salted())
    app.task(name="tick")(lambda n, m=0: None)
    with app:
        app.schedules.put_sync("s", task="tick", args={"n": 1})
        gone = app.schedules.trigger_sync("s", {"m": 3})
        db.execute("""update rota.jobs set args = '{"rota:coded": "lost"}'""")
        with ThreadPoolExecutor(5) as threads:
            same = list(threads.map(lambda _: app.schedules.trigger_sync("s", {"m": 2}), range(10)))
        usual = app.schedules.trigger_sync("s", {"n": 1})
        other = app.schedules.trigger_sync("s", {"m": 3})

    assert len({job.id for job in same}) == 1
    assert sum(not job.existing for job in same) == 1
    assert len({same[0].id, usual.id, other.id, gone.id}) == 4
