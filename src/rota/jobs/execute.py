"""Running the body of a job: async on the loop, sync in a thread, or in a process of its own. Whatever happens in it becomes
an outcome.

A body that outstays its timeout, or ignores its cancellation, cannot always be ended: a thread cannot be, and a coroutine
may refuse. Its attempt is settled all the same, which voids its token, so nothing it still does counts; but the slot it
occupies stays taken until it really ends, because it is.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from rota.blot import blotted
from rota.errors import InvalidArguments, ResultsMissing, RotaError
from rota.facts import Facts, JobRaisedAfterSuccess, JobStuck
from rota.failure import describe
from rota.jobs.claim import ClaimedJob
from rota.jobs.codec import Codec, encoded
from rota.jobs.definition import Task
from rota.jobs.inputs import payload_of
from rota.jobs.middleware import Middleware
from rota.jobs.outcome import (
    AlreadySettled,
    Buried,
    Cancelled,
    Discard,
    HandedBack,
    Outcome,
    Retried,
    Snooze,
    Snoozed,
    Succeeded,
)
from rota.jobs.running import Desk, Held, Stopped, running
from rota.jobs.settle import Attempt
from rota.jobs.threads import Threads
from rota.jobs.tracing import Processing, Tracing
from rota.service.filling import refuse_overridden
from rota.service.points import reach

__all__ = ["Executor", "call_of", "counted", "known_secrets_of", "outcome_of", "secrets_of", "success_of", "timed_out"]

_new = tuple.__new__

# How long a coroutine that was cancelled may take to end before it counts as stuck.
_PATIENCE_SECONDS = 5.0


class Executor:
    """Runs bodies for one worker. `occupied` is told of what goes on after its attempt was settled, and how to wait for it."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        *,
        threads: int,
        desk: Desk,
        facts: Facts,
        in_child: Callable[[Task[..., Any], ClaimedJob, Held, str | None], Awaitable[Outcome]],
        stuck: Callable[[ClaimedJob, Outcome], None],
        occupied: Callable[[Future[Any]], None],
        tracing: Tracing | None = None,
        middleware: Middleware | None = None,
    ) -> None:
        self._tasks = tasks
        self._middleware = middleware
        self._desk = desk
        self._facts = facts
        self._stuck = stuck
        self._in_child = in_child
        self._occupied = occupied
        self._tracing = tracing
        self._threads = Threads(threads, asyncio.get_running_loop())
        self._running: dict[Attempt, Held] = {}
        self._timers: dict[Attempt, list[asyncio.TimerHandle]] = {}

    def run(self, job: ClaimedJob) -> Coroutine[Any, Any, Outcome]:
        """Run the body to its end. Its cancellation is raised: by the worker, or see `broken`.

        A body whose transaction has committed has succeeded, however it ends.
        """
        # no coroutine around the one that does it: each costs as much as a small body
        return self._run(job) if self._tracing is None else self._run_traced(job, self._tracing)

    async def _run_traced(self, job: ClaimedJob, tracing: Tracing) -> Outcome:
        with tracing.processing(job) as processing:
            outcome = await self._run(job, processing)
            processing.ended(outcome)
            return outcome

    async def _run(self, job: ClaimedJob, traced: Processing | None = None) -> Outcome:
        task = self._tasks[job.task]
        attempt = Held(job, task.signature, self._desk)
        # each job runs in a task of its own, and so in a context of its own: there is nothing to reset
        running.set(attempt)
        place = (job.id, job.token)
        attempt.task = asyncio.current_task()
        self._running[place] = attempt
        try:
            if task.options.executor == "process":
                refuse_overridden(task.wants, f"Task {task.name!r}")
                return await self._in_child(task, job, attempt, None if traced is None else traced.context)
            reach("run.before")
            if self._middleware is not None and self._middleware.around_run:
                value = await self._middleware.run(attempt.job, lambda: self._call(task, job, attempt))
            elif task.is_async and task.options.timeout is None:
                args, kwargs = call_of(task, job, self._desk)
                value = await task.function(*args, **kwargs)
            else:
                value = await self._call(task, job, attempt)
            reach("run.after")
            if value is None and attempt.told is None and not attempt.settled:
                # what most of them come to, and past the constructor, which takes its values by name
                return _new(Succeeded, (job, None, perf_counter() - attempt.started))
            return self._returned(task, attempt, job, value)
        except BaseException as error:
            outcome = self._raised(task, attempt, job, error)
            if outcome is None:
                raise
            return outcome
        finally:
            del self._running[place]
            if self._timers:
                for timer in self._timers.pop(place, ()):
                    timer.cancel()

    def attempts(self) -> list[Attempt]:
        """The attempts that run here and are not settled."""
        return [place for place, attempt in self._running.items() if not attempt.settled]

    def claims(self, places: Iterable[Attempt]) -> list[ClaimedJob]:
        """What these attempts, as far as they run here, hold or held."""
        return [self._running[place].claim for place in places if place in self._running]

    def cancel(self, place: Attempt) -> None:
        """End this attempt, if it runs here: a coroutine is cancelled, a thread is told."""
        attempt = self._running.get(place)
        if attempt is None or attempt.settled or attempt.told == "cancelled":
            return
        task = attempt.task
        attempt.tell("cancelled")
        if task is not None and self._tasks[attempt.claim.task].options.executor == "process":
            task.cancel()  # it ends its child, and can always do so
        elif task is not None and self._tasks[attempt.claim.task].is_async:
            task.cancel()
            self._give_up_later(_PATIENCE_SECONDS, place, lambda job: Cancelled(job, attempt.seconds))

    def broken(self, job: ClaimedJob, error: BaseException) -> Outcome:
        """The outcome of a body that cancelled itself, or that something went wrong around."""
        return outcome_of(self._tasks[job.task], job, counted(job.task, error), 0.0, self._desk.codec)

    def close(self) -> None:
        """Take no more. A thread that is in a body that cannot be stopped goes on by itself."""
        self._threads.close()

    def _call(self, task: Task[..., Any], job: ClaimedJob, attempt: Held) -> Coroutine[Any, Any, Any]:
        return (self._call_here if task.is_async else self._call_in_thread)(task, job, attempt)

    async def _call_here(self, task: Task[..., Any], job: ClaimedJob, attempt: Held) -> Any:
        timeout = task.options.timeout
        args, kwargs = call_of(task, job, self._desk)
        if timeout is not None:
            self._give_up_later(
                timeout + _PATIENCE_SECONDS,
                (job.id, job.token),
                lambda job: outcome_of(task, job, timed_out(timeout), attempt.seconds),
            )
        return await _within(timeout, task.function(*args, **kwargs))

    async def _call_in_thread(self, task: Task[..., Any], job: ClaimedJob, attempt: Held) -> Any:
        context = contextvars.copy_context()
        timeout = task.options.timeout
        loop, begun = asyncio.get_running_loop(), None if timeout is None else asyncio.Event()

        def body() -> Any:
            if begun is not None:
                loop.call_soon_threadsafe(begun.set)
            args, kwargs = call_of(task, job, self._desk)
            try:
                return context.run(task.function, *args, **kwargs)
            except StopIteration as error:
                # no future can hold it, and whoever waits would wait for ever
                raise RuntimeError("the body raised StopIteration") from error

        call = self._threads.call(body)
        try:
            if begun is None:
                return await call.result
            await begun.wait()  # waiting for a thread is not the body's time
            return await _within(timeout, call.result)
        except (TimeoutError, asyncio.CancelledError):
            if not call.ended and not call.cancel():
                attempt.tell("timed out")
                self._facts.emit(JobStuck(job.id, job.task, job.attempt))
                self._occupied(call.outlives())
            raise

    def _give_up_later(self, seconds: float, place: Attempt, outcome: Callable[[ClaimedJob], Outcome]) -> None:
        """Settle a coroutine that does not end although it was cancelled; it keeps its slot."""

        def give_up() -> None:
            attempt = self._running.get(place)
            if attempt is not None and attempt.task is not None:
                job = attempt.claim
                self._facts.emit(JobStuck(job.id, job.task, job.attempt))
                self._stuck(job, AlreadySettled(job, attempt.seconds) if attempt.settled else outcome(job))

        timer = asyncio.get_running_loop().call_later(seconds, give_up)
        self._timers.setdefault(place, []).append(timer)

    def _returned(self, task: Task[..., Any], attempt: Held, job: ClaimedJob, value: Any) -> Outcome:
        if attempt.told == "cancelled" and not attempt.settled:
            # it was told, and ended early or not: whoever cancelled it gets what they asked for
            return Cancelled(job, attempt.seconds)
        return success_of(task, attempt, value, self._desk)

    def _raised(self, task: Task[..., Any], attempt: Held, job: ClaimedJob, error: BaseException) -> Outcome | None:
        """What becomes of an attempt that raised; None if that is not to be judged here."""
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            return None
        if attempt.settled:
            if not isinstance(error, asyncio.CancelledError):
                told = describe(error, secrets_of(task, job, self._desk.codec)).error
                self._facts.emit(JobRaisedAfterSuccess(job.id, job.task, job.attempt, told or error))
            return AlreadySettled(job, attempt.seconds)
        if attempt.told == "cancelled":
            return Cancelled(job, attempt.seconds)
        if isinstance(error, asyncio.CancelledError):
            return None
        return outcome_of(task, job, counted(task.name, error), attempt.seconds, self._desk.codec)


