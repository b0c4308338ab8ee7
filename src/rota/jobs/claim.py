"""Taking jobs, many at a time, so that each has one holder: the statements. When they are run: see `claimer`.

A *lane* is a queue and a priority. One read finds the lanes that have something queued, whether any of it is due, and when
the next is; it jumps from lane to lane in the index, so it costs the same with ten jobs or ten million, and writes nothing.
The claim itself walks each due lane from where it is told to begin.

What makes both dear are dead entries before the first live one, which no vacuum can remove while some old transaction may
still see them. A second read looks at lanes that are known already, from where it is told, and so walks none of those.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from rota.jobs.job import JobId
from rota.postgres.query import Query, Row, scalar, statement

__all__ = [
    "ClaimedJob",
    "Lane",
    "Look",
    "Start",
    "claim",
    "claim_suspect",
    "find_lanes",
    "give_back_claim",
    "held_tokens",
    "new_token",
    "revisit_lanes",
]


class ClaimedJob(NamedTuple):
    """A job of ours to run. A tuple, because a frozen dataclass costs more to build than the rest of the claim."""

    id: JobId
    queue: str
    task: str
    priority: int
    attempt: int
    losses: int
    due_at: datetime
    args: str
    token: int
    version: int = 1
    saved: str | None = None
    schedule: str | None = None
    slot_at: datetime | None = None
    waited: float | None = None  # seconds from when it was due to when it was claimed, by the clock of the database
    trace_context: str | None = None


class Start(NamedTuple):
    """Where in a lane a walk begins: behind this job."""

    due_at: datetime
    id: JobId


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue and a priority with something queued. `due_in` is how far away its first job is, `next_due_in` the first that
    is not due yet, whatever stands before it; `suspects` tells whether any lane has jobs that were lost before; a walk from
    `start` meets the first job and nothing before it."""

    queue: str
    priority: int
    due_in: float
    suspects: bool = False
    next_due_in: float | None = None
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The lanes that were found, when that was, and how long it took the server."""

    lanes: list[Lane]
    at: datetime
    seconds: float


def new_token() -> int:
    """A claim's token: random, so that no other claim of the same job ever has it."""
    return secrets.randbits(63)


# The last arm is read when the others are done.
_TOLD = """
    (
        select
            lane.queue, lane.priority, extract(epoch from lane.due_at - (select {schema}.now()))::float8,
            (select exists (select from {schema}.jobs as job where job.state = 'queued' and job.losses > 0)),
            -- what is due may be nothing for us: a task we do not know, a suspect; what comes after it is due in its own time
            (
                select extract(epoch from job.due_at - (select {schema}.now()))::float8
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority = lane.priority
                  and job.due_at > (select {schema}.now())
                order by job.due_at, job.id
                limit 1
            ),
            lane.due_at, lane.id
        from lane
        where %(queues)s::text[] is null or lane.queue = any (%(queues)s::text[])
        order by lane.priority desc
    )
    union all
    select null, null, extract(epoch from clock_timestamp() - statement_timestamp())::float8, null, null, {schema}.now(), null
"""

FIND_LANES = statement(
    "find_lanes",
    """
    with recursive lane as (
        (
            select job.queue, job.priority, job.due_at, job.id
            from {schema}.jobs as job
            where job.state = 'queued'
            order by job.queue, job.priority desc, job.due_at, job.id
            limit 1
        )
        union all
        select next.queue, next.priority, next.due_at, next.id
        from lane
        cross join lateral (
            (
                select job.queue, job.priority, job.due_at, job.id
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority < lane.priority
                order by job.priority desc, job.due_at, job.id
                limit 1
            )
            union all
            (
                select job.queue, job.priority, job.due_at, job.id
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue > lane.queue
                order by job.queue, job.priority desc, job.due_at, job.id
                limit 1
            )
            limit 1
        ) as next
    )
    """  # noqa: S608 - all parts are written out here
    + _TOLD,
)


def find_lanes(queues: Sequence[str] | None) -> Query[Look]:
    """The lanes with something queued, the most urgent first, and how far away the jobs of each are."""
    return FIND_LANES.query({"queues": None if queues is None else list(queues)}, read=_look)


REVISIT_LANES = statement(
    "revisit_lanes",
    """
    with lane as (
        select known.queue, known.priority, head.due_at, head.id
        from unnest(
            %(known_queues)s::text[], %(priorities)s::smallint[], %(after_due)s::timestamptz[], %(after_id)s::bigint[]
        ) as known(queue, priority, after_due, after_id)
        cross join lateral (
            select job.due_at, job.id
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = known.queue
              and job.priority = known.priority
              and (job.due_at, job.id) > (known.after_due, known.after_id)
            order by job.due_at, job.id
            limit 1
        ) as head
    )
    """  # noqa: S608 - all parts are written out here
    + _TOLD,
)


def revisit_lanes(known: Mapping[tuple[str, int], Start]) -> Query[Look]:
    """Those of these lanes that have something queued behind where each is told to begin."""
    return REVISIT_LANES.query(
        {
            "known_queues": [queue for queue, _ in known],
            "priorities": [priority for _, priority in known],
            "after_due": [start.due_at.isoformat() for start in known.values()],
            "after_id": [start.id for start in known.values()],
            "queues": None,
        },
        read=_look,
    )


def _look(rows: Sequence[Row]) -> Look:
    *lanes, (_, _, seconds, _, _, at, _) = rows
    return Look([_lane(*lane) for lane in lanes], at, seconds)


def _lane(
    queue: str, priority: int, due_in: float, suspects: bool, next_due_in: float, due_at: datetime, id: JobId
) -> Lane:
    return Lane(queue, priority, due_in, suspects, next_due_in, Start(due_at, id - 1))


