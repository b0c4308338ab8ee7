"""kill -9 at each named moment of a chain's life: every join comes exactly once, with all results, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota import group
from rota.service.points import POINTS
from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.one_server]

APP = """
import os, signal, time
from rota import Progress, Rota, current_job
from rota.service.points import set_hook

app = Rota(lease="2s")
MARK = {mark!r}
run = 0

def strike(point):
    # so many bodies have run by then: the first are members of groups, the later ones links and joins
    global run
    run += point == "run.after"
    if point != {point!r} or run < {after}:
        return
    try:
        os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)

set_hook(strike)

@app.task(name="part")
async def part(n: int) -> int:
    return n

@app.task(name="exact")
async def exact(n: int) -> int:
    async with current_job().transaction() as tx:
        await tx.execute("insert into public.ledger values (%s)", [n])
        tx.result = n + 1
    return 0

@app.task(name="total")
async def total(parts: list[int]) -> int:
    return sum(parts)

@app.task(name="report")
async def report(progress: Progress) -> int:
    return progress.succeeded
"""


@pytest.fixture
def ledger(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table public.ledger (n int)")
        yield db


MOMENTS = ("close.before", "close.after", *POINTS)
# around the look itself by default, and every other moment in the long form
STRIKES = [
    pytest.param(point, after, marks=[] if point in MOMENTS[:2] and after == 4 else [pytest.mark.long])
    for point in MOMENTS
    for after in (1, 4, 8)
]


@pytest.mark.parametrize(("point", "after"), STRIKES)
def test_a_worker_killed_at_this_point_loses_no_join_and_doubles_none(
    rota_app: TestRota,
    rota_worker: Callable[..., WorkerProcess],
    ledger: psycopg.Connection[Any],
    tmp_path: Path,
    point: str,
    after: int,
) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.format(mark=str(tmp_path / "struck"), point=point, after=after))
    part, exact = (rota_app.task(name=name)(lambda n: None) for name in ("part", "exact"))
    total = rota_app.task(name="total")(lambda parts: None)
    report = rota_app.task(name="report")(lambda progress: None)
    chains = [part.bind(n).then(exact) for n in range(3)]
    flow = group(chains).then(total).then(group([exact, exact])).then(total).enqueue_sync()
    batch = rota_app.batches.start_sync([part.bind(n) for n in range(4)], then=report)

    victim = rota_worker(file, wait=False, concurrency=2)
    assert victim.wait(40) == -9
    rota_worker(file)

    assert flow.wait_sync(40) == 14
    until_sync(lambda: ledger.execute("select count(*) from rota.jobs").fetchone() == (0,), timeout=40)
    assert batch.progress_sync().succeeded == 4
    settled = ledger.execute("select id, count(*) from rota.history group by id").fetchall()
    assert {count for _, count in settled} == {1}
    assert len(settled) == len(flow.jobs) + 5
    joins = ledger.execute(
        "select task, result from rota.history where task in ('total', 'report') order by 1, 2"
    ).fetchall()
    assert joins == [("report", 4), ("total", 6), ("total", 14)]
    # what a body does with its success happens once
    assert [n for (n,) in ledger.execute("select n from public.ledger order by n")] == [0, 1, 2, 6, 6]
    assert ledger.execute("select count(*) from rota.closings").fetchone() == (0,)
