"""What people see of projections: where they are, who reads for them, what waits and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from rota.postgres.query import Query, Row, statement
from rota.projections.feed import START, Lag, Pair
from rota.projections.horizon import HorizonHolder

__all__ = [
    "STALLED_SECONDS",
    "PartitionView",
    "ProjectionStatus",
    "ProjectionView",
    "get_projection",
    "list_projections",
    "show_builds",
]

# Whoever is behind with so long a silence hangs, or waits for a lock.
STALLED_SECONDS = 60.0
# Which of several tells how all of them stand.
_WORST = ("stopped", "paused", "running", "retired")


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition of a projection, with a checkpoint and an owner of its own. One that has no partitions has this one."""

    partition: int
    #: running, paused by someone, stopped at an event that it cannot take in, or retired for a later version or build
    state: str
    state_at: datetime
    state_by: str | None
    #: of the last event it has taken in or passed over; None before the first
    order_xid: int | None
    position: int | None
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
    parked: int

    @property
    def pair(self) -> Pair:
        if self.order_xid is None or self.position is None:
            return START
        return Pair(self.order_xid, self.position)


@dataclass(frozen=True, slots=True)
class ProjectionView:
    """A build of a version of a projection as the database knows it.

    Where it has partitions, what is told of the whole is that of the one that stands worst (`state`, `failures` and the error), or is
    the furthest back (`order_xid` and `position`, None before the first event).
    """

    name: str
    version: int
    #: begins at 1, and grows with each rebuild of the same version
    build: int
    definition: dict[str, Any]
    declared_at: datetime
    #: running, paused by someone, stopped at an event that it cannot take in, or retired for a later version or build
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
    #: the process that reads for it, or those that do, and since when all of them do; None when there is none
    owner: str | None
    owner_since: datetime | None
    #: when a checkpoint last moved; and how long ago that is, or that its owner began
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
    partitions: tuple[PartitionView, ...]

    @property
    def pair(self) -> Pair:
        return min(each.pair for each in self.partitions)


@dataclass(frozen=True, slots=True)
class ProjectionStatus:
    """A projection with what waits for it. `held_by` is the transaction that keeps what waits from being read, if one does."""

    view: ProjectionView
    lag: Lag
    held_by: HorizonHolder | None
    #: how much of the log lies behind it, from 0 to 1, by positions; and how many seconds the rest takes at the pace so far
    progress: float
    eta_seconds: float | None
    #: the build that is to take its place when it has caught up, while there is one
    rebuild: ProjectionStatus | None = None

    @property
    def caught_up(self) -> bool:
        return self.lag.events == 0 and not self.lag.more

    @property
    def stalled(self) -> bool:
        """Whether it should read and has not come further for a minute, with nothing before it in the way: a handler hangs."""
        return any(self._is_stalled(each) for each in self.view.partitions)

    def _is_stalled(self, partition: PartitionView) -> bool:
        idle = [each for each in (partition.progress_seconds, self.lag.seconds) if each is not None]
        return (
            partition.state == "running"
            and partition.owner is not None
            and not partition.failures
            and self.held_by is None
            and bool(self.lag.events)
            and min(idle, default=0.0) > STALLED_SECONDS
        )


