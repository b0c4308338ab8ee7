"""How much waits, for a page or a probe that asks again and again: every number here is counted to a bound and no further.

With a million jobs a true count reads a million rows. These read at most `most` of each lane, of what runs and of the dead
letters, and no more than so many lanes: a number that has reached its bound says "that many, or more". Where there are many
lanes, each has a share of the bound only, so that all of them together take no longer than twenty.

For how long the oldest has waited is told by one entry of an index for each lane, and asked for apart: a count that takes too
long leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rota.postgres.query import Query, Row, many, scalar, statement

__all__ = ["LaneHead", "QueueDepth", "count_open_letters", "count_running", "lane_heads", "queue_depths"]

_FULLY = 20  # lanes that are counted to the bound itself


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many jobs of a queue are due, and how many wait for a later time."""

    ready: int = 0
    scheduled: int = 0

    def __add__(self, other: QueueDepth) -> QueueDepth:
        return QueueDepth(self.ready + other.ready, self.scheduled + other.scheduled)


class LaneHead(NamedTuple):
    """A lane in which something is queued, and for how long its first job has been due."""

    queue: str
    priority: int
    oldest_seconds: float


# From lane to lane in the index, as a claim looks: see `claim`. Beside that walk there is one for each queue that is asked for,
# which stays in it: so these are found wherever in the order of names they are.
HEADS = statement(
    "lane_heads",
    """
    with recursive lane as (
        (
            select first.queue, head.priority, head.due_at, true as stays
            from unnest(%(first)s::text[]) as first(queue)
            cross join lateral (
                select job.priority, job.due_at
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = first.queue
                order by job.priority desc, job.due_at, job.id
                limit 1
            ) as head
            union all
            (
                select job.queue, job.priority, job.due_at, false
                from {schema}.jobs as job
                where job.state = 'queued'
                order by job.queue, job.priority desc, job.due_at, job.id
                limit 1
            )
        )
        union all
        select next.queue, next.priority, next.due_at, lane.stays
        from lane
        cross join lateral (
            (
                select job.queue, job.priority, job.due_at
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority < lane.priority
                order by job.priority desc, job.due_at, job.id
                limit 1
            )
            union all
            (
                select job.queue, job.priority, job.due_at
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue > lane.queue
                  and not lane.stays
                order by job.queue, job.priority desc, job.due_at, job.id
                limit 1
            )
            limit 1
        ) as next
    )
    select told.queue, told.priority, greatest(0, extract(epoch from (select {schema}.now()) - told.due_at))::float8
    from (select * from lane limit %(lanes)s) as told
    -- both walks pass the queues that were asked for
    where told.stays
       or told.queue <> all (%(first)s::text[])
    """,
)


def lane_heads(first: Collection[str] = (), *, lanes: int = 1000) -> Query[list[LaneHead]]:
    """Where something is queued: in the queues that come `first`, and in others by their names. No more than so many `lanes`."""
    return HEADS.query({"first": list(first), "lanes": lanes}, read=many(LaneHead))


DEPTHS = statement(
    "queue_depths",
    """
    select
        lane.queue,
        (
            select count(*)
            from (
                select
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority = lane.priority
                  and job.due_at <= (select {schema}.now())
                limit lane.most
            ) as ready
        ),
        (
            select count(*)
            from (
                select
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority = lane.priority
                  and job.due_at > (select {schema}.now())
                limit lane.most
            ) as scheduled
        )
    from unnest(%(queues)s::text[], %(priorities)s::smallint[], %(most)s::bigint[]) as lane(queue, priority, most)
    """,
)


def queue_depths(heads: Sequence[LaneHead], *, most: int, first: Collection[str] = ()) -> Query[dict[str, QueueDepth]]:
    """What waits in these lanes, by queue. Counts no more than `most` of each; of more than twenty lanes, their share of it.
    What the queues that come `first` have is not shared with others."""
    shares = {
        is_first: _share(most, sum((head.queue in first) is is_first for head in heads)) for is_first in (True, False)
    }
    params = {
        "queues": [head.queue for head in heads],
        "priorities": [head.priority for head in heads],
        "most": [shares[head.queue in first] for head in heads],
    }
    return DEPTHS.query(params, read=_depths)


def _share(most: int, lanes: int) -> int:
    return max(1, most // max(1, -(-lanes // _FULLY)))


def _depths(rows: Iterable[Row]) -> dict[str, QueueDepth]:
    told: dict[str, QueueDepth] = {}
    for queue, ready, scheduled in rows:
        told[queue] = told.get(queue, QueueDepth()) + QueueDepth(ready, scheduled)
    return told


RUNNING = statement(
    "count_running",
    """
    select running.queue, count(*)
    from (select job.queue from {schema}.jobs as job where job.state = 'running' limit %(most)s) as running
    group by running.queue
    """,
)


def count_running(*, most: int) -> Query[dict[str, int]]:
    """How many jobs run, by queue; of no more than `most` of them."""
    return RUNNING.query({"most": most}, read=lambda rows: dict(rows))


OPEN_LETTERS = statement(
    "count_open_letters",
    "select count(*) from (select from {schema}.dead as letter where letter.resolved_at is null limit %(most)s) as open",
)


def count_open_letters(*, most: int) -> Query[int]:
    """How many dead letters nobody has resolved; no more than `most`."""
    return OPEN_LETTERS.query({"most": most}, read=scalar)
