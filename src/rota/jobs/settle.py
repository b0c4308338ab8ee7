"""Writing down what became of attempts, many at a time, each guarded by its token.

An outcome changes a row only while that row still carries the token of the attempt. One that matches nothing is either
ours already (the reply to a COMMIT was lost, and the settle was repeated: the token is then in history, attempts or the
dead letters) or void: the claim ended, someone else has the job, and the attempt is told so. The token is all the guard
there is, and enough: the table has it that what runs has one and nothing else does.

Success has a statement of its own, since there are very many. All else shares one, because where a job goes then does not
depend on its outcome alone: one that someone wants cancelled is never queued again, whatever became of its attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, lt
from typing import NamedTuple

from rota.jobs.claim import ClaimedJob
from rota.jobs.job import JobId
from rota.jobs.outcome import Cancelled, Lost, Succeeded, Unsuccessful
from rota.postgres.arrays import numbers
from rota.postgres.query import Query, Row, scalar, statement

__all__ = [
    "LOST_LIMIT",
    "MOVES",
    "Attempt",
    "Settled",
    "Written",
    "find_locked",
    "find_settled",
    "settle",
    "succeed",
    "succeed_one",
]

LOST_LIMIT = 3  # three processes in a row are no accident

#: An attempt: the job's id and the token of the claim. A process may hold two of one job, one of them stale.
Attempt = tuple[JobId, int]


# The jobs of `outcome` that are still ours go to history.
_TO_HISTORY = """
    settled as (
        delete from {schema}.jobs as job
        using outcome
        where job.id = outcome.id
          and job.token = outcome.token
        -- column by column: a later release may add columns, and their names must not clash with ours
        returning
            job.id, job.created_at, job.due_at, job.claimed_at, job.token, job.attempt, job.losses, job.priority, job.version,
            job.member, job.queue, job.task, job.args, job.key, job.tags, job.retention, job.origin, job.redact,
            job.lost_limit, job.unique_key, job.schedule, job.slot_at, job.trace_context, job.batch_id, job.instead_of,
            job.inputs, outcome.result, outcome.seconds
    ), recorded as (
        insert into {schema}.history (
            id, created_at, due_at, claimed_at, started_at, finished_at, token, attempt, losses, priority, version,
            member, state, queue, task, args, result, key, tags, retention, origin, redact, lost_limit, unique_key, schedule,
            slot_at, trace_context, batch_id, instead_of, inputs
        )
        select
            id, created_at, due_at, claimed_at, {schema}.now() - seconds * interval '1 second', {schema}.now(), token,
            attempt, losses, priority, version, member, 'succeeded', queue, task, args, result::jsonb, key, tags, retention,
            origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of, inputs
        from settled
    )
"""

# Written and answered as briefly as can be: what came of one claim shares its token, and mostly all is still ours, on disk.
SUCCEED = statement(
    "succeed",
    """
    with outcome as materialized (
        select
            given.id, (%(tokens)s::bigint[])[coalesce(given.claim, 1)] as token, given.result,
            given.microseconds / 1000000.0::float8 as seconds
        from unnest(%(ids)s::bigint[], %(claims)s::integer[], %(results)s::text[], %(microseconds)s::bigint[])
            as given(id, claim, result, microseconds)
    ), """  # noqa: S608 - all parts are written out here
    + _TO_HISTORY
    + """
    , relaxed as materialized (
        -- those of other queues do not wait for less because they came in one batch with these
        select set_config('synchronous_commit', 'off', true)
        where %(may_relax)s
          and not exists (
              select
              from settled
              left join {schema}.queues as queue on queue.name = settled.queue
              where queue.relaxed is not true
          )
    )
    select
        case when count(*) < cardinality(%(ids)s::bigint[]) then coalesce(array_agg(id), '{}') end,
        case when count(*) < cardinality(%(ids)s::bigint[]) then array_agg(token) end,
        exists (select from relaxed)
    from settled
    having count(*) < cardinality(%(ids)s::bigint[]) or exists (select from relaxed)
    """,
)


class Written(set[Attempt]):
    """The attempts that were still ours."""

    #: it may take PostgreSQL a moment to have them on disk
    relaxed = False


def succeed(outcomes: Sequence[Succeeded], *, may_relax: bool = False) -> Query[Written]:
    """Move the jobs to history; returns the attempts that were still ours.

    With `may_relax` they need not be on disk when it returns, if that was said of the queues of all of them.
    """
    ids = [job.id for job, _, _ in outcomes]
    if not all(map(lt, ids, ids[1:])):
        # in one order, so that two who settle or cancel never wait for each other in a circle
        outcomes = sorted(outcomes, key=_job_id)
        ids = [job.id for job, _, _ in outcomes]
    tokens = [job.token for job, _, _ in outcomes]
    claims = {token: number for number, token in enumerate(set(tokens), 1)}

    def written(rows: Sequence[Row]) -> Written:
        ((found, under, relaxed),) = rows or [(None, None, False)]
        ours = Written(zip(*((ids, tokens) if found is None else (found, under or ())), strict=True))
        ours.relaxed = relaxed
        return ours

    return SUCCEED.query(
        {
            "ids": numbers(ids),
            "may_relax": may_relax,
            # unnest pads a missing array with nulls: most share one claim, and most tasks return nothing
            "claims": numbers([claims[token] for token in tokens]) if len(claims) > 1 else None,
            "tokens": numbers(claims),
            "results": [o.result for o in outcomes] if any(map(_result, outcomes)) else None,
            "microseconds": numbers([int(seconds * 1e6) for _, _, seconds in outcomes]),
        },
        read=written,
    )


def _job_id(outcome: Succeeded) -> JobId:
    return outcome.job.id


_result = attrgetter("result")


SUCCEED_ONE = statement(
    "succeed_one",
    """
    with outcome as materialized (
        select
            %(id)s::bigint as id, %(token)s::bigint as token, %(result)s::text as result, %(seconds)s::float8 as seconds
    ), """  # noqa: S608 - all parts are written out here
    + _TO_HISTORY
    + """
    select id from settled
    """,
)


def succeed_one(id: JobId, token: int, result: str | None, seconds: float) -> Query[bool]:
    """The same for one job, inside a transaction of its body's; False when the claim has ended."""
    return SUCCEED_ONE.query({"id": id, "token": token, "result": result, "seconds": seconds}, read=bool)


