"""Health of a real worker process, asked from outside: by HTTP, by command, and by systemd's socket."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.docs_examples import blocks
from tests.runtime.away import locked_out
from tests.systemd import Systemd

from rota.errors import ConfigurationError
from rota.runtime import health_server as server_module
from rota.runtime.health import Health, Report
from rota.runtime.health_server import HealthServer, health_server
from rota.testing import TestRota, WorkerProcess, until_sync

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "operating.md"

StartWorker = Callable[..., WorkerProcess]

APP = """
import time
from pathlib import Path
from rota import Rota

app = Rota()

@app.task(name="culprit")
async def culprit(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.01)

@app.task(name="thread")
def thread(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.01)
"""


@pytest.fixture
def start(rota_worker: StartWorker) -> Callable[..., tuple[WorkerProcess, int]]:
    def started(*, args: tuple[str, ...] = (), **options: Any) -> tuple[WorkerProcess, int]:
        worker = rota_worker(APP, args=("--health-port", "0", *args), **options)
        worker.wait_for_output("health on port ")
        found = re.search(r"health on port (\d+)", worker.output())
        assert found is not None
        return worker, int(found[1])

    return started


def get(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, read(answer)
    except urllib.error.HTTPError as error:
        return error.code, read(error)


def read(answer: Any) -> Any:
    body = answer.read().decode()
    return json.loads(body) if body and answer.headers["Content-Type"] == "application/json" else body


def ask(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_HEALTH")}
    return subprocess.run(
        [sys.executable, "-m", "rota", "health", *arguments],
        capture_output=True,
        text=True,
        env={**known, **env},
        timeout=30,
        check=False,
    )


def leases(app: TestRota) -> list[str]:
    return sorted(member.end_reason or "live" for member in app.members_sync(ended=True))


def test_a_worker_answers_probes_on_its_port(start: Callable[..., tuple[WorkerProcess, int]]) -> None:
    _, port = start()

    until_sync(lambda: get(port, "/health/ready") == (200, {"ready": True}))
    assert get(port, "/readyz") == (200, {"ready": True})
    assert get(port, "/health/live") == get(port, "/livez") == (200, {"live": True})
    assert get(port, "/startupz") == (200, {"started": True})
    status, detail = get(port, "/health?verbose")
    assert (status, detail["ready"], detail["workers"][0]["state"]) == (200, True, "running")
    assert get(port, "/health/ready", "HEAD")[0] == 200
    assert get(port, "/elsewhere")[0] == 404
    status, said = get(port, "/metrics")
    assert (status, "rota_build_info" in said, "rota_loop_lag_seconds" in said) == (200, True, True)
    with socket.create_connection(("127.0.0.1", port)) as line:
        assert line.getpeername()[1] == port


# Row A4 of the faults: the lease is kept, the culprit is named, and the probes answer.
@pytest.mark.long
def test_a_body_that_blocks_the_loop_shows_on_live_costs_no_lease_and_is_named(
    start: Callable[..., tuple[WorkerProcess, int]], rota_app: TestRota, tmp_path: Path
) -> None:
    worker, port = start(env={"ROTA_LIVE_LIMIT": "2s", "ROTA_LEASE": "2s"})
    job = rota_app.task(name="culprit")(lambda gate: None).enqueue_sync(str(tmp_path / "gate"))

    until_sync(lambda: get(port, "/health/live")[0] == 503, timeout=20, what="live is 503")
    status, body = get(port, "/health/live")
    detail = get(port, "/health")[1]
    asked = ask("--live", "--port", str(port))
    worker.wait_for_output("in culprit")
    (tmp_path / "gate").touch()

    assert (status, body["reason"]) == (503, "event_loop")
    assert detail["loop"]["lag"] >= 2
    assert (asked.returncode, asked.stderr) == (6, "rota: not live: event_loop\n")
    job.wait_sync(20)
    until_sync(lambda: get(port, "/health/live")[0] == 200, what="live is 200 again")
    worker.wait_for_output("the event loop turns again")
    assert "the event loop has not turned for " in worker.output()
    assert "asyncio/base_events.py" not in worker.output()
    assert leases(rota_app) == ["live"]
    settled = rota_app.jobs.get_sync(job.id)
    assert (settled.attempt, settled.losses) == (1, 0)


@pytest.mark.long
def test_a_process_that_was_frozen_does_not_blame_its_loop_for_that_time(
    start: Callable[..., tuple[WorkerProcess, int]], rota_app: TestRota, tmp_path: Path
) -> None:
    worker, port = start()
    job = rota_app.task(name="culprit")(lambda gate: None).enqueue_sync(str(tmp_path / "gate"))
    until_sync(lambda: get(port, "/health")[1]["loop"]["lag"] >= 0.2, what="its loop is about to be told of")

    worker.pause()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["tail", f"--pid={worker.pid}", "-f", "/dev/null"], timeout=6, check=False)  # real time passes
    (tmp_path / "gate").touch()
    worker.resume()

    job.wait_sync(20)
    until_sync(lambda: get(port, "/health/ready")[0] == 200)
    assert get(port, "/health")[1]["loop"]["longest_lag"] < 4
    assert get(port, "/health/live")[0] == 200


@pytest.mark.direct("a pooler keeps connections to the server of its own")
def test_without_its_database_a_worker_is_live_and_not_ready_and_comes_back_by_itself(
    start: Callable[..., tuple[WorkerProcess, int]], rota_database: str
) -> None:
    worker, port = start()
    until_sync(lambda: get(port, "/health/ready")[0] == 200)

    with locked_out(rota_database):
        until_sync(lambda: get(port, "/health/ready") == (503, {"ready": False, "reason": "database"}))
        assert get(port, "/health/live")[0] == 200
        asked = ask("--ready", ROTA_HEALTH_PORT=str(port))
        assert (asked.returncode, asked.stderr) == (6, "rota: not ready: database\n")
        assert ask("--live", "--url", f"http://127.0.0.1:{port}").returncode == 0
    until_sync(lambda: get(port, "/health/ready")[0] == 200, timeout=20)

    assert ask("--port", str(port)).stdout == "ready\n"
    assert worker.returncode is None


@pytest.mark.long
@pytest.mark.direct("a pooler keeps connections to the server of its own")
def test_a_worker_that_waits_for_its_database_is_live_and_started_and_not_ready(
    start: Callable[..., tuple[WorkerProcess, int]], rota_database: str
) -> None:
    with locked_out(rota_database):
        worker, port = start(wait=False)
        worker.wait_for_output("waiting for the database")
        assert get(port, "/health/ready") == (503, {"ready": False, "reason": "database"})
        assert get(port, "/health/live")[0] == 200
        assert get(port, "/startupz")[0] == 200  # no restart would help

    until_sync(lambda: get(port, "/health/ready")[0] == 200, timeout=20)


@pytest.mark.long
def test_a_worker_that_is_held_up_at_its_start_is_starting(
    start: Callable[..., tuple[WorkerProcess, int]], rota_database: str
) -> None:
    with psycopg.connect(rota_database) as someone:
        someone.execute("lock table rota.members in access exclusive mode")
        worker, port = start(wait=False)
        until_sync(lambda: get(port, "/health/ready") == (503, {"ready": False, "reason": "starting"}))
        assert get(port, "/startupz") == (503, {"started": False, "reason": "starting"})
        someone.rollback()

    until_sync(lambda: get(port, "/health/ready")[0] == 200, timeout=20)
    assert get(port, "/startupz")[0] == 200
    assert worker.returncode is None


@pytest.mark.long
def test_a_worker_that_drains_says_so_on_its_port_until_it_ends(
    start: Callable[..., tuple[WorkerProcess, int]], rota_app: TestRota, tmp_path: Path
) -> None:
    worker, port = start()
    job = rota_app.task(name="thread")(lambda gate: None).enqueue_sync(str(tmp_path / "gate"))
    until_sync(lambda: rota_app.jobs.get_sync(job.id).state == "running")

    worker.terminate()

    until_sync(lambda: get(port, "/health/ready") == (503, {"ready": False, "reason": "shutting_down"}))
    assert get(port, "/health/live")[0] == 200
    assert ask("--ready", "--port", str(port)).stderr == "rota: not ready: shutting_down\n"
    (tmp_path / "gate").touch()
    assert worker.wait() == 0
    gone = ask("--live", "--port", str(port))
    assert (gone.returncode, "nobody answers at http://127.0.0.1" in gone.stderr) == (6, True)


@pytest.mark.long
@pytest.mark.one_server
def test_a_port_that_is_taken_is_told_before_anything_starts(rota_worker: StartWorker) -> None:
    with socket.create_server(("", 0)) as other:
        worker = rota_worker(APP, args=("--health-port", str(other.getsockname()[1])), wait=False)

        assert worker.wait() == 2

    assert "Health cannot be served on port " in worker.output()
    assert "Each process needs a port of its own" in worker.output()


@pytest.mark.long
@pytest.mark.one_server
def test_the_port_of_the_environment_is_not_for_each_of_many_processes(
    start: Callable[..., tuple[WorkerProcess, int]], rota_worker: StartWorker
) -> None:
    _, port = start()

    child = rota_worker(APP, args=("--mark", "m"), env={"ROTA_HEALTH_PORT": str(port)})

    assert "health on port" not in child.output()


def test_asking_without_an_address_says_what_to_give() -> None:
    asked = ask("--ready")

    assert asked.returncode == 2
    assert "give --port or --url" in asked.stderr
    assert ask("--url", "https://x").returncode == 2


def test_what_does_not_speak_http_is_not_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-m", "rota", "health", "--port", str(port)], stderr=subprocess.PIPE, text=True
        ) as asking:
            line, _ = other.accept()
            with line:
                line.recv(1000)
                line.sendall(b"220 mail.example.com")
            _, said = asking.communicate(timeout=20)

    assert (asking.returncode, "does not speak HTTP" in said) == (6, True)


def test_asking_imports_neither_the_database_driver_nor_an_http_library() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import rota.cli.main, rota.cli.health, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert not {"psycopg", "http.client", "http.server", "asyncio", "rota.app", "rich"} & set(shown.stdout.split())


@pytest.mark.long
def test_the_probes_of_the_guide_are_answered(start: Callable[..., tuple[WorkerProcess, int]]) -> None:
    (shown,) = (block for block in blocks(GUIDE) if block.file == "deployment.yaml")
    (container,) = yaml.safe_load(shown.text)["containers"]
    probes = [container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]

    _, port = start(args=tuple(container["args"][2:]))

    assert container["args"][:2] == ["--health-port", str(container["ports"][0]["containerPort"])]
    for probe in probes:
        path = probe["httpGet"]["path"]
        until_sync(lambda path=path: get(port, path)[0] == 200, what=path)  # type: ignore[misc]
    for command in re.findall(r"command: \[rota, health, (.*?)\]", GUIDE.read_text()):
        assert ask(command, ROTA_HEALTH_PORT=str(port)).returncode == 0


@pytest.mark.long
def test_the_unit_of_the_guide_starts_a_worker_that_tells_systemd(rota_worker: StartWorker, systemd: Systemd) -> None:
    (shown,) = (block.text for block in blocks(GUIDE) if block.text.startswith("# rota-worker.service"))
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(shown)
    service = unit["Service"]

    rota_worker(
        APP,
        args=tuple(service["ExecStart"].split()[3:]),
        env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": f"{service['WatchdogSec']}000000"},
    )

    assert service["Type"] == "notify"
    systemd.wait_for("READY=1")
    systemd.wait_for("WATCHDOG=1")


class Told(Health):
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.said = Report(200, {"live": True})

    def live(self) -> Report:
        return self.said

    def close(self) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HealthServer]:
    with health_server(Told(), 0, metrics=lambda: ("text/plain; version=1", b"rota_up 1\n")) as server:
        yield server


def test_metrics_come_from_whoever_gathers_them(server: HealthServer) -> None:
    assert get(server.server_port, "/metrics") == (200, "rota_up 1\n")

    server.metrics = lambda: 1 / 0  # type: ignore[assignment, return-value]

    status, said = get(server.server_port, "/metrics")
    assert (status, "ZeroDivisionError" in said) == (500, True)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_told_which_there_are(server: HealthServer, method: str) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as line:
        line.sendall(f"{method} /livez HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        said = line.makefile("rb").read()

    assert said.split()[1] == b"405"
    assert b"\r\nAllow: GET, HEAD\r\n" in said


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_the_oldest_clients_get_an_answer(server: HealthServer, end: str) -> None:
    """HTTP/1.0, without a name of the host, as simple probes ask; the end of the answer is that of the connection."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as line:
        line.sendall(f"GET /livez HTTP/1.0{end}{end}".encode())
        said = line.makefile("rb").read()

    assert said.split()[1] == b"200"
    assert said.endswith(b'{"live": true}\n')


