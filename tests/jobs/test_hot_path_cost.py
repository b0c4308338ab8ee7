"""What a job costs the server, counted and not timed: statements, bytes of write-ahead log, rows read.

The figures beside this file are what it costs now. Whoever makes a job cheaper writes the new ones down, whoever makes it dearer
has to want it: ROTA_WRITE_COST=1 writes what is measured, for the PostgreSQL that is measured on.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
import pytest
from tests.conftest import GIVEN, installed

from rota import Rota
from rota.embedded import EmbeddedServer, find_binaries
from rota.testing import until

FIGURES = Path(__file__).with_name("hot_path_cost.json")
DRAINED = 2_000
SINGLE = 500  # so many that a divided page of an index is not told as the cost of a few
# Full pages depend on when the last checkpoint was, and vacuum on when it comes round.
QUIET = {
    "full_page_writes": "off",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
}
# the sum over what is in the schema, and what the server has written
COUNTED = """
    select (select sum(calls) from pg_stat_statements where dbid = current.oid and query not like '%%pg_stat%%')::float8,
           (pg_current_wal_insert_lsn() - '0/0')::float8,
           (select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables where schemaname = 'rota')::float8
    from pg_database as current
    where datname = current_database()
"""
OTHERS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@dataclass(frozen=True)
class Cost:
    """Per job."""

    statements: float
    wal_bytes: float
    rows_read: float

    def holds(self, now: Cost) -> bool:
        # A worker renews its lease and looks around while it works, so that a slow machine makes some hundred statements more;
        # bytes and rows hardly depend on that. One more index is some 60 bytes, one more statement per job is 1.
        return (
            now.statements <= self.statements * 1.5 + 0.1
            and now.wal_bytes <= self.wal_bytes * 1.05
            and now.rows_read <= self.rows_read * 1.2 + 0.1
        )


@pytest.fixture
def quiet_server(postgres_version: str) -> Iterator[str]:
    binaries = find_binaries() if postgres_version == GIVEN else installed()[postgres_version]
    with EmbeddedServer(ephemeral=True, options=QUIET, binaries=binaries) as server:
        yield server.start()


class Counting:
    """Counts what the app's sessions do on a server that nobody else uses."""

    def __init__(self, app: Rota, admin: psycopg.AsyncConnection[tuple[float, ...]]) -> None:
        self._app, self._admin = app, admin

    async def cost(self, jobs: int, work: Callable[[], Awaitable[object]]) -> Cost:
        before = await self._counters()
        await work()
        after = await self._counters()
        statements, wal_bytes, rows_read = ((b - a) / jobs for a, b in zip(before, after, strict=True))
        return Cost(round(statements, 4), round(wal_bytes, 1), round(rows_read, 3))

    async def leave_out_the_minutes(self) -> None:
        """What is read once a minute, for pictures, is no cost of a job."""
        await self._admin.execute("update rota.tallied set kept_at = 'infinity'")

    async def _counters(self) -> tuple[float, ...]:
        # a session tells what it has read when it ends, else now and then
        await self._app.close()
        await until(self._alone, what="the sessions of the app have ended")
        row = await (await self._admin.execute(COUNTED)).fetchone()
        assert row is not None
        return row

    async def _alone(self) -> bool:
        row = await (await self._admin.execute(OTHERS)).fetchone()
        assert row is not None
        return row[0] == 0


@asynccontextmanager
async def counting(app: Rota, dsn: str) -> AsyncIterator[Counting]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        await admin.execute("create extension pg_stat_statements")
        yield Counting(app, admin)


async def test_a_job_costs_what_is_written_down(quiet_server: str) -> None:
    app = Rota(quiet_server)

    @app.task
    async def noop(i: int) -> None: ...

    def many(count: int) -> Callable[[], Awaitable[object]]:
        return lambda: app.enqueue_many([noop.bind(i) for i in range(count)])

    async def one_by_one() -> None:
        for i in range(SINGLE):
            await noop.enqueue(i)

    await app.migrate()
    async with counting(app, quiet_server) as counted:
        # the first worker makes partitions, and much else that is there from then on
        await many(DRAINED)()
        await app.work(drain=True)
        await counted.leave_out_the_minutes()
        now = {
            "enqueue_many of 1,000": await counted.cost(1_000, many(1_000)),
            "enqueue, one by one": await counted.cost(SINGLE, one_by_one),
        }
        await many(DRAINED - 1_000 - SINGLE)()
        now["drain of 2,000"] = await counted.cost(DRAINED, lambda: app.work(drain=True))

    version = await _major(quiet_server)
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    if os.environ.get("ROTA_WRITE_COST"):
        figures[version] = {name: asdict(cost) for name, cost in now.items()}
        FIGURES.write_text(json.dumps(dict(sorted(figures.items())), indent=2) + "\n")
    nearest = min(figures, key=lambda known: abs(int(known) - int(version)))
    known = {name: Cost(**cost) for name, cost in figures[nearest].items()}
    dearer = {name: (known[name], cost) for name, cost in now.items() if not known[name].holds(cost)}
    assert not dearer, f"(written down, counted now); if this is wanted, write it down with ROTA_WRITE_COST=1: {dearer}"


async def _major(dsn: str) -> str:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        return str(connection.info.server_version // 10_000)
