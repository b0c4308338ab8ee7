"""Our statements on a connection of the user's, inside the user's own transaction.

The connection is psycopg's, asyncpg's, SQLAlchemy's or Django's, known by the names of its classes so that no library is
imported for it. It is never closed, and its session is left as it was. A closed connection or an aborted transaction shows
as the driver's own error, which the user handles already.

Each driver is written once, as if it were async. On a sync connection every answer is there when the call returns, so the
same body has nothing to wait for and runs to its end in one go.

A statement meant for here casts every parameter to the type of its Python value first, so that each driver sends it alike:
`%(n)s::bigint`, `%(x)s::float8`, `%(names)s::text[]`, and `%(args)s::text::jsonb`, since the user may have taught the
driver another jsonb. It returns rows of numbers, text, booleans and times, and json as text.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import psycopg
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from rota.errors import ConfigurationError
from rota.postgres.query import Query, Row, Steps, nothing, statement

__all__ = ["Foreign", "foreign"]

T = TypeVar("T")
P = ParamSpec("P")
Params = Mapping[str, Any]


SAVEPOINT = statement("savepoint", "savepoint rota_steps")
ROLL_BACK = statement("roll_back", "rollback to savepoint rota_steps")
RELEASE = statement("release", "release savepoint rota_steps")


class Foreign(ABC):
    """A user's connection. `native` is the object the user gave."""

    def __init__(self, native: Any, *, is_async: bool) -> None:
        self.native = native
        self.is_async = is_async
        self._block: Any = None  # the transaction block that begin() opened

    async def run(self, query: Query[T], schema: str) -> T:
        """Run the query in the transaction the connection is in. A sync connection blocks the event loop meanwhile."""
        return query.read(await self._rows(query.statement.sql(schema), query.params))

    async def run_steps(self, steps: Steps[T], schema: str) -> T:
        """Run the queries of one step together, in the transaction the connection is in: after an error, none has an effect.

        Where each statement would be committed by itself, they have a transaction of their own.
        """
        alone = await self._commits_each()
        await (self.begin() if alone else self.run(SAVEPOINT.query(read=nothing), schema))
        try:
            answer: Any = None
            while True:
                try:
                    query = steps.send(answer)
                except StopIteration as end:
                    value: T = end.value
                    break
                answer = await self.run(query, schema)
        except BaseException:
            # the first error is what the user should see, also where the connection is too far gone for this
            with contextlib.suppress(Exception):
                await (self.rollback() if alone else self.run(ROLL_BACK.query(read=nothing), schema))
            raise
        await (self.commit() if alone else self.run(RELEASE.query(read=nothing), schema))
        return value

    async def _commits_each(self) -> bool:
        """Whether no transaction is open, and a statement would not open one."""
        return False

    @abstractmethod
    async def begin(self) -> None:
        """Make sure that a transaction is open whose end is ours.

        One that is open already is used, and commit() commits all of it. Refused inside a block of the user's (psycopg's
        and asyncpg's `transaction()`, Django's `atomic()`), which would own the commit.
        """

    @abstractmethod
    async def commit(self) -> None:
        """Commit the whole transaction. PostgreSQL silently rolls back one that failed: run a query last, which raises."""

    @abstractmethod
    async def rollback(self) -> None:
        """Undo the whole transaction. Harmless after a commit that raised."""

    def run_sync(self, query: Query[T], schema: str) -> T:
        return self.at_once(self.run, query, schema)

    def run_steps_sync(self, steps: Steps[T], schema: str) -> T:
        return self.at_once(self.run_steps, steps, schema)

    def begin_sync(self) -> None:
        self.at_once(self.begin)

    def commit_sync(self) -> None:
        self.at_once(self.commit)

    def rollback_sync(self) -> None:
        self.at_once(self.rollback)

    @abstractmethod
    async def _rows(self, sql: str, params: Params) -> Sequence[Row]: ...

    async def _answer(self, given: Any) -> Any:
        return await given if self.is_async else given

    def at_once(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs) -> T:
        """Run work that waits for nothing but this connection, and so for nothing at all if it is a sync one."""
        if self.is_async:
            raise ConfigurationError(
                f"A {_kind(self.native)} can only be used with await, and this is a sync call. Write "
                "`await task.on(connection).enqueue(...)` or `async with job.transaction(on=connection)`, or pass a sync "
                "connection."
            )
        try:
            work(*args, **named).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a sync connection was waited for")

    def _take_block(self) -> Any:
        block, self._block = self._block, None
        return block


