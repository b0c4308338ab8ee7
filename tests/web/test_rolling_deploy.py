"""Two backends behind a balancer are replaced one after the other under load: no request fails, and no job is lost or charged.

The balancer and its clients are a process of their own (`tests/web/balanced.py`). The short form is for every run of the suite;
the long one, `make soak`, has the measures of the design: a probe per second, a window of three, and more rolls.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.web.servers import SERVE, SITE, UVICORN, Server

from rota.testing import TestRota, until_sync

ROOT = Path(__file__).parent.parent.parent
SOAK = bool(os.environ.get("ROTA_SOAK"))

PROBE = 1.0 if SOAK else 0.25
WINDOW = 3.0 if SOAK else 1.0
PAUSE = 0.3 if SOAK else 0.15  # of pinned clients between two requests: each asks several times in a window

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(600 if SOAK else 120)]


class Balanced:
    """The balancer's process."""

    def __init__(self, probe: float = PROBE) -> None:
        self._ready: dict[int, bool] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.web.balanced", str(probe), "16", "40", str(PAUSE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def use(self, *servers: Server) -> None:
        self._say({"backends": [server.port for server in servers]})

    def wait_for(self, server: Server, *, ready: bool) -> None:
        """Return when it has seen that this backend is, or is not, ready."""
        while self._ready.get(server.port, False) is not ready:
            self._read("port")

    def begin(self) -> None:
        self._say({"begin": True})

    def result(self) -> dict[str, Any]:
        self._say({"end": True})
        result = self._read("result")["result"]
        self._process.wait(10)
        return dict(result)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _say(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _read(self, wanted: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "port" in said:
                self._ready[said["port"]] = said["ready"]
            if wanted in said:
                return said
        raise AssertionError("the balancer has ended")


@dataclass
class Rolled:
    requests: int
    failed: list[str]
    #: of those that were replaced, which the balancer had seen to be unready while they still answered
    seen: list[bool]
    moved: int


@pytest.fixture
def balanced() -> Iterator[Balanced]:
    with contextlib.closing(Balanced()) as balanced:
        yield balanced


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> int:
        raise AssertionError("runs in the servers")

    return rota_app


def roll(
    folder: Path,
    app: TestRota,
    balanced: Balanced,
    *command: str,
    rolls: int = 1,
    window: float = WINDOW,
    site: str = SITE,
) -> Rolled:
    """Replace the older of two backends by a new one, again and again, while jobs run; then look at what became of all."""
    dsn = app.settings.dsn.conninfo if app.settings.dsn else ""
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []

        def start() -> Server:
            servers.append(stack.enter_context(Server(folder, dsn, *command, window=window, site=site)))
            return servers[-1]

        backends = [start(), start()]
        balanced.use(*backends)
        for backend in backends:
            balanced.wait_for(backend, ready=True)
        balanced.begin()  # the pinned clients spread over both
        jobs, replaced = [], []
        for _ in range(rolls):
            backends.append(start())
            balanced.use(*backends)
            balanced.wait_for(backends[-1], ready=True)
            old = backends.pop(0)
            jobs += [app.tasks["nap"].enqueue_sync(0.5) for _ in range(60)]
            old.says("nap")

            old.signal()

            balanced.wait_for(old, ready=False)
            old.wait(40)
            balanced.use(*backends)
            replaced.append(old.port)
        until_sync(lambda: all(job.refresh_sync().state == "succeeded" for job in jobs), 30, "all jobs are done")
        result = balanced.result()
        begun = sum(server.said().count("nap") for server in servers)
    print({**result, "failed": len(result["failed"])})
    assert begun == len(jobs)  # each once: none was lost, given away, or handed back within its grace
    assert {job.refresh_sync().attempt for job in jobs} == {1}
    return Rolled(
        result["requests"], result["failed"], [str(port) in result["unready"] for port in replaced], result["moved"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rolls"),
    [
        pytest.param(UVICORN, 6 if SOAK else 2, marks=pytest.mark.long),
        ((*UVICORN, "--workers", "2"), 6 if SOAK else 1),
        pytest.param(SERVE, 6 if SOAK else 2, marks=pytest.mark.long),
        pytest.param((*SERVE, "--workers", "2"), 6 if SOAK else 2, marks=pytest.mark.long),
    ],
    ids=["uvicorn", "uvicorn with two workers", "rota serve", "rota serve with two workers"],
)
def test_backends_are_replaced_under_load_without_a_failed_request_or_a_lost_job(
    tmp_path: Path, app: TestRota, balanced: Balanced, command: tuple[str, ...], rolls: int
) -> None:
    rolled = roll(tmp_path, app, balanced, *command, rolls=rolls)

    assert rolled.failed == []
    assert rolled.seen == [True] * rolls
    assert rolled.requests > 500
    assert rolled.moved > 0  # pinned clients were told to go, and went


# The guards of the design, each taken out by what an application could do to itself.
WITHOUT = {
    "the flag is set in the lifespan's shutdown": """
from rota.integrations.asgi import lifespan as room
from rota.service.ending import ENDING

def enter(window):
    raise room.Unhooked("taken out")

room.HOOK.enter = enter
begin_stop = room.Life._begin_stop
def begin_later(self):
    begin_stop(self)
    ENDING.begin("shutdown")
room.Life._begin_stop = begin_later
""",
    "no response closes its connection": """
from rota.integrations.asgi import drain

drain.closing = lambda message: message
""",
}


@pytest.mark.long
@pytest.mark.parametrize("without", WITHOUT)
def test_the_experiment_sees_that_a_guard_is_missing(
    tmp_path: Path, app: TestRota, balanced: Balanced, without: str
) -> None:
    rolled = roll(tmp_path, app, balanced, *UVICORN, rolls=1, site=SITE + WITHOUT[without])

    assert rolled.failed


@pytest.mark.long
def test_the_experiment_sees_that_the_window_is_shorter_than_the_probe(tmp_path: Path, app: TestRota) -> None:
    with contextlib.closing(Balanced(probe=1.0)) as balanced:
        rolled = roll(tmp_path, app, balanced, *UVICORN, rolls=1, window=0.05)

    assert rolled.failed
