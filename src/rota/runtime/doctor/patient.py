"""What is looked at: a database, an app, this machine; and the one connection through which all questions go.

Nothing here writes, and no question takes long: a statement ends after two seconds, on the server or by our giving up on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from rota import embedded
from rota.app import Rota
from rota.errors import DatabaseUnavailable, RotaError
from rota.postgres.ask import ask_sync
from rota.postgres.connection import BoundedConnection, Connector, translated
from rota.postgres.dsn import Dsn
from rota.postgres.query import Query
from rota.runtime.doctor.budgets import Budgets

__all__ = ["NoServer", "Patient"]

T = TypeVar("T")

_LIMITS = {"statement_timeout": "2s", "lock_timeout": "500ms"}
_SETTINGS = {
    **_LIMITS,
    "jit": "off",
    "max_parallel_workers_per_gather": "0",  # a look may not cost a busy server more than one of its processors
    "enable_seqscan": "off",  # stale statistics must not turn a short walk into a read of everything
    "tcp_keepalives_idle": "5",
}
_PATIENCE = 3.0  # seconds: longer than a statement may take, so that mostly the server ends it


class NoServer(Exception):
    """No database was named, and the embedded server that then serves does not run."""


@dataclass
class Patient:
    """`path` is how the app was named, None if none was; `broken` why it cannot be had; `source` where its address comes from."""

    app: Rota
    path: str | None = None
    broken: str | None = None
    source: str = ""
    #: what was typed to get here, `manage.py rota` under Django; and whether that brings its own app and database
    program: str = "rota"
    brings_app: bool = False
    #: whether the address was given with the command, so that others need it too
    named: bool = False
    #: whether the app has it in its code, so that commands without that app need it
    coded: bool = False
    budgets: Budgets = field(default_factory=Budgets)
    #: seconds after which a transaction is called old
    old_transaction: float = 300.0
    _connection: BoundedConnection | None = None
    _lost: RotaError | None = None

    @property
    def schema(self) -> str:
        return self.app.settings.schema

    @property
    def is_embedded(self) -> bool:
        return self.app.settings.dsn is None

    @property
    def dsn(self) -> Dsn:
        """Raises NoServer rather than start one: whoever looks changes nothing."""
        if self.app.settings.dsn is not None:
            return self.app.settings.dsn
        found = embedded.status()
        if not found.running or found.url is None:
            raise NoServer(f"the embedded server in {found.home} does not run")
        return Dsn(found.url, source="the embedded server")

    @property
    def connection(self) -> BoundedConnection:
        """Open and idle. One on which a question was given up is replaced once; then the database counts as lost."""
        if self._lost is not None:
            raise self._lost
        if self._connection is not None and not _is_idle(self._connection):
            self.close()
        if self._connection is None:
            try:
                self._connection = self.connect()
            except RotaError as error:
                self._lost = error
                raise
        return self._connection

    def connect(self) -> BoundedConnection:
        """Another connection: as Rota would have it, else to a server that takes no writes. Raises RotaError."""
        dsn = self.dsn
        try:
            return self._connector(dsn, "read-write").connect_sync()
        except DatabaseUnavailable as refused:
            if "read-only" not in str(refused):
                raise
            return self._connector(dsn, "any").connect_sync()

    def ask(self, query: Query[T]) -> T:
        """Raises RotaError in words, and NoServer."""
        try:
            return ask_sync(self.connection, self.schema, query)
        except psycopg.Error as error:
            raise translated(error, self.dsn, self.schema) from error

    def command(self, *words: str) -> str:
        """What to type so that it meets this database and this schema. No password is in it: see `Dsn.without_secrets`."""
        return shlex.join((*self.program.split(), *words, *self._options(self.named or self.coded)))

    def app_command(self, *words: str, option: str | None = None) -> str:
        """The same for one that is told the app, as its last word or by this option."""
        named = () if self.brings_app else (*([option] if option else ()), self.path or "APP")
        return shlex.join((*self.program.split(), *words, *named, *self._options(self.named)))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _options(self, address: bool) -> Iterator[str]:
        if self.schema != "rota" and not self.brings_app:
            yield from ("--schema", self.schema)
        if address:
            yield from ("--dsn", self.dsn.without_secrets)

    def _connector(self, dsn: Dsn, kind: str) -> Connector:
        network = {"connect_timeout": "3", "target_session_attrs": kind}
        return Connector(dsn, "doctor", _SETTINGS, network, _PATIENCE, _LIMITS)


def _is_idle(connection: BoundedConnection) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
