"""A transaction of the user's whose last statement is ours: what they write and what we write down are committed together.

It is a block for `with` and `async with`, on a connection of ours or on one that the user passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

from rota.postgres.foreign import Foreign, foreign
from rota.postgres.pool import Database
from rota.service.points import reach

__all__ = ["Block"]


class Block(ABC):
    """The block; `connection` is what to write through. One that raises leaves nothing behind."""

    _own: Foreign

    def __init__(self, database: Database, on: Any) -> None:
        self._database = database
        self._on = None if on is None else foreign(on)
        self.connection: Any = on

    @abstractmethod
    async def _settle(self) -> None:
        """Run our statement on `_own`. Raises when nothing is to be committed."""

    @abstractmethod
    async def _commit(self) -> None:
        """Commit on `_own`, and note what that has settled."""

    def __getattr__(self, name: str) -> Any:
        """What the connection has, this has: `tx.execute(...)` is `tx.connection.execute(...)`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.connection, name)

    @property
    def _rota_connection(self) -> Any:
        """Lets `task.on(tx)` enqueue in this transaction."""
        return self.connection

    async def __aenter__(self) -> Self:
        await self._begin(self._on or self._database.borrow(is_async=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(error)

    def __enter__(self) -> Self:
        on = self._on or self._database.borrow(is_async=False)
        on.at_once(self._begin, on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.at_once(self._end, error)

    # Written once for both colours, as `postgres.foreign` is: on a sync connection nothing is ever waited for.

    async def _begin(self, on: Foreign) -> None:
        self._own = on
        await on.begin()
        self.connection = on.native

    async def _end(self, error: BaseException | None) -> None:
        if error is not None:
            await self._own.rollback()
            return
        try:
            await self._settle()
        except BaseException:
            await self._own.rollback()
            raise
        reach("transaction.before_commit")
        await self._commit()
        reach("transaction.after_commit")
