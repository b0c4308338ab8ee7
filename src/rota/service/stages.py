"""Things that are started in order and stopped on the way back, each with a deadline and a guard of its own.

A stage that cannot be started is the caller's to deal with, as it may be tried again. One that cannot be stopped is told and
left behind, since those below it must still be stopped: a lease that is not given back costs others more than a connection
that is not closed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from rota.clock import boottime
from rota.facts import Facts, StageFailed, StageStarted, StageStopped

__all__ = ["Stages", "stopped"]

T = TypeVar("T")

_STOP_SECONDS = 10.0


class Stages:
    """What has been started. Belongs to one task."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._started: list[tuple[str, AbstractAsyncContextManager[object], float]] = []

    async def enter(self, name: str, stage: AbstractAsyncContextManager[T], *, within: float = _STOP_SECONDS) -> T:
        """Start this, to be stopped `within` so many seconds. Raises what stands in its way."""
        began = boottime()
        value = await stage.__aenter__()
        self._started.append((name, stage, within))
        self._facts.emit(StageStarted(name, boottime() - began))
        return value

    async def run(self, name: str, start: Callable[[], Awaitable[object] | object]) -> None:
        """Start what is stopped by somebody else, or needs not be."""
        began = boottime()
        starting = start()
        if inspect.isawaitable(starting):
            await starting
        self._facts.emit(StageStarted(name, boottime() - began))

    async def stop(self) -> None:
        """Stop all, the last one first. It does so to the end also when this task is cancelled meanwhile."""
        stopping = asyncio.ensure_future(self._stop())
        cancelled: asyncio.CancelledError | None = None
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError as error:
                cancelled = error
        stopping.result()
        if cancelled is not None:
            raise cancelled

    async def _stop(self) -> None:
        while self._started:
            name, stage, within = self._started.pop()
            await stopped(self._facts, name, stage.__aexit__(None, None, None), within=within)


async def stopped(facts: Facts, name: str, stopping: Awaitable[object], *, within: float = _STOP_SECONDS) -> None:
    """Await the end of a stage for so long, and tell what came of it. Whatever it raises, the next can follow."""
    began = boottime()
    try:
        async with asyncio.timeout(within):
            await stopping
    except TimeoutError as error:
        reason = error if boottime() - began < within else TimeoutError(f"it was not done within {within:g} s")
        facts.emit(StageFailed(name, reason))
    except Exception as error:
        facts.emit(StageFailed(name, error))
    else:
        facts.emit(StageStopped(name, boottime() - began))
