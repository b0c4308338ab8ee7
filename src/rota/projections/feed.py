"""Reading a log so that no event is passed over, however late its transaction commits.

The trouble. Positions are taken when a row is inserted, and rows become visible when their transaction commits. A transaction
that takes position 7 and commits after a reader has seen 8 leaves a row behind whoever asks for `position > 8`, for ever.

The promise. A reader that goes on from its last pair (order_xid, position) is given every committed event exactly once, and the
events of one stream in the order of their versions.

Why it holds. Each row carries `order_xid`, which is no less than the transaction id of whoever inserted it. PostgreSQL gives
those ids out in order, and `pg_snapshot_xmin(pg_current_snapshot())`, the horizon, is the smallest that is still running. So:

- a row below the horizon was written by a transaction that has ended. It is visible, or it was rolled back and never will be;
- whatever is still to be committed has an id at or above the horizon, and so has its `order_xid`: it comes behind all that is
  read now. The pair never has to go back for it;
- a prepared transaction counts as running until it is committed or rolled back, by whichever session;
- savepoints change nothing: the id is that of the outermost transaction.

The order within a stream is the writer's care: `order_xid` is also no less than that of the event before it in its stream, so a
transaction that began early and appends late comes behind what it builds on. A table of the user's whose column is simply the
transaction id has exactly once, but of one stream only the order of transaction ids.

Rows without `order_xid` are older than the column. Nobody can add to them, so they are history: read first, by position, with 0
in the place of the first of the pair, which no transaction has.

What can go wrong. A transaction that stays open holds the horizon, and with it every reader, also when it has nothing to do with
events and when it is in another database of the server. That delays and loses nothing; `horizon` tells whose fault it is. In a
cluster that was restored from a dump the ids begin anew, and the pairs of the old one mean nothing: see `rebase`.

The place is read in the same statement as the events, so what an operator changes (a pause, a rewind) holds from the next look.
Where only some types or streams are wanted, a look reads no more than a window of the log and returns how far it came: the
checkpoint moves over what concerns nobody, and nothing is read twice for long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from rota.events.event import Event
from rota.events.source import EventSource
from rota.postgres.query import Query, Row, Statement, one, statement

__all__ = ["START", "Ahead", "Feed", "FeedRow", "Found", "Lag", "Pair", "Readable", "Since"]


class Pair(NamedTuple):
    """A place in a log: behind the event that has these."""

    order_xid: int
    position: int


#: before the first event there can be
START = Pair(0, -(2**63))

# Of a log from which only some is wanted, how many rows one look goes through.
_WINDOW = 5_000
# And how many of all are gone through to count those that wait.
_COUNTED = 100_000


class FeedRow(NamedTuple):
    """An event as it is stored; `data` and `metadata` are JSON as text, so that one which Python cannot hold spoils no other."""

    position: int
    order_xid: int
    stream: str | None
    version: int | None
    type: str | None
    shape: int | None
    data: str
    metadata: str | None
    created_at: datetime | None

    @property
    def pair(self) -> Pair:
        return Pair(self.order_xid, self.position)


class Readable(Protocol):
    """What a projection can read: a log of the app's, or a table that it has adopted."""

    @property
    def source(self) -> EventSource: ...

    def decode(self, row: FeedRow, /) -> Event:
        """The event in hand. Whatever this raises is trouble with that event, see `trouble`."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What a look found: how the projection stands, the events that come next, and how far the look came."""

    state: str
    at: Pair
    epoch: int
    failures: int
    replays: bool
    prepared: bool
    live: bool
    #: the last build that has not retired, or of them all
    newest: int
    rows: Sequence[FeedRow]
    #: everything up to here was seen; the same as `at` if there was nothing
    end: Pair
    #: there are events which cannot be read yet, because something older may still commit
    pending: bool
    #: the look came to the end of its window, and there may be more
    is_full: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits for a projection: how many events, and how long the first of them has waited.

    They are counted up to a limit; where only some concern it, no further than so many of all. With `more` there may be others.
    """

    events: int
    seconds: float | None
    more: bool = False

    def __str__(self) -> str:
        return f"{self.events:,}{'+' if self.more else ''}"


@dataclass(frozen=True, slots=True)
class Since:
    """The position of the first event since some time, None where there is none; with `more` there may be earlier ones."""

    position: int | None
    more: bool


@dataclass(frozen=True, slots=True)
class Ahead:
    """Whether the last event, and the checkpoint, have transaction ids that this server has not given out."""

    events: bool
    checkpoint: bool


# The place, and the horizon: both as of the statement's own snapshot.
_AT = """
    with at as materialized (
        select
            projection.state, projection.order_xid, projection.position, projection.epoch, projection.failures,
            exists (
                select
                from {schema}.parked_events as parked
                where parked.projection = projection.name
                  and parked.version = projection.version
                  and parked.build = projection.build
                  and parked.partition = projection.partition
                  and parked.replay_at is not null
            ) as replays,
            projection.prepared_at is not null or projection.partitions > 1 and exists (
                -- what another partition has taken in is in tables that are there
                select
                from {schema}.projections as other
                where other.name = projection.name
                  and other.version = projection.version
                  and other.build = projection.build
                  and other.position > %(start)s
            ) as prepared,
            projection.live_at is not null as live,
            (
                select coalesce(max(other.build) filter (where other.state <> 'retired'), max(other.build))
                from {schema}.projections as other
                where other.name = projection.name
                  and other.version = projection.version
                  and other.partition = projection.partition
            ) as newest
        from {schema}.projections as projection
        where projection.name = %(name)s
          and projection.version = %(version)s
          and projection.build = %(build)s
          and projection.partition = %(partition)s
    ), horizon as materialized (
        -- whatever is still to be committed comes at or behind this
        select pg_snapshot_xmin(pg_current_snapshot()) as xmin
    )"""
# The same from a place that someone asks about.
_FROM = """
    with at as materialized (
        select %(from_xid)s::text::xid8 as order_xid, %(from_position)s::bigint as position
    ), horizon as materialized (
        select pg_snapshot_xmin(pg_current_snapshot()) as xmin
    )"""
_LIVE = """
        select event.{order_xid} as rota_xid, event.{position} as rota_position{columns}
        from {table} as event
        where {log}event.{order_xid} < (select horizon.xmin from horizon)
          and (event.{order_xid}, event.{position}) > ((select at.order_xid from at), (select at.position from at))
        order by event.{order_xid}, event.{position}
        limit %(window)s"""
_HISTORY = """
        select '0'::xid8 as rota_xid, event.{position} as rota_position{columns}
        from {table} as event
        where event.{order_xid} is null
          and (select at.order_xid from at) = '0'
          and event.{position} > (select at.position from at)
        -- all are null: but so it is the order of the index on the pair, whatever share of the rows is believed to be history
        order by event.{order_xid}, event.{position}
        limit %(window)s"""
# One window over both: live ones are not walked while history is left.
_BOTH = """
        select event.*
        from ((%s) union all (%s)) as event
        order by event.rota_xid, event.rota_position
        limit %%(window)s"""
_LOOK = """, found as materialized (
        select walked.*
        from (%s
        ) as walked
        where %s
        order by walked.rota_xid, walked.rota_position
        limit %%(batch)s
    ), walked_to as (
        select walked.rota_xid, walked.rota_position, count(*) over () as walked
        from (%s
        ) as walked
        where (select count(*) from found) < %%(batch)s
        order by walked.rota_xid desc, walked.rota_position desc
        limit 1
    )
    select
        null::bigint, null::bigint, null::text, null::bigint, null::text, null::integer, null::text, null::text, null::timestamptz,
        json_build_array(
            at.state, at.order_xid::text, at.position, at.epoch, at.failures, at.replays, at.prepared, at.live, at.newest,
            walked_to.rota_xid::text, walked_to.rota_position, coalesce(walked_to.walked, 0),
            exists (
                select from {table} as event where {log}event.{order_xid} >= (select horizon.xmin from horizon)
            )
        )::text
    from at
    left join walked_to on true
    union all
    select
        found.rota_position::bigint, found.rota_xid::text::bigint, found.rota_stream, found.rota_version, found.rota_type,
        found.rota_shape, found.rota_data, found.rota_metadata, found.rota_created_at, null
    from found
