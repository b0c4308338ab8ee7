"""Having a job tried again, or sooner, wherever it is.

A job moves one way only: from live to dead or settled, and from dead to settled. Looked for in that order, each place under
a lock, it cannot slip past. A unique one is made again only under the lock of its key, and while no live job has that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.errors import JobNotFound, NotPossible
from rota.jobs.inspect import check_id, get_job
from rota.jobs.job import Job, JobId, Owner
from rota.jobs.letters import Letter, get_letter
from rota.jobs.resolve import find_holder, retry_letter
from rota.postgres.audit import record
from rota.postgres.query import Query, Row, Steps, nothing, statement

__all__ = ["retry_job"]


def retry_job(id: JobId, channel: str, actor: str, app: Owner) -> Steps[Job[Any]]:
    """Have the job tried now; returns the one that will run. See Jobs.retry."""
    number = check_id(id)
    live: Row | None = yield _hasten(number, channel)
    again: JobId | None = number
    if live is not None:
        state, is_hastened = live
        if not is_hastened:
            _refuse_busy(id, state)
        yield record(actor, "retry", {"job": id})
    elif (yield get_letter(number)) is not None:
        again = yield from _retry_dead(number, channel, actor)
    else:
        again = yield from _repeat(number, channel, actor)
    if again is None:
        raise JobNotFound(
            f"There is no job {id} to retry: it was never enqueued here, or it settled so long ago that it is forgotten."
        )
    job: Job[Any] | None = yield get_job(again, app)
    if job is None:
        raise JobNotFound(
            f"Job {id} was retried before, as job {again}, and that one settled so long ago that it is forgotten."
        )
    return job


HASTEN = statement(
    "hasten_job",
    """
    with live as materialized (
        select
            job.id, job.state, job.queue,
            -- one that is blocked and due has only others to wait for
            job.state = 'queued' or (job.state = 'blocked' and job.after is null and job.due_at > {schema}.now()) as waits
        from {schema}.jobs as job
        where job.id = %(id)s
        for update
    ), hastened as (
        update {schema}.jobs as job
        set due_at = least(job.due_at, {schema}.now())
        from live
        where job.id = live.id
          and live.waits
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, live.queue)) from live where live.waits
    )
    select live.state, live.waits from live, woken
    """,
)


def _hasten(id: JobId, channel: str) -> Query[Row | None]:
    """Make the job due now if it waits for its time; returns its state and whether it did, None if it is not a live one."""
    return HASTEN.query({"id": id, "channel": channel}, read=_row)


def _refuse_busy(id: JobId, state: str) -> None:
    if state == "running":
        raise NotPossible(
            f"Job {id} is running, so there is nothing to retry yet. Wait for it; or end it with `rota jobs cancel {id}`, or with "
            f"`rota jobs discard {id}` if its body does not stop, and retry it then."
        )
    if state == "blocked":
        raise NotPossible(
            f"Job {id} is blocked: it is due, and waits for other jobs, not for its time. `rota jobs explain {id}` tells which, and "
            "what it takes for it to begin."
        )


def _retry_dead(id: JobId, channel: str, actor: str) -> Steps[JobId | None]:
    """The new job of a letter: one that is made now, or was before."""
    try:
        return (yield from retry_letter(id, channel, actor))
    except NotPossible:
        letter: Letter | None = yield get_letter(id)
        if letter is None or letter.resolution != "retried":
            raise
        return letter.successor


LOCK_KEY = statement(
    "lock_settled_key",
    """
    insert into {schema}.uniques (key)
    select done.unique_key
    from {schema}.history as done
    where done.id = %(id)s
      and done.unique_key is not null
    on conflict (key) do update set key = excluded.key
    """,
)

LOCK_SETTLED = statement(
    "lock_settled", "select done.task, done.unique_key from {schema}.history as done where done.id = %(id)s for update"
)

# A statement of its own after the locks: only then does it see the jobs that their last holders have put.
REPEAT = statement(
    "repeat_job",
    """
    with again as (
        select job.id
        from {schema}.jobs as job
        where job.origin = %(id)s
        -- an expression, which no index is sorted by: without statistics PostgreSQL would rather walk all ids
        order by job.id + 0
        limit 1
    ), put as (
        insert into {schema}.jobs as job (
            task, args, queue, priority, version, key, tags, retention, redact, lost_limit, unique_key, schedule,
            slot_at, trace_context, inputs, origin
        )
        select
            done.task, done.args, done.queue, done.priority, done.version, done.key, done.tags, done.retention, done.redact,
            done.lost_limit, done.unique_key, done.schedule, done.slot_at, done.trace_context, done.inputs,
            done.id
        from {schema}.history as done
        where done.id = %(id)s
          and not exists (select from again)
          and not exists (select from {schema}.jobs as live where live.unique_key = done.unique_key)
        returning job.id, job.queue, job.unique_key, job.created_at
    ), held as (
        update {schema}.uniques as held
        set job_id = put.id,
            created_at = put.created_at,
            -- a period in which there is to be one only begins anew
            keep_until = held.keep_until + (put.created_at - held.created_at),
            ended = null
        from put
        where held.key = put.unique_key
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, put.queue)) from put
    )
    select found.id, found.is_new
    from woken, (select id, false as is_new from again union all select id, true from put) as found
    """,
)


def _repeat(id: JobId, channel: str, actor: str) -> Steps[JobId | None]:
    """A new job with the call of a settled one; or the one that is live, if that was asked for before."""
    # before the job, as all do who need both
    yield LOCK_KEY.query({"id": id}, read=nothing)
    settled = yield LOCK_SETTLED.query({"id": id}, read=_row)
    if settled is None:
        return None
    while (found := (yield REPEAT.query({"id": id, "channel": channel}, read=_row))) is None:
        task, key = settled
        holder = yield find_holder(key)
        if holder is not None:
            raise NotPossible(
                f"Job {id} ({task}) was not retried: job {holder[0]}, which is {holder[1]}, has its unique key, and there may be "
                f"only one of them. Wait for that job, or end it: rota jobs cancel {holder[0]}."
            )
    again, is_new = found
    if is_new:
        yield record(actor, "retry", {"job": id, "successor": again})
    return again  # type: ignore[no-any-return]


def _row(rows: Sequence[Row]) -> Row | None:
    return rows[0] if rows else None
