"""`rota serve` as a process: any application, with the same end."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.commands import Command
from tests.systemd import Systemd
from tests.web.servers import SITE, Server

from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.one_server]

Serve = Callable[..., Server]

PLAIN = """
import os
from rota import Rota

app = Rota()

@app.task(name="nap")
async def nap(seconds: float) -> int:
    return os.getpid()

async def api(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"here"})

def make():
    return api
"""


@pytest.fixture
def serve(tmp_path: Path, rota_database: str) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(*arguments: str, **options: object) -> Server:
            command = ("rota", "serve", *arguments, "--port", "PORT")
            return stack.enter_context(Server(tmp_path, rota_database, *command, **options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> int:
        raise AssertionError("runs in the server")

    return rota_app


def drains(server: Server) -> None:
    """After a signal it serves, says that it is not ready, and ends in order."""
    server.signal()
    server.until(lambda: server.get("/health/ready").status == 503, "it is not ready")
    server.until(lambda: server.get("/").headers.get("connection") == "close", "it sends clients elsewhere")
    assert server.wait(10) == 0


def test_an_attached_application_is_served_with_the_windows_of_the_command(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", "--drain-window", "1", window=60).wait_until_ready()
    assert app.tasks["nap"].enqueue_sync(0).wait_sync(timeout=20) == server.process.pid

    drains(server)

    assert [member.end_reason for member in app.members_sync(ended=True) if member.work] == ["left"]


@pytest.mark.long
def test_an_application_of_any_kind_is_served_with_the_worker_of_an_app(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:make", "--factory", "--app", "site_app:app", site=PLAIN, window=1).wait_until_ready()
    assert app.tasks["nap"].enqueue_sync(0).wait_sync(timeout=20) == server.process.pid

    drains(server)


@pytest.mark.long
def test_an_application_without_a_rota_is_drained_too(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", site=PLAIN, window=1).wait_until_ready()

    drains(server)

    assert app.members_sync(ended=True) == []


@pytest.mark.long
def test_no_worker_is_run_where_none_is_wanted(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", "--no-worker").wait_until_ready()

    assert app.members_sync(ended=True) == []
    server.signal(signal.SIGINT)
    assert server.wait(10) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere:api"], "There is no module 'nowhere'"),
        (["site_app"], "write module:attribute"),
        (["site_app:missing"], "names nothing"),
        (["site_app:api", "--app", "site_app:other"], "--app names another Rota"),
    ],
)
def test_what_cannot_be_served_is_said(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "site_app.py").write_text(SITE + "\nother = Rota('dbname=x')\n")
    with Command("serve", *arguments, folder=tmp_path) as command:
        assert command.wait() == 2
        assert said in command.err


@pytest.mark.long
def test_several_workers_share_the_port_and_one_that_dies_is_replaced(app: TestRota, serve: Serve) -> None:
    def pids() -> set[int]:
        return {server.get("/").json()["pid"] for _ in range(20)}

    server = serve("site_app:api", "--workers", "2", window=1).wait_until_ready()
    until_sync(lambda: len(pids()) == 2, 20, "both serve")
    first = min(pids())
    os.kill(first, signal.SIGKILL)

    until_sync(lambda: first not in pids() and len(pids()) == 2, 20, "another one serves")
    # the dead one may not have been found out yet
    until_sync(lambda: len([m for m in app.members_sync() if m.pid != first]) == 2, 20, "and works")

    drains(server)
    assert sorted(m.end_reason for m in app.members_sync(ended=True) if m.work) == ["left", "left", "suspected"]
    with pytest.raises(ConnectionRefusedError):
        server.get("/")


@pytest.mark.long
def test_when_all_workers_have_closed_their_port_nobody_is_let_in_to_wait(app: TestRota, serve: Serve) -> None:
    def refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    server = serve("site_app:api", "--workers", "2", window=0.5).wait_until_ready()
    job = app.tasks["nap"].enqueue_sync(5)
    server.says("nap")

    server.signal()

    until_sync(refused, 4.5, "the port is closed, while a job still runs")
    assert server.process.poll() is None
    assert server.wait(10) == 0
    assert job.wait_sync() > 0


@pytest.mark.long
def test_workers_whose_parent_is_killed_drain_and_go(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", "--workers", "2", window=0.5).wait_until_ready()
    until_sync(lambda: len(app.members_sync()) == 2, 20, "both work")

    server.signal(signal.SIGKILL)

    until_sync(lambda: server.status("/") is None, 10, "nobody serves any more")
    until_sync(lambda: all(m.end_reason == "left" for m in app.members_sync(ended=True) if m.work), 10, "all have left")


@pytest.mark.long
def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    (tmp_path / "site_app.py").write_text(PLAIN)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Command("serve", "site_app:api", "--port", port, folder=tmp_path) as command:
            assert command.wait() == 1
            assert "Address already in use" in command.err


@pytest.mark.long
def test_a_signal_before_it_serves_is_not_lost(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", env={"SITE_STARTS_IN": "60"}, window=60)
    server.says("starting")

    server.signal()

    assert server.wait(20) == 0
    until_sync(lambda: server.said() == ["starting", "interrupted"])


@pytest.mark.long
def test_a_body_in_a_thread_keeps_no_process_from_ending(app: TestRota, serve: Serve) -> None:
    @app.task(name="stuck")
    def stuck() -> None:
        raise AssertionError("runs in the server")

    body = """
