"""Real web servers for tests: an application of a few routes and tasks, started as users start theirs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rota.testing import until_sync

SITE = """
import asyncio, os
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

import rota
from rota import Rota

app = Rota()
said = os.environ.get("SITE_SAYS")

def say(what):
    if said:
        with open(said, "a") as file:
            file.write(what + "\\n")

@asynccontextmanager
async def lifespan(api):
    say("starting")
    try:
        await asyncio.sleep(float(os.environ.get("SITE_STARTS_IN", "0")))
    except asyncio.CancelledError:
        say("interrupted")
        raise
    say("started")
    yield {"given": "by the lifespan"}
    say("stopped")

async def index(request):
    return JSONResponse({"pid": os.getpid()})

def streams(media_type):
    def decorate(body):
        async def answer(request):
            return StreamingResponse(body(), media_type=media_type)
        return answer
    return decorate

@streams("text/event-stream")
async def events():
    yield "data: first\\n\\n"
    await asyncio.Event().wait()

@streams("text/event-stream")
async def polite():
    yield "data: first\\n\\n"
    await rota.draining()
    yield f"data: {bool(rota.draining())}\\n\\n"

@streams("text/plain")
async def endless():
    while True:
        yield "more\\n"
        await asyncio.sleep(0.1)

async def socket(socket):
    await socket.accept()
    while True:
        await socket.send_text(await socket.receive_text())

@app.task(name="nap")
async def nap(seconds: float) -> int:
    say("nap")
    await asyncio.sleep(seconds)
    return os.getpid()

@app.singleton("boss")
async def boss(term):
    say(f"leading {os.getpid()}")
    await asyncio.Event().wait()

api = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/", index),
        Route("/events", events),
        Route("/polite", polite),
        Route("/endless", endless),
        WebSocketRoute("/socket", socket),
    ],
)

if os.environ.get("SITE_ATTACHED", "1") == "1":
    app.attach(api)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Server:
    """A web server in a process and a session of its own, from construction until it ends or the block does."""

    def __init__(
        self,
        folder: Path,
        dsn: str,
        *command: str,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        site: str = SITE,
        window: float = 0.5,
        terminal: int | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        self.folder = folder / f"site-{self.port}"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "site_app.py").write_text(site)
        self._output = self.folder / "output"
        self._said = self.folder / "said"
        words = [word.replace("PORT", str(self.port)) for word in command or UVICORN]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    "ROTA_DATABASE_URL": dsn,
                    "ROTA_DRAIN_WINDOW": str(window),
                    "ROTA_GRACE": "10",
                    "SITE_SAYS": str(self._said),
                    **(env or {}),
                },
                start_new_session=True,
            )

    def get(self, path: str = "/", *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
        """Ask once, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())

    def ready(self) -> bool:
        """Whether it says so; False also when nobody answers."""
        return self.status("/health/ready") == 200

    def status(self, path: str) -> int | None:
        try:
            return self.get(path).status
        except OSError:
            return None

    def wait_until_ready(self) -> Self:
        self.until(self.ready, "it is ready")
        return self

    def until(self, what: Any, why: str, timeout: float = 20) -> None:
        def so() -> bool:
            ended = self.process.poll() is not None
            if what():
                return True
            assert not ended, f"it ended with {self.process.returncode}, saying:\n{self.output()}"
            return False

        try:
            until_sync(so, timeout, why)
        except AssertionError as error:
            raise AssertionError(f"{error}\nIt said:\n{self.output()}") from error

    def says(self, what: str) -> None:
        """Return when the application has said this."""
        self.until(lambda: self._said.exists() and what in self._said.read_text(), f"it says {what}")

    def said(self) -> list[str]:
        return self._said.read_text().splitlines() if self._said.exists() else []

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 20) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"It did not end within {timeout:g} s. It said:\n{self.output()}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(self.output())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


UVICORN: Sequence[str] = ("uvicorn", "site_app:api", "--port", "PORT", "--no-access-log")
SERVE: Sequence[str] = ("rota", "serve", "site_app:api", "--port", "PORT")
