"""Looking at jobs, wherever they are: live, settled or dead. What the CLI prints and the dashboard shows comes from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rota.errors import ConfigurationError
from rota.jobs.codec import readable
from rota.jobs.definition import Task
from rota.jobs.job import AttemptError, Job, JobId, Owner
from rota.jobs.redact import shown_args
from rota.postgres.query import Query, Row, many, scalar, statement

__all__ = [
    "DEAD_JOBS",
    "JOB_COLUMNS",
    "LIVE_JOBS",
    "SETTLED_JOBS",
    "STATES",
    "TakenOver",
    "check_id",
    "check_page",
    "database_time",
    "get_job",
    "held_by_member",
    "ledger",
    "list_jobs",
    "read_job",
    "succeeded_by_member",
    "taken_over_from",
    "text_filters",
]

STATES = ("queued", "blocked", "running", "succeeded", "dead", "cancelled")

# What is told of a job, out of `all_jobs`: any of the three below. A state is kept in one table only, so a filter by state leaves
# the other parts out.
JOB_COLUMNS = """
    select
        all_jobs.id, all_jobs.task, all_jobs.queue, all_jobs.state, all_jobs.priority, all_jobs.attempt,
        all_jobs.created_at, all_jobs.due_at, all_jobs.args, all_jobs.result, all_jobs.losses, all_jobs.started_at,
        all_jobs.finished_at, all_jobs.member, all_jobs.tags, all_jobs.version, all_jobs.key, all_jobs.progress,
        all_jobs.progress_note, all_jobs.cancel_requested_at, all_jobs.reason, all_jobs.origin, all_jobs.retention,
        all_jobs.redact, all_jobs.schedule, all_jobs.slot_at, all_jobs.trace_context,
        case when %(errors)s then (
            select jsonb_agg(jsonb_build_array(
                attempt.attempt, attempt.outcome, attempt.error_type, attempt.error_message, attempt.error_trace,
                attempt.member, attempt.started_at, attempt.finished_at
            ) order by attempt.finished_at, attempt.attempt)
            from {schema}.attempts as attempt
            where attempt.job_id = all_jobs.id
        ) end
"""

LIVE_JOBS = """
            select job.id, job.task, job.queue, job.state, job.priority, job.attempt, job.created_at, job.due_at, job.args,
                   null::jsonb as result, job.losses, job.claimed_at as started_at, null::timestamptz as finished_at, job.member,
                   job.tags, job.version, job.key, job.progress, job.progress_note, job.cancel_requested_at,
                   job.cancel_reason as reason, job.origin, job.retention, job.redact, job.schedule, job.slot_at,
                   job.trace_context
            from {schema}.jobs as job
"""

SETTLED_JOBS = """
            select job.id, job.task, job.queue, job.state, job.priority, job.attempt, job.created_at, job.due_at, job.args,
                   job.result, job.losses, job.started_at, job.finished_at, job.member,
                   job.tags, job.version, job.key, null::real, null::text, null::timestamptz,
                   job.reason, job.origin, job.retention, job.redact, job.schedule, job.slot_at,
                   job.trace_context
            from {schema}.history as job
"""

DEAD_JOBS = """
            select job.id, job.task, job.queue, 'dead', job.priority, job.attempt, job.created_at, job.due_at, job.args,
                   null::jsonb, job.losses, null::timestamptz, job.died_at, job.member,
                   job.tags, job.version, job.key, null::real, null::text, null::timestamptz,
                   job.reason, job.origin, job.retention, job.redact, job.schedule, job.slot_at,
                   job.trace_context
            from {schema}.dead as job
