"""The reference: what asyncpg and PostgreSQL do with the same jobs when there is no queue around them.

One table, rows claimed in batches of 500 on one connection while those before are marked done on another. No tokens, no
attempts, no errors, no tasks: nothing that makes it a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from shape import Progress, main

TABLE = """
    create table jobs (
        id bigint generated always as identity primary key,
        queue text not null default 'default',
        priority integer not null default 0,
        due_at timestamptz not null default now(),
        state smallint not null default 0,
        args jsonb,
        finished_at timestamptz
    ) with (fillfactor = 70);
    create index on jobs (queue, priority, due_at, id) where state = 0
"""

CLAIM = """
    update jobs set state = 1
    where id = any (array(
        select id
        from jobs
        where state = 0 and queue = 'default' and due_at <= now()
        order by priority, due_at, id
        limit $1
        for update skip locked
    ))
    returning id, args
"""

DONE = "update jobs set state = 2, finished_at = now() where id = any ($1::bigint[]) and state = 1"

ONE = "with put as (insert into jobs (args) values ($1)) select pg_notify('raw', '')"

MANY = "insert into jobs (args) select args::jsonb from unnest($1::text[]) as args returning id"


class Client:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def one(self, i: int) -> None:
        await self.connection.execute(ONE, '{"i":%d}' % i)  # noqa: UP031

    async def many(self, numbers: range) -> list[Any]:
        return await self.connection.fetch(MANY, ['{"i":%d}' % i for i in numbers])  # noqa: UP031

    def all(self, numbers: range) -> Callable[[], Awaitable[object]]:
        records = [('{"i":%d}' % i,) for i in numbers]  # noqa: UP031
        return lambda: self.connection.copy_records_to_table("jobs", records=records, columns=["args"])

    async def close(self) -> None:
        await self.connection.close()


class Raw:
    async def setup(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(TABLE)
        await connection.close()

    async def client(self, dsn: str, lanes: int) -> Client:
        if lanes == 1:
            return Client(await asyncpg.connect(dsn))
        return Client(await asyncpg.create_pool(dsn, min_size=lanes, max_size=lanes))

    async def work(self, dsn: str, settings: dict[str, Any], progress: Progress) -> None:
        claiming, settling, listening = [await asyncpg.connect(dsn) for _ in range(3)]
        woken = asyncio.Event()
        await listening.add_listener("raw", lambda *_: woken.set())
        claim, done = await claiming.prepare(CLAIM), await settling.prepare(DONE)
        before: asyncio.Future[Any] | None = None
        while True:
            woken.clear()
            if rows := await claim.fetch(settings.get("batch", 500)):
                for row in rows:
                    progress(json.loads(row["args"])["i"])
                if before is not None:
                    await before
                before = asyncio.ensure_future(done.fetch([row["id"] for row in rows]))
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), 0.5)


if __name__ == "__main__":
    main(Raw())