class _Psycopg(Foreign):
    async def _rows(self, sql: str, params: Params) -> Sequence[Row]:
        # a cursor made by the connection would be of the user's class, which may want other placeholders
        make: Any = psycopg.AsyncCursor if self.is_async else psycopg.Cursor
        cursor = make(self.native, row_factory=tuple_row)
        _decode_as_usual(cursor)
        # not prepared: a plan that a migration made stale would abort the user's transaction
        await self._answer(cursor.execute(sql, params, prepare=False))
        try:
            return list(await self._answer(cursor.fetchall()))  # in pipeline mode this waits for the answer
        except psycopg.ProgrammingError as error:
            if error.diag.sqlstate is not None:
                raise
            return []  # the driver's own word for a statement without rows

    async def _commits_each(self) -> bool:
        return bool(self.native.autocommit and self.native.info.transaction_status == TransactionStatus.IDLE)

    async def begin(self) -> None:
        if getattr(self.native, "_num_transactions", 0):  # psycopg says it nowhere else
            raise _owned(self.native, "connection.transaction()")
        if self.native.info.transaction_status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            # a block keeps to the connection's isolation level where autocommit is on, and refuses a commit of the user's
            block = self.native.transaction()
            await self._answer(block.__aenter__() if self.is_async else block.__enter__())
            self._block = block

    async def commit(self) -> None:
        block = self._take_block()
        if block is None:
            await self._answer(self.native.commit())
        elif self.native.closed:
            raise psycopg.OperationalError("the connection is closed")  # the block would end without a word
        else:
            await self._end(block, None)

    async def rollback(self) -> None:
        block = self._take_block()
        if block is not None:
            await self._end(block, psycopg.Rollback())
        elif not self.native.closed:
            await self._answer(self.native.rollback())

    async def _end(self, block: Any, error: Exception | None) -> None:
        leave = block.__aexit__ if self.is_async else block.__exit__
        await self._answer(leave(type(error) if error else None, error, None))


class _Asyncpg(Foreign):
    async def _rows(self, sql: str, params: Params) -> Sequence[Row]:
        text, values = _positional(sql, params)
        plain = import_module("asyncpg").Record
        return [tuple(row) for row in await self.native.fetch(text, *values, record_class=plain)]

    async def _commits_each(self) -> bool:
        return not self.native.is_in_transaction()

    async def begin(self) -> None:
        if self.native.is_in_transaction():
            raise _owned(self.native, "connection.transaction()")
        block = self.native.transaction()
        await block.start()
        self._block = block

    async def commit(self) -> None:
        await self._take_block().commit()

    async def rollback(self) -> None:
        if block := self._take_block():
            await block.rollback()


class _SqlalchemyConnection(Foreign):
    @property
    def _owner(self) -> Any:
        """What begins and ends the transaction."""
        return self.native

    async def _connection(self) -> Any:
        return self.native

    async def _rows(self, sql: str, params: Params) -> Sequence[Row]:
        connection = await self._connection()
        self._check_driver(connection.dialect)
        text, values = (sql, dict(params)) if connection.dialect.driver != "asyncpg" else _positional(sql, params)
        # the driver's own SQL: no colons to escape, no types guessed; and no server-side cursor, which could not insert
        options = {"stream_results": False, "yield_per": None}
        result = await self._answer(connection.exec_driver_sql(text, values, options))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def _commits_each(self) -> bool:
        connection = await self._connection()
        return bool(getattr(connection, "sync_connection", connection).connection.dbapi_connection.autocommit)

    async def begin(self) -> None:
        if not self._owner.in_transaction():
            await self._answer(self._owner.begin())
        connection = await self._connection()
        self._check_driver(connection.dialect)
        if await self._commits_each():
            raise ConfigurationError(
                f"This {_kind(self.native)} has the isolation level AUTOCOMMIT, so nothing on it can be committed together. Use "
                "one with another isolation level, such as engine.execution_options(isolation_level='READ COMMITTED')."
            )

    async def commit(self) -> None:
        await self._answer(self._owner.commit())

    async def rollback(self) -> None:
        await self._answer(self._owner.rollback())

    def _check_driver(self, dialect: Any) -> None:
        if dialect.name != "postgresql":
            raise _elsewhere(self.native, dialect.name)
        if dialect.driver != "asyncpg" and not dialect.driver.startswith("psycopg"):
            raise ConfigurationError(
                f"This {_kind(self.native)} uses the driver {dialect.driver}, whose parameters Rota cannot write. Use "
                "postgresql+psycopg:// or postgresql+asyncpg:// in the address of the engine."
            )


class _SqlalchemySession(_SqlalchemyConnection):
    async def _connection(self) -> Any:
        # unlike session.execute, this neither flushes nor expires the user's objects
        return await self._answer(self._owner.connection())


