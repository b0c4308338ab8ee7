"""Who holds the horizon below which events can be read: the oldest transaction that is still running."""

from __future__ import annotations

from dataclasses import dataclass

from rota.postgres.query import Query, one_or_none, statement

__all__ = ["HorizonHolder", "who_holds_the_horizon"]


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """A transaction that keeps events from being read: what it may still commit would come before them.

    One that is prepared has no pid, and `query` is what it was prepared as. Where this role may not see it, `query` is None; what
    `seconds` says is then unknown as well.
    """

    pid: int | None
    seconds: float | None
    database: str | None
    user: str | None
    state: str
    query: str | None

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid is not None else f"the prepared transaction {self.query!r}"
        for_ = "" if self.seconds is None else f", open for {self.seconds:.0f} s"
        where = "" if self.database is None else f" in database {self.database}"
        doing = f": {self.query}" if self.pid is not None and self.query else ""
        return f"{who} ({self.state}{for_}{where}){doing}"


# Found by its lock on its own id, which everyone may see; not so what it does, and since when.
HOLDER = statement(
    "who_holds_the_horizon",
    """
    with horizon as materialized (
        select pg_snapshot_xmin(pg_current_snapshot())::xid as xid
    )
    select
        lock.pid,
        extract(epoch from statement_timestamp() - activity.xact_start)::float8,
        activity.datname::text, activity.usename::text, coalesce(activity.state, 'unknown'), left(activity.query, 200)
    from horizon
    join pg_locks as lock on lock.locktype = 'transactionid' and lock.transactionid = horizon.xid and lock.granted
    join pg_stat_activity as activity on activity.pid = lock.pid
    where lock.mode = 'ExclusiveLock'
      and lock.pid <> pg_backend_pid()
      -- that has ended since its lock was seen; of others' sessions a role that may not look sees no state at all
      and activity.state is distinct from 'idle'
    union all
    select
        null, extract(epoch from statement_timestamp() - prepared.prepared)::float8, prepared.database::text,
        prepared.owner::text, 'prepared', prepared.gid
    from horizon
    join pg_prepared_xacts as prepared on prepared.transaction = horizon.xid
    limit 1
    """,
)


def who_holds_the_horizon() -> Query[HorizonHolder | None]:
    """The oldest running transaction of the server that has written anything; None when there is none."""
    return HOLDER.query(read=one_or_none(HorizonHolder))
