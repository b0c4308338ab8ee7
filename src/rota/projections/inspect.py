"""What people see of projections: where they are, who reads for them, what waits and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.postgres.query import Query, many, one_or_none, statement
from rota.projections.feed import START, Lag, Pair
from rota.projections.horizon import HorizonHolder

__all__ = ["STALLED_SECONDS", "ProjectionStatus", "ProjectionView", "get_projection", "list_projections"]

# Whoever is behind with so long a silence hangs, or waits for a lock.
STALLED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProjectionView:
    """A projection as the database knows it. `order_xid` and `position` are None before the first event."""

    name: str
    version: int
    definition: dict[str, Any]
    declared_at: datetime
    #: running, paused by someone, stopped at an event that it cannot take in, or retired for a later version
    state: str
    state_at: datetime
    state_by: str | None
    order_xid: int | None
    position: int | None
    #: when it began with the first event, and since when readers use its tables, if it has a `switch`
    began_at: datetime
    live_at: datetime | None
    #: of the term in which it was read last
    epoch: int
    #: the process that reads for it, and since when; None when there is none
    owner: str | None
    owner_since: datetime | None
    #: when the checkpoint last moved; and how long ago that is, or that its owner began
    progress_at: datetime | None
    progress_seconds: float | None
    #: how often the event that comes next has failed
    failures: int
    failed_at: datetime | None
    error_type: str | None
    error_message: str | None
    error_trace: str | None
    #: how long ago it began with the first event
    building_seconds: float
    parked: int
    #: how many live workers have it
    workers: int

    @property
    def pair(self) -> Pair:
        if self.order_xid is None or self.position is None:
            return START
        return Pair(self.order_xid, self.position)


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """A projection with what waits for it. `held_by` is the transaction that keeps what waits from being read, if one does."""

    view: ProjectionView
    lag: Lag
    held_by: HorizonHolder | None
    #: how much of the log lies behind it, from 0 to 1, by positions; and how many seconds the rest takes at the pace so far
    progress: float
    eta_seconds: float | None

    @property
    def caught_up(self) -> bool:
        return self.lag.events == 0 and not self.lag.more

    @property
    def stalled(self) -> bool:
        """Whether it should read and has not come further for a minute, with nothing before it in the way: a handler hangs."""
        view = self.view
        idle = [each for each in (view.progress_seconds, self.lag.seconds) if each is not None]
        return (
            view.state == "running"
            and view.owner is not None
            and not view.failures
            and self.held_by is None
            and bool(self.lag.events)
            and min(idle, default=0.0) > STALLED_SECONDS
        )


LIST_PROJECTIONS = statement(
    "list_projections",
    """
    select
        projection.name, projection.version, projection.definition, projection.declared_at, projection.state,
        projection.state_at, projection.state_by,
        case when began.has then projection.order_xid::text::bigint end, case when began.has then projection.position end,
        projection.began_at, projection.live_at, projection.epoch, leader.name,
        case when leader.name is not null then lease.acquired_at end,
        projection.progress_at,
        extract(epoch from clock_timestamp() - greatest(projection.progress_at, lease.acquired_at))::float8,
        projection.failures, projection.failed_at, projection.error_type, projection.error_message, projection.error_trace,
        extract(epoch from clock_timestamp() - projection.began_at)::float8,
        (
            select count(*)
            from {schema}.parked_events as parked
            where parked.projection = projection.name
              and parked.version = projection.version
        ),
        (
            select count(*)
            from {schema}.members as member
            where member.ended_at is null
              and member.work -> 'projections' ->> projection.name = projection.version::text
        )
    from {schema}.projections as projection
    cross join lateral (
        select (projection.order_xid, projection.position) <> ('0'::xid8, -9223372036854775808) as has
    ) as began
    left join {schema}.leases as lease
        on lease.name = 'rota.projection/' || projection.name || '/' || projection.version::text
    left join {schema}.members as leader on leader.id = lease.member and leader.ended_at is null
    where (%(name)s::text is null or projection.name = %(name)s)
      and (%(version)s::int is null or projection.version = %(version)s)
    order by projection.name, projection.version desc
    """,
)


def list_projections() -> Query[list[ProjectionView]]:
    """All projections that a process has declared, by name, the last version first."""
    return LIST_PROJECTIONS.query({"name": None, "version": None}, read=many(ProjectionView))


def get_projection(name: str, version: int | None = None) -> Query[ProjectionView | None]:
    """That version of it, or the last."""
    return LIST_PROJECTIONS.query({"name": name, "version": version}, read=one_or_none(ProjectionView))