class _SqlalchemyScopedSession(_SqlalchemySession):
    @property
    def _owner(self) -> Any:
        return self.native()  # the session of the thread or task that asks


class _Django(Foreign):
    def __init__(self, native: Any, *, is_async: bool) -> None:
        super().__init__(native, is_async=is_async)
        vendor = getattr(native, "vendor", None)  # Django's cache is a ConnectionProxy too, and has none
        if vendor != "postgresql":
            raise _elsewhere(native, vendor or "something that is no database")

    async def _rows(self, sql: str, params: Params) -> Sequence[Row]:
        # the wrapper's cursor, with all that Django and its tests hang on it
        with self.native.cursor() as cursor:
            _decode_as_usual(cursor)  # Django's own takes the time zone away
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    async def _commits_each(self) -> bool:
        return bool(self.native.get_autocommit())

    async def begin(self) -> None:
        if self.native.in_atomic_block:
            raise _owned(self.native, "transaction.atomic()")
        if self.native.get_autocommit():
            block = import_module("django.db.transaction").atomic(using=self.native.alias)
            block.__enter__()
            self._block = block

    async def commit(self) -> None:
        # a block that is marked for rollback, or whose connection was closed, would end without a word
        self.native.validate_no_broken_transaction()
        block = self._take_block()
        self.native.commit() if block is None else block.__exit__(None, None, None)

    async def rollback(self) -> None:
        if block := self._take_block():
            block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        else:
            self.native.rollback()


_KINDS: dict[str, tuple[type[Foreign], bool]] = {
    "psycopg.Connection": (_Psycopg, False),
    "psycopg.AsyncConnection": (_Psycopg, True),
    "asyncpg.Connection": (_Asyncpg, True),
    "asyncpg.PoolConnectionProxy": (_Asyncpg, True),
    "sqlalchemy.Connection": (_SqlalchemyConnection, False),
    "sqlalchemy.AsyncConnection": (_SqlalchemyConnection, True),
    "sqlalchemy.Session": (_SqlalchemySession, False),
    "sqlalchemy.AsyncSession": (_SqlalchemySession, True),
    "sqlalchemy.scoped_session": (_SqlalchemyScopedSession, False),
    "sqlalchemy.async_scoped_session": (_SqlalchemyScopedSession, True),
    "django.ConnectionProxy": (_Django, False),
    "django.BaseDatabaseWrapper": (_Django, False),
}


def foreign(connection: Any) -> Foreign:
    """The user's connection as something that runs our statements. Raises ConfigurationError for what is none we know."""
    connection = getattr(connection, "_rota_connection", connection)
    for cls in type(connection).__mro__:
        if found := _KINDS.get(f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"):
            make, is_async = found
            return make(connection, is_async=is_async)
    raise ConfigurationError(
        f"Rota cannot join the transaction of a {_kind(connection)}. It takes a psycopg Connection or AsyncConnection, an asyncpg "
        "connection, a SQLAlchemy Session or Connection or their async kin, or Django's connection. Of a pool, an engine or "
        "a session factory, pass what you get from it."
    )


def _positional(sql: str, params: Params) -> tuple[str, tuple[Any, ...]]:
    text, names = _numbered(sql)
    return text, tuple(params[name] for name in names)


@lru_cache(maxsize=512)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with `$1` in place of `%(name)s`, and the names in the order of their numbers."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        name = found["name"]
        return f"${numbers.setdefault(name, len(numbers) + 1)}" if name else "%"

    return re.sub(r"%%|%\((?P<name>\w+)\)s", numbered, sql), tuple(numbers)


def _decode_as_usual(cursor: Any) -> None:
    """Have a psycopg cursor read as the driver does by itself, whatever is registered on its connection."""
    for name in ("bool", "int2", "int4", "int8", "float8", "text", "timestamptz", "jsonb", "uuid"):
        oid = psycopg.adapters.types[name].oid
        cursor.adapters.register_loader(oid, psycopg.adapters.get_loader(oid, Format.TEXT))


def _kind(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def _owned(connection: Any, block: str) -> ConfigurationError:
    return ConfigurationError(
        f"This {_kind(connection)} is inside a `{block}` block already, which would decide when your writes are committed, after "
        "the job was told that they are. Leave that block first, or pass a connection that is in none."
    )


def _elsewhere(connection: Any, database: str) -> ConfigurationError:
    return ConfigurationError(
        f"This {_kind(connection)} leads to {database}, and Rota's tables are in PostgreSQL: one transaction cannot span both. "
        "Pass a connection to the PostgreSQL database that Rota uses, or enqueue without one, after your commit."
    )
