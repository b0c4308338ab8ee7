"""The least of a server, inside the test: a lifespan, and requests to the application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


class Lifespan:
    """What a server says to an application, and what that answers."""

    def __init__(self, api: Any) -> None:
        self.heard: list[str] = []
        self.state: dict[str, Any] = {}
        self._say: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answered: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
        self.task = asyncio.create_task(api(scope, self._say.get, self._answered.put))

    async def say(self, what: str) -> str:
        """Say this, and return what it answers."""
        self._say.put_nowait({"type": f"lifespan.{what}"})
        async with asyncio.timeout(20):
            return str((await self._answered.get())["type"]).removeprefix("lifespan.")


@asynccontextmanager
async def served(api: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, which is up as long as the block runs."""
    lifespan = Lifespan(api)
    assert await lifespan.say("startup") == "startup.complete"
    try:
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            yield client
    finally:
        assert await lifespan.say("shutdown") == "shutdown.complete"
        await lifespan.task
