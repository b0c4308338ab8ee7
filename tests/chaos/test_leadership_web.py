"""A web process leads in the background of what it serves: no worker, no framework, and it serves whether it leads or not."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.testing import until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

# An ASGI application with its lifespan, as a web framework would make one, and the least of a server that runs it.
WEB = """
import asyncio, contextlib, json, signal, socket, sys
from rota import LeadershipLost, Rota

rota = Rota(sys.argv[2])
state = {"leading": None, "served": 0}

async def background():
    while True:
        with contextlib.suppress(LeadershipLost):
            async with rota.leadership("cache-warmer").wait() as term:
                state["leading"] = term.epoch
                try:
                    while True:
                        term.progress(f"served {state['served']}")
                        await asyncio.sleep(0.05)
                finally:
                    state["leading"] = None

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        async with rota:
            warming = asyncio.create_task(background())
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            warming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await warming
        await send({"type": "lifespan.shutdown.complete"})
    else:
        state["served"] += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(state).encode()})

async def serve(listening):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    events, started, ended = asyncio.Queue(), asyncio.Event(), asyncio.Event()

    async def told(message):
        (started if message["type"] == "lifespan.startup.complete" else ended).set()

    async def answer(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")

        async def send(message):
            if message["type"] == "http.response.start":
                writer.write(b"HTTP/1.0 %d OK\\r\\n\\r\\n" % message["status"])
            else:
                writer.write(message["body"])

        await app({"type": "http"}, None, send)
        writer.close()

    life = asyncio.create_task(app({"type": "lifespan"}, events.get, told))
    events.put_nowait({"type": "lifespan.startup"})
    await started.wait()
    async with await asyncio.start_server(answer, sock=listening):
        await stop.wait()
    events.put_nowait({"type": "lifespan.shutdown"})
    await ended.wait()
    await life

asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
"""


class Web:
    def __init__(self, dsn: str, folder: Path) -> None:
        (file := folder / "web.py").write_text(WEB)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            command = [sys.executable, str(file), str(listening.fileno()), dsn]
            self.process = subprocess.Popen(command, pass_fds=[listening.fileno()], start_new_session=True)

    def get(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=10) as response:
            return dict(json.load(response))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def webs(rota_database: str, tmp_path: Path) -> Iterator[list[Web]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Web(rota_database, tmp_path))) for _ in range(2)]


@pytest.mark.long
def test_a_web_process_leads_while_it_serves_and_gives_it_up_when_it_stops(rota_database: str, webs: list[Web]) -> None:
    def leaders() -> list[Web]:
        return [web for web in webs if web.process.poll() is None and web.get()["leading"]]

    (first,) = until_sync(leaders, 20, "one of them leads")
    (second,) = [web for web in webs if web is not first]
    epoch = first.get()["leading"]
    with Rota(rota_database) as app:
        until_sync(lambda: len(app.leaders.list_sync()[0].standbys) == 1, what="the other stands by")
        assert second.get()["leading"] is None  # and serves
        served = first.get()["served"]
        until_sync(lambda: progress(app) >= served, what="its work goes on")

        first.process.terminate()
        until_sync(lambda: second.get()["leading"], what="the other leads")

        assert second.get()["leading"] > epoch
        assert first.process.wait(10) == 0
        assert [term.end_reason for term in app.leaders.terms_sync("cache-warmer")] == [None, "resigned"]

        second.process.kill()
        with app.leadership("cache-warmer").wait("10s") as term:
            assert term.epoch > epoch


def progress(app: Rota) -> int:
    return int((app.leaders.list_sync()[0].progress_note or "served -1").rpartition(" ")[2])
