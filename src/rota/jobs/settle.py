"""Writing down what became of attempts, many at a time, each guarded by its token.

An outcome changes a row only while that row still carries the token of the attempt. One that matches nothing is either
ours already (the reply to a COMMIT was lost, and the settle was repeated: the token is then in history, attempts or the
dead letters) or void: the claim ended, someone else has the job, and the attempt is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rota.jobs.claim import ClaimedJob
from rota.jobs.job import JobId
from rota.postgres.arrays import numbers
from rota.postgres.query import Query, Row, statement

__all__ = [
    "Attempt",
    "Buried",
    "HandedBack",
    "Outcome",
    "Retried",
    "Succeeded",
    "bury",
    "find_settled",
    "hand_back",
    "retry",
    "succeed",
]

# An error is for a person to read; a megabyte of it helps nobody and bloats the table.
MESSAGE_LIMIT = 2_000
TRACE_LIMIT = 8_000


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is stored."""

    type: str
    message: str
    trace: str
    error: BaseException | None = field(default=None, repr=False, compare=False)


class Succeeded(NamedTuple):
    """The one outcome there are very many of; a tuple, as it is built fastest."""

    job: ClaimedJob
    result: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Retried:
    job: ClaimedJob
    failure: Failure
    seconds: float
    pause: float


