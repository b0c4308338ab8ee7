"""The app's own connections for short statements, in both colours, opened at first use.

An async pool belongs to one event loop, so there is one per loop; sync callers share one. One whose loop was closed without it
is ended when another loop opens one, or with the app. A pool of the user's is used as it is, with its limits; but what takes
several statements runs at READ COMMITTED, where each sees what was committed before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.rows import TupleRow, tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout, TooManyRequests

from rota.errors import DatabaseUnavailable
from rota.postgres.ask import OPENING, ask, ask_look, ask_steps, ask_steps_sync, ask_sync
from rota.postgres.connection import BoundedConnection, Connector, OwnConnection, check_fork, is_alive, translated
from rota.postgres.dsn import Dsn
from rota.postgres.foreign import Foreign
from rota.postgres.loop_pool import LoopPool, close_with_loop, lent
from rota.postgres.query import CopySteps, Query, Row

__all__ = ["Database", "PoolUse", "UserPool"]

T = TypeVar("T")
UserPool = AsyncConnectionPool[Any] | ConnectionPool[Any]

_APP = "app"  # whom the connections are for, unless they are kept apart
# A caller who finds no connection free for this long learns it as an error rather than as a hang.
_WAIT_SECONDS = 10.0
# A server that accepts a statement and never answers is given up after this.
_PATIENCE_SECONDS = 60.0
# What those who open connections have to end when a pool is closed; they may be at it with a server that does not answer.
_CLOSE_SECONDS, _PROMPT_SECONDS = 5.0, 0.2
# Our sessions are set up for our statements. In a transaction of the user's, names are found and time is limited as the
# database and the role say; but it may not idle for longer than a lease.
_AS_THE_USER_HAS_IT = "; ".join(
    [OPENING]
    + [f"set local {name} to default" for name in ("search_path", "statement_timeout", "lock_timeout", "timezone")]
)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How many connections there may be, are open, and are lent out at this moment, and how many callers wait for one."""

    limit: int
    size: int
    used: int
    waiting: int


