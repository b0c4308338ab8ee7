"""A real Chromium, and a real dashboard with a real worker behind it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.web.servers import Server

from rota import Rota

# as root there is no sandbox; the rest keeps it from calling home
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]

SITE = """
import asyncio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from rota import Rota

app = Rota()

@app.task(queue="mail")
async def send(to: str) -> str:
    return f"sent to {to}"

@app.task(retry=None)
async def fail(number: int) -> None:
    raise ValueError(f"cannot do {number} <b>at all</b>")

@app.every("1h")
@app.task
async def tidy() -> None: ...

@app.singleton("indexer")
async def indexer(term) -> None:
    await asyncio.Event().wait()

ready = Route("/health/ready", lambda request: PlainTextResponse("yes"))
mounted = Starlette(routes=[ready, Mount("/tools/rota", app.dashboard())])
"""

ALONE = ("rota", "dashboard", "site_app:app", "--port", "PORT")
MOUNTED = ("uvicorn", "site_app:mounted", "--port", "PORT", "--no-access-log")


# not for longer than a test: while it is there, an event loop of Playwright's runs in this thread, in which no other could
@pytest.fixture
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("Chromium is missing, and CI must have it: .ci/run installs it")
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Site:
    """A dashboard that is served, its address, and what to do behind its back."""

    url: str
    app: Rota


@pytest.fixture
def site(rota_database: str, tmp_path: Path, rota_worker: Callable[..., Any]) -> Iterator[Callable[..., Site]]:
    started: list[Server] = []
    with Rota(rota_database) as app:

        def start(*command: str, path: str = "/") -> Site:
            server = Server(tmp_path, rota_database, *command, site=SITE)
            started.append(server)
            rota_worker(server.folder / "site_app.py")
            server.wait_until_ready()
            return Site(f"http://localhost:{server.port}{path}", app)

        yield start
        for server in started:
            server.__exit__(None, None, None)


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens tabs; at the end nothing was said on their consoles, as a breach of the content policy would be."""
    said: list[str] = []
    contexts = []

    def open_tab(**options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert said == []
