"""One worker: claims jobs for its member, runs them, settles them, and takes over from members that ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from rota.clock import Deadline, Duration
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import Facts, HistoryKept, JobClaimLost, JobLost, StageStarted, WorkerStarted, WorkerStopped
from rota.failure import Failure
from rota.jobs.cancel import end_cancelled, find_unwanted
from rota.jobs.children import Children
from rota.jobs.claim import ClaimedJob, give_back_claim, held_tokens
from rota.jobs.claimer import Claimer
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.execute import Executor
from rota.jobs.limit import forget_lines
from rota.jobs.outcome import Lost, Outcome
from rota.jobs.rescue import rescue
from rota.jobs.retention import Upkeep, upkeep
from rota.jobs.running import Desk
from rota.jobs.settle import Attempt, find_settled
from rota.jobs.source import JobSource
from rota.jobs.suspects import Gate
from rota.jobs.tracing import Tracing
from rota.leases.control import Control, Reactions
from rota.postgres.keys import lock_key
from rota.postgres.notify import wake_channel
from rota.postgres.pool import Database
from rota.postgres.session import Session
from rota.service.consume import Consumer
from rota.service.stages import stopped

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
# A row that someone has locked must not hold up the outcomes of the others for long: not behind a pooler either.
_SETTLING = {"lock_timeout": "1s"}

# Beyond its deadline, what a drain may take to cancel bodies and to write down what it knows.
_AFTER_SECONDS = 5.0
# How long the reply to a COMMIT may take before a claim that is gone counts as taken away.
_SETTLING_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    queues: tuple[str, ...] | None = None  # None: whatever queue a job of a known task is in
    concurrency: int = 20  # bodies at once; throughput of short ones does not depend on it
    poll: float = 2.0  # seconds between looks while wake-ups arrive: what a lost one may cost
    poll_deaf: float = 0.5  # and while they do not
    rescue_every: float = 5.0  # the net under the rescue that follows at once when we end a member
    cancel_every: float = 5.0  # the net under the message that something we run is to end
    cancel_deaf: float = 0.5  # and while messages do not arrive
    upkeep_every: float = 60.0  # seconds between rounds of history's upkeep; one that finds nothing to do is cheap


class SchedulerLike(Protocol):
    """What the worker has to do with schedules: it passes messages on, and a drain gives out what is due."""

    def wake(self) -> None: ...

    async def catch_up(self) -> None: ...


class Companion(Protocol):
    """What works beside the jobs of a worker, and stops with them."""

    name: str

    async def failure(self) -> None:
        """Return never, or raise what the worker is to end for."""

    async def empty(self) -> Sequence[str]:
        """Return when there is nothing to do at this moment, with what hinders it from seeing whether there is."""

    async def drain(self, deadline: Deadline) -> None: ...

    def hurry(self) -> None: ...


class Worker:
    """Works from `run` until it is stopped. `reactions` belong into the control thread."""

    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, Task[..., Any]],
        settings: WorkerSettings,
        facts: Facts,
        codec: Codec | None = None,
        scheduler: SchedulerLike | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._database = database
        self._scheduler = scheduler
        self._tasks = tasks
        self._settings = settings
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._control: Control | None = None
        self._companions: Sequence[Companion] = ()
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._cancels = asyncio.Event()
        self._unknown: set[int] = set()
        self.reactions = Reactions(
            on_wake=self._on_wake,
            on_cancel=self._on_cancel,
            on_schedule=self._on_schedule,
            on_ended=self._on_ended,
            on_identity_lost=self._on_identity_lost,
        )
        claiming = Session(database.connector("claim", settings=_PLANNING), database.schema)
        self._settling = Session(
            database.connector("settle", settings=_PLANNING, everywhere=_SETTLING), database.schema
        )
        self._claiming = claiming
        self._gate = Gate(lambda: self._source.wake())
        self._source = JobSource(
            Claimer(
                claiming,
                queues=settings.queues,
                tasks={name: tasks[name].version for name in sorted(tasks)},
                limited=[name for name in sorted(tasks) if tasks[name].options.limit is not None],
                sooner=lambda: self._source.wake(),
            ),
            self._gate,
            self._settling,
            channel=wake_channel(database.schema),
            control=lambda: self.control,
            only_once=lambda task: tasks[task].options.retry.only_once,
            poll=lambda: settings.poll if self.control.hears else settings.poll_deaf,
            facts=facts,
            tracing=tracing,
        )
        self._apart = database.apart("job", size=settings.concurrency)
        # transactions are where the user wants them, and what bodies report goes another way
        reports, transactions = (self._apart, database) if database.is_users else (database, self._apart)
        desk = Desk(reports, codec, self._stop.is_set, transactions=transactions)
        self._children = Children(settings.concurrency, desk, lambda: database.dsn, facts)
        self._executor = Executor(
            tasks,
            threads=settings.concurrency,
            desk=desk,
            facts=facts,
            in_child=self._children.run,
            stuck=lambda job, outcome: self._consumer.abandon(job, outcome),
            occupied=lambda body: self._consumer.occupy(body),
            tracing=tracing,
        )
        self._consumer: Consumer[ClaimedJob, Outcome] = Consumer(
            self._source,
            self._run_job,
            self._executor.broken,
            concurrency=settings.concurrency,
            facts=facts,
            part="jobs",
        )

    @property
    def started(self) -> bool:
        return self._control is not None

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def finished(self) -> int:
        return self._consumer.finished

    @property
    def control(self) -> Control:
        assert self._control is not None, "a worker works for a member"
        return self._control

    async def run(self, control: Control, companions: Sequence[Companion], *, drain: bool, grace: Duration) -> None:
        """Work until stopped, or with `drain` until there is nothing left to claim; then stop in order.

        Raises LeadershipHeld or LeadershipLost for a singleton that wants its process to exit then. Cancelling it stops it without
        waiting for running bodies: they are cancelled and handed back.
        """
        self._control = control
        self._companions = companions
        self._facts.emit(
            WorkerStarted(control.member, self._settings.queues, tuple(sorted(self._tasks)), self._settings.concurrency)
        )
        self._consumer.start()
        self._facts.emit(StageStarted("jobs", 0.0))
        watchers = [
            asyncio.create_task(coroutine)
            for coroutine in (
                self._stop.wait(),
                self._consumer.failure(),
                *(companion.failure() for companion in companions),
                self._rescue(),
                self._cancel(),
                self._keep_history(),
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
            self._children.stopping()
            for watcher in watchers:
                watcher.cancel()
            await self._finished(watchers, Deadline.after(0 if hurried else grace))

    def stop(self) -> None:
        """Ask the worker to stop; asked again, it stops waiting for running bodies. Safe from any thread."""
        self._in_loop(self._stop_here)

    def _stop_here(self) -> None:
        if self._stop.is_set():
            self._hurry()
        self._stop.set()

    def _hurry(self) -> None:
        self._consumer.hurry()
        for companion in self._companions:
            companion.hurry()

    async def _finished(self, watchers: list[asyncio.Task[Any]], deadline: Deadline) -> None:
        """Finish, whatever happens meanwhile: who is cancelled is in a hurry, but must not leave things half done."""
        finishing = asyncio.ensure_future(self._finish(watchers, deadline))
        cancelled: asyncio.CancelledError | None = None
        while not finishing.done():
            try:
                await asyncio.shield(finishing)
            except asyncio.CancelledError as error:
                cancelled = error
                self._hurry()
        finishing.result()
        if cancelled is not None:
            raise cancelled

    async def _finish(self, watchers: list[asyncio.Task[Any]], deadline: Deadline) -> None:
        await asyncio.wait(watchers)
        # at the same time: nobody waits with giving up a term, or a claim, until a job has ended
        most = deadline.left + _AFTER_SECONDS
        await asyncio.gather(
            stopped(self._facts, "jobs", self._consumer.drain(deadline), within=most),
            *(stopped(self._facts, each.name, each.drain(deadline), within=most) for each in self._companions),
        )
        await stopped(self._facts, "connections of jobs", self._close())
        statements = self._claiming.statements + self._settling.statements
        self._facts.emit(WorkerStopped(self.control.member, self._consumer.finished, statements))

    async def _close(self) -> None:
        self._executor.close()
        await self._children.close()
        await self._apart.close()
        await self._claiming.close()
        await self._settling.close()

    async def _empty(self) -> None:
        """Return when a look from the start, made with nothing at hand, found nothing to claim.

        Raises RotaError when there may be something all the same, which a companion could not look for.
        """
        while True:
            await self._consumer.wait_idle()
            before = self._consumer.finished
            if self._scheduler is not None:
                await self._scheduler.catch_up()
            hindered = [why for companion in self._companions for why in await companion.empty()]
            await self._source.found_nothing()
            if self._consumer.idle and self._consumer.finished == before:
                break
        if hindered:
            raise RotaError("\n".join([*hindered, "All else is done. Mend that, and drain again."]))

    async def _rescue(self) -> None:
        """Take over from ended members: at once when we ended one, and now and then, in case a rescuer died at it."""
        channel = wake_channel(self._database.schema)
        while True:
            if not self.control.alive:
                raise RotaError(
                    "The thread that keeps this process's lease has ended. Nothing can be claimed any more; restart it."
                )
            self._ended.clear()
            with contextlib.suppress(DatabaseUnavailable):  # the claim says so already; the next round comes
                while rescued := await self._claiming.run(rescue(channel)):
                    for job in rescued:
                        what = (job.id, job.task, job.queue, job.attempt)
                        self._facts.emit(JobLost(*what, job.member, job.fate, f"its worker {job.member} was lost"))
                    self._source.wake()
                await self._give_back_unknown()
                await self._claiming.run(end_cancelled())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.rescue_every * random.uniform(0.8, 1.2)):
                    await self._ended.wait()

    async def _run_job(self, job: ClaimedJob) -> Outcome:
        if not job.losses:
            return await self._executor.run(job)
        with self._gate.passed(job):
            limit = self._tasks[job.task].options.retry.losses
            if limit is not None and job.losses >= limit:
                # whoever enqueued it did not know, as plain SQL does not
                return Lost(job, Failure("Lost", "it was lost as often as its task allows", ""), 0.0, limit)
            return await self._executor.run(job)

    async def _cancel(self) -> None:
        """End what nobody wants any more: at once when told, and now and then, since messages may be lost."""
        while True:
            self._cancels.clear()
            with contextlib.suppress(DatabaseUnavailable):
                await self._cancel_unwanted()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._settings.cancel_every if self.control.hears else self._settings.cancel_deaf
                ):
                    await self._cancels.wait()

    async def _cancel_unwanted(self) -> None:
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

    async def _keep_history(self) -> None:
        """Make and drop partitions of the history now and then; who comes first does it for all.

        The first round comes at once: after some days off, or for a new class of retention, there is no partition yet for what
        is about to settle.
        """
        key = lock_key(self._database.schema, "upkeep", "history")
        hindered: list[str] = []
        while True:
            pause = random.uniform(0.8, 1.2) * self._settings.upkeep_every
            with contextlib.suppress(DatabaseUnavailable):  # whoever comes next does it
                done = await self._upkeep(key)
                if done is not None:
                    if done.created or done.dropped or done.deleted or done.forgotten or done.hindered != hindered:
                        hindered = done.hindered
                        self._facts.emit(
                            HistoryKept(done.created, done.dropped, done.deleted + done.forgotten, tuple(hindered))
                        )
                    pause = 0.05 if done.unfinished else pause
            await asyncio.sleep(pause)

    async def _upkeep(self, key: int) -> Upkeep | None:
        # a connection of its own, for a moment: neither claims nor the user's callers wait behind it
        session = Session(self._database.connector("upkeep"), self._database.schema)
        try:
            done = await session.run(upkeep(key))
            await session.run(forget_lines())
            return done
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            # rights are missing, the function is gone: jobs run all the same, and settled ones go to the default partition
            return Upkeep(0, 0, 0, 0, [f"upkeep was refused: {error}"], unfinished=False)
        finally:
            await session.close()

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

    def _on_cancel(self) -> None:
        self._in_loop(self._cancels.set)

    def _on_schedule(self) -> None:
        if self._scheduler is not None:
            self._in_loop(self._scheduler.wake)

    def _on_ended(self, members: object) -> None:
        self._in_loop(self._ended.set)

    def _on_identity_lost(self, member: UUID) -> None:
        self._in_loop(self._drop)

    def _drop(self) -> None:
        for job in self._consumer.drop():
            self._facts.emit(JobClaimLost(job.id, job.task, job.attempt, job.token, finished=False))
            if job.losses:
                self._gate.leave(job)

    def _in_loop(self, call: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)
