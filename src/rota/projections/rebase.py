"""Giving the events of a restored database an order that its new server understands.

A dump that is restored into another cluster brings its transaction ids along, and the new server begins to count anew. Its
horizon is then far below what the events carry: they could not be read, and new ones would come before them. So they are given
new numbers, small ones, in the same order.

There need not be many. The order is that of the pair (order_xid, position), and where positions go up along it one number does
for all; a new one is needed only where a position is smaller than the one before it, which is where commits overtook each other.
Checkpoints and parked events are moved along with the events they stand at. All transaction ids from then on must be greater:
where the server is so young that they are not, some are used up first.
"""

from __future__ import annotations

from dataclasses import dataclass

from rota.errors import ForeignDatabase, NotPossible
from rota.postgres.audit import record
from rota.postgres.query import Query, Steps, nothing, one, statement
from rota.projections.definition import ProjectionDefinition

__all__ = ["Order", "Rebased", "check_order", "look_at_order", "rebase_logs", "use_up_an_id"]

# Smaller ones than this PostgreSQL never gives to a transaction.
_FIRST_ID = 3

LOOK = statement(
    "look_at_order",
    """
    select
        exists (
            select
            from {schema}.events as event
            where event.order_xid >= pg_snapshot_xmax(pg_current_snapshot())
        ),
        coalesce(max(descents.number), 0) + 1,
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    from (
        select count(*) as number
        from (
            select
                event.log,
                event.position < lag(event.position) over (partition by event.log order by event.order_xid, event.position) as back
            from {schema}.events as event
        ) as walked
        where walked.back
        group by walked.log
    ) as descents
    """,
)


@dataclass(frozen=True, slots=True)
class Order:
    """How the ids of events stand to those of this server: whether some are of its future, how many numbers they need, and what
    the next id is."""

    is_foreign: bool
    numbers: int
    next_id: int

    @property
    def missing(self) -> int:
        """How many ids are to be used up before all that come are greater."""
        return max(0, self.numbers + _FIRST_ID + 1 - self.next_id)


def look_at_order() -> Query[Order]:
    return LOOK.query(read=one(Order))


USE_UP = statement("use_up_an_id", "select pg_current_xact_id()::text")


def use_up_an_id() -> Query[None]:
    """Each needs a transaction of its own."""
    return USE_UP.query(read=nothing)


LOCK = statement(
    "lock_events",
    """
    lock table {schema}.events, {schema}.streams, {schema}.projections, {schema}.parked_events in exclusive mode
    """,
)
REBASE = statement(
    "rebase_events",
    """
    with numbered as materialized (
        select
            walked.log, walked.stream, walked.order_xid, walked.position,
            %(first)s + sum(walked.back::int) over (partition by walked.log order by walked.order_xid, walked.position) as number
        from (
            select
                event.log, event.stream, event.order_xid, event.position,
                coalesce(
                    event.position < lag(event.position) over (partition by event.log order by event.order_xid, event.position),
                    false
                ) as back
            from {schema}.events as event
        ) as walked
    ), events as (
        update {schema}.events as event
        set order_xid = numbered.number::text::xid8
        from numbered
        where event.log = numbered.log
          and event.order_xid = numbered.order_xid
          and event.position = numbered.position
        returning event.log
    ), heads as (
        update {schema}.streams as head
        set order_xid = last.number::text::xid8
        from (
            select numbered.log, numbered.stream, max(numbered.number) as number from numbered group by numbered.log, numbered.stream
        ) as last
        where head.log = last.log
          and head.stream = last.stream
    ), parked as (
        update {schema}.parked_events as parked
        set order_xid = numbered.number::text::xid8
        from {schema}.projections as projection, numbered
        where projection.name = parked.projection
          and projection.version = parked.version
          and numbered.log = projection.definition ->> 'source'
          and numbered.order_xid = parked.order_xid
          and numbered.position = parked.position
    ), checkpoints as (
        update {schema}.projections as projection
        set order_xid = coalesce(place.number, 0)::text::xid8,
            position = coalesce(place.position, -9223372036854775808)
        from {schema}.projections as before
        left join lateral (
            -- the last event that it has taken in
            select numbered.number, numbered.position
            from numbered
            where numbered.log = before.definition ->> 'source'
              and (numbered.order_xid, numbered.position) <= (before.order_xid, before.position)
            order by numbered.order_xid desc, numbered.position desc
            limit 1
        ) as place on true
        where projection.name = before.name
          and projection.version = before.version
          and exists (select from numbered where numbered.log = before.definition ->> 'source')
        returning projection.name
    )
    select (select count(*) from events), (select count(*) from checkpoints)
    """,
)


@dataclass(frozen=True, slots=True)
class Rebased:
    """How many events have new numbers, and how many checkpoints were moved along."""

    events: int
    projections: int


def rebase_logs(by: str) -> Steps[Rebased]:
    """Number the events of all logs anew, in the order they have. Raises NotPossible when this server has given out their ids."""
    yield LOCK.query(read=nothing)
    order: Order = yield look_at_order()
    if not order.is_foreign:
        raise NotPossible(
            "There is nothing to rebase: the transaction ids of all events are of this server's past. That is needed once, after a "
            "dump was restored into another cluster."
        )
    if order.missing:
        raise NotPossible("This server's transaction ids are not far enough yet; try again.")
    rebased: Rebased = yield REBASE.query({"first": _FIRST_ID}, read=one(Rebased))
    yield record(by, "projections.rebase", {"events": rebased.events, "projections": rebased.projections})
    return rebased


def check_order(definition: ProjectionDefinition, is_ahead: bool) -> None:
    """Raises ForeignDatabase for a source whose events are not of this server."""
    if not is_ahead:
        return
    how = (
        "stop the workers, and run: rota projections rebase"
        if definition.source.log is not None
        else f"set its column {definition.source.order_xid} to null in all rows, which makes them history, and rewind the projection "
        "or set it to the last of them"
    )
    raise ForeignDatabase(
        f"Projection {definition.name!r} cannot read {definition.source.name}: its events carry transaction ids that this server has "
        f"not given out yet, as after a restore into another cluster. New ones would come before them. To mend it, {how}."
    )
