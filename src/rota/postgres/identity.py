"""Which database this is, so that a copied or restored one does not run by accident.

`rota.meta` records the cluster's system identifier, the database's name and an environment label. A replica that was
promoted keeps all three; a dump restored elsewhere, or a cloned database, differs in one. Workers refuse such a database
until someone says `rota adopt`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rota.errors import ForeignDatabase
from rota.postgres.query import Query, nothing, one_or_none, statement

__all__ = ["Identity", "adopt", "check_identity", "compare_identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """What the database is, beside what it was when it was adopted."""

    system_identifier: int | None
    database: str
    recorded_system_identifier: int | None
    recorded_database: str | None
    recorded_environment: str | None


COMPARE = statement(
    "compare_identity",
    """
    select
        control.system_identifier,
        current_database(),
        meta.system_identifier,
        meta.database,
        meta.environment
    from pg_control_system() as control
    left join {schema}.meta on true
    """,
)


def compare_identity() -> Query[Identity | None]:
    return COMPARE.query(read=one_or_none(Identity))


ADOPT = statement(
    "adopt",
    """
    insert into {schema}.meta (system_identifier, database, environment)
    select control.system_identifier, current_database(), %(environment)s
    from pg_control_system() as control
    on conflict (single) do update
    set system_identifier = excluded.system_identifier,
        database = excluded.database,
        environment = coalesce(excluded.environment, meta.environment),
        adopted_at = statement_timestamp()
    """,
)


def adopt(environment: str | None) -> Query[None]:
    """Record this database as the one to work on."""
    return ADOPT.query({"environment": environment}, read=nothing)


def check_identity(identity: Identity | None, environment: str | None) -> None:
    """Refuse a database that is not the one it was when it was adopted."""
    if identity is None or identity.recorded_database is None:
        raise ForeignDatabase(
            "This database was never adopted: `rota migrate` does it when it makes the schema, `rota adopt` later."
        )
    differences = []
    if identity.system_identifier != identity.recorded_system_identifier:
        differences.append("it is in another database cluster")
    if identity.database != identity.recorded_database:
        differences.append(f"it was called {identity.recorded_database!r} and is now {identity.database!r}")
    if environment and identity.recorded_environment and environment != identity.recorded_environment:
        differences.append(f"it is marked {identity.recorded_environment!r} and this process runs as {environment!r}")
    if differences:
        raise ForeignDatabase(
            f"This looks like a copy or a restore of the database that Rota worked on: {'; '.join(differences)}. Working on it "
            "might send real mails and charge real cards again. If it is to be worked on, say so: `rota adopt`."
        )
