"""Ending jobs that someone no longer wants, wherever they are.

A queued job is ended at once. One that runs is marked, and the member that runs it is told; it ends the body as far as a
body can be ended, and settles it as cancelled. The mark outlives the attempt: whatever becomes of that, the job is never
queued again. To discard is to not wait: the claim is void from that moment, and the body is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.jobs.job import JobId
from rota.jobs.settle import Attempt
from rota.postgres.arrays import numbers
from rota.postgres.query import Query, Row, nothing, statement

__all__ = ["Ended", "Unwanted", "cancel_jobs", "discard_jobs", "end_cancelled", "find_unwanted"]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a job was when it was told to end. `cancelled` now, or `running` still, until its body has ended."""

    id: JobId
    state: str


_TO_HISTORY = """
    gone as (
        delete from {schema}.jobs as job
        using chosen
        where job.id = chosen.id
          and chosen.now
        returning
            job.id, job.created_at, job.due_at, job.claimed_at, job.attempt, job.losses, job.priority, job.version, job.member,
            job.queue, job.task, job.args, job.key, job.tags, job.retention, job.origin, job.redact, job.lost_limit,
            job.unique_key, job.schedule, job.slot_at, job.trace_context, job.batch_id, job.instead_of, job.inputs,
            coalesce(chosen.reason, job.cancel_reason) as reason
    ), recorded as (
        insert into {schema}.history (
            id, created_at, due_at, claimed_at, attempt, losses, priority, version, member, state, queue, task, args, key,
            tags, retention, origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of,
            inputs, reason
        )
        -- without the token: its holder would take this for an outcome of its own
        select
            id, created_at, due_at, claimed_at, attempt, losses, priority, version, member, 'cancelled', queue, task, args,
            key, tags, retention, origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of,
            inputs, reason
        from gone
    )
"""

CANCEL = statement(
    "cancel_jobs",
    """
    with chosen as materialized (
        select job.id, job.state, job.member, %(reason)s::text as reason, job.state <> 'running' as now
        from {schema}.jobs as job
        where job.id = any (%(ids)s::bigint[])
        order by job.id
        for update
    ), """  # noqa: S608 - all parts are written out here
    + _TO_HISTORY
    + """
    , marked as (
        update {schema}.jobs as job
        set cancel_requested_at = coalesce(job.cancel_requested_at, {schema}.now()),
            cancel_reason = coalesce(job.cancel_reason, chosen.reason)
        from chosen
        where job.id = chosen.id
          and not chosen.now
        returning job.id
    ), told as materialized (
        select count({schema}.notify(%(channel)s, members.member::text))
        from (select distinct member from chosen where not now) as members
    )
    select chosen.id, case when chosen.now then 'cancelled' else 'running' end
    from chosen, told
    """,
)


def cancel_jobs(ids: Sequence[JobId], reason: str | None, channel: str) -> Query[list[Ended]]:
    """End the queued ones, and have the running ones end. What has settled by now is not among those returned."""
    params = {"ids": list(ids), "reason": reason, "channel": channel}
    return CANCEL.query(params, read=lambda rows: [Ended(*row) for row in rows])


DISCARD = statement(
    "discard_jobs",
    """
    with chosen as materialized (
        select job.id, job.state, job.member, %(reason)s::text as reason, true as now
        from {schema}.jobs as job
        where job.id = any (%(ids)s::bigint[])
        order by job.id
        for update
    ), """  # noqa: S608 - all parts are written out here
    + _TO_HISTORY
    + """
    , letters as (
        delete from {schema}.dead as letter
        where letter.id = any (%(ids)s::bigint[])
          and letter.resolved_at is null
        returning letter.*
    ), unwanted as (
        insert into {schema}.history (
            id, created_at, due_at, token, attempt, losses, priority, version, member, state, queue, task, args, key,
            tags, retention, origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of,
            inputs, reason
        )
        select
            id, created_at, due_at, token, attempt, losses, priority, version, member, 'cancelled', queue, task, args, key,
            tags, retention, origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of,
            inputs, %(reason)s
        from letters
    ), told as materialized (
        select count({schema}.notify(%(channel)s, members.member::text))
        from (select distinct member from chosen where state = 'running') as members
    )
    select chosen.id, chosen.state from chosen, told
    union all
    select letters.id, 'dead' from letters
    """,
)


def discard_jobs(ids: Sequence[JobId], reason: str | None, channel: str) -> Query[list[Ended]]:
    """End the jobs now, whatever they do: queued, running (the claim is void from here on) or dead. Tells what they were."""
    params = {"ids": list(ids), "reason": reason, "channel": channel}
    return DISCARD.query(params, read=lambda rows: [Ended(*row) for row in rows])


FIND_UNWANTED = statement(
    "find_unwanted",
    """
    select attempt.id, attempt.token, job.id is null
    from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as attempt(id, token)
    left join {schema}.jobs as job
      on job.id = attempt.id
     and job.token = attempt.token
    where job.id is null
       or job.cancel_requested_at is not null
    """,
)


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Attempts that should end: someone asked for it, or their claim is void and whatever they do is in vain."""

    cancelled: set[Attempt]
    void: set[Attempt]


def find_unwanted(attempts: Sequence[Attempt]) -> Query[Unwanted]:
    """Which of these attempts nobody wants any more."""
    params = {"ids": numbers(each[0] for each in attempts), "tokens": numbers(each[1] for each in attempts)}

    def read(rows: Sequence[Row]) -> Unwanted:
        found: tuple[set[Attempt], set[Attempt]] = (set(), set())
        for job_id, token, is_void in rows:
            found[is_void].add((job_id, token))
        return Unwanted(*found)

    return FIND_UNWANTED.query(params, read=read)


END_CANCELLED = statement(
    "end_cancelled",
    """
    with chosen as materialized (
        select job.id, null::text as reason, true as now
        from {schema}.jobs as job
        where job.cancel_requested_at is not null
          and job.state <> 'running'
        for update skip locked
    ), """  # noqa: S608 - all parts are written out here
    + _TO_HISTORY
    + """
    select from gone
    """,
)


def end_cancelled() -> Query[None]:
    """End the marked jobs that nobody runs: the claim of one was undone after it had been marked."""
    return END_CANCELLED.query(read=nothing)