# Where the jobs of `taken` go by their fate, and what is remembered of their attempts. `taken` has locked them. Its signature
# is the token that a holder finds its own outcome by: whoever else writes one leaves none, or the holder would take it for its.
MOVES = """
    queued as (
        update {schema}.jobs as job
        -- One that has a line goes back to its place there: at once when nobody is to blame, and at its time when retries hold the
        -- line. Otherwise it joins the line anew when it is due.
        set state = case when job.line is null then 'queued' else 'blocked' end,
            place = case
                when taken.kind in ('handed_back', 'lost')
                  or taken.kind = 'retried' and (select rule.hold from {schema}.limits as rule where rule.task = job.task)
                then job.place
            end,
            -- no job waits longer than a hundred years: one that asks for more must not spoil the batch
            due_at = case
                when taken.pause is null then job.due_at
                else {schema}.now() + least(taken.pause, 3153600000) * interval '1 second'
            end,
            -- what was not begun, or asked for another time, has cost no attempt
            attempt = job.attempt - (taken.kind in ('handed_back', 'snoozed'))::integer,
            losses = job.losses + (taken.kind = 'lost')::integer,
            token = null,
            member = null,
            claimed_at = null,
            progress = null,
            progress_note = null
        from taken
        where job.id = taken.id
          and taken.fate = 'queued'
        returning job.id
    ), gone as (
        delete from {schema}.jobs as job
        using taken
        where job.id = taken.id
          and taken.fate <> 'queued'
        returning
            job.id, job.created_at, job.due_at, job.claimed_at, taken.signature as token, job.attempt, job.losses,
            job.priority, job.version, job.member, job.queue, job.task, job.args, job.key, job.tags, job.retention,
            job.origin, job.redact, job.lost_limit, job.unique_key, job.schedule, job.slot_at, job.trace_context,
            job.saved, job.cancel_reason, job.batch_id, job.instead_of, job.inputs,
            taken.fate, taken.kind, taken.seconds, taken.type, taken.message, taken.trace
    ), recorded as (
        insert into {schema}.attempts (
            job_id, attempt, token, outcome, error_type, error_message, error_trace, member, started_at
        )
        select
            id, attempt, token, case when kind = 'lost' then 'lost' else 'failed' end, type, message, trace, member,
            {schema}.now() - seconds * interval '1 second'
        from taken
        where kind in ('retried', 'buried', 'lost')
    ), buried as (
        insert into {schema}.dead (
            id, created_at, due_at, token, attempt, losses, priority, version, member, reason, queue, task, args, key,
            tags, retention, origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of,
            inputs, saved, error_type, error_message, error_trace
        )
        select
            id, created_at, due_at, token, attempt, losses + (kind = 'lost')::integer, priority, version, member,
            case when kind = 'lost' then 'lost' else 'failed' end, queue, task, args, key, tags, retention, origin, redact,
            lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of, inputs, saved, type, message, trace
        from gone
        where fate = 'dead'
    ), cancelled as (
        insert into {schema}.history (
            id, created_at, due_at, claimed_at, started_at, token, attempt, losses, priority, version, member, state,
            queue, task, args, key, tags, retention, origin, redact, lost_limit, unique_key, schedule, slot_at,
            trace_context, batch_id, instead_of, inputs, reason
        )
        select
            id, created_at, due_at, claimed_at, {schema}.now() - seconds * interval '1 second', token, attempt,
            losses + (kind = 'lost')::integer, priority, version, member, 'cancelled', queue, task, args, key, tags,
            retention, origin, redact, lost_limit, unique_key, schedule, slot_at, trace_context, batch_id, instead_of, inputs,
            case when kind = 'cancelled' then coalesce(message, cancel_reason) else cancel_reason end
        from gone
        where fate = 'cancelled'
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue))
        from (select distinct queue from taken where fate = 'queued' and kind in ('handed_back', 'lost')) as queues
    )
"""

