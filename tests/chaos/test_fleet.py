"""Several worker processes under one that watches them: replaced when they die, stopped together, and none outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.chaos.faults import StartWorker, count
from tests.commands import is_running
from tests.systemd import Systemd

from rota.runtime.fleet import Fleet
from rota.runtime.limit import GONE_SECONDS
from rota.runtime.supervisor import SupervisedWorker
from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.one_server]

APP = """
import asyncio, ctypes, os, time
from pathlib import Path
from rota import Rota, current_job

app = Rota()

@app.task(name="hold")
async def hold(gate: str) -> int:
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return os.getpid()

@app.task(name="hold_all")
def hold_all(seconds: float) -> None:
    ctypes.PyDLL(None).sleep(int(seconds))
"""


LINES = ("pipe:", "socket:")  # what asyncio takes for one depends on the version of Python


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    rota_app.task(name="hold")(lambda gate: 0)
    rota_app.task(name="hold_all")(lambda seconds: None)
    return rota_app


@pytest.fixture
def admin(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def fleets(rota_worker: StartWorker) -> Iterator[Any]:
    """Starts `rota worker --processes N` and returns when all of them work; none of them is left at the end."""
    pids: set[int] = set()

    def start(size: int, *arguments: str, module: str = APP) -> WorkerProcess:
        fleet = rota_worker(module, args=["--processes", str(size), *arguments])
        until_sync(lambda: fleet.output().count("working on") >= size, what="all of them work", timeout=40)
        pids.update(children(fleet))
        return fleet

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    with contextlib.closing(Systemd(tmp_path)) as systemd:
        monkeypatch.setenv("NOTIFY_SOCKET", systemd.path)
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        yield systemd


# The second of them is held up in its start.
ONE_BEFORE_THE_OTHER = """
import sys

while "2     " in sys.argv and not Path({gate!r}).exists():
    time.sleep(0.05)
