"""Expand first: a migration runs while workers work, fails no job and stalls none for long."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from rota import Rota
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.schema import migrate, migration_files
from rota.testing import TestRota

pytestmark = pytest.mark.chaos

EXPANSIONS = [
    "alter table {schema}.jobs add column note text; alter table {schema}.history add column note text;",
    "alter table {schema}.jobs add column weight integer not null default 7; alter table {schema}.members add column zone text;",
]


async def test_workers_go_on_while_the_schema_grows(rota_app: TestRota, tmp_path: Path) -> None:
    dsn = rota_app.database.dsn.conninfo
    known = migration_files()
    for number, sql in enumerate(EXPANSIONS, start=len(known) + 1):
        (tmp_path / f"{number:04}_expand.sql").write_text(f"-- older workers: fine\n{sql}\n")
    finished: list[float] = []

    @rota_app.task
    async def work(n: int) -> None:
        finished.append(time.monotonic())

    stop = asyncio.Event()

    async def feed() -> int:
        n = 0
        while not stop.is_set():
            await rota_app.enqueue_many([work.bind(n) for _ in range(20)])
            n += 20
            await asyncio.sleep(0.01)
        return n

    working = asyncio.create_task(rota_app.work())
    feeder = asyncio.create_task(feed())

    waits: list[str] = []
    for migration in migration_files(tmp_path):
        # an operator's open transaction is in the way for a moment: the migration lets the workers pass meanwhile
        with psycopg.connect(dsn) as operator:
            operator.execute("lock table rota.jobs in access share mode")
            migrating = asyncio.to_thread(
                migrate, Connector(Dsn(dsn), "migrate"), "rota", known=[*known, migration], waiting=waits.append
            )
            task = asyncio.create_task(migrating)
            await asyncio.sleep(2.5)
            operator.rollback()
        assert [m.number for m in await task] == [migration.number]
        known.append(migration)

    stop.set()
    enqueued = await feeder
    await rota_app.drain()
    rota_app.stop()
    await working

    assert len(finished) == enqueued
    assert len(waits) > 0
    assert max(later - earlier for earlier, later in pairwise(finished)) < 2  # and not as long as the operator
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select count(*) from rota.attempts").fetchone() == (0,)
        assert connection.execute("select count(*) from rota.history where attempt = 1").fetchone() == (enqueued,)
    async with Rota(dsn) as older:  # this release, which knows nothing of the new columns, still works on it
        older.task(name=work.name)(lambda n: None)
        await older.work(drain=True)
