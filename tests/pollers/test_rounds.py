"""Looks that meet others: what a round finds, takes and tells while someone else takes, changes or locks the same rows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.pollers.feeds import Db, one

from rota import Adaptive, RotaError
from rota.testing import TestRota, until, until_sync

TABLE = """
    create table sources (id int primary key, minutes int not null default 10, last_at timestamptz, due_at timestamptz);
    -- whoever asks waits here while someone keeps the gate
    create function gate() returns boolean language plpgsql as $$
    begin perform pg_advisory_xact_lock_shared(7); return true; end $$;
"""
WAITING = "select count(*) from pg_locks where locktype = 'advisory' and objid = 7 and not granted"
ASLEEP = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'"
SLOW_STAMPS = """
    create function slowly() returns trigger language plpgsql as $$ begin perform pg_sleep(1); return new; end $$;
    create trigger slowly before update on sources for each row execute function slowly();
"""


@pytest.fixture
def db(direct_database: str) -> Iterator[Db]:
    with psycopg.connect(direct_database, autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


@pytest.fixture
def other(direct_database: str) -> Iterator[Db]:
    with psycopg.connect(direct_database, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def gate_kept(db: Db) -> AsyncIterator[None]:
    """Have every look that begins in this block see the table as it is now, and go on when the block ends."""
    db.execute("select pg_advisory_lock(7)")
    try:
        yield
    finally:
        db.execute("select pg_advisory_unlock(7)")


async def test_a_round_goes_on_when_others_had_first_what_it_found(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="sources", last="last_at", interval="5m", where="gate()")
    async def fetch(source: dict[str, Any]) -> None: ...

    db.execute("insert into sources select generate_series(1, 20)")
    db.execute("create index on sources (last_at)")
    async with gate_kept(db):
        polling = asyncio.create_task(fetch.run_once(max_rows=10))
        await until(lambda: one(db, WAITING) > 0, what="it looks")
        db.execute(
            "insert into rota.poll_claims (poller, key, member, token) "
            "select 'fetch', jsonb_build_array(i), gen_random_uuid(), 1 from generate_series(1, 10) as i"
        )

    stats = await polling

    assert (stats.claimed, stats.completed) == (10, 10)
    assert one(db, "select count(*) from sources where last_at is not null and id > 10") == 10


async def test_a_row_of_a_pace_of_ours_is_not_polled_again_by_who_looked_before_it_was(
    rota_app: TestRota, db: Db, other: Db
) -> None:
    polled = []

    @rota_app.poller(table="sources", last="last_at", adaptive=Adaptive("1m", "1h"), where="gate()")
    async def fetch(source: dict[str, Any]) -> None:
        polled.append(source["id"])

    db.execute("insert into sources (id, last_at) values (1, now() - interval '10 minutes')")
    db.execute("insert into rota.poll_intervals values ('fetch', '[1]', '1 minute', now() - interval '1 minute')")

    def polled_by_another() -> None:
        with other.transaction():
            other.execute("update sources set last_at = now() where id = 1")
            other.execute("update rota.poll_intervals set due_at = now() + interval '1 minute'")

    async with gate_kept(db):
        looking = asyncio.create_task(fetch.run_once())
        await until(lambda: one(db, WAITING) > 0, what="it looks")
        stamping = asyncio.create_task(asyncio.to_thread(polled_by_another))
        await until(
            lambda: (
                stamping.done()
                or one(db, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ '^update'")
            ),
            what="the other has stamped it, or waits to",
        )
    stats = await looking
    await stamping

    assert (stats.claimed, polled) == (0, [])


async def test_a_round_says_what_hinders_its_look(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="sources", last="last_at", interval="5m", where="10 / minutes > 0")
    async def fetch(source: dict[str, Any]) -> None: ...

    db.execute("insert into sources (id, minutes) values (1, 0)")

    with pytest.raises(RotaError, match="cannot look for rows of public.sources: PostgreSQL says 'division by zero'"):
        await fetch.run_once()


async def test_a_round_that_is_cancelled_stamps_what_is_polled(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="sources", last="last_at", interval="5m")
    async def fetch(source: dict[str, Any]) -> None: ...

    db.execute("insert into sources values (1)")
    db.execute(SLOW_STAMPS)
    polling = asyncio.create_task(fetch.run_once())
    await until(lambda: one(db, ASLEEP) == 1, what="it is being stamped")
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling

    assert one(db, "select count(*) from sources where last_at is not null") == 1
    assert one(db, "select count(*) from rota.poll_claims") == 0


async def test_a_round_that_is_cancelled_waits_for_no_row_that_someone_has_locked(
    rota_app: TestRota, db: Db, direct_database: str
) -> None:
    told: list[str] = []
    rota_app.facts.subscribe(lambda fact: told.append(type(fact).__name__))
    with psycopg.connect(direct_database) as application:

        @rota_app.poller(table="sources", last="last_at", interval="5m")
        async def fetch(source: dict[str, Any]) -> None:
            application.execute("select from sources for update")

        db.execute("insert into sources values (1)")
        polling = asyncio.create_task(fetch.run_once())
        await until(lambda: "RowLocked" in told, what="the stamp finds it locked")
        polling.cancel()
        ended, _ = await asyncio.wait([polling], timeout=20)

        assert ended == {polling}
        assert polling.cancelled()
        assert one(db, "select count(*) from rota.poll_claims") == 0


async def test_a_row_that_was_lost_and_is_not_due_any_more_is_left_alone(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="sources", due="due_at")
    async def remind(source: dict[str, Any]) -> None: ...

    db.execute("insert into sources (id, due_at) values (1, null), (2, now())")
    for id in (1, 2):
        db.execute(
            "insert into rota.poll_claims (poller, key, losses, retry_at) values ('remind', jsonb_build_array(%s::int), 1, now())",
            [id],
        )

    stats = await remind.run_once()

    assert (stats.claimed, stats.completed) == (1, 1)
    assert db.execute("select key from rota.poll_claims").fetchall() == [([1],)]


async def test_errors_are_told_in_the_order_in_which_rows_were_taken(rota_app: TestRota, db: Db) -> None:
    last = asyncio.Event()

    @rota_app.poller(table="sources", last="last_at", interval="5m")
    async def fetch(source: dict[str, Any]) -> None:
        if source["id"] == 2:
            return
        if source["id"] == 1:
            await last.wait()
            await until(
                lambda: one(db, "select attempts from rota.poll_claims where key = '[3]'") == 1, what="it failed"
            )
        last.set()
        raise ValueError

    db.execute("insert into sources select generate_series(1, 3)")
    db.execute("create index on sources (last_at, id)")
    stats = await fetch.run_once(max_rows=3)

    assert [error.split(":")[0] for error in stats.errors] == ["1", "3"]


async def test_what_is_polled_by_hand_is_counted(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="sources", last="last_at", interval="5m")
    async def fetch(source: dict[str, Any]) -> None: ...

    db.execute("insert into sources values (1)")
    await fetch.poll(1)

    tally = rota_app.pollers.tally()["fetch"]
    assert (tally.claimed, tally.completed) == (1, 1)


async def test_a_slow_look_asks_for_what_is_polled_meanwhile(rota_app: TestRota, db: Db) -> None:
    """Behind very many parked rows each look takes its time, and would find ten rows each."""
    slow = "(select true from pg_sleep(0.1))"

    @rota_app.poller(table="sources", last="last_at", interval="5m", where=slow, concurrency=2, batch=200)
    async def fetch(source: dict[str, Any]) -> None: ...

    db.execute("insert into sources select generate_series(1, 400)")
    looks = 0

    def count(fact: Any) -> None:
        nonlocal looks
        looks += type(fact).__name__ == "RowsClaimed"

    rota_app.facts.subscribe(count)
    await rota_app.drain()

    assert one(db, "select count(*) from sources where last_at is null") == 0
    assert looks < 100  # two at a time would be two hundred


APP = """
import sys, time
from rota import Rota
app = Rota()
@app.poller(table="sources", last="last_at", interval="5m", concurrency=1)
def fetch(source: dict) -> None:
    sys.stdout.write("begun\\n")  # in one piece, as two may do it at once
    sys.stdout.flush()
    time.sleep(SECONDS)
