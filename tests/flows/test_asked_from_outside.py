"""Someone asks a process from outside to drain, or to be quiet: as real processes do it, each of its kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands import Command
from tests.web.servers import SERVE, UVICORN, Server

from rota.leases.member_view import MemberView
from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = pytest.mark.one_server

StartWorker = Callable[..., WorkerProcess]

APP = """
import asyncio, os
from rota import Rota

app = Rota()

@app.task(name="nap")
async def nap(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()
"""


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> int:
        raise AssertionError("runs in another process")

    return rota_app


def workers(app: TestRota) -> list[MemberView]:
    return [each for each in app.members_sync(ended=True) if "tasks" in each.work]


def of_pid(app: TestRota, pid: int) -> MemberView:
    until_sync(lambda: any(each.pid == pid for each in workers(app)), 40, f"process {pid} is a member")
    return next(each for each in workers(app) if each.pid == pid)


def until_state(app: TestRota, member: MemberView, *states: str) -> MemberView:
    until_sync(lambda: of_pid(app, member.pid).state in states, 40, f"{member.name} is {' or '.join(states)}")
    return of_pid(app, member.pid)


def test_a_worker_that_is_drained_finishes_and_exits_with_0(app: TestRota, rota_worker: StartWorker) -> None:
    worker = rota_worker(APP)
    member = of_pid(app, worker.pid)
    job = app.tasks["nap"].enqueue_sync(1.0)
    until_sync(lambda: app.jobs.get_sync(job.id).state == "running", 20)

    app.members.drain_sync(member.name, by="ana")
    draining = until_state(app, member, "draining", "ended")

    assert worker.wait(20) == 0
    assert draining.draining_at is not None
    assert job.wait_sync(timeout=5) == worker.pid
    assert (of_pid(app, worker.pid).state, of_pid(app, worker.pid).end_reason) == ("ended", "left")
    assert member.work["drains"] == "exits"
    assert "stopping (drain, asked for by ana)" in worker.output()


def test_a_worker_that_ends_when_nothing_is_left_ends_with_0_when_it_is_to_be_quiet(
    app: TestRota, rota_database: str, tmp_path: Path
) -> None:
    (tmp_path / "some_app.py").write_text(APP)
    jobs = [app.tasks["nap"].enqueue_sync(1.0) for _ in range(2)]
    arguments = ("worker", "some_app.py", "--drain", "--concurrency", "1", "--dsn", rota_database)
    with Command(*arguments, folder=tmp_path) as command:
        until_sync(lambda: app.jobs.get_sync(jobs[0].id).state == "running", 40)
        app.members.quiet_sync(workers(app)[0].id, by="ana")
        code = command.wait(40)

    assert code == 0
    assert [app.jobs.get_sync(job.id).state for job in jobs] == ["succeeded", "queued"]
    assert workers(app)[0].end_reason == "left"


def test_one_of_several_processes_that_is_drained_is_replaced_and_the_others_work_on(
    app: TestRota, rota_database: str, tmp_path: Path
) -> None:
    (tmp_path / "some_app.py").write_text(APP)
    arguments = ("worker", "some_app.py", "--processes", "2", "--dsn", rota_database)
    with Command(*arguments, folder=tmp_path) as command:
        until_sync(lambda: len(workers(app)) == 2, 40, "two processes work")
        drained, other = workers(app)
        app.members.drain_sync(drained.id)
        until_state(app, drained, "ended")
        until_sync(lambda: len([each for each in workers(app) if each.state == "live"]) == 2, 40, "the next has begun")
        running = {each.pid for each in workers(app) if each.state == "live"}
        ended = of_pid(app, drained.pid)
        command.process.terminate()
        code = command.wait(40)

    assert code == 0
    assert drained.pid not in running
    assert other.pid in running
    assert ended.end_reason == "left"
    assert f"(pid {drained.pid}) ended after" in command.err
    assert "exit 0. The next is started" in command.err


@pytest.mark.parametrize(
    "command", [UVICORN, pytest.param(SERVE, marks=pytest.mark.long)], ids=["uvicorn", "rota serve"]
)
def test_a_web_process_that_is_drained_serves_on_without_working_until_it_may(
    app: TestRota, rota_database: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with Server(tmp_path, rota_database, *command) as server:
        server.wait_until_ready()
        until_sync(lambda: workers(app), 20, "its worker is there")
        (member,) = workers(app)
        server.says("leading")

        asked = app.members.drain_sync(member.id, by="ana")
        quiet = until_state(app, member, "quiet")
        job = app.tasks["nap"].enqueue_sync(0)
        until_sync(lambda: app.leaders.list_sync()[0].holder is None, 20, "nobody leads any more")
        served = (server.get("/").status, server.get("/health/ready").status, server.get("/health/live").status)
        waits = app.jobs.get_sync(job.id).state
        app.members.resume_sync(member.id)
        ran = job.wait_sync(timeout=20)
        server.signal()
        server.wait()

    assert (asked.work["drains"], asked.wish, quiet.draining_at) == ("quiet", "quiet", None)
    assert served == (200, 200, 200)
    assert waits == "queued"
    assert ran == member.pid != os.getpid()
    assert of_pid(app, member.pid).end_reason == "left"
