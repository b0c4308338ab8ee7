"""Schedules on one axis of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from rota import ConfigurationError, Rota
from rota.schedules import timeline
from rota.schedules.timeline import Timeline, _load, _Row
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

NOW = datetime(2027, 3, 27, 12, 0, tzinfo=UTC)


def row(name: str = "s", **words: Any) -> _Row:
    """A schedule as it is stored."""
    said = {
        "name": name,
        "task": "t",
        "kind": "every",
        "cron": None,
        "every": "1 hour",
        "at": None,
        "tz": "UTC",
        "anchor": NOW,
        "dst_gap": "run",
        "dst_overlap": "once",
        "start_at": None,
        "end_at": None,
        "exclude": None,
        "skipped_slots": [],
        "next_slot": NOW,
        "next_at": NOW,
        "jitter": timedelta(0),
        "left": None,
        **words,
    }
    return _Row(**said)


def loads(*rows: _Row) -> tuple[float, ...]:
    load, counted = _load(rows, NOW, NOW + timedelta(hours=24))
    assert counted == len(rows)
    return load


def test_the_load_is_how_many_runs_begin_in_each_quarter_of_an_hour() -> None:
    assert len(loads()) == 96
    assert loads(row()) == (1.0, 0.0, 0.0, 0.0) * 24
    assert loads(row(every="5 minutes")) == (3.0,) * 96
    assert sum(loads(row(kind="cron", cron="30 14 * * *", every=None, next_slot=NOW.replace(hour=14, minute=30)))) == 1
    assert loads(row(kind="cron", cron="30 14 * * *", every=None, next_slot=NOW.replace(hour=14, minute=30)))[10] == 1
    assert sum(loads(row(every="1 day"), row(kind="once", every=None, at=NOW))) == 2
    assert sum(loads(row(left=3))) == 3
    assert sum(loads(row(skipped_slots=[NOW + timedelta(hours=5)]))) == 23
    assert sum(loads(row(next_slot=NOW + timedelta(days=2)))) == 0


def test_plain_intervals_are_loaded_as_their_timing_says() -> None:
    first = NOW + timedelta(minutes=7)
    for every in ("15 minutes", "17 minutes", "1 hour", "7 hours"):
        timed = row(every=every, anchor=first, next_slot=first).timing
        slots = timed.between(first, NOW + timedelta(hours=24))
        by_span = [0.0] * 96
        for slot in slots:
            by_span[(slot - NOW) // timedelta(minutes=15)] += 1

        assert loads(row(every=every, anchor=first, next_slot=first)) == pytest.approx(tuple(by_span))


def test_the_load_says_of_how_many_it_is_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(f"s{n}", kind="cron", every=None, cron=f"{n} * * * *") for n in range(10)]

    _, all_of_them = _load(rows, NOW, NOW + timedelta(hours=24))
    monkeypatch.setattr(timeline, "_BUDGET", -1.0)
    _, none = _load(rows, NOW, NOW + timedelta(hours=24))

    assert (all_of_them, none) == (10, 0)


async def test_lanes_have_what_became_of_runs_and_what_is_to_come(rota_app: TestRota) -> None:
    bad = {"is": False}

    @rota_app.task(name="tick", retry=None)
    def tick() -> None:
        if bad["is"]:
            raise ValueError("no")

    await rota_app.schedules.put("hourly", task="tick", every="1h")
    await rota_app.schedules.put("never", task="tick", on="nothing")
    await rota_app.schedules.trigger("hourly")
    await rota_app.drain()
    bad["is"] = True
    await rota_app.schedules.trigger("hourly")
    await rota_app.drain()

    told = await rota_app.schedules.timeline()

    assert (told.schedules, told.counted) == (1, 1)
    (lane,) = told.lanes
    assert lane.name == "hourly"
    assert sorted(run.state for run in lane.past) == ["dead", "succeeded"]
    assert len(lane.future) in (23, 24)
    assert lane.future == tuple(sorted(lane.future))
    assert not lane.cut
    assert [each.name for each in told.next] == ["hourly"] * 10
    assert sum(told.load) in (23, 24)
    assert rota_app.schedules.timeline_sync(ahead="30m", most=0).lanes == ()


async def test_a_jump_of_the_clock_is_told_with_what_it_does(rota_app: TestRota) -> None:
    rota_app.task(name="t")(lambda: None)
    gap = datetime(2027, 3, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    with psycopg.connect(rota_app.database.dsn.conninfo) as db:
        (now,) = db.execute("select rota.now()").fetchone() or (None,)
    rota_app.advance(gap - timedelta(hours=10) - now)
    await rota_app.schedules.put("nightly", task="t", cron="30 2 * * *", tz="Europe/Berlin")

    told: Timeline = await rota_app.schedules.timeline()

    assert "the clock goes forward" in told.jumps["Europe/Berlin"][0]
    (lane,) = told.lanes
    assert "does not exist" in lane.upsets[0].words


async def test_one_schedule_that_cannot_be_read_hides_no_other(rota_app: TestRota) -> None:
    rota_app.task(name="t")(lambda: None)
    for name in ("good", "wrong"):
        await rota_app.schedules.put(name, task="t", cron="0 * * * *")
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as db:
        db.execute("update rota.schedules set tz = 'Nowhere/Atall' where name = 'wrong'")

    told = await rota_app.schedules.timeline()

    lanes = {lane.name: lane for lane in told.lanes}
    assert lanes["good"].problem is None
    assert len(lanes["good"].future) in (23, 24)
    assert lanes["wrong"].future == ()
    assert "Nowhere/Atall" in (lanes["wrong"].problem or "")
    assert (told.schedules, told.counted) == (2, 1)


@pytest.mark.parametrize("wrong", [{"back": "8d"}, {"ahead": "1w 1s"}, {"most": -1}, {"most": 501}, {"back": "soon"}])
def test_what_cannot_be_drawn_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rota("dbname=nowhere").schedules.timeline_sync(**wrong)
