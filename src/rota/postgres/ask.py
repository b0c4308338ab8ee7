"""Running queries on a connection: each in a transaction of its own, at READ COMMITTED, for which they are written.

A session of ours has that level as its default. Behind a pooler in transaction mode, and on a connection from a pool of the
user's, the default is what the database or the role says, or what another client left behind. A query goes alone there as
well, in one round trip. PostgreSQL refuses one for what others do at the same time at stricter levels only: then it had no
effect, and is repeated in a block that sets the level. Where the default is known to be stricter, such a block comes first.
The same goes for limits of time behind a pooler: a block sets ours, and comes first where the others' are known to be shorter,
or where ours matter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, AsyncRawCursor, Connection, Cursor, RawCursor
from psycopg.abc import Loader
from psycopg.adapt import Transformer
from psycopg.errors import DataError, Error, SerializationFailure
from psycopg.pq import Format
from psycopg.rows import tuple_row

from rota.postgres.connection import IDLE_LIMIT, BoundedConnection, Own, OwnConnection, is_direct, is_stale_plan
from rota.postgres.look import is_setting_up
from rota.postgres.query import Copy, CopySteps, Query, Row, Steps, Unreadable
from rota.postgres.spent import spend

__all__ = ["OPENING", "ask", "ask_look", "ask_steps", "ask_steps_sync", "ask_sync", "run_apart"]

T = TypeVar("T")

#: How a block of ours begins where the session is not set up for it. Whoever freezes in it may not keep its locks.
OPENING = (
    f"set transaction isolation level read committed; set local idle_in_transaction_session_timeout = '{IDLE_LIMIT}'"
)


async def ask(connection: AsyncConnection[Any], schema: str, query: Query[T]) -> T:
    """Run the query in a transaction of its own and return what it reads. Nothing may be open on the connection."""
    return query.read(await _alone(connection, schema, query))


def ask_sync(connection: Connection[Any], schema: str, query: Query[T]) -> T:
    return query.read(_alone_sync(connection, schema, query))


async def ask_steps(
    connection: AsyncConnection[Any],
    schema: str,
    steps: CopySteps[T],
    *,
    undo: bool = False,
    went_on: Callable[[], object] = lambda: None,
) -> T:
    """Run the queries of one step in one transaction; with `undo` only what it returns or raises is left of it.

    `went_on` is called when the server has answered a query, or has taken a part of what is copied.
    """
    spend(2)  # to begin and to end it
    async with connection.transaction(force_rollback=undo):
        if not is_direct(connection):
            spend()
            await connection.execute(_opening(connection), prepare=False)
        answer: Any = None
        while True:
            try:
                query = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(query, Copy):
                async with connection.cursor().copy(query.statement.numbered(schema)[0]) as copy:
                    for rows in query.rows:
                        await copy.write(rows)
                        went_on()
                answer = None
            else:
                answer = query.read(await _rows(connection, schema, query))
            went_on()


async def ask_look(connection: AsyncConnection[Any], schema: str, steps: CopySteps[T]) -> T:
    """Run the queries of a look on a connection that is for looking.

    Where its session is ours it is set up for that, and nothing is written that would have to hold together: each query is a
    transaction of its own, which saves as many round trips as a short look has queries. Elsewhere they have one, as other steps do.
    The limit of time is that of the session: a look here has none of its own.
    """
    if not is_direct(connection):
        return await ask_steps(connection, schema, steps)

    answer: Any = None
    while True:
        try:
            query = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        assert isinstance(query, Query), "nothing is copied by a look"
        answer = None if is_setting_up(query) else await ask(connection, schema, query)


async def run_apart(run: Callable[[Query[Any]], Awaitable[Any]], steps: Steps[T]) -> T:
    """Run the queries of something that may end anywhere in between, one by one: each is a transaction of its own."""
    answer: Any = None
    while True:
        try:
            query = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = await run(query)


def ask_steps_sync(connection: Connection[Any], schema: str, steps: CopySteps[T], *, undo: bool = False) -> T:
    with connection.transaction(force_rollback=undo):
        if not is_direct(connection):
            connection.execute(_opening(connection), prepare=False)
        answer: Any = None
        while True:
            try:
                query = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(query, Copy):
                with connection.cursor().copy(query.statement.numbered(schema)[0]) as copy:
                    for rows in query.rows:
                        copy.write(rows)
                answer = None
            else:
                answer = query.read(_rows_sync(connection, schema, query))


def _opening(connection: AsyncConnection[Any] | Connection[Any]) -> str:
    """How a block begins on this connection. A pool of the user's keeps its limits of time."""
    limits = connection.limits if isinstance(connection, Own) else {}
    if not limits:
        return OPENING
    values = ", ".join(f"('{name}', '{value}')" for name, value in limits.items())
    return (
        f"{OPENING}; select pg_catalog.set_config(s.name, s.value, true) from (values {values}) as s(name, value) "  # noqa: S608
        # not every version knows every one of them
        "where pg_catalog.current_setting(s.name, true) is not null"
    )


