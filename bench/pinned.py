"""A queue whose dead rows stay, because someone's transaction has been open for ten minutes: what is left of its speed?

A snapshot is held while 600,000 jobs pass (1,000 a second for ten minutes, told at full speed), so the index of what is
queued holds that many dead entries. Then, as before it and after it: a steady stream of 1,000 jobs a second, and a drain.

python bench/pinned.py            embedded server, thrown away afterwards
python bench/pinned.py DSN
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from rota import Rota, Task
from rota.embedded import EmbeddedServer

PASSED = 600_000
DRAINED = 20_000
PER_SECOND = 1_000
SECONDS = 10
BAR = 0.5  # the least share of the rate without dead rows


@dataclass(frozen=True, slots=True)
class Speed:
    drained_per_second: float
    streamed_per_second: float
    pickup_p50: float
    pickup_p99: float

    def __str__(self) -> str:
        return (
            f"drain {self.drained_per_second:7,.0f}/s; of {PER_SECOND:,}/s streamed {self.streamed_per_second:5,.0f}/s, "
            f"picked up after {self.pickup_p50 * 1000:6.1f} ms (p99 {self.pickup_p99 * 1000:7.1f} ms)"
        )


async def compare(dsn: str) -> None:
    app = Rota(dsn, schema=f"pinned_{uuid4().hex[:8]}")
    started: dict[int, float] = {}

    @app.task
    async def noop(i: int) -> None:
        started[i] = time.perf_counter()

    async with app:
        await app.migrate()
        before = await speed(app, noop, started)
        print("before:      ", before)
        async with await psycopg.AsyncConnection.connect(dsn) as other:
            await other.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await other.execute("select 1")
            for _ in range(PASSED // DRAINED):
                await app.enqueue_many([noop.bind(i) for i in range(DRAINED)])
                await app.work(drain=True)
            pinned = await speed(app, noop, started)
            print("pinned:      ", pinned)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
            await other.execute(f'vacuum "{app.settings.schema}".jobs')
        after = await speed(app, noop, started)
        print("let go again:", after)
        async with app.database.transaction() as connection:
            await connection.execute(f'drop schema "{app.settings.schema}" cascade')

    drain = pinned.drained_per_second / before.drained_per_second
    stream = pinned.streamed_per_second / before.streamed_per_second
    print(f"of the rate before: drain {drain:.2f}, stream {stream:.2f}")
    if min(drain, stream) < BAR:
        sys.exit(f"below the bar of {BAR}")


async def speed(app: Rota, noop: Task[[int], None], started: dict[int, float]) -> Speed:
    await app.enqueue_many([noop.bind(i) for i in range(DRAINED)])
    started.clear()
    await app.work(drain=True)
    drained = DRAINED / (max(started.values()) - min(started.values()))

    started.clear()
    working = asyncio.create_task(app.work())
    called: dict[int, float] = {}
    at_once = PER_SECOND // 50
    began = time.perf_counter()
    for tick in range(SECONDS * 50):
        await asyncio.sleep(began + tick / 50 - time.perf_counter())
        numbers = range(tick * at_once, (tick + 1) * at_once)
        called |= dict.fromkeys(numbers, time.perf_counter())
        await app.enqueue_many([noop.bind(i) for i in numbers])
    streamed = len(started) / (time.perf_counter() - began)
    while len(started) < len(called):
        await asyncio.sleep(0.01)
    app.stop()
    await working
    delays = [started[i] - called[i] for i in called]
    return Speed(drained, streamed, statistics.median(delays), statistics.quantiles(delays, n=100)[98])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(compare(sys.argv[1]))
    else:
        with EmbeddedServer(ephemeral=True) as server:
            asyncio.run(compare(server.start()))
