"""Taking over from members that ended: what they ran goes back to the queue, and the lost attempt is on record.

`members.ended_at` alone says that it may be done. Losses count apart from failures: a body that raises is at fault, one
whose process died may not be. A job that has gone down with its process too often is buried, so that a poison job cannot
take one worker after another with it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from rota.jobs.job import JobId
from rota.jobs.settle import LOST_LIMIT, MOVES
from rota.postgres.query import Query, many, statement

__all__ = ["Rescued", "rescue"]


@dataclass(frozen=True, slots=True)
class Rescued:
    """A job taken from an ended member. `fate` is queued, dead, or cancelled if someone had asked for that."""

    id: JobId
    task: str
    queue: str
    attempt: int
    member: UUID
    fate: str


RESCUE = statement(
    "rescue",
    """
    with taken as materialized (
        select
            job.id, job.token, null::bigint as signature, job.attempt, job.member, job.queue, job.task,
            'lost' as kind, null::float8 as pause,
            extract(epoch from {schema}.now() - job.claimed_at)::float8 as seconds,
            null::text as type, 'the process that ran it was lost' as message, null::text as trace,
            case
                when job.cancel_requested_at is not null then 'cancelled'
                when job.losses + 1 >= coalesce(job.lost_limit, %(lost_limit)s) then 'dead'
                else 'queued'
            end as fate
        from {schema}.members as member
        cross join lateral (
            select job.*
            from {schema}.jobs as job
            where job.state = 'running'
              and job.member = member.id
            limit %(limit)s
            -- a holder that is settling this very row is let go first; then the row is no longer its, or no longer there
            for update skip locked
        ) as job
        where member.ended_at is not null
        limit %(limit)s
    ), """  # noqa: S608 - all parts are written out here
    + MOVES
    + """
    select taken.id, taken.task, taken.queue, taken.attempt, taken.member, taken.fate from taken, woken
    """,
)


def rescue(channel: str, *, limit: int = 500, lost_limit: int = LOST_LIMIT) -> Query[list[Rescued]]:
    """Take up to `limit` jobs from ended members and queue or bury them; wakes the workers of their queues."""
    return RESCUE.query({"channel": channel, "limit": limit, "lost_limit": lost_limit}, read=many(Rescued))
