"""Worker processes for tests: real ones, and none is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = pytest.mark.one_server

APP = """
import subprocess
from rota import Rota
app = Rota()

@app.task(name="leave_a_child")
def leave_a_child() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_works_pauses_resumes_and_stops_cleanly(rota_worker: Callable[..., WorkerProcess]) -> None:
    worker = rota_worker(APP, concurrency=3)
    worker.pause()
    paused = state(worker.pid)
    worker.resume()
    worker.terminate()

    assert paused == "T"
    assert worker.wait() == 0
    assert "3 at once" in worker.output()
    assert os.getsid(0) != worker.pid


def test_a_killed_worker_has_ended_when_kill_returns(rota_worker: Callable[..., WorkerProcess]) -> None:
    worker = rota_worker(APP, wait=False)

    worker.kill()

    assert worker.returncode == -signal.SIGKILL


@pytest.mark.long
def test_nothing_is_left_of_a_stopped_worker_and_its_children(rota_app: TestRota) -> None:
    @rota_app.task(name="leave_a_child")
    def leave_a_child() -> int:
        raise NotImplementedError

    job = leave_a_child.enqueue_sync()
    with WorkerProcess(APP, dsn=rota_app.database.dsn.conninfo) as worker:
        child = job.wait_sync(timeout=20)
        worker.pause()

    assert worker.returncode == -signal.SIGKILL
    until_sync(lambda: not is_running(child), what="the child is gone")


def test_a_worker_that_ends_early_says_why(rota_worker: Callable[..., WorkerProcess]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended with \d+ before.*holds no Rota"):
        rota_worker("x = 1\n")


@pytest.mark.long
def test_the_output_is_shown_when_a_block_fails(rota_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    worker = WorkerProcess("print('I was here')\n", dsn=rota_database)
    with pytest.raises(AssertionError), worker:
        worker.wait_for_output("I was there")

    assert "I was here" in capsys.readouterr().err
