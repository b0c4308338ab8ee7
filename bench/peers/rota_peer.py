"""Rota as its users have it: tasks, their bodies' arguments checked, history kept."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from rota_tasks import define
from shape import Progress, main

from rota import Rota
from rota.runtime.measure import wal_position


class Client:
    def __init__(self, dsn: str) -> None:
        self.app = Rota(dsn)
        self.noop = define(self.app)["noop"]

    async def one(self, i: int) -> object:
        return await self.noop.enqueue(i)

    async def many(self, numbers: range) -> object:
        return await self.app.enqueue_many([self.noop.bind(i) for i in numbers])

    def all(self, numbers: range) -> Callable[[], Awaitable[object]]:
        bound = [self.noop.bind(i) for i in numbers]
        return lambda: self.app.enqueue_many(bound)

    async def close(self) -> None:
        await self.app.close()


class Peer:
    async def setup(self, dsn: str) -> None:
        async with Rota(dsn) as app:
            await app.migrate()

    async def client(self, dsn: str, lanes: int) -> Client:
        client = Client(dsn)
        # its connections are there before the clock runs, as they are in the raw client
        await asyncio.gather(*(client.app.database.run(wal_position()) for _ in range(lanes)))
        return client

    async def work(self, dsn: str, settings: dict[str, Any], progress: Progress) -> None:
        if settings.get("body") == "process":
            os.environ["ROTA_DATABASE_URL"] = dsn
            from rota_processes import app
        else:
            app = Rota(dsn)
            define(app, progress, in_thread=settings.get("body") == "thread")
        gc.freeze()  # as `rota worker` does
        # what it was given and has not begun goes back: the next worker is not to find it as what a death left behind
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
        await app.work(concurrency=settings.get("concurrency"), queues=settings.get("queues"))
        await app.close()
        progress.end()


if __name__ == "__main__":
    main(Peer())
