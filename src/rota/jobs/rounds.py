"""What a worker does now and then beside its jobs: it takes over from members that ended, ends what nobody wants any more, lets
go of jobs that waited for others, takes turns with bulks, and keeps the history.

Each is a round that goes on until it is cancelled. It comes at once when something is told that makes it worth while, and by
itself after a pause, since messages may be lost and whoever was at it may have died. A database that is away ends no round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Set
from dataclasses import dataclass
from uuid import UUID

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import DatabaseLost, Facts, HistoryKept, JobCancelled, JobLost
from rota.jobs.bulk.turn import next_due, prune_bulks
from rota.jobs.bulk.turns import BulkTurns
from rota.jobs.cancel import end_cancelled, find_unwanted
from rota.jobs.chores import find_chores
from rota.jobs.claim import ClaimedJob, give_back_claim
from rota.jobs.close import close_batches, find_cancelled, prune_batches
from rota.jobs.execute import Executor
from rota.jobs.limit import mend_lines
from rota.jobs.outcome import Outcome
from rota.jobs.rescue import rescue
from rota.jobs.retention import Upkeep, keep_logs, upkeep
from rota.jobs.settle import Attempt, find_settled
from rota.jobs.source import JobSource
from rota.jobs.tally import keep_tallies
from rota.leases.control import Control
from rota.postgres.ask import run_apart
from rota.postgres.keys import lock_key
from rota.postgres.notify import wake_channel
from rota.postgres.pool import Database
from rota.postgres.session import Session
from rota.service.consume import Consumer
from rota.service.points import reach

__all__ = ["RoundSettings", "Rounds"]

# How soon batches are looked at again when none had ended: a large one loses jobs all the time.
_CLOSING_SECONDS = 0.02
# How long the reply to a COMMIT may take before a claim that is gone counts as taken away.
_SETTLING_SECONDS = 0.2
# After how long a worker that has just started counts what was done for the first time: its jobs come first, and that takes as much
# of a server as some thousand of them.
_FIRST_COUNT_SECONDS = (3.0, 6.0)
# Of so many members each does every round of history's upkeep; of more, about as many rounds are done by all together.
_UPKEEPERS = 10
# And so many in a row are left to others: some of those may be members that do none.
_MOST_LEFT = 5


@dataclass(frozen=True, slots=True)
class RoundSettings:
    rescue_every: float = 5.0  # the net under the rescue that follows at once when we end a member
    cancel_every: float = 5.0  # the net under the message that something we run is to end
    cancel_deaf: float = 0.5  # and while messages do not arrive
    upkeep_every: float = 60.0  # seconds between rounds of history's upkeep; one that finds nothing to do is cheap


class Rounds:
    """The rounds of one worker. They share the session of its claims, and belong to its event loop."""

    def __init__(
        self,
        database: Database,
        claiming: Session,
        source: JobSource,
        executor: Executor,
        consumer: Consumer[ClaimedJob, Outcome],
        *,
        control: Callable[[], Control],
        settings: RoundSettings,
        facts: Facts,
    ) -> None:
        self._database = database
        self._claiming = claiming
        self._source = source
        self._executor = executor
        self._consumer = consumer
        self._control = control
        self._settings = settings
        self._facts = facts
        self._unknown: Set[int] = set()
        self._bulk_turns = BulkTurns(database, facts, rests=lambda: consumer.paused)
        #: set when a member has ended, when something we run is to end, when a batch has lost a job, and when a bulk has begun
        self.ended = asyncio.Event()
        self.cancels = asyncio.Event()
        self.closings = asyncio.Event()
        self.bulks = asyncio.Event()

    async def rescue_lost(self) -> None:
        """Take over from ended members: at once when we ended one, and now and then, in case a rescuer died at it. What others may
        have left to do beside that is found then as well."""
        while True:
            if not self._control().alive:
                raise RotaError(
                    "The thread that keeps this process's lease has ended. Nothing can be claimed any more; restart it."
                )
            told = self.ended.is_set()
            self.ended.clear()
            with contextlib.suppress(DatabaseUnavailable):  # the claim says so already; the next round comes
                if told:
                    await self._rescue()
                if told or not self._seen_to():
                    await self._see_to_chores()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.rescue_every * random.uniform(0.8, 1.2)):
                    await self.ended.wait()

    def _seen_to(self) -> bool:
        """Whether someone has just seen that there are no chores, and that we hold nothing."""
        return self._consumer.idle and boottime() - self._source.glances.no_chores_at < self._settings.rescue_every

    async def _see_to_chores(self) -> None:
        member = self._control().member
        found = await self._claiming.run(find_chores(member))
        if found.lost:
            await self._rescue()
        await self._source.repeat_forgotten()
        await self._give_back_unknown(member, found.held)
        if found.cancelled:
            await self._claiming.run(end_cancelled())
        if found.closings:
            self.closings.set()
        if found.bulks:
            self.bulks.set()

    async def _rescue(self) -> None:
        channel = wake_channel(self._database.schema)
        while rescued := await self._claiming.run(rescue(channel)):
            for job in rescued:
                what = (job.id, job.task, job.queue, job.attempt)
                self._facts.emit(JobLost(*what, job.member, job.fate, f"its worker {job.member} was lost"))
            self._source.wake()
            self.closings.set()

    async def _give_back_unknown(self, member: UUID, held: Set[int]) -> None:
        """Give back what the database says we hold and we know nothing of.

        A claim that was cut off may have been committed after we asked what had become of it. Twice in a row, so that a claim
        whose reply is on its way is left alone.
        """
        unknown = held - {job.token for job in self._consumer.held()} - self._source.claims_under_way
        for token in unknown & self._unknown:
            await self._claiming.run(give_back_claim(member, token))
        self._unknown = unknown

    async def cancel_unwanted(self) -> None:
        """End what nobody wants any more: at once when told, and now and then, since messages may be lost."""
        while True:
            self.cancels.clear()
            with contextlib.suppress(DatabaseUnavailable):
                await self._look_for_unwanted()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._settings.cancel_every if self._control().hears else self._settings.cancel_deaf
                ):
                    await self.cancels.wait()

    async def _look_for_unwanted(self) -> None:
        void: set[Attempt] = set()
        # a void claim is looked at twice: the attempt may be settling itself, in a transaction of its body's
        while attempts := sorted(void) or self._executor.attempts():
            unwanted = await self._claiming.run(find_unwanted(attempts))
            taken_away = unwanted.void & void
            if taken_away:
                # a child may have settled its job by itself, and go on
                settled = await self._claiming.run(find_settled(self._executor.claims(taken_away)))
                taken_away = taken_away - settled.keys()
            for attempt in unwanted.cancelled | taken_away:
                self._executor.cancel(attempt)
            if void or not unwanted.void:
                return
            void = unwanted.void
            await asyncio.sleep(_SETTLING_SECONDS)

    async def watch_batches(self) -> None:
        """Let go of jobs that waited for others: at once when some of ours have settled or someone says that others are gone, and
        when a look for what is left to do finds some, since whoever settled the others may have died."""
        while True:
            self.closings.clear()
            try:
                if not await self.close_ended():
                    await asyncio.sleep(_CLOSING_SECONDS)
            except DatabaseUnavailable:
                pass  # the next round comes
            except RotaError as error:
                # rights are missing, the function is gone: jobs that wait for none run all the same
                self._facts.emit(DatabaseLost("jobs: close batches", str(error)))
            await self.closings.wait()

    async def close_ended(self) -> int:
        """Look at all batches that lost a job by now; returns how many had ended."""
        total = 0
        while True:
            reach("close.before")
            closed = await self._claiming.run(close_batches())
            reach("close.after")
            if closed.cancelled and self._facts.wanted(JobCancelled):
                for cancelled in await self._claiming.run(find_cancelled(closed.cancelled)):
                    self._facts.emit(cancelled)
            total += closed.ended
            if closed.ended:
                self._source.wake()
            if not closed.may_be_more:
                return total

    async def take_bulk_turns(self) -> None:
        """Go on with bulks: when we start, at once when one has begun, and when a look for what is left to do finds one that nobody
        is at."""
        told = ""
        while True:
            self.bulks.clear()
            try:
                await self._bulk_turns.hesitate()
                if not self._consumer.paused and await self._claiming.run(self._bulk_turns.wanted()):
                    await self._bulk_turns.take()
            except DatabaseUnavailable:
                pass  # whoever looks next finds it
            except RotaError as error:
                # rights are missing: jobs run all the same, and it is told once
                if told != str(error):
                    told = str(error)
                    self._facts.emit(DatabaseLost("jobs: bulks", told))
            await self.bulks.wait()

    async def end_bulks(self) -> None:
        """Take the turns that are due, for a worker that ends when there is nothing left."""
        pause = await self._claiming.run(next_due())
        if pause is not None and pause <= 0:
            await self._bulk_turns.take(patient=False)

    async def keep_history(self) -> None:
        """Make and drop partitions of the history now and then; who comes first does it for all.

        The first round comes at once: after some days off, or for a new class of retention, there is no partition yet for what
        is about to settle. If that is taken, whoever is at it may be a worker that was just cut off, after which nothing follows:
        so it comes again soon, once. Of many members, each leaves most of the later rounds to the others.
        """
        key = lock_key(self._database.schema, "upkeep", "history")
        hindered: list[str] = []
        is_first = is_owed = True
        left = 0
        counts_at = boottime() + random.uniform(*_FIRST_COUNT_SECONDS)
        while True:
            pause = random.uniform(0.8, 1.2) * self._settings.upkeep_every
            counts = boottime() >= counts_at
            if not counts:
                pause = min(pause, counts_at - boottime())
            if not is_owed and left < _MOST_LEFT and not self._is_for_us():
                left += 1
                await asyncio.sleep(pause)
                continue
            left = 0
            with contextlib.suppress(DatabaseUnavailable):  # whoever comes next does it
                done = await self._upkeep(key, counts=counts)
                is_owed = is_first if done is None else done.unfinished
                if done is not None:
                    if done.created or done.dropped or done.deleted or done.forgotten or done.hindered != hindered:
                        hindered = done.hindered
                        self._facts.emit(
                            HistoryKept(done.created, done.dropped, done.deleted + done.forgotten, tuple(hindered))
                        )
                    pause = 0.05 if done.unfinished else pause
                elif is_first:
                    pause = random.uniform(0.5, 1.5)
            is_first = False
            await asyncio.sleep(pause)

    def _is_for_us(self) -> bool:
        """Whether we do this round, of all that there are: by chance, so that nobody has to be chosen and nobody gone is missed."""
        return random.random() * self._control().live < _UPKEEPERS

    async def _upkeep(self, key: int, *, counts: bool) -> Upkeep | None:
        # a connection of its own, for a moment: neither claims nor the user's callers wait behind it
        session = Session(self._database.connector("upkeep"), self._database.schema)
        try:
            done = await session.run(upkeep(key))
            if done is not None:
                if (logs := await session.run(keep_logs(key))) is not None:
                    done += logs
                await session.run(prune_batches())
                await session.run(prune_bulks())
                await run_apart(session.run, mend_lines())
                if counts:
                    await self._count(session)
            return done
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            # rights are missing, the function is gone: jobs run all the same, and settled ones go to the default partition
            return Upkeep(0, 0, 0, 0, [f"upkeep was refused: {error}"], unfinished=False)
        finally:
            await session.close()

    async def _count(self, session: Session) -> None:
        """Pictures may be late, or missing where rights are: nothing else is, for that."""
        with contextlib.suppress(RotaError):
            while True:
                told = await session.run_steps(keep_tallies(), "count what was done")
                if told is None or not told.unfinished:
                    return
