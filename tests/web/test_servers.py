"""The servers of the table in docs/guides/web.md: what each of them does with the hook, by a real process."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.web.servers import UVICORN, Answer, Server

from rota.testing import TestRota, until_sync

pytestmark = [pytest.mark.one_server]

DRAINS = {
    "uvicorn": UVICORN,
    "uvicorn asyncio h11": (*UVICORN, "--loop", "asyncio", "--http", "h11"),
    "uvicorn workers": (*UVICORN, "--workers", "2"),
    "gunicorn": ("gunicorn", "site_app:api", "-k", "uvicorn_worker.UvicornWorker", "-w", "2", "-b", "127.0.0.1:PORT"),
    "hypercorn in one process": ("hypercorn", "site_app:api", "-b", "127.0.0.1:PORT", "--workers", "0"),
    "granian on asyncio": (*("granian", "site_app:api", "--interface", "asgi", "--port", "PORT", "--loop", "asyncio"),),
    "rota serve": ("rota", "serve", "site_app:api", "--port", "PORT"),
}
DRAINS_JOBS_ONLY = {
    "hypercorn": ("hypercorn", "site_app:api", "-b", "127.0.0.1:PORT"),
    "granian": ("granian", "site_app:api", "--interface", "asgi", "--port", "PORT", "--loop", "uvloop"),
}


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> int:
        raise AssertionError("runs in the server")

    return rota_app


def closes(answer: Answer) -> bool:
    assert answer.status == 200
    return answer.headers.get("connection", "").lower() == "close"


def left(app: TestRota) -> bool:
    members = [member for member in app.members_sync(ended=True) if member.work]
    return bool(members) and all(member.end_reason == "left" for member in members)


@pytest.mark.long
@pytest.mark.parametrize("command", DRAINS.values(), ids=list(DRAINS))
def test_a_server_serves_on_for_the_drain_window(
    tmp_path: Path, app: TestRota, rota_database: str, command: tuple[str, ...]
) -> None:
    with Server(tmp_path, rota_database, *command, window=2.0) as server:
        server.wait_until_ready()
        job = app.tasks["nap"].enqueue_sync(0.5)
        server.says("nap")

        began = time.monotonic()
        server.signal()

        server.until(lambda: server.get("/readyz").status == 503, "it is not ready, and answers")
        # of two processes one may hear of the end later, and answer as ever until then
        server.until(lambda: closes(server.get("/")), "it answers, and closes the connection")
        until_sync(lambda: left(app), 10, "the workers have left, while it serves or after")
        assert server.wait(20) in (0, -signal.SIGTERM)
        assert time.monotonic() - began >= 2.0
        assert job.wait_sync(timeout=20) > 0


@pytest.mark.long
@pytest.mark.parametrize("command", DRAINS_JOBS_ONLY.values(), ids=list(DRAINS_JOBS_ONLY))
def test_a_server_that_keeps_the_signal_to_itself_says_so_and_drains_jobs(
    tmp_path: Path, app: TestRota, rota_database: str, command: tuple[str, ...]
) -> None:
    with Server(tmp_path, rota_database, *command, env={"ROTA_DRAIN_TOKEN": "sesame"}) as server:
        server.wait_until_ready()
        assert "no drain window at a signal" in server.output()
        job = app.tasks["nap"].enqueue_sync(0.5)
        server.says("nap")

        # for these preStop calls the endpoint
        assert server.get("/health/drain", method="POST", headers={"Authorization": "Bearer sesame"}).status == 202
        assert server.get("/readyz").status == 503
        assert server.get("/").headers["connection"].lower() == "close"
        server.signal()

        assert server.wait(20) in (0, -signal.SIGTERM)
        assert left(app)
        assert job.wait_sync(timeout=20) > 0
