"""Counting what was done, minute by minute, so that a picture of a day reads some hundred rows and not a million.

Nothing is counted while jobs settle: that would make every job dearer. Once a minute one of the workers reads what has settled since
the last time, from the partition of the day, and writes down how much that was: of all jobs, of each queue and of each task. A
minute is counted anew until it is three minutes old, since a transaction may commit after it. Of minutes hours are made, which are
kept for a month.

How long jobs waited and ran is kept as numbers of jobs by steps, each a fourth of a doubling: what is told of them is at most a
fifth too high, of any number of jobs, queues and hours together.

What it costs is to read the partition of the day, as there is no index on when a job settled. Who counts rests for fifty times as
long as that took.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rota.jobs.queue_view import QueueView, look_at_queues
from rota.postgres.query import Query, Steps, nothing, one_or_none, statement

__all__ = ["STEP", "Tallied", "keep_tallies", "longest"]

STEP = 2**0.25  # each step is so many times as long as the one before it; the first ends at a millisecond
_LATE = timedelta(minutes=3)  # what commits later than that after it settled is in no picture
_AT_ONCE = timedelta(hours=6)  # of a past that nobody has counted
_PAST = timedelta(days=1)  # that is counted when a database has no tallies yet
_EVERY = timedelta(seconds=45)
_REST = 50  # times as long as it took


def longest(step: int) -> float:
    """The seconds up to which a duration is in this step."""
    return 0.001 * float(STEP**step)


@dataclass(frozen=True, slots=True)
class Tallied:
    """What one round counted, and whether there is more to count now."""

    since: datetime
    until: datetime
    unfinished: bool


class _Kept(NamedTuple):
    now: datetime
    minutes_until: datetime | None
    hours_until: datetime | None


# nobody waits for one who counts; and one who comes too early finds nothing either
BEGIN = statement(
    "begin_tallies",
    """
    select {schema}.now(), kept.minutes_until, kept.hours_until
    from {schema}.tallied as kept
    where kept.kept_at is null
       or kept.kept_at < {schema}.now() - %(every)s
    for update skip locked
    """,
)

CLEAR = statement(
    "clear_minutes",
    "delete from {schema}.tallies where span = 'minute' and at >= %(since)s and at < %(until)s",
)

# One pass over what has settled, then over few rows. An attempt has no task: its job does, wherever that is now.
COUNT = statement(
    "count_minutes",
    """
    with settled as materialized (
        select
            date_trunc('minute', job.finished_at, 'UTC') as at, job.queue, job.task, job.state,
            case when job.started_at is not null then least(200, greatest(0, ceil(
                ln(greatest(extract(epoch from job.started_at - job.due_at)::float8, 0.001) / 0.001) / ln(2) * 4
            )))::integer end as wait,
            case when job.started_at is not null then least(200, greatest(0, ceil(
                ln(greatest(extract(epoch from job.finished_at - job.started_at)::float8, 0.001) / 0.001) / ln(2) * 4
            )))::integer end as run,
            count(*) as jobs
        from {schema}.history as job
        where job.finished_at >= %(since)s
          and job.finished_at < %(until)s
        group by 1, 2, 3, 4, 5, 6
    ), failed as materialized (
        select
            date_trunc('minute', attempt.finished_at, 'UTC') as at, job.queue, job.task, attempt.outcome,
            count(*) as attempts, count(*) filter (where job.died = attempt.attempt) as dead
        from {schema}.attempts as attempt
        cross join lateral (
            select live.queue, live.task, null::integer as died from {schema}.jobs as live where live.id = attempt.job_id
            union all
            select letter.queue, letter.task, letter.attempt from {schema}.dead as letter where letter.id = attempt.job_id
            union all
            select done.queue, done.task, null from {schema}.history as done where done.id = attempt.job_id
            limit 1
        ) as job
        where attempt.finished_at >= %(since)s
          and attempt.finished_at < %(until)s
        group by 1, 2, 3, 4
    ), counted as (
        select
            ended.at, coalesce(ended.queue, '') as queue, coalesce(ended.task, '') as task,
            coalesce(sum(ended.jobs) filter (where ended.state = 'succeeded'), 0)::integer as succeeded,
            coalesce(sum(ended.jobs) filter (where ended.state = 'cancelled'), 0)::integer as cancelled,
            coalesce(sum(ended.jobs) filter (where ended.state = 'failed'), 0)::integer as failed,
            coalesce(sum(ended.jobs) filter (where ended.state = 'lost'), 0)::integer as lost,
            coalesce(sum(ended.dead), 0)::integer as dead
        from (
            select settled.at, settled.queue, settled.task, settled.state, settled.jobs, 0 as dead from settled
            union all
            select failed.at, failed.queue, failed.task, failed.outcome, failed.attempts, failed.dead from failed
        ) as ended
        group by grouping sets ((ended.at), (ended.at, ended.queue), (ended.at, ended.task))
    ), waits as (
        select step.at, step.queue, step.task, jsonb_object_agg(step.wait, step.jobs) as steps
        from (
            select settled.at, coalesce(settled.queue, '') as queue, coalesce(settled.task, '') as task, settled.wait,
                   sum(settled.jobs) as jobs
            from settled
            where settled.wait is not null
            group by grouping sets
                ((settled.at, settled.wait), (settled.at, settled.queue, settled.wait), (settled.at, settled.task, settled.wait))
        ) as step
        group by step.at, step.queue, step.task
    ), runs as (
        select step.at, step.queue, step.task, jsonb_object_agg(step.run, step.jobs) as steps
        from (
            select settled.at, coalesce(settled.queue, '') as queue, coalesce(settled.task, '') as task, settled.run,
                   sum(settled.jobs) as jobs
            from settled
            where settled.run is not null
            group by grouping sets
                ((settled.at, settled.run), (settled.at, settled.queue, settled.run), (settled.at, settled.task, settled.run))
        ) as step
        group by step.at, step.queue, step.task
    )
    insert into {schema}.tallies (span, at, queue, task, succeeded, cancelled, failed, lost, dead, waits, runs)
    select
        'minute', counted.at, counted.queue, counted.task,
        counted.succeeded, counted.cancelled, counted.failed, counted.lost, counted.dead,
        coalesce(waits.steps, '{}'), coalesce(runs.steps, '{}')
    from counted
    left join waits using (at, queue, task)
    left join runs using (at, queue, task)
    """,
)

COUNT_HOURS = statement(
    "count_hours",
    """
    with minute as materialized (
        select date_trunc('hour', tally.at, 'UTC') as hour, tally.*
        from {schema}.tallies as tally
        where tally.span = 'minute'
          and tally.at >= %(since)s
          and tally.at < %(until)s
    ), waits as (
        select sums.hour, sums.queue, sums.task, jsonb_object_agg(sums.step, sums.jobs) as steps
        from (
            select minute.hour, minute.queue, minute.task, step.key as step, sum(step.value::bigint) as jobs
            from minute
            cross join lateral jsonb_each_text(minute.waits) as step
            group by 1, 2, 3, 4
        ) as sums
        group by 1, 2, 3
    ), runs as (
        select sums.hour, sums.queue, sums.task, jsonb_object_agg(sums.step, sums.jobs) as steps
        from (
            select minute.hour, minute.queue, minute.task, step.key as step, sum(step.value::bigint) as jobs
            from minute
            cross join lateral jsonb_each_text(minute.runs) as step
            group by 1, 2, 3, 4
        ) as sums
        group by 1, 2, 3
    ), counted as (
        select
            minute.hour, minute.queue, minute.task, sum(minute.succeeded) as succeeded, sum(minute.cancelled) as cancelled,
            sum(minute.failed) as failed, sum(minute.lost) as lost, sum(minute.dead) as dead
        from minute
        group by 1, 2, 3
    )
    insert into {schema}.tallies (span, at, queue, task, succeeded, cancelled, failed, lost, dead, waits, runs)
    select
        'hour', counted.hour, counted.queue, counted.task,
        counted.succeeded, counted.cancelled, counted.failed, counted.lost, counted.dead,
        coalesce(waits.steps, '{}'), coalesce(runs.steps, '{}')
    from counted
    left join waits using (hour, queue, task)
    left join runs using (hour, queue, task)
    -- counted already, by one whose reply was lost
    on conflict do nothing
    """,
)

END = statement(
    "end_tallies",
    """
    with old_tallies as (
        delete from {schema}.tallies
        where (span = 'minute' and at < {schema}.now() - interval '2 days')
           or (span = 'hour' and at < {schema}.now() - interval '31 days')
    ), old_depths as (
        delete from {schema}.depths where at < {schema}.now() - interval '2 days'
    )
    update {schema}.tallied
    set minutes_until = %(minutes)s, hours_until = %(hours)s, kept_at = {schema}.now() + %(rest)s
    """,
)

SAMPLE = statement(
    "sample_depths",
    """
    insert into {schema}.depths (at, queue, due, later, blocked, running, at_least)
    select date_trunc('minute', {schema}.now(), 'UTC'), queue.*
    from unnest(
        %(queues)s::text[], %(due)s::integer[], %(later)s::integer[], %(blocked)s::integer[], %(running)s::integer[],
        %(at_least)s::boolean[]
    ) as queue
    on conflict do nothing
    """,
)


def keep_tallies(most_queues: int = 200) -> Steps[Tallied | None]:
    """Count what has settled since the last time, and sample what waits; None if that was done a moment ago, or is being done."""
    began = time.monotonic()
    kept: _Kept | None = yield BEGIN.query({"every": _EVERY}, read=one_or_none(_Kept))
    if kept is None:
        return None
    minute = kept.now.astimezone(UTC).replace(second=0, microsecond=0)
    since = max(kept.minutes_until - _LATE if kept.minutes_until else minute - _PAST, minute - _PAST)
    until = min(minute, since + _AT_ONCE)
    if since < until:
        yield CLEAR.query({"since": since, "until": until}, read=nothing)
        yield COUNT.query({"since": since, "until": until}, read=nothing)
    hours = yield from _keep_hours(kept.hours_until or _next_hour(since), until - _LATE)
    rest = -_EVERY
    if until == minute:
        queues: list[QueueView] = yield from look_at_queues(())
        yield _sample(sorted(queues, key=lambda queue: -queue.queued)[:most_queues])
        rest = timedelta(seconds=(time.monotonic() - began) * _REST)
    yield END.query({"minutes": until, "hours": hours, "rest": rest}, read=nothing)
    return Tallied(since, until, unfinished=until < minute)


def _keep_hours(since: datetime, until: datetime) -> Steps[datetime]:
    """Make hours of the minutes that are counted for good; returns up to when."""
    whole = until.astimezone(UTC).replace(minute=0)
    if since < whole:
        yield COUNT_HOURS.query({"since": since, "until": whole}, read=nothing)
    return max(since, whole)


def _next_hour(at: datetime) -> datetime:
    return (at.astimezone(UTC) + timedelta(minutes=59)).replace(minute=0)


def _sample(queues: Iterable[QueueView]) -> Query[None]:
    named = [queue for queue in queues if queue.name is not None]
    return SAMPLE.query(
        {
            "queues": [queue.name for queue in named],
            "due": [queue.due for queue in named],
            "later": [queue.queued - queue.due for queue in named],
            "blocked": [queue.blocked for queue in named],
            "running": [queue.running for queue in named],
            "at_least": [queue.at_least for queue in named],
        },
        read=nothing,
    )
