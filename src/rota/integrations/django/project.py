"""The app of a Django project, made from its settings.

    ROTA = {
        "DATABASE": "default",      # which of DATABASES has Rota's tables
        "SCHEMA": "rota", "ENVIRONMENT": None, "POOL_SIZE": 10, "LEASE": None, "SCHEDULE_POLL": None,
        "CODEC": None, "RETENTION": None,  # as Rota(...) takes them; the codec also by its dotted path
        "DISCOVER": ["tasks"],      # modules of installed apps that declare tasks, schedules and pollers
        "MIGRATE": True,            # whether `manage.py migrate` makes Rota's tables too
    }

Its connections are Rota's own; jobs enqueued by Django's tasks framework, and those with `on(connection)`, are part of
Django's transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.db import connections
from django.utils.module_loading import import_string
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from rota.app import Rota
from rota.errors import ConfigurationError
from rota.integrations.django.bodies import with_connections
from rota.postgres.dsn import Dsn

__all__ = ["DjangoRota", "project_app", "rota_settings"]

_DEFAULTS: Mapping[str, Any] = {
    "DATABASE": "default",
    "SCHEMA": None,
    "ENVIRONMENT": None,
    "POOL_SIZE": 10,
    "LEASE": None,
    "SCHEDULE_POLL": None,
    "CODEC": None,
    "RETENTION": None,
    "DISCOVER": ("tasks",),
    "MIGRATE": True,
}
_OF_DJANGO = ("DATABASE", "DISCOVER", "MIGRATE")  # the others are arguments of Rota

_making = threading.RLock()
_made: DjangoRota | None = None


class DjangoRota(Rota):
    """A Rota on a database of Django's. `alias` names it in DATABASES."""

    def __init__(self, alias: str, **options: Any) -> None:
        self.alias = alias
        self._elsewhere = False
        # one that is no PostgreSQL is told by a system check, and at the first use
        super().__init__(_address(alias).conninfo if _is_postgresql(alias) else None, **options)

    @property
    def connection(self) -> Any:
        """Django's connection of this thread to the database that has Rota's tables."""
        return connections[self.alias]

    def use(self, *, dsn: str | None = None, schema: str | None = None) -> None:
        self._elsewhere = self._elsewhere or dsn is not None
        super().use(dsn=dsn, schema=schema)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return with_connections(super().around(function))

    def _address(self) -> Dsn:
        # as Django has it now: a test runner goes to another database after the settings were read
        return super()._address() if self._elsewhere else _address(self.alias)


def project_app() -> DjangoRota:
    """The one app of this project. Whoever asks before Django is set up, as `rota worker` does, sets it up."""
    global _made  # noqa: PLW0603 - one per process, like Django's settings
    if not apps.ready and not apps.loading:
        django.setup()
    with _making:
        if _made is None:
            known = rota_settings()
            options = {name.lower(): value for name, value in known.items() if name not in _OF_DJANGO}
            if isinstance(options["codec"], str):
                options["codec"] = import_string(options["codec"])
            _made = DjangoRota(known["DATABASE"], **options)
        return _made


def rota_settings() -> dict[str, Any]:
    """`ROTA` of the settings, with the defaults for what it leaves out."""
    given = getattr(settings, "ROTA", {})
    if unknown := given.keys() - _DEFAULTS.keys():
        raise ConfigurationError(
            f"ROTA in the Django settings does not know {', '.join(sorted(map(repr, unknown)))}: it may hold "
            f"{', '.join(_DEFAULTS)}."
        )
    known = {**_DEFAULTS, **given}
    if known["DATABASE"] not in settings.DATABASES:
        raise ConfigurationError(
            f"ROTA['DATABASE'] in the Django settings is {known['DATABASE']!r}, and DATABASES has only "
            f"{', '.join(map(repr, settings.DATABASES))}. Name one of them."
        )
    return known


def _is_postgresql(alias: str) -> bool:
    return bool(connections[alias].vendor == "postgresql")


def _address(alias: str) -> Dsn:
    connection = connections[alias]
    if not _is_postgresql(alias):
        raise ConfigurationError(
            f"DATABASES[{alias!r}] is {connection.vendor}, and Rota's tables are in PostgreSQL. Name a PostgreSQL database with "
            "ROTA = {'DATABASE': ...} in the Django settings."
        )
    # Django's parameters are those of libpq, and some that are its own or psycopg's
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parameters = {name: value for name, value in connection.get_connection_params().items() if name in known}
    parameters.pop("application_name", None)  # our sessions say themselves what they are for
    return Dsn(make_conninfo(**parameters), source=f"DATABASES[{alias!r}]")
