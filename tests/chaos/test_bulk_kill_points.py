"""kill -9 at each named moment of a turn with a bulk: another worker goes on from there, each job is changed once, and when it is
undone all are as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.service.points import BULK_POINTS
from rota.testing import TestRota, WorkerProcess

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

APP = """
import os, signal, time
from rota import Rota
from rota.service.points import set_hook

app = Rota(lease="2s")
seen = 0

def strike(point):
    global seen
    if point != {point!r}:
        return
    seen += 1
    if seen == {turn}:
        os.kill(os.getpid(), {signal})
        if {signal} == signal.SIGKILL:
            time.sleep(30)

set_hook(strike)

@app.task(name="work")
async def work(n: int) -> None: ...
"""

JOBS = 2200  # five turns
STRIKES = [
    pytest.param(point, turn, "SIGKILL", marks=[] if (point, turn) == ("bulk.before_commit", 2) else [pytest.mark.long])
    for point in BULK_POINTS
    for turn in (1, 2, 3, 4, 5)
]
STOPS = [pytest.param(point, 2, "SIGTERM", marks=[pytest.mark.long]) for point in BULK_POINTS]


@pytest.mark.parametrize(("point", "turn", "signal"), [*STRIKES, *STOPS])
def test_a_worker_that_ends_at_this_point_leaves_the_rest_to_another(
    rota_app: TestRota,
    rota_worker: Callable[..., WorkerProcess],
    rota_database: str,
    tmp_path: Path,
    point: str,
    turn: int,
    signal: str,
) -> None:
    victims = tmp_path / "victims.py"
    victims.write_text(APP.format(point=point, turn=turn, signal=f"signal.{signal}"))
    heirs = tmp_path / "heirs.py"
    heirs.write_text(APP.format(point="none", turn=0, signal="signal.SIGKILL"))
    work = rota_app.task(name="work")(lambda n: None)
    rota_app.enqueue_many_sync([work.using(delay="1h").bind(n) for n in range(JOBS)])
    before = rows(rota_database)

    bulk = rota_app.bulk.start_sync("cancel", task="work")
    killed = rota_worker(victims, wait=False)
    code = killed.wait(30)
    after = rota_app.bulk.get_sync(bulk.id)
    rota_worker(heirs)
    told = rota_app.bulk.wait_sync(bulk.id, "30s")

    assert code == (-9 if signal == "SIGKILL" else 0)
    assert after.done < JOBS or point == "bulk.committed" or signal == "SIGTERM"
    assert (told.state, told.done, told.skipped, told.failed) == ("finished", JOBS, 0, 0)
    with psycopg.connect(rota_database) as db:
        assert db.execute("select count(*), count(distinct id) from rota.history").fetchone() == (JOBS, JOBS)
        assert db.execute("select count(*) from rota.jobs").fetchone() == (0,)
        assert db.execute("select outcome, count(*) from rota.bulk_jobs group by 1").fetchall() == [("done", JOBS)]

    rota_app.bulk.undo_sync(bulk.id)
    back = rota_app.bulk.wait_sync(bulk.id, "30s")

    assert (back.state, back.undone, back.kept) == ("undone", JOBS, 0)
    assert rows(rota_database) == before


def rows(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as db:
        return db.execute("select to_jsonb(job) from rota.jobs as job order by id").fetchall()
