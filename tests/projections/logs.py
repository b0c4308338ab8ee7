"""A log for tests, filled by plain SQL: appends that follow the rule of `order_xid`, and a source to read them by."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg

from rota.events.event import Event
from rota.events.source import EventSource
from rota.postgres.notify import event_channel
from rota.projections.feed import FeedRow
from rota.testing import TestRota

Db = psycopg.Connection[Any]

LOG = "orders"
SOURCE = EventSource(
    name=LOG,
    table='"rota"."events"',
    position='"position"',
    order_xid='"order_xid"',
    stream='"stream"',
    type='"type"',
    data='"data"',
    metadata='"metadata"',
    version='"version"',
    created_at='"created_at"',
    shape='"shape"',
    log=LOG,
)
APPEND = """
    with head as (
        insert into rota.streams as head (log, stream, version, order_xid)
        values (%(log)s, %(stream)s, 1, pg_current_xact_id())
        on conflict (log, stream) do update
        set version = head.version + 1,
            order_xid = greatest(head.order_xid, pg_current_xact_id())
        returning version, order_xid
    ), event as (
        insert into rota.events (order_xid, log, stream, version, type, data)
        select head.order_xid, %(log)s, %(stream)s, head.version, %(type)s, %(data)s
        from head
        returning position, version
    )
    select event.position, event.version from event
"""
MANY = """
    with event as (
        insert into rota.events (order_xid, log, stream, version, type, data)
        select pg_current_xact_id(), %(log)s, 'many-' || %(mark)s, n, %(type)s, jsonb_build_object('n', n)
        from generate_series(1, %(count)s) as n
    )
    insert into rota.streams (log, stream, version, order_xid)
    values (%(log)s, 'many-' || %(mark)s, %(count)s, pg_current_xact_id())
"""
WAKE = "select rota.notify(%s, %s)"


class Log:
    """Reads what `append` wrote; data that says so is undecodable."""

    source = SOURCE

    def decode(self, row: FeedRow) -> Event:
        data = json.loads(row.data)
        if isinstance(data, dict) and data.get("broken"):
            raise ValueError(f"event {row.position} has a shape that nobody knows")
        return Event(row.position, row.order_xid, row.stream, row.version, row.type, data, None, row.created_at)


def append(db: Db, stream: str = "a", type: str = "Paid", data: Any = None, *, wake: bool = True) -> tuple[int, int]:
    """One event in the transaction that is open, or one of its own; returns its position and version."""
    params = {"log": LOG, "stream": stream, "type": type, "data": json.dumps(data if data is not None else {})}
    position, version = db.execute(APPEND, params).fetchone()  # type: ignore[misc]
    if wake:
        db.execute(WAKE, [event_channel("rota"), LOG])
    return position, version


def append_many(db: Db, count: int, mark: str = "1", type: str = "Paid") -> None:
    """So many events of one stream in one statement."""
    db.execute(MANY, {"log": LOG, "count": count, "mark": mark, "type": type})
    db.execute(WAKE, [event_channel("rota"), LOG])


def positions(db: Db) -> list[int]:
    """All that is committed, in the order in which it is to be read."""
    return [row[0] for row in db.execute("select position from rota.events order by order_xid, position")]


def rows(db: Db, sql: str, params: Sequence[Any] = ()) -> list[Any]:
    return db.execute(sql, params).fetchall()


@contextlib.asynccontextmanager
async def working(app: TestRota) -> AsyncIterator[None]:
    """A worker of the app for the length of a block."""
    work = asyncio.create_task(app.work())
    try:
        yield
    finally:
        if not app.stop():
            work.cancel()
        await asyncio.wait_for(asyncio.wait([work]), 30)
    if not work.cancelled():
        work.result()


def make_seen(db: Db) -> None:
    """A table for handlers: what was taken in, in that order."""
    db.execute("create table public.seen (id bigint generated always as identity, position bigint, by text)")


def seen(db: Db) -> list[int]:
    return [row[0] for row in db.execute("select position from public.seen order by id")]


RESTORE = """
    update rota.events set order_xid = (order_xid::text::bigint + 1000000000)::text::xid8;
    update rota.streams set order_xid = (order_xid::text::bigint + 1000000000)::text::xid8;
    update rota.parked_events set order_xid = (order_xid::text::bigint + 1000000000)::text::xid8;
    update rota.projections set order_xid = (order_xid::text::bigint + 1000000000)::text::xid8 where order_xid > '0'
"""


def restore_elsewhere(db: Db) -> None:
    """As if all that is stored came from a server that is far ahead."""
    db.execute(RESTORE)