"""


@pytest.mark.parametrize(
    ("told", "times", "polled", "ends_with"),
    [
        (signal.SIGTERM, 1, 1, -signal.SIGTERM),
        pytest.param(signal.SIGTERM, 2, 0, -signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 1, 1, 1, marks=pytest.mark.long),
        (signal.SIGINT, 2, 0, 1),
    ],
)
def test_a_process_that_is_told_to_end_ends_the_poll_that_runs_and_gives_back_the_rest(
    rota_app: TestRota, db: Db, rota_database: str, tmp_path: Path, told: int, times: int, polled: int, ends_with: int
) -> None:
    (tmp_path / "app.py").write_text(APP.replace("SECONDS", "2" if times == 1 else "60"))
    db.execute("insert into sources values (1), (2)")
    command = [sys.executable, "-m", "rota", "pollers", "run", "fetch", "--app", str(tmp_path / "app.py")]
    environment = {**os.environ, "ROTA_DATABASE_URL": rota_database}
    # where these tests run in the background it is ignored, also by those that are started
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        signal.signal(signal.SIGINT, heeded)
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"

        running.send_signal(told)
        if times == 2:
            until_sync(lambda: one(db, "select count(*) from rota.poll_claims") == 1, what="the other is given back")
            running.send_signal(told)
        code = running.wait(20)

    assert code == ends_with
    until_sync(lambda: db.execute("select from rota.poll_claims").fetchall() == [], what="they are given back")
    assert one(db, "select count(*) from sources where last_at is not null") == polled


def test_a_command_does_not_wait_for_a_handler_that_took_longer_than_its_timeout(
    rota_app: TestRota, db: Db, rota_database: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP.replace("SECONDS", "60").replace("concurrency=1", 'timeout="100ms"'))
    db.execute("insert into sources values (1)")
    command = [sys.executable, "-m", "rota", "pollers", "run", "fetch", "--app", str(tmp_path / "app.py")]
    environment = {**os.environ, "ROTA_DATABASE_URL": rota_database}

    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)

    assert ended.returncode == 1
    assert "longer than its timeout" in ended.stderr
