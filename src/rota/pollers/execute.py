"""Running the handler of a poller: async on the loop, sync in a thread. Whatever happens in it becomes an outcome."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from rota.errors import RotaError
from rota.facts import Facts, RowRaisedAfterSuccess
from rota.failure import Failure, describe
from rota.pollers.adaptive import Changed
from rota.pollers.claim import ClaimedRow
from rota.pollers.due import Plan
from rota.pollers.running import Held, RunningPoll, running
from rota.pollers.settle import Fate, Finish
from rota.postgres.pool import Database
from rota.postgres.query import Unreadable
from rota.service.points import reach

__all__ = ["Executor", "FailedPoll", "Outcome", "Polled", "SettledPoll"]


# What a backoff function may ask for at most, so that its end is a time that PostgreSQL knows: a hundred years.
_LONGEST_PAUSE = 100 * 365 * 86400.0


class Polled(NamedTuple):
    """The handler returned."""

    row: ClaimedRow
    changed: bool
    seconds: float


class FailedPoll(NamedTuple):
    """The handler raised; `pause` is None when the row is to be parked. `unsure`: its transaction may have committed."""

    row: ClaimedRow
    failure: Failure
    pause: float | None
    seconds: float
    unsure: bool = False


class SettledPoll(NamedTuple):
    """A transaction of the handler's has committed what became of it."""

    row: ClaimedRow
    fate: Fate
    changed: bool
    seconds: float


Outcome = Polled | FailedPoll | SettledPoll


class Executor:
    """Runs the handler of one poller.

    `occupied` is told of a thread that goes on after its poll was cancelled. Without it such a poll goes on as well, until its
    thread has ended or it is cancelled again: its row is not for others while the handler still does something.
    """

    def __init__(
        self,
        plan: Plan,
        finish: Finish,
        *,
        transactions: Database,
        stopping: Callable[[], bool],
        facts: Facts,
        occupied: Callable[[Future[Any]], None] | None = None,
    ) -> None:
        self._definition = plan.definition
        self._columns = plan.columns
        self._finish = finish
        self._transactions = transactions
        self._stopping = stopping
        self._facts = facts
        self._occupied = occupied
        handler = self._definition.handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
        )
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, row: ClaimedRow) -> Outcome:
        """Run the handler to its end. Its cancellation is raised: by the worker, or see `broken`."""
        held = Held(row, self._finish, self._transactions, self._stopping)
        # each poll runs in a task of its own, and so in a context of its own: there is nothing to reset
        running.set(RunningPoll(held))
        try:
            reach("run.before")
            value = await self._call(held)
            reach("run.after")
        except asyncio.CancelledError:
            if held.fate is not None:
                return SettledPoll(row, held.fate, held.changed, held.seconds)
            raise
        except Exception as error:
            if held.fate is not None:
                self._facts.emit(RowRaisedAfterSuccess(row.poller, row.key, error))
                return SettledPoll(row, held.fate, held.changed, held.seconds)
            return self.failed(row, error, held.seconds)._replace(unsure=held.unsure)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return self.broken(row, error)
        if held.fate is not None:
            return SettledPoll(row, held.fate, held.changed, held.seconds)
        return Polled(row, isinstance(value, Changed) or value is Changed, held.seconds)

    def failed(self, row: ClaimedRow, error: BaseException, seconds: float = 0.0) -> FailedPoll:
        """What becomes of a row whose handler raised this."""
        try:
            pause = self._definition.retry.pause(row.attempts + 1, error)
        except Exception as broken:  # the user's backoff function; its fault is told along with the handler's
            broken.__cause__ = error
            error, pause = broken, None
        return FailedPoll(row, describe(error), None if pause is None else min(pause, _LONGEST_PAUSE), seconds)

    def broken(self, row: ClaimedRow, error: BaseException) -> FailedPoll:
        """The outcome of a handler that ended by what is no Exception: sys.exit(), or its own cancellation."""
        ended = RotaError(f"The handler of {row.poller!r} raised {error!r}, which counts as a failure of the poll.")
        ended.__cause__ = error
        return self.failed(row, ended)

    def close(self) -> None:
        """Take no more. A thread that is in a handler that cannot be stopped goes on by itself."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, held: Held) -> Any:
        definition = self._definition
        values = dict(zip(self._columns, held.claim.values, strict=True))
        for column, value in values.items():
            if isinstance(value, Unreadable):
                raise RotaError(
                    f"column {column!r} has what Python cannot hold: {value.why}. Change it, or annotate the handler's parameter "
                    "with a class that leaves the column out"
                )
        row = definition.reader.build(values)
        timeout = definition.timeout
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if self._is_async:
            return await self._within(until, definition.handler(row))
        value = await self._call_in_thread(until, row)
        # a coroutine, from what did not look like a coroutine function
        return await self._within(until, value) if inspect.isawaitable(value) else value

    async def _call_in_thread(self, until: float | None, row: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._definition.concurrency, thread_name_prefix="rota-poll")
        threads = self._threads
        future = threads.submit(contextvars.copy_context().run, _called, self._definition.handler, row)
        ended = asyncio.wrap_future(future)
        try:
            try:
                return await self._within(until, asyncio.shield(ended))
            except asyncio.CancelledError:
                if self._occupied is not None or future.cancel():
                    raise
                return await self._within(until, ended)
        except (TimeoutError, asyncio.CancelledError):
            if not future.done() and not future.cancel():
                # its thread is lost to others, who must not wait for it
                ended.cancel()
                threads.shutdown(wait=False)
                if self._threads is threads:
                    self._threads = None
                if self._occupied is not None:
                    self._occupied(future)
            raise

    async def _within(self, until: float | None, body: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout_at(until) as limit:
                return await body
        except TimeoutError as error:
            if not limit.expired():
                raise  # one of the handler's own
            timeout = self._definition.timeout
            raise TimeoutError(f"the handler took longer than its timeout of {timeout:g} s") from error.__context__


def _called(handler: Callable[..., Any], row: Any) -> Any:
    try:
        return handler(row)
    except StopIteration as error:
        # no future can hold it, and whoever waits would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error
