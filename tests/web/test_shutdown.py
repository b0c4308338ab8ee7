"""Real servers, real signals: each ends within its deadline, and what it held is released."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.web.servers import SERVE, SITE, UVICORN, Server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rota import Job
from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.one_server]

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path, rota_database: str) -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda *command, **options: stack.enter_context(
            Server(tmp_path, options.pop("dsn", rota_database), *command, **options)
        )


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> int:
        raise AssertionError("runs in the server's process")

    return rota_app


def running(app: TestRota, server: Server, seconds: float) -> Job[Any]:
    """A job that runs in the server."""
    job = app.tasks["nap"].enqueue_sync(seconds)
    server.says("nap")
    return job


def end_reasons(app: TestRota) -> list[str | None]:
    return [member.end_reason for member in app.members_sync(ended=True) if member.work]


def stream(server: Server, path: str) -> socket.socket:
    """A connection on which this answer has begun."""
    opened = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    opened.sendall(f"GET {path} HTTP/1.1\r\nHost: site\r\n\r\n".encode())
    assert b" 200 " in opened.recv(100)
    return opened


def rest(opened: socket.socket) -> bytes:
    read = b""
    while piece := opened.recv(65536):
        read += piece
    return read


def test_at_a_signal_readiness_says_503_and_requests_are_served_until_the_window_is_over(
    app: TestRota, serve: Serve
) -> None:
    server = serve(window=3).wait_until_ready()
    job = running(app, server, 1.0)

    began = time.monotonic()
    server.signal()
    server.until(lambda: not server.ready(), "it is not ready")
    served = 0
    while time.monotonic() - began < 1.5:  # a busy machine may take as long again for the last of them
        ready = server.get("/health/ready")
        assert (ready.status, ready.json()) == (503, {"ready": False, "reason": "shutting_down"})
        assert ready.headers["retry-after"] == "3"
        answer = server.get("/")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        served += 1

    assert server.wait(20) == -signal.SIGTERM
    assert served > 3
    assert 3 <= time.monotonic() - began < 15
    assert job.wait_sync() > 0
    assert end_reasons(app) == ["left"]
    assert server.said()[-1] == "stopped"


@pytest.mark.long
def test_jobs_drain_and_leaderships_are_resigned_from_the_signal_on_while_a_stream_is_open(
    app: TestRota, serve: Serve
) -> None:
    server = serve(window=0.5, env={"ROTA_GRACE": "4"}).wait_until_ready()
    server.says("leading")
    job = running(app, server, 0.5)
    with stream(server, "/endless") as opened:
        server.signal()

        until_sync(lambda: end_reasons(app) == ["left"], 3)
        assert job.wait_sync() == server.process.pid
        assert app.leaders.terms_sync("boss")[0].end_reason == "resigned"
        assert server.process.poll() is None  # it waits for the answer that does not end, until the grace is over

        assert not rest(opened).endswith(b"0\r\n\r\n")
    assert server.wait(10) == -signal.SIGTERM


@pytest.mark.long
def test_streams_of_events_get_their_last_chunk_and_websockets_are_closed_as_by_a_restart(
    app: TestRota, serve: Serve
) -> None:
    server = serve(window=0.5).wait_until_ready()
    with (
        stream(server, "/events") as opened,
        stream(server, "/polite") as polite,
        connect(f"ws://127.0.0.1:{server.port}/socket") as websocket,
    ):
        websocket.send("hello")
        assert websocket.recv() == "hello"
        server.signal()

        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert rest(opened).endswith(b"data: first\n\n\r\n0\r\n\r\n")
        assert rest(polite).endswith(b"data: True\n\n\r\n0\r\n\r\n")
        assert server.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_second_signal_hands_back_at_once(app: TestRota, serve: Serve, number: int) -> None:
    server = serve(window=30, env={"ROTA_GRACE": "60"}).wait_until_ready()
    job = running(app, server, 60)
    with stream(server, "/endless"):
        server.signal(number)
        server.until(lambda: server.status("/health/ready") == 503, "it has heard the first")

        server.signal(number)

        server.wait(20)
    assert ((job.refresh_sync()).state, (job.refresh_sync()).attempt) == ("queued", 0)
    assert end_reasons(app) == ["left"]


@pytest.mark.long
@pytest.mark.parametrize("command", [UVICORN, SERVE])
def test_workers_that_are_told_by_a_manager_of_processes_and_by_their_parent_have_their_grace(
    app: TestRota, serve: Serve, command: Sequence[str]
) -> None:
    server = serve(*command, "--workers", "2", window=0.5).wait_until_ready()
    pids = set[int]()
    until_sync(lambda: len(pids.add(server.get().json()["pid"]) or pids) == 2, 20, "both serve")
    job = running(app, server, 3)

    for pid in pids:  # as systemd does, which tells all processes of a service
        os.kill(pid, signal.SIGTERM)
    server.signal()

    server.wait(20)
    assert job.wait_sync(timeout=5) in pids
    assert set(end_reasons(app)) == {"left"}


@pytest.mark.long
def test_three_signals_skip_the_lifespan_and_release_all_the_same(app: TestRota, serve: Serve) -> None:
    server = serve(window=30, env={"ROTA_GRACE": "60"}).wait_until_ready()
    job = running(app, server, 60)
    server.signal(signal.SIGINT)
    server.until(lambda: server.status("/health/ready") == 503, "it has heard the first")

    server.signal(signal.SIGINT)
    server.signal(signal.SIGINT)

    server.wait(20)
    assert ((job.refresh_sync()).state, (job.refresh_sync()).attempt) == ("queued", 0)
    assert end_reasons(app) == ["left"]


def test_a_signal_during_start_up_interrupts_it(app: TestRota, serve: Serve) -> None:
    server = serve(window=30, env={"SITE_STARTS_IN": "60"})
    server.says("starting")

    server.signal()

    assert server.wait(20) == -signal.SIGTERM
    assert server.said() == ["starting", "interrupted"]
    assert end_reasons(app) == []


@pytest.mark.long
def test_a_reloader_waits_for_nothing_and_leaves_no_lease_behind(app: TestRota, serve: Serve, tmp_path: Path) -> None:
    server = serve(*UVICORN, "--reload", window=60, env={"ROTA_GRACE": "60"}).wait_until_ready()
    pid = server.get("/").json()["pid"]
    job = running(app, server, 60)
    site = next(tmp_path.glob("site-*")) / "site_app.py"

    site.write_text(site.read_text() + "\n# changed\n")

    server.until(lambda: server.ready() and server.get("/").json()["pid"] != pid, "another one is ready", 15)
    assert "left" in end_reasons(app)
    assert job.refresh_sync().attempt <= 1  # what the first had begun of it was not charged
    server.signal()
    server.wait(10)


@pytest.mark.long
def test_ctrl_c_at_a_terminal_waits_for_no_balancer(app: TestRota, rota_database: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with Server(tmp_path, rota_database, window=60, terminal=theirs) as server:
            server.wait_until_ready()

            server.signal(signal.SIGINT)

            server.wait(20)
    finally:
        os.close(ours)
        os.close(theirs)
    assert end_reasons(app) == ["left"]


@pytest.mark.long
def test_the_drain_endpoint_begins_the_end_and_the_signal_finishes_it(app: TestRota, serve: Serve) -> None:
    server = serve(window=0.5, env={"ROTA_DRAIN_TOKEN": "sesame"}).wait_until_ready()
    job = running(app, server, 1)

    answer = server.get("/health/drain", method="POST", headers={"Authorization": "Bearer sesame"})

    assert answer.status == 202
    until_sync(lambda: end_reasons(app) == ["left"])
    assert job.wait_sync() == server.process.pid
    assert server.get("/health/ready").status == 503
    assert server.get("/").status == 200  # and for as long as nobody ends it
    began = time.monotonic()
    server.signal()
    assert server.wait(20) == -signal.SIGTERM
    assert time.monotonic() - began < 10


class Away:
    """A database that can be gone: its socket is reached through a link."""

    def __init__(self, dsn: str, folder: Path) -> None:
        parts = conninfo_to_dict(dsn)
        if not str(parts["host"]).startswith("/"):
            pytest.skip("the server of this run has no socket to hide")
        name = f".s.PGSQL.{parts['port']}"
        self._real = Path(str(parts["host"])) / name
        self._link = folder / name
        self._admin = make_conninfo(dsn, dbname="postgres")
        self._name = parts["dbname"]
        self.dsn = make_conninfo(dsn, host=str(folder))

    def come(self) -> None:
        self._link.symlink_to(self._real)

    def go(self) -> None:
        self._link.unlink()
        with psycopg.connect(self._admin, autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [self._name])


@pytest.fixture
def away(rota_database: str, tmp_path: Path) -> Away:
    return Away(rota_database, tmp_path)


@pytest.mark.direct("connections are hidden from the server's own side")
@pytest.mark.long
def test_without_a_database_it_serves_and_works_when_there_is_one(app: TestRota, serve: Serve, away: Away) -> None:
    def missing() -> bool:
        ready = server.get("/readyz")
        return (ready.status, ready.json().get("reason")) == (503, "database")

    server = serve(dsn=away.dsn, window=0.2)
    server.until(lambda: server.status("/") == 200, "it serves")
    server.until(missing, "it says what is missing")
    assert server.get("/livez").status == 200

    away.come()
    server.wait_until_ready()
    assert app.tasks["nap"].enqueue_sync(0).wait_sync(timeout=20) == server.process.pid

    away.go()
    server.until(missing, "it says what is missing")
    assert (server.get("/livez").status, server.get("/").status) == (200, 200)

    away.come()
    server.wait_until_ready()
    app.close_sync()  # its own connections are gone too
    assert app.tasks["nap"].enqueue_sync(0).wait_sync(timeout=20) == server.process.pid

    away.go()
    server.signal()
    assert server.wait(15) == -signal.SIGTERM  # and what it could not release is rescued


@pytest.mark.long
@pytest.mark.direct("connections are hidden from the server's own side")
def test_the_exit_code_says_that_the_end_of_a_job_could_not_be_written_down(
    app: TestRota, serve: Serve, away: Away
) -> None:
    away.come()
    server = serve(*SERVE, "--grace", "1", dsn=away.dsn).wait_until_ready()
    running(app, server, 60)
    away.go()

    server.signal()

    assert server.wait(15) == 1
    assert "could not be written down; leaving without them" in server.output()


@pytest.mark.long
def test_a_process_that_skips_every_shutdown_still_leaves(app: TestRota, tmp_path: Path, rota_database: str) -> None:
    (tmp_path / "abrupt.py").write_text(
        """
