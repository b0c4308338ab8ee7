"""A database that is there and lets nobody in, for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier


@contextlib.contextmanager
def locked_out(dsn: str) -> Iterator[None]:
    name = str(conninfo_to_dict(dsn)["dbname"])
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as admin:
        admin.execute(SQL("alter database {} allow_connections false").format(Identifier(name)))
        try:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
            yield
        finally:
            admin.execute(SQL("alter database {} allow_connections true").format(Identifier(name)))
