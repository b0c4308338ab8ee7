"""Whether the server lets anyone in: found out before a peer is ended for the loss of its session.

A process that lost its session, and is told on its way back that the server stops or starts, relies on nobody ending it
meanwhile. But a server that stops the patient way, which tells newcomers the same, goes on serving the sessions it has. So a
free lock is believed only by who was let in when the peer had had its time to come back: then it could have come back too.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from datetime import datetime

import psycopg

from rota.errors import RotaError
from rota.postgres.connection import Connector, is_direct

__all__ = ["Door", "is_being_replaced", "is_recovering"]

# What a server says of itself as it stops or starts. The next to let anyone in is another one, by its start time.
_REPLACED = re.compile("the database system is (starting up|shutting down|not yet accepting connections)")
# After the crash of one of its processes, which ends every session: then it goes on as the same.
_RECOVERING = re.compile("the database system is in recovery mode")
_LET_IN_AT = "/* rota:let_in_at */ select backend_start from pg_stat_activity where pid = pg_backend_pid()"


class Door:
    """`open_at` is when we were last let in, by the database's clock."""

    def __init__(self, connector: Connector, on_open: Callable[[], None]) -> None:
        self.open_at: datetime | None = None
        self._connector = connector
        self._on_open = on_open
        self._thread: threading.Thread | None = None

    def knock(self) -> None:
        """Try to be let in, in a thread of its own: a server that does not answer must not hold up who asks."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._knock, name="rota-door", daemon=True)
            self._thread.start()

    def _knock(self) -> None:
        with (
            contextlib.suppress(RotaError, psycopg.Error, OSError),
            contextlib.closing(self._connector.connect_sync()) as connection,
        ):
            # a pooler lets us in where the server would not
            if is_direct(connection) and (row := connection.execute(_LET_IN_AT, prepare=False).fetchone()):
                self.open_at = row[0]
                self._on_open()


def is_being_replaced(error: Exception) -> bool:
    """Whether the server says that it stops or starts."""
    return _all_say(_REPLACED, error)


def is_recovering(error: Exception) -> bool:
    """Whether the server says that all sessions were ended by a crash, and none begun since."""
    return _all_say(_RECOVERING, error)


def _all_say(words: re.Pattern[str], error: Exception) -> bool:
    """Every server at our address: one of several may be none of those we were on."""
    said = str(error.__cause__ or error)
    tries = [line for line in said.splitlines() if line.startswith("- host:")] or [said]
    return all(map(words.search, tries))
