"""Taking over from members that ended: what they ran goes back to the queue, and the lost attempt is on record.

`members.ended_at` alone says that it may be done. Losses count apart from failures: a body that raises is at fault, one
whose process died may not be. A job that has gone down with its process too often is buried, so that a poison job cannot
take one worker after another with it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from rota.jobs.job import JobId
from rota.postgres.query import Query, many, nothing, statement

__all__ = ["LOST_LIMIT", "Rescued", "prune_members", "rescue"]

LOST_LIMIT = 3  # three processes in a row are no accident


@dataclass(frozen=True, slots=True)
class Rescued:
    id: JobId
    task: str
    queue: str
    attempt: int
    member: UUID
    dead: bool


RESCUE = statement(
    "rescue",
    """
    with taken as materialized (
        select job.id, job.task, job.queue, job.attempt, job.token, job.member, job.claimed_at,
               job.losses + 1 >= %(lost_limit)s as dead
        from {schema}.jobs as job
        where job.state = 'running'
          and job.member in (select member.id from {schema}.members as member where member.ended_at is not null)
        limit %(limit)s
        -- a holder that is settling this very row is let go first; then the row is no longer its, or no longer there
        for update of job skip locked
    ), recorded as (
        insert into {schema}.attempts (job_id, attempt, token, outcome, error_message, member, started_at)
        select id, attempt, token, 'lost', 'the process that ran it was lost', member, claimed_at
        from taken
    ), queued as (
        update {schema}.jobs as job
        set state = 'queued',
            token = null,
            member = null,
            claimed_at = null,
            losses = job.losses + 1
        from taken
        where job.id = taken.id
          and not taken.dead
        returning job.id
    ), gone as (
        delete from {schema}.jobs as job
        using taken
        where job.id = taken.id
          and taken.dead
        returning
            job.id, job.created_at, job.due_at, job.claimed_at, job.token, job.attempt, job.losses, job.priority, job.version,
            job.member, job.queue, job.task, job.args, job.key, job.tags, job.retention
    ), buried as (
        insert into {schema}.dead (
            id, created_at, due_at, token, attempt, losses, priority, version, member, reason, queue, task, args, key,
            tags, retention
        )
        select
            id, created_at, due_at, token, attempt, losses + 1, priority, version, member, 'lost', queue, task, args, key,
            tags, retention
        from gone
    ), woken as materialized (
        select count(pg_notify(%(channel)s, queue)) from (select distinct queue from taken where not dead) as queues
    )
    select taken.id, taken.task, taken.queue, taken.attempt, taken.member, taken.dead
    from taken, woken
    """,
)


def rescue(channel: str, *, limit: int = 500, lost_limit: int = LOST_LIMIT) -> Query[list[Rescued]]:
    """Take up to `limit` jobs from ended members and queue or bury them; wakes the workers of their queues."""
    return RESCUE.query({"channel": channel, "limit": limit, "lost_limit": lost_limit}, read=many(Rescued))


PRUNE_MEMBERS = statement(
    "prune_members",
    """
    delete from {schema}.members as member
    where member.ended_at < statement_timestamp() - interval '7 days'
      and not exists (select from {schema}.jobs as job where job.state = 'running' and job.member = member.id)
    """,
)


def prune_members() -> Query[None]:
    """Forget the members that ended a week ago and hold nothing."""
    return PRUNE_MEMBERS.query(read=nothing)
