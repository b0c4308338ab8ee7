"""What this database and this machine can do, measured with real jobs in a schema of their own.

Rates are of one process with default settings. Compare them only with figures taken beside them: a shared machine gives
half of it a minute later.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

from rota.app import Rota
from rota.errors import RotaError
from rota.facts import Drained, WorkerStopped
from rota.postgres.query import Query, nothing, one, scalar, statement

__all__ = ["Figures", "measure"]

SCHEMA = "rota_bench"


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates are jobs per second, for the drain from the first line of the first body until all is settled and nothing more is
    found; times are seconds from the call of enqueue to the first line of the body."""

    enqueue_one_rate: float
    enqueue_many_rate: float
    drain_rate: float
    pickup_p50: float
    pickup_p99: float
    enqueue_wal_bytes: float
    drain_wal_bytes: float
    drain_statements: float


WAL = statement("wal_position", "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8")


def wal_position() -> Query[float]:
    """How many bytes of write-ahead log the server has written so far."""
    return WAL.query(read=scalar)


SETTLED = statement("bench_settled", "select count(*), count(distinct id) from {schema}.history")


def count_settled() -> Query[tuple[int, int]]:
    """How many jobs are in history, and how many different ones."""
    return SETTLED.query(read=one(lambda rows, jobs: (rows, jobs)))


DROP = statement("drop_bench", "drop schema if exists {schema} cascade")


def drop_schema() -> Query[None]:
    return DROP.query(read=nothing)


async def measure(dsn: str | None, *, jobs: int = 20_000, singles: int = 500, pickups: int = 300) -> Figures:
    """Enqueue, drain and pick up jobs on this database, and remove all traces of it."""
    app = Rota(dsn, schema=SCHEMA)
    started: dict[int, float] = {}

    @app.task(name="noop")
    async def noop(i: int) -> None:
        started[i] = time.perf_counter()

    async with app, _own_schema(app):
        bound = [noop.bind(i) for i in range(jobs)]
        one_rate = await _rate(singles, _one_by_one(app, singles))
        await app.work(drain=True)

        empty = await app.database.run(wal_position())
        many_rate = await _rate(jobs, app.enqueue_many(bound))
        full = await app.database.run(wal_position())
        started.clear()
        ended: list[float] = []
        unsubscribe = app.facts.subscribe(lambda _: ended.append(time.perf_counter()), Drained)
        with app.facts.recorded(WorkerStopped) as stopped:
            await app.work(drain=True)
        unsubscribe()
        drain_rate = jobs / (ended[0] - min(started.values()))
        drained = await app.database.run(wal_position())
        if await app.database.run(count_settled()) != (jobs + singles, jobs + singles):
            raise RotaError(
                "Not every job was settled exactly once: these figures would be worth nothing. Please report this."
            )

        delays = await _pick_up(app, started, pickups)
    return Figures(
        enqueue_one_rate=one_rate,
        enqueue_many_rate=many_rate,
        drain_rate=drain_rate,
        pickup_p50=statistics.median(delays),
        pickup_p99=statistics.quantiles(delays, n=100)[98],
        enqueue_wal_bytes=(full - empty) / jobs,
        drain_wal_bytes=(drained - full) / jobs,
        drain_statements=stopped[0].statements / jobs,
    )


async def _rate(count: int, work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return count / (time.perf_counter() - began)


async def _one_by_one(app: Rota, count: int) -> None:
    for i in range(count):
        await app.tasks["noop"].enqueue(i)


async def _pick_up(app: Rota, started: dict[int, float], count: int) -> list[float]:
    """From the call of enqueue to the start of the body, with a worker that idles in between."""
    working = asyncio.create_task(app.work())
    started.clear()
    called: dict[int, float] = {}
    for i in range(count):
        called[i] = time.perf_counter()
        await app.tasks["noop"].enqueue(i)
        await asyncio.sleep(0.01)
    app.stop()
    await working
    await app.work(drain=True)  # whatever the last moments left behind
    return [started[i] - called[i] for i in range(count)]


@contextlib.asynccontextmanager
async def _own_schema(app: Rota) -> AsyncIterator[None]:
    await app.database.run(drop_schema())
    await app.migrate()
    try:
        yield
    finally:
        await app.database.run(drop_schema())
