"""Looking at batches that lost a job, and letting go those that waited for the last one: see 0010_batches.sql."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rota.facts import JobCancelled
from rota.jobs.job import JobId
from rota.postgres.query import Query, many, one, one_or_none, scalar, statement

__all__ = ["Closed", "Waiting", "close_batches", "find_cancelled", "find_waiting", "prune_batches", "why_blocked"]


class Closed(NamedTuple):
    """How many closings were taken, how many batches had ended, and which of the jobs that waited are cancelled by it."""

    taken: int
    ended: int
    cancelled: Sequence[JobId]

    @property
    def may_be_more(self) -> bool:
        """Whether another look may find something at once: there were as many as it takes, or it has freed or ended jobs."""
        return self.taken == _MOST or self.ended > 0


CLOSE_BATCHES = statement("close_batches", "select taken, ended, cancelled from {schema}.close_batches(%(most)s)")

_MOST = 100


def close_batches() -> Query[Closed]:
    """Look at some batches that lost a job; to be called again while there may be more. Workers of freed jobs are woken."""
    return CLOSE_BATCHES.query({"most": _MOST}, read=one(Closed))


CANCELLED = statement(
    "find_cancelled",
    """
    select done.id, done.task, done.queue, done.attempt, done.reason
    from {schema}.history as done
    where done.id = any (%(ids)s::bigint[])
    order by done.id
    """,
)


def find_cancelled(ids: Sequence[JobId]) -> Query[list[JobCancelled]]:
    """What is told of jobs that a look at batches has cancelled."""

    def told(id: JobId, task: str, queue: str, attempt: int, reason: str | None) -> JobCancelled:
        return JobCancelled(id, task, queue, attempt, 0.0, reason)

    return CANCELLED.query({"ids": list(ids)}, read=many(told))


PRUNE_BATCHES = statement("prune_batches", "select {schema}.prune_batches(1000)")


def prune_batches() -> Query[int]:
    """Forget batches of which nothing else is known any more; returns how many."""
    return PRUNE_BATCHES.query(read=scalar)


class Waiting(NamedTuple):
    """The batch that a job waits for: how many of its jobs have not ended, and which is the first dead one."""

    batch: int
    name: str | None
    total: int
    left: int
    live: JobId | None
    live_task: str | None
    letter: JobId | None
    letter_task: str | None


WAITING = statement(
    "find_waiting",
    """
    select
        batch.id, batch.name, batch.total,
        (select count(*) from {schema}.jobs as member where member.batch_id = batch.id),
        first.id, first.task, letter.id, letter.task
    from {schema}.jobs as job
    join {schema}.batches as way on way.id = job.after
    join {schema}.batches as batch on batch.id = coalesce(way.of, way.id)
    left join lateral (
        select member.id, member.task
        from {schema}.jobs as member
        where member.batch_id = batch.id
        order by member.batch_id, member.id
        limit 1
    ) as first on true
    left join lateral (
        select letter.id, letter.task
        from {schema}.dead as letter
        where letter.batch_id = batch.id and letter.resolved_at is null
        order by letter.id
        limit 1
    ) as letter on true
    where job.id = %(id)s
    """,
)


def find_waiting(id: JobId) -> Query[Waiting | None]:
    """What the job waits for; None if it waits for no other job."""
    return WAITING.query({"id": id}, read=one_or_none(Waiting))


def why_blocked(waiting: Waiting) -> Iterator[str]:
    """What keeps a job that waits for others, in words."""
    named = f"batch {waiting.batch}{f' ({waiting.name})' if waiting.name else ''}"
    if waiting.left:
        which = f"job {waiting.live} ({waiting.live_task})"
        those = (
            which if waiting.total == 1 else f"{waiting.left} of the {waiting.total} jobs of {named}, such as {which}"
        )
        yield f"It waits for {those}. To see what keeps that: rota jobs explain {waiting.live}."
    if waiting.letter is not None:
        yield (
            f"Job {waiting.letter} ({waiting.letter_task}), which it waits for, is dead. `rota dead retry {waiting.letter}` tries "
            f"that again and goes on with this one when it succeeds; `rota dead acknowledge {waiting.letter}` puts it away, and "
            "this one is cancelled then."
        )
    if not waiting.left and waiting.letter is None:
        yield f"All that it waited for has ended ({named}): it is queued as soon as a worker looks, within seconds. Is one running?"