class Database:
    """Runs queries for callers of either colour. Open until closed; safe to use from any thread and any loop."""

    def __init__(
        self,
        address: Callable[[], Dsn],
        schema: str,
        *,
        size: int = 10,
        pools: tuple[UserPool, ...] = (),
        role: str = _APP,
        purpose: str = "",
        settings: Mapping[str, str | None] | None = None,
        everywhere: Mapping[str, str] | None = None,
        prompt: bool = False,
        looks: bool = False,
    ) -> None:
        self.schema = schema
        self._prompt = prompt
        self._looks = looks
        self._address = address
        self._settings = settings or {}
        self._everywhere = everywhere or {}
        self._size = size
        self._role = role
        self._purpose = purpose
        self._user_async = next((p for p in pools if isinstance(p, AsyncConnectionPool)), None)
        self._user_sync = next((p for p in pools if isinstance(p, ConnectionPool)), None)
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[LoopPool]] = WeakKeyDictionary()
        self._sync: ConnectionPool[Any] | None = None
        self._lock = threading.Lock()
        self._pid: int | None = None

    @property
    def dsn(self) -> Dsn:
        return self._address()

    @property
    def is_users(self) -> bool:
        """Whether its connections come from a pool of the user's."""
        return bool(self._user_async or self._user_sync)

    @property
    def users_sync(self) -> bool:
        """Whether sync callers have one of the user's."""
        return self._user_sync is not None

    @property
    def use(self) -> PoolUse:
        """How its pools are used, those of all loops and of sync callers together."""
        told = self.statistics()
        size = told.get("pool_size", 0)
        return PoolUse(
            limit=told.get("pool_max", 0),
            size=size,
            used=max(0, size - told.get("pool_available", 0)),
            waiting=told.get("requests_waiting", 0),
        )

    def statistics(self) -> dict[str, int]:
        """What the pools that are open tell of themselves, added up: see psycopg_pool, "pool stats"."""
        opened = [task.result() for task in list(self._async.values()) if task.done() and not _failed(task)]
        pools = [pool for pool in (*opened, self._sync, self._user_async, self._user_sync) if pool is not None]
        told: dict[str, int] = {}
        for pool in pools:
            for name, value in pool.get_stats().items():
                told[name] = told.get(name, 0) + value
        return told

    def apart(
        self,
        role: str,
        *,
        size: int,
        purpose: str = "",
        settings: Mapping[str, str | None] | None = None,
        everywhere: Mapping[str, str] | None = None,
        prompt: bool = False,
        looks: bool = False,
    ) -> Database:
        """The same place through so many connections of its own, for those who must not wait behind the others.

        `purpose` says what has one of them for how long, if it is `pool_size` that bounds them; `settings` are of its sessions,
        `everywhere` of those behind a pooler too, see Connector. With `prompt` a caller who is cancelled, or closes it, waits for no
        server: what it was at is left to the limits of the session.
        One that `looks` has sessions that can only read, set up by LOOKING.
        """
        return type(self)(
            self._address,
            self.schema,
            size=size,
            role=role,
            purpose=purpose,
            settings=settings,
            everywhere=everywhere,
            prompt=prompt,
            looks=looks,
        )

    @contextlib.contextmanager
    def in_words(self) -> Iterator[None]:
        """Say that the database is out of reach as everywhere, for statements of ours in a transaction that is the user's.

        What else PostgreSQL says there is about what the user did, and is handled by them.
        """
        try:
            yield
        except psycopg.Error as error:
            said = self._translated(error)
            if isinstance(said, DatabaseUnavailable):
                raise said from error
            raise

    def connector(
        self,
        role: str,
        *,
        settings: Mapping[str, str] | None = None,
        network: Mapping[str, str] | None = None,
        patience: float = BoundedConnection.patience,
        everywhere: Mapping[str, str] | None = None,
    ) -> Connector:
        """How to open a connection outside the pools, to the same place."""
        return Connector(self._address(), role, settings or {}, network or {}, patience, everywhere or {})

    async def run(self, query: Query[T]) -> T:
        """Run the query in a transaction of its own and return what it reads."""
        return await self._with_connection(lambda connection, _: ask(connection, self.schema, query))

    async def run_steps(self, steps: CopySteps[T], *, dry_run: bool = False) -> T:
        """Run the queries of one step in one transaction. With `dry_run` it is undone: only what it returns or raises is left."""
        if self._looks and not dry_run:
            return await self._with_connection(lambda connection, _: ask_look(connection, self.schema, steps))

        def use(connection: AsyncConnection[Any], limit: asyncio.Timeout) -> Awaitable[T]:
            # all together may take longer: millions of jobs do
            def went_on() -> None:
                limit.reschedule(asyncio.get_running_loop().time() + _PATIENCE_SECONDS)

            return ask_steps(connection, self.schema, steps, undo=dry_run, went_on=went_on)

        return await self._with_connection(use)

    def run_sync(self, query: Query[T]) -> T:
        return self._with_connection_sync(lambda connection: ask_sync(connection, self.schema, query))

    def run_steps_sync(self, steps: CopySteps[T], *, dry_run: bool = False) -> T:
        return self._with_connection_sync(
            lambda connection: ask_steps_sync(connection, self.schema, steps, undo=dry_run)
        )

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection for statements of the user's, with a transaction open, which commits when the block ends well."""
        self._check_fork()
        try:
            pool = self._user_async or await self._pool()
            async with lent(pool, timeout=_WAIT_SECONDS) as connection, connection.transaction():
                if not self._user_async:
                    await connection.execute(_AS_THE_USER_HAS_IT, prepare=False)
                yield connection
        except PoolTimeout as error:
            raise self._translated(error) from error

    @contextlib.contextmanager
    def transaction_sync(self) -> Iterator[Connection[Any]]:
        self._check_fork()
        try:
            pool = self._user_sync or self._pool_sync()
            with pool.connection(timeout=_WAIT_SECONDS) as connection, _patient(connection), connection.transaction():
                if not self._user_sync:
                    connection.execute(_AS_THE_USER_HAS_IT, prepare=False)
                yield connection
        except PoolTimeout as error:
            raise self._translated(error) from error

    def borrow(self, *, is_async: bool) -> Borrowed:
        """A connection for one transaction, whose end its borrower decides."""
        return Borrowed(self, is_async=is_async)

    async def close(self) -> None:
        """Close what this loop and the sync callers opened. The next use opens it again."""
        pool = await self._given_up()
        if pool is not None:
            await pool.close(timeout=_PROMPT_SECONDS if self._prompt else _CLOSE_SECONDS)
        await asyncio.to_thread(self.close_sync)

    async def close_with_loop(self) -> None:
        """The same for what this loop opened, when its runner ends it."""
        pool = await self._given_up()
        if pool is not None:
            await close_with_loop(pool)

    async def _given_up(self) -> LoopPool | None:
        """What this loop opened, which is the caller's to close; None if it has not, or could not."""
        opening = self._async.pop(asyncio.get_running_loop(), None)
        if opening is None:
            return None
        opening.cancel()  # one that is still being opened is not waited for
        await asyncio.wait([opening])
        return None if _failed(opening) else opening.result()

    def close_sync(self) -> None:
        self._end_of_closed_loops()
        with self._lock:
            pool, self._sync = self._sync, None
            if not self._async:
                self._pid = None  # nothing is open that a fork could share
        if pool is not None:
            pool.close()

    async def _with_connection(self, use: Callable[[AsyncConnection[Any], asyncio.Timeout], Awaitable[T]]) -> T:
        self._check_fork()
        try:
            pool = self._user_async or await self._pool()
            async with (
                asyncio.timeout(_PATIENCE_SECONDS) as limit,
                lent(pool, timeout=_WAIT_SECONDS) as connection,
            ):
                if self._prompt and isinstance(connection, OwnConnection):
                    connection.prompt = True
                return await use(connection, limit)
        except psycopg.Error as error:
            raise self._translated(error) from error
        except TimeoutError as error:
            raise DatabaseUnavailable(
                f"PostgreSQL did not answer within {_PATIENCE_SECONDS:g} s, and the connection was given up. What was asked of it "
                "may have happened: look before repeating it."
            ) from error

    def _with_connection_sync(self, use: Callable[[Connection[Any]], T]) -> T:
        self._check_fork()
        try:
            if self._user_sync:
                with self._user_sync.connection(timeout=_WAIT_SECONDS) as connection:
                    return use(connection)
            pool = self._pool_sync()
            connection = pool.getconn(_WAIT_SECONDS)
            try:
                return use(connection)
            finally:
                pool.putconn(connection)  # nothing is open on it that the pool's own way would have to commit
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: psycopg.Error) -> Exception:
        if isinstance(error, PoolTimeout | TooManyRequests):
            if self._role != _APP and not self._purpose:
                return DatabaseUnavailable(
                    f"No connection to PostgreSQL was there within {_WAIT_SECONDS:g} s. A worker may open one for each body that "
                    "runs, so the server is out of reach, or takes no more of them: check it, and its max_connections."
                )
            return DatabaseUnavailable(
                f"No connection to PostgreSQL was free within {_WAIT_SECONDS:g} s: the server is out of reach, or all "
                f"{self._size} connections of this app {f'for {self._purpose} ' if self._purpose else ''}are in use. Check the "
                "server, or give Rota(pool_size=...) more."
            )
        return translated(error, None if self._user_async or self._user_sync else self._address(), self.schema)

    def _check_fork(self) -> None:
        if self._pid is None:
            self._pid = os.getpid()
        check_fork(self._pid)

    async def _pool(self) -> LoopPool:
        loop = asyncio.get_running_loop()
        opening = self._async.get(loop)
        if opening is not None and opening.done() and not _failed(opening):
            return opening.result()
        if opening is None or (opening.done() and _failed(opening)):
            self._end_of_closed_loops()
            # one opening per loop, however many callers come at once; a failed one is tried again by the next caller
            opening = self._async[loop] = loop.create_task(self._open())
        return await asyncio.shield(opening)

    async def _open(self) -> LoopPool:
        # the address may start an embedded server, which takes a moment
        address = await asyncio.to_thread(self._address)
        connector = Connector(address, self._role, self._settings, everywhere=self._everywhere)
        # a pool keeps the reason of a failed start to itself: its first connection is made directly, so that the error says it
        first = await connector.connect()
        pool = LoopPool(connector, first, size=self._size)
        try:
            # until it has taken that in, which who asks next would not wait for: another would be opened
            await pool.open(wait=True, timeout=_WAIT_SECONDS)
        except BaseException:
            await first.close()
            await pool.close()
            raise
        return pool

    def _end_of_closed_loops(self) -> None:
        """Nobody can use those connections any more, or close them in order. A client for tests may open and close a loop for each of
        its requests."""
        for loop in [loop for found in self._async.keyrefs() if (loop := found()) is not None and loop.is_closed()]:
            opening = self._async.pop(loop, None)  # it knows its loop, so that nothing else would free the two
            if opening is not None and opening.done() and not _failed(opening):
                opening.result().end()

    def _pool_sync(self) -> ConnectionPool[Any]:
        with self._lock:
            if self._sync is None:
                connector = Connector(self._address(), self._role, self._settings, everywhere=self._everywhere)
                first = connector.connect_sync()
                pool = ConnectionPool(
                    connector.conninfo,
                    kwargs={"autocommit": True, "prepare_threshold": 0, "ready": [first]},
                    configure=connector.prepare_sync,
                    check=_check_sync,
                    connection_class=BoundedConnection,
                    min_size=1,
                    max_size=self._size,
                    open=False,
                    name="rota-sync",
                )
                try:
                    pool.open(wait=True, timeout=_WAIT_SECONDS)
                except BaseException:
                    first.close()
                    pool.close()
                    raise
                self._sync = pool
            return self._sync


