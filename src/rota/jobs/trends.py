"""`app.trends`: how much was done when, how long it took and what waited, in both colours. Made of tallies: see `tally`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rota.clock import Duration, duration
from rota.errors import ConfigurationError
from rota.jobs.definition import Task
from rota.jobs.inspect import database_time, text_filters
from rota.jobs.tally import longest
from rota.leases.marks import Mark, list_marks
from rota.postgres.look import look
from rota.postgres.pool import Database
from rota.postgres.query import Query, Row, Steps, many, one, statement

__all__ = ["Depth", "HeatCell", "Trend", "TrendBucket", "Trends"]

_MINUTES = timedelta(hours=8)  # up to this long a time is told by minutes, and a longer one by hours
_MINUTES_KEPT = timedelta(days=2)
_BUCKETS = 120  # a picture needs no more
_MOST_BUCKETS = 2_000
_WIDTHS = [timedelta(minutes=m) for m in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440)]


@dataclass(frozen=True, slots=True)
class TrendBucket:
    """What was done from `at` on, for the width of a bucket.

    `failed` and `lost` are attempts, `dead` those of them that buried their job. Waits, from due to begun, and runs are in seconds, of
    jobs that settled then: at most a fifth too high. None where there was none.
    """

    at: datetime
    succeeded: int = 0
    cancelled: int = 0
    failed: int = 0
    lost: int = 0
    dead: int = 0
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_p99: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    run_p99: float | None = None


@dataclass(frozen=True, slots=True)
class Trend:
    """Buckets without a gap, the oldest first. What came after `complete_until` is not counted yet; None if nothing is."""

    width: timedelta
    complete_until: datetime | None
    buckets: tuple[TrendBucket, ...]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """What a task did in an hour; waits and runs as in a TrendBucket."""

    task: str
    at: datetime
    succeeded: int
    failed: int
    dead: int
    wait_p95: float | None
    run_p95: float | None


@dataclass(frozen=True, slots=True)
class Depth:
    """What waited and ran in a queue. With `at_least` there may have been more than these."""

    at: datetime
    queue: str
    due: int
    later: int
    blocked: int
    running: int
    at_least: bool


class _Tally(NamedTuple):
    at: datetime
    task: str
    succeeded: int
    cancelled: int
    failed: int
    lost: int
    dead: int
    waits: dict[str, int]
    runs: dict[str, int]


READ = statement(
    "read_tallies",
    """
    select tally.at, tally.task, tally.succeeded, tally.cancelled, tally.failed, tally.lost, tally.dead, tally.waits, tally.runs
    from {schema}.tallies as tally
    where tally.span = %(span)s
      and tally.at >= %(since)s
      and tally.at < %(until)s
      and tally.queue = %(queue)s
      and tally.task = %(task)s
    """,
)


def _read(span: str, since: datetime, until: datetime, queue: str | None, task: str | None) -> Query[list[_Tally]]:
    params = {"span": span, "since": since, "until": until, "queue": queue or "", "task": task or ""}
    return READ.query(params, read=many(_Tally))


READ_TASKS = statement(
    "read_tallies_of_tasks",
    """
    with busy as (
        select tally.task
        from {schema}.tallies as tally
        where (tally.span = 'hour' or (tally.span = 'minute' and tally.at >= %(open_since)s))
          and tally.at >= %(since)s
          and tally.at < %(until)s
          and tally.task <> ''
        group by tally.task
        -- those that fail come first, and then those that do most
        order by sum(tally.failed + tally.lost) desc, sum(tally.succeeded) desc, tally.task
        limit %(most)s
    )
    select tally.at, tally.task, tally.succeeded, tally.cancelled, tally.failed, tally.lost, tally.dead, tally.waits, tally.runs
    from {schema}.tallies as tally
    join busy using (task)
    where (tally.span = 'hour' or (tally.span = 'minute' and tally.at >= %(open_since)s))
      and tally.at >= %(since)s
      and tally.at < %(until)s
    """,
)

KEPT = statement("read_tallied", "select kept.minutes_until, kept.hours_until from {schema}.tallied as kept")


class _Until(NamedTuple):
    minutes: datetime | None
    hours: datetime | None


DEPTHS = statement(
    "read_depths",
    """
    select depth.at, depth.queue, depth.due, depth.later, depth.blocked, depth.running, depth.at_least
    from {schema}.depths as depth
    where depth.at >= %(since)s
      and depth.at < %(until)s
      and (%(queue)s::text is null or depth.queue = %(queue)s)
    order by depth.at desc, depth.queue
    limit %(limit)s
    """,
)


class Trends:
    """How much was done in the last month, how long it waited and ran, and what happened meanwhile.

    `since` and `until` are times, or how long ago. Jobs are counted once a minute by one of the workers: the last minutes may not be
    there yet, and nothing is while no worker runs. A statement that takes longer than `deadline` is given up: DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def series(
        self,
        since: datetime | Duration = "6h",
        until: datetime | Duration | None = None,
        *,
        width: Duration | None = None,
        queue: str | None = None,
        task: Task[..., Any] | str | None = None,
        deadline: Duration | None = None,
    ) -> Trend:
        """What was done over time: by all, by a queue, or by a task.

        `width` is that of a bucket, whole minutes, or whole hours where the time is long or long ago; by default one that makes some
        hundred of them.
        """
        return await self._database.run_steps(look(_series(since, until, width, queue, task), deadline))

    def series_sync(
        self,
        since: datetime | Duration = "6h",
        until: datetime | Duration | None = None,
        *,
        width: Duration | None = None,
        queue: str | None = None,
        task: Task[..., Any] | str | None = None,
        deadline: Duration | None = None,
    ) -> Trend:
        return self._database.run_steps_sync(look(_series(since, until, width, queue, task), deadline))

    async def heat(
        self,
        since: datetime | Duration = "24h",
        until: datetime | Duration | None = None,
        *,
        most: int = 40,
        deadline: Duration | None = None,
    ) -> Sequence[HeatCell]:
        """What each task did in each hour: of the `most` tasks that failed most, or else did most."""
        return await self._database.run_steps(look(_heat(since, until, most), deadline))

    def heat_sync(
        self,
        since: datetime | Duration = "24h",
        until: datetime | Duration | None = None,
        *,
        most: int = 40,
        deadline: Duration | None = None,
    ) -> Sequence[HeatCell]:
        return self._database.run_steps_sync(look(_heat(since, until, most), deadline))

    async def depths(
        self,
        since: datetime | Duration = "1h",
        until: datetime | Duration | None = None,
        *,
        queue: str | None = None,
        deadline: Duration | None = None,
    ) -> Sequence[Depth]:
        """What waited and ran, sampled once a minute, in all queues or one; the newest first, at most 10,000, of the last two days."""
        return await self._database.run_steps(look(_depths(since, until, queue), deadline))

    def depths_sync(
        self,
        since: datetime | Duration = "1h",
        until: datetime | Duration | None = None,
        *,
        queue: str | None = None,
        deadline: Duration | None = None,
    ) -> Sequence[Depth]:
        return self._database.run_steps_sync(look(_depths(since, until, queue), deadline))

    async def marks(
        self,
        since: datetime | Duration = "24h",
        until: datetime | Duration | None = None,
        *,
        deadline: Duration | None = None,
    ) -> Sequence[Mark]:
        """What explains a picture, the last first: processes that started or died, failovers, what operators did."""
        return await self._database.run_steps(look(_marks(since, until), deadline))

    def marks_sync(
        self,
        since: datetime | Duration = "24h",
        until: datetime | Duration | None = None,
        *,
        deadline: Duration | None = None,
    ) -> Sequence[Mark]:
        return self._database.run_steps_sync(look(_marks(since, until), deadline))


