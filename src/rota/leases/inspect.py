"""Who leads what, who waits for it, and which terms there were: for people. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import UUID

from rota.postgres.query import Query, Row, many, scalar, statement

__all__ = ["LeaderLane", "LeaderView", "TermView", "count_members", "leader_lanes", "list_leaders", "list_terms"]


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who leads a name, or that nobody does; and who waits for it. `since` is when that began.

    `progress_age` is for how long a leader that calls `term.progress(note)` has not done so, by the clock of the database.
    """

    name: str
    epoch: int
    holder: str | None
    host: str | None
    pid: int | None
    member: UUID | None
    since: datetime
    asked_to_resign: bool
    progress_age: timedelta | None
    progress_note: str | None
    standbys: Sequence[str]


LIST_LEADERS = statement(
    "list_leaders",
    """
    select
        lease.name, lease.epoch, leader.name, leader.host, leader.pid, leader.id,
        case when leader.id is not null then lease.acquired_at else coalesce(term.ended_at, gone.ended_at, lease.acquired_at) end,
        leader.id is not null and term.resign_requested_at is not null,
        case when leader.id is not null then statement_timestamp() - term.progressed_at end,
        case when leader.id is not null then term.progress_note end,
        array(
            select waiting.name
            from {schema}.standbys as standby
            join {schema}.members as waiting on waiting.id = standby.member and waiting.ended_at is null
            where standby.name = lease.name
            order by standby.since
        )
    from {schema}.leases as lease
    left join {schema}.members as leader on leader.id = lease.member and leader.ended_at is null
    left join {schema}.members as gone on gone.id = lease.member and gone.ended_at is not null
    left join {schema}.terms as term on term.name = lease.name and term.epoch = lease.epoch
    where %(name)s::text is null or lease.name = %(name)s
    order by lease.name
    """,
)


def list_leaders(name: str | None = None) -> Query[list[LeaderView]]:
    """Who leads what, by name."""
    return LIST_LEADERS.query({"name": name}, read=many(LeaderView))


@dataclass(frozen=True, slots=True)
class TermView:
    """A term there was, or is: then it has no end.

    `end_reason` is resigned, lost or taken; `lost_because` is how the process of one that was lost had ended, in the words of
    `rota members list`: expired, suspected or left.
    """

    name: str
    epoch: int
    holder: str
    host: str
    pid: int
    member: UUID
    acquired_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    lost_because: str | None


LIST_TERMS = statement(
    "list_terms",
    """
    select
        term.name, term.epoch, term.holder, term.host, term.pid, term.member, term.acquired_at,
        coalesce(term.ended_at, gone.ended_at),
        -- that it is lost is written down by who leads next
        coalesce(term.end_reason, case when gone.id is not null then 'lost' end),
        coalesce(term.lost_because, gone.end_reason)
    from {schema}.terms as term
    left join {schema}.members as gone
        on gone.id = term.member and gone.ended_at is not null and term.ended_at is null
    where term.name = %(name)s
    order by term.epoch desc
    limit %(limit)s
    """,
)


def list_terms(name: str, *, limit: int = 100) -> Query[list[TermView]]:
    """The terms of a name, the last first."""
    return LIST_TERMS.query({"name": name, "limit": limit}, read=many(TermView))


@dataclass(frozen=True, slots=True)
class LeaderLane:
    """Who led a name when, the oldest term first. `gaps` are the times between two terms in which nobody did."""

    name: str
    terms: tuple[TermView, ...]
    gaps: tuple[tuple[datetime, datetime], ...]


LANES = statement(
    "list_leader_lanes",
    """
    select
        term.name, term.epoch, term.holder, term.host, term.pid, term.member, term.acquired_at,
        coalesce(term.ended_at, gone.ended_at),
        coalesce(term.end_reason, case when gone.id is not null then 'lost' end),
        coalesce(term.lost_because, gone.end_reason)
    from (select lease.name from {schema}.leases as lease order by lease.name limit %(names)s) as lease
    cross join lateral (
        select *
        from {schema}.terms as term
        where term.name = lease.name
        order by term.epoch desc
        limit %(limit)s
    ) as term
    left join {schema}.members as gone
        on gone.id = term.member and gone.ended_at is not null and term.ended_at is null
    where coalesce(term.ended_at, gone.ended_at, 'infinity') >= statement_timestamp() - %(back)s
    order by term.name, term.epoch
    """,
)


def leader_lanes(back: timedelta, *, names: int = 100, limit: int = 200) -> Query[list[LeaderLane]]:
    """Who led what since so long ago: of so many names, and so many of the last terms of each."""
    return LANES.query({"back": back, "names": names, "limit": limit}, read=_lanes)


def _lanes(rows: Sequence[Row]) -> list[LeaderLane]:
    by_name: dict[str, list[TermView]] = {}
    for row in rows:
        by_name.setdefault(row[0], []).append(TermView(*row))
    return [LeaderLane(name, tuple(terms), _gaps(terms)) for name, terms in by_name.items()]


def _gaps(terms: Sequence[TermView]) -> tuple[tuple[datetime, datetime], ...]:
    return tuple(
        (before.ended_at, then.acquired_at)
        for before, then in pairwise(terms)
        if before.ended_at is not None and before.ended_at < then.acquired_at
    )


COUNT_MEMBERS = statement(
    "count_members", "select count(*) from {schema}.members as member where member.ended_at is null"
)


def count_members() -> Query[int]:
    """How many processes have a lease."""
    return COUNT_MEMBERS.query(read=scalar)
