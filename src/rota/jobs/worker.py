"""One worker: claims jobs for its member, runs them, settles them, and takes over from members that ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from rota.clock import Deadline, Duration
from rota.errors import RotaError
from rota.facts import Facts, JobClaimLost, StageStarted, WorkerStarted, WorkerStopped
from rota.failure import Failure
from rota.jobs.children import Children
from rota.jobs.claim import ClaimedJob
from rota.jobs.claimer import Claimer
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.execute import Executor, known_secrets_of
from rota.jobs.logs.capture import capturing
from rota.jobs.logs.level import OFF
from rota.jobs.logs.notes import Notes
from rota.jobs.logs.write import LogWriter
from rota.jobs.middleware import Middleware
from rota.jobs.outcome import Lost, Outcome
from rota.jobs.rounds import Rounds, RoundSettings
from rota.jobs.running import Desk
from rota.jobs.source import JobSource
from rota.jobs.suspects import Gate
from rota.jobs.tracing import Tracing
from rota.leases.control import Control, Reactions
from rota.postgres.listening import Listener
from rota.postgres.notify import BULK, wake_channel, wake_message
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


@dataclass(frozen=True, slots=True)
class WorkerSettings(RoundSettings):
    queues: tuple[str, ...] | None = None  # None: whatever queue a job of a known task is in
    concurrency: int = 20  # bodies at once; throughput of short ones does not depend on it
    poll: float = 2.0  # seconds between looks while wake-ups arrive: what a lost one may cost
    poll_deaf: float = 0.5  # and while they do not


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

    def pause(self) -> None: ...

    def resume(self) -> None: ...


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
        middleware: Middleware | None = None,
        logs: int = OFF,
    ) -> None:
        self._scheduler = scheduler
        self._tasks = tasks
        self._settings = settings
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        self._control: Control | None = None
        self._companions: Sequence[Companion] = ()
        self._stop = asyncio.Event()
        self._capturing = contextlib.ExitStack()
        self.reactions = Reactions(
            on_cancel=self._on_cancel,
            on_schedule=self._on_schedule,
            on_ended=self._on_ended,
            on_identity_lost=self._on_identity_lost,
            on_beat=lambda control: self._source.glances.come(control),
            at_ease=lambda: self._consumer.idle and (self._source.waits or self._consumer.paused),
        )
        # the session that claims hears of what there is to claim: nobody stands in between
        claiming = Session(
            database.connector("claim", settings=_PLANNING),
            database.schema,
            listener=Listener(wake_channel(database.schema), self.heard, ended=lambda: self._source.wake()),
        )
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
            holds_nothing=lambda: self._consumer.idle,
            poll=lambda: settings.poll if self.control.hears else settings.poll_deaf,
            facts=facts,
            tracing=tracing,
            left_batch=lambda: self._rounds.closings.set(),
            stopping=self._stop.is_set,
        )
        self._apart = database.apart("job", size=settings.concurrency)
        # transactions are where the user wants them, and what bodies report goes another way
        reports, transactions = (self._apart, database) if database.is_users else (database, self._apart)
        self._log_writer = LogWriter(reports, facts)
        levels = {name: logs if task.options.logs is None else task.options.logs for name, task in tasks.items()}
        self._notes = (
            None
            if all(level == OFF for level in levels.values())
            else Notes(
                levels,
                lambda job: known_secrets_of(tasks[job.task], job, codec),
                lambda: self._in_loop(self._log_writer.woken.set),
            )
        )
        desk = Desk(reports, codec, self._stop.is_set, transactions=transactions, notes=self._notes)
        self._children = Children(settings.concurrency, desk, lambda: database.dsn, facts, self._notes)
        self._executor = Executor(
            tasks,
            threads=settings.concurrency,
            desk=desk,
            facts=facts,
            in_child=self._children.run,
            stuck=lambda job, outcome: self._consumer.abandon(job, outcome),
            occupied=lambda body: self._consumer.occupy(body),
            tracing=tracing,
            middleware=middleware,
        )
        self._consumer: Consumer[ClaimedJob, Outcome] = Consumer(
            self._source,
            self._run_job,
            self._executor.broken,
            concurrency=settings.concurrency,
            facts=facts,
            part="jobs",
        )
        self._rounds = Rounds(
            database,
            claiming,
            self._source,
            self._executor,
            self._consumer,
            control=lambda: self.control,
            settings=settings,
            facts=facts,
        )

    @property
    def started(self) -> bool:
        return self._control is not None

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def paused(self) -> bool:
        return self._consumer.paused

    @property
    def finished(self) -> int:
        return self._consumer.finished

    @property
    def slots(self) -> int:
        return self._settings.concurrency

    @property
    def running(self) -> int:
        return self._consumer.running

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
        if self._notes is not None:
            self._capturing.enter_context(capturing())
            self._log_writer.start(self._notes)
        self._consumer.start()
        self._facts.emit(StageStarted("jobs", 0.0))
        watchers = [
            asyncio.create_task(coroutine)
            for coroutine in (
                self._stop.wait(),
                self._consumer.failure(),
                *(companion.failure() for companion in companions),
                self._rounds.rescue_lost(),
                self._rounds.cancel_unwanted(),
                self._rounds.watch_batches(),
                self._rounds.keep_history(),
                # one that ends when there is nothing left takes these turns last, and would otherwise not wait for its own
                self._empty() if drain else self._rounds.take_bulk_turns(),
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
            control.show_draining()
            self._children.stopping()
            for watcher in watchers:
                watcher.cancel()
            await self._finished(watchers, Deadline.after(0 if hurried else grace))

    def pause(self) -> None:
        """Take on nothing new, until `resume`: what runs goes on, and what it leads is led by others. Harmless the second time."""
        if not self.paused and not self.stopping:
            self._consumer.pause()
            for companion in self._companions:
                companion.pause()
            self.control.show_quiet(True)

    def resume(self) -> None:
        if self.paused and not self.stopping:
            self._consumer.resume()
            for companion in self._companions:
                companion.resume()
            self.control.show_quiet(False)

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
        await self._log_writer.close()
        self._capturing.close()
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
            await self._rounds.close_ended()
            await self._rounds.end_bulks()
            await self._source.found_nothing()
            if self._consumer.idle and self._consumer.finished == before:
                break
        if hindered:
            raise RotaError("\n".join([*hindered, "All else is done. Mend that, and drain again."]))

    def _run_job(self, job: ClaimedJob) -> Coroutine[Any, Any, Outcome]:
        return self._run_suspect(job) if job.losses else self._executor.run(job)

    async def _run_suspect(self, job: ClaimedJob) -> Outcome:
        with self._gate.passed(job):
            limit = self._tasks[job.task].options.retry.losses
            if limit is not None and job.losses >= limit:
                # whoever enqueued it did not know, as plain SQL does not
                return Lost(job, Failure("Lost", "it was lost as often as its task allows", ""), 0.0, limit)
            return await self._executor.run(job)

    def heard(self, said: str) -> None:
        """What someone says where workers listen."""
        if said == BULK:
            self._rounds.bulks.set()
            return
        queue, job = wake_message(said)
        # no name: something was said about all queues together
        if not queue or self._settings.queues is None or queue in self._settings.queues:
            self._source.wake(job)
        if not queue:
            # or a job that others wait for was taken away
            self._rounds.closings.set()

    # What the control thread says, handed over to the loop. A loop that has closed has nothing left to react.

    def _on_cancel(self) -> None:
        self._in_loop(self._rounds.cancels.set)

    def _on_schedule(self) -> None:
        if self._scheduler is not None:
            self._in_loop(self._scheduler.wake)

    def _on_ended(self, members: object) -> None:
        self._in_loop(self._rounds.ended.set)

    def _on_identity_lost(self, member: UUID) -> None:
        self._in_loop(self._drop)

    def _drop(self) -> None:
        for job in self._consumer.drop():
            self._facts.emit(JobClaimLost(job.id, job.task, job.attempt, job.token, finished=False))
            if job.losses:
                self._gate.leave(job)

    def _in_loop(self, call: Any, *args: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)
