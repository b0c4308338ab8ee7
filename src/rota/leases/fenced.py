"""Work that counts only while its term is on: the database itself refuses what comes too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rota.errors import LeadershipLost
from rota.leases.terms import fence
from rota.postgres.foreign import Foreign, foreign
from rota.postgres.pool import Database

__all__ = ["FencedTransaction", "whoever"]


def whoever() -> object:
    """Who is running: a task, or else a thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


class FencedTransaction:
    """The block of `term.transaction()`: the transaction holds the term fast from its first statement to its commit."""

    def __init__(
        self,
        database: Database,
        name: str,
        epoch: int,
        loss: Callable[[], LeadershipLost],
        insiders: list[object],
        on: Any,
    ) -> None:
        self._database = database
        self._name = name
        self._epoch = epoch
        self._loss = loss
        self._insiders = insiders
        self._on = None if on is None else foreign(on)

    async def __aenter__(self) -> Any:
        return await self._begin(self._on or self._database.borrow(is_async=True))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    def __enter__(self) -> Any:
        on = self._on or self._database.borrow(is_async=False)
        return on.at_once(self._begin, on)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.at_once(self._end, error)

    # Written once for both colours, as `postgres.foreign` is: on a sync connection nothing is ever waited for.

    async def _begin(self, on: Foreign) -> Any:
        self._own = on
        await on.begin()
        try:
            await self._hold(on)
        except BaseException:
            await on.rollback()
            raise
        self._insider = whoever()
        self._insiders.append(self._insider)
        return on.native

    async def _hold(self, on: Foreign) -> None:
        if not await on.run(fence(self._name, self._epoch, self._database.schema), self._database.schema):
            raise self._loss()

    async def _end(self, error: BaseException | None) -> None:
        try:
            await self._settle(error)
        finally:
            self._insiders.remove(self._insider)

    async def _settle(self, error: BaseException | None) -> None:
        if error is not None:
            await self._own.rollback()
            return
        try:
            # the session may have been ended for being in the way of the next leader: then this raises, and nothing commits
            await self._hold(self._own)
        except BaseException:
            await self._own.rollback()
            raise
        await self._own.commit()
