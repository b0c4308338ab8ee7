"""How much waits, for a page or a probe that asks again and again: every number here is counted to a bound and no further.

With a million jobs a true count reads a million rows. These read at most `most` of each lane, of what runs and of the dead
letters, and no more than so many lanes: a number that has reached its bound says "that many, or more". Where there are many
lanes, each has a share of the bound only, so that all of them together take no longer than twenty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.postgres.query import Query, Row, scalar, statement

__all__ = ["QueueDepth", "count_open_letters", "count_running", "queue_depths"]


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many jobs of a queue are due, and how many wait for a later time; and for how long the oldest has been due."""

    ready: int
    scheduled: int
    oldest_seconds: float


# From lane to lane in the index, as a claim looks: see `claim`. A count over a queue alone would walk its delayed jobs.
DEPTHS = statement(
    "queue_depths",
    """
    with recursive lane as (
        (
            select job.queue, job.priority, job.due_at
            from {schema}.jobs as job
            where job.state = 'queued'
            order by job.queue, job.priority desc, job.due_at, job.id
            limit 1
        )
        union all
        select next.queue, next.priority, next.due_at
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
                order by job.queue, job.priority desc, job.due_at, job.id
                limit 1
            )
            limit 1
        ) as next
    ),
    share as (
        select greatest(1, %(most)s / greatest(1, (count(*) + 19) / 20)) as most
        from (select from lane limit %(lanes)s) as told
    )
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
                limit (select share.most from share)
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
                limit (select share.most from share)
            ) as scheduled
        ),
        greatest(0, extract(epoch from (select {schema}.now()) - lane.due_at))::float8
    from lane
    limit %(lanes)s
    """,
)


def queue_depths(*, most: int, lanes: int = 200) -> Query[dict[str, QueueDepth]]:
    """What waits, by queue. Counts no more than `most` of each lane, of more than twenty their share of it, and leaves out what
    is beyond so many `lanes`."""
    return DEPTHS.query({"most": most, "lanes": lanes}, read=_depths)


def _depths(rows: Sequence[Row]) -> dict[str, QueueDepth]:
    told: dict[str, QueueDepth] = {}
    for queue, ready, scheduled, oldest in rows:
        so_far = told.get(queue, QueueDepth(0, 0, 0.0))
        told[queue] = QueueDepth(so_far.ready + ready, so_far.scheduled + scheduled, max(so_far.oldest_seconds, oldest))
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
