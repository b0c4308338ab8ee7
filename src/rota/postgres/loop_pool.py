"""A pool of connections that belongs to one event loop, and what the driver's own lacks for that: an end with its loop.

A runner such as `asyncio.run` cancels what is left in its loop and waits for that; who closes a loop by hand may do neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from rota.postgres.connection import Connector, OwnConnection, is_alive

__all__ = ["LoopPool", "close_with_loop", "lent"]


class LoopPool(AsyncConnectionPool[Any]):
    """Connections of ours, beginning with one that is open. Not open itself yet."""

    def __init__(self, connector: Connector, first: OwnConnection, *, size: int) -> None:
        first.prompt = False
        self._connector = connector
        self._prepared: WeakSet[OwnConnection] = WeakSet()
        super().__init__(
            connector.conninfo,
            kwargs={"autocommit": True, "prepare_threshold": 0, "ready": [first]},
            configure=self._prepare,
            check=_check,
            connection_class=OwnConnection,
            min_size=1,
            max_size=size,
            open=False,
            name="rota",
        )

    async def _prepare(self, connection: OwnConnection) -> None:
        self._prepared.add(connection)
        await self._connector.prepare(connection)

    @classmethod
    async def worker(cls, q: Any) -> None:
        # one that is cancelled in the middle of something, such as a new connection, would take that for a failure of it and wait
        # for what to do next, and the runner of the loop would wait for the worker for ever
        tasks: Any = _Heeding(q)
        await super().worker(tasks)

    def end(self) -> None:
        """Close all connections when the loop is closed, and nothing can be awaited in it any more."""
        for connection in list(self._prepared):
            connection.pgconn.finish()


class _Heeding:
    """The tasks of a worker, of which one that was cancelled gets no more."""

    def __init__(self, tasks: Any) -> None:
        self._tasks = tasks

    async def get(self) -> Any:
        worker = asyncio.current_task()
        if worker is not None and worker.cancelling():
            raise asyncio.CancelledError
        return await self._tasks.get()


class lent:  # noqa: N801 - read as a function: async with lent(pool, timeout=1) as connection
    """A connection of the pool. Before Python 3.12 who is cancelled at the moment it comes would not be told of that.

    On a connection of ours nothing is left open, so the end of a transaction is not asked for each time, as the pool's own way does.
    """

    __slots__ = ("_block", "_connection", "_pool", "_timeout")

    def __init__(self, pool: AsyncConnectionPool[Any], *, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout
        self._block = None if isinstance(pool, LoopPool) else pool.connection(timeout=timeout)

    async def __aenter__(self) -> AsyncConnection[Any]:
        task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        if self._block is not None:
            self._connection = await self._block.__aenter__()
        else:
            self._connection = await self._pool.getconn(self._timeout)
        if task and task.cancelling() > asked:
            cancelled = asyncio.CancelledError()
            await self.__aexit__(type(cancelled), cancelled, None)
            raise cancelled
        return self._connection  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            await self._block.__aexit__(kind, error, trace)
        else:
            await self._pool.putconn(self._connection)


async def close_with_loop(pool: AsyncConnectionPool[Any]) -> None:
    """Close a pool when the runner of its loop has cancelled its tasks, without which it closes no connection that it holds."""
    while pool.get_stats().get("pool_available"):
        # one that the server has closed is left out, and nobody is there any more to open another
        with contextlib.suppress(PoolTimeout):
            await (await pool.getconn(timeout=0.1)).close()
    with contextlib.suppress(asyncio.CancelledError):
        await pool.close()


async def _check(connection: AsyncConnection[TupleRow]) -> None:
    if not is_alive(connection):
        raise psycopg.OperationalError("the server closed this idle connection")
