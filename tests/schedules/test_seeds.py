"""The tests of the systems that schedules replace, by the names they have there, with real processes and a real database.

G14: two contenders for one key. C23 row 1: two servers, one due definition. C23 row 5: a crash in the middle of a cycle.
WG1: ticks some time apart. WG15: what is in the past, wrong, or in another time zone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.interleave import orders
from tests.jobs.statements import ask
from tests.schedules.rows import Db, add, row, runs

from rota import ConfigurationError, LeadershipHeld
from rota.schedules.due import find_due, fire
from rota.schedules.plan import make_plan
from rota.testing import TestRota, WorkerProcess, until_sync

APP = """
import asyncio
from rota import Rota

app = Rota()

@app.task(name="noop")
async def noop() -> None:
    await asyncio.sleep({seconds})
"""


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def noop(rota_app: TestRota) -> Any:
    @rota_app.task(name="noop")
    async def noop() -> None: ...

    return noop


async def test_g14_two_contenders_same_key_exactly_one_acquires(rota_app: TestRota) -> None:
    outcomes: Counter[str] = Counter()
    both = threading.Barrier(2)

    def contend() -> None:
        with TestRota(rota_app.database.dsn.conninfo) as app:
            both.wait()
            try:
                with app.leadership("scheduler"):
                    outcomes["acquired"] += 1
                    both.wait()
            except LeadershipHeld:
                outcomes["held"] += 1
                both.wait()

    await asyncio.gather(asyncio.to_thread(contend), asyncio.to_thread(contend))
    assert outcomes == {"acquired": 1, "held": 1}


def test_c23_1_two_servers_evaluate_the_same_due_definition(rota_database: str, db: Db) -> None:
    """In every order in which their two statements can meet: one job, and the second finds nothing to do."""
    for order in orders([2, 2]):
        db.execute("delete from rota.schedules")
        db.execute("delete from rota.slots")
        db.execute("delete from rota.jobs")
        add(db, "nightly", due_in=-1)
        with (
            psycopg.connect(rota_database, autocommit=True) as one,
            psycopg.connect(rota_database, autocommit=True) as two,
        ):
            plans: dict[int, Any] = {}
            for server in order:
                connection = (one, two)[server]
                if server in plans:
                    ask(connection, fire(plans.pop(server)))
                else:
                    plans[server] = [make_plan(due, lambda _: None) for due in ask(connection, find_due(10))]
        assert len(runs(db, "nightly")) == 1, order
        assert db.execute("select count(*) from rota.jobs").fetchone() == (1,)
        assert row(db, "nightly", "runs, skipped") == (1, 0)


@pytest.mark.long
def test_c23_5_a_crash_in_the_middle_of_a_cycle_leaves_nothing_half_done(
    rota_worker: Callable[..., WorkerProcess], db: Db, tmp_path: Path
) -> None:
    """The process dies while its statement runs: all of it happened, or none, and the next does the rest."""
    db.execute(
        "create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return new; end $$"
    )
    db.execute("create trigger slow before insert on rota.slots for each row execute function public.slow()")
    file = tmp_path / "app.py"
    file.write_text(APP.format(seconds=0))
    victim = rota_worker(file)
    for number in range(3):
        add(db, f"nightly-{number}", due_in=0, max_runs=1)
    firing = (
        "select from pg_stat_activity where query like '%rota:fire %' and state = 'active' "
        "and datname = current_database() and pid <> pg_backend_pid()"
    )
    until_sync(lambda: db.execute(firing).rowcount)
    victim.kill()
    db.execute("drop trigger slow on rota.slots")
    rota_worker(file)

    until_sync(lambda: db.execute("select count(*) from rota.history").fetchone() == (3,), timeout=20)
    assert db.execute("select schedule, count(*) from rota.slots group by schedule order by 1").fetchall() == [
        (f"nightly-{number}", 1) for number in range(3)
    ]


@pytest.mark.parametrize("fires", [10, pytest.param(50, marks=pytest.mark.long)])
def test_wg1_one_run_per_schedule_and_fire_time_with_ticks_apart(
    rota_worker: Callable[..., WorkerProcess], db: Db, tmp_path: Path, fires: int
) -> None:
    """Two processes that began to look at different times, and an action that lasts."""
    file = tmp_path / "app.py"
    file.write_text(APP.format(seconds=0.1))
    rota_worker(file)
    add(db, "tick", every="250ms", due_in=0, overlap="allow")
    until_sync(lambda: len(runs(db, "tick")) > 2)
    rota_worker(file)

    until_sync(lambda: len(runs(db, "tick")) >= fires, timeout=60)
    slots = runs(db, "tick")
    (first,) = row(db, "tick", "anchor")
    assert slots == [first + n * timedelta(milliseconds=250) for n in range(len(slots))]


async def test_wg15_a_once_schedule_in_the_past_runs_as_its_policy_says(rota_app: TestRota, noop: Any, db: Db) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    await rota_app.schedules.put("late", task=noop, at=past)
    await rota_app.schedules.put("never", task=noop, at=past, misfire="skip")

    assert await rota_app.drain() == 1
    assert runs(db, "late") == [past]
    assert runs(db, "never") == []


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "* * *"}, "field"),
        ({"cron": "0 0 * * *", "tz": "Europe/Berlim"}, "Europe/Berlin"),
        ({"every": "soon"}, "every"),
        ({"at": datetime(2026, 1, 1)}, "time zone"),
    ],
)
async def test_wg15_a_wrong_expression_is_refused_and_not_silently_disabled(
    rota_app: TestRota, noop: Any, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await rota_app.schedules.put("wrong", task=noop, **wrong)
    assert await rota_app.schedules.list() == []


async def test_wg15_a_time_zone_counts_across_the_change_of_its_clock(rota_app: TestRota, noop: Any) -> None:
    definition = rota_app.schedules.define(
        "nine", task=noop, cron="0 9 * * *", tz="Europe/Berlin", start_at=datetime(2027, 3, 27, tzinfo=UTC)
    )
    slots = await rota_app.schedules.preview(definition, 3)

    assert [slot.astimezone(UTC).isoformat() for slot in slots] == [
        "2027-03-27T08:00:00+00:00",
        "2027-03-28T07:00:00+00:00",
        "2027-03-29T07:00:00+00:00",
    ]
