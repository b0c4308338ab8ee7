"""Where there is something to take: reading that, and changing nothing.

A *lane* is a queue and a priority. One read finds the lanes that have something queued, whether any of it is due, and when
the next is; it jumps from lane to lane in the index, so it costs the same with ten jobs or ten million. Jobs under a limit of
their task wait in *lines*, see `0008_flow.sql`, and lines that are ready wait in lanes as jobs do. A queue that is paused has
no lanes.

What makes it dear are dead entries before the first live one, which no vacuum can remove while some old transaction may still
see them. A second read looks at lanes that are known already, from where it is told, and so walks none of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rota.jobs.job import JobId
from rota.postgres.query import Query, Row, statement

__all__ = ["LANES", "LANES_OF", "WAYS", "Lane", "Look", "Start", "find_lanes", "read_look", "revisit_lanes"]


class Start(NamedTuple):
    """Where in a lane a walk begins: behind this job."""

    due_at: datetime
    id: JobId


class Lane(NamedTuple):
    """A queue and a priority with something queued: a tuple, as there may be thousands. `due_in` is how far away its first job
    is, `next_due_in` the first that is not due yet, whatever stands before it; `suspects` tells whether any lane has jobs that
    were lost before; a walk from `start` meets the first job and nothing before it."""

    queue: str
    priority: int
    due_in: float
    suspects: bool = False
    next_due_in: float | None = None
    start: Start | None = None
    #: of lines that are ready, not of jobs
    lines: bool = False
    #: its queue, or all queues together, may run only so many
    limited: bool = False
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """The lanes that were found, when that was, and how long it took the server; and in how many seconds the next job that
    is not in line yet is to join it."""

    lanes: list[Lane]
    at: datetime
    seconds: float
    joins_in: float | None = None


# Lanes of lines are found from the start each time: they are few.
WAYS = """
    , line_lane as (
        (
            select line.queue, line.priority, line.ready_at
            from {schema}.lines as line
            where line.ready_at is not null
            order by line.queue, line.priority desc, line.ready_at, line.id
            limit 1
        )
        union all
        select next.queue, next.priority, next.ready_at
        from line_lane
        cross join lateral (
            (
                select line.queue, line.priority, line.ready_at
                from {schema}.lines as line
                where line.ready_at is not null
                  and line.queue = line_lane.queue
                  and line.priority < line_lane.priority
                order by line.priority desc, line.ready_at, line.id
                limit 1
            )
            union all
            (
                select line.queue, line.priority, line.ready_at
                from {schema}.lines as line
                where line.ready_at is not null
                  and line.queue > line_lane.queue
                order by line.queue, line.priority desc, line.ready_at, line.id
                limit 1
            )
            limit 1
        ) as next
    ), found as (
        select
            lane.queue, lane.priority, lane.due_at, lane.id, false as lines,
            -- what is due may be nothing for us: a task we do not know, a suspect; what comes after it is due in its own time
            (
                select job.due_at
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority = lane.priority
                  and job.due_at > (select {schema}.now())
                order by job.due_at, job.id
                limit 1
            ) as next_at
        from lane
        union all
        select
            line_lane.queue, line_lane.priority, line_lane.ready_at, 0, true,
            (
                select line.ready_at
                from {schema}.lines as line
                where line.queue = line_lane.queue
                  and line.priority = line_lane.priority
                  and line.ready_at > (select {schema}.now())
                order by line.ready_at, line.id
                limit 1
            )
        from line_lane
    ), way as materialized (
        select
            found.queue, found.priority,
            extract(epoch from greatest(found.due_at, rule.opens_at) - (select {schema}.now()))::float8 as due_in,
            (select exists (select from {schema}.jobs as job where job.state = 'queued' and job.losses > 0)) as suspects,
            extract(epoch from greatest(
                -- of a lane that someone has closed for a time, the first is next
                case when rule.opens_at > (select {schema}.now()) then found.due_at else found.next_at end, rule.opens_at
            ) - (select {schema}.now()))::float8 as next_due_in,
            found.due_at, found.id, found.lines, coalesce(rule.limited, false) as limited, coalesce(rule.weight, 1) as weight
        from found
        left join lateral (
            select
                max(queue.weight) filter (where queue.name <> '') as weight,
                bool_or(queue.running_limit is not null or queue.rate_count is not null) as limited,
                max(greatest(
                    case
                        when queue.paused_at is null or queue.paused_until <= (select {schema}.now()) then null
                        else coalesce(queue.paused_until, 'infinity')
                    end,
                    queue.not_before
                )) as opens_at
            from {schema}.queues as queue
            where queue.name = any (array['', found.queue])
        ) as rule on true
        where (%(queues)s::text[] is null or found.queue = any (%(queues)s::text[]))
          and coalesce(rule.opens_at < 'infinity', true)
        order by found.priority desc
    ), looked as materialized (
        -- how many there are is known when all of them have been found
        select
            count(*), extract(epoch from clock_timestamp() - statement_timestamp())::float8 as seconds,
            extract(epoch from (
                select job.due_at
                from {schema}.jobs as job
                where job.state = 'blocked' and job.place is null and job.after is null
                order by job.due_at, job.id
                limit 1
            ) - {schema}.now())::float8 as joins_in
        from way
    )
