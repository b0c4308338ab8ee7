"""Reading events: those of one stream by their versions, and all of them in an order that no late commit can break.

A position is taken when an event is inserted, and transactions commit in another order: whoever goes on from the highest position
they have seen passes over what is committed after it with a lower one, for ever. So events are ordered by the pair of the
transaction's id and the position, and read only below the horizon: the oldest transaction that is still running. Whatever is
committed later has an id that is not below it, and comes after all that was read.

An event's `order_xid` is the id of its transaction, or the `order_xid` of the event before it in its stream if that is greater: a
transaction that began early may append to a stream after one that began later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rota.conversion.plain import shown
from rota.errors import InvalidArguments
from rota.events.append import Appended
from rota.events.event import Event
from rota.postgres.query import Query, Row, statement

__all__ = ["BEGINNING", "After", "Decode", "Pair", "check_count", "check_pair", "read_all", "read_stream"]

Pair = tuple[int, int]  # order_xid and position
After = Event | Appended | Pair
#: makes an event of the columns that are selected here
Decode = Callable[..., Event]

#: Before all events, also those that have no transaction's id.
BEGINNING: Pair = (0, -(2**63))

READ_STREAM = statement(
    "read_stream",
    """
    select
        event.position, event.order_xid::text::bigint, event.stream, event.version, event.type,
        event.shape, event.data::text, event.metadata::text, event.created_at
    from {schema}.events as event
    where event.log = %(log)s::text
      and event.stream = %(stream)s::text
      and event.version > %(after)s::bigint
    order by event.version
    limit %(limit)s::bigint
    """,
)


def read_stream(log: str, stream: str, decode: Decode, *, after: int, limit: int | None) -> Query[list[Event]]:
    """The events of the stream after this version, in the order of their versions.

    Whoever appends holds the stream until they commit, so there is nothing to wait for: what is seen has no gaps.
    """
    params = {"log": log, "stream": stream, "after": after, "limit": limit}
    return READ_STREAM.query(params, read=_many(decode))


READ_ALL = statement(
    "read_events",
    """
    select
        event.position, event.order_xid::text::bigint, event.stream, event.version, event.type,
        event.shape, event.data::text, event.metadata::text, event.created_at
    from {schema}.events as event
    where event.log = %(log)s::text
      and (event.order_xid, event.position) > (%(order_xid)s::text::xid8, %(position)s::bigint)
      -- whatever is committed from now on has an id that is not below this one
      and event.order_xid < pg_snapshot_xmin(pg_current_snapshot())
    order by event.order_xid, event.position
    limit %(limit)s::bigint
    """,
)


def read_all(log: str, decode: Decode, *, after: Pair, limit: int) -> Query[list[Event]]:
    """The events after this pair and below the horizon, in the order of the pair."""
    order_xid, position = after
    params = {"log": log, "order_xid": str(order_xid), "position": position, "limit": limit}
    return READ_ALL.query(params, read=_many(decode))


def _many(decode: Decode) -> Callable[[Sequence[Row]], list[Event]]:
    return lambda rows: [decode(*row) for row in rows]


def check_pair(after: After | None) -> Pair:
    """Where to go on from: an event, or the pair of one. Raises InvalidArguments."""
    if after is None:
        return BEGINNING
    pair: Any = (after.order_xid, after.position) if isinstance(after, Event | Appended) else after
    if (
        not isinstance(pair, Sequence)
        or len(pair) != 2
        or not all(isinstance(each, int) and not isinstance(each, bool) for each in pair)
        or not 0 <= pair[0] < 2**63
        or not -(2**63) <= pair[1] < 2**63
    ):
        raise InvalidArguments(
            f"Events cannot be read after {shown(after)}: give an event that was read, or its pair (event.order_xid, event.position). "
            "A position alone would pass over what is committed later."
        )
    return pair[0], pair[1]


def check_count(what: str, number: Any, least: int) -> int:
    """A version or a limit. Raises InvalidArguments."""
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**63:
        raise InvalidArguments(f"{what} cannot be {shown(number)}: it is a whole number, {least} or more.")
    return number
