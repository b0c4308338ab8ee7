"""Schedules on one axis of time: what became of the last runs, what is to come, and how much of it comes at once.

Nothing here is unbounded. Lanes are those of the schedules that are due next; the load is counted over all that are active, ten
thousand at most, for no longer than a fraction of a second, and says of how many it is. Where the timing of many is the same, it is
worked out once, and that of a plain interval needs no calendar.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from rota.clock import Duration, duration
from rota.errors import ConfigurationError, RotaError
from rota.jobs.inspect import database_time
from rota.jobs.job import JobId
from rota.postgres.query import Query, Steps, many, statement
from rota.schedules.definition import timing_of
from rota.schedules.every import interval_of
from rota.schedules.jumps import Upset, jumps, upsets
from rota.schedules.store import readable_json
from rota.schedules.timing import Timing, jittered

__all__ = ["PastRun", "ScheduleLane", "Timeline", "Upcoming", "draw_timeline"]

_SPAN = timedelta(minutes=15)
_MOST_SCHEDULES = 10_000
_MOST_RUNS = 200  # of a lane, either way
_BUDGET = 0.15  # seconds for the load


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run that was given out; `state` as in ScheduleRun, but that a retried one is dead."""

    slot_at: datetime
    state: str
    job: JobId | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ScheduleLane:
    """What a schedule did and will do. `upsets` tell what jumps of its zone's clock do to it. With `cut` there is more to come."""

    name: str
    task: str
    tz: str
    past: tuple[PastRun, ...]
    future: tuple[datetime, ...]
    cut: bool
    upsets: tuple[Upset, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Upcoming:
    at: datetime
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Lanes of the schedules that are due next, and the load of all: how many runs begin in each quarter of an hour from `now` on.

    `counted` is of how many of the `schedules` that are active the load is, and where it is fewer there is more of it. `jumps` are
    those of the zones' clocks, in words. `next` are the next ten runs of all.
    """

    now: datetime
    since: datetime
    until: datetime
    lanes: tuple[ScheduleLane, ...]
    next: tuple[Upcoming, ...]
    load: tuple[float, ...]
    counted: int
    schedules: int
    jumps: dict[str, tuple[str, ...]] = field(default_factory=dict)


class _Row(NamedTuple):
    name: str
    task: str
    kind: str
    cron: str | None
    every: str | None
    at: datetime | None
    tz: str
    anchor: datetime
    dst_gap: str
    dst_overlap: str
    start_at: datetime | None
    end_at: datetime | None
    exclude: Any
    skipped_slots: Sequence[datetime]
    next_slot: datetime
    next_at: datetime
    jitter: timedelta
    left: int | None

    @property
    def timing(self) -> Timing:
        return timing_of(self._replace(exclude=readable_json(self.exclude)), self.anchor, self.skipped_slots)

    @property
    def is_plain(self) -> bool:
        """Whether its runs follow from the next one alone."""
        told = (self.exclude, self.start_at, self.end_at, self.left)
        return self.kind == "every" and not self.skipped_slots and all(each is None for each in told)

    @property
    def same(self) -> tuple[Any, ...]:
        """What those have in common whose runs are at the same times."""
        anchor = self.anchor if self.kind in ("every", "delay") else None
        return (*self[2:7], anchor, *self[8:13], tuple(self.skipped_slots), self.left, self.next_slot)


UPCOMING = statement(
    "list_upcoming",
    """
    select
        known.name, known.task, known.kind, known.cron, known.every, known.at, known.tz, known.anchor, known.dst_gap,
        known.dst_overlap, known.start_at, known.end_at, known.exclude::text, known.skipped_slots, known.next_slot,
        known.next_at, known.jitter, known.max_runs - known.runs
    from {schema}.schedules as known
    where known.next_at is not null
      and known.paused_at is null
      and known.problem is null
    order by known.next_at, known.name
    limit %(limit)s
    """,
)


def _upcoming(limit: int) -> Query[list[_Row]]:
    return UPCOMING.query({"limit": limit}, read=many(_Row))


class _Past(NamedTuple):
    schedule: str
    slot_at: datetime
    state: str
    job: JobId | None
    started_at: datetime | None
    finished_at: datetime | None


PAST = statement(
    "list_past_runs",
    """
    select
        named.schedule, slot.slot_at,
        case when slot.job_id is null then 'waiting' else coalesce(job.state, dead.state, done.state, 'forgotten') end,
        slot.job_id, coalesce(job.claimed_at, done.started_at), coalesce(done.finished_at, dead.died_at)
    from unnest(%(names)s::text[]) as named(schedule)
    cross join lateral (
        select slot.slot_at, slot.job_id
        from (
            select slot.slot_at, slot.job_id, slot.created_at
            from {schema}.slots as slot
            where slot.schedule = named.schedule
            order by slot.id desc
            limit %(limit)s
        ) as slot
        where slot.created_at >= %(since)s
    ) as slot
    -- the limits keep PostgreSQL from reading all there is to join it with the few that are wanted
    left join lateral (
        select job.state, job.claimed_at from {schema}.jobs as job where job.id = slot.job_id limit 1
    ) as job on true
    left join lateral (
        select 'dead' as state, letter.died_at from {schema}.dead as letter where letter.id = slot.job_id limit 1
    ) as dead on true
    left join lateral (
        select done.state, done.started_at, done.finished_at
        from {schema}.history as done
        where done.id = slot.job_id
          -- partitions of days before it are not looked into; an hour for a clock that was set back
          and done.finished_at >= %(since)s::timestamptz - interval '1 hour'
        limit 1
    ) as done on true
    order by slot.slot_at
    """,
)


def _past(names: Sequence[str], since: datetime, limit: int) -> Query[list[_Past]]:
    return PAST.query({"names": list(names), "since": since, "limit": limit}, read=many(_Past))


def draw_timeline(back: Duration = "6h", ahead: Duration = "24h", *, most: int = 50) -> Steps[Timeline]:
    """What became of runs since so long ago, and what is to come; with lanes of so many schedules."""
    behind, before = duration(back, "back"), duration(ahead, "ahead")
    for name, given in (("back", behind), ("ahead", before)):
        if not timedelta(0) <= given <= timedelta(days=7):
            raise ConfigurationError(f"{name} cannot be {given}: a timeline goes a week either way at most.")
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= 500:
        raise ConfigurationError(f"most cannot be {most!r}: it is of how many schedules there are lanes, up to 500.")
    return _draw(behind, before, most)


def _draw(behind: timedelta, before: timedelta, most: int) -> Steps[Timeline]:
    asked: datetime = yield database_time()
    now = asked.astimezone(UTC)
    since, until = now - behind, now + before
    rows: list[_Row] = yield _upcoming(_MOST_SCHEDULES)
    shown = rows[:most]
    # the more lanes, the fewer runs of each: a page has room for so many
    each = max(5, min(_MOST_RUNS, 5_000 // max(1, most)))
    past: list[_Past] = yield _past([row.name for row in shown], since, each)
    by_name: dict[str, list[PastRun]] = {}
    for run in past:
        by_name.setdefault(run.schedule, []).append(_run(run))
    load, counted = _load(rows, now, until)
    return Timeline(
        now,
        since,
        until,
        tuple(_lane(row, by_name.get(row.name, ()), now, until, each) for row in shown),
        tuple(_next_ten(rows, until)),
        load,
        counted,
        len(rows),
        _jumps({row.tz for row in shown}, now, until),
    )


def _run(told: _Past) -> PastRun:
    moments = (None if at is None else at.astimezone(UTC) for at in (told.started_at, told.finished_at))
    return PastRun(told.slot_at.astimezone(UTC), told.state, told.job, *moments)


def _lane(row: _Row, past: Sequence[PastRun], now: datetime, until: datetime, most: int) -> ScheduleLane:
    try:
        future = _future(row, until, most + 1)
        harmed = tuple(upsets(row.timing, now, until))
    except Exception as error:  # someone wrote something else into the row, which the scheduler will say of it
        return ScheduleLane(row.name, row.task, row.tz, tuple(past), (), False, (), f"{type(error).__name__}: {error}")
    return ScheduleLane(row.name, row.task, row.tz, tuple(past), tuple(future[:most]), len(future) > most, harmed)


def _future(row: _Row, until: datetime, most: int) -> list[datetime]:
    """When its next runs begin, jitter included."""
    slots = [row.next_slot]
    if row.kind != "delay":  # what comes then hangs on the end of that run
        slots += row.timing.preview(row.next_slot, most - 1) if most > 1 else []
    slots = slots[: most if row.left is None else min(most, row.left)]
    return [at for at in (jittered(row.name, slot.astimezone(UTC), row.jitter) for slot in slots) if at < until]


def _next_ten(rows: Sequence[_Row], until: datetime) -> list[Upcoming]:
    found: list[Upcoming] = []
    for row in rows[:10]:  # the first ten runs are of those that are due first
        with contextlib.suppress(Exception):  # told with its lane
            found += [Upcoming(at, row.name) for at in _future(row, until, 10)]
    return sorted(found, key=lambda each: (each.at, each.name))[:10]


def _load(rows: Sequence[_Row], now: datetime, until: datetime) -> tuple[tuple[float, ...], int]:
    """How many runs begin in each quarter of an hour; and of how many schedules that is, as time for it is short."""
    spans = [0.0] * max(1, -(-(until - now) // _SPAN))
    ends, counted = time.monotonic() + _BUDGET, 0
    alike: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        if time.monotonic() > ends:
            return tuple(spans), counted
        if row.is_plain and _add_plain(spans, row, now):
            counted += 1
        else:
            alike.setdefault(row.same, []).append(row)
    # those that many have in common first
    for same in sorted(alike.values(), key=len, reverse=True):
        if time.monotonic() > ends:
            break
        with contextlib.suppress(Exception):  # told with its lane
            for at in _slots(same[0], until):
                spans[max(0, min(len(spans) - 1, (at - now) // _SPAN))] += len(same)
            counted += len(same)
    return tuple(spans), counted


def _slots(row: _Row, until: datetime) -> list[datetime]:
    first = row.next_slot.astimezone(UTC)
    if first >= until or row.left == 0:
        return []
    if row.kind == "delay":
        return [first]
    most = 10_000 if row.left is None else row.left
    return [first, *islice(row.timing.between(first + timedelta(microseconds=1), until, most), most - 1)]


def _add_plain(spans: list[float], row: _Row, now: datetime) -> bool:
    """Add the runs of an interval that is elapsed time; False if it is none."""
    interval = interval_of(row.every or "")
    if interval.is_wall_clock:
        return False
    step, first = interval.length, row.next_slot - now
    if step <= timedelta(0):
        return False
    if step < _SPAN:
        # several in each: as many in one as in another, but for the first
        for place in range(max(0, first // _SPAN), len(spans)):
            spans[place] += _SPAN / step
        return True
    while (place := first // _SPAN) < len(spans):
        spans[max(0, place)] += 1
        first += step
    return True


def _jumps(zones: set[str], now: datetime, until: datetime) -> dict[str, tuple[str, ...]]:
    told: dict[str, tuple[str, ...]] = {}
    for zone in sorted(zones):
        with contextlib.suppress(RotaError):  # one that nobody knows is told with its lane
            told[zone] = tuple(str(jump) for jump in jumps(zone, now, until))
    return {zone: found for zone, found in told.items() if found}
