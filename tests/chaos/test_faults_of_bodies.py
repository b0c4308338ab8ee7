"""Bodies that harm their process: one that lets no other thread run, one that takes all the memory there is."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.chaos.faults import StartWorker, identities, now, outlived

from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

# A C function that is called with the interpreter's lock held stops every thread, as does a catastrophic regular expression.
APP = """
import asyncio, ctypes
from pathlib import Path
from rota import Rota, current_job

app = Rota(lease="1.5s")

def stop_all_threads(folder: str, until: str) -> str:
    Path(folder, f"begun-{current_job().attempt}").touch()
    if current_job().attempt == 1:
        ctypes.PyDLL(None).system(f"until test -e '{folder}/{until}'; do sleep 0.05; done".encode())
    return f"attempt {current_job().attempt}"

app.task(name="in a thread")(stop_all_threads)
app.task(name="in a process", executor="process")(stop_all_threads)

@app.task(name="swallow", executor="process")
def swallow() -> None:
    memory = []
    while True:
        memory.append(b"x" * 10_000_000)

@app.task(name="neighbour")
async def neighbour(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    file = tmp_path / "harmful.py"
    file.write_text(APP)
    return file


@pytest.fixture
def admin(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.mark.long
def test_a_body_that_stops_all_threads_past_the_lease_is_fenced_and_run_once_more(
    rota_app: TestRota, rota_worker: StartWorker, app_file: Path, tmp_path: Path
) -> None:
    workers = [rota_worker(app_file), rota_worker(app_file)]

    job = rota_app.task(name="in a thread")(lambda folder, until: "").enqueue_sync(str(tmp_path), until="begun-2")

    assert job.wait_sync(30) == "attempt 2"
    (silent,) = (worker for worker in workers if worker.pid == pid_of_the_ended(rota_app))
    silent.wait_for_output("a peer ended this process's lease")
    silent.wait_for_output(f"job {job.id} (in a thread): attempt 1 ")  # is void, or was told before that it would be
    settled = rota_app.jobs.get_sync(job.id)
    assert (settled.attempt, settled.losses, [error.kind for error in settled.errors]) == (2, 1, ["lost"])


def pid_of_the_ended(app: TestRota) -> int:
    (ended,) = (member for member in app.members_sync(ended=True) if member.end_reason == "expired")
    return ended.pid


@pytest.mark.long
def test_a_body_that_stops_all_threads_of_a_process_of_its_own_costs_no_lease(
    rota_app: TestRota,
    rota_worker: StartWorker,
    app_file: Path,
    tmp_path: Path,
    admin: psycopg.Connection[Any],
) -> None:
    rota_worker(app_file)
    job = rota_app.task(name="in a process")(lambda folder, until: "").enqueue_sync(str(tmp_path), until="enough")
    until_sync((tmp_path / "begun-1").exists, what="it runs")
    holder, since = rota_app.jobs.get_sync(job.id).member, now(admin)

    until_sync(lambda: outlived(admin, holder, since), what="a renewal when the lease would be over")
    (tmp_path / "enough").touch()

    assert job.wait_sync(30) == "attempt 1"
    assert identities(admin) == [None]


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group whose processes may have 200 MB together; the kernel kills one of them when they want more."""
    group = Path("/sys/fs/cgroup/memory", f"rota-test-{secrets.token_hex(4)}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"limiting memory needs a control group (version 1), and there is none to be had: {error}")
    (group / "memory.limit_in_bytes").write_text("200M")
    with contextlib.suppress(OSError):  # where the kernel counts it
        (group / "memory.memsw.limit_in_bytes").write_text("200M")
    yield group
    until_sync(lambda: not (group / "cgroup.procs").read_text(), what="its processes have ended")
    group.rmdir()


@pytest.mark.long
def test_a_child_that_is_killed_for_its_memory_takes_nobody_with_it(
    little_memory: Path, rota_app: TestRota, rota_worker: StartWorker, app_file: Path, tmp_path: Path
) -> None:
    worker = rota_worker(app_file)
    (little_memory / "cgroup.procs").write_text(str(worker.pid))
    beside = rota_app.task(name="neighbour")(lambda gate: None).enqueue_sync(str(tmp_path / "gate"))
    greedy = rota_app.task(name="swallow")(lambda: None).enqueue_sync()

    until_sync(lambda: rota_app.jobs.get_sync(greedy.id).state == "dead", timeout=60, what="the third loss buries it")
    (tmp_path / "gate").touch()

    beside.wait_sync(30)
    assert beside.refresh_sync().attempt == 1
    assert worker.returncode is None
    letter = rota_app.jobs.get_sync(greedy.id)
    assert [error.kind for error in letter.errors] == ["lost"] * 3
    assert "out of memory?" in letter.errors[-1].message
