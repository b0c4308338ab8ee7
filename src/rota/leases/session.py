"""The session that a lease is kept on: it holds the lock that proves life, and its end is noticed at once."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import psycopg

from rota.clock import boottime
from rota.leases.bell import Bell
from rota.leases.members import hold_lock
from rota.postgres.ask import ask_sync
from rota.postgres.connection import BoundedConnection, Connector, is_direct, translated
from rota.postgres.keys import lock_key
from rota.postgres.query import Query

__all__ = ["ControlSession"]

T = TypeVar("T")

# That the other end has hung up shows also behind an answer that nobody has read yet. Where that cannot be asked for, whatever
# there is to read may be a goodbye.
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLIN)


class ControlSession:
    """Opened again and again; used by one thread. `pooled` says that no session is ours: then there are no locks and no news."""

    def __init__(self, connector: Connector, schema: str, bell: Bell) -> None:
        self.connection: BoundedConnection | None = None
        self.pooled = False
        #: whether it waits for the server, for a name to be resolved, or for the network
        self.asking = False
        self.asked_at = self.opened_at = boottime()
        self._connector = connector
        self._schema = schema
        self._bell = bell
        self._asleep = _asleep()

    @property
    def stands(self) -> bool:
        return self.connection is not None

    @property
    def well_at(self) -> float | None:
        """When it was last seen to be well; None when there is none."""
        connection = self.connection
        return None if connection is None else connection.well_at

    @property
    def still_stands(self) -> bool:
        """Whether nobody has ended it, as far as this machine knows. Safe from any thread, also while another uses it.

        A machine that was asleep knows nothing of that yet, until it has asked.
        """
        connection = self.connection
        if connection is None or _asleep() - self._asleep > 0.1:
            return False
        line = select.poll()
        try:
            line.register(connection.fileno(), _HUNG_UP)
            # if it has been closed meanwhile, that may have been another line
            return not line.poll(0) and self.connection is connection and not connection.closed
        except (psycopg.Error, OSError, ValueError):
            return False

    @property
    def lost(self) -> bool:
        """Whether a statement has found its end."""
        return self.connection is None or self.connection.closed

    def open(self) -> BoundedConnection:
        """Have a new one. Raises what stands in the way."""
        self.close()
        self.asked_at = boottime()
        with self._asking():
            self.connection = connection = self._connector.connect_sync()
        connection.well_at = self.asked_at
        self.opened_at = boottime()
        self.pooled = not is_direct(connection)
        return connection

    def prove(self, name: str) -> int | None:
        """Take the lock of this name and return its key; None if it cannot be had."""
        if self.pooled:
            return None
        key = lock_key(self._schema, "member", name)
        return key if self.ask(hold_lock(key)) else None

    def ask(self, query: Query[T]) -> T:
        connection = self.connection
        assert connection is not None
        asked_at, asleep = boottime(), _asleep()
        with self._asking(), self.in_words():
            answer = ask_sync(connection, self._schema, query)
        # it stood when it was asked, and perhaps no longer: the answer may have waited for us
        connection.well_at = max(connection.well_at, asked_at)
        self._asleep = asleep
        return answer

    def rest(self, seconds: float, hand_on: Callable[[BoundedConnection], None]) -> None:
        """Rest until the server says something, which is handed on, or the bell rings. Raises when the session has ended."""
        connection = self.connection
        assert connection is not None
        with self.in_words():
            if self._readable(connection, seconds):
                connection.pgconn.consume_input()
                hand_on(connection)  # first of all: a job waits for it
                self._readable(connection, 0.0)

    @contextlib.contextmanager
    def _asking(self) -> Generator[None]:
        self.asking = True
        try:
            yield
        finally:
            self.asking = False

    @contextlib.contextmanager
    def in_words(self) -> Generator[None]:
        """Let no error of the driver's out: whoever waits for an answer is told what ended the session."""
        try:
            yield
        except psycopg.Error as error:
            raise translated(error, self._connector.dsn) from error

    def _readable(self, connection: BoundedConnection, seconds: float) -> bool:
        """As long as the server says nothing, the session is well: a goodbye would be something."""
        looked_at = boottime()
        if self._bell.rest(seconds, connection.fileno()):
            return True
        connection.well_at = looked_at
        return False

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()


def _asleep() -> float:
    """For how many seconds this machine has been asleep, all in all."""
    return boottime() - time.monotonic()