def call_of(task: Task[..., Any], job: ClaimedJob, desk: Desk) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments to call the body with. Raises InvalidArguments for a payload that is not one of this task's."""
    payload = payload_of(job, desk.codec)
    return task.signature.decode(payload if job.version == task.version else task.upgraded(payload, job.version))


def success_of(task: Task[..., Any], attempt: Held, value: Any, desk: Desk) -> Succeeded | AlreadySettled:
    """What becomes of an attempt that returned. Raises InvalidArguments for a result that cannot be stored."""
    if attempt.settled:
        return AlreadySettled(attempt.claim, attempt.seconds)
    result = task.signature.encode_result(value)
    if result is not None and desk.codec is not None:
        result = encoded(desk.codec, result, f"The result of task {task.name!r} was not stored")
    return Succeeded(attempt.claim, result, attempt.seconds)


def counted(task: str, error: BaseException) -> BaseException:
    """The error to judge an attempt by: what would end a process, or a task of the event loop, ends only this attempt."""
    if isinstance(error, Exception | Stopped):
        return error
    ended = RotaError(f"The body of {task!r} raised {error!r}, which counts as a failure of the attempt.")
    ended.__cause__ = error
    return ended


def outcome_of(
    task: Task[..., Any], job: ClaimedJob, error: BaseException, took: float, codec: Codec | None = None
) -> Outcome:
    """What becomes of an attempt that raised."""
    if isinstance(error, Stopped):
        return HandedBack(job, took)
    if isinstance(error, Snooze):
        return Snoozed(job, took, error.pause)
    if isinstance(error, Discard):
        return Cancelled(job, took, blotted(error.reason, secrets_of(task, job, codec) or ()))
    try:
        # what is gone does not come back
        retries = not isinstance(error, ResultsMissing)
        pause = task.options.retry.pause(job.attempt - job.losses, error) if retries else None
    except Exception as broken:  # the user's backoff function; its fault is told along with the body's
        broken.__cause__ = error
        error, pause = broken, None
    failure = describe(error, secrets_of(task, job, codec))
    return Buried(job, failure, took) if pause is None else Retried(job, failure, took, pause)


def secrets_of(task: Task[..., Any], job: ClaimedJob, codec: Codec | None) -> list[str] | None:
    """What must not show up in what is told of the job; None for a task that redacts nothing."""
    try:
        return known_secrets_of(task, job, codec)
    except InvalidArguments:  # a payload that cannot be read is what the error is about
        return []


def known_secrets_of(task: Task[..., Any], job: ClaimedJob, codec: Codec | None) -> list[str] | None:
    """The same. Raises InvalidArguments where the payload cannot be read, so that nobody knows what they are."""
    return task.secrets_in(payload_of(job, codec), job.version) if task.options.redact else None


def timed_out(timeout: float) -> TimeoutError:
    return TimeoutError(f"the attempt took longer than its timeout of {timeout:g} s")


async def _within(timeout: float | None, body: Awaitable[Any]) -> Any:
    if timeout is None:
        return await body
    try:
        async with asyncio.timeout(timeout) as limit:
            return await body
    except TimeoutError as error:
        if not limit.expired():
            raise  # one of the body's own
        raise timed_out(timeout) from error.__context__