def test_a_request_that_is_too_long_or_never_ends_is_dropped(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", server.server_port)) as line:
        with contextlib.suppress(OSError):
            line.sendall(b"GET /livez HTTP/1.1\r\n" + b"X: " + b"x" * 20000 + b"\r\n\r\n")
        assert dropped(line)
    with socket.create_connection(("127.0.0.1", server.server_port)) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\n")
        assert dropped(line)

    assert get(server.server_port, "/livez")[0] == 200


def dropped(line: socket.socket) -> bool:
    line.settimeout(10)
    try:
        return line.recv(100) == b""
    except ConnectionError:
        return True


@pytest.mark.long
def test_those_that_hang_do_not_make_it_grow(server: HealthServer) -> None:
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port))) for _ in range(40)]

        turned_away = [line for line in lines[server_module._CONNECTIONS :] if dropped(line)]
        assert len(turned_away) >= 40 - 2 * server_module._CONNECTIONS
    until_sync(lambda: get_or_none(server.server_port) == 200, what="it answers again")


def get_or_none(port: int) -> int | None:
    try:
        return get(port, "/livez")[0]
    except (OSError, ConnectionError):
        return None


def test_an_address_that_this_machine_does_not_have_is_told() -> None:
    with pytest.raises(ConfigurationError, match="Health cannot be served on port 8081 of 203.0.113.7"):
        HealthServer(Told(), 8081, host="203.0.113.7")


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with contextlib.closing(Systemd(tmp_path)) as systemd:
        yield systemd


