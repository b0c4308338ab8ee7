"""Several processes of ours that do the same, kept running until this one is asked to end.

One that ends although nobody asked is replaced, after a pause that doubles while that keeps happening, and what it held is
free at once. Signals go on to all of them. This process holds no app and no connection of theirs, so nothing of theirs takes
it down; and if it is killed, they see that by their `lifeline`, and stop.

It does not try for ever. An exit code that says that a restart cannot help ends all of them, and so does it when not one of
them has come to anything for some starts: a manager of processes sees that, and a deploy fails, instead of turning in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rota.clock import boottime
from rota.runtime.process import ending_by_signals, on_ending
from rota.runtime.supervisor import LEAVE_SECONDS, SupervisedWorker, describe_exit
from rota.service.ending import ENDING

__all__ = ["Fleet"]

logger = logging.getLogger("rota")

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
# One that has run for so long was well, and its next end is its first.
_WELL_SECONDS = 10.0
# So often each of them may end at once before it is clear that the next will too.
_TRIES = 5
# Exit codes by which a process says that it would end in the same way again.
_HOPELESS = {
    2: "its app, its address or an option is wrong",
    3: 'a singleton with on_held="exit" is led elsewhere',
    5: "the database needs `rota migrate`, or is too new",
}
# What the database has to end a membership; peers find out by themselves a little later.
_DATABASE_SECONDS = 5.0

StartChild = Callable[[int], Awaitable[SupervisedWorker]]
Bury = Callable[[SupervisedWorker], Awaitable[None]]


class Fleet:
    """Keeps `size` processes running, from `run` until it is asked to end.

    `start` is called with the number of the one to start, from 1. `bury` is called with one that ended out of order: what it
    held may be given to others. With `once` one that ends with exit code 0 is done, and not replaced.
    """

    def __init__(
        self,
        size: int,
        start: StartChild,
        *,
        grace: float,
        bury: Bury | None = None,
        once: bool = False,
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        self._start = start
        self._grace = grace
        self._bury = bury
        self._once = once
        self._first_pause = first_pause
        self._children: dict[int, SupervisedWorker] = {}
        self._failures = dict.fromkeys(range(1, size + 1), 0)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        """Run them until a signal, or until there is no point in it. Returns the exit code, having said why it is not 0."""
        with ending_by_signals(), on_ending(self._told_to_stop, self.hurry):
            async with asyncio.TaskGroup() as group:
                for number in list(self._failures):
                    group.create_task(self._keep(number))
        return self._code

    def stop(self) -> None:
        """Ask all of them to end. What they run may finish within their grace."""
        if not self._stopping.is_set():
            self._stopping.set()
            for child in self._children.values():
                child.terminate()

    def hurry(self) -> None:
        """Ask again: they hand back what they have not finished."""
        self.stop()
        if not self._hurried.is_set():
            self._hurried.set()
            logger.info("stopping at once")
            for child in self._children.values():
                child.hurry()

    def _told_to_stop(self) -> None:
        logger.info("stopping (%s): %d process(es) are asked to end", ENDING.reason, len(self._children))
        self.stop()

    async def _keep(self, number: int) -> None:
        while not self._stopping.is_set():
            since = boottime()
            try:
                child = self._children[number] = await self._start(number)
            except OSError as error:  # no memory, or too many processes
                await self._consider(number, 1, 0.0, f"process {number} could not be started: {error}")
                continue
            logger.info("started process %d (pid %d)", number, child.pid)
            if self._stopping.is_set():  # meanwhile
                child.terminate()
            code = await self._ended(child)
            del self._children[number]
            if code != 0:
                await self._buried(child)
            how = f"process {number} (pid {child.pid}) ended after {boottime() - since:.1f} s: {describe_exit(code)}"
            if self._stopping.is_set():
                self._note(code, how)
            elif code == 0 and self._once:
                del self._failures[number]
                return
            else:
                await self._consider(number, code, boottime() - since, how)

    async def _ended(self, child: SupervisedWorker) -> int:
        """Its exit code. Once all are asked to end it has its grace, unless they are asked again, and a little more."""
        ended = asyncio.ensure_future(child.wait())
        await _first(ended, self._stopping.wait())
        await _first(ended, self._hurried.wait(), timeout=self._grace)
        await asyncio.wait([ended], timeout=LEAVE_SECONDS)
        if not ended.done():
            child.kill()
        return await ended

    def _note(self, code: int, how: str) -> None:
        """One has ended as it was asked to. By SIGTERM itself does one that had not come so far as to have anything in hand."""
        if code not in (0, -signal.SIGTERM):
            self._code = self._code or 1
            logger.error("not in order: %s", how)

    async def _consider(self, number: int, code: int, seconds: float, how: str) -> None:
        """Nobody asked it to end: find out whether to start the next, and wait until then."""
        self._failures[number] = 0 if seconds >= _WELL_SECONDS else self._failures[number] + 1
        if code in _HOPELESS:
            self._give_up(code, f"{how}. Another start would not help: {_HOPELESS[code]}")
        elif min(self._failures.values()) >= _TRIES:
            self._give_up(max(code, 1), f"{how}. None of them has come to anything in {_TRIES} starts")
        else:
            pause = min(_LONGEST_PAUSE, self._first_pause * 2 ** max(0, self._failures[number] - 1))
            logger.warning("%s. The next is started in %.0f s", how, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    def _give_up(self, code: int, why: str) -> None:
        if not self._code:
            self._code = code
            logger.critical("%s; giving up", why)
        self.stop()

    async def _buried(self, child: SupervisedWorker) -> None:
        if self._bury is not None:
            with contextlib.suppress(
                Exception
            ):  # peers find out by themselves, and nothing here may depend on a database
                async with asyncio.timeout(_DATABASE_SECONDS):
                    await self._bury(child)


async def _first(ended: asyncio.Future[int], other: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    waiting = asyncio.ensure_future(other)
    await asyncio.wait([ended, waiting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