def _between(since: Any, until: Any) -> Steps[tuple[datetime, datetime]]:
    now: datetime = yield database_time()
    first, last = _moment("since", since, now), now if until is None else _moment("until", until, now)
    if not first < last:
        raise ConfigurationError(f"Nothing is between {since!r} and {until!r}: since comes before until.")
    return first, last


def _moment(name: str, given: Any, now: datetime) -> datetime:
    if not isinstance(given, datetime):
        return (now - duration(given, name)).astimezone(UTC)
    if given.tzinfo is None:
        raise ConfigurationError(f"{name} cannot be {given!r}: a time says in which time zone it is.")
    return given.astimezone(UTC)


def _series(since: Any, until: Any, width: Duration | None, queue: Any, task: Any) -> Steps[Trend]:
    chosen = text_filters({"queue": queue, "task": task})
    if queue is not None and task is not None:
        raise ConfigurationError("A trend is that of a queue or of a task: jobs are not counted by both.")
    first, last = yield from _between(since, until)
    now: datetime = yield database_time()
    by_minutes = last - first <= _MINUTES and first > now - _MINUTES_KEPT
    wide = _width(first, last, width, timedelta(minutes=1) if by_minutes else timedelta(hours=1))
    first = _floor(first, wide)
    kept: _Until = yield KEPT.query(read=one(_Until))
    if by_minutes:
        tallies: list[_Tally] = yield _read("minute", first, last, **chosen)
    else:
        tallies = yield _read("hour", first, last, **chosen)
        if kept.hours is not None:
            # the hour that is not over yet
            tallies += yield _read("minute", max(first, kept.hours), last, **chosen)
    by_bucket: dict[datetime, list[_Tally]] = {}
    for tally in tallies:
        by_bucket.setdefault(_floor(tally.at, wide), []).append(tally)
    starts = [first + n * wide for n in range(-(-(last - first) // wide))]
    return Trend(wide, kept.minutes, tuple(_bucket(at, by_bucket.get(at, ())) for at in starts))


def _width(first: datetime, last: datetime, width: Duration | None, least: timedelta) -> timedelta:
    if width is None:
        fitting = (each for each in _WIDTHS if each >= least and (last - first) / each <= _BUCKETS)
        return next(fitting, _WIDTHS[-1])
    wide = duration(width, "width")
    if wide < least or wide % least or (last - first) / wide > _MOST_BUCKETS:
        raise ConfigurationError(
            f"width cannot be {width!r} here: it is a number of whole {'minutes' if least < timedelta(hours=1) else 'hours'}, and "
            f"makes at most {_MOST_BUCKETS} buckets. Up to eight hours of the last two days are told by minutes, and what is longer, "
            "or longer ago, by hours."
        )
    return wide


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _floor(at: datetime, width: timedelta) -> datetime:
    return _EPOCH + (at - _EPOCH) // width * width


def _bucket(at: datetime, tallies: Iterable[_Tally]) -> TrendBucket:
    together = list(tallies)
    waits, runs = _added(tally.waits for tally in together), _added(tally.runs for tally in together)
    return TrendBucket(
        at,
        sum(tally.succeeded for tally in together),
        sum(tally.cancelled for tally in together),
        sum(tally.failed for tally in together),
        sum(tally.lost for tally in together),
        sum(tally.dead for tally in together),
        *(_percentile(steps, share) for steps in (waits, runs) for share in (0.5, 0.95, 0.99)),
    )


def _added(parts: Iterable[Mapping[str, int]]) -> dict[int, int]:
    steps: dict[int, int] = {}
    for part in parts:
        for step, jobs in part.items():
            steps[int(step)] = steps.get(int(step), 0) + jobs
    return steps


def _percentile(steps: Mapping[int, int], share: float) -> float | None:
    """How long that share of the jobs took at most."""
    left = share * sum(steps.values())
    for step in sorted(steps):
        left -= steps[step]
        if left <= 0:
            return longest(step)
    return None


def _heat(since: Any, until: Any, most: int) -> Steps[list[HeatCell]]:
    first, last = yield from _between(since, until)
    kept: _Until = yield KEPT.query(read=one(_Until))
    first = _floor(first, timedelta(hours=1))
    params = {"since": first, "until": last, "most": most, "open_since": kept.hours or last}
    tallies: list[_Tally] = yield READ_TASKS.query(params, read=many(_Tally))
    cells: dict[tuple[str, datetime], list[_Tally]] = {}
    for tally in tallies:
        cells.setdefault((tally.task, _floor(tally.at, timedelta(hours=1))), []).append(tally)
    return [_cell(task, _bucket(at, cells[task, at])) for task, at in sorted(cells)]


def _cell(task: str, told: TrendBucket) -> HeatCell:
    failed = told.failed + told.lost
    return HeatCell(task, told.at, told.succeeded, failed, told.dead, told.wait_p95, told.run_p95)


def _depths(since: Any, until: Any, queue: str | None) -> Steps[list[Depth]]:
    chosen = text_filters({"queue": queue})
    first, last = yield from _between(since, until)
    found: list[Depth] = yield DEPTHS.query(
        {"since": first, "until": last, "limit": 10_000, **chosen},
        read=lambda rows: [_depth(row) for row in rows],
    )
    return found


def _depth(row: Row) -> Depth:
    at, *rest = row
    return Depth(at.astimezone(UTC), *rest)


def _marks(since: Any, until: Any) -> Steps[list[Mark]]:
    first, last = yield from _between(since, until)
    found: list[Mark] = yield list_marks(first, last)
    return found
