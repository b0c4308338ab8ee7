"""Polling a table: how many rows one process claims and stamps, and what a look costs in tables of a thousand to a million rows.

The reference is a loop that does the same two statements with plain psycopg, one batch after the other, and nothing else.

python bench/pollers.py            embedded server, thrown away afterwards
python bench/pollers.py DSN
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any
from uuid import uuid4

import psycopg

from rota import Poller, Rota
from rota.embedded import EmbeddedServer
from rota.pollers.claim import Claim, Claims, new_token
from rota.pollers.due import Plan
from rota.pollers.plan import plan_of
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Finish
from rota.postgres.query import Query, Steps

DUE = 60_000
BATCH = 500
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOKS = 200
ROUNDS = 3

TABLE = """
    drop table if exists {table};
    create table {table} (id bigint primary key, url text not null, minutes integer not null, last_at timestamptz);
    insert into {table}
    select i, 'https://example.org/' || i, 10 + i % 50, case when i > {due} then now() end
    from generate_series(1, {rows}) as i;
    analyze {table};
"""


async def measure(dsn: str) -> None:
    app = Rota(dsn, schema=f"pollers_{uuid4().hex[:8]}")
    table = f"bench_{uuid4().hex[:8]}"

    @app.poller(table=table, last="last_at", interval="minutes", unit="minute", batch=BATCH)
    async def noop(row: dict[str, Any]) -> None: ...

    async with app:
        await app.migrate()
        sessions = Sessions(app.database, pollers=1, handlers=1)
        try:
            rates = []
            for _ in range(ROUNDS):
                await _fill(dsn, noop, rows=DUE, due=DUE)
                plan = await plan_of(sessions.looking, noop.definition)
                plain = DUE / await _timed(_plain_loop(plan, sessions))
                await _fill(dsn, noop, rows=DUE, due=DUE)
                rota = DUE / await _timed(app.work(drain=True))
                rates.append((rota, plain))
                print(
                    f"claimed and stamped per second: {rota:6,.0f} by a worker, {plain:6,.0f} by the plain loop: {rota / plain:.2f}"
                )
            rate, share = statistics.median(rota for rota, _ in rates), statistics.median(a / b for a, b in rates)
            print(f"median: {rate:,.0f} rows/s, {share:.2f} of the plain loop")
            await _looks(dsn, noop, sessions)
        finally:
            await sessions.close()
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                await connection.execute(f"drop table if exists {table}")  # type: ignore[arg-type]
                await connection.execute(f'drop schema "{app.settings.schema}" cascade')  # type: ignore[arg-type]


async def _looks(dsn: str, poller: Poller[..., Any], sessions: Sessions) -> None:
    """What one look costs, with nothing due and with ten rows due."""
    costs = {}
    for rows in SIZES:
        await _fill(dsn, poller, rows=rows, due=0)
        idle = await _claims(poller, sessions, 10)
        await _fill(dsn, poller, rows=rows, due=10)
        ten = await _claims(poller, sessions, 10)
        costs[rows] = (idle, ten)
        print(f"{rows:>9,} rows: a look {idle * 1000:.2f} ms with nothing due, {ten * 1000:.2f} ms to claim ten")
    (first_idle, first_ten), (last_idle, last_ten) = costs[SIZES[0]], costs[SIZES[-1]]
    print(
        f"a million rows to a thousand: {last_idle / first_idle:.2f} with nothing due, {last_ten / first_ten:.2f} to claim ten"
    )


async def _claims(poller: Poller[..., Any], sessions: Sessions, limit: int) -> float:
    claims, member = Claims(await plan_of(sessions.looking, poller.definition)), uuid4()
    took = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        await sessions.looking.run_steps(
            _alone(claims.due(limit=limit, token=new_token(), member=member)), dry_run=True
        )
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _alone(query: Query[Claim]) -> Steps[Claim]:
    """In a transaction that is undone: the next look finds the same."""
    claim: Claim = yield query
    return claim


async def _plain_loop(plan: Plan, sessions: Sessions) -> None:
    claims, finish, member = Claims(plan), Finish(plan), uuid4()
    while rows := (await sessions.looking.run(claims.due(limit=BATCH, token=new_token(), member=member))).rows:
        await sessions.stamping.run(finish.many(rows, [False] * len(rows)))


async def _timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _fill(dsn: str, poller: Poller[..., Any], *, rows: int, due: int) -> None:
    """Make the table, with the index that `rota pollers check` proposes."""
    table = poller.definition.table[1]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(TABLE.format(table=table, rows=rows, due=due))  # type: ignore[arg-type]
        missing = (await poller.check()).missing
        assert missing is not None
        await connection.execute(missing.statement)  # type: ignore[arg-type]
        await connection.execute(f"analyze {table}")  # type: ignore[arg-type]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(measure(sys.argv[1]))
    else:
        with EmbeddedServer(ephemeral=True) as server:
            asyncio.run(measure(server.start()))