import asyncio, sys
from rota import Rota
from rota.facts import WorkerStarted
from rota.testing import fact

app = Rota(sys.argv[1])

async def main():
    working = fact(app.facts, WorkerStarted)
    global life
    life = app.lifespan()(None)
    await life.__aenter__()
    await working

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
sys.exit(0)
"""
    )

    subprocess.run([sys.executable, str(tmp_path / "abrupt.py"), rota_database], check=True, timeout=30)

    assert end_reasons(app) == ["left"]


STUCK = """
import time

@app.task(name="stuck")
def stuck():
    say("stuck")
    time.sleep(600)
"""


def test_a_server_that_waits_for_a_body_in_a_thread_says_for_which_and_what_to_do(app: TestRota, serve: Serve) -> None:
    """It exits as Python does, when all threads have ended: nothing of ours ends it before."""

    @app.task(name="stuck")
    def stuck() -> None:
        raise AssertionError("runs in the server")

    hypercorn = ("hypercorn", "site_app:api", "--workers", "0", "--bind", "127.0.0.1:PORT")
    server = serve(*hypercorn, env={"ROTA_GRACE": "1"}, site=SITE + STUCK).wait_until_ready()
    job = app.tasks["stuck"].enqueue_sync()
    server.says("stuck")

    server.signal()

    server.until(lambda: "Serve by `rota serve`" in server.output(), "it says what to do")
    assert f"the handler of a poller or projection: job {job.id} (stuck). Nothing can end a thread" in server.output()
    assert server.process.poll() is None
    assert job.refresh_sync().state == "queued"
