"""One of everything: jobs in all states, a paused queue, a schedule, parked rows, projections that stop, park and are rebuilt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from tests.projections.logs import working

import rota
from rota import Job, Park, Retry, Stop
from rota.events.event import Event
from rota.testing import TestRota, until


@dataclass(frozen=True)
class World:
    succeeded: Job[Any]
    dead: Job[Any]
    queued: Job[Any]
    cancelled: Job[Any]


async def make_world(app: TestRota, dsn: str) -> World:
    """What a worker had to do is done, and the worker gone."""

    @app.task(queue="mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    @app.task(retry=None)
    async def fail(number: int) -> None:
        raise ValueError(f"cannot do {number}")

    orders = app.event_log("orders")

    @app.projection("totals", source=orders, on_error=Stop())
    async def totals(event: Event, connection: Any) -> None:
        raise KeyError("sum")

    @app.projection("counts", source=orders, on_error=Park())
    async def counts(event: Event, connection: Any) -> None:
        raise KeyError("count")

    async def prepare(connection: Any, build: int) -> None:
        await connection.execute(f"create table public.stock_{build} (position bigint)")

    async def switch(connection: Any, build: int) -> None:
        await connection.execute(f"create or replace view public.stock as select position from public.stock_{build}")

    @app.projection("stock", source=orders, prepare=prepare, switch=switch)
    async def stock(event: Event, connection: Any, build: int) -> None:
        await connection.execute(f"insert into public.stock_{build} values (%s)", [event.position])

    @app.singleton("indexer")
    async def indexer(term: rota.Term) -> None:
        await term.progress("indexing")

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table public.feeds (id int primary key, fetched_at timestamptz)")
        connection.execute("insert into public.feeds values (1), (2)")

    @app.poller(table="public.feeds", key="id", last="fetched_at", interval="5m", name="fetch", retry=Retry(attempts=1))
    async def fetch(feed: dict[str, Any]) -> None:
        raise ValueError("no such feed")

    await app.schedules.put("reports/nightly", task=send, args={"to": "all"}, cron="0 2 * * *", tz="Europe/Berlin")
    await orders.append("order-1", "Paid", {"sum": 7})
    succeeded, dead = await send.enqueue("ana"), await fail.enqueue(7)
    async with working(app):
        await until(lambda: _is_done(app, succeeded.id, dead.id), 30, "all was tried")
    queued = await send.using(delay="1h", tags=["later"]).enqueue("bob")
    cancelled = await app.jobs.cancel((await send.enqueue("eve")).id, "no longer wanted")
    return World(succeeded, dead, queued, cancelled)


async def _is_done(app: TestRota, *ids: int) -> bool:
    jobs = [(await app.jobs.get(id)).finished_at for id in ids]
    projections = {view.name: view for view in await app.projections.list()}
    pollers = await app.pollers.list()
    leaders = {leader.name for leader in await app.leaders.list()}
    return bool(
        all(jobs)
        and projections
        and projections["totals"].state == "stopped"
        and projections["counts"].parked
        and projections["stock"].live_at
        and pollers
        and pollers[0].parked == 2
        and "indexer" in leaders
    )