"""
_LAG = """, walked as materialized (
        select walked.*
        from (%s
        ) as walked
        where %%(until_xid)s::text is null
           or (walked.rota_xid, walked.rota_position) <= (%%(until_xid)s::text::xid8, %%(until_position)s::bigint)
    ), ahead as (
        select walked.*
        from walked
        where %s
        limit %%(batch)s
    )
    select
        count(*), extract(epoch from statement_timestamp() - min(ahead.rota_created_at))::float8,
        -- all of them are gone through only where that is in doubt
        case when count(*) >= %%(batch)s then true else (select count(*) from walked) >= %%(window)s end
    from ahead
"""
_LAST = """
    select rota_last.rota_xid, rota_last.rota_position
    from (
        (
            select event.{order_xid}::text::bigint as rota_xid, event.{position} as rota_position
            from {table} as event
            where {log}event.{order_xid} is not null
            order by event.{order_xid} desc, event.{position} desc
            limit 1
        )
        union all
        (
            select 0, event.{position}
            from {table} as event
            where {log}event.{order_xid} is null
            order by event.{order_xid} desc, event.{position} desc
            limit 1
        )
    ) as rota_last
    order by rota_last.rota_xid desc
    limit 1
"""
# Nothing leads to a time but the order of the log, which follows it by and large: from the end, as far back as is counted.
_SINCE = """
    with walked as materialized (
        select event.{order_xid} as rota_xid, event.{position} as rota_position, {created_at} as rota_created_at
        from {table} as event
        where {log}event.{order_xid} is not null
        order by event.{order_xid} desc, event.{position} desc
        limit %(window)s
    )
    select
        (
            select walked.rota_position
            from walked
            where walked.rota_created_at >= %(since)s::timestamptz
            order by walked.rota_xid, walked.rota_position
            limit 1
        ),
        (select count(*) from walked) >= %(window)s and (
            select walked.rota_created_at >= %(since)s::timestamptz
            from walked
            order by walked.rota_xid, walked.rota_position
            limit 1
        )
