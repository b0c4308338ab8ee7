"""A pace: every so often, on a grid that hangs on one instant, the anchor.

Slot k is the anchor and k intervals, computed at once and not slot by slot, so nothing adds up over time: neither the
lateness of runs nor rounding. What is no whole number of days is elapsed time. Whole days, weeks, months and years,
however they are written, are the wall clock's: the same local time each time, whatever the zone's clock does in between.
(In UTC, the default, a day is 24 hours either way.) A pause after a run hangs on no wall time, and is elapsed time throughout.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from rota.clock import Duration, duration
from rota.errors import ConfigurationError
from rota.schedules.zones import aware, following, zone_of

__all__ = ["Delay", "Every", "Interval", "interval_of"]

LEAST = timedelta(milliseconds=1)
MOST_MONTHS = 1200
MOST = timedelta(days=36525)

_WORDS = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "second", "seconds"),
    "m": ("m", "min", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
    "month": ("mo", "month", "months"),
    "year": ("y", "year", "years"),
}
_UNITS = {word: unit for unit, words in _WORDS.items() for word in words}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_TEXT = re.compile(rf"\s*(?:{_PART.pattern}\s*)+")


@dataclass(frozen=True, slots=True)
class Interval:
    """Either a number of months, or a length of time: in a pace, whole days of it are the wall clock's."""

    months: int = 0
    length: timedelta = timedelta()

    @property
    def is_wall_clock(self) -> bool:
        return bool(self.months) or not self.length % timedelta(days=1)

    def __str__(self) -> str:
        if self.months:
            return _counted(self.months // 12, "year") if self.months % 12 == 0 else _counted(self.months, "month")
        parts, rest = [], self.length
        for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
            count, rest = divmod(rest, timedelta(seconds=size))
            if count:
                parts.append(_counted(count, unit))
        if rest:
            parts.append(f"{rest / timedelta(milliseconds=1):g} ms")
        return " ".join(parts)


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'s'[: count != 1]}"


def interval_of(value: Duration | Interval, what: str = "every") -> Interval:
    """The interval of a timedelta, a number of seconds, or text such as "250ms", "1h 30m", "1 day", "2w" or "3 months"."""
    if isinstance(value, Interval):
        return value
    return _read(value, what) if isinstance(value, str) else _elapsed(value, f"{what}={value!r}: ")


@lru_cache(maxsize=4096)
def _read(value: str, what: str) -> Interval:
    where = f"{what}={value!r}: "
    rest = value
    if _TEXT.fullmatch(value):
        parts = [(count, _UNITS.get(unit), unit) for count, unit in _PART.findall(value)]
        if unknown := [word for _, unit, word in parts if unit is None]:
            raise ConfigurationError(
                f"{where}{unknown[0]!r} is no unit; there are {', '.join(w[-1] for w in _WORDS.values())}."
            )
        long = [count for count, unit, _ in parts if unit in ("month", "year")]
        if long and (len(long) < len(parts) or not all(count.isdigit() and len(count) < 6 for count in long)):
            raise ConfigurationError(
                f"{where}months and years are whole numbers, and are not mixed with shorter units, as they differ in "
                f"length; write '45 days', or '1 month', or '1 year 6 months'."
            )
        months = sum(
            int(count) * (12 if unit == "year" else 1) for count, unit, _ in parts if unit in ("month", "year")
        )
        rest = " ".join(f"{count}{unit}" for count, unit, _ in parts)
        if long:
            if not 1 <= months <= MOST_MONTHS:
                raise ConfigurationError(f"{where}an interval is from 1 ms to {MOST_MONTHS // 12} years.")
            return Interval(months=months)
    return _elapsed(rest, where)


def _elapsed(value: Duration, where: str) -> Interval:
    try:
        length = duration(value)
    except ConfigurationError:
        raise ConfigurationError(
            f"{where}it is a timedelta, a number of seconds, or text such as '250ms', '30s', '1h 30m', '1 day', '2w', "
            f"'3 months' or '1y'."
        ) from None
    if not LEAST <= length <= MOST:
        raise ConfigurationError(f"{where}an interval is from 1 ms to {MOST_MONTHS // 12} years.")
    return Interval(length=length)


