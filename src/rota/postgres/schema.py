"""Rota's tables: numbered SQL files, applied in order under an advisory lock, remembered with their checksums.

The rule is *expand first, contract a release later*: a migration only adds, in ways the workers already running can
live with, and what it makes needless is removed by a migration of the next release. So release N runs on the schema of
N+1 and the other way round. The first line of each file says whether older workers can live with it:

    -- older workers: fine        they go on, and so does a roll-back to the previous release
    -- older workers: stop        they refuse to start (exit code 5) and say so; only for what cannot be expanded
    -- older workers: none        there is no older release

Each file is one transaction with a short lock timeout and is tried again when it meets a lock: a migration waiting for
a lock makes everyone behind it wait too, and nobody's job should stall for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
from psycopg import Connection

from rota.errors import DatabaseUnavailable, MigrationChanged, SchemaMissing, SchemaTooNew
from rota.facts import Facts, MigrationApplied
from rota.postgres.connection import Connector, migrate_command, translated
from rota.postgres.keys import channel, lock_key
from rota.postgres.query import Query, identifier, many, statement

__all__ = [
    "Applied",
    "Migration",
    "applied_migrations",
    "check_schema",
    "migrate",
    "migration_files",
    "pending",
    "render",
]

_COMPATIBLE = {"fine": True, "none": True, "stop": False}
_LOCK_TIMEOUT = "200ms"  # the longest a migration may make others queue behind it
_PATIENCE = 60.0  # seconds of retrying before a migration gives up and says who is in the way


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str = field(repr=False)
    compatible: bool

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Applied:
    number: int
    name: str
    checksum: str
    compatible: bool


def migration_files(folder: Traversable | None = None) -> list[Migration]:
    """The migrations of this package, in order. Another folder may be named by a test."""
    source = folder or resources.files("rota.postgres") / "migrations"
    return sorted(_read(source), key=lambda migration: migration.number)


def _read(folder: Traversable) -> Iterator[Migration]:
    for file in folder.iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            text = file.read_text("utf-8")
            says = re.match(r"-- older workers: (\w+)", text)
            if says is None or says[1] not in _COMPATIBLE:
                raise ValueError(f"{file.name} must begin with '-- older workers: fine', 'stop' or 'none'")
            yield Migration(int(match[1]), match[2], text, _COMPATIBLE[says[1]])


def render(migration: Migration, schema: str) -> str:
    """The SQL of one migration for this schema, with the line that records it."""
    quoted = identifier(schema)
    # the channels first: they are made of letters and digits, and a schema may be called {wake_channel}
    body = migration.text.replace("{wake_channel}", channel(schema, "wake"))
    for name in ("lead", "schedule", "poll", "event"):
        body = body.replace(f"{{{name}_channel}}", channel(schema, name))
    body = body.replace("{schema}", quoted)
    return (
        f"{body.rstrip()}\n\n"
        f"insert into {quoted}.migrations (number, name, checksum, compatible)\n"
        f"values ({migration.number}, '{migration.name}', '{migration.checksum}', {str(migration.compatible).lower()});\n"
    )


def make_schema(schema: str) -> str:
    return f"create schema if not exists {identifier(schema)};\n"


def make_migrations_table(schema: str) -> str:
    """The SQL of the table that remembers migrations."""
    return (
        f"create table if not exists {identifier(schema)}.migrations (\n"
        "    number integer primary key,\n"
        "    name text not null,\n"
        "    checksum text not null,\n"
        "    compatible boolean not null,\n"
        "    applied_at timestamptz not null default statement_timestamp()\n"
        ");\n"
    )


APPLIED = statement(
    "applied_migrations", "select number, name, checksum, compatible from {schema}.migrations order by number"
)


def applied_migrations() -> Query[list[Applied]]:
    """The migrations this database has had; raises SchemaMissing where there was never one."""
    return APPLIED.query(read=many(Applied))


def pending(applied: Sequence[Applied], known: Sequence[Migration]) -> list[Migration]:
    """What is still to be applied. Refuses a database whose applied migrations are not those of this package."""
    check_known(applied, known)
    done = {migration.number for migration in applied}
    return [migration for migration in known if migration.number not in done]


def check_schema(applied: Sequence[Applied], known: Sequence[Migration], schema: str | None = None) -> None:
    """Refuse a schema this release cannot work with: too old, or newer in a way that older workers must stop for."""
    missing = pending(applied, known)
    if missing:
        raise SchemaMissing(
            f"The schema lacks {len(missing)} migration(s) this release of Rota works with "
            f"({', '.join(f'{m.number:04} {m.name}' for m in missing)}). Run `{migrate_command(schema)}`."
        )


def check_known(applied: Sequence[Applied], known: Sequence[Migration]) -> None:
    """Refuse migrations that differ from ours under the same number, or newer ones that older workers must stop for."""
    ours = {migration.number: migration for migration in known}
    for done in applied:
        mine = ours.get(done.number)
        if mine is None and not done.compatible:
            raise SchemaTooNew(
                f"The schema was changed by a newer Rota (migration {done.number:04} {done.name}) in a way this release cannot "
                "work with. Upgrade this process to that release."
            )
        if mine is not None and mine.checksum != done.checksum:
            raise MigrationChanged(
                f"Migration {done.number:04} {done.name} was applied with checksum {done.checksum}, and this package holds another "
                f"({mine.checksum}). One of them was edited after the fact; install the release that made this schema."
            )


def migrate(
    connector: Connector,
    schema: str,
    *,
    to: int | None = None,
    known: Sequence[Migration] | None = None,
    facts: Facts | None = None,
    waiting: Callable[[str], None] = lambda _: None,
) -> list[Migration]:
    """Apply what is pending, up to number `to`, and return it. Any number of processes may call it at once.

    Needs no superuser: the owner of the schema, or a role that may create one in this database, is enough.
    """
    known = migration_files() if known is None else known
    with connector.connect_sync() as connection:
        _prepare(connection, schema)
        todo = pending(_applied(connection, schema), known)
        return [
            migration
            for migration in todo
            if (to is None or migration.number <= to) and _apply(connection, schema, migration, facts, waiting)
        ]


@contextlib.contextmanager
def _alone(connection: Connection[Any], schema: str) -> Iterator[None]:
    """A transaction that no other migration runs beside; works behind a transaction pooler too."""
    with connection.transaction():
        _run(
            connection,
            # at a stricter level the wait for the lock would end with what was there before it
            "set transaction isolation level read committed; "
            "set local statement_timeout = 0; set local lock_timeout = 0; set local search_path = pg_catalog",
        )
        connection.execute("select pg_advisory_xact_lock(%s)", [lock_key(schema, "lock", "migrate")])
        yield


def _prepare(connection: Connection[Any], schema: str) -> None:
    """Make the schema and its table of migrations, where they are missing.

    Asked first, because `create schema if not exists` demands the right to create one even where there is one.
    """
    try:
        with _alone(connection, schema):
            there = connection.execute(
                "select to_regnamespace(%s) is not null, to_regclass(%s) is not null",
                [identifier(schema), f"{identifier(schema)}.migrations"],
            ).fetchone()
            if there == (False, False):
                _run(connection, make_schema(schema))
            if there != (True, True):
                _run(connection, make_migrations_table(schema))
    except psycopg.Error as error:
        raise translated(error) from error


def _applied(connection: Connection[Any], schema: str) -> list[Applied]:
    rows = connection.execute(APPLIED.sql(schema), {}).fetchall()
    return [Applied(*row) for row in rows]


def _apply(
    connection: Connection[Any], schema: str, migration: Migration, facts: Facts | None, waiting: Callable[[str], None]
) -> bool:
    """Apply one migration, unless another process has done so meanwhile."""
    started = time.monotonic()
    while True:
        try:
            with _alone(connection, schema):
                if any(done.number == migration.number for done in _applied(connection, schema)):
                    return False
                _run(connection, f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
                _run(connection, render(migration, schema))
            break
        except psycopg.errors.LockNotAvailable as error:
            if time.monotonic() - started > _PATIENCE:
                raise DatabaseUnavailable(
                    f"Migration {migration.number:04} {migration.name} found no moment without a lock in its way for {_PATIENCE:g} s. "
                    f"In the way: {_in_the_way(connection, schema)}. End that transaction, or run `rota migrate` again later."
                ) from error
            waiting(f"migration {migration.number:04} {migration.name} waits for a lock and lets others pass")
            time.sleep(0.1)
        except psycopg.Error as error:
            raise translated(error) from error
    if facts:
        facts.emit(MigrationApplied(migration.number, migration.name, time.monotonic() - started))
    return True


def _in_the_way(connection: Connection[Any], schema: str) -> str:
    """Who holds a lock on tables of the schema in the oldest transactions."""
    rows = connection.execute(
        "select distinct on (activity.xact_start, activity.pid) activity.pid, activity.application_name, "
        "round(extract(epoch from clock_timestamp() - activity.xact_start)), left(activity.query, 80) "
        "from pg_locks as lock join pg_class as class on class.oid = lock.relation "
        "join pg_stat_activity as activity on activity.pid = lock.pid "
        "where class.relnamespace = to_regnamespace(%s) and activity.pid <> pg_backend_pid() "
        "order by activity.xact_start, activity.pid limit 3",
        [identifier(schema)],
    ).fetchall()
    return (
        "; ".join(f"pid {pid} ({name or 'unnamed'}), for {age} s, {query!r}" for pid, name, age, query in rows)
        or "nobody now"
    )


def _run(connection: Connection[Any], sql: str) -> None:
    connection.execute(sql, prepare=False)