def _is_strict(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    return isinstance(connection, Own) and connection.strict


async def _alone(connection: AsyncConnection[Any], schema: str, query: Query[Any]) -> list[Row]:
    if not _is_strict(connection):
        with contextlib.suppress(SerializationFailure):
            if connection.autocommit:
                return await _rows(connection, schema, query)
            # a block where the driver would open one, so that a commit which is refused shows here
            async with connection.transaction():
                return await _rows(connection, schema, query)
    spend(3)
    async with connection.transaction():
        await connection.execute(_opening(connection), prepare=False)
        return await _rows(connection, schema, query)


def _alone_sync(connection: Connection[Any], schema: str, query: Query[Any]) -> list[Row]:
    if not _is_strict(connection):
        block = contextlib.nullcontext() if connection.autocommit else connection.transaction()
        with contextlib.suppress(SerializationFailure), block:
            return _rows_sync(connection, schema, query)
    with connection.transaction():
        connection.execute(_opening(connection), prepare=False)
        return _rows_sync(connection, schema, query)


async def _rows(connection: AsyncConnection[Any], schema: str, query: Query[Any]) -> list[Row]:
    spend()
    text, names = query.statement.numbered(schema)
    cursor = _cursor(connection)
    try:
        await cursor.execute(text, [query.params[name] for name in names], binary=query.binary)
    except Error as error:
        if is_stale_plan(error):
            await connection.close()
        raise
    try:
        return await cursor.fetchall() if _has_rows(cursor) else []
    except DataError:
        if not query.values_apart:
            raise
        return _apart(cursor)


def _rows_sync(connection: Connection[Any], schema: str, query: Query[Any]) -> list[Row]:
    text, names = query.statement.numbered(schema)
    cursor = _cursor_sync(connection)
    try:
        cursor.execute(text, [query.params[name] for name in names], binary=query.binary)
    except Error as error:
        if is_stale_plan(error):
            connection.close()
        raise
    try:
        return cursor.fetchall() if _has_rows(cursor) else []
    except DataError:
        if not query.values_apart:
            raise
        return _apart(cursor)


def _cursor(connection: AsyncConnection[Any]) -> AsyncCursor[Any]:
    """One that makes tuples, whatever a connection of the user's makes.

    Where the session is ours one serves all statements: what a new one has to find out about their values takes a third of the time
    until a small statement is sent.
    """
    if not is_direct(connection):
        return AsyncRawCursor(connection, row_factory=tuple_row)
    assert isinstance(connection, OwnConnection)
    if connection.kept_cursor is None:
        connection.kept_cursor = AsyncRawCursor(connection, row_factory=tuple_row)
    return connection.kept_cursor


def _cursor_sync(connection: Connection[Any]) -> Cursor[Any]:
    if not is_direct(connection):
        return RawCursor(connection, row_factory=tuple_row)
    assert isinstance(connection, BoundedConnection)
    if connection.kept_cursor is None:
        connection.kept_cursor = RawCursor(connection, row_factory=tuple_row)
    return connection.kept_cursor


def _has_rows(cursor: AsyncCursor[Any] | Cursor[Any]) -> bool:
    """Whether the statement returns any; the driver's own way to ask describes every column of them."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


def _apart(cursor: AsyncCursor[Any] | Cursor[Any]) -> list[Row]:
    """The rows, read value by value."""
    result, adapting = cursor.pgresult, Transformer(cursor)
    assert result is not None
    loaders = [adapting.get_loader(result.ftype(at), Format(result.fformat(at))) for at in range(result.nfields)]

    def value(loader: Loader, given: bytes | None) -> Any:
        try:
            return None if given is None else loader.load(given)
        except DataError as error:
            return Unreadable(str(error))

    return [
        tuple(value(loader, result.get_value(row, at)) for at, loader in enumerate(loaders))
        for row in range(result.ntuples)
    ]
