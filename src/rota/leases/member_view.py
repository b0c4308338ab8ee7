"""The processes that hold or may hold work, as people see them. Nothing here decides anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rota.postgres.query import Query, many, statement

__all__ = ["MemberView", "find_members", "list_members"]


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as an operator sees it.

    `state` is live, quiet (it takes on nothing new), draining (it ends), suspected (it does not answer) or ended; `end_reason` is
    left for a clean stop, and expired or suspected for one that died. `release` is that of Rota, `app_release` that of the app.
    `work` is what it can do, and `work["drains"]` what `drain` has it do: exits, returns, or quiet. `wish` is what someone wants of
    it: quiet or drain. `condition` are its numbers of `condition_at`: `rss` in bytes; `lag`, how many seconds late its event loop was
    at most within a minute; `running` of `slots`; and for each of its `pools` how many connections are open (`size`) of `most`,
    `used`, how many wait for one, and how long those waited on average that did, in milliseconds (`wait_ms`).
    """

    id: UUID
    name: str
    host: str
    pid: int
    release: str
    state: str
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    work: dict[str, Any]
    app_release: str | None
    draining_at: datetime | None
    quiet_at: datetime | None
    wish: str | None
    asked_at: datetime | None
    asked_by: str | None
    condition_at: datetime | None
    condition: dict[str, Any] | None


LIST = statement(
    "list_members",
    """
    select
        member.id, member.name, member.host, member.pid, member.release,
        case
            when member.ended_at is not null then 'ended'
            when member.suspected_at is not null then 'suspected'
            when member.draining_at is not null then 'draining'
            when member.quiet_at is not null then 'quiet'
            else 'live'
        end,
        member.started_at, member.renewed_at, member.expires_at, member.ended_at, member.end_reason,
        member.work, member.app_release, member.draining_at, member.quiet_at,
        wanted.wish, wanted.asked_at, wanted.asked_by, member.condition_at, member.condition
    from {schema}.members as member
    left join {schema}.wishes as wanted on wanted.member = member.id
    where (member.ended_at is null or %(ended)s)
      and (%(which)s::text is null or %(which)s in (member.name, member.id::text))
    order by member.ended_at desc nulls first, member.started_at desc
    limit %(limit)s
    """,
)


def list_members(*, ended: bool = False, limit: int = 1000) -> Query[list[MemberView]]:
    """The live members first, newest first; with `ended`, also those that are gone."""
    return LIST.query({"ended": ended, "limit": limit, "which": None}, read=many(MemberView))


def find_members(which: str, *, limit: int = 5) -> Query[list[MemberView]]:
    """Those that live under this name or id."""
    return LIST.query({"ended": False, "limit": limit, "which": which}, read=many(MemberView))
