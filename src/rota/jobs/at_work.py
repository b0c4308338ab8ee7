"""What each process runs at this moment, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from rota.jobs.job import JobId
from rota.postgres.query import Query, Row, statement

__all__ = ["AtWork", "at_work"]


@dataclass(frozen=True, slots=True)
class AtWork:
    """A job that a process has taken and not ended."""

    id: JobId
    task: str
    attempt: int
    claimed_at: datetime


AT_WORK = statement(
    "jobs_at_work",
    """
    select member.id, job.id, job.task, job.attempt, job.claimed_at
    from unnest(%(members)s::uuid[]) as member(id)
    cross join lateral (
        select job.id, job.task, job.attempt, job.claimed_at
        from {schema}.jobs as job
        where job.state = 'running'
          and job.member = member.id
        order by job.claimed_at, job.id
        limit %(each)s
    ) as job
    """,
)


def at_work(members: Iterable[UUID], *, each: int = 5) -> Query[Mapping[UUID, Sequence[AtWork]]]:
    """What these run, the oldest first and no more than so many of each."""

    def read(rows: Sequence[Row]) -> dict[UUID, list[AtWork]]:
        found: dict[UUID, list[AtWork]] = {}
        for member, *job in rows:
            found.setdefault(member, []).append(AtWork(*job))
        return found

    return AT_WORK.query({"members": list(members), "each": each}, read=read)
