"""How the database is, as far as it concerns a queue: the tables, who holds back the removal of dead rows, connections, notifications.

Statements of other sessions are not told: what they ask may hold what is not for everyone who looks. A role that is not a member of
pg_read_all_stats is shown the sessions of its own role only, and `sees_all` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rota.postgres.horizon import horizon
from rota.postgres.query import Query, Steps, many, one, scalar, statement

__all__ = [
    "ConnectionLimit",
    "HorizonHeld",
    "OpenTransaction",
    "TableVitals",
    "Vitals",
    "connection_limits",
    "old_transactions",
    "oldest_ids",
    "read_vitals",
    "sees_all_sessions",
]


@dataclass(frozen=True, slots=True)
class TableVitals:
    """A table of ours, with all of its `partitions`. Rows are what PostgreSQL believes; -1 is unknown.

    `in_place` is the share of updates that needed no new entry in an index; None where nothing was updated.
    """

    name: str
    partitions: int
    live_rows: int
    dead_rows: int
    bytes: int
    index_bytes: int
    in_place: float | None
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A session with an open transaction: for how long, and for how long its last statement has been running, or over.

    `pins` says whether rows that died since then stay because of it, `blocked_by` whom it waits for.
    """

    pid: int
    role: str | None
    application: str
    state: str
    seconds: float
    statement_seconds: float
    pins: bool
    wait: str | None
    blocked_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HorizonHeld:
    """What keeps dead rows from being removed: `kind` is session, prepared or slot; `age` counts transactions since."""

    kind: str
    name: str
    age: int
    since: datetime | None


class ConnectionLimit(NamedTuple):
    """How many there may be of some kind, how many there are, and how many of those are Rota's. `raise_by` is the statement."""

    most: int
    used: int
    ours: int
    raise_by: str

    def needed(self, busiest: int) -> int:
        return self.used - self.ours + busiest


class OldestIds(NamedTuple):
    """The database whose transaction ids are the oldest in use, and at which age autovacuum should have frozen them."""

    database: str
    age: int
    autovacuum_at: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """How the database is. `horizon` are those who hold back the removal of dead rows, the oldest first."""

    version: str
    sees_all: bool
    tables: tuple[TableVitals, ...]
    transactions: tuple[OpenTransaction, ...]
    horizon: tuple[HorizonHeld, ...]
    oldest_transaction_seconds: float
    notify_usage: float
    connections: tuple[ConnectionLimit, ...]
    oldest_ids: OldestIds


TABLES = statement(
    "read_tables",
    """
    select
        root.relname, count(*) - 1, sum(greatest(stat.n_live_tup, 0))::bigint, sum(greatest(stat.n_dead_tup, 0))::bigint,
        sum(pg_total_relation_size(leaf.oid))::bigint, sum(pg_indexes_size(leaf.oid))::bigint,
        (sum(stat.n_tup_hot_upd)::float8 / nullif(sum(stat.n_tup_upd), 0)),
        -- the one that has waited longest, of those that have rows
        min(greatest(stat.last_vacuum, stat.last_autovacuum)), min(greatest(stat.last_analyze, stat.last_autoanalyze))
    from pg_class as leaf
    join pg_namespace as namespace on namespace.oid = leaf.relnamespace
    join pg_class as root on root.oid = coalesce(pg_partition_root(leaf.oid), leaf.oid)
    left join pg_stat_all_tables as stat on stat.relid = leaf.oid
    where namespace.nspname = %(schema)s
      and leaf.relkind in ('r', 'p')
    group by root.relname
    order by 5 desc
    limit 100
    """,
)


def read_tables(schema: str) -> Query[list[TableVitals]]:
    return TABLES.query({"schema": schema}, read=many(TableVitals))


FIND_OLD = statement(
    "find_old_transactions",
    """
    select
        activity.pid, activity.usename, coalesce(nullif(activity.application_name, ''), 'unnamed'),
        coalesce(activity.state, activity.backend_type),
        extract(epoch from clock_timestamp() - activity.xact_start)::float8,
        coalesce(extract(epoch from clock_timestamp() - activity.query_start), 0)::float8,
        activity.backend_xmin is not null or activity.backend_xid is not null,
        activity.wait_event_type || ': ' || activity.wait_event,
        pg_blocking_pids(activity.pid)
    from pg_stat_activity as activity
    where activity.xact_start < clock_timestamp() - make_interval(secs => %(seconds)s)
      and (%(any)s or activity.backend_xmin is not null or activity.backend_xid is not null)
      and activity.pid <> pg_backend_pid()
      -- vacuum itself holds back nobody
      and activity.backend_type <> 'autovacuum worker'
    order by activity.xact_start
    limit %(limit)s
    """,
)