CLAIM = statement(
    "claim",
    """
    update {schema}.jobs as job
    set state = 'running',
        token = %(token)s,
        member = %(member)s,
        claimed_at = {schema}.now(),
        attempt = job.attempt + 1
    where job.id = any (array(
        select due.id
        from unnest(
            %(queues)s::text[], %(priorities)s::smallint[], %(after_due)s::timestamptz[], %(after_id)s::bigint[]
        ) as lane(queue, priority, after_due, after_id)
        cross join lateral (
            select job.id
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = lane.queue
              and job.priority = lane.priority
              and (job.due_at, job.id) > (lane.after_due, lane.after_id)
              and job.due_at <= (select {schema}.now())
              -- what this process does not know stays for those who do
              and job.task = any (%(tasks)s::text[])
              and (
                  job.version = 1
                  or job.version <= (%(versions)s::smallint[])[array_position(%(tasks)s::text[], job.task)]
              )
              -- what went down with a process before is taken apart: see claim_suspect
              and job.losses = 0
              and job.cancel_requested_at is null
            order by job.due_at, job.id
            limit %(limit)s
            for update skip locked
        ) as due
        -- lanes are walked in the order given, and no further than needed: the locks are taken row by row
        limit %(limit)s
    ))
      -- an ended member may not take anything: nobody would know that it has it
      and exists (select from {schema}.members as member where member.id = %(member)s and member.ended_at is null)
    returning
        job.id, job.queue, job.task, job.priority, job.attempt, job.losses, job.due_at, job.args::text, job.token,
        job.version, job.saved::text, job.schedule, job.slot_at, extract(epoch from job.claimed_at - job.due_at)::float8,
        job.trace_context
    """,
)


def claim(
    *, lanes: Sequence[tuple[Lane, Start | None]], tasks: Mapping[str, int], limit: int, token: int, member: UUID
) -> Query[list[ClaimedJob]]:
    """Take up to `limit` due jobs of these lanes and tasks (up to this version of each) for this member, under one token."""
    return CLAIM.query(
        {
            "queues": [lane.queue for lane, _ in lanes],
            "priorities": [lane.priority for lane, _ in lanes],
            "after_due": ["-infinity" if start is None else start.due_at.isoformat() for _, start in lanes],
            "after_id": [0 if start is None else start.id for _, start in lanes],
            "tasks": list(tasks),
            "versions": list(tasks.values()),
            "limit": limit,
            "token": token,
            "member": member,
        },
        read=_claimed,
    )


def _claimed(rows: Sequence[Row]) -> list[ClaimedJob]:
    return [ClaimedJob._make(row) for row in rows]


# One at a time per process, so that what kills its process is told from what merely ran beside it.
CLAIM_SUSPECT = statement(
    "claim_suspect",
    """
    update {schema}.jobs as job
    set state = 'running',
        token = %(token)s,
        member = %(member)s,
        claimed_at = {schema}.now(),
        attempt = job.attempt + 1
    where job.id = (
        select job.id
        from {schema}.jobs as job
        where job.state = 'queued'
          and job.losses > 0
          and job.losses <= %(most_losses)s
          and job.cancel_requested_at is null
          and job.due_at <= (select {schema}.now())
          and job.task = any (%(tasks)s::text[])
          and (job.version = 1 or job.version <= (%(versions)s::smallint[])[array_position(%(tasks)s::text[], job.task)])
          and (%(queues)s::text[] is null or job.queue = any (%(queues)s::text[]))
        order by job.priority desc, job.due_at, job.id
        limit 1
        for update skip locked
    )
      and exists (select from {schema}.members as member where member.id = %(member)s and member.ended_at is null)
    returning
        job.id, job.queue, job.task, job.priority, job.attempt, job.losses, job.due_at, job.args::text, job.token,
        job.version, job.saved::text, job.schedule, job.slot_at, extract(epoch from job.claimed_at - job.due_at)::float8,
        job.trace_context
    """,
)


def claim_suspect(
    *, queues: Sequence[str] | None, tasks: Mapping[str, int], most_losses: int, token: int, member: UUID
) -> Query[list[ClaimedJob]]:
    """Take the most urgent due job that went down with a process before, but no more often than this, if there is one."""
    return CLAIM_SUSPECT.query(
        {
            "most_losses": most_losses,
            "queues": None if queues is None else list(queues),
            "tasks": list(tasks),
            "versions": list(tasks.values()),
            "token": token,
            "member": member,
        },
        read=_claimed,
    )


GIVE_BACK_CLAIM = statement(
    "give_back_claim",
    """
    with given_back as (
        update {schema}.jobs as job
        set state = 'queued',
            token = null,
            member = null,
            claimed_at = null,
            attempt = job.attempt - 1
        where job.state = 'running'
          and job.member = %(member)s
          and job.token = %(token)s
        returning job.id
    )
    select count(*) from given_back
    """,
)


def give_back_claim(member: UUID, token: int) -> Query[int]:
    """Undo a claim whose reply never came: if it was committed, nobody here knows what it took."""
    return GIVE_BACK_CLAIM.query({"member": member, "token": token}, read=scalar)


HELD_TOKENS = statement(
    "held_tokens",
    "select array_agg(distinct token) from {schema}.jobs where state = 'running' and member = %(member)s",
)


def held_tokens(member: UUID) -> Query[set[int]]:
    """The tokens of all claims that this member has according to the database."""
    return HELD_TOKENS.query({"member": member}, read=lambda rows: set(scalar(rows) or ()))
