"""What happened at a time that explains a picture: processes started or died, someone else leads, an operator did something."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rota.postgres.query import Query, many, statement

__all__ = ["Mark", "list_marks"]


@dataclass(frozen=True, slots=True)
class Mark:
    """`kind` is started, died, failover or action; `what` is who or what it was, and `times` how often within that minute.

    Started are processes of one host and release, as in a deployment: the app's release if it is known, else Rota's. A failover is a
    term that its leader lost, or that was taken from it; an action is one of `rota audit list`.
    """

    at: datetime
    kind: str
    what: str
    times: int


LIST = statement(
    "list_marks",
    """
    select mark.at, mark.kind, mark.what, mark.times
    from (
        (
            select
                min(member.started_at) as at, 'started' as kind,
                format('%%s on %%s', coalesce(member.app_release, member.release), member.host) as what, count(*) as times
            from {schema}.members as member
            where member.started_at >= %(since)s and member.started_at < %(until)s
            group by coalesce(member.app_release, member.release), member.host, date_trunc('minute', member.started_at)
            order by 1 desc
            limit %(limit)s
        )
        union all
        (
            select min(member.ended_at), 'died', format('%%s (%%s)', member.host, member.end_reason), count(*)
            from {schema}.members as member
            where member.ended_at >= %(since)s and member.ended_at < %(until)s
              and member.end_reason <> 'left'
            group by member.host, member.end_reason, date_trunc('minute', member.ended_at)
            order by 1 desc
            limit %(limit)s
        )
        union all
        (
            select min(term.ended_at), 'failover', format('%%s (%%s)', term.name, term.end_reason), count(*)
            from {schema}.terms as term
            where term.ended_at >= %(since)s and term.ended_at < %(until)s
              and term.end_reason <> 'resigned'
            group by term.name, term.end_reason, date_trunc('minute', term.ended_at)
            order by 1 desc
            limit %(limit)s
        )
        union all
        (
            select min(entry.at), 'action', format('%%s by %%s', entry.action, entry.actor), count(*)
            from (
                -- the newest are the last: walked back, and no further than this
                select entry.at, entry.action, entry.actor
                from {schema}.audit as entry
                order by entry.id desc
                limit 10000
            ) as entry
            where entry.at >= %(since)s and entry.at < %(until)s
            group by entry.action, entry.actor, date_trunc('minute', entry.at)
            order by 1 desc
            limit %(limit)s
        )
    ) as mark
    order by mark.at desc
    limit %(limit)s
    """,
)


def list_marks(since: datetime, until: datetime, *, limit: int = 200) -> Query[list[Mark]]:
    """What happened between these times, the last first. These have real time, as members have."""
    return LIST.query({"since": since, "until": until, "limit": limit}, read=many(Mark))
