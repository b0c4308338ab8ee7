"""Whether there are connections enough for all who are here, at their busiest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.postgres.query import Query, many, statement
from rota.runtime.doctor.finding import Finding, ok, problem, warning
from rota.runtime.doctor.patient import Patient

__all__ = ["connections"]

_FEW = 3  # free ones, below which the next process may find none


class _Limit(NamedTuple):
    """How many there may be of some kind, how many there are, and how many of those are Rota's. `raise_by` is the statement."""

    most: int
    used: int
    ours: int
    raise_by: str

    def needed(self, busiest: int) -> int:
        return self.used - self.ours + busiest


FIND_LIMITS = statement(
    "find_limits",
    """
    with client as materialized (
        select datname, usename, datname = current_database() and starts_with(application_name, 'rota:') as is_ours
        from pg_stat_activity
        where backend_type = 'client backend'
    )
    select
        -- the second are known from PostgreSQL 16 on
        current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
            - coalesce(current_setting('reserved_connections', true)::integer, 0),
        count(*), count(*) filter (where is_ours), 'alter system set max_connections ='
    from client
    union all
    select
        database.datconnlimit, count(*), count(*) filter (where is_ours),
        format('alter database %%I connection limit', database.datname)
    from pg_database as database
    join client on client.datname = database.datname
    where database.datname = current_database()
      and database.datconnlimit >= 0
    group by database.datname, database.datconnlimit
    union all
    select
        role.rolconnlimit, count(*), count(*) filter (where is_ours), format('alter role %%I connection limit', role.rolname)
    from pg_roles as role
    join client on client.usename = role.rolname
    where role.rolname = session_user
      and role.rolconnlimit >= 0
    group by role.rolname, role.rolconnlimit
    """,
)


def _find_limits() -> Query[list[_Limit]]:
    return FIND_LIMITS.query(read=many(_Limit))


READ_WORK = statement(
    "read_work",
    """
    select member.work - 'tasks' - 'schedules' || jsonb_build_object('works', member.work ? 'tasks')
    from {schema}.members as member
    where member.ended_at is null
    """,
)


def connections(patient: Patient) -> Finding:
    """Are there connections enough for all who are here?"""
    works = patient.ask(READ_WORK.query(read=lambda rows: [row[0] for row in rows]))
    size = patient.app.settings.pool_size
    least, most = sum(map(_least, works)), sum(_most(work, size) for work in works)
    limits = patient.ask(_find_limits())
    tight = min(limits, key=lambda limit: limit.most - limit.needed(most))
    found = (
        f"{tight.used} of {tight.most} in use, {tight.ours} of them by Rota; its {len(works)} live process(es) keep {least} and may "
        f"open {most}"
    )
    # those who look or repair want one too
    enough = tight.needed(most) + _FEW
    mend = (
        f"{tight.raise_by} {enough};" + ("   -- then restart the server" if tight is limits[0] else ""),
        f"or fewer: Rota(pool_size=...) below {size}, a lower --concurrency, or workers behind a pooler",
    )
    if tight.most - tight.used < _FEW or tight.needed(least) > tight.most:
        return problem(
            found,
            "Hardly any is left. A process that finds none cannot renew its lease, and what it holds is given to others.",
            *mend,
        )
    # a pooler opens as many as it was told, whatever its clients do
    if patient.connection.direct and tight.needed(most) > tight.most:
        return warning(
            found,
            f"At their busiest they need {tight.needed(most)} with those of others, counting pool_size={size} for each of them; "
            "then new ones are refused.",
            *mend,
        )
    return ok(found)


def _least(work: Mapping[str, Any]) -> int:
    """What a process keeps: for control, and if it works for claiming and settling, and one of its pool."""
    return 4 if work["works"] else 1


def _most(work: Mapping[str, Any], pool_size: int) -> int:
    """What it opens at its busiest: upkeep, its pool, a transaction for each body; its pollers' looks, stamps and claims; its
    projections' looks, and a transaction for each partition."""
    if not work["works"]:
        return 1 + pool_size
    pollers = min(3, len(work.get("pollers") or ()))
    projecting = int(work.get("projecting") or 0)
    return 4 + pool_size + int(work.get("concurrency") or 0) + 3 * pollers + projecting
