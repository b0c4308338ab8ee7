"""A worker process and its signals, from its first moment to its last: in order, and within its deadline whatever it runs."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.testing import TcpProxy, TestRota, WorkerProcess, until_sync

StartWorker = Callable[..., WorkerProcess]

APP = """
import asyncio, ctypes, threading, time
from rota import Rota

app = Rota()

@app.task(name="nap")
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)

@app.task(name="block")
async def block(seconds: float) -> None:
    time.sleep(seconds)

@app.task(name="then_block")
async def then_block(seconds: float) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        time.sleep(seconds)

@app.task(name="then_hold_all")
async def then_hold_all(seconds: float) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        ctypes.PyDLL(None).sleep(int(seconds))  # with the interpreter's lock: no other thread runs

@app.task(name="leave_a_thread")
async def leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=[3600]).start()
"""


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    for name in ("nap", "block", "then_block", "then_hold_all"):
        rota_app.task(name=name)(_sleeping)
    rota_app.task(name="leave_a_thread")(_nothing)
    return rota_app


def _sleeping(seconds: float) -> None:
    raise AssertionError("runs in the worker process")


def _nothing() -> None:
    raise AssertionError("runs in the worker process")


def running(app: TestRota, count: int = 1) -> None:
    until_sync(lambda: len(app.jobs.list_sync(state="running")) == count, what=f"{count} running")


def handed_back(app: TestRota, job: int) -> bool:
    now = app.jobs.get_sync(job)
    return (now.state, now.attempt, now.losses) == ("queued", 0, 0)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
def test_it_says_that_it_stops_what_it_hands_back_and_how_long_it_took(
    app: TestRota, rota_worker: StartWorker, number: signal.Signals
) -> None:
    worker = rota_worker(APP)
    job = app.tasks["nap"].enqueue_sync(3600)
    running(app)

    worker.signal(number)
    worker.wait_for_output(f"stopping ({number.name})")
    worker.signal(number)
    assert worker.wait(20) == 0  # its grace would be half a minute

    assert handed_back(app, job.id)
    said = worker.output()
    order = [
        f"stopping ({number.name})",
        "stopping at once",
        "drained: 0 finished, 1 handed back",
        "left (",
        "stopped in order",
    ]
    assert sorted(order, key=said.index) == order


@pytest.mark.one_server
def test_sigquit_shows_where_all_threads_are_and_everything_goes_on(app: TestRota, rota_worker: StartWorker) -> None:
    worker = rota_worker(APP)

    worker.signal(signal.SIGQUIT)
    worker.wait_for_output("most recent call first")

    app.tasks["nap"].enqueue_sync(0).wait_sync(20)
    assert "control.py" in worker.output()
    worker.terminate()
    assert worker.wait(10) == 0


@pytest.mark.long
@pytest.mark.one_server
def test_a_signal_is_taken_in_while_the_loop_is_blocked(app: TestRota, rota_worker: StartWorker) -> None:
    """The hard limit counts from the signal on, and not from when the loop has time for it."""
    worker = rota_worker(APP, args=["--grace", "0"])
    app.tasks["block"].enqueue_sync(3600)
    running(app)

    asked = time.monotonic()
    worker.terminate()

    assert worker.wait(15) == 1
    assert 4 < time.monotonic() - asked < 15
    assert "has not ended by itself" in worker.output()
    assert "in block" in worker.output()  # where the culprit is


@pytest.mark.long
@pytest.mark.one_server
@pytest.mark.parametrize(("name", "said"), [("then_block", "has not ended by itself"), ("then_hold_all", "Timeout")])
def test_a_body_that_lets_nothing_else_run_is_gone_at_the_hard_limit_and_its_job_is_taken_over(
    app: TestRota, rota_worker: StartWorker, name: str, said: str
) -> None:
    worker = rota_worker(APP, args=["--grace", "0"])
    job = app.tasks[name].enqueue_sync(3600)
    running(app)

    asked = time.monotonic()
    worker.terminate()

    assert worker.wait(30) == 1
    assert time.monotonic() - asked < 15
    assert said in worker.output()
    rota_worker(APP)
    until_sync(lambda: app.jobs.get_sync(job.id).attempt == 2, what="a peer runs it")


@pytest.mark.long
@pytest.mark.one_server
def test_a_thread_of_someone_elses_does_not_keep_a_process_that_has_stopped(
    app: TestRota, rota_worker: StartWorker
) -> None:
    worker = rota_worker(APP)
    app.tasks["leave_a_thread"].enqueue_sync().wait_sync(20)

    worker.terminate()

    assert worker.wait(15) == 1
    assert "stopped in order" in worker.output()
    assert "has not ended by itself" in worker.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_while_the_app_is_imported_ends_it_within_a_second(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path)!r}, 'here').touch()\ntime.sleep(60)"
    )
    with WorkerProcess(tmp_path / "slow.py") as worker:
        until_sync((tmp_path / "here").exists, timeout=20, what="it is imported")

        _end(worker, number)
        assert worker.output() == ""


@pytest.mark.one_server
def test_a_refused_database_is_waited_for_and_a_signal_ends_the_wait_within_a_second() -> None:
    with WorkerProcess(APP, dsn="postgresql://nobody@127.0.0.1:1/nowhere") as worker:
        worker.wait_for_output("waiting for the database")

        _end(worker)
        assert took_to_stop(worker) < 3


@pytest.mark.long
@pytest.mark.one_server
def test_a_database_that_says_nothing_does_not_hold_up_the_end_either() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/nothing"
        with WorkerProcess(APP, dsn=address) as worker:
            server.settimeout(20)
            taken, _ = server.accept()

            with taken:
                _end(worker)
                assert took_to_stop(worker) < 3


def took_to_stop(worker: WorkerProcess) -> float:
    said = re.search(r"stopped in order within ([\d.]+) s", worker.output())
    assert said
    return float(said[1])


def _end(worker: WorkerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """A second is what it may take; a busy machine has more, though less than whatever it would wait for."""
    worker.signal(number)
    assert worker.wait(20) == 0


@pytest.mark.long
@pytest.mark.one_server
@pytest.mark.direct("what is cut off is the way to the server")
@pytest.mark.parametrize("how", ["refused", "silent"])
def test_a_database_that_is_away_at_the_stop_does_not_hold_it_up_beyond_its_deadline(
    app: TestRota, rota_worker: StartWorker, rota_database: str, how: str
) -> None:
    """What was begun could not be handed back: that is told, the exit code says so, and a peer rescues it later."""
    module = APP.replace("Rota()", 'Rota(lease="1.5s")')
    with contextlib.ExitStack() as network:
        proxy = network.enter_context(TcpProxy(rota_database))
        worker = rota_worker(module, dsn=proxy.dsn(rota_database), args=["--grace", "0.5"])
        job = app.tasks["nap"].enqueue_sync(3600)
        running(app)
        if how == "silent":
            proxy.blackhole()
        else:
            network.close()

        asked = time.monotonic()
        worker.terminate()
        assert worker.wait(30) == 1

        assert time.monotonic() - asked < 0.5 + 5 + 5
        assert "1 could not be written in time and are left to rescue" in worker.output()
    rota_worker(module)
    until_sync(lambda: app.jobs.get_sync(job.id).attempt == 2, timeout=30, what="it was rescued")
