"""Who holds a lock of `app.lock` at this moment, and who waits for it: for people.

Nothing keeps a list of these locks: PostgreSQL knows their keys, and sessions are called by the name of the lock that they hold or
wait for. The two belong together where the key of the name is the key of the lock; of a name that was too long to be shown whole, that
cannot be told, and its beginning is believed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.postgres.keys import lock_key
from rota.postgres.query import Query, Row, statement

__all__ = ["LockView", "list_locks"]

_PREFIX = "rota:lock/"
_LONGEST = 63  # characters that PostgreSQL shows of a session's name
_MOST = 200
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U000[0-9a-f]{5}|\\U0010[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class LockView:
    """A session that holds a lock, or waits for it. `since` is when its transaction began, None where this role may not see that."""

    name: str
    is_held: bool
    pid: int
    role: str | None
    client: str | None
    since: datetime | None
    seconds: float | None


LIST_LOCKS = statement(
    "list_locks",
    """
    select
        activity.application_name, (lock.classid::bigint << 32) | lock.objid::bigint, lock.granted, activity.pid,
        activity.usename::text, host(activity.client_addr), activity.xact_start,
        extract(epoch from clock_timestamp() - activity.xact_start)::float8
    from pg_catalog.pg_stat_activity as activity
    join pg_catalog.pg_locks as lock
        on lock.pid = activity.pid
        and lock.locktype = 'advisory'
        and lock.objsubid = 1
        and lock.database = activity.datid
    where activity.datname = current_database()
      and starts_with(activity.application_name, %(prefix)s)
    order by activity.application_name, lock.granted desc, activity.xact_start, activity.pid
    limit %(most)s
    """,
)


def list_locks(schema: str) -> Query[list[LockView]]:
    """By name, whoever holds it first; no more than 200."""

    def read(rows: Sequence[Row]) -> list[LockView]:
        found = ((_name(schema, shown, key), others) for shown, key, *others in rows)
        return [LockView(name, *others) for name, others in found if name is not None]

    return LIST_LOCKS.query({"prefix": _PREFIX, "most": _MOST}, read=read)


def _name(schema: str, shown: str, key: int) -> str | None:
    """The name whose lock this is; None if it is another one that the session holds, as in a section within a section."""
    name = shown.removeprefix(_PREFIX)
    if len(shown) >= _LONGEST:
        return name
    # what is not ASCII is shown as Python would write it
    return next((each for each in (name, _unescaped(name)) if lock_key(schema, "lock", each) == key), None)


def _unescaped(name: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[0][2:], 16)), name)