class Borrowed(Foreign):
    """One of our connections for one transaction, whose end its borrower decides, as if it were a connection of the user's."""

    def __init__(self, database: Database, *, is_async: bool) -> None:
        super().__init__(None, is_async=is_async)
        self._database = database

    async def begin(self) -> None:
        self._block = self._database.transaction() if self.is_async else self._database.transaction_sync()
        self.native = await self._block.__aenter__() if self.is_async else self._block.__enter__()

    async def commit(self) -> None:
        block = self._take_block()
        await self._answer(block.__aexit__(None, None, None) if self.is_async else block.__exit__(None, None, None))

    async def rollback(self) -> None:
        block, undo = self._take_block(), (psycopg.Rollback, psycopg.Rollback(), None)
        await self._answer(block.__aexit__(*undo) if self.is_async else block.__exit__(*undo))

    async def _rows(self, sql: str, params: Mapping[str, Any]) -> Sequence[Row]:
        cursor = self.native.cursor(row_factory=tuple_row)
        await self._answer(cursor.execute(sql, params))
        rows: Sequence[Row] = await self._answer(cursor.fetchall())
        return rows


def _failed(opening: asyncio.Task[Any]) -> bool:
    return opening.cancelled() or opening.exception() is not None


@contextlib.contextmanager
def _patient(connection: Connection[Any]) -> Iterator[None]:
    """Wait for the user's statements as long as they take."""
    patience = getattr(connection, "patience", None)
    if patience is None:
        yield
        return
    connection.patience = math.inf  # type: ignore[attr-defined]
    try:
        yield
    finally:
        connection.patience = patience  # type: ignore[attr-defined]


def _check_sync(connection: Connection[TupleRow]) -> None:
    if not is_alive(connection):
        raise psycopg.OperationalError("the server closed this idle connection")