"""

GET = statement(
    "get_job",
    JOB_COLUMNS
    + "from ("
    + LIVE_JOBS
    + "where job.id = %(id)s union all"
    + SETTLED_JOBS
    + "where job.id = %(id)s union all"
    + DEAD_JOBS
    + """
        where job.id = %(id)s
    ) as all_jobs
    -- a statement sees one moment, so a job that is moving is seen in one place
    limit 1
    """,
)


def get_job(id: JobId, app: Owner | None) -> Query[Job[Any] | None]:
    """One job with its errors, or None."""
    return GET.query({"id": check_id(id), "errors": True}, read=lambda rows: read_job(rows[0], app) if rows else None)


def check_id(id: JobId) -> JobId:
    """The id if a job may have it, else one that none has. Raises ConfigurationError for what is no number."""
    if not isinstance(id, int) or isinstance(id, bool):
        raise ConfigurationError(f"A job id is a whole number, not {id!r}.")
    return id if 0 < id < 2**63 else 0


_FITTING = """
              and (%(queue)s::text is null or job.queue = %(queue)s)
              and (%(task)s::text is null or job.task = %(task)s)
              and (%(tag)s::text is null or %(tag)s = any (job.tags))
              and (%(after)s::bigint is null or job.id < %(after)s)
            order by job.id desc
            limit %(limit)s
"""

LIST = statement(
    "list_jobs",
    JOB_COLUMNS
    + "from (("
    + LIVE_JOBS
    + "where (%(state)s::text is null or job.state = %(state)s)"
    + _FITTING
    + ") union all ("
    + SETTLED_JOBS
    + """
            where (%(state)s::text is null or job.state = %(state)s)
              and (%(state)s::text is null or %(state)s in ('succeeded', 'cancelled'))
    """
    + _FITTING
    + ") union all ("
    + DEAD_JOBS
    + """
            where job.resolved_at is null
              and (%(state)s::text is null or %(state)s = 'dead')
    """
    + _FITTING
    + """
    )) as all_jobs
    order by all_jobs.id desc
    limit %(limit)s
    """,
)


def list_jobs(
    app: Owner | None,
    *,
    state: str | None = None,
    queue: str | None = None,
    task: Task[..., Any] | str | None = None,
    tag: str | None = None,
    limit: int = 100,
    after: JobId | None = None,
) -> Query[list[Job[Any]]]:
    """Jobs that fit all filters, the newest first; `after` is the last id of the page before."""
    if state is not None and state not in STATES:
        raise ConfigurationError(f"No job is ever {state!r}: the states are {', '.join(STATES)}.")
    check_page(limit, after)
    filters = text_filters({"state": state, "queue": queue, "task": task, "tag": tag})
    params = {**filters, "limit": limit, "after": after, "errors": False}
    return LIST.query(params, read=lambda rows: [read_job(row, app) for row in rows])


def check_page(limit: int, after: JobId | None) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 10_000:
        raise ConfigurationError(
            f"limit cannot be {limit!r}: it is a number from 1 to 10000; use after=... for the next page."
        )
    if after is not None and (not isinstance(after, int) or isinstance(after, bool) or not 0 < after < 2**63):
        raise ConfigurationError(f"after cannot be {after!r}: it is the id of a job, the last of the page before.")


def text_filters(filters: Mapping[str, Any]) -> dict[str, str | None]:
    """Filters as the texts that rows have; a task stands for its name. Raises ConfigurationError for what is neither."""
    texts = {name: value.name if isinstance(value, Task) else value for name, value in filters.items()}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(f"{name} cannot be {value!r}: it is a text to choose by, or None.")
    return texts


LEDGER = statement(
    "ledger",
    """
    with live as (
        select
            count(*) filter (where state = 'queued') as queued,
            count(*) filter (where state = 'blocked') as blocked,
            count(*) filter (where state = 'running') as running
        from {schema}.jobs
    ), settled as (
        select
            count(*) filter (where state = 'succeeded') as succeeded,
            count(*) filter (where state = 'cancelled') as cancelled
        from {schema}.history
    )
    select live.queued, live.blocked, live.running, settled.succeeded, (select count(*) from {schema}.dead), settled.cancelled
    from live, settled
    """,
)


def ledger() -> Query[dict[str, int]]:
    """How many jobs there are in each state, all counted at one moment. Reads every row: not for a page that refreshes."""
    return LEDGER.query(read=lambda rows: dict(zip(STATES, rows[0], strict=True)))


HELD = statement(
    "held_by_member",
    "select coalesce(jsonb_object_agg(held.member, held.jobs), '{}') from (select member, count(*) as jobs "
    "from {schema}.jobs where state = 'running' group by member) as held",
)


def held_by_member() -> Query[dict[str, int]]:
    """How many jobs each member is running."""
    return HELD.query(read=scalar)


SUCCEEDED = statement(
    "succeeded_by_member",
    """
    select coalesce(jsonb_object_agg(done.member, done.jobs), '{}')
    from (
        select member, count(*) as jobs
        from {schema}.history
        where state = 'succeeded' and member is not null
        group by member
    ) as done
    """,
)


def succeeded_by_member() -> Query[dict[str, int]]:
    """How many jobs of the history each member brought to success. Reads all of it, like the ledger."""
    return SUCCEEDED.query(read=scalar)


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A job that went down with a member: when that was on record, and when and by whom it was started again, if it was."""

    id: JobId
    task: str
    lost_at: datetime
    started_at: datetime | None
    member: UUID | None


