"""System checks: what `manage.py check` says of a project that cannot work, and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's names
from django.db import connections
from psycopg import OperationalError

from rota.app import Rota
from rota.errors import ConfigurationError, DatabaseUnavailable, RotaError, SchemaMissing
from rota.integrations.django.project import project_app, rota_settings
from rota.jobs.worker import WorkerSettings
from rota.postgres.schema import applied_migrations, migration_files
from rota.postgres.schema import check_schema as compare

__all__ = ["check_database", "check_schema", "check_settings"]


def check_settings(**_: Any) -> list[CheckMessage]:
    """ROTA can be read."""
    try:
        project_app()
    except (ConfigurationError, ImportError) as error:  # a codec's path may lead nowhere
        return [Error(str(error), id="rota.E001")]
    return []


def check_database(**_: Any) -> list[CheckMessage]:
    """The database is PostgreSQL, and there are enough connections for the bodies of a worker."""
    try:
        alias = rota_settings()["DATABASE"]
    except ConfigurationError:
        return []
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return [
            Error(
                f"Rota's database is DATABASES[{alias!r}], which is {connection.vendor}; Rota's tables are in PostgreSQL.",
                hint="Name a PostgreSQL database with ROTA = {'DATABASE': ...}, or change its ENGINE.",
                id="rota.E002",
            )
        ]
    pool = connection.settings_dict["OPTIONS"].get("pool")
    if not pool:
        return []
    said = pool if isinstance(pool, dict) else {}
    size = said.get("max_size") or said.get("min_size", 4)  # psycopg's own default
    bodies = WorkerSettings().concurrency
    if size >= bodies:
        return []
    return [
        Warning(
            f"Django's pool for {alias!r} has {size} connections, and a worker runs {bodies} bodies at once: those that find none "
            "free wait, and fail when that takes too long.",
            hint=f"Give the pool in OPTIONS a max_size of {bodies}, or start workers with --concurrency {size}.",
            id="rota.W003",
        )
    ]


def check_schema(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Rota's tables are there. Asked only with `--database`, and by `migrate`, which it must not keep from making them."""
    try:
        app = project_app()
    except (ConfigurationError, ImportError):
        return []
    if app.alias not in (databases or ()) or app.connection.vendor != "postgresql":
        return []
    try:
        # not through the app, whose connections would stay, and keep a test database from being dropped
        with Rota(app.database.dsn.conninfo, schema=app.settings.schema) as looking:
            applied = looking.database.run_sync(applied_migrations())
        compare(applied, migration_files(), app.settings.schema)
    except SchemaMissing as error:
        return [
            Warning(
                f"Rota's tables are missing or old: {error}",
                hint="Run `manage.py migrate`, or `manage.py rota migrate` where ROTA['MIGRATE'] is False.",
                id="rota.W004",
            )
        ]
    except (DatabaseUnavailable, OperationalError):
        return []  # Django says so itself
    except RotaError as error:
        return [Error(str(error), id="rota.E005")]
    return []