"""


def test_systemd_hears_from_the_one_that_watches_that_all_are_ready_that_it_lives_and_that_it_stops(
    app: TestRota, rota_worker: StartWorker, systemd: Systemd, tmp_path: Path
) -> None:
    held_up = ONE_BEFORE_THE_OTHER.format(gate=str(tmp_path / "start"))
    fleet = rota_worker(APP + held_up, args=["--processes", "2"], wait=False)
    systemd.wait_for("STATUS=1 of 2 processes are ready")
    assert "READY=1" not in systemd.heard

    (tmp_path / "start").touch()
    systemd.wait_for("READY=1")
    job = app.tasks["hold"].enqueue_sync(str(tmp_path / "gate"))
    running(app, 1)
    fleet.terminate()
    systemd.wait_for("STOPPING=1")
    systemd.heard.clear()
    systemd.wait_for("WATCHDOG=1")  # it is told while they drain
    assert fleet.returncode is None
    (tmp_path / "gate").touch()

    assert fleet.wait(20) == 0
    assert job.wait_sync(5)
    assert "STATUS=ready" not in systemd.heard  # as one of them would tell of itself


@pytest.mark.long
def test_one_that_gives_no_sign_of_life_is_replaced_where_systemd_wants_to_see_them(
    fleets: Any, systemd: Systemd
) -> None:
    fleet = fleets(2)
    systemd.wait_for("READY=1")
    frozen = children(fleet)[0]

    os.kill(frozen, signal.SIGSTOP)

    fleet.wait_for_output(f"(pid {frozen}) has given no sign of life")
    until_sync(lambda: fleet.output().count("working on") == 3, what="it is replaced", timeout=30)
    systemd.heard.clear()
    systemd.wait_for("WATCHDOG=1")


def children(fleet: WorkerProcess) -> list[int]:
    """Those that it said it started and that still run, in the order of their numbers."""
    started = re.findall(r"started process (\d+) \(pid (\d+)\)", fleet.output())
    return [int(pid) for _, pid in sorted(started) if is_running(int(pid))]


def holder(app: TestRota, job: int) -> int | None:
    """The process that runs it."""
    member = app.jobs.get_sync(job).member
    return next((each.pid for each in app.members_sync() if each.id == member), None)


def running(app: TestRota, number: int) -> None:
    until_sync(lambda: len(app.jobs.list_sync(state="running")) == number, what=f"{number} running")


def test_one_that_is_killed_is_replaced_its_job_taken_over_once_and_its_neighbours_untouched(
    app: TestRota, fleets: Any, tmp_path: Path
) -> None:
    """As the kernel does when memory runs out."""
    fleet = fleets(2, "--concurrency", "1")
    jobs = [app.tasks["hold"].enqueue_sync(str(tmp_path / "gate")) for _ in range(2)]
    running(app, 2)
    first, second = (holder(app, job.id) for job in jobs)
    assert first is not None

    os.kill(first, signal.SIGKILL)
    fleet.wait_for_output(f"(pid {first}) ended")
    fleet.wait_for_output("The next is started in 1 s")
    until_sync(lambda: app.jobs.get_sync(jobs[0].id).attempt == 2, what="it is taken over")
    (tmp_path / "gate").touch()

    results = [job.wait_sync(20) for job in jobs]
    assert (results[1], results[0] not in (first, second)) == (second, True)
    assert [(job.refresh_sync().attempt, job.refresh_sync().losses) for job in jobs] == [(2, 1), (1, 0)]
    assert [member.end_reason for member in app.members_sync(ended=True) if member.pid == first] == ["suspected"]
    assert len(children(fleet)) == 2
    fleet.terminate()
    assert fleet.wait(20) == 0


@pytest.mark.long
def test_what_a_dead_one_held_is_free_before_anyone_could_have_suspected_it(
    fleets: Any, admin: psycopg.Connection[Any]
) -> None:
    fleet = fleets(2)
    dead, frozen = children(fleet)
    os.kill(frozen, signal.SIGSTOP)

    os.kill(dead, signal.SIGKILL)
    until_sync(lambda: fleet.output().count("working on") == 3, what="it is replaced", timeout=30)
    os.kill(frozen, signal.SIGCONT)

    ended_before_the_next_began = (
        "select ended_at < (select max(started_at) from rota.members) from rota.members where pid = %s"
    )
    assert admin.execute(ended_before_the_next_began, [dead]).fetchall() == [(True,)]


@pytest.mark.long
async def test_a_stop_during_a_start_reaches_the_one_that_starts(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import time\ntime.sleep(3600)\n")
    fleet: Fleet

    async def start(number: int) -> SupervisedWorker:
        child = await SupervisedWorker.start(str(tmp_path / "app.py"))
        fleet.stop()
        return child

    fleet = Fleet(1, start, grace=60)

    assert await asyncio.wait_for(fleet.run(), 20) == 0


@pytest.mark.long
def test_a_signal_goes_on_to_all_and_running_jobs_finish(app: TestRota, fleets: Any, tmp_path: Path) -> None:
    fleet = fleets(2, "--concurrency", "1")
    pids = children(fleet)
    jobs = [app.tasks["hold"].enqueue_sync(str(tmp_path / "gate")) for _ in range(2)]
    running(app, 2)

    fleet.terminate()
    until_sync(lambda: fleet.output().count("stopping (SIGTERM): nothing new") == 2, what="both are told")
    (tmp_path / "gate").touch()

    assert fleet.wait(20) == 0
    assert {job.wait_sync(5) for job in jobs} == set(pids)
    assert [member.end_reason for member in app.members_sync(ended=True)] == ["left", "left"]
    assert not any(map(is_running, pids))
    assert {"1", "2", "fleet"} == {line.split()[1] for line in fleet.output().splitlines()}  # who says what


@pytest.mark.long
def test_a_second_signal_has_them_hand_back_at_once(app: TestRota, fleets: Any, tmp_path: Path) -> None:
    fleet = fleets(2, "--concurrency", "1")
    jobs = [app.tasks["hold"].enqueue_sync(str(tmp_path / "gate")) for _ in range(2)]
    running(app, 2)

    fleet.signal(signal.SIGINT)
    until_sync(lambda: fleet.output().count("stopping (SIGTERM): nothing new") == 2, what="both are told")
    asked = time.monotonic()
    fleet.signal(signal.SIGINT)

    assert fleet.wait(20) == 0
    assert time.monotonic() - asked < 10
    assert [(job.refresh_sync().state, job.refresh_sync().attempt) for job in jobs] == [("queued", 0)] * 2


@pytest.mark.long
def test_who_tells_the_whole_group_to_end_has_told_it_once(app: TestRota, fleets: Any, tmp_path: Path) -> None:
    fleet, gate = fleets(2), tmp_path / "gate"
    jobs = [app.tasks["hold"].enqueue_sync(str(gate)) for _ in range(4)]
    until_sync(lambda: len(app.jobs.list_sync(state="running")) == 4, what="all of them run")

    for pid in children(fleet):  # as systemd does, before the one that watches can tell them
        os.kill(pid, signal.SIGTERM)
    until_sync(lambda: fleet.output().count("stopping (SIGTERM)") == 2, what="both have heard it")
    fleet.terminate()
    until_sync(lambda: "2 process(es) are asked to end" in fleet.output(), what="it tells them again")
    gate.touch()

    assert fleet.wait(20) == 0
    assert [job.refresh_sync().state for job in jobs] == ["succeeded"] * 4


@pytest.mark.long
def test_two_signals_at_the_same_moment_are_two(app: TestRota, fleets: Any, tmp_path: Path) -> None:
    """Two SIGTERMs that a process has not yet taken in are one to it: it would wait, and be killed for that."""
    fleet = fleets(2, "--concurrency", "1")
    jobs = [app.tasks["hold"].enqueue_sync(str(tmp_path / "gate")) for _ in range(2)]
    running(app, 2)

    for pid in children(fleet):
        os.kill(pid, signal.SIGSTOP)
    fleet.signal(signal.SIGTERM)
    fleet.signal(signal.SIGINT)
    fleet.wait_for_output("stopping at once")
    for pid in children(fleet):
        os.kill(pid, signal.SIGCONT)

    assert fleet.wait(20) == 0
    assert [(job.refresh_sync().state, job.refresh_sync().attempt) for job in jobs] == [("queued", 0)] * 2


@pytest.mark.long
def test_one_that_cannot_hear_a_signal_is_killed_and_told_of(app: TestRota, fleets: Any, tmp_path: Path) -> None:
    """While C code holds the interpreter, nothing in the process can act: it takes another one."""
    fleet = fleets(2, "--grace", "0.5", "--concurrency", "1")
    job = app.tasks["hold_all"].enqueue_sync(3600)
    running(app, 1)
    deaf = holder(app, job.id)

    asked = time.monotonic()
    fleet.terminate()

    assert fleet.wait(30) == 1
    assert time.monotonic() - asked < 0.5 + GONE_SECONDS + 7
    assert re.search(rf"not in order: process . \(pid {deaf}\) ended after .* s: killed by SIGKILL", fleet.output())
    # its membership was ended, and what it held is free
    assert "suspected" in [member.end_reason for member in app.members_sync(ended=True) if member.pid == deaf]


@pytest.mark.parametrize(
    "line_is_held", [pytest.param(False, marks=pytest.mark.long), True], ids=["by the line", "by the parent's pid"]
)
def test_none_claims_anything_two_seconds_after_the_one_that_watches_was_killed(
    app: TestRota, fleets: Any, tmp_path: Path, line_is_held: bool
) -> None:
    fleet = fleets(2, "--concurrency", "1")
    pids = children(fleet)
    job = app.tasks["hold"].enqueue_sync(str(tmp_path / "gate"))
    running(app, 1)
    with contextlib.ExitStack() as held:
        if line_is_held:
            for fd in lines_of(fleet.pid):
                held.callback(os.close, fd)

        fleet.kill()
        until_sync(lambda: fleet.output().count("stopping (SIGTERM): nothing new") == 2, what="both stop")
        late = app.tasks["hold"].enqueue_sync(str(tmp_path / "gate"))
        (tmp_path / "gate").touch()

        assert job.wait_sync(10) in pids  # what ran may finish
        until_sync(lambda: not any(map(is_running, pids)), what="they are gone")
    assert (late.refresh_sync().state, late.refresh_sync().attempt) == ("queued", 0)


def lines_of(pid: int) -> list[int]:
    """The ends of the lines to its children, taken over from a process: as someone would have who inherited them."""
    process = os.pidfd_open(pid)
    try:
        numbers = [int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir() if str(fd.readlink()).startswith(LINES)]
        return [fd for number in numbers if (fd := _taken(process, number)) is not None]
    finally:
        os.close(process)


def _taken(process: int, number: int) -> int | None:
    fd = ctypes.CDLL(None, use_errno=True).syscall(438, process, number, 0)  # pidfd_getfd
    return fd if fd >= 0 else None


def opened(pid: int) -> set[str]:
    """What its descriptors lead to; those that it closes meanwhile are left out."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(fd))
    return found


