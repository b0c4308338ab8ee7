"""Connections as Rota opens them: they notice a dead peer, give up in time, and say who they are.

Session settings are applied in the first statement, and only where the session is really ours: behind a pooler in
transaction mode they would leak to other clients of the same server connection. Such a pooler shows itself by a backend
pid that differs from the one libpq was given. What must hold there as well is set for each transaction, see `ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import selectors
import shlex
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg.waiting import Ready

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, ForkedProcess, InvalidDsn, RotaError, SchemaMissing
from rota.postgres.conversation import held
from rota.postgres.dsn import Dsn

__all__ = [
    "IDLE_LIMIT",
    "BoundedConnection",
    "Connector",
    "Own",
    "OwnConnection",
    "check_fork",
    "is_about_data",
    "is_alive",
    "is_direct",
    "is_stale_plan",
    "migrate_command",
    "translated",
]

T = TypeVar("T")

# Client-side keepalives find a silent peer within 8 s; unacknowledged data is given up after 5 s. Both are shorter than
# the lease less its margin, so a process learns that it is cut off before anyone may take what it holds.
_NETWORK = {
    "connect_timeout": "5",
    "keepalives": "1",
    "keepalives_idle": "3",
    "keepalives_interval": "1",
    "keepalives_count": "5",
    "tcp_user_timeout": "5000",
    "target_session_attrs": "read-write",
}

#: How long a transaction of ours may idle: never longer than the lease, see the design of takeover.
IDLE_LIMIT = "15s"

_SESSION: dict[str, str] = {
    "default_transaction_isolation": "read committed",  # every statement of ours is written for it
    "default_transaction_read_only": "off",
    "statement_timeout": "30s",  # no statement of ours is long; one that hangs must not hang its caller
    "lock_timeout": "10s",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": IDLE_LIMIT,
    "search_path": "pg_catalog, pg_temp",  # all our names are qualified
    "timezone": "UTC",
    # the driver reads times and intervals in these alone
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "client_min_messages": "warning",
    # the server forgets a client that went silent, but never sooner than its lease ends
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# What a server may take to end a statement whose caller was cancelled.
_CANCEL_SECONDS = 5.0
# The limits of time among them. Behind a pooler those of the database or the role count, and may be too short for us.
_LIMITS = ("statement_timeout", "lock_timeout", "transaction_timeout")


class Own:
    """What we know of a connection that we opened."""

    #: whether it was set up, so that this is not done again when a pool takes it in
    prepared = False
    #: whether the session is ours alone, and set up by us, or a transaction pooler stands in between
    direct = False
    #: whether a pooler stands in between, and transactions there begin at a stricter level or with shorter limits of time than
    #: our queries are written for
    strict = False
    #: the limits of time for a transaction of ours behind a pooler
    limits: Mapping[str, str] = {}


class OwnConnection(Own, AsyncConnection[TupleRow]):
    """An async connection of ours.

    While it is prompt, it is given up at once when its caller is cancelled. The driver would first ask the server to cancel, and
    wait for that; a server that is silent would be waited for twice.
    """

    prompt = False
    #: what all queries are asked by where the session is ours, see `ask`
    kept_cursor: AsyncCursor[TupleRow] | None = None
    #: called when there is something to read while nothing is asked, on one that is prompt; see `listening`
    listen: Callable[[], None] | None = None

    @classmethod
    async def connect(cls, conninfo: str = "", *, ready: list[Any] | None = None, **options: Any) -> Self:  # type: ignore[override]
        """A new one, or one that is `ready`: so a pool begins with what is open already."""
        return ready.pop() if ready else await super().connect(conninfo, **options)

    async def wait(self, gen: PQGen[T], *args: Any, **named: Any) -> T:
        if args or named:  # with limits of its own, as for notifications
            return await super().wait(gen, *args, **named)
        try:
            return await held(gen, self.pgconn, self.listen)
        except asyncio.CancelledError:
            if self.prompt:
                self.pgconn.finish()
            elif self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._cut_short(gen)
            raise

    async def _cut_short(self, gen: PQGen[Any]) -> None:
        """Have the server end what it is at, so that the connection can be used again; if it does not, give that up."""
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self.cancel_safe(timeout=_CANCEL_SECONDS)
                await held(gen, self.pgconn)
        except psycopg.errors.QueryCanceled:
            pass
        except (TimeoutError, psycopg.Error):
            self.pgconn.finish()

    async def close(self) -> None:
        if self.listen is not None and not self.closed:
            # another connection may soon have a socket of this number
            asyncio.get_running_loop().remove_reader(self.pgconn.socket)
        await super().close()


class BoundedConnection(Own, Connection[TupleRow]):
    """A sync connection on which no statement waits for ever.

    A peer that takes what we send and never answers is not found by keepalives, and the driver waits as long as it takes.
    """

    patience = 30.0
    kept_cursor: Cursor[TupleRow] | None = None
    #: when the session was last seen to be well, on the clock of `boottime`: nothing had come from the server, no goodbye either
    well_at = 0.0

    @classmethod
    def connect(cls, conninfo: str = "", *, ready: list[Any] | None = None, **options: Any) -> Self:  # type: ignore[override]
        """A new one, or one that is `ready`: so a pool begins with what is open already."""
        with contextlib.suppress(IndexError):  # several threads of a pool may ask at once
            if ready:
                return cast(Self, ready.pop())
        return super().connect(conninfo, **options)

    def wait(self, gen: PQGen[T], *args: Any, **named: Any) -> T:
        return super().wait(self._bounded(gen), *args, **named)

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        """The same conversation with the server, given up when there is still nothing to read at the end of the time."""
        until = time.monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                asked_at = boottime()
                ready = yield wanted
                if ready == Ready.NONE:
                    self.well_at = asked_at
                    if time.monotonic() > until:
                        raise psycopg.OperationalError(f"PostgreSQL did not answer within {self.patience:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return cast(T, end.value)


@dataclass(frozen=True, slots=True)
class Connector:
    """How to connect for one purpose. `role` is the part of the process, shown in `application_name`.

    `settings` hold where the session is ours, None for one that is left as the database and the role have it; `everywhere`
    hold behind a pooler too, where they cost a block around each query.
    """

    dsn: Dsn
    role: str
    settings: Mapping[str, str | None] = field(default_factory=dict)
    network: Mapping[str, str] = field(default_factory=dict)
    patience: float = BoundedConnection.patience  # seconds a statement may take before its connection is given up
    everywhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def conninfo(self) -> str:
        name = f"rota:{self.role}@{socket.gethostname()}"[:63]
        return self.dsn.with_defaults(application_name=name, **{**_NETWORK, **self.network})

    async def connect(self) -> OwnConnection:
        try:
            connection = await OwnConnection.connect(self.conninfo, autocommit=True, prepare_threshold=0)
        except psycopg.Error as error:
            raise translated(error, self.dsn) from error
        connection.prompt = True
        try:
            await self.prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    def connect_sync(self) -> BoundedConnection:
        try:
            connection = BoundedConnection.connect(self.conninfo, autocommit=True, prepare_threshold=0)
        except psycopg.Error as error:
            raise translated(error, self.dsn) from error
        connection.patience = self.patience
        try:
            self.prepare_sync(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def prepare(self, connection: OwnConnection) -> None:
        """Make a fresh connection ours: session settings where the session is ours, none behind a pooler."""
        if connection.prepared:
            return
        try:
            cursor = await connection.execute(*self._first_statement(connection), prepare=False)
            self._mark(connection, await cursor.fetchone())
        except psycopg.Error as error:
            raise translated(error, self.dsn) from error

    def prepare_sync(self, connection: BoundedConnection) -> None:
        if connection.prepared:
            return
        try:
            cursor = connection.execute(*self._first_statement(connection), prepare=False)
            self._mark(connection, cursor.fetchone())
        except psycopg.Error as error:
            raise translated(error, self.dsn) from error

    def _first_statement(self, connection: OwnConnection | BoundedConnection) -> tuple[str, dict[str, Any]]:
        settings = self._all_settings()
        limits = self._limits()
        return (
            "/* rota:settings */ select pg_catalog.pg_backend_pid() = %(pid)s, "
            "pg_catalog.current_setting('default_transaction_isolation'), "
            # a limit of zero is none
            "exists (select from unnest(%(limits)s::text[], %(ours)s::interval[]) as l(name, ours), "
            "cast(pg_catalog.current_setting(l.name, true) as interval) as given "
            "where given > '0' and (given < l.ours or l.ours = '0')), "
            "case when pg_catalog.pg_backend_pid() = %(pid)s "
            "then (select pg_catalog.count(pg_catalog.set_config(s.name, s.value, false)) "
            "from unnest(%(names)s::text[], %(values)s::text[]) as s(name, value) "
            # not every version knows every one of them
            "where pg_catalog.current_setting(s.name, true) is not null) end",
            {
                "pid": connection.pgconn.backend_pid,
                "names": list(settings),
                "values": list(settings.values()),
                "limits": list(limits),
                "ours": list(limits.values()),
            },
        )

    def _all_settings(self) -> dict[str, str]:
        settings = {**_SESSION, **self.settings, **self.everywhere}
        return {name: value for name, value in settings.items() if value is not None}

    def _limits(self) -> dict[str, str]:
        settings = self._all_settings()
        return {name: settings[name] for name in _LIMITS}

    def _mark(self, connection: OwnConnection | BoundedConnection, told: TupleRow | None) -> None:
        connection.direct, isolation, is_short = told[:3] if told else (False, "", False)
        if not connection.direct:
            connection.strict = isolation != "read committed" or is_short or bool(self.everywhere)
            connection.limits = {**self._limits(), **self.everywhere}
            connection.prepare_threshold = None  # the next statement may run on another server connection
        connection.prepared = True


def is_direct(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether the session is one of ours, set up by us, and no transaction pooler stands in between."""
    return isinstance(connection, Own) and connection.direct