"""
_AHEAD = """
    select
        coalesce(
            (select rota_newest.rota_xid from (%s) as rota_newest)::text::xid8 >= pg_snapshot_xmax(pg_current_snapshot()),
            false
        ),
        coalesce(
            (
                select bool_or(projection.order_xid >= pg_snapshot_xmax(pg_current_snapshot()))
                from {schema}.projections as projection
                where projection.name = %%(name)s
                  and projection.version = %%(version)s
            ),
            false
        )
"""
_ONE = """
    select
        event.{position}, coalesce(event.{order_xid}::text::bigint, 0), {stream}, {version}, {type}, {shape}, {data}, {metadata},
        {created_at}
    from {table} as event
    where {log}event.{position} = %(position)s::bigint
"""
# Where an index leads to it; and history, which has none.
_ONE_OF_THESE = _ONE + "      and event.{order_xid} = %(order_xid)s::text::xid8\n"
_ONE_OF_HISTORY = _ONE + "      and event.{order_xid} is null\n"


class Feed:
    """What one projection reads of one source."""

    def __init__(
        self,
        name: str,
        version: int,
        source: EventSource,
        *,
        types: Sequence[str] | None = None,
        streams: Sequence[str] | None = None,
        build: int = 1,
        partition: int = 0,
        partitions: int = 1,
    ) -> None:
        self.source = source
        self._filters = types is not None or streams is not None or partitions > 1
        self._params: dict[str, Any] = {
            "name": name,
            "version": version,
            "build": build,
            "partition": partition,
            "partitions": partitions,
            "start": START.position,
            "log": source.log,
            "types": None if types is None else list(types),
            "streams": None if streams is None else [each for each in streams if not each.endswith("*")],
            "prefixes": None if streams is None else [each[:-1] for each in streams if each.endswith("*")],
        }
        self._parts = {
            "table": source.table,
            "order_xid": source.order_xid,
            "position": source.position,
            "log": 'event."log" = %(log)s::text and ' if source.log is not None else "",
            "stream": _column(source.stream, "text"),
            "version": _column(source.version, "bigint"),
            "type": _column(source.type, "text"),
            "shape": _column(source.shape, "integer"),
            "data": _column(source.data, "text"),
            "metadata": _column(source.metadata, "text"),
            "created_at": _column(source.created_at, "timestamptz"),
        }
        full = "".join(f", {{{each}}} as rota_{each}" for each in _COLUMNS)
        keys = ", {stream} as rota_stream, {type} as rota_type, {created_at} as rota_created_at"
        wanted = _WANTED_TYPES if types is not None else "true"
        wanted += _WANTED_STREAMS if streams is not None else ""
        wanted += _WANTED_PARTITION if partitions > 1 else ""
        self._look = self._made("look_for_events", _AT + _LOOK % (self._walk(full), wanted, self._walk("")))
        # to people, what waits behind the horizon lags as well
        self._lag = self._made("projection_lag", _AT + _LAG % (self._walk(keys, beyond=True), wanted))
        self._between = self._made("count_events", _FROM + _LAG % (self._walk(keys), wanted))
        self._since = self._made("find_event_since", _SINCE)
        self._last = self._made("last_event", _LAST)
        self._first = self._made("first_event", _LAST.replace(" desc", ""))
        self._ahead = self._made("needs_rebase", _AHEAD % _LAST)
        self._one = self._made("read_event", _ONE_OF_THESE)
        self._one_of_history = self._made("read_event_of_history", _ONE_OF_HISTORY)
        self._place = self._made("find_event", _ONE)

    def look(self, batch: int) -> Query[Found | None]:
        """The next events, at most so many, and how the projection stands. None when nobody has declared it."""
        window = max(batch, _WINDOW) if self._filters else batch
        return self._look.query(
            self._params | {"batch": batch, "window": window}, read=lambda rows: _found(rows, window)
        )

    def lag(self, most: int, until: Pair | None = None) -> Query[Lag]:
        """What waits for the projection, whether it can be read yet or not, and up to a place if one is given."""
        window = max(most, _COUNTED) if self._filters else most
        place: dict[str, Any] = {"until_xid": None, "until_position": None}
        if until is not None:
            place = {"until_xid": str(until.order_xid), "until_position": until.position}
        return self._lag.query(self._params | place | {"batch": most, "window": window}, read=one(Lag))

    def between(self, start: Pair, end: Pair, most: int) -> Query[Lag]:
        """The events behind the one place and up to the other, counted as those that wait are."""
        window = max(most, _COUNTED) if self._filters else most
        places = {"from_xid": str(start.order_xid), "from_position": start.position}
        places |= {"until_xid": str(end.order_xid), "until_position": end.position}
        return self._between.query(self._params | places | {"batch": most, "window": window}, read=one(Lag))

    def since(self, at: datetime) -> Query[Since]:
        """The first event of this time or later, in the order of the log; rows that are older than the order are no part of it."""
        return self._since.query(self._params | {"since": at, "window": _COUNTED}, read=one(Since))

    def last(self) -> Query[Pair | None]:
        """The last event that is committed, whether it can be read yet or not."""
        return self._last.query(self._params, read=lambda rows: Pair(*rows[0]) if rows else None)

    def first(self) -> Query[Pair | None]:
        return self._first.query(self._params, read=lambda rows: Pair(*rows[0]) if rows else None)

    def ahead(self) -> Query[Ahead]:
        """What of this has a transaction id that this server has not given out: see `rebase`."""
        return self._ahead.query(self._params, read=one(Ahead))

    def read(self, pair: Pair) -> Query[FeedRow | None]:
        """One event, by its place."""
        params = self._params | {"position": pair.position, "order_xid": str(pair.order_xid)}
        found = self._one if pair.order_xid else self._one_of_history
        return found.query(params, read=lambda rows: FeedRow(*rows[0]) if rows else None)

    def at(self, position: int) -> Query[FeedRow | None]:
        """The event of this position, wherever that is in the order."""
        params = self._params | {"position": position}
        return self._place.query(params, read=lambda rows: FeedRow(*rows[0]) if rows else None)

    def _walk(self, columns: str, *, beyond: bool = False) -> str:
        live = _LIVE.replace("event.{order_xid} < (select horizon.xmin from horizon)", "true") if beyond else _LIVE
        walk = live.replace("{columns}", columns)
        if self.source.log is None:  # ours has none that are older than the column
            history = _HISTORY.replace("{columns}", columns)
            walk = _BOTH % (history, walk)
        return walk

    def _made(self, name: str, text: str) -> Statement:
        # the log is a parameter, and what is composed in is not looked through for those
        log, parts = self._parts["log"], {each: part for each, part in self._parts.items() if each != "log"}
        return statement(name, text.replace("{log}", log)).composed(parts)


_COLUMNS = ("stream", "version", "type", "shape", "data", "metadata", "created_at")
_WANTED_TYPES = "walked.rota_type = any (%(types)s::text[])"
_WANTED_STREAMS = """
          and (
              walked.rota_stream = any (%(streams)s::text[])
              or exists (select from unnest(%(prefixes)s::text[]) as prefix where starts_with(walked.rota_stream, prefix))
          )"""

_WANTED_PARTITION = """
          and {schema}.partition_of(walked.rota_stream, %(partitions)s::int) = %(partition)s::int"""


def _column(name: str | None, type_: str) -> str:
    return f"event.{name}::{type_}" if name is not None else f"null::{type_}"


def _found(rows: Sequence[Row], window: int) -> Found | None:
    heads = [row[-1] for row in rows if row[-1] is not None]
    if not heads:
        return None
    state, order_xid, position, *others, end_xid, end_position, walked, pending = json.loads(heads[0])
    at = Pair(int(order_xid), position)
    epoch, failures, replays, prepared, live, newest = others
    events = sorted((FeedRow(*row[:-1]) for row in rows if row[-1] is None), key=lambda row: row.pair)
    end = Pair(int(end_xid), end_position) if end_xid is not None else events[-1].pair if events else at
    return Found(state, at, epoch, failures, replays, prepared, live, newest, events, end, pending, walked >= window)
