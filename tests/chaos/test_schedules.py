"""Schedules, with processes that die, freeze, or believe it is another hour: each slot has one run, and none is early."""

from __future__ import annotations

import math
import os
import signal
import statistics
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from tests.chaos.contenders import LONG
from tests.flows.test_clocks import SKEW
from tests.schedules.rows import Db, add, now, row, runs

from rota.testing import WorkerProcess, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

APP = """
from rota import Rota

app = Rota({lease})

@app.task(name="noop")
async def noop() -> None: ...
"""
LEADER = """
    select member.pid
    from rota.leases as lease
    join rota.members as member on member.id = lease.member
    where lease.name = 'rota.scheduler'
      and member.ended_at is null
"""


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def written(folder: Path, lease: str = "") -> Path:
    file = folder / "app.py"
    file.write_text(APP.format(lease=lease))
    return file


def leader(db: Db) -> int | None:
    found = db.execute(LEADER).fetchone()
    return found[0] if found else None


@pytest.mark.slow
@pytest.mark.direct("jobs are found by polling, later than this allows")
@pytest.mark.parametrize(
    ("seconds", "kill_every"), [(7, 3), pytest.param(60, 7, marks=[pytest.mark.long, pytest.mark.timeout(150)])]
)
def test_each_second_has_one_run_while_leaders_are_killed_and_a_clock_is_off(
    rota_worker: Callable[..., WorkerProcess], db: Db, tmp_path: Path, seconds: int, kill_every: int
) -> None:
    file = written(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(SKEW)
    skewed = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "SKEW_HOURS": "1"}
    workers = {worker.pid: worker for worker in [rota_worker(file, env=skewed), *(rota_worker(file) for _ in range(3))]}
    add(db, "tick", every="1s", due_in=2, overlap="allow")  # a run that died with its process holds up no other
    (first,) = row(db, "tick", "anchor")
    failovers: list[tuple[datetime, datetime]] = []

    for kill_at in range(kill_every, seconds - 2, kill_every):
        # between two slots: a run whose own process is killed begins again elsewhere, and would count as late
        until_sync(lambda at=first + timedelta(seconds=kill_at + 0.5): now(db) > at, timeout=kill_every + 20)  # type: ignore[misc]
        until_sync(lambda: leader(db) in workers)
        killed = leader(db)
        assert killed is not None
        began = now(db)
        workers.pop(killed).kill()
        replacement = rota_worker(file)
        workers[replacement.pid] = replacement
        until_sync(lambda: leader(db) in workers)
        failovers.append(
            (began - timedelta(seconds=0.5), now(db) + timedelta(seconds=1.5))
        )  # and what was late is made up for
    last = first + timedelta(seconds=seconds - 1)
    until_sync(lambda: runs(db, "tick")[-1:] >= [last], timeout=seconds + 20)

    slots = runs(db, "tick")
    assert slots[:seconds] == [first + timedelta(seconds=n) for n in range(seconds)]
    started = db.execute(
        "select slot_at, started_at from rota.history where schedule = 'tick' and slot_at <= %s order by slot_at",
        [last],
    )
    late = {slot: at - slot for slot, at in started.fetchall()}
    assert min(late.values()) >= timedelta(0)
    assert len(failovers) == len(range(kill_every, seconds - 2, kill_every))
    calm = sorted(by.total_seconds() for slot, by in late.items() if not any(a <= slot <= b for a, b in failovers))
    print(
        f"{len(slots)} slots, {len(failovers)} failovers; {len(calm)} in calm: median {statistics.median(calm) * 1000:.0f} ms, "
    )
    print(f"longest {max(calm) * 1000:.0f} ms late; in failovers at most {max(late.values())}")
    # beside other tests, a half of them tells more than the worst
    assert statistics.median(calm) < (0.1 if LONG else 0.3)
    if LONG:
        assert calm[math.ceil(0.99 * len(calm)) - 1] < 0.1


@pytest.mark.long
def test_a_frozen_leader_is_followed_and_adds_nothing_when_it_wakes(
    rota_worker: Callable[..., WorkerProcess], db: Db, tmp_path: Path
) -> None:
    file = written(tmp_path, 'lease="2s"')
    for _ in range(2):
        rota_worker(file)
    add(db, "tick", every="200ms", due_in=0, overlap="allow")  # a run may be frozen too
    until_sync(lambda: len(runs(db, "tick")) > 3)
    frozen = leader(db)
    assert frozen is not None

    os.kill(frozen, signal.SIGSTOP)
    since = now(db)
    until_sync(lambda: leader(db) not in (None, frozen), timeout=10)
    followed = now(db) - since
    until_sync(lambda: runs(db, "tick")[-1] > since + followed, timeout=10)
    os.kill(frozen, signal.SIGCONT)
    count = len(runs(db, "tick"))
    until_sync(lambda: len(runs(db, "tick")) > count + 10)

    assert followed < timedelta(seconds=3)
    slots = runs(db, "tick")
    assert slots == sorted(set(slots))
    (first,) = row(db, "tick", "anchor")
    assert slots == [first + n * timedelta(milliseconds=200) for n in range(len(slots))]
