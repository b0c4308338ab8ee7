"""Taking jobs, many at a time, so that each has one holder.

A *lane* is a queue and a priority. One read finds the lanes that have something queued and when the first of each is
due; it jumps from lane to lane in the index, so it costs the same with ten jobs or ten million, and writes nothing. The
claim itself walks each due lane from where the last claim left off: the entries of jobs already taken stay in the index
until vacuum, and walking them again for every claim is what makes queues slow. A walk from the start comes after every
wake-up, after a short batch, and now and then, since a late commit or a retry may have landed behind us.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from rota.clock import boottime
from rota.jobs.job import JobId
from rota.postgres.query import Query, Row, many, scalar, statement
from rota.postgres.session import Session
from rota.service.points import reach

__all__ = ["ClaimedJob", "Claimer", "Lane", "claim", "claim_suspect", "find_lanes", "give_back_claim", "new_token"]

_WALK_FROM_START_SECONDS = 0.25


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


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue and a priority with something queued; `suspects` tells whether any lane has jobs that were lost before."""

    queue: str
    priority: int
    due_in: float
    suspects: bool = False


def new_token() -> int:
    """A claim's token: random, so that no other claim of the same job ever has it."""
    return secrets.randbits(63)


FIND_LANES = statement(
    "find_lanes",
    """
    with recursive lane as (
        (
            select job.queue, job.priority, job.due_at
            from {schema}.jobs as job
            where job.state = 'queued'
            order by job.queue, job.priority desc, job.due_at, job.id
            limit 1
        )
        union all
        select next.queue, next.priority, next.due_at
        from lane
        cross join lateral (
            (
                select job.queue, job.priority, job.due_at
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority < lane.priority
                order by job.priority desc, job.due_at, job.id
                limit 1
            )
            union all
            (
                select job.queue, job.priority, job.due_at
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue > lane.queue
                order by job.queue, job.priority desc, job.due_at, job.id
                limit 1
            )
            limit 1
        ) as next
    )
    select
        lane.queue, lane.priority, extract(epoch from lane.due_at - (select {schema}.now()))::float8,
        (select exists (select from {schema}.jobs as job where job.state = 'queued' and job.losses > 0))
    from lane
    where %(queues)s::text[] is null or lane.queue = any (%(queues)s::text[])
    order by lane.priority desc
    """,
)


def find_lanes(queues: Sequence[str] | None) -> Query[list[Lane]]:
    """The lanes with something queued, the most urgent first, and how far away the first job of each is."""
    return FIND_LANES.query({"queues": None if queues is None else list(queues)}, read=many(Lane))


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
        job.version, job.saved::text
    """,
)


@dataclass(frozen=True, slots=True)
class Start:
    """Where in a lane a walk begins: behind this job."""

    due_at: datetime
    id: JobId


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
        job.version, job.saved::text
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


class Claimer:
    """Remembers how far each lane has been walked, and when the next job is due."""

    def __init__(self, session: Session, *, queues: Sequence[str] | None, tasks: Mapping[str, int]) -> None:
        self._session = session
        self._queues = queues
        self._tasks = tasks
        self._lanes: list[tuple[Lane, Start | None]] = []
        self._suspects = False
        self._walk_from_start_at = 0.0
        self._due_at = math.inf
        self._unknown: set[tuple[UUID, int]] = set()

    def look_from_start(self) -> None:
        """Let the next claim walk from the start of every lane."""
        self._lanes = []

    @property
    def next_due_in(self) -> float:
        """Seconds until the first job that is not due yet, as far as we know."""
        return max(0.0, self._due_at - boottime())

    def expect(self, due_in: float) -> None:
        """A job is due then: look by that time, whatever the last look told."""
        self._due_at = min(self._due_at, boottime() + due_in)

    @property
    def under_way(self) -> set[int]:
        """The tokens of claims whose reply is awaited, or never came."""
        return {token for _, token in self._unknown}

    async def claim(
        self, limit: int, member: UUID, *, still_valid: Callable[[], bool], most_losses: int
    ) -> list[ClaimedJob]:
        """Up to `limit` due jobs, the most urgent first; at most one that was lost before, and no more often than told.

        Raises DatabaseUnavailable; what was taken then is given back by the next call, and so is what came so late that it is
        not `still_valid` to start it.
        """
        await self.give_back_unknown()
        if not self._lanes or boottime() > self._walk_from_start_at:
            await self._look()
        taken: list[ClaimedJob] = []
        if most_losses and self._suspects:
            self._suspects = False
            taken = await self._take(
                member,
                still_valid,
                lambda token: claim_suspect(
                    queues=self._queues, tasks=self._tasks, most_losses=most_losses, token=token, member=member
                ),
            )
        if not self._lanes or limit <= len(taken):
            return self._handed_over(member, taken)
        wanted = limit - len(taken)
        jobs = await self._take(
            member,
            still_valid,
            lambda token: claim(lanes=self._lanes, tasks=self._tasks, limit=wanted, token=token, member=member),
        )
        jobs.sort(key=lambda job: (-job.priority, job.due_at, job.id))
        if len(jobs) < wanted:
            self._lanes = []
        else:
            self._advance(jobs)
        return self._handed_over(member, [*taken, *jobs])

    def _handed_over(self, member: UUID, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Only now does someone else know of them: until here, whatever goes wrong, they are to be given back."""
        self._unknown -= {(member, job.token) for job in jobs}
        return jobs

    async def _take(
        self, member: UUID, still_valid: Callable[[], bool], query: Callable[[int], Query[list[ClaimedJob]]]
    ) -> list[ClaimedJob]:
        token = new_token()
        self._unknown.add((member, token))
        reach("claim.before")
        jobs = await self._session.run(query(token))
        reach("claim.after")
        if not jobs:
            self._unknown.discard((member, token))
        return jobs if still_valid() else []

    async def _look(self) -> None:
        self._walk_from_start_at = boottime() + _WALK_FROM_START_SECONDS
        asked_at = boottime()
        lanes = await self._session.run(find_lanes(self._queues))
        self._lanes = [(lane, None) for lane in lanes if lane.due_in <= 0]
        self._suspects = any(lane.suspects for lane in lanes)
        # measured from before we asked: rather a look too early than a job too late
        self._due_at = min((asked_at + lane.due_in for lane in lanes if lane.due_in > 0), default=math.inf)
        # lanes of one priority take turns, so that a flood in one queue does not keep the others waiting
        self._rotate()

    def _rotate(self) -> None:
        shift = secrets.randbelow(len(self._lanes)) if self._lanes else 0
        turned = self._lanes[shift:] + self._lanes[:shift]
        self._lanes = sorted(turned, key=lambda entry: -entry[0].priority)

    def _advance(self, jobs: Sequence[ClaimedJob]) -> None:
        """Go on behind these jobs next time, and begin with the lanes that were not served, of the same priority."""
        last = {(job.queue, job.priority): job for job in jobs}

        def behind(lane: Lane, start: Start | None) -> Start | None:
            job = last.get((lane.queue, lane.priority))
            return start if job is None else Start(job.due_at, job.id)

        def turn(entry: tuple[Lane, Start | None]) -> tuple[int, bool]:
            lane, _ = entry
            return -lane.priority, (lane.queue, lane.priority) in last

        self._lanes = sorted([(lane, behind(lane, start)) for lane, start in self._lanes], key=turn)

    async def give_back_unknown(self) -> None:
        """Undo claims of ours that were cut off before they told what they took."""
        for unknown in list(self._unknown):
            await self._session.run(give_back_claim(*unknown))
            self._unknown.discard(unknown)
