"""PgQueuer with its asyncpg pool and batches of 1,000, which a sweep found to be its best; on its defaults if asked to."""

from __future__ import annotations

from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from shape import Progress, main


class Client:
    def __init__(self, connection: Any, queries: Queries) -> None:
        self.connection, self.queries = connection, queries

    async def one(self, i: int) -> None:
        await self.queries.enqueue("noop", b"%d" % i)

    async def many(self, numbers: range) -> None:
        count = len(numbers)
        await self.queries.enqueue(["noop"] * count, [b"%d" % i for i in numbers], [0] * count)

    async def close(self) -> None:
        await self.connection.close()


class Peer:
    async def setup(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def client(self, dsn: str, lanes: int) -> Client:
        if lanes == 1:
            connection = await asyncpg.connect(dsn)
            return Client(connection, Queries(AsyncpgDriver(connection)))
        pool = await asyncpg.create_pool(dsn, min_size=lanes, max_size=lanes)
        return Client(pool, Queries(AsyncpgPoolDriver(pool)))

    async def work(self, dsn: str, settings: dict[str, Any], progress: Progress) -> None:
        if settings.get("defaults"):
            queue, options = PgQueuer.from_asyncpg_connection(await asyncpg.connect(dsn)), {}
        else:
            pool = await asyncpg.create_pool(dsn, min_size=2, max_size=8)
            queue, options = PgQueuer.from_asyncpg_pool(pool), {"batch_size": 1000}

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            progress(int(job.payload or b"0"))

        await queue.run(**options)


if __name__ == "__main__":
    main(Peer())
