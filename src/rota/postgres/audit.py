"""Who changed what by hand.

An entry is written in the transaction of the change, so there is none without the other; a change that takes several
transactions has several. Entries are never changed, and outlive what they tell of: they hold names, numbers and filters,
never arguments, so that erasing someone's jobs leaves nothing of them here.
"""

from __future__ import annotations

import functools
import getpass
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from rota.clock import Duration, duration
from rota.errors import ConfigurationError
from rota.postgres.look import look
from rota.postgres.names import check_name
from rota.postgres.pool import Database
from rota.postgres.query import Query, Row, Steps, nothing, scalar, statement

__all__ = ["Audit", "AuditEntry", "AuditPage", "actor", "list_entries", "record"]

REACH = 50_000  # entries that one look goes back over: a few hundredths of a second


def actor(by: str | None) -> str:
    """Who is on record: the name given, else this process."""
    return f"{_user_and_host()}:{os.getpid()}" if by is None else check_name("by", by, 200)


@functools.cache
def _user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


RECORD = statement(
    "record_audit",
    """
    insert into {schema}.audit (actor, action, details)
    values (%(actor)s, %(action)s, %(details)s)
    """,
)


def record(actor: str, action: str, details: Mapping[str, Any]) -> Query[None]:
    """Enter that someone did this."""
    return RECORD.query({"actor": actor, "action": action, "details": Jsonb(details)}, read=nothing)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Someone did this. `details` say to what: ids, names, numbers and filters."""

    id: int
    at: datetime
    actor: str
    action: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, the last first. `after` goes on behind them, None when there are no more; all since `searched_to` were looked at."""

    entries: tuple[AuditEntry, ...]
    after: int | None
    searched_to: datetime | None


# By what people choose there is no index: a look walks back over so many entries, and tells how far that was.
LIST = statement(
    "list_audit",
    """
    with walked as materialized (
        select entry.id, entry.at, entry.actor, entry.action, entry.details
        from {schema}.audit as entry
        where entry.id < %(before)s
        order by entry.id desc
        limit %(reach)s
    )
    select
        (select count(*) from walked), (select min(walked.id) from walked), (select min(walked.at) from walked),
        found.id, found.at, found.actor, found.action, found.details
    from (select) as always
    left join lateral (
        select walked.*
        from walked
        where (%(actor)s::text is null or walked.actor = %(actor)s)
          and (%(action)s::text is null or walked.action = %(action)s)
          and (%(about)s::text is null or strpos(lower(walked.details::text), lower(%(about)s)) > 0)
          and (%(since)s::timestamptz is null or walked.at >= %(since)s)
          and (%(until)s::timestamptz is null or walked.at < %(until)s)
        order by walked.id desc
        limit %(limit)s
    ) as found on true
    order by found.id desc
    """,
)

NOW = statement("tell_real_time", "select statement_timestamp()")


def list_entries(
    *,
    actor: str | None = None,
    action: str | None = None,
    about: str | None = None,
    since: datetime | Duration | None = None,
    until: datetime | Duration | None = None,
    limit: int = 100,
    after: int | None = None,
    reach: int = REACH,
) -> Steps[AuditPage]:
    """Entries that fit all filters, the last first; looks at no more than `reach` of them."""
    for name, text in (("actor", actor), ("action", action), ("about", about)):
        if text is not None and not isinstance(text, str):
            raise ConfigurationError(f"{name} cannot be {text!r}: it is a text to choose by, or None.")
    for name, number, most in (("limit", limit, 10_000), ("reach", reach, 10_000_000), ("after", after or 1, 2**63)):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
            raise ConfigurationError(f"{name} cannot be {number!r}: it is a number from 1 to {most}.")
    first, last = _moment("since", since), _moment("until", until)
    params = {"actor": actor, "action": action, "about": about, "limit": limit, "reach": reach}
    return _list({**params, "before": after or 2**63 - 1}, first, last)


def _moment(name: str, given: Any) -> datetime | timedelta | None:
    if isinstance(given, datetime) and given.tzinfo is None:
        raise ConfigurationError(f"{name} cannot be {given!r}: a time says in which time zone it is.")
    return given if given is None or isinstance(given, datetime) else duration(given, name)


def _list(
    params: dict[str, Any], since: datetime | timedelta | None, until: datetime | timedelta | None
) -> Steps[AuditPage]:
    if isinstance(since, timedelta) or isinstance(until, timedelta):
        now: datetime = yield NOW.query(read=scalar)
        since = now - since if isinstance(since, timedelta) else since
        until = now - until if isinstance(until, timedelta) else until

    def read(rows: Sequence[Row]) -> AuditPage:
        looked_at, floor, floor_at = rows[0][:3]
        entries = tuple(AuditEntry(*row[3:]) for row in rows if row[3] is not None)
        if len(entries) == params["limit"]:
            return AuditPage(entries, entries[-1].id, entries[-1].at)
        is_all = looked_at < params["reach"] or (since is not None and floor_at < since)
        return AuditPage(entries, None if is_all else floor, None if is_all else floor_at)

    page: AuditPage = yield LIST.query({**params, "since": since, "until": until}, read=read)
    return page


class Audit:
    """`app.audit`: who changed what by hand, in both colours. Entries are kept for 400 days."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        about: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        limit: int = 100,
        after: int | None = None,
        reach: int = REACH,
        deadline: Duration | None = None,
    ) -> AuditPage:
        """Entries that fit all filters, the last first. `about` is a text in their details; `since` and `until` are times, or how
        long ago.

        Looks at no more than `reach` entries. A page that is not full tells by `searched_to` how far back it looked, and its `after`
        goes on from there; at the end that is None. A statement that takes longer than `deadline` is given up.
        """
        steps = list_entries(
            actor=actor, action=action, about=about, since=since, until=until, limit=limit, after=after, reach=reach
        )
        return await self._database.run_steps(look(steps, deadline))

    def list_sync(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        about: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        limit: int = 100,
        after: int | None = None,
        reach: int = REACH,
        deadline: Duration | None = None,
    ) -> AuditPage:
        steps = list_entries(
            actor=actor, action=action, about=about, since=since, until=until, limit=limit, after=after, reach=reach
        )
        return self._database.run_steps_sync(look(steps, deadline))
