"""An event loop in a thread of its own, for sync callers of what is async: what it opens in one call is there for the next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from rota.errors import RotaError
from rota.postgres.connection import check_fork

__all__ = ["Aside", "Begun"]

T = TypeVar("T")

# At exit, no longer than this for what others would find out by themselves.
_EXIT_SECONDS = 5.0
# A signal that comes just before a thread waits does not end the wait.
_HEAR_SECONDS = 0.5


class Aside:
    """Runs coroutines for callers in other threads, until `end`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._calls: set[asyncio.Task[Any]] = set()
        started: Future[None] = Future()
        # a daemon, as nobody need close an app
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="rota-aside", daemon=True
        )
        self._thread.start()
        started.result()

    def begin(self, call: Coroutine[Any, Any, T]) -> Begun[T]:
        try:
            check_fork(self._pid)
        except RotaError:
            call.close()
            raise
        begun = Begun[T](self._loop, self._calls)
        self._loop.call_soon_threadsafe(begun.start, call)
        return begun

    def end(self) -> None:
        """Close what was opened there. Calls that are under way first come to their end, which is not waited for."""
        if os.getpid() != self._pid:
            return  # the thread is our parent's
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._over.set)
        if not self._calls and threading.current_thread() is not self._thread:
            self._thread.join(_EXIT_SECONDS)

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        started.set_result(None)
        await self._over.wait()
        while self._calls:
            await asyncio.wait(self._calls)


class Begun(Generic[T]):
    """A call that goes on in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: set[asyncio.Task[Any]]) -> None:
        self._loop = loop
        self._calls = calls
        self._task: asyncio.Task[T] | None = None
        self._answer: Future[T] = Future()

    def start(self, call: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(call)
        self._calls.add(self._task)
        self._task.add_done_callback(self._tell)

    def result(self) -> T:
        """The outcome. Its end is waited for whatever interrupts us: it gives back what it took."""
        told_to_end = False

        def end(*_: Any) -> None:
            nonlocal told_to_end
            told_to_end = True
            self._cancel()

        # what was taken is given back before a process ends that is told to, unless it has ideas of its own
        is_main = threading.current_thread() is threading.main_thread()
        handles = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if handles:
            signal.signal(signal.SIGTERM, end)
        try:
            while not self._answer.done():
                wait([self._answer], _HEAR_SECONDS)
            return self._answer.result()
        except BaseException:
            self._see_it_end()
            raise
        finally:
            if handles:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if told_to_end:
                signal.raise_signal(signal.SIGTERM)

    def _see_it_end(self) -> None:
        """We are interrupted: ask it to end, and at each further interruption again, which it may take for a hurry."""
        interrupted = True
        while not self._answer.done():
            if interrupted:
                self._cancel()
            try:
                interrupted = False
                wait([self._answer], _HEAR_SECONDS)
            except KeyboardInterrupt:
                interrupted = True

    def _cancel(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._task is not None and self._task.cancel())

    def _tell(self, task: asyncio.Task[T]) -> None:
        self._calls.discard(task)
        if task.cancelled():
            self._answer.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())
