"""Open pages hear of what changes, and keep nobody from ending."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.dashboard.visitor import Visitor

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


async def test_a_stream_rests_until_what_it_read_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_BEAT_SECONDS", 0.001)
    reading, owed = asyncio.Queue[int](), iter([0.0, 3600.0])

    async def digests() -> dict[str, str]:
        reading.put_nowait(1)
        return {}

    async def follow() -> None:
        async for _ in live._events(digests, lambda: next(owed)):
            pass

    following = asyncio.create_task(follow())
    async with asyncio.timeout(20):
        await reading.get()
        await reading.get()
    # the third would come after a beat, and comes after an hour
    done, _ = await asyncio.wait([asyncio.create_task(reading.get()), following], timeout=0.3)
    following.cancel()

    assert not done


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
