"""Running the body of a job: async on the loop, sync in a thread. Whatever happens in it becomes an outcome."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextvars
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from rota.errors import RotaError
from rota.jobs.claim import ClaimedJob
from rota.jobs.conversion.plain import read_json
from rota.jobs.definition import Task
from rota.jobs.job import RunningJob, running
from rota.jobs.settle import MESSAGE_LIMIT, TRACE_LIMIT, Buried, Failure, Outcome, Retried, Succeeded

__all__ = ["Executor"]

_OUR_FILES = (__file__, concurrent.futures.thread.__file__, asyncio.timeouts.__file__)


class Executor:
    """Runs bodies for one worker."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        *,
        threads: int,
        scope: str,
        stopping: Callable[[], bool],
    ) -> None:
        self._tasks = tasks
        self._scope = scope
        self._stopping = stopping
        self._count = threads
        self._threads = self._new_threads()

    async def run(self, job: ClaimedJob) -> Outcome:
        """Run the body to its end. What is no Exception is raised: the worker cancelled it, or see `broken`."""
        task = self._tasks[job.task]
        started = time.perf_counter()
        # each job runs in a task of its own, and so in a context of its own: there is nothing to reset
        running.set(RunningJob(job, self._scope, self._stopping))
        try:
            value = await self._call(task, job)
            result = task.signature.encode_result(value)
        except Exception as error:
            return self._failed(task, job, error, time.perf_counter() - started)
        return Succeeded(job, result, time.perf_counter() - started)

    def broken(self, job: ClaimedJob, error: BaseException) -> Outcome:
        """The outcome of a body that ended by what is no Exception: sys.exit(), its own cancellation, or worse."""
        ended = RotaError(f"The body of {job.task!r} raised {error!r}, which counts as a failure of the attempt.")
        ended.__cause__ = error
        return self._failed(self._tasks[job.task], job, ended, 0.0)

    def close(self) -> None:
        """Take no more. A thread that is in a body that cannot be stopped goes on by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, task: Task[..., Any], job: ClaimedJob) -> Any:
        args, kwargs = task.signature.decode(read_json(job.args))
        if task.is_async:
            return await _within(task.options.timeout, task.function(*args, **kwargs))
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        context = contextvars.copy_context()

        def body() -> Any:
            loop.call_soon_threadsafe(begun.set)
            return context.run(task.function, *args, **kwargs)

        future = loop.run_in_executor(self._threads, body)
        if task.options.timeout is not None:
            await begun.wait()  # waiting for a thread is not the body's time
        try:
            return await _within(task.options.timeout, future)
        except TimeoutError:
            if not future.done() or future.cancelled():
                self._abandon_threads()
            raise

    def _new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=self._count, thread_name_prefix="rota-task")

    def _abandon_threads(self) -> None:
        """A body that outstays its timeout keeps its thread: let the next bodies have new ones, and not wait behind it."""
        abandoned, self._threads = self._threads, self._new_threads()
        abandoned.shutdown(wait=False)

    def _failed(self, task: Task[..., Any], job: ClaimedJob, error: BaseException, took: float) -> Outcome:
        try:
            pause = task.options.retry.pause(job.attempt - job.losses, error)
        except Exception as broken:  # the user's backoff function; its fault is told along with the body's
            broken.__cause__ = error
            error, pause = broken, None
        failure = _failure(error)
        return Buried(job, failure, took) if pause is None else Retried(job, failure, took, pause)


async def _within(timeout: float | None, body: Awaitable[Any]) -> Any:
    if timeout is None:
        return await body
    try:
        async with asyncio.timeout(timeout) as limit:
            return await body
    except TimeoutError as error:
        if not limit.expired():
            raise  # one of the body's own
        raise TimeoutError(f"the attempt took longer than its timeout of {timeout:g} s") from error.__context__


def _failure(error: BaseException) -> Failure:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "rota.errors")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    trace = "".join(traceback.format_exception(kind, error, _own_frames(error.__traceback__), chain=True))
    return Failure(
        _storable(name, 500),
        _storable(_text(error), MESSAGE_LIMIT),
        _storable(trace[-TRACE_LIMIT:], TRACE_LIMIT),
        error,
    )


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the body on: how we came to call it helps nobody who reads it."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename in _OUR_FILES:
        own = own.tb_next
    return own or trace


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # an error whose own text fails must not take the worker down
        return f"<{type(error).__name__} whose text could not be made: {type(broken).__name__}>"


def _storable(text: str, limit: int) -> str:
    """Text that PostgreSQL can hold: no NUL, no lone surrogates, not endless."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
