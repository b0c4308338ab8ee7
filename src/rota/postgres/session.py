"""A connection kept for one purpose, opened again when it breaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from rota.errors import DatabaseUnavailable
from rota.postgres.ask import ask, ask_steps
from rota.postgres.connection import Connector, OwnConnection, check_fork, is_direct, translated
from rota.postgres.listening import Listener
from rota.postgres.query import Query, Steps

__all__ = ["Session"]

T = TypeVar("T")


class Session:
    """One dedicated connection. Statements run one at a time; after a failure the next one connects anew.

    With a listener it hears a channel from its first statement on, as long as the session is ours; what was said while there was none
    is not heard, and may be seen by that statement.
    """

    def __init__(
        self, connector: Connector, schema: str, *, deadline: float = 30.0, listener: Listener | None = None
    ) -> None:
        self._connector = connector
        self._schema = schema
        self._deadline = deadline
        self._listener = listener
        self._connection: OwnConnection | None = None
        self._lock = asyncio.Lock()
        self._pid = os.getpid()
        #: how many were run, for the figures
        self.statements = 0
        #: how many connections it has had, one after the other
        self.opened = 0

    async def run(self, query: Query[T]) -> T:
        """Run the query in a transaction of its own. Raises DatabaseUnavailable when its outcome is not known."""
        return await self._run(query.statement.name, lambda connection: ask(connection, self._schema, query))

    async def run_steps(self, steps: Steps[T], what: str) -> T:
        """Run the queries of one step in one transaction. Otherwise the same."""
        return await self._run(what, lambda connection: ask_steps(connection, self._schema, steps))

    async def _run(self, what: str, use: Callable[[AsyncConnection[TupleRow]], Awaitable[T]]) -> T:
        async with self._lock:
            self.statements += 1
            try:
                async with asyncio.timeout(self._deadline):
                    connection = await self._connected()
                    try:
                        return await use(connection)
                    finally:
                        if self._listener is not None:
                            self._listener.hand_on(connection)
            except psycopg.Error as error:
                raise translated(error, self._connector.dsn, self._schema) from error
            except TimeoutError as error:
                await self._drop()
                raise DatabaseUnavailable(
                    f"PostgreSQL did not answer {what!r} within {self._deadline:g} s; the connection was given up."
                ) from error
            except asyncio.CancelledError:
                # the statement may be half-way: its connection cannot be used for another
                await self._drop()
                raise

    @property
    def is_direct(self) -> bool:
        """Whether it is known to have a session of the server to itself; False before it has any."""
        return self._connection is not None and is_direct(self._connection)

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connected(self) -> OwnConnection:
        check_fork(self._pid)
        if self._connection is None or self._connection.closed:
            connection = self._connection = await self._connector.connect()
            self.opened += 1
            if self._listener is not None and is_direct(connection):
                try:
                    await self._listener.begin(connection)
                except BaseException:
                    await self._drop()
                    raise
                if self.opened > 1:
                    self._listener.ended()
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