def is_alive(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    """Whether an idle connection is still connected, as far as this machine knows; costs no round trip.

    A server that restarted has sent its goodbye: reading it here means the next statement is not sent into the void,
    where nobody could say whether it ran.
    """
    if connection.closed:
        return False
    try:
        # an idle connection has nothing to say; what can be read is a goodbye, and behind it the end
        while _can_be_read(connection.pgconn.socket):
            connection.pgconn.consume_input()
    except (psycopg.Error, OSError, ValueError):
        return False
    return bool(connection.pgconn.status == psycopg.pq.ConnStatus.OK)


if hasattr(select, "poll"):

    def _can_be_read(socket: int) -> bool:
        asking = select.poll()  # of all ways to ask the only one that opens nothing, and takes any number
        asking.register(socket, select.POLLIN)
        return bool(asking.poll(0))

else:

    def _can_be_read(socket: int) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(socket, selectors.EVENT_READ)
            return bool(selector.select(0))


# What may go away by itself: connection (08), resources (53), operator and shutdown (57), rollback for concurrency (40),
# system (58), a session given up for idling (25P03), locks not available, a server that has become read-only.
_TRANSIENT = ("08", "53", "57", "40", "58", "25P03", "55P03", "25006")
_MISSING = ("3F000", "42P01", "42883", "42703")
_WRONG_ADDRESS = ("28P01", "28000", "3D000")
# A connection that was refused carries no code, only words.
_WRONG_ADDRESS_WORDS = re.compile(
    r"authentication failed|FATAL:.*does not exist|invalid (integer value|port number|connection option)"
)


def translated(error: psycopg.Error, dsn: Dsn | None = None, schema: str | None = None) -> RotaError:
    """The error in words: out of reach, without its tables, or truly a fault (then it says what PostgreSQL said)."""
    state = error.sqlstate or ""
    # libpq divides into lines what becomes a clause here
    said = _without_secrets(" ".join((error.diag.message_primary or str(error)).split()).rstrip(".?"), dsn)
    where = f" ({dsn})" if dsn else ""
    if state.startswith(_MISSING):
        return SchemaMissing(
            f"The database{where} lacks what Rota needs: {said}. Run `{migrate_command(schema)}` on it."
        )
    if state in _WRONG_ADDRESS or (not state and _WRONG_ADDRESS_WORDS.search(said)):
        return InvalidDsn(
            f"PostgreSQL cannot be had at this address{where}: {said}. Check user, password, port and database name."
        )
    if state == "55P03":
        return DatabaseUnavailable(
            f"PostgreSQL{where} did not do it: {said}. Someone holds a lock on what it needs; pg_locks tells who. "
            "Nothing is wrong with the call: repeat it."
        )
    without_code = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if without_code or state.startswith(_TRANSIENT) or is_stale_plan(error):
        return DatabaseUnavailable(
            f"PostgreSQL{where} did not do it: {said}. Nothing is wrong with the call; check that the server is up and "
            "reachable, then repeat it."
        )
    if state == "42501" and schema is not None:
        role = dsn.parameters.get("user") if dsn else None
        return RotaError(
            f"PostgreSQL refused a statement of Rota's: {said}. {f'Role {role!r}' if role else 'The role that is logged in'} may "
            f"not do this. Grant it {schema}_worker to work and to change anything, {schema}_enqueue to enqueue and emit, or "
            f"{schema}_read to look; `{migrate_command(schema)} --roles` makes these and renews what they may do."
        )
    return RotaError(f"PostgreSQL refused a statement of Rota's: {said}")


def migrate_command(schema: str | None) -> str:
    """What to type so that this schema has its tables."""
    return "rota migrate" if schema in (None, "rota") else f"rota migrate --schema {shlex.quote(str(schema))}"


def is_stale_plan(error: psycopg.Error) -> bool:
    """A migration changed what a prepared statement returns: on a new connection the same statement works."""
    return error.sqlstate == "0A000" and "cached plan" in str(error)


def is_about_data(error: BaseException | None) -> bool:
    """Whether PostgreSQL refused the values it was given (22), by a constraint (23), or for their size and depth (54), rather
    than the statement."""
    return isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith(("22", "23", "54"))


def _without_secrets(text: str, dsn: Dsn | None) -> str:
    password = dsn.parameters.get("password") if dsn else None
    return text.replace(password, "***") if password else text


def check_fork(pid: int) -> None:
    """Refuse to go on in a forked child with the parent's sockets."""
    if pid != os.getpid():
        raise ForkedProcess(
            f"This Rota opened its connections in process {pid}, and is now used in its forked child {os.getpid()}. The two "
            "would talk over the same sockets. Start it after the fork, or use the 'spawn' start method."
        )