@pytest.mark.long
def test_no_line_is_inherited_by_a_sibling(fleets: Any) -> None:
    fleet = fleets(2)
    first, second = ({each for each in opened(pid) if each.startswith(LINES)} for pid in children(fleet))

    assert first
    assert second
    assert not first & second


@pytest.mark.long
async def test_a_socket_is_handed_down_where_it_is_asked_for_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import time\ntime.sleep(3600)\n")
    with socket.create_server(("127.0.0.1", 0)) as given, socket.create_server(("127.0.0.1", 0)) as kept:
        command = ["worker", str(tmp_path / "app.py")]
        child = await SupervisedWorker.launch(command, grace=1, pass_fds=[given.fileno()])
        has = opened(child.pid)
        ours = [os.readlink(f"/proc/self/fd/{each.fileno()}") for each in (given, kept)]
        child.kill()
        await child.wait()

    assert [each in has for each in ours] == [True, False]


@pytest.mark.long
def test_a_start_that_was_orphaned_before_it_knew_what_to_do_ends(tmp_path: Path) -> None:
    """Without what is private it would work on whatever database the environment names."""
    ended = subprocess.run(
        [sys.executable, "-m", "rota.cli.child", "worker", "gone.py"],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert ended.returncode == 1
    assert "is gone, and had not said what to do" in ended.stderr


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        pytest.param(
            "from rota import Rota\napp = [Rota(), Rota()]\n",
            2,
            "its app, its address or an option is wrong",
            marks=pytest.mark.long,
        ),
        pytest.param(APP.replace("Rota()", 'Rota(schema="elsewhere")'), 5, "rota migrate", marks=pytest.mark.long),
    ],
    ids=["no app", "no tables"],
)
def test_what_a_restart_cannot_mend_ends_all_with_the_code_that_says_so(
    rota_database: str, module: str, code: int, said: str
) -> None:
    with WorkerProcess(module, dsn=rota_database, args=["--processes", "2"]) as fleet:
        assert fleet.wait(30) == code

        assert "Another start would not help" in fleet.output()
        assert said in fleet.output()
        assert "giving up" in fleet.output()


async def test_those_that_never_come_to_anything_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    started = []

    async def broken(number: int) -> SupervisedWorker:
        started.append(number)
        raise BlockingIOError("Resource temporarily unavailable")

    code = await asyncio.wait_for(Fleet(2, broken, grace=1, first_pause=0.01).run(), 30)

    assert code == 1
    assert sorted(started) == [1] * 5 + [2] * 5
    assert "None of them has come to anything in 5 starts; giving up" in caplog.text


@pytest.mark.long
def test_a_fleet_that_drains_ends_when_nothing_is_left(
    app: TestRota, rota_worker: StartWorker, tmp_path: Path, admin: psycopg.Connection[Any]
) -> None:
    (tmp_path / "gate").touch()
    app.enqueue_many_sync([app.tasks["hold"].bind(str(tmp_path / "gate")) for _ in range(50)])

    fleet = rota_worker(APP, args=["--processes", "2", "--drain"], wait=False)

    assert fleet.wait(30) == 0
    assert count(admin, "history") == 50