@dataclass(frozen=True, slots=True)
class Every:
    """A slot every interval, before and after `anchor`, which is one itself; days and longer by the wall clock of `tz`.

    The 31st falls to the last day of shorter months and comes back to the 31st. A wall time in a gap comes at the first
    instant after it, one that exists twice at its first.
    """

    interval: Duration | Interval
    anchor: datetime
    tz: str = "UTC"
    _interval: Interval = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _wall: datetime = field(init=False, repr=False, compare=False)  # the anchor, in the zone

    def __post_init__(self) -> None:
        anchor = aware(self.anchor, "anchor")
        zone = zone_of(self.tz)
        object.__setattr__(self, "_interval", interval_of(self.interval))
        object.__setattr__(self, "_zone", zone)
        object.__setattr__(self, "_wall", anchor.astimezone(zone).replace(tzinfo=None, fold=0))
        object.__setattr__(self, "anchor", anchor)

    def next(self, after: datetime) -> datetime | None:
        """The first slot strictly after this instant, in UTC; None if there is none in the years a datetime can hold."""
        after = aware(after, "after")
        try:
            if self._interval.is_wall_clock:
                return following(self._zone, after, self._next_wall, "run", "once")
            return self.anchor + ((after - self.anchor) // self._interval.length + 1) * self._interval.length
        except OverflowError:
            return None

    def _next_wall(self, wall: datetime) -> datetime | None:
        try:
            if self._interval.months:
                return self._next_month(wall)
            return self._wall + ((wall - self._wall) // self._interval.length + 1) * self._interval.length
        except (OverflowError, ValueError):  # past year 9999
            return None

    def _next_month(self, wall: datetime) -> datetime:
        step = self._interval.months
        begin = self._wall.year * 12 + self._wall.month - 1
        month = begin + (wall.year * 12 + wall.month - 1 - begin) // step * step
        while True:  # this month's, or else the next one's
            year, index = divmod(month, 12)
            day = min(self._wall.day, monthrange(year, index + 1)[1])
            slot = self._wall.replace(year=year, month=index + 1, day=day)
            if slot > wall:
                return slot
            month += step

    def count(self, after: datetime, upto: datetime) -> int:
        """How many slots lie after the one instant and not after the other."""
        after, upto = aware(after, "after"), aware(upto, "upto")
        if not self._interval.is_wall_clock:
            length = self._interval.length
            return max(0, (upto - self.anchor) // length - (after - self.anchor) // length)
        total = 0
        while (slot := self.next(after)) is not None and slot <= upto:  # a day apart at least
            total, after = total + 1, slot
        return total

    def explain(self) -> str:
        """The pace in English."""
        pace = str(self._interval)
        if pace[:2] == "1 " and pace[2:].isalpha():
            pace = pace[2:]  # every hour
        local = self.anchor.astimezone(self._zone)
        if not self._interval.is_wall_clock:
            return f"Every {pace}, counted from {self.anchor:%Y-%m-%d %H:%M:%S} UTC"
        return f"Every {pace} at {local:%H:%M:%S}, counted from {local:%Y-%m-%d}, {self.tz} time"


@dataclass(frozen=True, slots=True)
class Delay:
    """One slot an interval after the last run has ended: `after` is that end. There is no grid, and so nothing to miss.

    It is elapsed time: a day is 24 hours, whatever the clocks of `tz` do meanwhile, and months are those of UTC. What ends
    a pause in fact is `end_of_pause` in the database, which says the same.
    """

    interval: Duration | Interval
    tz: str = "UTC"

    def __post_init__(self) -> None:
        interval_of(self.interval)
        zone_of(self.tz)

    def next(self, after: datetime) -> datetime | None:
        """The slot an interval after this instant, in UTC."""
        return Every(self.interval, after).next(after)

    def count(self, after: datetime, upto: datetime) -> int:
        """One, if the interval is over by then."""
        slot = self.next(after)
        return int(slot is not None and slot <= upto)

    def explain(self) -> str:
        """The pace in English."""
        return f"{interval_of(self.interval)} after the last run has ended"


@dataclass(frozen=True, slots=True)
class Once:
    """One instant."""

    at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", aware(self.at, "at"))

    def next(self, after: datetime) -> datetime | None:
        """The instant, as long as it lies ahead."""
        return self.at if self.at > aware(after, "after") else None

    def count(self, after: datetime, upto: datetime) -> int:
        """One, if it lies between."""
        return int(after < self.at <= upto)

    def explain(self) -> str:
        """The instant in words."""
        return f"Once, at {self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
