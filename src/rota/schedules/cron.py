"""When a cron expression comes, in any zone, across every jump of its clock.

cronsim (2.8) knows the days; the zone is ours. Walking with a zone's datetimes it goes wrong in corners:

* asked between the two comings of 02:30 for `30 2 * * *`, it gives the first, which is past;
* it takes minutes and hours across a jump, and loses what comes next where the clock jumps by half an hour (Lord Howe,
  `*/20 2 * * *`; Pyongyang 2018, `0 * * * *`) or off the hour (St. John's, `30 */2 * * *`);
* where midnight does not exist (Santiago) it gives that midnight to `*/30 0 6 * *`, a wall time that never was;
* with six fields it knows neither gap nor overlap: `0 0 2 * * *` is lost in one and comes twice in the other.

So it is only asked about days, which have none of this, and `zones.following` says when a wall time comes. The times of a day
are looked up, as walking to them hour by hour takes the longest.

An expression with a star in a time field (`*/30 * * * *`, `30 */2 * * *`) is an interval, as in Debian's cron: it comes
whenever the wall clock shows a matching time. So `gap` and `overlap` mean nothing to it: nothing is made up for in a gap, and
through an overlap it keeps its pace. All others are times of day, with five fields or six.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import get_args
from zoneinfo import ZoneInfo

from rota.errors import ConfigurationError
from rota.schedules.expression import Expression, read
from rota.schedules.zones import Gap, Overlap, aware, following, zone_of

__all__ = ["Cron"]

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone: 5 fields, or 6 with the seconds first.

    `H` stands for a number chosen by `name`. `gap` says whether a wall time that does not exist runs at the first instant
    after the gap or is skipped, `overlap` whether one that exists twice runs once, at its first, or twice.
    """

    expression: str
    tz: str = "UTC"
    name: str = ""
    gap: Gap = "run"
    overlap: Overlap = "once"
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _read: Expression = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, value, known in (("gap", self.gap, get_args(Gap)), ("overlap", self.overlap, get_args(Overlap))):
            if value not in known:
                raise ConfigurationError(f"{what}={value!r}: it is {' or '.join(map(repr, known))}.")
        object.__setattr__(self, "_zone", zone_of(self.tz))
        spread = isinstance(self.expression, str) and "h" in self.expression.lower()
        object.__setattr__(self, "_read", read(self.expression, self.name if spread else ""))

    @property
    def is_interval(self) -> bool:
        """Whether it runs every so often, so that gaps and overlaps mean nothing to it."""
        return self._read.is_interval

    def next(self, after: datetime) -> datetime | None:
        """The first slot strictly after this instant, in UTC; None if there is none in the years a datetime can hold."""
        try:
            return self._next(aware(after, "after"))
        except OverflowError:
            return None

    def _next(self, after: datetime) -> datetime | None:
        if self.tz == "UTC":
            wall = self._next_wall(after.replace(tzinfo=None))
            return wall and wall.replace(tzinfo=UTC)
        if self._read.is_interval:
            return following(self._zone, after, self._next_wall, "skip", "twice")
        return following(self._zone, after, self._next_wall, self.gap, self.overlap)

    def _next_wall(self, wall: datetime) -> datetime | None:
        read, day = self._read, wall.date()
        if _matches(read, day) and (at := _time_after(read, wall.time())):
            return datetime.combine(day, at)
        if (later := _day_after(read, day)) is None:
            return None
        return datetime.combine(later, time(read.hours[0], read.minutes[0], read.seconds[0]))

    def count(self, after: datetime, upto: datetime) -> int:
        """How many slots lie after the one instant and not after the other; it takes time by the day, not by the slot."""
        begin = aware(after, "after").replace(microsecond=0) + _SECOND  # slots are whole seconds
        end = aware(upto, "upto").replace(microsecond=0) + _SECOND
        total = 0
        while begin < end:
            total += self._count(begin, min(end, begin + _DAY))
            begin += _DAY
        return total

    def _count(self, begin: datetime, end: datetime) -> int:
        """The slots from `begin` to before `end`, at most a day apart."""
        if begin + _SECOND >= end:
            return int(self._next(begin - _SECOND) == begin)
        # With the same offset and the same coming just before and at both ends, no jump has a part in what lies between, and
        # wall times can be counted. Otherwise the jump is in one of the halves.
        before, first, last = (at.astimezone(self._zone) for at in (begin - _SECOND, begin, end - _SECOND))
        if before.utcoffset() == first.utcoffset() == last.utcoffset() and before.fold == first.fold == last.fold:
            if first.fold and self.overlap == "once" and not self._read.is_interval:
                return 0
            wall = first.replace(tzinfo=None)
            return _between(self._read, wall, wall + (end - begin))
        middle = begin + (end - begin) // _SECOND // 2 * _SECOND
        return self._count(begin, middle) + self._count(middle, end)

    def explain(self) -> str:
        """The expression in English."""
        return f"{self._read.fields.explain()}, {self.tz} time"


# Days are cronsim's. Thousands of schedules that come at the same time of day ask about the same few days.


@lru_cache(maxsize=8192)
def _matches(read: Expression, day: date) -> bool:
    return day.month in read.fields.months and read.fields.match_day(day)


@lru_cache(maxsize=8192)
def _day_after(read: Expression, day: date) -> date | None:
    """The next day on which the expression comes."""
    walker = copy(read.midnights)  # walking changes its time only
    walker.dt = datetime.combine(day, time(23, 59, 59))
    try:
        return next(walker).date()
    except (StopIteration, OverflowError, ValueError):  # past year 9999
        return None


def _time_after(read: Expression, at: time) -> time | None:
    """The first time of day strictly after this one, as fields of an odometer."""
    hours, minutes, seconds = read.hours, read.minutes, read.seconds
    hour = bisect_left(hours, at.hour)
    if hour < len(hours) and hours[hour] == at.hour:
        minute = bisect_left(minutes, at.minute)
        if minute < len(minutes) and minutes[minute] == at.minute:
            second = bisect_right(seconds, at.second)
            if second < len(seconds):
                return time(at.hour, at.minute, seconds[second])
            minute += 1
        if minute < len(minutes):
            return time(at.hour, minutes[minute], seconds[0])
        hour += 1
    return time(hours[hour], minutes[0], seconds[0]) if hour < len(hours) else None


def _times_before(read: Expression, at: time) -> int:
    """How many times of a day come before this one."""
    hours, minutes, seconds = read.hours, read.minutes, read.seconds
    count = bisect_left(hours, at.hour) * len(minutes) * len(seconds)
    if at.hour in hours:
        count += bisect_left(minutes, at.minute) * len(seconds)
        if at.minute in minutes:
            count += bisect_left(seconds, at.second)
    return count


def _between(read: Expression, begin: datetime, end: datetime) -> int:
    """How many wall times come from `begin` to before `end`, at most a day later."""
    first, last = begin.date(), end.date()
    count = _times_before(read, end.time()) if _matches(read, last) else 0
    if _matches(read, first):
        count -= _times_before(read, begin.time())
        if last != first:
            count += len(read.hours) * len(read.minutes) * len(read.seconds)
    return count
