"""Slots of the past that people have run, and what they take back of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.schedules.rounds import give_out

from rota import ConfigurationError, NotPossible, ScheduleNotFound
from rota.schedules.backfill import Range
from rota.schedules.store import StoredSchedule
from rota.testing import TestRota

START = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task
    def tick(n: int = 0) -> None: ...

    return rota_app


def test_a_backfill_runs_each_slot_that_has_not_run(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 * * * *", overlap="allow")
    end = START + timedelta(hours=6)

    first = app.schedules.backfill_sync("s", START, START + timedelta(hours=3))
    second = app.schedules.backfill_sync("s", START, end)

    assert (first, second) == (3, 3)
    assert give_out(app) == 6
    slots = db.execute("select slot_at from rota.jobs order by slot_at").fetchall()
    assert [slot for (slot,) in slots] == [START + timedelta(hours=n) for n in range(6)]


def test_a_backfill_runs_one_after_another_unless_they_may_overlap(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 * * * *")
    app.schedules.backfill_sync("s", START, START + timedelta(hours=3))

    give_out(app)

    assert [run.state for run in app.schedules.history_sync("s")] == ["waiting", "waiting", "queued"]
    assert app.schedules.get_sync("s").waiting == 2


def test_neither_a_backfill_nor_a_run_by_hand_counts_among_its_runs(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", every="1h", max_runs=1, overlap="allow", start_at=START)

    app.schedules.backfill_sync("s", START, START + timedelta(hours=3))
    app.schedules.trigger_sync("s")
    given = give_out(app)
    before = app.schedules.get_sync("s")
    app.advance("1h")

    assert (given, before.runs, before.state) == (3, 0, "active")
    assert give_out(app) == 1
    assert (app.schedules.get_sync("s").runs, app.schedules.get_sync("s").state) == (1, "ended")


def test_a_backfill_leaves_what_is_to_come_to_its_time(app: TestRota, db: psycopg.Connection[Any]) -> None:
    put = app.schedules.put_sync("s", task="tick", every="1h")
    start = put.anchor - timedelta(hours=2)

    filled = app.schedules.backfill_sync("s", start, put.anchor + timedelta(days=9))

    assert filled == 3
    assert db.execute("select max(slot_at) from rota.slots").fetchall() == [(put.anchor,)]


def test_a_backfill_that_cannot_be_is_refused(app: TestRota) -> None:
    app.schedules.put_sync("s", task="tick", cron="* * * * *")
    app.schedules.put_sync("m", task="tick")
    fill, hour = app.schedules.backfill_sync, timedelta(hours=1)

    with pytest.raises(ConfigurationError, match="more than 59 slots"):
        fill("s", START, START + hour, limit=59)
    assert fill("s", START, START + hour, limit=60, dry_run=True) == 60
    with pytest.raises(ConfigurationError, match=r"nothing from 2020-01-01T00:00:00\+00:00 to before 2020-01-01T00"):
        fill("s", START, START)
    with pytest.raises(ConfigurationError, match="start=.*time zone"):
        fill("s", datetime(2020, 1, 1), START)
    with pytest.raises(ConfigurationError, match="limit cannot be 0"):
        fill("s", START, START + hour, limit=0)
    with pytest.raises(NotPossible, match="no slots to fill"):
        fill("m", START, START + hour)


async def test_the_slots_of_a_backfill_are_worked_out_with_no_transaction_open_and_off_the_loop(
    app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []

    def slots(self: Range, row: StoredSchedule) -> list[datetime]:
        ((open_,),) = db.execute(
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()"
        ).fetchall()
        seen.append((open_, threading.current_thread() is threading.main_thread()))
        return real(self, row)

    real = Range.slots
    monkeypatch.setattr(Range, "slots", slots)
    app.schedules.put_sync("s", task="tick", cron="0 * * * *")

    assert await app.schedules.backfill("s", START, START + timedelta(hours=2)) == 2
    assert app.schedules.backfill_sync("s", START, START + timedelta(hours=3)) == 1
    assert seen == [(0, False), (0, True)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "backfill",
    [
        lambda schedules, *asked: schedules.backfill_sync(*asked),
        lambda schedules, *asked: asyncio.run(schedules.backfill(*asked)),
    ],
)
def test_a_backfill_of_what_is_changed_meanwhile_is_by_the_new_words(
    app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, backfill: Any, *, again: bool
) -> None:
    def slots(self: Range, row: StoredSchedule) -> list[datetime]:
        monkeypatch.undo()
        if again:
            app.schedules.delete_sync("s")
            app.advance("1s")
        app.schedules.put_sync("s", task="tick", cron="30 * * * *")
        return real(self, row)

    real = Range.slots
    app.schedules.put_sync("s", task="tick", cron="0 * * * *")
    monkeypatch.setattr(Range, "slots", slots)

    assert backfill(app.schedules, "s", START, START + timedelta(hours=1)) == 1
    assert db.execute("select slot_at from rota.slots").fetchall() == [(START + timedelta(minutes=30),)]


def test_what_waits_can_be_cleared_and_filled_again(app: TestRota, db: psycopg.Connection[Any]) -> None:
    app.schedules.put_sync("s", task="tick", cron="0 * * * *")
    app.schedules.backfill_sync("s", START, START + timedelta(hours=3))
    give_out(app)

    assert app.schedules.clear_sync("s", dry_run=True) == 2
    assert app.schedules.get_sync("s").waiting == 2
    assert app.schedules.clear_sync("s", by="me") == 2
    assert app.schedules.clear_sync("s", by="me") == 0

    assert [run.state for run in app.schedules.history_sync("s")] == ["queued"]
    told = db.execute("select action, details from rota.audit where actor = 'me'").fetchall()
    assert told == [("schedule.clear", {"schedule": "s", "runs": 2})]
    assert app.schedules.backfill_sync("s", START, START + timedelta(hours=3)) == 2


async def test_the_gaps_are_the_slots_that_a_backfill_would_run(app: TestRota, db: psycopg.Connection[Any]) -> None:
    await app.schedules.put("s", task="tick", cron="0 * * * *", tz="Europe/Berlin")
    end = START + timedelta(hours=6)
    await app.schedules.backfill("s", START + timedelta(hours=1), START + timedelta(hours=3))
    # a run by hand stands for no slot
    await app.schedules.trigger("s", at=START + timedelta(hours=4))
    before = db.execute("select count(*) from rota.slots").fetchall()

    gaps = await app.schedules.gaps("s", START, end)

    assert gaps == [START + timedelta(hours=hour) for hour in (0, 3, 4, 5)]
    assert app.schedules.gaps_sync("s", START, end) == gaps
    assert db.execute("select count(*) from rota.slots").fetchall() == before
    assert await app.schedules.backfill("s", START, end) == len(gaps)
    assert await app.schedules.gaps("s", START, end) == []
    with pytest.raises(ConfigurationError, match="more than 5 slots"):
        await app.schedules.gaps("s", START, end, limit=5)
    with pytest.raises(ScheduleNotFound):
        await app.schedules.gaps("nothing", START, end)
