"""Work that counts only while its term is on: the database itself refuses what comes too late."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Any, Protocol

import psycopg

from rota.errors import DatabaseUnavailable, LeadershipLost
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


class Fence(Protocol):
    """A term, as far as its transactions know it."""

    name: str
    epoch: int
    insiders: list[object]

    def loss(self) -> LeadershipLost: ...

    async def confirm(self) -> None: ...

    def confirm_sync(self) -> None: ...


class FencedTransaction:
    """The block of `term.transaction()`: the transaction holds the term fast from its first statement to its commit."""

    def __init__(self, database: Database, term: Fence, on: Any) -> None:
        self._database = database
        self._term = term
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
        with self._own_words():
            await on.begin()
        try:
            await self._hold(on)
        except BaseException:
            await on.rollback()
            raise
        self._insider = whoever()
        self._term.insiders.append(self._insider)
        return on.native

    async def _hold(self, on: Foreign) -> None:
        schema = self._database.schema
        with self._own_words():
            if not await on.run(fence(self._term.name, self._term.epoch, schema), schema):
                raise self._term.loss()

    def _own_words(self) -> contextlib.AbstractContextManager[None]:
        return self._database.in_words() if self._on is None else contextlib.nullcontext()

    async def _end(self, error: BaseException | None) -> None:
        try:
            await self._settle(error)
        finally:
            self._term.insiders.remove(self._insider)

    async def _settle(self, error: BaseException | None) -> None:
        if error is not None:
            await self._own.rollback()
            await self._blame_the_loss(error)
            return
        try:
            # the session may have been ended for being in the way of the next leader: then this raises, and nothing commits
            await self._hold(self._own)
        except BaseException as raised:
            await self._own.rollback()
            await self._blame_the_loss(raised)
            raise
        await self._own.commit()

    async def _blame_the_loss(self, error: BaseException) -> None:
        """Raise LeadershipLost instead, if it is because the term was over that the session has ended."""
        ended = getattr(self._own.native, "closed", False)
        if not ended or not isinstance(error, psycopg.Error | DatabaseUnavailable):
            return
        with contextlib.suppress(DatabaseUnavailable):
            try:
                await self._term.confirm() if self._own.is_async else self._term.confirm_sync()
            except LeadershipLost as lost:
                raise lost from error
