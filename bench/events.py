"""Event logs and projections, each figure beside plain psycopg that is measured in turns with it.

python bench/events.py                    all of it, on the embedded server, thrown away afterwards
python bench/events.py append project     some of it
python bench/events.py --short idle       with less work
python bench/events.py --dsn DSN          elsewhere; idle needs pg_stat_statements there

What is plain: for an append, one insert through a pool of psycopg's, autocommitted and prepared, into a table with the columns,
checks and indexes of our events; its caller knows the version already, and nobody is told. For a projection, a loop that
selects 500 events, runs the same upsert for each, updates its checkpoint and commits; with nothing for order, owners or errors.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import psycopg
from psycopg.abc import Query as Sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from rota import Rota
from rota.embedded import EmbeddedServer
from rota.events.event import Event
from rota.facts import EventsProjected
from rota.testing.processes import WorkerProcess

# a figure without fsync says little about a production server
SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",  # one in the middle would fall on whoever works just then
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "top",
}
DATA = {"order": 17, "sum": 12.5, "currency": "EUR"}
STREAMS = 1_000
BATCH = 500
CONCURRENCY = 10
POOLED = {"autocommit": True, "prepare_threshold": 0}

INSERT = """
    insert into plain_events (order_xid, log, stream, version, type, data)
    values (pg_current_xact_id(), %s, %s, %s, %s, %s::jsonb)
    returning position
"""
UPSERT = (
    "insert into {table} (stream, events) values (%s, 1) on conflict (stream) do update set events = {table}.events + 1"
)
SELECT = """
    select order_xid::text, position, stream, version, type, data, metadata, created_at
    from "{schema}".events
    where log = 'orders'
      and (order_xid, position) > (%s::xid8, %s)
    order by order_xid, position
    limit 500
"""
MOVE = "update plain_checkpoint set order_xid = %s::xid8, position = %s"
IDLE = """
    select sum(calls)::float8
    from pg_stat_statements
    where dbid = (select oid from pg_database where datname = current_database())
      and query not like '%pg_stat_statements%'
"""
OWNER = """
    select member.pid
    from "{schema}".leases as lease
    join "{schema}".members as member on member.id = lease.member
    where lease.name = 'rota.projection/taken/1'
      and member.ended_at is null
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--dsn")
    parser.add_argument("--short", action="store_true")
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        dsn = chosen.dsn or stack.enter_context(EmbeddedServer(ephemeral=True, options=SERVER)).start()
        for name in chosen.names or BENCHMARKS:
            print(f"== {name}", flush=True)
            with Bench.opened(dsn, short=chosen.short) as bench:
                asyncio.run(BENCHMARKS[name](bench))


class Bench:
    """A schema of its own, the tables of what is plain, and an app."""

    def __init__(self, dsn: str, app: Rota, db: psycopg.Connection[Any], short: bool) -> None:
        self.dsn, self.app, self.db, self.short = dsn, app, db, short
        self.schema = app.settings.schema
        self.log = app.event_log("orders")
        self.tables = 0

    @classmethod
    @contextlib.contextmanager
    def opened(cls, dsn: str, *, short: bool) -> Iterator[Bench]:
        app = Rota(dsn, schema=f"events_{uuid4().hex[:8]}")
        with psycopg.connect(dsn, autocommit=True) as db:
            app.migrate_sync()
            bench = cls(dsn, app, db, short)
            bench.run(f'create table plain_events (like "{bench.schema}".events including all)')
            try:
                yield bench
            finally:
                app.close_sync()
                bench.run(f'drop schema "{bench.schema}" cascade')
                bench.run("drop table if exists plain_events, plain_checkpoint, bench_taken cascade")

    def run(self, sql: str) -> None:
        self.db.execute(cast(Sql, sql))

    def rows(self, sql: str) -> list[Any]:
        return self.db.execute(cast(Sql, sql)).fetchall()

    def size(self, whole: int, short: int) -> int:
        return short if self.short else whole

    async def fill(self, events: int) -> None:
        """So many events over the streams, a thousand with each append."""
        for first in range(0, events, 1000):
            new = [self.log.bind(f"s{n % STREAMS}", "Paid", DATA) for n in range(first, min(first + 1000, events))]
            await self.log.append_many(new)
        self.run(f'vacuum analyze "{self.schema}".events')

    @contextlib.contextmanager
    def table(self) -> Iterator[str]:
        """A table to project into."""
        name = f"bench_totals_{self.tables}"
        self.tables += 1
        self.run(f"create table {name} (stream text primary key, events bigint not null) with (fillfactor = 50)")
        try:
            yield name
            assert self.rows(f"select sum(events) from {name}") == self.rows(
                f'select count(*)::numeric from "{self.schema}".events'
            )
        finally:
            self.run(f"drop table {name}")

    @contextlib.asynccontextmanager
    async def working(self, app: Rota) -> AsyncIterator[None]:
        working = asyncio.create_task(app.work(queues=["nobody"]))
        try:
            yield
        finally:
            app.stop()
            await working


