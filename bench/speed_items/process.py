"""Item 13: what a worker process takes of memory, and how soon it begins."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from field import progress, wait_until
from speed_items.flat import WAITING
from speed_items.table import Row, Run

STARTS = 5
APP = """
import os, time
from pathlib import Path
from rota import Rota

app = Rota()

@app.task(name="noop")
async def noop(i: int) -> None:
    Path(os.environ["BENCH_BEGAN"]).write_text(str(time.time()))
"""


def process(run: Run) -> list[Row]:
    growth, megabytes = _growth(run)
    seconds = [_until_first_job(run) for _ in range(1 + STARTS)][1:]  # the first one finds nothing in any cache
    run.figures["13"] = {"megabytes": megabytes, "seconds": seconds}
    return [
        Row(
            13,
            "memory at the end: times that after a fifth",
            growth,
            1.03,
            at_most=True,
            note=f"{megabytes[-1]:.0f} MB",
        ),
        Row(13, "`rota worker` to its first job, warm", statistics.median(seconds), 1.0, at_most=True, unit=" s"),
    ]


def _growth(run: Run) -> tuple[float, list[float]]:
    jobs = run.size(1_000_000, 200_000)
    megabytes = []
    with run.field.place(run.rota) as place:
        place.sql(WAITING.format(queue="'default'", due_at="now()", rows=jobs))
        place.sql("vacuum analyze")
        with place.workers() as (worker,):
            for tenth in range(1, 11):
                wait_until([worker], jobs * tenth // 10, within=240)
                megabytes.append(_resident(worker.process.pid))
            run.say(f"{progress([worker])[0]:,} jobs; MB after each tenth: {[round(each, 1) for each in megabytes]}")
    return max(megabytes[-3:]) / megabytes[1], megabytes


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def _until_first_job(run: Run) -> float:
    app, began = run.field.folder / "first_job.py", run.field.folder / "began"
    app.write_text(APP)
    began.unlink(missing_ok=True)
    with run.field.place(run.rota) as place:
        place.enqueue(mode="one", jobs=1)
        command = [run.rota.command[0], "-m", "rota", "worker", str(app), "--dsn", place.dsn]
        started = time.time()
        worker = subprocess.Popen(
            command,
            env={**os.environ, "BENCH_BEGAN": str(began)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (began.exists() and began.read_text()):
                time.sleep(0.01)
                if worker.poll() is not None or time.time() - started > 30:
                    raise RuntimeError("`rota worker` did not begin its job")
        finally:
            worker.terminate()
            worker.wait(30)
        return float(began.read_text()) - started


ITEMS: dict[int, Any] = {13: process}
