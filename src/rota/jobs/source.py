"""Jobs as a source of work: where the consumer's claims come from, and where its outcomes go."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

import psycopg

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import (
    DatabaseLost,
    Fact,
    Facts,
    JobCancelled,
    JobClaimLost,
    JobFailed,
    JobLost,
    JobsLocked,
    JobSnoozed,
    JobSucceeded,
    SuccessesRepeated,
)
from rota.failure import Failure
from rota.jobs.claim import ClaimedJob
from rota.jobs.claimer import Claimer
from rota.jobs.glance import Glances
from rota.jobs.job import JobId
from rota.jobs.outcome import (
    AlreadySettled,
    Buried,
    Cancelled,
    HandedBack,
    Lost,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    Unsuccessful,
)
from rota.jobs.relaxed import Relaxed
from rota.jobs.settle import Attempt, find_locked, find_settled, settle, succeed
from rota.jobs.suspects import Gate
from rota.jobs.tracing import Tracing
from rota.leases.control import Control
from rota.postgres.connection import is_about_data
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.service.points import reach

__all__ = ["JobSource"]

T = TypeVar("T")

_job, _limited, _batch = attrgetter("job"), attrgetter("limited"), attrgetter("batch")

# For how long after a lock was felt, or seen, each batch is asked for locks before it is written.
_WARY_SECONDS = 5.0
_UNSTORABLE = "InvalidResult"
# While a limit holds something up, we look for it at least so often, and more rarely the longer that has been so: whoever ends
# what is in the way wakes nobody but itself.
_HELD_UP_SECONDS = 0.2
_HELD_UP_SHARE = 0.1
# Told of more jobs than this, or for longer than this of one after the other, we look: some are not named.
_NAMED_LIMIT = 20
_NAMED_SECONDS = 0.1
# While glances look for us we do so ourselves so many times more rarely, in case they do not come: by chance, as those who started
# together would look together.
_RESTING = (8.0, 12.0)


class JobSource:
    """Claims for one member, as long as that may act, and settles what came of it."""

    def __init__(
        self,
        claimer: Claimer,
        gate: Gate,
        settling: Session,
        *,
        channel: str,
        control: Callable[[], Control],
        poll: Callable[[], float],
        only_once: Callable[[str], bool],
        holds_nothing: Callable[[], bool],
        facts: Facts,
        tracing: Tracing | None = None,
        left_batch: Callable[[], None] = lambda: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._claimer = claimer
        self._left_batch = left_batch
        self._stopping = stopping
        self._gate = gate
        self._settling = settling
        self._channel = channel
        self._control = control
        self._poll = poll
        self._only_once = only_once
        self._holds_nothing = holds_nothing
        self._facts = facts
        self._tracing = tracing
        self._relaxed = Relaxed()
        self._wary_until = 0.0
        self._seen_locked: set[JobId] = set()
        self._woken = asyncio.Event()
        self._look_anew = False
        self._loop = asyncio.get_running_loop()
        #: what looks for us while nothing has come for a while
        self.glances = Glances(claimer.queues, poll=poll, found=self._found)
        self._has_glimpsed = False
        #: while we wait there is nothing else, and room: who tells us of a job tells of the first one to take
        self.waits = False
        self._named: list[JobId] = []
        self._named_until = math.inf
        self._pause = 0.0
        self._moved_at = boottime()
        self._awaited = 0
        self._looks_begun = 0
        self._last_short_look = 0
        self._short_look = asyncio.Event()

    def wake(self, job: JobId | None = None) -> None:
        """There is something to claim: this job, if it is named."""
        self._look_anew = True
        if job is not None and self.waits and len(self._named) <= _NAMED_LIMIT:
            self._named.append(job)
        self._woken.set()

    def _found(self, due_in: float) -> None:
        """A glance has seen that something is due then; called in the control thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed, and there is nothing left to look for
            if due_in <= 0:
                self._loop.call_soon_threadsafe(self._glimpsed)
            elif not self._claimer.looks_by(due_in):
                self._loop.call_soon_threadsafe(self._claimer.expect, due_in)

    def _glimpsed(self) -> None:
        self._has_glimpsed = self._look_anew = True
        self._woken.set()

    async def found_nothing(self) -> None:
        """Return after a claim that begins from now on, looks from the start, and finds less than it could take."""
        begun = self._looks_begun
        self._awaited += 1
        try:
            self.wake()
            while self._last_short_look <= begun:
                self._short_look.clear()
                await self._short_look.wait()
        finally:
            self._awaited -= 1

    @property
    def claims_under_way(self) -> set[int]:
        return self._claimer.under_way | self._relaxed.tokens

    def may_start(self) -> bool:
        return self._control().may_act

    async def claim(self, limit: int) -> Sequence[ClaimedJob]:
        control = self._control()
        if not control.may_act:
            return []
        await self._repeat_doubtful()
        self._woken.clear()
        if self._look_anew:
            self._look_anew = False
            self._claimer.look()
        named, self._named, self.waits = self._named, [], False
        member, asked_at = control.member, boottime()

        def still_valid() -> bool:
            return control.may_act and control.member == member

        if 0 < len(named) <= _NAMED_LIMIT and boottime() < self._named_until:
            self._named_until = min(self._named_until, boottime() + _NAMED_SECONDS)
            if jobs := await self._claimer.claim_named(named, limit, member, still_valid=still_valid):
                self._answered(asked_at, on_disk=True)
                # whether there is more is asked a moment later: a lone job does not wait for that
                self._pause, self._moved_at = 0.0, boottime()
                control.take_hold()
                return jobs
        self._named_until = math.inf
        self._looks_begun += 1
        look = self._looks_begun
        jobs = await self._claimer.claim(limit, member, still_valid=still_valid, most_losses=self._gate.most_losses)
        self._answered(asked_at, on_disk=bool(jobs))
        if jobs or not self._claimer.held_up:
            self._moved_at = boottime()
        if jobs:
            control.take_hold()
            self._pause = 0.0
            # one at most, and first unless it was in a line
            if suspect := next((job for job in jobs if job.losses), None):
                self._gate.close(suspect)
        if len(jobs) < limit:
            if self._claimer.saw_all:
                self._last_short_look = look
                self._short_look.set()
            elif self._awaited:
                self._claimer.look(at_any_cost=True)
                self.wake()
        return jobs

    async def wait_for_more(self) -> None:
        if not self._control().may_act:
            # the control thread is about to be back; nobody wakes us for that
            await asyncio.sleep(0.05)
            return
        # Wake-ups may be coalesced, so look again soon after the last work, then ever less often.
        soonest, longest = 0.005, self._poll()
        if self._claimer.held_up:
            # it is mostly one of ours that makes room, and that wakes us
            soonest = 0.05
            longest = min(longest, max(_HELD_UP_SECONDS, (boottime() - self._moved_at) * _HELD_UP_SHARE))
        if self._has_glimpsed and self._pause:
            self.glances.were_useless()
        self._has_glimpsed = False
        self._pause = pause = min(longest, self._pause * 4 or soonest)
        self.waits = True
        if pause == longest and self._may_rest():
            self.glances.wanted, pause = True, longest * random.uniform(*_RESTING)
        try:
            async with asyncio.timeout(min(pause, self._claimer.next_look_in)):
                await self._woken.wait()
            if not self._has_glimpsed:
                self._pause = 0.0
        except TimeoutError:
            self._claimer.look()
        finally:
            self.glances.wanted = False

    def _may_rest(self) -> bool:
        """Whether glances may look for us: not while they would be dear, or something waits that only a look can tell of."""
        claimer = self._claimer
        return (
            self._holds_nothing()
            and not claimer.held_up
            and claimer.looks_cheaply
            and self.glances.come_often_enough(self._control())
        )

    def _answered(self, asked_at: float, *, on_disk: bool) -> None:
        sessions = (self._claimer.sessions, self._settling.opened)
        if self._relaxed.answered(asked_at, sessions, on_disk=on_disk):
            self.wake()

    async def repeat_forgotten(self) -> None:
        """The server has answered, though perhaps over a new session: say again what it may have forgotten if it has crashed."""
        self._answered(boottime(), on_disk=False)
        await self._repeat_doubtful()

    async def _repeat_doubtful(self) -> None:
        doubtful, self._relaxed.doubtful = self._relaxed.doubtful, []
        if not doubtful:
            return
        try:
            locked = await self._locked(doubtful)
            free = [each for each in doubtful if each.job.id not in locked]
            forgotten = await self._run(succeed(free)) if free else set()
        except BaseException:
            self._relaxed.doubtful += doubtful
            raise
        self._relaxed.doubtful += [each for each in doubtful if each.job.id in locked]
        if forgotten:
            self._facts.emit(SuccessesRepeated(len(forgotten)))

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        await self._repeat_doubtful()
        left: list[Outcome] = []
        if locked := await self._locked(outcomes):
            left = [outcome for outcome in outcomes if outcome.job.id in locked]
            outcomes = [outcome for outcome in outcomes if outcome.job.id not in locked]
        succeeded = [outcome for outcome in outcomes if type(outcome) is Succeeded]
        if succeeded:
            left += await self._settle(succeeded)
        if len(succeeded) < len(outcomes):
            others = [outcome for outcome in outcomes if not isinstance(outcome, Succeeded | AlreadySettled)]
            if others:
                left += await self._settle(others)
            self._tell((outcome for outcome in outcomes if isinstance(outcome, AlreadySettled)), {})
        jobs = list(map(_job, outcomes))
        if any(map(_limited, jobs)):
            self._leave_room([job for job in jobs if job.limited])
        if any(map(_batch, jobs)):
            self._left_batch()
        return left

    def _leave_room(self, jobs: Sequence[ClaimedJob]) -> None:
        """What waited for one of these may be taken now: mostly the next of its line, and there is no need to look for that.

        Where the room is that of a queue, or of all, other lines and lanes have as much right to it: only a look has them take
        turns.
        """
        if any(not job.in_line or self._claimer.is_limited(job.queue) for job in jobs):
            self.wake()
        elif jobs:
            self._claimer.return_to_lines({(job.queue, job.priority) for job in jobs})
            self._woken.set()

    async def hand_back(self, items: Sequence[ClaimedJob], begun: Sequence[ClaimedJob] = ()) -> Sequence[ClaimedJob]:
        # this may be among the last that is said, and nobody would hear of a crash any more
        self._relaxed.doubt()
        await self._repeat_doubtful()
        await self._claimer.give_back_unknown()
        outcomes: list[HandedBack | Lost] = [*map(HandedBack, items), *map(self._interrupted, begun)]
        locked = await self._locked(outcomes)
        outcomes = [outcome for outcome in outcomes if outcome.job.id not in locked]
        free = [outcome.job for outcome in outcomes]
        if free:
            settled = await self._run(settle(outcomes, self._channel))
            fates = {(each.id, each.token): each.fate for each in settled}
            if len(settled) < len(free):
                earlier = await self._run(find_settled(free))
                fates |= earlier
            self._tell((outcome for outcome in outcomes if (outcome.job.id, outcome.job.token) in fates), fates)
        for job in free:
            if job.losses:
                self._gate.leave(job)
        return [job for job in (*items, *begun) if job.id in locked]

    def _interrupted(self, job: ClaimedJob) -> HandedBack | Lost:
        """What becomes of one whose body was ended by the stop: it is begun again elsewhere, unless it may never be."""
        if not self._only_once(job.task):
            return HandedBack(job)
        said = "its worker stopped before it ended, and it may not begin again"
        return Lost(job, Failure("Interrupted", said, ""), 0.0, limit=1)

    async def _locked(self, outcomes: Sequence[Outcome]) -> set[JobId]:
        """Whose rows someone has locked. Asked for a while after that was felt, as it costs a statement."""
        if not outcomes or boottime() > self._wary_until:
            return set()
        jobs = [outcome.job for outcome in outcomes]
        locked = await self._run(find_locked([job.id for job in jobs]))
        if locked:
            self._wary_until = boottime() + _WARY_SECONDS
        if locked - self._seen_locked:
            self._facts.emit(JobsLocked(tuple(sorted(locked))))
        self._seen_locked = (self._seen_locked - {job.id for job in jobs}) | locked
        return locked

    async def _run(self, query: Query[T]) -> T:
        """Run what makes outcomes durable. Raises DatabaseUnavailable for all that may pass, and RotaError about the data."""
        try:
            return await self._settling.run(query)
        except DatabaseUnavailable as error:
            felt = isinstance(error.__cause__, psycopg.errors.LockNotAvailable)
            if felt or isinstance(error.__cause__, TimeoutError):  # no answer at all may be a lock as well
                self._wary_until = boottime() + _WARY_SECONDS
            raise
        except RotaError as error:
            if is_about_data(error.__cause__):
                raise
            # rights were taken, a table is gone: no fault of these jobs, so they wait until someone mends it
            raise DatabaseUnavailable(str(error)) from error

    async def _settle(self, outcomes: Sequence[Succeeded] | Sequence[Unsuccessful]) -> Sequence[Outcome]:
        """Make them durable and tell of them; returns those that cannot be written."""
        reach("settle.before")
        try:
            fates = await self._written(outcomes)
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            return await self._settle_apart(outcomes, error)
        reach("settle.after")
        if len(fates) < len(outcomes):
            unmatched = [outcome.job for outcome in outcomes if (outcome.job.id, outcome.job.token) not in fates]
            earlier = await self._run(find_settled(unmatched))
            for job in unmatched:
                if (job.id, job.token) not in earlier:
                    self._facts.emit(JobClaimLost(job.id, job.task, job.attempt, job.token, finished=True))
            fates |= earlier
        # most attempts succeed, and each fact costs: not when nobody listens
        if any(map(self._facts.wanted, (JobSucceeded, JobFailed, JobCancelled, JobSnoozed, JobLost))):
            self._tell((o for o in outcomes if (o.job.id, o.job.token) in fates), fates)
        return ()

    async def _written(self, outcomes: Sequence[Succeeded] | Sequence[Unsuccessful]) -> dict[Attempt, str]:
        """Write the outcomes down; returns where the job of each attempt that was still ours went."""
        if self._tracing is None:
            return await self._write(outcomes)
        with self._tracing.settling(outcomes):
            return await self._write(outcomes)

    async def _write(self, outcomes: Sequence[Succeeded] | Sequence[Unsuccessful]) -> dict[Attempt, str]:
        if isinstance(outcomes[0], Succeeded):
            # Behind a pooler a crash of the server does not end our sessions, and after a stop there is nobody to say them again.
            may_relax = self._settling.is_direct and not self._stopping()
            written = await self._run(succeed(outcomes, may_relax=may_relax))  # type: ignore[arg-type]
            if written.relaxed:
                self._relaxed.add(outcomes)  # type: ignore[arg-type]
            return dict.fromkeys(written, "succeeded")
        settled = await self._run(settle(outcomes, self._channel))  # type: ignore[arg-type]
        for outcome in outcomes:
            if isinstance(outcome, Retried | Snoozed):
                self._claimer.expect(outcome.pause)
        return {(each.id, each.token): each.fate for each in settled}

    async def _settle_apart(
        self, outcomes: Sequence[Succeeded] | Sequence[Unsuccessful], error: RotaError
    ) -> list[Outcome]:
        """PostgreSQL refused what one outcome of the batch holds: find that one, and let it fail alone."""
        if len(outcomes) > 1:
            return [left for outcome in outcomes for left in await self._settle([outcome])]  # type: ignore[arg-type]
        (outcome,) = outcomes
        job, said = outcome.job, f"what became of the attempt could not be stored: {error}"[:2000]
        if isinstance(outcome, Buried) and outcome.failure.type == _UNSTORABLE:
            # not even that can be written, so it is no fault of what the attempt said
            self._facts.emit(DatabaseLost(f"jobs: settle {job.id}", said))
            return [outcome]
        left = await self._settle([Buried(job, Failure(_UNSTORABLE, said, ""), outcome.seconds)])
        return [outcome] if left else []

    def _tell(self, outcomes: Iterable[Outcome], fates: Mapping[Attempt, str]) -> None:
        """Say what became of attempts, now that it is durable."""
        for outcome in outcomes:
            fact = self._fact(outcome, fates.get((outcome.job.id, outcome.job.token), "queued"))
            if fact is not None:
                self._facts.emit(fact)

    def _fact(self, outcome: Outcome, fate: str) -> Fact | None:
        job = outcome.job
        what = (job.id, job.task, job.queue, job.attempt)
        # here, as it costs more than most of what is done for a job, and mostly nobody listens
        waited = None if job.waited is None else round(job.waited, 6)
        if isinstance(outcome, Succeeded | AlreadySettled) or fate == "succeeded":
            # or its body has committed that in a child, and the child has died since, or was ended
            return JobSucceeded(*what, outcome.seconds, waited)
        if isinstance(outcome, HandedBack):
            return None
        if isinstance(outcome, Lost):
            return JobLost(*what, self._control().member, fate, outcome.failure.message)
        if isinstance(outcome, Cancelled) or fate == "cancelled":
            reason = outcome.reason if isinstance(outcome, Cancelled) else None
            return JobCancelled(*what, outcome.seconds, reason, waited)
        if isinstance(outcome, Snoozed):
            return JobSnoozed(*what, outcome.seconds, outcome.pause, waited)
        return JobFailed(*what, outcome.seconds, outcome.failure.error, outcome.pause, waited)
