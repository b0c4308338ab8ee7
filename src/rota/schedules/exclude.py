"""When a schedule rests: weekdays, dates, ranges of dates and daily windows, in the schedule's zone.

A slot that any part matches does not exist: it is no misfire, and is not made up for. Whether a slot is left out depends on
the wall clock at its instant alone, so between two of the clock's edges (midnight, a window's ends) the answer is the same.
`turn` gives the next such edge, and lets a search step over a weekend at once however many slots there would be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime, time, timedelta
from typing import Any, TypeVar

from rota.errors import ConfigurationError

__all__ = ["Exclude"]

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY = timedelta(days=1)

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, init=False)
class Exclude:
    """Slots to leave out: any match does.

    `ranges` of dates include both ends. `windows` are daily, begin and end as "22:00", go over midnight if they end before
    they begin, and do not include their end.
    """

    weekdays: tuple[str, ...]
    dates: tuple[date, ...]
    ranges: tuple[tuple[date, date], ...]
    windows: tuple[tuple[time, time], ...]

    def __init__(
        self,
        weekdays: Iterable[str] = (),
        dates: Iterable[date | str] = (),
        ranges: Iterable[tuple[date | str, date | str]] = (),
        windows: Iterable[tuple[time | str, time | str]] = (),
    ) -> None:
        named = _each(weekdays, "weekdays", _weekday)
        for name, value in (
            ("weekdays", tuple(day for day in WEEKDAYS if day in named)),
            ("dates", tuple(sorted(set(_each(dates, "dates", _date))))),
            ("ranges", _each(ranges, "ranges", _range)),
            ("windows", _each(windows, "windows", _window)),
        ):
            object.__setattr__(self, name, value)

    def __bool__(self) -> bool:
        return bool(self.weekdays or self.dates or self.ranges or self.windows)

    def covers(self, wall: datetime) -> bool:
        """Whether a slot at this wall time is left out."""
        return self._rests_until(wall) is not None

    def turn(self, wall: datetime) -> datetime:
        """The first wall time after this one at which the answer may be another."""
        if (rest := self._rests_until(wall)) is not None:
            return rest
        midnight = datetime.combine(wall.date(), time())
        begins = (datetime.combine(wall.date(), begin) for begin, _ in self.windows)
        return min([midnight + _DAY, *(begin for begin in begins if begin > wall)])

    def _rests_until(self, wall: datetime) -> datetime | None:
        day, at = wall.date(), wall.time()
        midnight = datetime.combine(day, time())
        for first, last in self.ranges:
            if first <= day <= last:
                return datetime.combine(last, time()) + _DAY
        if day in self.dates or WEEKDAYS[day.weekday()] in self.weekdays:
            return midnight + _DAY
        for begin, end in self.windows:
            if begin < end and begin <= at < end:
                return datetime.combine(day, end)
            if begin > end and at < end:
                return datetime.combine(day, end)
            if begin > end and at >= begin:
                return datetime.combine(day, end) + _DAY
        return None

    def as_json(self) -> dict[str, Any]:
        """The same as plain JSON; parts that are empty are left out."""
        parts = {
            "weekdays": list(self.weekdays),
            "dates": [each.isoformat() for each in self.dates],
            "ranges": [[first.isoformat(), last.isoformat()] for first, last in self.ranges],
            "windows": [[_clock(begin), _clock(end)] for begin, end in self.windows],
        }
        return {name: part for name, part in parts.items() if part}

    @classmethod
    def from_json(cls, value: object) -> Exclude:
        """What `as_json` gave, or a ConfigurationError that names the part that is wrong."""
        if value is None:
            return cls()
        known = [each.name for each in fields(cls)]
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"exclude={value!r}: it is an object with some of {', '.join(known)}.")
        if unknown := [str(name) for name in value if name not in known]:
            raise ConfigurationError(f"exclude has {', '.join(unknown)}: there are {', '.join(known)}.")
        return cls(**value)

    def explain(self) -> str:
        """What is left out, in English."""
        parts = [*self.weekdays, *(each.isoformat() for each in self.dates)]
        parts += [f"{first} to {last}" for first, last in self.ranges]
        parts += [f"{_clock(begin)} to {_clock(end)}" for begin, end in self.windows]
        return f"except {', '.join(parts)}" if parts else ""


def _each(given: object, part: str, one: Callable[[Any], Part]) -> tuple[Part, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"exclude {part}={given!r}: it is a list, even of one.")
    read = []
    for value in given:
        try:
            read.append(one(value))
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigurationError(f"exclude {part}: {value!r} cannot be one, {error}.") from None
    return tuple(read)


def _weekday(value: object) -> str:
    name = value.lower() if isinstance(value, str) else ""
    if name in _FULL:
        return WEEKDAYS[_FULL.index(name)]
    if name not in WEEKDAYS:
        raise ValueError(f"a weekday is one of {', '.join(WEEKDAYS)}")
    return name


def _date(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str) and len(value) == len("2026-12-25"):
            return date.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"a date is written as 2026-12-25: {error}") from None
    raise ValueError("a date is a date, or written as 2026-12-25")


def _range(value: object) -> tuple[date, date]:
    first, last = (_date(each) for each in _two(value, "a range has a first and a last date"))
    if last < first:
        raise ValueError("the last date is before the first")
    if last == date.max:
        raise ValueError("it has no end; give the schedule an end_at instead")
    return first, last


def _window(value: object) -> tuple[time, time]:
    begin, end = (_time(each) for each in _two(value, "a window has a begin and an end"))
    if begin == end:
        raise ValueError(
            "it begins where it ends, which could be nothing or the whole day; pause the schedule to stop it"
        )
    return begin, end


def _two(value: object, otherwise: str) -> tuple[object, object]:
    if isinstance(value, str) or not isinstance(value, Iterable) or len(both := list(value)) != 2:
        raise ValueError(otherwise)
    return both[0], both[1]


def _time(value: object) -> time:
    if isinstance(value, time) and value.tzinfo is None and not value.microsecond:
        return value
    if value == "24:00":
        return time()
    try:
        if isinstance(value, str) and len(value) in (len("22:00"), len("22:00:00")):
            return _time(time.fromisoformat(value))
    except ValueError:
        pass
    raise ValueError("a time of day is written as 22:00 or 22:00:30, without a zone: it is the schedule's")


def _clock(at: time) -> str:
    return at.isoformat("seconds" if at.second else "minutes")
