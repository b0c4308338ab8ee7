"""Having a job tried again, or sooner, wherever it is.

A job moves one way: from live to dead or settled, and from dead to settled. Looked for in that order, each place under
a lock, it cannot slip past; but for one that goes back because a bulk is undone, so it is looked for once more. A unique one
is made again only under the lock of its key, and while no live job has that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.errors import JobNotFound, NotPossible
from rota.jobs.inspect import check_id, get_job
from rota.jobs.job import Job, JobId, Owner
from rota.jobs.letters import Letter, get_letter
from rota.jobs.resolve import find_holder, retry_letter
from rota.postgres.audit import record
from rota.postgres.query import Query, Row, Steps, many, nothing, statement

__all__ = ["Hastened", "Repeated", "hasten_jobs", "lock_settled", "repeat_jobs", "retry_job"]


def retry_job(id: JobId, channel: str, actor: str, app: Owner) -> Steps[Job[Any]]:
    """Have the job tried now; returns the one that will run. See Jobs.retry."""
    number = check_id(id)
    again = yield from _hasten(number, channel, actor)
    if again is None and (yield get_letter(number)) is not None:
        again = yield from _retry_dead(number, channel, actor)
    elif again is None:
        again = (yield from _repeat(number, channel, actor)) or (yield from _hasten(number, channel, actor))
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


class Hastened(NamedTuple):
    """A live job, and whether it waited for its time, which it does no longer."""

    id: JobId
    state: str
    waited: bool


HASTEN = statement(
    "hasten_jobs",
    """
    with live as materialized (
        select
            job.id, job.state, job.queue,
            -- one that is blocked and due has only others to wait for
            job.state = 'queued' or (job.state = 'blocked' and job.after is null and job.due_at > {schema}.now()) as waits
        from {schema}.jobs as job
        where job.id = any (%(ids)s::bigint[])
        order by job.id
        for update
    ), hastened as (
        update {schema}.jobs as job
        set due_at = least(job.due_at, {schema}.now())
        from live
        where job.id = live.id
          and live.waits
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue))
        from (select distinct live.queue from live where live.waits) as queues
    )
    select live.id, live.state, live.waits from live, woken
    """,
)


def hasten_jobs(ids: Sequence[JobId], channel: str) -> Query[list[Hastened]]:
    """Make those due now that wait for their time; returns the live ones of these jobs."""
    return HASTEN.query({"ids": list(ids), "channel": channel}, read=many(Hastened))


def _hasten(id: JobId, channel: str, actor: str) -> Steps[JobId | None]:
    """The job itself, due now; None if it is not a live one. Raises NotPossible if it does not wait for its time."""
    live: list[Hastened] = yield hasten_jobs([id], channel)
    if not live:
        return None
    if not live[0].waited:
        _refuse_busy(id, live[0].state)
    yield record(actor, "retry", {"job": id})
    return id


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
    "lock_settled",
    """
    select done.id, done.task, done.unique_key
    from {schema}.history as done
    where done.id = any (%(ids)s::bigint[])
    order by done.id
    for update
    """,
)


def lock_settled(ids: Sequence[JobId]) -> Query[list[Row]]:
    """Keep anyone else from repeating these settled jobs; tells which there are: id, task and unique key."""
    return LOCK_SETTLED.query({"ids": list(ids)}, read=list)


class Repeated(NamedTuple):
    """The job that repeats a settled one, and whether it was made just now."""

    id: JobId
    origin: JobId
    is_new: bool


# A statement of its own after the locks: only then does it see the jobs that their last holders have put.
REPEAT = statement(
    "repeat_jobs",
    """
    with again as materialized (
        select min(job.id) as id, job.origin
        from {schema}.jobs as job
        where job.origin = any (%(ids)s::bigint[])
        group by job.origin
    ), free as materialized (
        select done.*
        from {schema}.history as done
        where done.id = any (%(ids)s::bigint[])
          and not exists (select from again where again.origin = done.id)
          and not exists (select from {schema}.jobs as live where live.unique_key = done.unique_key)
    ), put as (
        insert into {schema}.jobs as job (
            task, args, queue, priority, version, key, tags, retention, redact, lost_limit, unique_key, schedule,
            slot_at, trace_context, inputs, origin
        )
        select
            free.task, free.args, free.queue, free.priority, free.version, free.key, free.tags, free.retention, free.redact,
            free.lost_limit, free.unique_key, free.schedule, free.slot_at, free.trace_context, free.inputs,
            free.id
        from free
        -- of several under one key, the oldest
        where not exists (select from free as older where older.unique_key = free.unique_key and older.id < free.id)
        order by free.id
        returning job.id, job.queue, job.origin, job.unique_key, job.created_at
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
        select count({schema}.notify(%(channel)s, queues.queue)) from (select distinct put.queue from put) as queues
    )
    select found.id, found.origin, found.is_new
    from woken,
         (select id, origin, false as is_new from again union all select id, origin, true from put) as found
    """,
)


def repeat_jobs(ids: Sequence[JobId], channel: str) -> Query[list[Repeated]]:
    """Make a new job with the call of each settled one, where none is live yet and its unique key is free."""
    return REPEAT.query({"ids": list(ids), "channel": channel}, read=many(Repeated))


def _repeat(id: JobId, channel: str, actor: str) -> Steps[JobId | None]:
    """A new job with the call of a settled one; or the one that is live, if that was asked for before."""
    # before the job, as all do who need both
    yield LOCK_KEY.query({"id": id}, read=nothing)
    settled = yield lock_settled([id])
    if not settled:
        return None
    while not (found := (yield repeat_jobs([id], channel))):
        _, task, key = settled[0]
        holder = yield find_holder(key)
        if holder is not None:
            raise NotPossible(
                f"Job {id} ({task}) was not retried: job {holder[0]}, which is {holder[1]}, has its unique key, and there may be "
                f"only one of them. Wait for that job, or end it: rota jobs cancel {holder[0]}."
            )
    if found[0].is_new:
        yield record(actor, "retry", {"job": id, "successor": found[0].id})
    return found[0].id  # type: ignore[no-any-return]