"""
_TOLD = (
    WAYS  # noqa: S608 - all parts are written out here
    + """
    select * from way
    union all
    select null, null, seconds, null, joins_in, {schema}.now(), null, null, null, null from looked
"""
)

#: What has something queued, from the start of each.
LANES = """
    with recursive lane as (
        (
            select job.queue, job.priority, job.due_at, job.id
            from {schema}.jobs as job
            where job.state = 'queued'
            order by job.queue, job.priority desc, job.due_at, job.id
            limit 1
        )
        union all
        select next.queue, next.priority, next.due_at, next.id
        from lane
        cross join lateral (
            (
                select job.queue, job.priority, job.due_at, job.id
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority < lane.priority
                order by job.priority desc, job.due_at, job.id
                limit 1
            )
            union all
            (
                select job.queue, job.priority, job.due_at, job.id
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue > lane.queue
                order by job.queue, job.priority desc, job.due_at, job.id
                limit 1
            )
            limit 1
        ) as next
    )
"""
#: The same of these queues alone: on the way to them, others may have as many dead entries as they like.
LANES_OF = """
    with recursive lane as (
        select head.queue, head.priority, head.due_at, head.id
        from (select distinct name from unnest(%(queues)s::text[]) as given(name)) as given
        cross join lateral (
            select job.queue, job.priority, job.due_at, job.id
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = given.name
            order by job.priority desc, job.due_at, job.id
            limit 1
        ) as head
        union all
        select next.queue, next.priority, next.due_at, next.id
        from lane
        cross join lateral (
            select job.queue, job.priority, job.due_at, job.id
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = lane.queue
              and job.priority < lane.priority
            order by job.priority desc, job.due_at, job.id
            limit 1
        ) as next
    )
"""
FIND_LANES = statement("find_lanes", LANES + _TOLD)
FIND_LANES_OF = statement("find_lanes_of", LANES_OF + _TOLD)


def find_lanes(queues: Sequence[str] | None) -> Query[Look]:
    """The lanes with something queued, the most urgent first, and how far away the jobs of each are."""
    if queues is None:
        return FIND_LANES.query({"queues": None}, read=read_look)
    return FIND_LANES_OF.query({"queues": list(queues)}, read=read_look)


REVISIT_LANES = statement(
    "revisit_lanes",
    """
    with recursive lane as (
        select known.queue, known.priority, head.due_at, head.id
        from unnest(
            %(known_queues)s::text[], %(priorities)s::smallint[], %(after_due)s::timestamptz[], %(after_id)s::bigint[]
        ) as known(queue, priority, after_due, after_id)
        cross join lateral (
            select job.due_at, job.id
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = known.queue
              and job.priority = known.priority
              and (job.due_at, job.id) > (known.after_due, known.after_id)
            order by job.due_at, job.id
            limit 1
        ) as head
    )
    """  # noqa: S608 - all parts are written out here
    + _TOLD,
)


def revisit_lanes(known: Mapping[tuple[str, int], Start]) -> Query[Look]:
    """Those of these lanes that have something queued behind where each is told to begin."""
    return REVISIT_LANES.query(
        {
            "known_queues": [queue for queue, _ in known],
            "priorities": [priority for _, priority in known],
            "after_due": [start.due_at.isoformat() for start in known.values()],
            "after_id": [start.id for start in known.values()],
            "queues": None,
        },
        read=read_look,
    )


def read_look(rows: Sequence[Row]) -> Look:
    """The lanes, and last what is told of all of them."""
    *lanes, (_, _, seconds, _, joins_in, at, *_) = rows
    return Look([_lane(*lane) for lane in lanes], at, seconds, joins_in)


def _lane(
    queue: str,
    priority: int,
    due_in: float,
    suspects: bool,
    next_due_in: float,
    due_at: datetime,
    id: JobId,
    lines: bool,
    limited: bool,
    weight: float,
) -> Lane:
    return Lane(queue, priority, due_in, suspects, next_due_in, Start(due_at, id - 1), lines, limited, weight)
