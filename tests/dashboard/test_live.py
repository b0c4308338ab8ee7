"""Open pages hear of what changes, and keep nobody from ending."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.visitor import Visitor
from tests.web.servers import Server, free_port

from rota.dashboard import live
from rota.dashboard.application import Dashboard
from rota.service.ending import ENDING
from rota.testing import TestRota

pytestmark = pytest.mark.one_server


@contextlib.asynccontextmanager
async def stream(dashboard: Any, path: str) -> AsyncIterator[asyncio.Queue[dict[str, Any] | None]]:
    """What a stream sends, as it comes; None at its end. A client of a whole answer would wait for that."""
    sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "root_path": "",
        "query_string": b"_live=1",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def send(message: dict[str, Any]) -> None:
        text = message.get("body", b"").decode()
        if text.startswith("data: "):
            sent.put_nowait(json.loads(text.removeprefix("data: ")))
        if message["type"] == "http.response.start":
            sent.put_nowait({"status": message["status"]})

    asked = asyncio.create_task(dashboard(scope, asyncio.Event().wait, send))
    asked.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        yield sent
    finally:
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked


async def test_a_stream_tells_of_a_change_and_the_fragment_has_it(rota_app: TestRota) -> None:
    @rota_app.task
    async def send(to: str) -> None: ...

    dashboard = rota_app.dashboard()
    visitor = Visitor(dashboard)
    shown = re.search(r'data-region="list" data-digest="(\w+)"', (await visitor.get("jobs")).text)
    assert shown is not None

    async with stream(dashboard, "jobs") as messages, asyncio.timeout(20):
        assert await messages.get() == {"status": 200}
        first = await messages.get()
        job = await send.enqueue("ana")
        second = await messages.get()
        fragment = await visitor.get("jobs?_fragment=list")

    assert first is not None
    assert second is not None
    assert first["list"] == shown[1]
    assert second["list"] != shown[1]
    assert f'data-key="job-{job.id}"' in fragment.text
    assert fragment.headers["x-rota-digest"] == second["list"]
    assert "<html" not in fragment.text


async def test_a_stream_ends_by_itself_after_a_while(rota_app: TestRota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LIFE_SECONDS", 0.5)

    async with stream(rota_app.dashboard(), "jobs") as messages, asyncio.timeout(20):
        while await messages.get() is not None:
            pass


async def test_a_stream_ends_when_the_process_is_to_end_and_none_begins_then(rota_app: TestRota) -> None:
    dashboard = rota_app.dashboard()

    async with stream(dashboard, "jobs") as messages, asyncio.timeout(20):
        await messages.get()
        await messages.get()
        began = time.monotonic()
        ENDING.begin("a test")
        ended = await messages.get()
    async with stream(dashboard, "jobs") as messages, asyncio.timeout(20):
        refused = await messages.get()

    assert ended is None
    assert time.monotonic() - began < 15
    assert refused == {"status": 503}


async def test_a_database_that_does_not_answer_keeps_no_stream_from_ending(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def hang(*_: Any) -> dict[str, str]:
        begun.set()
        await asyncio.sleep(3600)
        return {}

    monkeypatch.setattr(Dashboard, "_digests", hang)

    async with stream(rota_app.dashboard(), "jobs") as messages, asyncio.timeout(20):
        assert await messages.get() == {"status": 200}
        await begun.wait()
        ENDING.begin("a test")
        assert await messages.get() is None


SITE = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from rota import Rota

app = Rota()
ready = Route("/health/ready", lambda request: PlainTextResponse("yes"))
mounted = Starlette(routes=[ready, Mount("/rota", app.dashboard())])
attached = Starlette()
app.attach(attached, dashboard="/rota", worker=False)
"""


@contextlib.contextmanager
def open_tab(port: int, path: str) -> Iterator[http.client.HTTPResponse]:
    """A stream that a browser holds open."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Host": "localhost"})
        response = connection.getresponse()
        assert response.status == 200
        assert response.readline() == b"retry: 1000\n"
        yield response


@pytest.mark.parametrize(
    ("command", "path", "window"),
    [
        (("uvicorn", "site_app:mounted", "--port", "PORT"), "/rota/jobs", 0.0),
        (("uvicorn", "site_app:attached", "--port", "PORT"), "/rota/jobs", 0.3),
        (("rota", "dashboard", "--port", "PORT"), "/jobs", 0.0),
    ],
    ids=["mounted", "attached", "alone"],
)
def test_an_open_tab_does_not_hold_up_a_shutdown(
    command: tuple[str, ...], path: str, window: float, rota_database: str, tmp_path: Path
) -> None:
    with Server(tmp_path, rota_database, *command, port=free_port(), site=SITE, window=window) as server:
        server.wait_until_ready()
        server.signal()
        alone = server.wait()
    with Server(tmp_path, rota_database, *command, port=free_port(), site=SITE, window=window) as server:
        server.wait_until_ready()
        with open_tab(server.port, f"{path}?_live=1") as tab:
            began = time.monotonic()
            server.signal()
            tab.read()
            ended = server.wait()
            took = time.monotonic() - began

    assert ended == alone
    assert ended in (0, -signal.SIGTERM)
    # without its own end the stream would go on for twenty seconds; the rest is for a busy machine
    assert took < window + 8
