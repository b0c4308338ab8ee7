"""How far projections are behind what they read from: for a scrape and for the doctor, which look often or when all is in trouble.

No log is walked for that. Counting begins at the checkpoint and ends at a bound, along the index by which events are read. What a
projection leaves out counts as well until its checkpoint has moved over it, which it does within a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.events.source import EventSource
from rota.postgres.query import Query, many, statement

__all__ = ["Behind", "ProjectionState", "count_behind", "projection_states"]


class ProjectionState(NamedTuple):
    """How a version of a projection stands; `parked` is counted up to a bound."""

    name: str
    version: int
    state: str
    parked: int


class Behind(NamedTuple):
    """What waits for a version of a projection: how many events, up to a bound, and how long the first of them has."""

    name: str
    version: int
    events: int
    seconds: float | None


# Where several partitions or builds are, the one that stands worst tells how the projection does.
STATES = statement(
    "projection_states",
    """
    select
        projection.name, projection.version,
        case when bool_or(projection.state = 'stopped') then 'stopped' else min(projection.state) end,
        (
            select count(*)
            from (
                select
                from {schema}.parked_events as parked
                where parked.projection = projection.name
                  and parked.version = projection.version
                limit %(most)s
            ) as counted
        )
    from {schema}.projections as projection
    where projection.state <> 'retired'
    group by projection.name, projection.version
    order by projection.name = any (%(first)s::text[]) desc, projection.name, projection.version
    limit %(names)s
    """,
)


def projection_states(*, most: int, names: int, first: Sequence[str]) -> Query[list[ProjectionState]]:
    """How they stand, but for those that retired: at most so many, these names first."""
    params = {"most": most, "names": names, "first": list(first)}
    return STATES.query(params, read=many(ProjectionState))


# Those that are older than the column come before all others, by position.
_BEHIND = """
    select
        projection.name, projection.version, live.events + history.events,
        extract(epoch from statement_timestamp() - coalesce(history.since, live.since))::float8
    from (
        -- of the build that readers use the partition that is the furthest back
        select distinct on (known.name, known.version) known.*
        from {schema}.projections as known
        where known.name = any (%(names)s::text[])
          and known.version = any (%(versions)s::int[])
          and known.state <> 'retired'
        order by known.name, known.version, known.build, known.order_xid, known.position
    ) as projection
    cross join lateral (
        select count(*) as events, (array_agg(ahead.since))[1] as since
        from (
            select {created_at} as since
            from {table} as event
            where {log}(event.{order_xid}, event.{position}) > (projection.order_xid, projection.position)
            order by event.{order_xid}, event.{position}
            limit %(most)s
        ) as ahead
    ) as live
    cross join lateral (
        {history}
    ) as history
"""
_HISTORY = """
        select count(*) as events, (array_agg(ahead.since))[1] as since
        from (
            select {created_at} as since
            from {table} as event
            where event.{order_xid} is null
              and projection.order_xid = '0'
              and event.{position} > projection.position
            order by event.{position}
            limit %(most)s
        ) as ahead"""


def count_behind(source: EventSource, projections: Sequence[tuple[str, int]], *, most: int) -> Query[list[Behind]]:
    """What waits for these of one source, whether it can be read yet or not; nothing of one that nobody has declared."""
    history = "select 0 as events, null::timestamptz as since" if source.log is not None else _HISTORY
    log = 'event."log" = %(log)s::text and ' if source.log is not None else ""
    text = _BEHIND.replace("{history}", history).replace("{log}", log)
    parts = {
        "table": source.table,
        "order_xid": source.order_xid,
        "position": source.position,
        "created_at": "null::timestamptz" if source.created_at is None else f"event.{source.created_at}::timestamptz",
    }
    params: dict[str, Any] = {"log": source.log, "most": most}
    params |= {"names": [name for name, _ in projections], "versions": [version for _, version in projections]}
    return statement("count_behind", text).composed(parts).query(params, read=many(Behind))
