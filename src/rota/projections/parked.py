"""Events that could not be taken in, set aside in the order of the log until they are replayed or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.failure import Failure
from rota.postgres.query import Query, Steps, many, nothing, statement
from rota.projections.checkpoint import Owned, move_checkpoint
from rota.projections.feed import FeedRow, Pair

__all__ = [
    "ParkedEvent",
    "Unfit",
    "fail_replay",
    "find_replays",
    "list_parked",
    "park_events",
    "set_aside",
    "take_parked",
]


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """An event that a projection could not take in, and why. It stays until it is replayed or dropped."""

    projection: str
    version: int
    build: int
    partition: int
    order_xid: int
    position: int
    stream: str | None
    type: str | None
    parked_at: datetime
    attempts: int
    error_type: str
    error_message: str
    error_trace: str
    #: since when it waits to be tried again; None while nobody asked for that
    replay_at: datetime | None

    @property
    def pair(self) -> Pair:
        return Pair(self.order_xid, self.position)


@dataclass(frozen=True, slots=True)
class Unfit:
    """An event to park."""

    row: FeedRow
    attempts: int
    failure: Failure


PARK = statement(
    "park_events",
    """
    insert into {schema}.parked_events as parked (
        projection, version, build, partition, order_xid, position, stream, type, attempts, error_type, error_message, error_trace
    )
    select
        %(name)s::text, %(version)s::int, %(build)s::int, %(partition)s::int,
        given.order_xid::xid8, given.position, given.stream, given.type, given.attempts,
        given.error_type, given.error_message, given.error_trace
    from unnest(
        %(xids)s::text[], %(positions)s::bigint[], %(streams)s::text[], %(types)s::text[], %(attempts)s::int[],
        %(error_types)s::text[], %(messages)s::text[], %(traces)s::text[]
    ) as given (order_xid, position, stream, type, attempts, error_type, error_message, error_trace)
    -- parked before, and read again after a rewind
    on conflict (projection, version, build, order_xid, position) do update
    set parked_at = excluded.parked_at,
        attempts = excluded.attempts,
        error_type = excluded.error_type,
        error_message = excluded.error_message,
        error_trace = excluded.error_trace,
        replay_at = null
    returning position
    """,
)


def park_events(owned: Owned, unfit: Sequence[Unfit]) -> Query[None]:
    """Set these aside, in the transaction that moves the checkpoint over them."""
    return PARK.query(
        {
            **owned.params,
            "xids": [str(each.row.order_xid) for each in unfit],
            "positions": [each.row.position for each in unfit],
            "streams": [each.row.stream for each in unfit],
            "types": [each.row.type for each in unfit],
            "attempts": [each.attempts for each in unfit],
            "error_types": [each.failure.type for each in unfit],
            "messages": [each.failure.message for each in unfit],
            "traces": [each.failure.trace for each in unfit],
        },
        read=nothing,
    )


def set_aside(owned: Owned, at: Pair, unfit: Unfit) -> Steps[None]:
    """Park the event behind this place, and move the checkpoint over it."""
    yield park_events(owned, [unfit])
    yield move_checkpoint(owned, at, unfit.row.pair)


LIST = statement(
    "list_parked_events",
    """
    select
        parked.projection, parked.version, parked.build, parked.partition,
        parked.order_xid::text::bigint, parked.position, parked.stream, parked.type,
        parked.parked_at, parked.attempts, parked.error_type, parked.error_message, parked.error_trace, parked.replay_at
    from {schema}.parked_events as parked
    where parked.projection = %(name)s
      and parked.version = %(version)s
      and parked.build = %(build)s
      and (parked.partition = %(partition)s or %(partition)s::int is null)
      and (
          %(order_xid)s::text is null
          or (parked.order_xid, parked.position) > (%(order_xid)s::text::xid8, %(position)s::bigint)
      )
      and (parked.replay_at is not null or not %(replays)s)
    order by parked.order_xid, parked.position
    limit %(limit)s
    """,
)


def list_parked(
    name: str, version: int, build: int, partition: int | None, *, limit: int, after: Pair | None
) -> Query[list[ParkedEvent]]:
    """What is parked, in the order of the log, from behind this place."""
    places = {"order_xid": None if after is None else str(after.order_xid), "position": after and after.position}
    asked = {"name": name, "version": version, "build": build, "partition": partition, "limit": limit, "replays": False}
    return LIST.query(asked | places, read=many(ParkedEvent))


def find_replays(owned: Owned, limit: int) -> Query[list[ParkedEvent]]:
    """What is to be tried again, in the order of the log."""
    asked = {"limit": limit, "replays": True, "order_xid": None, "position": None}
    return LIST.query(owned.params | asked, read=many(ParkedEvent))


TAKE = statement(
    "take_parked_event",
    """
    with held as (
        select
        from {schema}.projections as projection
        where projection.name = %(name)s::text
          and projection.version = %(version)s::int
          and projection.build = %(build)s::int
          and projection.partition = %(partition)s::int
          and projection.epoch = %(epoch)s::bigint
          and projection.state = 'running'
        for share
    )
    delete from {schema}.parked_events as parked
    where parked.projection = %(name)s::text
      and parked.version = %(version)s::int
      and parked.build = %(build)s::int
      and parked.order_xid = %(order_xid)s::text::xid8
      and parked.position = %(position)s::bigint
      and exists (select from held)
    returning parked.position
    """,
)


def take_parked(owned: Owned, pair: Pair) -> Query[bool]:
    """Take one off the list, in the transaction that takes the event in. False when it is gone, or we no longer read for it."""
    return TAKE.query(_place(owned, pair), read=lambda rows: bool(rows))


FAIL = statement(
    "fail_replay",
    """
    update {schema}.parked_events as parked
    set replay_at = null,
        attempts = attempts + 1,
        error_type = %(type)s,
        error_message = %(message)s,
        error_trace = %(trace)s
    where parked.projection = %(name)s
      and parked.version = %(version)s
      and parked.build = %(build)s
      and parked.order_xid = %(order_xid)s::text::xid8
      and parked.position = %(position)s
    """,
)


def fail_replay(owned: Owned, pair: Pair, failure: Failure) -> Query[None]:
    """It failed again, and stays."""
    error = {"type": failure.type, "message": failure.message, "trace": failure.trace}
    return FAIL.query(_place(owned, pair) | error, read=nothing)


def _place(owned: Owned, pair: Pair) -> dict[str, object]:
    return owned.params | {"order_xid": str(pair.order_xid), "position": pair.position}