def test_systemd_hears_when_a_worker_is_ready_that_it_lives_and_that_it_stops(
    rota_worker: StartWorker, rota_app: TestRota, systemd: Systemd, tmp_path: Path
) -> None:
    worker = rota_worker(APP, env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "400000"})
    systemd.wait_for("READY=1")
    systemd.heard.clear()
    systemd.wait_for("WATCHDOG=1")
    job = rota_app.task(name="thread")(lambda gate: None).enqueue_sync(str(tmp_path / "gate"))
    until_sync(lambda: rota_app.jobs.get_sync(job.id).state == "running")

    worker.terminate()

    systemd.wait_for("STOPPING=1")
    assert worker.returncode is None  # it is told while it drains
    systemd.heard.clear()
    systemd.wait_for("WATCHDOG=1")
    (tmp_path / "gate").touch()
    assert worker.wait() == 0


@pytest.mark.long
def test_systemd_is_not_told_that_a_worker_lives_which_does_not(
    rota_worker: StartWorker, rota_app: TestRota, systemd: Systemd, tmp_path: Path
) -> None:
    rota_worker(APP, env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "400000", "ROTA_LIVE_LIMIT": "1s"})
    systemd.wait_for("READY=1")
    systemd._socket.settimeout(2.0)

    rota_app.task(name="culprit")(lambda gate: None).enqueue_sync(str(tmp_path / "gate"))

    with pytest.raises(TimeoutError):  # five times as long as systemd would wait
        systemd.wait_for("never")
    (tmp_path / "gate").touch()
    systemd._socket.settimeout(20)
    systemd.heard.clear()
    systemd.wait_for("WATCHDOG=1")


@pytest.mark.long
@pytest.mark.direct("a pooler keeps connections to the server of its own")
def test_systemd_gives_a_start_that_waits_for_the_database_more_time(
    rota_worker: StartWorker, rota_database: str, systemd: Systemd
) -> None:
    with locked_out(rota_database):
        rota_worker(APP, env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}, wait=False)
        systemd.wait_for("EXTEND_TIMEOUT_USEC=30000000")
        systemd.wait_for("STATUS=not ready: database")
        assert "READY=1" not in systemd.heard

    systemd.wait_for("READY=1")
    assert "WATCHDOG=1" not in systemd.heard  # it was meant for another process


@pytest.mark.long
@pytest.mark.direct("a pooler keeps connections to the server of its own")
def test_systemd_gives_the_start_of_several_processes_that_wait_for_the_database_more_time(
    rota_worker: StartWorker, rota_database: str, systemd: Systemd
) -> None:
    with locked_out(rota_database):
        rota_worker(APP, args=("--processes", "2"), env={"NOTIFY_SOCKET": systemd.path}, wait=False)
        systemd.wait_for("EXTEND_TIMEOUT_USEC=30000000")
        assert "READY=1" not in systemd.heard

    systemd.wait_for("READY=1")
