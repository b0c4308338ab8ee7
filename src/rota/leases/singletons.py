"""Coroutines that run on one instance at a time: each under a term of its own, kept running, and moved when they must.

A singleton that fails, or returns, is started again after a pause that grows while it keeps failing; the term is kept
meanwhile. When its process stops, or its term is lost, another instance starts it. Several of them spread over the instances:
who leads much comes later to a vacancy, and hands one over when another that waits for it has at least two fewer. Two is
what makes it end: handing one over for a difference of one would only turn the difference around.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from rota.clock import Deadline, boottime
from rota.errors import ConfigurationError, DatabaseUnavailable, LeadershipHeld, LeadershipLost, RotaError
from rota.facts import SingletonFailed
from rota.leases.leadership import Leadership
from rota.leases.leads import Leads
from rota.leases.term import Term, answered
from rota.leases.terms import find_burden

__all__ = ["OnHeld", "Singleton", "Singletons"]

OnHeld = Literal["wait", "exit", "skip"]
Body = Callable[[Term], Awaitable[Any]]

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
# One that ran this long was well, and its next failure is its first.
_WELL_SECONDS = 60.0
# How often an instance looks whether it leads more than its share.
_SHARE_SECONDS = 2.0
# After giving one up, how long to leave it to the others: who gave it up would be the first to try.
_ASIDE_SECONDS = 1.0
# What a coroutine that is cancelled has to end and to resign, however urgent the stop is.
_MOMENT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Singleton:
    """A coroutine function, and what an instance does that finds it led elsewhere. Still callable as what it is."""

    name: str
    function: Body
    on_held: OnHeld = "wait"
    #: awaited before anyone tries to lead it
    when: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        if not inspect.iscoroutinefunction(self.function):
            raise ConfigurationError(
                f"The singleton {self.name!r} is no `async def`: it runs for as long as it leads, so it must be one that can be "
                "cancelled. Put blocking parts into asyncio.to_thread()."
            )
        if self.on_held not in get_args(OnHeld):
            raise ConfigurationError(
                f"on_held={self.on_held!r} of the singleton {self.name!r} is none of {', '.join(get_args(OnHeld))}."
            )

    def __call__(self, term: Term) -> Awaitable[Any]:
        return self.function(term)


class Singletons:
    """Keeps the singletons of one worker running, from `start` until `drain`."""

    name = "leaderships"

    def __init__(self, leads: Leads, singletons: Sequence[Singleton]) -> None:
        self._leads = leads
        self._singletons = singletons
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[None] | None = None
        self._terms: dict[str, Term] = {}
        self._hurried = asyncio.Event()

    def start(self) -> None:
        if self._singletons:
            # of a pause that is over, there may be one that has not ended yet
            before = [task for task in self._tasks if not task.done()]
            begun = [asyncio.create_task(_after(before, partial(self._keep, each))) for each in self._singletons]
            if len(begun) > 1:  # an idle process is not to wake up for nothing
                begun.append(asyncio.create_task(_after(before, self._share)))
            for task in begun:
                task.add_done_callback(self._note_end)
            self._tasks = [*before, *begun]

    def pause(self) -> None:
        """Cancel them, and give up the term of each that has ended, until `resume`: others take over."""
        for task in self._tasks:
            task.cancel()

    def resume(self) -> None:
        self.start()

    async def failure(self) -> None:
        """Raise LeadershipHeld or LeadershipLost for one that wants its process to exit then; never return."""
        self._failed = asyncio.get_running_loop().create_future()
        for task in self._tasks:
            if task.done():
                self._note_end(task)
        await self._failed

    def _note_end(self, task: asyncio.Task[None]) -> None:
        failed = self._failed
        if failed is not None and not failed.done() and not task.cancelled() and (error := task.exception()):
            failed.set_exception(error)

    async def empty(self) -> list[str]:
        """There is never anything to wait for: a drain runs none of them."""
        return []

    async def drain(self, deadline: Deadline) -> None:
        """Cancel them, and give up the term of each that has ended, until the deadline or `hurry`.

        One that ignores its cancellation is not waited for any longer, and keeps its term for as long as it runs.
        """
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        ended, hurried = asyncio.ensure_future(asyncio.wait(self._tasks)), asyncio.ensure_future(self._hurried.wait())
        await asyncio.wait([ended, hurried], timeout=deadline.left, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([ended], timeout=_MOMENT_SECONDS)
        ended.cancel()
        hurried.cancel()

    def hurry(self) -> None:
        """Do not wait for those that have not ended."""
        self._hurried.set()

    async def _keep(self, singleton: Singleton) -> None:
        if singleton.when is not None:
            await singleton.when()
        leadership = Leadership(self._leads, singleton.name)
        if singleton.on_held == "wait":
            leadership = leadership.wait()
        while True:
            try:
                async with leadership as term:
                    await self._lead(singleton, term)
            except LeadershipHeld:
                if singleton.on_held == "exit":
                    raise
                return  # it is to be skipped
            except LeadershipLost:
                if singleton.on_held == "exit":
                    raise
                await asyncio.sleep(_ASIDE_SECONDS)
            except DatabaseUnavailable:
                # it could not be told who leads; a worker outlives an absence of the database
                await asyncio.sleep(_ASIDE_SECONDS)

    async def _lead(self, singleton: Singleton, term: Term) -> None:
        """Run it under this term, again and again, until the term is over or this task is cancelled."""
        if singleton.on_held == "wait":
            self._terms[singleton.name] = term
        failures = 0
        try:
            while True:
                since = boottime()
                error = await self._run(singleton, term)
                failures = 1 if boottime() - since > _WELL_SECONDS else failures + 1
                pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
                self._leads.facts.emit(SingletonFailed(singleton.name, term.epoch, error, pause))
                await asyncio.sleep(pause)
        finally:
            self._terms.pop(singleton.name, None)

    async def _run(self, singleton: Singleton, term: Term) -> BaseException:
        """Run it once, and return why it ended although it should not."""
        error: BaseException
        try:
            await singleton.function(term)
            error = RuntimeError("it returned, and a singleton is expected to run for as long as it leads")
        except (Exception, asyncio.CancelledError) as raised:
            error = raised
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():  # whatever the body made of that
            raise asyncio.CancelledError
        if term.look() <= 0:
            raise term.loss()
        return error

    async def _share(self) -> None:
        """Now and then, hand one over to an instance that waits for it and leads at least two fewer."""
        while True:
            await asyncio.sleep(_SHARE_SECONDS * random.uniform(0.8, 1.2))
            if len(self._terms) < 2:
                continue
            term = next(iter(self._terms.values()))
            with contextlib.suppress(RotaError):  # to share is a courtesy, and no reason to end a worker
                wanted = await answered(term.control, find_burden(term.member))
                if names := [name for name in wanted if name in self._terms]:
                    self._terms[random.choice(names)].end("it was handed over to spread the load", "handed over")


async def _after(before: Sequence[asyncio.Task[None]], then: Callable[[], Awaitable[None]]) -> None:
    if before:
        await asyncio.wait(before)
    await then()
