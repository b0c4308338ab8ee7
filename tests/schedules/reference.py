"""When cron expressions come, by walking the clock minute by minute: slow, and simple enough to be believed.

Written from the stated rules alone, and without a line of what it is compared with: not with cronsim, nor with the way
`rota.schedules` finds jumps. Every jump of the years in question happens at a whole minute.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}


def numbers(field: str, low: int, high: int, names: dict[str, int] | None = None) -> set[int]:
    """Plain values, ranges and steps of a field; what is special to days is left out here."""
    found: set[int] = set()
    for term in field.upper().split(","):
        if "L" in term.removeprefix("JUL") or "#" in term:
            continue
        base, _, step = term.partition("/")
        if base == "*":
            first, last = low, high
        else:
            ends = [int((names or {}).get(end, end)) for end in base.split("-")]
            first, last = ends[0], ends[1] if len(ends) == 2 else (high if step else ends[0])
        found |= set(range(first, last + 1, int(step or 1)))
    return found


class Pattern:
    """A five-field expression, or the last five of six."""

    def __init__(self, expression: str) -> None:
        fields = expression.upper().split()[-5:]
        self.day_field, self.weekday_field = fields[2], fields[4]
        self.minutes = numbers(fields[0], 0, 59)
        self.hours = numbers(fields[1], 0, 23)
        self.days = numbers(fields[2], 1, 31)
        self.months = numbers(fields[3], 1, 12, MONTHS)
        self.weekdays = {number % 7 for number in numbers(fields[4], 0, 7, WEEKDAYS)}
        self.is_interval = fields[0].startswith("*") or fields[1].startswith("*")
        self.known: dict[date, bool] = {}

    def on(self, day: date) -> bool:
        if day not in self.known:
            both = self.day_field.startswith("*") or self.weekday_field.startswith("*")
            matches = (self.by_day(day), self.by_weekday(day))
            self.known[day] = day.month in self.months and (all(matches) if both else any(matches))
        return self.known[day]

    def by_day(self, day: date) -> bool:
        terms = self.day_field.split(",")
        last = calendar.monthrange(day.year, day.month)[1]
        working = max(d for d in range(1, last + 1) if date(day.year, day.month, d).weekday() < 5)
        return day.day in self.days or ("L" in terms and day.day == last) or ("LW" in terms and day.day == working)

    def by_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if weekday in self.weekdays:
            return True
        last = calendar.monthrange(day.year, day.month)[1]
        for term in self.weekday_field.split(","):
            name, _, nth = term.partition("#")
            if nth and weekday == int(WEEKDAYS.get(name, name)) % 7 and (day.day - 1) // 7 + 1 == int(nth):
                return True
            if term.endswith("L") and weekday == int(term[:-1]) % 7 and day.day + 7 > last:
                return True
        return False

    def at(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.on(wall.date())


def clock(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Each minute with what the clock on the wall shows."""
    minutes = int((end - start) / MINUTE)
    instants = (start + count * MINUTE for count in range(minutes))
    return [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in instants]


def slots(
    pattern: Pattern, walked: Iterable[tuple[datetime, datetime]], gap: str = "run", overlap: str = "once"
) -> Iterator[datetime]:
    """The instants at which it comes. The first day or so only serves to know what has been."""
    previous: datetime | None = None
    latest: datetime | None = None  # the furthest the clock has shown
    for at, wall in walked:
        if pattern.at(wall):
            is_second = latest is not None and wall <= latest
            if pattern.is_interval or overlap == "twice" or not is_second:
                yield at
                previous, latest = wall, max(wall, latest or wall)
                continue
        if previous is not None and wall - previous > MINUTE and not pattern.is_interval and gap == "run":
            skipped = (previous + count * MINUTE for count in range(1, int((wall - previous) / MINUTE)))
            if any(pattern.at(each) for each in skipped):
                yield at
        previous, latest = wall, max(wall, latest or wall)


def jumps(zone: ZoneInfo, first_year: int, last_year: int) -> list[datetime]:
    """The instants at which the zone's clock jumps, to the minute."""
    found = []
    at, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year + 1, 1, 1, tzinfo=UTC)
    offset = at.astimezone(zone).utcoffset()
    while at < end:
        later = at + timedelta(hours=12)
        if later.astimezone(zone).utcoffset() != offset:
            minute = at
            while minute.astimezone(zone).utcoffset() == offset:
                minute += MINUTE
            found.append(minute)
            offset = later.astimezone(zone).utcoffset()
        at = later
    return found
