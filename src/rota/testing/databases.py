"""A database per test, cloned from a template that holds Rota's tables and the movable clock.

The template is built once per server and named by a digest of all that goes into it, so a server that is kept between
runs keeps it too, and two releases can share that server. Nothing here needs more than the right to create databases.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.identity import adopt
from rota.postgres.keys import lock_key
from rota.postgres.schema import migrate, migration_files
from rota.testing.clock import INSTALL_CLOCK, install_clock

__all__ = ["DatabaseServer"]

_PREFIX = "rota_test_"
_GONE_WITHIN = 2.0  # seconds that terminated sessions get to leave before the drop waits for them itself


class DatabaseServer:
    """A PostgreSQL server that gives each test a database of its own. Used by one thread at a time; close it.

    `volatile` says that its data need not survive a crash, which allows the faster way to copy. On a server that is kept,
    databases that killed runs left behind are dropped when the next run begins.
    """

    def __init__(self, url: str, *, volatile: bool = False) -> None:
        self.url = Dsn(url).conninfo
        self._volatile = volatile
        self._run = secrets.token_hex(6)
        self._count = 0
        self._templates: dict[str, str] = {}
        self._open: Connection[Any] | None = None

    def create_database(self, schema: str = "rota") -> str:
        """A fresh database with Rota's tables in this schema, adopted and ready for workers; returns its address."""
        template = self._template(schema)
        self._count += 1
        name = f"{_PREFIX}{self._run}_{self._count}"
        # Copying files costs two checkpoints and then half of what logging every page does: cheap without fsync only.
        strategy: LiteralString = " strategy file_copy" if self._volatile and self._version >= 150000 else ""
        self._execute("create database {} template {}" + strategy, name, template)
        dsn = make_conninfo(self.url, dbname=name)
        query = adopt(None)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(query.statement.sql(schema).encode(), query.params, prepare=False)
        return dsn

    def drop_database(self, dsn: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._drop(Dsn(dsn).database)

    @contextlib.contextmanager
    def database(self, schema: str = "rota") -> Iterator[str]:
        """A database for the length of a block."""
        dsn = self.create_database(schema)
        try:
            yield dsn
        finally:
            self.drop_database(dsn)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _template(self, schema: str) -> str:
        if schema not in self._templates:
            parts = [schema, INSTALL_CLOCK, *(f"{m.number} {m.checksum}" for m in migration_files())]
            name = f"rota_template_{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:16]}"
            with self._alone("template"):
                if not self._exists(name):
                    self._build(name, schema)
            self._templates[schema] = name
        return self._templates[schema]

    def _build(self, name: str, schema: str) -> None:
        """Under another name until it is whole: a killed build is never taken for a template."""
        draft = f"{name}_draft"
        self._drop(draft)
        self._execute("create database {}", draft)
        connector = Connector(Dsn(make_conninfo(self.url, dbname=draft)), "test")
        migrate(connector, schema)
        with connector.connect_sync() as connection:
            connection.execute(install_clock(schema).encode(), prepare=False)
        # Nobody can connect, so nobody can stand in the way of a clone; any role that may create databases can clone.
        self._execute("alter database {} with is_template true allow_connections false", draft)
        self._execute("alter database {} rename to {}", draft, name)

    def _drop(self, name: str) -> None:
        # The drop itself would wait in steps of a tenth of a second for sessions that need a millisecond to end.
        deadline = time.monotonic() + _GONE_WITHIN
        while self._rows("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", name):
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        self._execute("drop database if exists {} with (force)", name)

    def _exists(self, name: str) -> bool:
        return bool(self._rows("select 1 from pg_database where datname = %s", name))

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        key = lock_key("", "test", what)
        self._rows("select pg_advisory_lock(%s)", key)
        try:
            yield
        finally:
            self._rows("select pg_advisory_unlock(%s)", key)

    def _sweep(self) -> None:
        """Drop the databases of runs that are gone: a living one holds the lock of its name."""
        for (name,) in self._rows("select datname from pg_database where starts_with(datname, %s)", _PREFIX):
            run = name.removeprefix(_PREFIX).partition("_")[0]
            if run != self._run and self._rows("select 1 where pg_try_advisory_lock(%s)", _run_key(run)):
                self._drop(name)
                self._rows("select pg_advisory_unlock(%s)", _run_key(run))

    @property
    def _connection(self) -> Connection[Any]:
        if self._open is None or self._open.closed:
            self._open = psycopg.connect(self.url, autocommit=True, application_name="rota:test")
            self._rows("select pg_advisory_lock(%s)", _run_key(self._run))
            if not self._volatile:
                self._sweep()
        return self._open

    @property
    def _version(self) -> int:
        return self._connection.info.server_version

    def _execute(self, sql: LiteralString, *names: str) -> None:
        self._connection.execute(SQL(sql).format(*map(Identifier, names)))

    def _rows(self, sql: LiteralString, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


def _run_key(run: str) -> int:
    return lock_key("", "test", f"run {run}")
