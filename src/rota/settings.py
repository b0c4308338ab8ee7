"""What an app can be told, by argument or by environment, and why each default is what it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from rota.clock import Duration, duration
from rota.errors import ConfigurationError
from rota.leases.trust import LeaseSettings
from rota.postgres.dsn import Dsn, dsn_from_environment
from rota.postgres.names import check_name
from rota.postgres.query import identifier

__all__ = ["Settings", "read_settings"]

_SHORTEST_LEASE = timedelta(seconds=1.5)  # below, one late renewal would end a healthy process


_SHORTEST_POLL, _LONGEST_POLL = timedelta(seconds=0.1), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved once, when the app is made; `dsn` None means the embedded PostgreSQL."""

    dsn: Dsn | None
    schema: str
    environment: str | None
    pool_size: int
    lease: LeaseSettings
    #: between looks of the scheduler while messages arrive: what a lost one may cost; None for its own default
    schedule_poll: timedelta | None = None
    #: what users call this version of their app
    release: str | None = None


def read_settings(
    dsn: str | None,
    *,
    schema: str | None = None,
    environment: str | None = None,
    pool_size: int = 10,
    lease: Duration | None = None,
    schedule_poll: Duration | None = None,
    release: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Settings:
    """Arguments beat the environment: ROTA_DATABASE_URL, DATABASE_URL, PG*, ROTA_SCHEMA, ROTA_ENVIRONMENT, ROTA_LEASE,
    ROTA_SCHEDULE_POLL, ROTA_RELEASE."""
    env = os.environ if variables is None else variables
    name = schema if schema is not None else env.get("ROTA_SCHEMA") or "rota"
    identifier(name)  # refused here, where the name was given, rather than at the first statement
    if name.startswith("pg_"):
        raise ConfigurationError(
            f"The schema cannot be called {name!r}: names that begin with pg_ belong to PostgreSQL."
        )
    if not isinstance(pool_size, int) or pool_size < 1:
        raise ConfigurationError(
            f"pool_size cannot be {pool_size!r}: it is the largest number of connections, 1 or more."
        )
    length = duration(lease if lease is not None else env.get("ROTA_LEASE") or LeaseSettings().lease, "lease")
    if length < _SHORTEST_LEASE:
        raise ConfigurationError(
            f"The lease cannot be {length}: below {_SHORTEST_LEASE.total_seconds()} s a short pause would look like death."
        )
    said = schedule_poll if schedule_poll is not None else env.get("ROTA_SCHEDULE_POLL") or None
    poll = None if said is None else duration(said, "schedule_poll")
    if poll is not None and not _SHORTEST_POLL <= poll <= _LONGEST_POLL:
        raise ConfigurationError(f"schedule_poll cannot be {said!r}: it is from {_SHORTEST_POLL} to {_LONGEST_POLL}.")
    called = release if release is not None else env.get("ROTA_RELEASE", "").strip() or None
    return Settings(
        dsn=Dsn(dsn, source="dsn") if dsn is not None else dsn_from_environment(env),
        schema=name,
        environment=environment if environment is not None else env.get("ROTA_ENVIRONMENT"),
        pool_size=pool_size,
        lease=LeaseSettings.of(length),
        schedule_poll=poll,
        release=None if called is None else check_name("release", called, 100),
    )
