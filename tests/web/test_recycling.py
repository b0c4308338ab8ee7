"""`rota serve --recycle-after`: processes that have served enough are replaced under load, and nobody notices.

The clients are those of the rolling deploy (`tests/web/balanced.py`), with one backend: the port stays the same, and so does its
readiness, as there is always a process that is ready behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.web.servers import SERVE, SITE, Server
from tests.web.test_rolling_deploy import SOAK, Balanced

from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(600 if SOAK else 120)]

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path, rota_database: str) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(*arguments: str, **options: object) -> Server:
            return stack.enter_context(Server(tmp_path, rota_database, *SERVE, *arguments, **options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> int:
        raise AssertionError("runs in the servers")

    return rota_app


def replaced(server: Server) -> list[int]:
    """The processes that were told to go, as another was in their place."""
    return [int(pid) for pid in re.findall(r"\(pid (\d+)\) has done enough", server.output())]


def gone(server: Server) -> bool:
    return all(not Path(f"/proc/{pid}").exists() for pid in replaced(server))


@dataclass
class Recycled:
    failed: list[str]
    unready: dict[str, int]
    moved: int
    output: str


def recycle(serve: Serve, app: TestRota, *arguments: str, times: int, site: str = SITE) -> Recycled:
    """Have so many processes replaced under load, while jobs run; then look at what became of all."""
    server = serve(*arguments, window=1.0, site=site).wait_until_ready()
    with contextlib.closing(Balanced()) as balanced:
        balanced.use(server)
        balanced.wait_for(server, ready=True)
        jobs = [app.tasks["nap"].enqueue_sync(0.5) for _ in range(60)]
        balanced.begin()
        server.until(lambda: len(replaced(server)) >= times and gone(server), f"{times} are replaced", 90)
        result = balanced.result()
    until_sync(lambda: all(job.refresh_sync().state == "succeeded" for job in jobs), 30, "all jobs are done")
    assert {job.refresh_sync().attempt for job in jobs} == {1}
    server.signal()
    assert server.wait(20) == 0
    return Recycled(result["failed"], result["unready"], result["moved"], server.output())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "times"),
    [("1", 20 if SOAK else 2), pytest.param("2", 20 if SOAK else 2, marks=pytest.mark.long)],
    ids=["one worker", "two workers"],
)
def test_processes_are_replaced_under_load_without_a_failed_request_or_a_lost_job(
    app: TestRota, serve: Serve, workers: str, times: int
) -> None:
    recycled = recycle(serve, app, "--workers", workers, "--recycle-after", "300", times=times)

    assert recycled.failed == []
    assert recycled.unready == {}  # a balancer would take the port for gone, with all processes behind it
    assert recycled.moved > 0  # pinned clients were told to go, and went
    assert "not in order" not in recycled.output


# The guards of the design, each taken out by what an application could do to itself.
WITHOUT = {
    "no response closes its connection": """
from rota.integrations.asgi import drain

drain.closing = lambda message: message
""",
    "each process answers for itself when the port is asked about": """
from rota.integrations.asgi.readiness import Probes

Probes._others_serve = lambda self, report: False
""",
}


@pytest.mark.long
@pytest.mark.parametrize("without", WITHOUT)
def test_the_experiment_sees_that_a_guard_is_missing(app: TestRota, serve: Serve, without: str) -> None:
    recycled = recycle(serve, app, "--recycle-after", "300", times=6, site=SITE + WITHOUT[without])

    assert recycled.failed or recycled.unready


# What the next process finds in its folder decides what becomes of it.
GATED = """
import time
from pathlib import Path

while Path("held up").exists():
    time.sleep(0.05)
if Path("broken").exists():
    api = None
"""


def pid(server: Server) -> int:
    return int(server.get("/").json()["pid"])


@pytest.fixture
def gated(serve: Serve) -> Server:
    return serve("--recycle-after", "5", site=SITE + GATED).wait_until_ready()


@pytest.mark.long
def test_one_that_has_served_enough_serves_on_until_there_is_another(app: TestRota, gated: Server) -> None:
    """Also when a restart could not help: the reason is most likely new code, and the old one still serves."""
    (gated.folder / "broken").touch()
    old = pid(gated)

    gated.until(lambda: pid(gated) == old and "names nothing" in gated.output(), "a successor is tried")
    gated.until(lambda: pid(gated) == old and gated.output().count("goes on in its place") >= 2, "it is tried again")
    (gated.folder / "broken").unlink()
    gated.until(lambda: replaced(gated)[:1] == [old], "another one serves")

    gated.signal()
    assert gated.wait(20) == 0


@pytest.mark.long
def test_one_that_was_replaced_lets_nobody_in_tells_those_it_has_to_go_and_sends_no_balancer_away(
    app: TestRota, serve: Serve
) -> None:
    """It shares the port to the end, and who is let in at the last moment would find the connection closed."""

    def told_to_go() -> bool:
        pinned.request("GET", "/")
        answer = pinned.getresponse()
        assert json.loads(answer.read()) == {"pid": old}
        probing.request("GET", "/health/ready")  # a balancer that keeps its connection
        ready = probing.getresponse()
        assert (ready.status, json.loads(ready.read())) == (200, {"ready": True})
        return answer.getheader("connection") == "close"

    server = serve("--recycle-after", "5", window=4).wait_until_ready()
    old = pid(server)
    pinned, probing = (HTTPConnection("127.0.0.1", server.port, timeout=10) for _ in range(2))
    with contextlib.closing(pinned), contextlib.closing(probing):
        server.until(told_to_go, "its clients are told to go")

    others = {pid(server) for _ in range(40)}

    assert old not in others
    assert Path(f"/proc/{old}").exists()  # it has time to tell all of them


@pytest.mark.long
def test_a_stop_while_a_successor_starts_ends_both(app: TestRota, gated: Server) -> None:
    (gated.folder / "held up").touch()
    gated.until(lambda: pid(gated) > 0 and gated.output().count("started process 1") == 2, "a successor is started")

    gated.signal()

    assert gated.wait(20) == 0
    assert replaced(gated) == []


@pytest.mark.long
def test_a_successor_takes_over_when_the_old_one_dies_before_it_was_told_to_go(app: TestRota, gated: Server) -> None:
    (gated.folder / "held up").touch()
    old = pid(gated)
    gated.until(lambda: pid(gated) > 0 and gated.output().count("started process 1") == 2, "a successor is started")

    os.kill(old, signal.SIGKILL)
    gated.until(lambda: "Its successor was started already" in gated.output(), "that is noticed")
    (gated.folder / "held up").unlink()
    gated.until(lambda: gated.status("/") == 200, "it serves")

    assert gated.output().count("started process 1") == 2
