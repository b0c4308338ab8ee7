"""One worker: claims jobs for its member, runs them, settles them, and takes over from members that ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rota.clock import Deadline, Duration
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import Facts, JobClaimLost, JobFailed, JobLost, JobSucceeded, WorkerStarted, WorkerStopped
from rota.jobs.claim import ClaimedJob, Claimer, give_back_claim, held_tokens
from rota.jobs.definition import Task
from rota.jobs.execute import Executor
from rota.jobs.rescue import prune_members, rescue
from rota.jobs.settle import (
    Buried,
    Failure,
    HandedBack,
    Outcome,
    Retried,
    Succeeded,
    bury,
    find_settled,
    hand_back,
    retry,
    succeed,
)
from rota.leases.control import Control, Reactions
from rota.postgres.connection import is_about_data
from rota.postgres.notify import wake_channel
from rota.postgres.pool import Database
from rota.postgres.session import Session
from rota.service.consume import Consumer

__all__ = ["Worker", "WorkerSettings"]

# The plans of these statements are known, and must not flip to a scan because statistics are stale or a batch is large.
_PLANNING = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    queues: tuple[str, ...] | None = None  # None: whatever queue a job of a known task is in
    concurrency: int = 20  # bodies at once; throughput of short ones does not depend on it
    poll: float = 2.0  # seconds between looks while wake-ups arrive: what a lost one may cost
    poll_deaf: float = 0.5  # and while they do not
    rescue_every: float = 5.0  # the net under the rescue that follows at once when we end a member


class Worker:
    """Works from `start` until it is stopped. `reactions` belong into the control thread."""

    def __init__(
        self, database: Database, tasks: Mapping[str, Task[..., Any]], settings: WorkerSettings, facts: Facts
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._settings = settings
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._control: Control | None = None
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._unknown: set[int] = set()
        self.reactions = Reactions(
            on_wake=self._on_wake, on_ended=self._on_ended, on_identity_lost=self._on_identity_lost
        )
        claiming = Session(database.connector("claim", settings=_PLANNING), database.schema)
        self._settling = Session(database.connector("settle", settings=_PLANNING), database.schema)
        self._claiming = claiming
        self._source = _JobSource(
            self,
            Claimer(claiming, queues=settings.queues, tasks=sorted(tasks)),
            self._settling,
            wake_channel(database.schema),
        )
        self._executor = Executor(
            tasks, threads=settings.concurrency, scope=database.schema, stopping=self._stop.is_set
        )
        self._consumer: Consumer[ClaimedJob, Outcome] = Consumer(
            self._source,
            self._executor.run,
            self._executor.broken,
            concurrency=settings.concurrency,
            facts=facts,
            part="jobs",
        )

    @property
    def control(self) -> Control:
        assert self._control is not None, "a worker works for a member"
        return self._control

    async def run(self, control: Control, *, drain: bool, grace: Duration) -> None:
        """Work until stopped, or with `drain` until there is nothing left to claim; then stop in order.

        Cancelling it stops it without waiting for running bodies: they are cancelled and handed back.
        """
        self._control = control
        self._facts.emit(
            WorkerStarted(control.member, self._settings.queues, tuple(sorted(self._tasks)), self._settings.concurrency)
        )
        self._consumer.start()
        watchers = [
            asyncio.create_task(coroutine)
            for coroutine in (
                self._stop.wait(),
                self._consumer.failure(),
                self._rescue(),
                *([self._empty()] if drain else []),
            )
        ]
        hurried = False
        try:
            done, _ = await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
            for watcher in done:
                watcher.result()
        except asyncio.CancelledError:
            hurried = True
            raise
        finally:
            self._stop.set()
            for watcher in watchers:
                watcher.cancel()
            await asyncio.wait(watchers)
            await self._finished(Deadline.after(0 if hurried else grace))

    def stop(self) -> None:
        """Ask the worker to stop; asked again, it stops waiting for running bodies. Safe from any thread."""
        self._in_loop(self._stop_here)

    def _stop_here(self) -> None:
        if self._stop.is_set():
            self._consumer.hurry()
        self._stop.set()

    async def _finished(self, deadline: Deadline) -> None:
        """Finish, whatever happens meanwhile: who is cancelled is in a hurry, but must not leave things half done."""
        finishing = asyncio.ensure_future(self._finish(deadline))
        cancelled: asyncio.CancelledError | None = None
        while not finishing.done():
            try:
                await asyncio.shield(finishing)
            except asyncio.CancelledError as error:
                cancelled = error
                self._consumer.hurry()
        finishing.result()
        if cancelled is not None:
            raise cancelled

    async def _finish(self, deadline: Deadline) -> None:
        await self._consumer.drain(deadline)
        self._executor.close()
        await self._claiming.close()
        await self._settling.close()
        statements = self._claiming.statements + self._settling.statements
        self._facts.emit(WorkerStopped(self.control.member, self._consumer.finished, statements))

    async def _empty(self) -> None:
        """Return when a look from the start, made with nothing at hand, found nothing to claim."""
        while True:
            await self._consumer.wait_idle()
            before = self._consumer.finished
            await self._source.found_nothing()
            if self._consumer.idle and self._consumer.finished == before:
                return

    async def _rescue(self) -> None:
        """Take over from ended members: at once when we ended one, and now and then, in case a rescuer died at it."""
        channel = wake_channel(self._database.schema)
        while True:
            if not self.control.alive:
                raise RotaError(
                    "The thread that keeps this process's lease has ended. Nothing can be claimed any more; restart it."
                )
            with contextlib.suppress(DatabaseUnavailable):  # the claim says so already; the next round comes
                while rescued := await self._claiming.run(rescue(channel)):
                    for job in rescued:
                        self._facts.emit(JobLost(job.id, job.task, job.queue, job.attempt, job.member, job.dead))
                    self._source.wake()
                await self._give_back_unknown()
                if random.random() < 0.01:
                    await self._claiming.run(prune_members())
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.rescue_every * random.uniform(0.8, 1.2)):
                    await self._ended.wait()

    async def _give_back_unknown(self) -> None:
        """Give back what the database says we hold and we know nothing of.

        A claim that was cut off may have been committed after we asked what had become of it. Twice in a row, so that a claim
        whose reply is on its way is left alone.
        """
        member = self.control.member
        held = await self._claiming.run(held_tokens(member))
        unknown = held - {job.token for job in self._consumer.held()} - self._source.claims_under_way
        for token in unknown & self._unknown:
            await self._claiming.run(give_back_claim(member, token))
        self._unknown = unknown

    # What the control thread says, handed over to the loop. A loop that has closed has nothing left to react.

    def _on_wake(self, queue: str) -> None:
        if self._settings.queues is None or queue in self._settings.queues:
            self._in_loop(self._source.wake)

    def _on_ended(self, members: object) -> None:
        self._in_loop(self._ended.set)

    def _on_identity_lost(self, member: UUID) -> None:
        self._in_loop(self._drop)

    def _drop(self) -> None:
        for job in self._consumer.drop():
            self.claim_lost(job, finished=False)

    def settled(self, outcomes: Iterable[Outcome]) -> None:
        """Say what became of attempts, once it is durable."""
        if not self._facts.wanted(JobSucceeded) and not self._facts.wanted(JobFailed):
            return
        for outcome in outcomes:
            job = outcome.job
            if isinstance(outcome, Succeeded):
                self._facts.emit(JobSucceeded(job.id, job.task, job.queue, job.attempt, outcome.seconds))
            elif isinstance(outcome, Retried | Buried):
                error, pause = outcome.failure.error, outcome.pause if isinstance(outcome, Retried) else None
                self._facts.emit(JobFailed(job.id, job.task, job.queue, job.attempt, outcome.seconds, error, pause))

    def claim_lost(self, job: ClaimedJob, *, finished: bool) -> None:
        self._facts.emit(JobClaimLost(job.id, job.task, job.attempt, job.token, finished))

    def _in_loop(self, call: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    @property
    def poll(self) -> float:
        return self._settings.poll if self.control.hears else self._settings.poll_deaf


class _JobSource:
    """Jobs as a source of work for the consumer."""

    def __init__(self, worker: Worker, claimer: Claimer, settling: Session, channel: str) -> None:
        self._worker = worker
        self._claimer = claimer
        self._settling = settling
        self._channel = channel
        self._woken = asyncio.Event()
        self._pause = 0.0
        self._looks_begun = 0
        self._last_short_look = 0
        self._short_look = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def found_nothing(self) -> None:
        """Return after a claim that begins from now on, walks from the start, and finds less than it could take."""
        begun = self._looks_begun
        self.wake()
        while self._last_short_look <= begun:
            self._short_look.clear()
            await self._short_look.wait()

    @property
    def claims_under_way(self) -> set[int]:
        return self._claimer.under_way

    def may_start(self) -> bool:
        return self._worker.control.may_act

    async def claim(self, limit: int) -> Sequence[ClaimedJob]:
        control = self._worker.control
        if not control.may_act:
            return []
        if self._woken.is_set():
            self._woken.clear()
            self._claimer.look_from_start()
        self._looks_begun += 1
        look = self._looks_begun
        member = control.member
        jobs = await self._claimer.claim(
            limit, member, still_valid=lambda: control.may_act and control.member == member
        )
        if jobs:
            self._pause = 0.0
        if len(jobs) < limit:
            self._last_short_look = look
            self._short_look.set()
        return jobs

    async def wait_for_more(self) -> None:
        if not self._worker.control.may_act:
            # the control thread is about to be back; nobody wakes us for that
            await asyncio.sleep(0.05)
            return
        # Wake-ups may be coalesced, so look again soon after the last work, then ever less often.
        self._pause = min(self._worker.poll, self._pause * 4 or 0.005)
        pause = self._pause
        if self._claimer.next_due_in is not None:
            pause = min(pause, self._claimer.next_due_in)
        try:
            async with asyncio.timeout(pause):
                await self._woken.wait()
            self._pause = 0.0
        except TimeoutError:
            self._claimer.look_from_start()

    async def settle(self, outcomes: Sequence[Outcome]) -> None:
        for kind, write in (
            (Succeeded, succeed),
            (Retried, retry),
            (Buried, bury),
        ):
            some = [outcome for outcome in outcomes if isinstance(outcome, kind)]
            if some:
                await self._settle(some, write)

    async def hand_back(self, items: Sequence[ClaimedJob]) -> None:
        await self._claimer.give_back_unknown()
        if items:
            await self._settling.run(hand_back([HandedBack(job) for job in items], self._channel))

    async def _settle(self, outcomes: list[Any], write: Any) -> None:
        try:
            settled = await self._settling.run(write(outcomes))
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            if is_about_data(error.__cause__):
                await self._settle_apart(outcomes, write, error)
                return
            # rights were taken, a table is gone: no fault of these jobs, so they wait until someone mends it
            raise DatabaseUnavailable(str(error)) from error
        unmatched = [outcome.job for outcome in outcomes if (outcome.job.id, outcome.job.token) not in settled]
        if unmatched:
            settled |= await self._settling.run(find_settled(unmatched))
            for job in unmatched:
                if (job.id, job.token) not in settled:
                    self._worker.claim_lost(job, finished=True)
        self._worker.settled(outcome for outcome in outcomes if (outcome.job.id, outcome.job.token) in settled)

    async def _settle_apart(self, outcomes: list[Any], write: Any, error: RotaError) -> None:
        """PostgreSQL refused what one outcome of the batch holds: find that one, and let it fail alone."""
        if len(outcomes) > 1:
            for outcome in outcomes:
                await self._settle([outcome], write)
            return
        if isinstance(outcomes[0], Buried):
            raise error
        failure = Failure("InvalidResult", f"what became of the attempt could not be stored: {error}"[:2000], "")
        await self._settle([Buried(outcomes[0].job, failure, outcomes[0].seconds)], bury)