LIST_PROJECTIONS = statement(
    "list_projections",
    """
    select
        projection.name, projection.version, projection.build, projection.definition, projection.declared_at,
        projection.began_at, projection.live_at, extract(epoch from clock_timestamp() - projection.began_at)::float8,
        (
            select count(*)
            from {schema}.members as member
            where member.ended_at is null
              and member.work -> 'projections' ->> projection.name = projection.version::text
        ),
        projection.partition, projection.state, projection.state_at, projection.state_by,
        case when began.has then projection.order_xid::text::bigint end, case when began.has then projection.position end,
        projection.epoch, leader.name, case when leader.name is not null then lease.acquired_at end,
        projection.progress_at,
        extract(epoch from clock_timestamp() - greatest(projection.progress_at, lease.acquired_at))::float8,
        projection.failures, projection.failed_at, projection.error_type, projection.error_message, projection.error_trace,
        (
            select count(*)
            from {schema}.parked_events as parked
            where parked.projection = projection.name
              and parked.version = projection.version
              and parked.build = projection.build
              and parked.partition = projection.partition
        )
    from {schema}.projections as projection
    cross join lateral (
        select (projection.order_xid, projection.position) <> ('0'::xid8, -9223372036854775808) as has
    ) as began
    left join {schema}.leases as lease
        on lease.name = 'rota.projection/' || projection.name || '/' || projection.version::text
            || case when projection.partitions > 1 then '#' || projection.partition::text else '' end
    left join {schema}.members as leader on leader.id = lease.member and leader.ended_at is null
    where (%(name)s::text is null or projection.name = %(name)s)
      and (%(version)s::int is null or projection.version = %(version)s)
      -- builds that were given up, or that another has replaced, are of no more use
      and not exists (
          select
          from {schema}.projections as other
          where projection.state = 'retired'
            and other.name = projection.name
            and other.version = projection.version
            and other.partition = projection.partition
            and (other.state <> 'retired' or other.build > projection.build)
      )
    order by projection.name, projection.version desc, projection.live_at is null, projection.build, projection.partition
    """,
)


def list_projections() -> Query[list[ProjectionView]]:
    """All projections that a process has declared, by name, the last version first, and of it the build that readers use."""
    return LIST_PROJECTIONS.query({"name": None, "version": None}, read=_views)


def get_projection(name: str, version: int | None = None) -> Query[ProjectionView | None]:
    """That version of it, or the last; of that the build that readers use, or the first."""
    return LIST_PROJECTIONS.query(
        {"name": name, "version": version}, read=lambda rows: views[0] if (views := _views(rows)) else None
    )


def show_builds(name: str, version: int) -> Query[list[ProjectionView]]:
    """All builds of that version that are of use: the one that readers use first, then the one that is to take its place."""
    return LIST_PROJECTIONS.query({"name": name, "version": version}, read=_views)


def _views(rows: Sequence[Row]) -> list[ProjectionView]:
    return [_view([*each]) for _, each in groupby(rows, key=lambda row: row[:3])]


def _view(rows: Sequence[Row]) -> ProjectionView:
    name, version, build, definition, declared_at, began_at, live_at, building_seconds, workers = rows[0][:9]
    parts = tuple(PartitionView(*row[9:]) for row in rows)
    worst = min(parts, key=lambda each: (_WORST.index(each.state), -each.failures))
    back = min(parts, key=lambda each: each.pair)
    owners = sorted({each.owner for each in parts if each.owner is not None})
    failed = max((each for each in parts if each.failed_at), key=lambda each: each.failed_at or began_at, default=worst)
    told = worst if worst.error_type is not None and worst.state == "stopped" else failed
    return ProjectionView(
        name=name,
        version=version,
        build=build,
        definition=definition,
        declared_at=declared_at,
        state=worst.state,
        state_at=worst.state_at,
        state_by=worst.state_by,
        order_xid=back.order_xid,
        position=back.position,
        began_at=began_at,
        live_at=live_at,
        epoch=max(each.epoch for each in parts),
        owner=", ".join(owners) or None,
        owner_since=max((each.owner_since for each in parts if each.owner_since), default=None),
        progress_at=max((each.progress_at for each in parts if each.progress_at), default=None),
        progress_seconds=min(
            (each.progress_seconds for each in parts if each.progress_seconds is not None), default=None
        ),
        failures=max(each.failures for each in parts),
        failed_at=told.failed_at,
        error_type=told.error_type,
        error_message=told.error_message,
        error_trace=told.error_trace,
        building_seconds=building_seconds,
        parked=sum(each.parked for each in parts),
        workers=workers,
        partitions=parts,
    )