# Appending.


async def append(bench: Bench) -> None:
    count, rounds = bench.size(2_000, 500), bench.size(7, 3)
    numbers = iter(range(10**9))
    versions: dict[str, int] = {}
    lock = threading.Lock()

    def of_plain() -> list[Any]:
        with lock:
            stream = f"s{next(numbers) % STREAMS}"
            versions[stream] = versions.get(stream, 0) + 1
            return ["orders", stream, versions[stream], "Paid", json.dumps(DATA)]

    expected: dict[str, int] = {}

    def at_version() -> tuple[str, int]:
        stream = f"expected-{next(numbers) % STREAMS}"
        expected[stream] = expected.get(stream, 0) + 1
        return stream, expected[stream] - 1

    log = bench.log
    async with AsyncConnectionPool(bench.dsn, kwargs=POOLED, min_size=1, max_size=CONCURRENCY) as pool:
        with ConnectionPool(bench.dsn, kwargs=POOLED, min_size=1, max_size=CONCURRENCY) as pool_sync:

            async def plain() -> None:
                async with pool.connection() as connection:
                    await (await connection.execute(INSERT, of_plain())).fetchone()

            async def ours() -> None:
                await log.append(f"s{next(numbers) % STREAMS}", "Paid", DATA)

            async def with_version() -> None:
                stream, version = at_version()
                await log.append(stream, "Paid", DATA, expected_version=version)

            def plain_sync() -> None:
                with pool_sync.connection() as connection:
                    connection.execute(INSERT, of_plain()).fetchone()

            def ours_sync() -> None:
                log.append_sync(f"s{next(numbers) % STREAMS}", "Paid", DATA)

            def with_version_sync() -> None:
                stream, version = at_version()
                log.append_sync(stream, "Paid", DATA, expected_version=version)

            async def in_turn(one: Callable[[], Awaitable[None]]) -> None:
                for _ in range(count):
                    await one()

            async def beside(one: Callable[[], Awaitable[None]]) -> None:
                async def some() -> None:
                    for _ in range(count // CONCURRENCY):
                        await one()

                await asyncio.gather(*(some() for _ in range(CONCURRENCY)))

            async def in_thread(one: Callable[[], None]) -> None:
                for _ in range(count):
                    one()

            async def in_threads(one: Callable[[], None]) -> None:
                def some() -> None:
                    for _ in range(count // CONCURRENCY):
                        one()

                threads = [threading.Thread(target=some) for _ in range(CONCURRENCY)]
                for each in threads:
                    each.start()
                for each in threads:
                    await asyncio.to_thread(each.join)

            ways: dict[str, tuple[Callable[[Any], Awaitable[None]], dict[str, Any]]] = {
                "async, alone": (in_turn, {"plain": plain, "append": ours, "with a version": with_version}),
                f"async, {CONCURRENCY} at a time": (beside, {"plain": plain, "append": ours}),
                "sync, alone": (
                    in_thread,
                    {"plain": plain_sync, "append": ours_sync, "with a version": with_version_sync},
                ),
                f"sync, {CONCURRENCY} threads": (in_threads, {"plain": plain_sync, "append": ours_sync}),
            }
            for way, (drive, kinds) in ways.items():
                rates: dict[str, list[float]] = {kind: [] for kind in kinds}
                for turn in range(rounds + 1):
                    for kind, one in kinds.items():
                        seconds = await _timed(drive(one))
                        if turn:  # the first opens connections and prepares
                            rates[kind].append(count / seconds)
                _told(f"append, {way}", rates)
    await _append_many(bench)


async def _append_many(bench: Bench) -> None:
    """A thousand in one call, beside one plain insert of as many rows."""
    rates: dict[str, list[float]] = {"plain": [], "append_many": []}
    plain = """
        insert into plain_events (order_xid, log, stream, version, type, data)
        select pg_current_xact_id(), 'many', 's', version, 'Paid', data::jsonb
        from unnest(%s::bigint[], %s::text[]) as new(version, data)
        returning position
    """
    for turn in range(bench.size(20, 5)):
        versions = list(range(turn * 1000 + 1, turn * 1000 + 1001))
        began = time.perf_counter()
        bench.db.execute(plain, [versions, [json.dumps(DATA)] * 1000]).fetchall()
        rates["plain"].append(1000 / (time.perf_counter() - began))
        began = time.perf_counter()
        await bench.log.append_many([bench.log.bind("many", "Paid", DATA) for _ in range(1000)])
        rates["append_many"].append(1000 / (time.perf_counter() - began))
    _told("append_many of 1,000", rates)


# Projecting.


async def project(bench: Bench) -> None:
    events, rounds = bench.size(100_000, 20_000), bench.size(3, 2)
    await bench.fill(events)
    each: dict[str, Any] = {"plain, async": _plain, "plain, sync": _plain_sync, "plain, executemany": _plain_many}
    each |= {"per event, async": "event", "per event, sync": "event_sync", "per batch, executemany": "batch"}
    rates: dict[str, list[float]] = {kind: [] for kind in each}
    for turn in range(rounds):
        for kind, way in each.items():
            with bench.table() as table:
                if isinstance(way, str):
                    seconds = await _projected(bench, f"{way}_{turn}", table, way, events)
                else:
                    bench.run("create table plain_checkpoint as select '0'::xid8 as order_xid, 0::bigint as position")
                    seconds = await _timed(way(bench, table))
                    bench.run("drop table plain_checkpoint")
            rates[kind].append(events / seconds)
    for ours, plain in (
        ("per event, async", "plain, async"),
        ("per event, sync", "plain, sync"),
        ("per batch, executemany", "plain, executemany"),
    ):
        _told(f"projecting {events:,} events", {plain: rates[plain], ours: rates[ours]})


async def _projected(bench: Bench, name: str, table: str, way: str, events: int) -> float:
    """Seconds from the first look to the last commit."""
    app = Rota(bench.dsn, schema=bench.schema)
    log, upsert = app.event_log("orders"), UPSERT.format(table=table)

    async def event(event: Event, connection: Any) -> None:
        await connection.execute(upsert, [event.stream])

    def event_sync(event: Event, connection: Any) -> None:
        connection.execute(upsert, [event.stream])

    async def batch(events: list[Event], connection: Any) -> None:
        async with connection.cursor() as cursor:
            await cursor.executemany(upsert, [[event.stream] for event in events])

    handlers: dict[str, Callable[..., Any]] = {"event": event, "event_sync": event_sync, "batch": batch}
    app.projection(name, source=log, batch=BATCH)(handlers[way])
    done, taken, began = asyncio.Event(), 0, 0.0

    def heard(fact: Any) -> None:
        nonlocal taken, began
        began = began or time.perf_counter() - fact.seconds
        taken += fact.events
        if taken == events:
            done.set()

    app.facts.subscribe(heard, EventsProjected)
    async with bench.working(app):
        await asyncio.wait_for(done.wait(), 120)
        seconds = time.perf_counter() - began
    await app.close()
    return seconds


async def _plain(bench: Bench, table: str) -> None:
    select, upsert, place = SELECT.format(schema=bench.schema), UPSERT.format(table=table), ("0", 0)
    async with await psycopg.AsyncConnection.connect(bench.dsn, prepare_threshold=0) as connection:
        while rows := await (await connection.execute(cast(Sql, select), place)).fetchall():
            for row in rows:
                await connection.execute(cast(Sql, upsert), [row[2]])
            place = rows[-1][:2]
            await connection.execute(MOVE, place)
            await connection.commit()


async def _plain_sync(bench: Bench, table: str) -> None:
    select, upsert, place = SELECT.format(schema=bench.schema), UPSERT.format(table=table), ("0", 0)
    with psycopg.connect(bench.dsn, prepare_threshold=0) as connection:
        while rows := connection.execute(cast(Sql, select), place).fetchall():
            for row in rows:
                connection.execute(cast(Sql, upsert), [row[2]])
            place = rows[-1][:2]
            connection.execute(MOVE, place)
            connection.commit()


async def _plain_many(bench: Bench, table: str) -> None:
    select, upsert, place = SELECT.format(schema=bench.schema), UPSERT.format(table=table), ("0", 0)
    async with await psycopg.AsyncConnection.connect(bench.dsn, prepare_threshold=0) as connection:
        while rows := await (await connection.execute(cast(Sql, select), place)).fetchall():
            async with connection.cursor() as cursor:
                await cursor.executemany(cast(Sql, upsert), [[row[2]] for row in rows])
            place = rows[-1][:2]
            await connection.execute(MOVE, place)
            await connection.commit()


# Idling.


async def idle(bench: Bench) -> None:
    """Statements per second of a worker without projections, with one, and with ten, all caught up."""
    seconds = bench.size(30, 10)
    bench.run("create extension if not exists pg_stat_statements")
    await bench.fill(1_000)
    alone = 0.0
    for projections in (0, 1, 10):
        app = Rota(bench.dsn, schema=bench.schema)

        async def nothing(event: Event, connection: Any) -> None: ...

        made = [
            app.projection(f"idle_{projections}_{n}", source=app.event_log("orders"))(nothing)
            for n in range(projections)
        ]
        async with bench.working(app):
            for each in made:
                await each.wait_caught_up(timeout=30)
            await asyncio.sleep(5)  # until it hears, and what follows the last event is over
            bench.rows("select pg_stat_statements_reset()")
            await asyncio.sleep(seconds)
            asked = bench.rows(IDLE)[0][0] / seconds
        await app.close()
        alone = asked if not projections else alone
        each_asks = (asked - alone) / max(1, projections)
        print(
            f"{projections:2} projections, idle: {asked:.2f} statements/s in all, {each_asks:.2f} for each projection",
            flush=True,
        )


# Being late.


async def late(bench: Bench) -> None:
    """From the call of an append to the commit of what was projected, at 50 events a second and at as many as go."""
    app, log = bench.app, bench.log
    bench.run("create table bench_taken (position bigint, at timestamptz)")

    @app.projection("late", source=log)
    async def taken(event: Event, connection: Any) -> None:
        await connection.execute("insert into bench_taken values (%s, now())", [event.position])

    begun: dict[int, float] = {}
    took: list[float] = []

    def heard(fact: Any) -> None:
        now = time.perf_counter()
        ready = [position for position in begun if position <= fact.position]
        took.extend(now - begun.pop(position) for position in ready)

    app.facts.subscribe(heard, EventsProjected)
    async with bench.working(app):
        await asyncio.sleep(3)  # until it hears
        for said, pause, count in (
            ("50 a second", 0.02, bench.size(500, 100)),
            ("one after the other", 0.0, bench.size(5000, 1000)),
        ):
            took.clear()
            for n in range(count):
                began = time.perf_counter()
                begun[(await log.append(f"s{n % STREAMS}", "Paid", DATA)).position] = began
                if pause:
                    await asyncio.sleep(random.uniform(0, 2 * pause))
            while begun:
                await asyncio.sleep(0.01)
            took.sort()
            print(
                f"from append to projected, {said}: p50 {took[len(took) // 2] * 1000:.1f} ms, "
                f"p99 {took[int(len(took) * 0.99)] * 1000:.1f} ms, worst {took[-1] * 1000:.1f} ms",
                flush=True,
            )
    await app.close()


# Being killed.


async def takeover(bench: Bench) -> None:
    """The owner of a projection is killed with SIGKILL: how long nothing is projected, while events come all the time."""
    kills = bench.size(10, 3)
    bench.run("create table bench_taken (position bigint, at timestamptz)")
    tasks = Path(__file__).with_name("events_tasks.py")
    gaps = []
    going = True

    async def write() -> None:
        n = 0
        while going:
            n += 1
            await bench.log.append(f"s{n % STREAMS}", "Paid", DATA)
            await asyncio.sleep(0.005)

    def start() -> WorkerProcess:
        worker = WorkerProcess(tasks, dsn=bench.dsn, schema=bench.schema).start()
        worker.wait_until_working(60)
        return worker

    workers = {worker.pid: worker for worker in (start(), start())}
    writing = asyncio.create_task(write())
    try:
        for _ in range(kills):
            await asyncio.sleep(2)
            killed = bench.rows(OWNER.format(schema=bench.schema))[0][0]
            os.kill(killed, signal.SIGKILL)
            await asyncio.sleep(4)
            workers.pop(killed).reap()
            gaps.append(
                bench.rows(
                    "select max(gap)::float8 from (select extract(epoch from at - lag(at) over (order by at)) as gap "
                    "from bench_taken where at > now() - interval '5 seconds') as gaps"
                )[0][0]
            )
            another = await asyncio.to_thread(start)
            workers[another.pid] = another
    finally:
        going = False
        await writing
        for each in workers.values():
            each.reap()
    gaps.sort()
    print(
        f"owner killed {kills} times: nothing was projected for {statistics.median(gaps):.2f} s, at worst {gaps[-1]:.2f} s"
    )
    await bench.app.close()


async def _timed(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _told(what: str, rates: dict[str, list[float]]) -> None:
    """The rates, and shares of the first, turn by turn."""
    first = next(iter(rates.values()))
    said = [
        f"{kind} {statistics.median(each):,.0f}/s"
        + (f" ({statistics.median(a / b for a, b in zip(each, first, strict=True)):.2f})" if each is not first else "")
        for kind, each in rates.items()
    ]
    print(f"{what}: {', '.join(said)}", flush=True)


BENCHMARKS: dict[str, Callable[[Bench], Any]] = {
    "append": append,
    "project": project,
    "idle": idle,
    "late": late,
    "takeover": takeover,
}

if __name__ == "__main__":
    main()
