"""SIGSTOP past the lease, then SIGCONT: the sleeper's late settle changes nothing and is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from rota.testing import TestRota, WorkerProcess, until

pytestmark = pytest.mark.chaos

APP = """
import os, time
from pathlib import Path
from rota import Rota, current_job

app = Rota(lease="2s")

@app.task(name="report")
def report(folder: str) -> str:
    # a body in a thread: nobody can cancel it, so it always comes to settle late
    Path(folder, f"begun-{current_job().attempt}").touch()
    while not Path(folder, f"go-{current_job().attempt}").exists():
        time.sleep(0.01)
    return f"attempt {current_job().attempt}"
"""


@pytest.mark.long
async def test_a_sleeper_past_its_lease_is_fenced_and_told(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    rota_app.task(name="report")(lambda folder: "")
    sleeper = rota_worker(APP)
    job = await rota_app.tasks["report"].enqueue(str(tmp_path))
    await until((tmp_path / "begun-1").exists, what="the first attempt runs")

    sleeper.pause()
    peer = rota_worker(APP)
    await until((tmp_path / "begun-2").exists, timeout=20, what="a peer runs it again")
    (tmp_path / "go-1").touch()
    sleeper.resume()
    sleeper.wait_for_output("a peer ended this process's lease")
    sleeper.wait_for_output(f"job {job.id} (report): attempt 1 ")  # its outcome was refused, or it was told before

    held = await job.refresh()
    assert (held.state, held.attempt, held.losses) == ("running", 2, 1)
    (tmp_path / "go-2").touch()
    assert await job.wait(10) == "attempt 2"
    with psycopg.connect(rota_app.database.dsn.conninfo) as connection:
        assert connection.execute("select count(*) from rota.history").fetchone() == (1,)

    again = await rota_app.tasks["report"].enqueue(str(tmp_path))
    (tmp_path / "go-1").touch()
    peer.terminate()
    assert peer.wait() == 0
    assert await again.wait(10) == "attempt 1"  # by the sleeper, under its new identity
    members = await rota_app.members(ended=True)
    assert sorted(m.end_reason or "live" for m in members) == ["expired", "left", "live"]
