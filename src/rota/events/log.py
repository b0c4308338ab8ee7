"""`app.event_log`: a log of events of one's own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from rota.errors import RotaError
from rota.events.append import Appended, NewEvent, append_event, append_events, check_events, check_expected
from rota.events.event import Event
from rota.events.read import After, check_count, check_pair, read_all, read_stream
from rota.events.source import EventSource
from rota.events.types import EventTypes
from rota.postgres.foreign import foreign
from rota.postgres.notify import Throttle, event_channel, notify
from rota.postgres.pool import Database
from rota.postgres.query import Query, identifier

__all__ = ["EventLog"]

T = TypeVar("T")


class Append(Protocol[T]):
    """What appends, with or without a word to projections."""

    def __call__(self, *, wake: bool) -> Query[T]: ...


class EventLog:
    """What happened, in streams: `orders = app.event_log("orders")`.

    The events of a stream have versions from 1, without gaps. Projections, and `read_all`, see the events of all streams in an
    order that keeps that of each. Nothing that is appended is ever changed.
    """

    def __init__(
        self,
        name: str,
        database: Callable[[], Database],
        types: EventTypes | None = None,
        connection: Any = None,
        wake: bool = True,
    ) -> None:
        self.name = name
        self.types = types or EventTypes(name)
        self.event, self.upcast = self.types.event, self.types.upcast
        self._database = database
        self._connection = connection
        self._wake = wake
        self._throttle = Throttle()

    def on(self, connection: Any, *, wake: bool = True) -> Self:
        """The same log in the transaction that is open on a connection of yours: events are there when you commit.

        Takes psycopg, asyncpg and Django connections, and SQLAlchemy's sessions and connections. `wake=False` leaves projections to
        their polling: PostgreSQL prepares no transaction (PREPARE TRANSACTION) that notifies.
        """
        foreign(connection)  # refuses what is none
        return type(self)(self.name, self._database, self.types, connection, wake)

    def bind(self, stream: str, type: Any, data: Any = ..., *, metadata: Mapping[str, Any] | None = None) -> NewEvent:
        """The event as a value, checked now: for `append_many`. It is told of as in `append`."""
        return self.types.bind(stream, type, data, metadata)

    async def append(
        self,
        stream: str,
        type: Any,
        data: Any = ...,
        expected_version: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Add an event to the end of a stream, and return its version and its place in the log.

        `type` is the name of a type, `data` plain JSON; or an instance of a class that is registered with `event`, and no data.
        With `expected_version` only if that is the version of the stream's last event, 0 if it must not exist yet; else
        WrongVersion is raised, and nothing is appended. Whoever else appends to this stream waits for the end of the transaction.
        Raises InvalidArguments before anything is stored when a name or the data cannot be.
        """
        return await self._appended(self._append_one(stream, type, data, expected_version, metadata))

    def append_sync(
        self,
        stream: str,
        type: Any,
        data: Any = ...,
        expected_version: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Appended:
        return self._appended_sync(self._append_one(stream, type, data, expected_version, metadata))

    async def append_many(
        self, events: Iterable[NewEvent], *, expected_versions: Mapping[str, int] | None = None
    ) -> list[Appended]:
        """Add events made by `bind`, to one stream or to many, in one statement; return where each is, in the order given.

        `expected_versions` has those of streams by their names. Where one of them is at another version, WrongVersion is raised and
        none of the events is appended.
        """
        new = check_events(self.name, events)
        return await self._appended(self._append(new, expected_versions)) if new else []

    def append_many_sync(
        self, events: Iterable[NewEvent], *, expected_versions: Mapping[str, int] | None = None
    ) -> list[Appended]:
        new = check_events(self.name, events)
        return self._appended_sync(self._append(new, expected_versions)) if new else []

    async def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """The events of a stream after this version, in order: all or the first so many. A stream that is not there has none."""
        return await self._run(self._read(stream, after, limit))

    def read_sync(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        return self._run_sync(self._read(stream, after, limit))

    async def read_all(self, *, after: After | None = None, limit: int = 1000) -> list[Event]:
        """The next events of all streams, at most `limit`, after an event that was read or its pair (order_xid, position).

        Whoever goes on from the last of them sees every event once, and those of a stream in order, whenever their transactions
        commit. Events are held back while an older transaction is open on the server, since it may append yet: nothing left to
        read does not mean that nothing was committed.
        """
        return await self._run(self._read_all(after, limit))

    def read_all_sync(self, *, after: After | None = None, limit: int = 1000) -> list[Event]:
        return self._run_sync(self._read_all(after, limit))

    @property
    def source(self) -> EventSource:
        """The log as projections read it."""
        names = ("position", "order_xid", "stream", "type", "data", "metadata", "version", "created_at", "shape")
        table = f"{identifier(self._database().schema)}.{identifier('events')}"
        return EventSource(name=self.name, table=table, log=self.name, **{name: identifier(name) for name in names})

    def decode(self, row: Sequence[Any], /) -> Event:
        """An event from its row, as projections read it. Raises UndecodableEvent."""
        return self.types.decode(*row)

    def _append_one(self, stream: str, type: Any, data: Any, expected: int | None, metadata: Any) -> Append[Appended]:
        new = self.types.bind(stream, type, data, metadata)
        if expected is not None:
            check_expected(self.name, {stream: expected}, [new])
        return functools.partial(append_event, new, expected)

    def _append(self, new: list[NewEvent], expected: Mapping[str, int] | None) -> Append[list[Appended]]:
        return functools.partial(append_events, self.name, new, check_expected(self.name, expected or {}, new))

    def _read(self, stream: str, after: int, limit: int | None) -> Query[list[Event]]:
        check_count("after", after, 0)
        if limit is not None:
            check_count("limit", limit, 1)
        return read_stream(self.name, stream, self.types.decode, after=after, limit=limit)

    def _read_all(self, after: After | None, limit: int) -> Query[list[Event]]:
        return read_all(self.name, self.types.decode, after=check_pair(after), limit=check_count("limit", limit, 1))

    async def _appended(self, append: Append[T]) -> T:
        if self._connection is not None:
            return await self._run(append(wake=self._wake))
        wakes = self._throttle.admits(self.name)
        appended = await self._run(append(wake=wakes))
        if self._is_to_tell(wakes):
            with contextlib.suppress(RotaError):
                await self._run(notify(event_channel(self._database().schema), self.name))
        return appended

    def _appended_sync(self, append: Append[T]) -> T:
        if self._connection is not None:
            return self._run_sync(append(wake=self._wake))
        wakes = self._throttle.admits(self.name)
        appended = self._run_sync(append(wake=wakes))
        if self._is_to_tell(wakes):
            with contextlib.suppress(RotaError):
                self._run_sync(notify(event_channel(self._database().schema), self.name))
        return appended

    def _is_to_tell(self, woke: bool) -> bool:
        """Whether projections are still to be told of an append that is committed; that they cannot be is no failure of it.

        In a transaction of the caller's each tells them, of ours the first of a moment. One that was left out, and has no such word to
        rely on, says so itself.
        """
        if woke:
            self._throttle.sent(self.name)
        return not woke and self._throttle.is_overdue(self.name)

    async def _run(self, query: Query[T]) -> T:
        database = self._database()
        if self._connection is not None:
            return await foreign(self._connection).run(query, database.schema)
        return await database.run(query)

    def _run_sync(self, query: Query[T]) -> T:
        database = self._database()
        if self._connection is not None:
            return foreign(self._connection).run_sync(query, database.schema)
        return database.run_sync(query)

    def __repr__(self) -> str:
        return f"<event log {self.name!r}>"
