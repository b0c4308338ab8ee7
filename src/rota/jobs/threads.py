"""Threads for bodies that block, called from an event loop.

A thread that is woken for each body, and a loop that is woken for each that ends, cost several times what a small body does. So
a thread goes on with the next body by itself, one more is woken only while nobody is on the way to those that wait, and the loop
hears of all that have ended meanwhile at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Call", "Threads"]


class Call:
    """A function to be called in a thread: what came of it is awaited as `result`."""

    __slots__ = ("_error", "_outlived", "_todo", "_value", "ended", "result")

    def __init__(self, function: Callable[[], Any], result: asyncio.Future[Any]) -> None:
        self.result = result
        self.ended = False  # though the loop may not have heard of it yet
        # Whoever takes it out, which one does, has it: the thread that calls it, or who cancels it before.
        self._todo = [function]
        self._value: Any = None
        self._error: BaseException | None = None
        self._outlived: Future[None] | None = None

    def cancel(self) -> bool:
        """Have it never called; False if it has begun."""
        return self._taken() is not None

    def outlives(self) -> Future[None]:
        """Nobody waits for its result any more: done when it has ended all the same."""
        self._outlived = Future()
        return self._outlived

    def _taken(self) -> Callable[[], Any] | None:
        try:
            return self._todo.pop()
        except IndexError:
            return None

    def _run(self) -> None:
        function = self._taken()
        if function is None:
            return
        try:
            self._value = function()
        except BaseException as error:
            self._error = error
        self.ended = True

    def _end(self) -> None:
        if self._outlived is not None:
            self._outlived.set_result(None)
        if not self.result.done():
            if self._error is None:
                self.result.set_result(self._value)
            else:
                self.result.set_exception(self._error)


class Threads:
    """At most so many threads, for one event loop."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = ThreadPoolExecutor(max_workers=most, thread_name_prefix="rota-task")
        self._loop = loop
        self._waiting: deque[Call] = deque()
        self._ended: deque[Call] = deque()
        # Read and written without a lock: who comes sets it back before it looks at what waits, so what waits is seen by someone.
        self._someone_comes = False
        self._loop_told = False

    def call(self, function: Callable[[], Any]) -> Call:
        """Have it called by a thread. To be called on the loop."""
        call = Call(function, self._loop.create_future())
        self._waiting.append(call)
        self._have_someone_come()
        return call

    def close(self) -> None:
        """Begin no more. A thread that is in a function goes on by itself."""
        self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _have_someone_come(self) -> None:
        if not self._someone_comes:
            self._someone_comes = True
            self._pool.submit(self._come)

    def _come(self) -> None:
        self._someone_comes = False
        while True:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            if self._waiting:
                # this one may block
                with contextlib.suppress(RuntimeError):  # closed: these are not begun any more
                    self._have_someone_come()
            call._run()
            self._ended.append(call)
            if not self._loop_told:
                self._loop_told = True
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
                    self._loop.call_soon_threadsafe(self._take_in)

    def _take_in(self) -> None:
        self._loop_told = False
        while self._ended:
            self._ended.popleft()._end()