def old_transactions(seconds: float, *, limit: int, pinning: bool = True) -> Query[list[OpenTransaction]]:
    """Transactions that have been open for longer, the oldest first; those that pin dead rows, or all."""
    params = {"seconds": seconds, "limit": limit, "any": not pinning}
    return FIND_OLD.query(params, read=many(_open))


def _open(
    pid: int,
    role: str | None,
    application: str,
    state: str,
    seconds: float,
    statement_seconds: float,
    pins: bool,
    wait: str | None,
    blocked_by: Sequence[int],
) -> OpenTransaction:
    told = (pid, role, application, state, seconds, statement_seconds, pins, wait)
    return OpenTransaction(*told, tuple(blocked_by))


SEES_ALL = statement("sees_all_sessions", "select session_user, pg_has_role('pg_read_all_stats', 'usage')")


def sees_all_sessions() -> Query[tuple[str, bool]]:
    """Who asks, and whether it is shown the sessions of all."""
    return SEES_ALL.query(read=lambda rows: (rows[0][0], rows[0][1]))


HOLDERS = statement(
    "find_horizon_holders",
    """
    select held.kind, held.name, held.age, held.since
    from (
        select
            'session' as kind,
            format('pid %%s (%%s, role %%s)', activity.pid, coalesce(nullif(activity.application_name, ''), 'unnamed'),
                   activity.usename) as name,
            greatest(age(activity.backend_xmin), age(activity.backend_xid)) as age, activity.xact_start as since
        from pg_stat_activity as activity
        where (activity.backend_xmin is not null or activity.backend_xid is not null)
          and activity.pid <> pg_backend_pid()
          and activity.backend_type <> 'autovacuum worker'
        union all
        select 'prepared', prepared.gid, age(prepared.transaction), prepared.prepared from pg_prepared_xacts as prepared
        union all
        select 'slot', slot.slot_name, greatest(age(slot.xmin), age(slot.catalog_xmin)), null
        from pg_replication_slots as slot
        where slot.xmin is not null or slot.catalog_xmin is not null
    ) as held
    order by held.age desc, held.since
    limit %(limit)s
    """,
)


def horizon_holders(*, limit: int = 10) -> Query[list[HorizonHeld]]:
    """Who keeps dead rows from being removed, the oldest first."""
    return HOLDERS.query({"limit": limit}, read=many(HorizonHeld))


FIND_OLDEST_IDS = statement(
    "find_oldest_ids",
    """
    select
        datname, greatest(age(datfrozenxid), mxid_age(datminmxid)),
        current_setting('autovacuum_freeze_max_age')::integer
    from pg_database
    order by 2 desc
    limit 1
    """,
)


def oldest_ids() -> Query[OldestIds]:
    """How far the server is from running out of transaction ids."""
    return FIND_OLDEST_IDS.query(read=one(OldestIds))


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


def connection_limits() -> Query[list[ConnectionLimit]]:
    """The limits there are: of the server, and of the database and the role if they have one."""
    return FIND_LIMITS.query(read=many(ConnectionLimit))


VERSION = statement("tell_version", "select current_setting('server_version')")


def read_vitals(schema: str, *, limit: int = 20) -> Steps[Vitals]:
    """All of it, and at most `limit` open transactions."""
    version: str = yield VERSION.query(read=scalar)
    _, sees_all = yield sees_all_sessions()
    tables: Sequence[TableVitals] = yield read_tables(schema)
    transactions: Sequence[OpenTransaction] = yield old_transactions(0.0, limit=limit, pinning=False)
    holders: Sequence[HorizonHeld] = yield horizon_holders()
    oldest, usage = yield horizon()
    limits: Sequence[ConnectionLimit] = yield connection_limits()
    ids: OldestIds = yield oldest_ids()
    return Vitals(
        version, sees_all, tuple(tables), tuple(transactions), tuple(holders), oldest, usage, tuple(limits), ids
    )
