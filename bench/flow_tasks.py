"""The tasks of `flow.py`, for the worker processes that it starts: each body tells when it began and ended.

The times are of the clock that all processes of a machine share. With FLOW_CLAIMS set, each process writes to that folder how
long its claims took and how much memory it had.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from rota import Limit, Rota
from rota.jobs.claimer import Claimer

__all__ = ["app", "make_app"]

RATE = 100


def make_app(dsn: str | None = None, schema: str | None = None) -> Rota:
    app = Rota(dsn, schema=schema)

    async def body(k: int, pause: float = 0) -> list[float]:
        began = time.monotonic()
        if pause:
            await asyncio.sleep(pause)
        return [began, time.monotonic()]

    for name, limit in {
        "plain": None,
        "one_by_one": Limit(running=1, by="k"),
        "in_turns": Limit(by="k"),
        "rated": Limit(rate=f"{RATE}/1s"),
        "rated_by_key": Limit(rate=f"{RATE}/1s", by="k"),
    }.items():
        app.task(name=name, limit=limit)(body)
    return app


def watch_claims(folder: Path) -> None:
    plain, told = Claimer.claim, []

    async def claim(self: Claimer, *args: Any, **options: Any) -> Any:
        began = time.monotonic()
        jobs = await plain(self, *args, **options)
        told.append((began, time.monotonic() - began, len(jobs), sorted({job.queue for job in jobs})))
        return jobs

    def write() -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        (folder / f"{os.getpid()}.json").write_text(json.dumps({"claims": told, "peak": peak}))

    Claimer.claim = claim  # type: ignore[method-assign]
    atexit.register(write)


if os.environ.get("FLOW_CLAIMS"):
    watch_claims(Path(os.environ["FLOW_CLAIMS"]))
app = make_app()
