"""Several processes of ours that do the same, kept running until this one is asked to end.

One that ends although nobody asked is replaced, after a pause that doubles while that keeps happening, and what it held is
free at once. Signals go on to all of them. This process holds no app and no connection of theirs, so nothing of theirs takes
it down; and if it is killed, they see that by their `lifeline`, and stop.

One that says that it has done enough is replaced without a gap: its successor is started, and only when that is ready the old
one is told to go. One after the other: at no time is there more than one process too many.

It does not try for ever. An exit code that says that a restart cannot help ends all of them, and so does it when not one of
them has come to anything for some starts: a manager of processes sees that, and a deploy fails, instead of turning in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rota.clock import boottime
from rota.runtime.limit import GONE_SECONDS
from rota.runtime.process import ending_by_signals, on_ending
from rota.runtime.supervisor import LEAVE_SECONDS, SupervisedWorker, describe_exit
from rota.runtime.systemd import LOOK_SECONDS, FleetNotice, watchdog_seconds
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
# What the database has to end a membership, and at the end of all at least; peers find out by themselves a little later.
_DATABASE_SECONDS, _DATABASE_LEAST = 5.0, 0.5
# For so long one may tell nothing without being taken for dead: it tells each second, on a machine that has other work.
_SILENT_SECONDS = 5.0

StartChild = Callable[[int], Awaitable[SupervisedWorker]]
Bury = Callable[[SupervisedWorker], Awaitable[None]]


@dataclass
class _Run:
    """One process, from its start until what it held is seen to."""

    process: SupervisedWorker
    ended: asyncio.Task[int]
    since: float

    def how(self, number: int, code: int) -> str:
        passed = boottime() - self.since
        return f"process {number} (pid {self.process.pid}) ended after {passed:.1f} s: {describe_exit(code)}"


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
        self._children: set[SupervisedWorker] = set()
        self._present: dict[int, SupervisedWorker] = {}
        self._nobody_is_replaced = asyncio.Event()
        self._nobody_is_replaced.set()
        self._failures = dict.fromkeys(range(1, size + 1), 0)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._code = 0
        # when all are to be gone
        self._until = math.inf

    async def run(self) -> int:
        """Run them until a signal, or until there is no point in it. Returns the exit code, having said why it is not 0."""
        with ending_by_signals(), on_ending(self._told_to_stop, self.hurry):
            looking = asyncio.create_task(self._look_after())
            async with asyncio.TaskGroup() as self._group:
                for number in list(self._failures):
                    self._group.create_task(self._keep(number))
            looking.cancel()
        return self._code

    @property
    def is_ready(self) -> bool:
        """Whether one of them is."""
        return any(child.running and child.ready.is_set() for child in self._children)

    def stop(self) -> None:
        """Ask all of them to end. What they run may finish within their grace."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._until = boottime() + self._grace + GONE_SECONDS
            for child in self._children:
                child.terminate()

    def hurry(self) -> None:
        """Ask again: they hand back what they have not finished."""
        self.stop()
        if not self._hurried.is_set():
            self._hurried.set()
            self._until = min(self._until, boottime() + GONE_SECONDS)
            logger.info("stopping at once")
            for child in self._children:
                child.hurry()

    def _told_to_stop(self) -> None:
        logger.info("stopping (%s): %d process(es) are asked to end", ENDING.reason, len(self._children))
        self.stop()

    async def _keep(self, number: int) -> None:
        """Keep one place filled."""
        run: _Run | None = None
        while run is not None or not self._stopping.is_set():
            if run is None:
                try:
                    run = await self._begin(number)
                except OSError as error:  # no memory, or too many processes
                    await self._consider(number, 1, 0.0, f"process {number} could not be started: {error}")
                continue
            self._present[number] = run.process
            await _first(run.process.enough.wait(), run.ended)
            successor = None if run.ended.done() else await self._successor(number, run)
            if successor is not None and not run.ended.done():
                logger.info(
                    "process %d (pid %d) has done enough: pid %d is in its place", number, *_pids(run, successor)
                )
                run.process.replace()
                self._group.create_task(self._see_off(number, run))
                run = successor
                continue
            code = await run.ended
            how = run.how(number, code)
            if self._stopping.is_set():
                self._note(code, how)
            elif successor is not None:
                logger.warning("%s. Its successor was started already", how)
            elif code == 0 and self._once:
                del self._failures[number]
                return
            else:
                await self._consider(number, code, boottime() - run.since, how)
            run = successor

    async def _begin(self, number: int) -> _Run:
        since = boottime()
        child = await self._start(number)
        self._children.add(child)
        logger.info("started process %d (pid %d)", number, child.pid)
        if self._stopping.is_set():  # meanwhile
            child.terminate()
        return _Run(child, asyncio.create_task(self._ended(child)), since)

    async def _ended(self, child: SupervisedWorker) -> int:
        """Its exit code. Once it is asked to end it has its grace, unless all are asked again, and a little more."""
        ended = asyncio.ensure_future(child.wait())
        await _first(child.asked.wait(), ended)
        await _first(self._hurried.wait(), ended, timeout=self._grace)
        await asyncio.wait([ended], timeout=LEAVE_SECONDS)
        if not ended.done():
            child.kill()
        code = await ended
        self._children.discard(child)
        if code != 0:
            await self._buried(child)
        return code

    async def _successor(self, number: int, run: _Run) -> _Run | None:
        """One that is ready to take the place of this one, which goes on until then, however long that takes. None if this one has
        ended before there was any, or all are to end."""
        while not self._nobody_is_replaced.is_set():
            await _first(self._nobody_is_replaced.wait(), run.ended)
            if run.ended.done():
                return None
        self._nobody_is_replaced.clear()
        pause = self._first_pause
        while not self._stopping.is_set() and not run.ended.done():
            try:
                successor = await self._begin(number)
                await _first(successor.process.ready.wait(), run.ended, successor.ended)
                if not successor.ended.done():
                    if run.ended.done():
                        self._nobody_is_replaced.set()
                    return successor
                how = successor.how(number, successor.ended.result())
                if self._stopping.is_set():
                    self._note(successor.ended.result(), how)
                    break
            except OSError as error:
                how = f"process {number} could not be started: {error}"
            # the reason may be a mistake in new code, and what runs is better than nothing
            logger.error("%s. Pid %d goes on in its place, and the next try is in %.0f s", how, run.process.pid, pause)
            await _first(self._stopping.wait(), run.ended, timeout=pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
        self._nobody_is_replaced.set()
        return None

    async def _see_off(self, number: int, run: _Run) -> None:
        code = await run.ended
        self._nobody_is_replaced.set()
        if code != 0:
            self._note(code, run.how(number, code))

    async def _look_after(self) -> None:
        """Tell systemd of all of them; and if it wants to see signs of life, want to see theirs."""
        notice, every = FleetNotice(), watchdog_seconds()
        pause = min(LOOK_SECONDS, every / 2) if every else LOOK_SECONDS
        while True:
            asked_nothing = [child for child in self._children if not child.asked.is_set()]
            silent = [child for child in asked_nothing if _silent_for(child) > max(every or 0, _SILENT_SECONDS)]
            if self._stopping.is_set():
                notice.stopping()
            else:
                present = [self._present.get(number) for number in self._failures]
                starting = [child for child in present if child is None or not child.ready.is_set()]
                waits = all(child is not None and child.live_at and child not in silent for child in starting)
                notice.look(len(present) - len(starting), len(present), waits=waits)
            for dead in silent if every else ():
                logger.error(
                    "process (pid %d) has given no sign of life for %.0f s, and is killed", dead.pid, _silent_for(dead)
                )
                dead.kill()
            if self._stopping.is_set():
                await asyncio.sleep(pause)
            else:
                await _first(self._stopping.wait(), timeout=pause)

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
            # one that ends well was asked to: by a signal of its own, or `rota members drain`
            logger.log(logging.WARNING if code else logging.INFO, "%s. The next is started in %.0f s", how, pause)
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
                left = self._until - boottime()
                async with asyncio.timeout(min(_DATABASE_SECONDS, max(_DATABASE_LEAST, left))):
                    await self._bury(child)


async def _first(other: Coroutine[Any, Any, Any], *ended: asyncio.Future[int], timeout: float | None = None) -> None:
    waiting = asyncio.ensure_future(other)
    await asyncio.wait([waiting, *ended], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def _pids(*runs: _Run) -> list[int]:
    return [run.process.pid for run in runs]


def _silent_for(child: SupervisedWorker) -> float:
    """For how long it has given no sign of life; 0 if it never has."""
    return 0.0 if child.live_at is None else boottime() - child.live_at
