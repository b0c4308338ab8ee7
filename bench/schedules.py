"""Very many schedules: what they cost while none is due, how long it takes to give out 10,000 that are due at once, and what
a round of the scheduler takes while 100,000 of them wait for a run to end.

python bench/schedules.py          embedded server, thrown away afterwards
python bench/schedules.py DSN
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable
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
WAITING = 100_000
ENDED = 1_000

ADD = """
    insert into "{schema}".schedules (name, task, kind, cron, tz, next_slot, next_at)
    select '{prefix}-' || i, 'noop', 'cron', (i % 60) || ' ' || (i % 24) || ' * * *', 'Europe/Berlin', at, at
    from generate_series(1, {count}) as i, (select {at} as at) as slot
"""
RUN = (
    "select coalesce(pg_sequence_last_value('\"{schema}\".slots_id_seq'), 0)"  # counting them would be half of the work
)

# each has a run that goes on, and a slot that waits for its end
ADD_WAITING = """
    insert into "{schema}".schedules (name, task, kind, every, overlap)
    select 'waits-' || i, 'noop', 'every', '1d', 'queue' from generate_series(1, {count}) as i;
    insert into "{schema}".jobs (task, queue, state, attempt, token, member, schedule, slot_at)
    select 'noop', 'nobody', 'running', 1, 1, gen_random_uuid(), 'waits-' || i, now() from generate_series(1, {count}) as i;
    insert into "{schema}".slots (schedule, slot_at, cause)
    select 'waits-' || i, now(), 'due' from generate_series(1, {count}) as i;
    analyze "{schema}".schedules, "{schema}".jobs, "{schema}".slots
"""
END_RUNS = """
    with ended as (
        delete from "{schema}".jobs where schedule in (select 'waits-' || i * 7 from generate_series(1, {count}) as i)
        returning *
    )
    insert into "{schema}".history (
        id, created_at, due_at, finished_at, token, attempt, losses, priority, version, member, state, queue, task, args,
        schedule, slot_at
    )
    select id, created_at, due_at, now(), token, attempt, losses, priority, version, member, 'succeeded', queue, task, args,
           schedule, slot_at
    from ended
"""


async def measure(dsn: str) -> None:
    await measure_idle_and_due(dsn)
    await measure_waiting(dsn)


async def measure_waiting(dsn: str) -> None:
    app = Rota(dsn, schema=f"schedules_{uuid4().hex[:8]}")
    schema = app.settings.schema
    async with app:
        await app.migrate()
        async with app.database.transaction() as connection:
            await connection.execute(ADD_WAITING.format(schema=schema, count=WAITING), prepare=False)  # type: ignore[arg-type]
        scheduler = Scheduler(app.database, {}, app.facts, hears=lambda: True)
        session = scheduler._session()
        await scheduler._tidy(session)
        idle = [await _timed(_catch_up(scheduler, session)) for _ in range(5)]
        async with app.database.transaction() as connection:
            await connection.execute(END_RUNS.format(schema=schema, count=ENDED))  # type: ignore[arg-type]
        ends = await _timed(_catch_up(scheduler, session))
        released = await _scalar(app, f'select count(*) from "{schema}".slots where job_id is not null')
        print(
            f"{WAITING:,} wait for a run to end: {sorted(idle)[2] * 1000:.1f} ms a round; "
            f"{ends * 1000:.0f} ms to let {released:,.0f} begin"
        )
        await session.close()
        async with app.database.transaction() as connection:
            await connection.execute(f'drop schema "{schema}" cascade')  # type: ignore[arg-type]


async def _catch_up(scheduler: Scheduler, session: Session) -> None:
    while (await scheduler._round(session))[1]:
        pass


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def measure_idle_and_due(dsn: str) -> None:
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
