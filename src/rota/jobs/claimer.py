"""When to look for jobs, where to begin, and what becomes of a claim whose reply never came.

A claim walks each due lane from where the last one left off: the entries of jobs already taken stay in the index until
vacuum, and walking them again for every claim is what makes queues slow. A look from the start comes after every wake-up,
after a short batch, and now and then, since a late commit or a retry may have landed behind us.

While some long transaction keeps vacuum from its work, that look is the dear one: it walks every entry that died since. So
it may only take a small share of the time. In between, the lanes we know are looked at from shortly before the present; a
lane that is new, or a job that was committed late, waits for the look that is owed.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from rota.clock import boottime
from rota.jobs.claim import (
    ClaimedJob,
    claim,
    claim_flow,
    claim_named,
    claim_suspect,
    give_back_claim,
    join_lines,
    look_and_claim,
    new_token,
)
from rota.jobs.job import JobId
from rota.jobs.lanes import Lane, Look, Start, find_lanes, revisit_lanes
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.service.points import reach

__all__ = ["Claimer", "weighed"]

_LOOK_FROM_START_SECONDS = 0.25
# What costs less is not worth saving; what costs more may take this share of the time.
_CHEAP_SECONDS = 0.01
_SHARE = 0.1
_CALM_SHARE = 0.03
# The same moment, reckoned twice from what the server says it is away.
_NEARLY_SECONDS = 0.05
# How far before the present a lane is looked at when the start is too far: as late as a commit may be and still be seen.
_LATE = timedelta(seconds=2)
_MOST_KNOWN = 200
# How many lanes a claim walks at first, when there are more: each costs something on the way there, walked or not.
_FEW = 20
# So that a claim is no longer one when very many become due at once.
_JOIN_AT_ONCE = 100


class _Claim(NamedTuple):
    """For whom a look may take something, and how much."""

    limit: int
    member: UUID
    still_valid: Callable[[], bool]


class Claimer:
    """Remembers how far each lane has been walked, and when the next job is due. `sooner` is called when that changes between
    looks, as whoever waits for it waits too long."""

    def __init__(
        self,
        session: Session,
        *,
        queues: Sequence[str] | None,
        tasks: Mapping[str, int],
        limited: Sequence[str] = (),
        sooner: Callable[[], None],
    ) -> None:
        self._session = session
        self.queues = queues
        self._tasks = tasks
        self._limited = limited
        self._sooner = sooner
        self._lanes: list[tuple[Lane, Start | None]] = []
        self._suspects = False
        self._returned = False
        self._limited_queues: set[str] = set()
        # where a look that may not begin at the start begins, of each lane that had something, the latest last
        self._known: dict[tuple[str, int], Start] = {}
        self._behind = Start(datetime.min.replace(tzinfo=UTC), 0)
        self._costs: dict[str, float] = {}
        self._dear_until = 0.0
        self._look_from_start_at = 0.0
        self._owed = False
        self._at_any_cost = False
        self._due_at = math.inf
        self._join_at = 0.0
        self._unknown: set[tuple[UUID, int]] = set()
        # what the last look has taken; None if it has not tried
        self._found: list[ClaimedJob] | None = None
        self._few = _FEW
        # none of the lanes is before another for what it is
        self._level = True
        self.saw_all = False
        #: something is due that a limit keeps from being taken, as far as the last claim knows
        self.held_up = False

    def look(self, *, at_any_cost: bool = False) -> None:
        """Let the next claim look anew: from the start of every lane if that is cheap, or if it must be."""
        self._lanes = []
        self._at_any_cost |= at_any_cost

    def return_to_lines(self, lanes: Iterable[tuple[str, int]]) -> None:
        """Let the next claim take from the lines of these queues and priorities, whatever the last look has found there."""
        known = {(lane.queue, lane.priority) for lane, _ in self._lanes if lane.lines}
        found = [(Lane(queue, priority, 0.0, lines=True), None) for queue, priority in set(lanes) - known]
        self._lanes = sorted([*found, *self._lanes], key=lambda entry: -entry[0].priority)
        self._level = False
        self._returned = True

    @property
    def sessions(self) -> int:
        """How many it has had."""
        return self._session.opened

    def is_limited(self, queue: str) -> bool:
        """Whether this queue, or all together, may run only so many, as far as we know: then all that waits there shares the room."""
        return queue in self._limited_queues

    @property
    def next_look_in(self) -> float:
        """Seconds until the first job that is not due yet, as far as we know, or until we know better."""
        return max(0.0, min(self._due_at, self._dear_until if self._owed else math.inf) - boottime())

    @property
    def looks_cheaply(self) -> bool:
        """Whether a look from the start costs little, as far as we know, and none is owed."""
        return not self._owed and boottime() >= self._dear_until and self._costs.get("look", 0.0) <= _CHEAP_SECONDS

    def looks_by(self, due_in: float) -> bool:
        """Whether the next look is due by then anyway."""
        return self._due_at <= boottime() + due_in + _NEARLY_SECONDS

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

    async def claim_named(
        self, ids: Collection[JobId], limit: int, member: UUID, *, still_valid: Callable[[], bool]
    ) -> list[ClaimedJob]:
        """Those of these jobs that are ours to take, without a look: it says nothing of others. Raises as `claim` does."""
        await self.give_back_unknown()
        self.saw_all = self.held_up = False
        taken = await self._take(
            member,
            still_valid,
            lambda token: claim_named(
                ids=ids,
                queues=self.queues,
                tasks=self._tasks,
                limited=self._limited,
                limit=limit,
                token=token,
                member=member,
            ),
        )
        return self._handed_over(member, taken)

    async def claim(
        self, limit: int, member: UUID, *, still_valid: Callable[[], bool], most_losses: int
    ) -> list[ClaimedJob]:
        """Up to `limit` due jobs, the most urgent first; at most one that was lost before, and no more often than told.

        Raises DatabaseUnavailable; what was taken then is given back by the next call, and so is what came so late that it is
        not `still_valid` to start it.
        """
        await self.give_back_unknown()
        self.saw_all = self.held_up = False
        looked = not self._lanes or boottime() > self._look_from_start_at
        found = await self._look(_Claim(limit, member, still_valid)) if looked else None
        if found is not None:
            self._returned = False
            return self._handed_over(member, self._gone_on(found, limit, len(self._lanes)))
        taken: list[ClaimedJob] = []
        if most_losses and self._suspects:
            self._suspects = False
            taken = await self._take(
                member,
                still_valid,
                lambda token: claim_suspect(
                    queues=self.queues,
                    tasks=self._tasks,
                    limited=self._limited,
                    most_losses=most_losses,
                    token=token,
                    member=member,
                ),
            )
        walked = 0
        for lanes in self._alike():
            if (wanted := limit - len(taken)) <= 0:
                break
            walked += len(lanes)
            suspects = 0 if any(job.losses for job in taken) else most_losses
            taken += await self._take_from(lanes, wanted, member, still_valid, suspects)
        if not taken and not looked and self._returned:
            # only a look tells from when on there is something, as for a line that has to wait for its rate
            self._returned, self._lanes = False, []
            return await self.claim(limit, member, still_valid=still_valid, most_losses=most_losses)
        self._returned = False
        return self._handed_over(member, self._gone_on(taken, limit, walked))

    def _gone_on(self, taken: list[ClaimedJob], limit: int, walked: int) -> list[ClaimedJob]:
        """Know for the next claim where these were the last of so many lanes."""
        if not self._lanes:
            return taken
        if len(taken) < limit:
            # all that was due has been walked
            self._known |= {(lane.queue, lane.priority): self._behind for lane, _ in self._lanes if not lane.lines}
            self._lanes = []
        else:
            self._advance(taken, walked)
        return taken

    def _alike(self) -> Iterator[list[tuple[Lane, Start | None]]]:
        """The lanes in their order, and together as far as one statement can walk them; of very many only some at first, as those
        mostly have all that is wanted."""
        for in_flow, group in groupby(self._lanes, lambda entry: entry[0].lines or entry[0].limited):
            lanes, few = list(group), math.inf if in_flow else self._few
            while len(lanes) > few:
                yield lanes[: int(few)]
                lanes, few = lanes[int(few) :], few * 4
            yield lanes

    async def _take_from(
        self,
        lanes: list[tuple[Lane, Start | None]],
        wanted: int,
        member: UUID,
        still_valid: Callable[[], bool],
        most_losses: int,
    ) -> list[ClaimedJob]:
        began = boottime()
        if lanes[0][0].lines or lanes[0][0].limited:
            jobs = await self._take(
                member,
                still_valid,
                lambda token: claim_flow(
                    lanes=lanes,
                    tasks=self._tasks,
                    limited=self._limited,
                    limit=wanted,
                    most_losses=most_losses,
                    token=token,
                    member=member,
                ),
            )
            self.held_up |= len(jobs) < wanted
            return jobs
        jobs = await self._take(
            member,
            still_valid,
            lambda token: claim(
                lanes=lanes, tasks=self._tasks, limited=self._limited, limit=wanted, token=token, member=member
            ),
        )
        if not jobs and self.saw_all:
            # what is due is nothing for us, and behind it may be as much as there was before it
            self._pay("claim", boottime() - began)
        return jobs

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
        found = await self._session.run(query(token))
        reach("claim.after")
        return self._taken(found, member, token, still_valid)

    def _taken(
        self, found: list[ClaimedJob], member: UUID, token: int, still_valid: Callable[[], bool]
    ) -> list[ClaimedJob]:
        jobs = found if not self._limited else [job for job in found if job.token is not None]
        if len(jobs) < len(found):
            # these went into their lines instead
            self._due_at = 0.0
        if not jobs:
            self._unknown.discard((member, token))
        return jobs if still_valid() else []

    async def _look(self, claim: _Claim) -> list[ClaimedJob] | None:
        """See where there is something, and take of it, if that can be done at the same time; None if it could not."""
        self._found = None
        # with lanes at hand it is no claim that waits for the look
        look = await self._look_once(None if self._lanes else claim)
        if look.joins_in is None or look.joins_in > 0:
            return self._found
        if self._lanes and boottime() < self._join_at:
            # they would only wait there instead
            self.saw_all = False
            self._due_at = min(self._due_at, self._join_at)
            return self._found
        self._join_at = boottime() + _LOOK_FROM_START_SECONDS
        joined = await self._session.run(join_lines(_JOIN_AT_ONCE))
        if joined:
            await self._look_once(claim)
        if joined == _JOIN_AT_ONCE:
            # others may be due as well, but a claim that put them all into line would be a long one
            self.saw_all = False
            self._due_at = 0.0
        return self._found

    async def _look_and_claim(self, claim: _Claim) -> Look:
        began, token = boottime(), new_token()
        self._unknown.add((claim.member, token))
        reach("claim.before")
        look, found = await self._session.run(
            look_and_claim(
                only=self.queues,
                tasks=self._tasks,
                limited=self._limited,
                limit=claim.limit,
                token=token,
                member=claim.member,
            )
        )
        reach("claim.after")
        jobs = self._taken(found or [], claim.member, token, claim.still_valid)
        self._found = None if found is None else jobs
        if found == [] and any(lane.due_in <= 0 for lane in look.lanes):
            # what is due is nothing for us, and behind it may be as much as there was before it
            self._pay("claim", boottime() - began)
        return look

    async def _look_once(self, claim: _Claim | None) -> Look:
        # nothing is known until the answer is here, but what is expected meanwhile: that the answer may not tell
        self._lanes, self._due_at = [], math.inf
        asked_at = boottime()
        self.saw_all = self._at_any_cost or asked_at >= self._dear_until
        if self.saw_all:
            look = await (self._session.run(find_lanes(self.queues)) if claim is None else self._look_and_claim(claim))
            self._at_any_cost = self._owed = False
            self._pay("look", look.seconds)
        else:
            look = await self._session.run(revisit_lanes(self._known))
            self._owed = True
        self._remember(look)
        self._lanes = [(lane, lane.start) for lane in look.lanes if lane.due_in <= 0]
        self._suspects = any(lane.suspects for lane in look.lanes)
        # of a queue in which nothing waits now, what was so before
        self._limited_queues -= {lane.queue for lane in look.lanes if not lane.limited}
        self._limited_queues |= {lane.queue for lane in look.lanes if lane.limited}
        # measured from before we asked: rather a look too early than a job too late
        found = [lane.next_due_in for lane in look.lanes if lane.next_due_in is not None]
        if look.joins_in is not None:
            found.append(max(look.joins_in, 0.05))  # what is due and does not join is locked by someone
        self._due_at = min([self._due_at, *(asked_at + due_in for due_in in found)])
        # lanes of one priority take turns, so that a flood in one queue does not keep the others waiting
        self._rotate()
        return look

    def _pay(self, what: str, seconds: float) -> None:
        """A look from the start has taken so long: the next may come when that is a small share of the time.

        What was dear once was the hiccup of a busy server; what is dear twice in a row is how it is.
        """
        usual, self._costs[what] = min(seconds, self._costs.get(what, 0.0)), seconds
        pause = usual / _SHARE if usual > _CHEAP_SECONDS else 0.0
        self._dear_until = max(self._dear_until, boottime() + pause)
        # where nobody calls for it, as with very many lanes, a smaller one still
        self._look_from_start_at = max(
            self._dear_until, boottime() + max(_LOOK_FROM_START_SECONDS, usual / _CALM_SHARE)
        )

    def _remember(self, look: Look) -> None:
        """Where to begin in each lane when the start is too far: where the first job was, and with none shortly before now."""
        self._behind = Start(look.at - _LATE, 0)
        self._known = dict.fromkeys(self._known, self._behind)
        for lane in look.lanes:
            if lane.lines:
                continue
            self._known.pop((lane.queue, lane.priority), None)
            self._known[lane.queue, lane.priority] = min(lane.start, self._behind) if lane.start else self._behind
        for forgotten in list(self._known)[:-_MOST_KNOWN]:
            del self._known[forgotten]

    def _rotate(self) -> None:
        self._level = len({(lane.priority, lane.weight) for lane, _ in self._lanes}) <= 1
        shift = secrets.randbelow(len(self._lanes)) if self._lanes else 0
        turned = self._lanes[shift:] + self._lanes[:shift]
        self._lanes = weighed(sorted(turned, key=lambda entry: -entry[0].priority))

    def _advance(self, jobs: Sequence[ClaimedJob], walked: int) -> None:
        """Go on behind these jobs next time, and begin with the lanes that were not served, of the same priority. They are of the
        first that were `walked`: of very many the others are left as they are."""
        served = {(job.queue, job.priority, job.in_line): job for job in jobs if not job.losses}
        self._few = max(_FEW, 2 * len(served))
        last = {lane: Start(datetime.fromtimestamp(job.due_at, UTC), job.id) for lane, job in served.items()}
        self._known |= {
            (queue, priority): min(start, self._behind) for (queue, priority, lines), start in last.items() if not lines
        }

        def behind(lane: Lane, start: Start | None) -> Start | None:
            return start if lane.lines else last.get((lane.queue, lane.priority, False), start)

        def turn(entry: tuple[Lane, Start | None]) -> tuple[int, bool]:
            lane, _ = entry
            return -lane.priority, (lane.queue, lane.priority, lane.lines) in last

        met = sorted([(lane, behind(lane, start)) for lane, start in self._lanes[:walked]], key=turn)
        others = self._lanes[walked:]
        if self._level:
            unserved = [entry for entry in met if not turn(entry)[1]]
            self._lanes = [*unserved, *others, *met[len(unserved) :]]
        else:
            self._lanes = weighed(sorted([*met, *others], key=turn))

    async def give_back_unknown(self) -> None:
        """Undo claims of ours that were cut off before they told what they took."""
        for unknown in list(self._unknown):
            await self._session.run(give_back_claim(*unknown))
            self._unknown.discard(unknown)


def weighed(lanes: list[tuple[Lane, Start | None]]) -> list[tuple[Lane, Start | None]]:
    """Those of one priority in an order of chance, in which each is first as often as its weight says: a claim mostly takes all
    it wants from the first. Where all weigh the same they take turns as they are."""
    if len({lane.weight for lane, _ in lanes}) <= 1:
        return lanes
    return sorted(lanes, key=lambda entry: (-entry[0].priority, -(random.random() ** (1 / entry[0].weight))))
