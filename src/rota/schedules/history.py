"""The runs of a schedule, each with what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rota.jobs.inspect import check_page
from rota.jobs.job import JobId
from rota.postgres.query import Query, many, statement

__all__ = ["ScheduleRun", "list_runs"]


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """A run that was given out. `slot_at` is the moment it stands for, `cause` why there is it: due, backfill, trigger, after,
    event or activated. `job` is the last one that was to do it, if one died and was retried. `state` is that of the job; or
    waiting, for the run before it; or forgotten, when history has dropped it.
    """

    id: int
    slot_at: datetime
    cause: str
    state: str
    job: JobId | None
    attempt: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    #: the run of a parent that it follows
    parent_job: JobId | None


LIST_RUNS = statement(
    "list_runs",
    """
    select
        slot.id, slot.slot_at, slot.cause,
        case when slot.job_id is null then 'waiting' else coalesce(job.state, done.state, dead.state, 'forgotten') end,
        newest.job_id, coalesce(job.attempt, done.attempt, dead.attempt, 0), slot.created_at,
        coalesce(job.claimed_at, done.started_at), coalesce(done.finished_at, dead.died_at), dead.error, slot.parent_job
    from (
        select *
        from {schema}.slots as slot
        where slot.schedule = %(name)s
          and (%(after)s::bigint is null or slot.id < %(after)s)
        order by slot.id desc
        limit %(limit)s
    ) as slot
    -- one that died may have been retried, and that one too
    left join lateral (
        with recursive tried as (
            select slot.job_id
            union all
            select letter.successor
            from tried
            join {schema}.dead as letter on letter.id = tried.job_id
            where letter.successor > letter.id
        )
        select max(tried.job_id) as job_id from tried
    ) as newest on true
    -- the limits keep PostgreSQL from reading all there is to join it with the few that are wanted
    left join lateral (
        select job.state, job.attempt, job.claimed_at from {schema}.jobs as job where job.id = newest.job_id limit 1
    ) as job on true
    left join lateral (
        select done.state, done.attempt, done.started_at, done.finished_at
        from {schema}.history as done
        where done.id = newest.job_id
          -- partitions of days before it are not looked into; an hour for a clock that was set back
          and done.finished_at >= slot.created_at - interval '1 hour'
        limit 1
    ) as done on true
    left join lateral (
        select
            'dead' as state, letter.attempt, letter.died_at, concat_ws(': ', letter.error_type, letter.error_message) as error
        from {schema}.dead as letter
        where letter.id = newest.job_id
        limit 1
    ) as dead on true
    order by slot.id desc
    """,
)


def list_runs(name: str, *, limit: int, after: int | None) -> Query[list[ScheduleRun]]:
    """Its runs, the newest first; `after` is the last id of the page before."""
    check_page(limit, after)
    return LIST_RUNS.query({"name": name, "limit": limit, "after": after}, read=many(_run))


def _run(*row: Any) -> ScheduleRun:
    # behind a pooler the session has the time zone of the server
    told: list[Any] = [each.astimezone(UTC) if isinstance(each, datetime) else each for each in row]
    return ScheduleRun(*told)