import time

@app.task(name="stuck")
def stuck():
    say("stuck")
    time.sleep(60)
"""
    server = serve("site_app:api", "--grace", "1", site=SITE + body).wait_until_ready()
    job = app.tasks["stuck"].enqueue_sync()
    server.says("stuck")

    server.signal()

    assert server.wait(10) == 1
    assert "still in the body of a task" in server.output()
    assert job.refresh_sync().state == "queued"


@pytest.mark.long
def test_a_signal_while_the_application_is_imported_ends_it_in_order(app: TestRota, serve: Serve) -> None:
    slow = "import time\nsay('importing')\ntime.sleep(60)\n"
    server = serve("site_app:api", site=SITE + slow)
    server.says("importing")

    server.signal()

    assert server.wait(20) == 0


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_systemd_hears_that_it_is_ready_that_it_lives_and_that_it_stops(
    app: TestRota, serve: Serve, tmp_path: Path, workers: str
) -> None:
    with closing(Systemd(tmp_path)) as systemd:
        told = {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "400000"}
        server = serve("site_app:api", "--workers", workers, env=told, window=2)
        systemd.wait_for("READY=1")
        assert server.ready()
        systemd.wait_for("WATCHDOG=1")

        server.signal()

        systemd.wait_for("STOPPING=1")
        assert server.process.poll() is None  # it is told while it drains
        assert server.wait(10) == 0


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_all_lines_come_in_the_format_that_was_asked_for_also_those_of_the_server(
    app: TestRota, serve: Serve, workers: str
) -> None:
    server = serve("site_app:api", "--workers", workers, "--log-format", "json").wait_until_ready()
    server.signal()
    assert server.wait(20) == 0

    lines = [json.loads(line) for line in server.output().splitlines()]
    assert {"rota", "uvicorn.error"} <= {line["logger"] for line in lines}
    assert "Application startup complete." in [line["message"] for line in lines]
    assert not any("color_message" in line for line in lines)


@pytest.mark.long
def test_no_line_is_below_the_level_that_was_asked_for(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", "--workers", "2", "--log-level", "error").wait_until_ready()
    server.signal()

    assert server.wait(20) == 0
    assert server.output() == ""


def ask_as_of_old(server: Server, path: str) -> bytes:
    """HTTP/1.0, without a name of the host, as simple probes ask; the end of the answer is that of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
        line.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return line.makefile("rb").read()


@pytest.mark.long
def test_the_oldest_clients_get_an_answer_also_while_it_drains(app: TestRota, serve: Serve) -> None:
    server = serve("site_app:api", window=5).wait_until_ready()
    assert ask_as_of_old(server, "/").endswith(f'{{"pid":{server.process.pid}}}'.encode())
    assert ask_as_of_old(server, "/livez").endswith(b'{"live": true}')

    server.signal()
    server.until(lambda: ask_as_of_old(server, "/readyz").endswith(b'"shutting_down"}'), "it drains")

    assert ask_as_of_old(server, "/").endswith(f'{{"pid":{server.process.pid}}}'.encode())
    server.signal(signal.SIGINT)
    assert server.wait(10) == 0


def test_a_shutdown_of_the_application_that_fails_is_no_end_in_order(app: TestRota, serve: Serve) -> None:
    broken = SITE.replace('say("stopped")', 'raise RuntimeError("the cache is on fire")')
    server = serve("site_app:api", site=broken).wait_until_ready()

    server.signal()

    assert server.wait(10) == 1
    assert "the cache is on fire" in server.output()
    assert "Application shutdown failed" in server.output()
    assert "stopped in order" not in server.output()
    assert [member.end_reason for member in app.members_sync(ended=True) if member.work] == ["left"]
