"""What keeps vacuum from removing dead rows, and so makes every queue slow in the end: the oldest transaction there is."""

from __future__ import annotations

from rota.postgres.query import Query, one, statement

__all__ = ["horizon"]

# A role that is not a member of pg_monitor sees the transactions of its own role only: then this is a lower bound.
HORIZON = statement(
    "horizon",
    """
    select
        coalesce(extract(epoch from statement_timestamp() - min(held.since)), 0)::float8,
        pg_catalog.pg_notification_queue_usage()
    from (
        select activity.xact_start as since
        from pg_catalog.pg_stat_activity as activity
        where (activity.backend_xmin is not null or activity.backend_xid is not null)
          and activity.datname = current_database()
          and activity.pid <> pg_backend_pid()
          -- a vacuum holds back no other
          and activity.backend_type <> 'autovacuum worker'
        union all
        select prepared.prepared from pg_catalog.pg_prepared_xacts as prepared where prepared.database = current_database()
    ) as held
    """,
)


def horizon() -> Query[tuple[float, float]]:
    """For how many seconds the oldest open transaction of this database has been so, and how full the queue of notifications
    is, from 0 to 1."""
    return HORIZON.query(read=one(_pair))


def _pair(*row: float) -> tuple[float, float]:
    oldest, usage = row
    return oldest, usage
