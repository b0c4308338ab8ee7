"""Very many schedules: what they cost while none is due, and how long it takes to give out 10,000 that are due at once.

python bench/schedules.py          embedded server, thrown away afterwards
python bench/schedules.py DSN
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from typing import ClassVar
from uuid import uuid4

from rota import Rota
from rota import app as app_module
from rota.embedded import EmbeddedServer
from rota.postgres.session import Session
from rota.schedules.scheduler import Scheduler

STORED = 1_000_000
DUE = 10_000
IDLE_SECONDS = 20

ADD = """
    insert into "{schema}".schedules (name, task, kind, cron, tz, next_slot, next_at)
    select '{prefix}-' || i, 'noop', 'cron', (i % 60) || ' ' || (i % 24) || ' * * *', 'Europe/Berlin', at, at
    from generate_series(1, {count}) as i, (select {at} as at) as slot
"""
RUN = (
    "select coalesce(pg_sequence_last_value('\"{schema}\".slots_id_seq'), 0)"  # counting them would be half of the work
)


async def measure(dsn: str) -> None:
    app_module.Scheduler = Counted  # type: ignore[misc]
    app = Rota(dsn, schema=f"schedules_{uuid4().hex[:8]}")
    schema = app.settings.schema

    @app.task
    async def noop() -> None: ...

    async with app:
        await app.migrate()
        async with app.database.transaction() as connection:
            await connection.execute(
                ADD.format(schema=schema, prefix="idle", count=STORED, at="now() + interval '1 day'")  # type: ignore[arg-type]
            )
        before = _memory()
        async with app.database.transaction() as connection:
            await connection.execute(f'analyze "{schema}".schedules')  # type: ignore[arg-type]
        working = asyncio.create_task(app.work(queues=["nobody"]))
        await asyncio.sleep(2)
        counted = Counted.statements()
        await asyncio.sleep(IDLE_SECONDS)
        per_second = (Counted.statements() - counted) / IDLE_SECONDS
        print(
            f"{STORED:,} schedules, none due: {per_second:.2f} statements/s by the scheduler, {_memory() - before:.1f} MB more"
        )

        async with app.database.transaction() as connection:
            due = "date_trunc('second', clock_timestamp()) + interval '3 seconds'"
            await connection.execute(ADD.format(schema=schema, prefix="due", count=DUE, at=due))  # type: ignore[arg-type]
        before = _memory()
        at = await _scalar(
            app, f'select extract(epoch from min(next_at) - clock_timestamp())::float8 from "{schema}".schedules'
        )
        due_at = time.perf_counter() + at
        await asyncio.sleep(max(0.0, at))
        while await _scalar(app, RUN.format(schema=schema)) < DUE:
            await asyncio.sleep(0.01)
        took = time.perf_counter() - due_at
        print(f"{DUE:,} due at once: all given out {took:.2f} s after their time, {_memory() - before:.1f} MB more")
        app.stop()
        await working
        async with app.database.transaction() as connection:
            await connection.execute(f'drop schema "{schema}" cascade')  # type: ignore[arg-type]


async def _scalar(app: Rota, sql: str) -> float:
    async with app.database.transaction() as connection:
        row = await (await connection.execute(sql)).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return float(row[0])


class Counted(Scheduler):
    """A scheduler that counts its statements."""

    sessions: ClassVar[list[Session]] = []

    def _session(self) -> Session:
        self.sessions.append(super()._session())
        return self.sessions[-1]

    @classmethod
    def statements(cls) -> int:
        return sum(session.statements for session in cls.sessions)


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(measure(sys.argv[1]))
    else:
        with EmbeddedServer(ephemeral=True) as server:
            asyncio.run(measure(server.start()))