SETTLE = statement(
    "settle",
    """
    with outcome as materialized (
        select *
        from unnest(
            %(ids)s::bigint[], %(tokens)s::bigint[], %(kinds)s::text[], %(pauses)s::float8[], %(seconds)s::float8[],
            %(types)s::text[], %(messages)s::text[], %(traces)s::text[], %(limits)s::smallint[]
        ) as outcome(id, token, kind, pause, seconds, type, message, trace, lost_limit)
    ), taken as materialized (
        select
            job.id, job.token, job.token as signature, job.attempt, job.member, job.queue,
            outcome.kind, outcome.pause, outcome.seconds, outcome.type, outcome.message, outcome.trace,
            case
                when outcome.kind = 'cancelled' or job.cancel_requested_at is not null then 'cancelled'
                when outcome.kind = 'buried' then 'dead'
                when outcome.kind = 'lost'
                 and job.losses + 1 >= coalesce(outcome.lost_limit, job.lost_limit, %(lost_limit)s) then 'dead'
                else 'queued'
            end as fate
        from {schema}.jobs as job
        join outcome on outcome.id = job.id and outcome.token = job.token
        -- in one order, so that two who settle never wait for each other in a circle
        order by job.id
        for update of job
    ), """  # noqa: S608 - all parts are written out here
    + MOVES
    + """
    select taken.id, taken.token, taken.fate from taken, woken
    """,
)


class Settled(NamedTuple):
    """An attempt that was still ours, and where its job went: queued, dead or cancelled."""

    id: JobId
    token: int
    fate: str


def settle(outcomes: Sequence[Unsuccessful], channel: str, *, lost_limit: int = LOST_LIMIT) -> Query[list[Settled]]:
    """Queue, bury or end the jobs, and keep the record of their attempts; returns those that were still ours.

    Peers are woken for what was handed back or lost.
    """
    failures = [o.failure for o in outcomes]
    return SETTLE.query(
        {
            "ids": numbers(o.job.id for o in outcomes),
            "tokens": numbers(o.job.token for o in outcomes),
            "kinds": [o.kind for o in outcomes],
            "pauses": [o.pause for o in outcomes],
            "seconds": numbers(o.seconds for o in outcomes),
            "types": [f.type if f else None for f in failures],
            "messages": [
                f.message if f else o.reason if isinstance(o, Cancelled) else None
                for o, f in zip(outcomes, failures, strict=True)
            ],
            "traces": [f.trace if f else None for f in failures],
            "limits": [o.limit if isinstance(o, Lost) else None for o in outcomes],
            "channel": channel,
            "lost_limit": lost_limit,
        },
        read=lambda rows: [Settled(*row) for row in rows],
    )


FIND_SETTLED = statement(
    "find_settled",
    """
    select outcome.id, outcome.token, found.fate
    from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as outcome(id, token)
    cross join lateral (
        select done.state as fate
        from {schema}.history as done
        where done.id = outcome.id and done.token = outcome.token
        union all
        select 'dead' from {schema}.dead as done where done.id = outcome.id and done.token = outcome.token
        union all
        select 'queued'
        from {schema}.attempts as done
        where done.job_id = outcome.id and done.token = outcome.token and done.outcome = 'failed'
        limit 1
    ) as found
    """,
)


def find_settled(jobs: Sequence[ClaimedJob]) -> Query[dict[Attempt, str]]:
    """The attempts whose outcome is on record under our token, and what it was: an earlier settle of ours did commit."""
    params = {"ids": numbers(job.id for job in jobs), "tokens": numbers(job.token for job in jobs)}
    return FIND_SETTLED.query(params, read=lambda rows: {(job, token): fate for job, token, fate in rows})


FIND_LOCKED = statement(
    "find_locked",
    """
    with free as materialized (
        select job.id from {schema}.jobs as job where job.id = any (%(ids)s::bigint[]) for update skip locked
    )
    select array_agg(job.id)
    from {schema}.jobs as job
    where job.id = any (%(ids)s::bigint[])
      and not exists (select from free where free.id = job.id)
    """,
)


def find_locked(ids: Sequence[JobId]) -> Query[set[JobId]]:
    """Which of these jobs' rows someone else has locked right now."""
    return FIND_LOCKED.query({"ids": numbers(ids)}, read=lambda rows: set(scalar(rows) or ()))
