"""When to look for jobs, where to begin, and what becomes of a claim whose reply never came.

A claim walks each due lane from where the last one left off: the entries of jobs already taken stay in the index until
vacuum, and walking them again for every claim is what makes queues slow. A walk from the start comes after every wake-up,
after a short batch, and now and then, since a late commit or a retry may have landed behind us.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from rota.clock import boottime
from rota.jobs.claim import (
    ClaimedJob,
    Lane,
    Start,
    claim,
    claim_suspect,
    find_lanes,
    give_back_claim,
    new_token,
)
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.service.points import reach

__all__ = ["Claimer"]

_WALK_FROM_START_SECONDS = 0.25


class Claimer:
    """Remembers how far each lane has been walked, and when the next job is due. `sooner` is called when that changes between
    looks, as whoever waits for it waits too long."""

    def __init__(
        self, session: Session, *, queues: Sequence[str] | None, tasks: Mapping[str, int], sooner: Callable[[], None]
    ) -> None:
        self._session = session
        self._queues = queues
        self._tasks = tasks
        self._sooner = sooner
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
        """A job is due then, which the last look cannot have told."""
        due_at = boottime() + due_in
        if due_at < self._due_at:
            self._due_at = due_at
            self._sooner()

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
        # nothing is known until the answer is here, but what is expected meanwhile: that the answer may not tell
        self._lanes, self._due_at = [], math.inf
        asked_at = boottime()
        lanes = await self._session.run(find_lanes(self._queues))
        self._walk_from_start_at = asked_at + _WALK_FROM_START_SECONDS
        self._lanes = [(lane, None) for lane in lanes if lane.due_in <= 0]
        self._suspects = any(lane.suspects for lane in lanes)
        # measured from before we asked: rather a look too early than a job too late
        found = (asked_at + lane.next_due_in for lane in lanes if lane.next_due_in is not None)
        self._due_at = min([self._due_at, *found])
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