@dataclass(frozen=True, slots=True)
class Buried:
    job: ClaimedJob
    failure: Failure
    seconds: float


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Not begun, or interrupted by our own stop: it costs no attempt."""

    job: ClaimedJob


Outcome = Succeeded | Retried | Buried | HandedBack


#: An attempt: the job's id and the token of the claim. A process may hold two of one job, one of them stale.
Attempt = tuple[JobId, int]


def _settled(rows: Sequence[Row]) -> set[Attempt]:
    ids, tokens = rows[0]
    return set(zip(ids or (), tokens or (), strict=True))


SUCCEED = statement(
    "succeed",
    """
    with outcome as materialized (
        select *
        from unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(results)s::text[], %(seconds)s::float8[])
            as outcome(id, token, result, seconds)
    ), settled as (
        delete from {schema}.jobs as job
        using outcome
        where job.id = outcome.id
          and job.token = outcome.token
          and job.state = 'running'
        -- column by column: a later release may add columns, and their names must not clash with ours
        returning
            job.id, job.created_at, job.due_at, job.claimed_at, job.token, job.attempt, job.losses, job.priority, job.version,
            job.member, job.queue, job.task, job.args, job.key, job.tags, job.retention,
            outcome.result, outcome.seconds
    ), recorded as (
        insert into {schema}.history (
            id, created_at, due_at, claimed_at, started_at, finished_at, token, attempt, losses, priority, version,
            member, state, queue, task, args, result, key, tags, retention
        )
        select
            id, created_at, due_at, claimed_at, {schema}.now() - seconds * interval '1 second', {schema}.now(), token,
            attempt, losses, priority, version, member, 'succeeded', queue, task, args, result::jsonb, key, tags, retention
        from settled
    )
    select array_agg(id), array_agg(token) from settled
    """,
)


def succeed(outcomes: Sequence[Succeeded]) -> Query[set[Attempt]]:
    """Move the jobs to history; returns the attempts that were still ours."""
    return SUCCEED.query(
        {
            "ids": numbers([o.job.id for o in outcomes]),
            "tokens": numbers([o.job.token for o in outcomes]),
            # most tasks return nothing: unnest pads a missing array with nulls
            "results": [o.result for o in outcomes] if any(o.result for o in outcomes) else None,
            "seconds": numbers([o.seconds for o in outcomes]),
        },
        read=_settled,
    )


RETRY = statement(
    "retry",
    """
    with outcome as materialized (
        select *
        from unnest(
            %(ids)s::bigint[], %(tokens)s::bigint[], %(pauses)s::float8[], %(seconds)s::float8[],
            %(types)s::text[], %(messages)s::text[], %(traces)s::text[]
        ) as outcome(id, token, pause, seconds, type, message, trace)
    ), taken as (
        -- the attempt's member is cleared below, and an update returns only what it wrote
        select job.id, job.member, outcome.token, outcome.pause, outcome.seconds, outcome.type, outcome.message, outcome.trace
        from {schema}.jobs as job
        join outcome on outcome.id = job.id and outcome.token = job.token
        where job.state = 'running'
        for update of job
    ), settled as (
        update {schema}.jobs as job
        set state = 'queued',
            due_at = {schema}.now() + taken.pause * interval '1 second',
            token = null,
            member = null,
            claimed_at = null
        from taken
        where job.id = taken.id
        returning
            job.id, job.attempt, taken.member, taken.token, taken.seconds, taken.type, taken.message, taken.trace
    ), recorded as (
        insert into {schema}.attempts (
            job_id, attempt, token, outcome, error_type, error_message, error_trace, member, started_at
        )
        select id, attempt, token, 'failed', type, message, trace, member, {schema}.now() - seconds * interval '1 second'
        from settled
    )
    select array_agg(id), array_agg(token) from settled
    """,
)


def retry(outcomes: Sequence[Retried]) -> Query[set[Attempt]]:
    """Queue the jobs again, due after their pause, and keep the record of the attempt."""
    return RETRY.query({**_failures(outcomes), "pauses": numbers(o.pause for o in outcomes)}, read=_settled)


BURY = statement(
    "bury",
    """
    with outcome as materialized (
        select *
        from unnest(
            %(ids)s::bigint[], %(tokens)s::bigint[], %(seconds)s::float8[],
            %(types)s::text[], %(messages)s::text[], %(traces)s::text[]
        ) as outcome(id, token, seconds, type, message, trace)
    ), settled as (
        delete from {schema}.jobs as job
        using outcome
        where job.id = outcome.id
          and job.token = outcome.token
          and job.state = 'running'
        returning
            job.id, job.created_at, job.due_at, job.claimed_at, job.token, job.attempt, job.losses, job.priority, job.version,
            job.member, job.queue, job.task, job.args, job.key, job.tags, job.retention,
            outcome.seconds, outcome.type, outcome.message, outcome.trace
    ), recorded as (
        insert into {schema}.attempts (
            job_id, attempt, token, outcome, error_type, error_message, error_trace, member, started_at
        )
        select id, attempt, token, 'failed', type, message, trace, member, {schema}.now() - seconds * interval '1 second'
        from settled
    ), buried as (
        insert into {schema}.dead (
            id, created_at, due_at, token, attempt, losses, priority, version, member, reason, queue, task, args, key,
            tags, retention
        )
        select
            id, created_at, due_at, token, attempt, losses, priority, version, member, 'failed', queue, task, args, key,
            tags, retention
        from settled
    )
    select array_agg(id), array_agg(token) from settled
    """,
)


def bury(outcomes: Sequence[Buried]) -> Query[set[Attempt]]:
    """Move the jobs to the dead letters, where they stay until someone resolves them."""
    return BURY.query(_failures(outcomes), read=_settled)


HAND_BACK = statement(
    "hand_back",
    """
    with handed_back as (
        update {schema}.jobs as job
        set state = 'queued',
            token = null,
            member = null,
            claimed_at = null,
            attempt = job.attempt - 1
        from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as outcome(id, token)
        where job.id = outcome.id
          and job.token = outcome.token
          and job.state = 'running'
        returning job.id, job.queue, outcome.token
    ), woken as materialized (
        select count(pg_notify(%(channel)s, queue)) from (select distinct queue from handed_back) as queues
    )
    select array_agg(handed_back.id), array_agg(handed_back.token) from handed_back, woken
    """,
)


def hand_back(outcomes: Sequence[HandedBack], channel: str) -> Query[set[Attempt]]:
    """Queue the jobs again as if they had never been claimed, and wake a peer that has room."""
    return HAND_BACK.query(
        {
            "ids": numbers(o.job.id for o in outcomes),
            "tokens": numbers(o.job.token for o in outcomes),
            "channel": channel,
        },
        read=_settled,
    )


FIND_SETTLED = statement(
    "find_settled",
    """
    select array_agg(outcome.id), array_agg(outcome.token)
    from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as outcome(id, token)
    where exists (select from {schema}.history as done where done.id = outcome.id and done.token = outcome.token)
       or exists (
           select from {schema}.attempts as done
           where done.job_id = outcome.id and done.token = outcome.token and done.outcome = 'failed'
       )
       or exists (select from {schema}.dead as done where done.id = outcome.id and done.token = outcome.token)
    """,
)


def find_settled(jobs: Sequence[ClaimedJob]) -> Query[set[Attempt]]:
    """The attempts whose outcome is on record under our token: an earlier settle of ours did commit."""
    params = {"ids": numbers(job.id for job in jobs), "tokens": numbers(job.token for job in jobs)}
    return FIND_SETTLED.query(params, read=_settled)


def _failures(outcomes: Sequence[Retried] | Sequence[Buried]) -> dict[str, object]:
    return {
        "ids": numbers(o.job.id for o in outcomes),
        "tokens": numbers(o.job.token for o in outcomes),
        "seconds": numbers(o.seconds for o in outcomes),
        "types": [o.failure.type for o in outcomes],
        "messages": [o.failure.message for o in outcomes],
        "traces": [o.failure.trace for o in outcomes],
    }