TAKEN_OVER = statement(
    "taken_over_from",
    """
    select lost.job_id, coalesce(job.task, done.task, dead.task), lost.finished_at, again.started_at, again.member
    from {schema}.attempts as lost
    left join {schema}.jobs as job on job.id = lost.job_id
    left join {schema}.history as done on done.id = lost.job_id
    left join {schema}.dead as dead on dead.id = lost.job_id
    left join lateral (
        select next.started_at, next.member
        from (
            select attempt, started_at, member from {schema}.attempts where job_id = lost.job_id
            union all
            select done.attempt, done.started_at, done.member
            union all
            -- a running attempt is on no record yet: it began when it was claimed, or a moment later
            select job.attempt, job.claimed_at, job.member
        ) as next
        where next.attempt > lost.attempt
          and next.started_at is not null
        order by next.attempt
        limit 1
    ) as again on true
    where lost.member = %(member)s
      and lost.outcome = 'lost'
    order by lost.job_id, lost.attempt
    """,
)


def taken_over_from(member: UUID) -> Query[list[TakenOver]]:
    """What became of the jobs that were lost with a member. Reads all attempts on record."""
    return TAKEN_OVER.query({"member": member}, read=many(TakenOver))


TIME = statement("database_time", "select {schema}.now()")


def database_time() -> Query[datetime]:
    """The clock that attempts and settled jobs are stamped by."""
    return TIME.query(read=scalar)


def read_job(row: Row, app: Owner | None) -> Job[Any]:
    codec = None if app is None else app.codec
    return Job(
        id=row[0],
        task=row[1],
        queue=row[2],
        state=row[3],
        priority=row[4],
        attempt=row[5],
        created_at=row[6],
        due_at=row[7],
        args=shown_args(app, row[1], row[8], row[23]),
        result=readable(codec, row[9]),
        losses=row[10],
        started_at=row[11],
        finished_at=row[12],
        member=row[13],
        tags=tuple(row[14] or ()),
        version=row[15],
        key=row[16],
        progress=row[17],
        progress_note=row[18],
        cancel_requested_at=row[19],
        reason=row[20],
        origin=row[21],
        retention=row[22],
        schedule=row[24],
        slot_at=row[25],
        trace_context=row[26],
        errors=tuple(_error(entry) for entry in row[27] or ()),
        _app=app,
    )


def _error(entry: Sequence[Any]) -> AttemptError:
    attempt, kind, type_, message, trace, member, started_at, finished_at = entry
    return AttemptError(
        attempt=attempt,
        kind=kind,
        type=type_,
        message=message,
        trace=trace,
        member=UUID(member) if member else None,
        started_at=datetime.fromisoformat(started_at) if started_at else None,
        finished_at=datetime.fromisoformat(finished_at),
    )
