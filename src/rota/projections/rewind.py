"""Reading events again: from a place, from a time, or from the beginning; and how many those would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from rota.errors import NotPossible
from rota.postgres.audit import record
from rota.postgres.notify import notify
from rota.postgres.query import Steps, nothing, statement
from rota.projections.feed import START, Feed, FeedRow, Lag, Pair, Since
from rota.projections.inspect import ProjectionView
from rota.projections.operate import Asked, chosen_partitions, find_projection, place_checkpoint, told_of

__all__ = ["Rewind", "preview_rewind", "rewind_projection"]

# What a preview counts at most: as a status does.
_MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a rewind would do: `events` are read again from `position` on, or from the first when that is None.

    None where this app does not have the projection, and so cannot count them; with `more` there may be others. `seconds` is how old
    the oldest of them is.
    """

    position: int | None
    events: int | None
    more: bool
    seconds: float | None


UNPARK = statement(
    "unpark_ahead",
    """
    delete from {schema}.parked_events
    where projection = %(name)s
      and version = %(version)s
      and build = %(build)s
      and (partition = %(partition)s or %(partition)s::int is null)
      and (order_xid, position) > (%(order_xid)s::text::xid8, %(position)s)
    """,
)


def rewind_projection(
    asked: Asked, feed: Feed | None, position: int | None, since: datetime | None = None
) -> Steps[ProjectionView]:
    """Read again from the event at this position, or the first since then, or the first. What the handler has written stays.

    What is parked from there on leaves the list: it is read again as well, and a replay would be its second time.
    Raises NotPossible when there is no such event, or it lies ahead.
    """
    found = yield from find_projection(asked)
    position, to = yield from _target(asked, found, feed, position, since)
    for each in chosen_partitions(asked, found):
        # those that have not come so far stay where they are
        if each.pair > to:
            yield from place_checkpoint(found, each, to)
    params = {"name": found.name, "version": found.version, "build": found.build, "partition": asked.partition}
    yield UNPARK.query(params | {"order_xid": str(to.order_xid), "position": to.position}, read=nothing)
    yield record(asked.by, "projection.rewind", told_of(asked, found) | {"from": found.position, "to": position})
    yield notify(asked.channel, "")
    return (yield from find_projection(asked))


def preview_rewind(
    asked: Asked, feed_of: Callable[..., Feed] | None, position: int | None, since: datetime | None
) -> Steps[Rewind]:
    """What that would do. Holds nothing and changes nothing; raises what the rewind would."""
    found = yield from find_projection(asked)
    feed = None if feed_of is None else feed_of(build=found.build, partition=0)
    position, to = yield from _target(asked, found, feed, position, since)
    if feed_of is None:
        return Rewind(position, None, False, None)
    seen = Lag(0, None)
    for each in chosen_partitions(asked, found):
        if each.pair > to:
            its: Lag = yield feed_of(build=found.build, partition=each.partition).between(to, each.pair, _MOST_COUNTED)
            ages = [seconds for seconds in (seen.seconds, its.seconds) if seconds is not None]
            seen = Lag(seen.events + its.events, max(ages, default=None), seen.more or its.more)
    return Rewind(position, seen.events, seen.more, seen.seconds)


def _target(
    asked: Asked, found: ProjectionView, feed: Feed | None, position: int | None, since: datetime | None
) -> Steps[tuple[int | None, Pair]]:
    """The position that is meant, and the place before it."""
    if position is None and since is None:
        return None, START
    if feed is None:
        meant = f"position {position}" if position is not None else f"{since:%Y-%m-%d %H:%M:%S %Z}"
        raise NotPossible(
            f"Where {meant} is in the order of the log is known to an app that has the projection only: name it with --app. Without "
            "one it can be rewound to the beginning."
        )
    if position is None:
        assert since is not None
        position = yield from _first_since(feed, since)
    row: FeedRow | None = yield feed.at(position)
    if row is None:
        raise NotPossible(f"There is no event at position {position} of {feed.source.name}.")
    to = Pair(row.order_xid, position - 1)
    if all(to > each.pair for each in chosen_partitions(asked, found)):
        raise NotPossible(
            f"Projection {found.name!r} cannot be rewound to position {position}: it has not come that far. It is at "
            f"{found.position}."
        )
    return position, to


def _first_since(feed: Feed, since: datetime) -> Steps[int]:
    if feed.source.created_at is None:
        raise NotPossible(f"Nothing in {feed.source.name} says when an event was stored: name a position.")
    first: Since = yield feed.since(since)
    if first.more:
        raise NotPossible(
            f"More events than are gone through have been stored in {feed.source.name} since {since:%Y-%m-%d %H:%M:%S %Z}: name a "
            "position."
        )
    if first.position is None:
        raise NotPossible(f"No event has been stored in {feed.source.name} since {since:%Y-%m-%d %H:%M:%S %Z}.")
    return first.position
