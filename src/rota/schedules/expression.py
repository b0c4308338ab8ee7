"""Reading a cron expression: what people write, made into what cronsim takes, and the reason when that is not possible.

cronsim does the parsing. Before it sees the expression, aliases (`@daily`), `?` and `H` are replaced by plain fields, and
what it would take without meaning it (`*/90` in the minutes) is refused. Its refusals name a field; ours add the part of
the field that is wrong, why, and what to write instead.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b

from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from rota.errors import ConfigurationError

__all__ = ["Expression", "read"]

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    low: int
    high: int
    takes: str  # beyond numbers, lists, ranges and steps


_KINDS = (
    _Kind("second", 0, 59, ""),
    _Kind("minute", 0, 59, ""),
    _Kind("hour", 0, 23, ""),
    _Kind("day of month", 1, 31, ", L for the last day, LW for the last weekday"),
    _Kind("month", 1, 12, ", a name such as jan"),
    _Kind(
        "day of week",
        0,
        7,
        " (0 and 7 are Sunday), a name such as mon, mon#2 for the second Monday, friL for the last Friday",
    ),
)
_DAY, _WEEKDAY = 3, 5

# Every month has the days 1 to 28, and 7 is Sunday once more
_SPREAD = {_DAY: (1, 28), _WEEKDAY: (0, 6)}
_HASHED = re.compile(r"H(?:\((\d+)-(\d+)\))?(?:/(\d+))?")

# the last Friday by its name, of which cronsim takes the number alone
_LAST = re.compile(r"(SUN|MON|TUE|WED|THU|FRI|SAT)L")

LONGEST = 1000  # every second listed by name is 170 characters; what is longer is no expression
# Weekdays and leap years come back every 28 years until 2100: what does not come in the 50 years cronsim looks never comes
ANY_DAY = datetime(2000, 1, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """An expression as cronsim takes it. One object for all that mean the same, so that it can be a key."""

    fields: CronSim
    midnights: CronSim  # the same days, each at 00:00:00: walks from day to day without counting hours
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    # Runs every so often, not at a time of day: any of the time fields begins with a star (Debian's rule), or with H/n,
    # which is a star that begins elsewhere. It follows the clock, and knows neither gaps nor overlaps.
    is_interval: bool


def read(expression: str, name: str) -> Expression:
    """The expression with its H spread by this name, or a ConfigurationError that says which field is wrong, and why."""
    if not isinstance(expression, str) or not expression.strip():
        raise ConfigurationError(f"cron={expression!r}: it is text of 5 or 6 fields, such as '0 9 * * mon-fri'.")
    return _read(expression, name)


@lru_cache(maxsize=4096)
def _read(expression: str, name: str) -> Expression:
    where = f"cron={expression!r}: "
    if len(expression) > LONGEST:
        raise ConfigurationError(f"cron={expression[:30]!r}...: an expression has at most {LONGEST} characters.")
    written = _fields(expression, where)
    plain = tuple(_plain(position, field, name, where) for position, field in enumerate(written))
    try:
        return _compiled(plain, any(field.startswith(("*", "H/")) for field in written[:3]))
    except (CronSimError, StopIteration):  # each field alone is right
        raise ConfigurationError(
            f"{where}it never comes: no date has day of month {written[3]!r}, month {written[4]!r} and day of week "
            f"{written[5]!r}. Change one of these three; for the last day of a month write L."
        ) from None


@lru_cache(maxsize=4096)
def _compiled(plain: tuple[str, ...], is_interval: bool) -> Expression:
    fields = CronSim(" ".join(plain), ANY_DAY)
    midnights = CronSim(" ".join(("0", "0", "0", *plain[3:])), ANY_DAY)
    next(copy(midnights))
    hours, minutes, seconds = (tuple(sorted(values)) for values in (fields.hours, fields.minutes, fields.seconds))
    return Expression(fields, midnights, hours, minutes, seconds, is_interval)


def _fields(expression: str, where: str) -> list[str]:
    text = expression.strip()
    if text.startswith("@"):
        try:
            text = ALIASES[text.lower()]
        except KeyError:
            hint = "For a fixed pace use every=. " if text.lower().startswith("@every") else ""
            raise ConfigurationError(
                f"{where}{text} is no alias. {hint}There are {', '.join(ALIASES)}; anything else is 5 or 6 fields."
            ) from None
    fields = text.upper().split()
    if len(fields) not in (5, 6) or not text.isascii():
        fault = f"it has {len(fields)} field{'s'[: len(fields) != 1]}" if text.isascii() else "it is not plain ASCII"
        raise ConfigurationError(
            f"{where}{fault}. Write 5 (minute, hour, day of month, month, day of week) or 6 (seconds before these)."
        )
    return fields if len(fields) == 6 else ["0", *fields]


def _plain(position: int, field: str, name: str, where: str) -> str:
    """The field as cronsim takes it."""
    if field == "?" and position in (_DAY, _WEEKDAY):
        return "*"
    terms = []
    for term in field.split(","):
        try:
            plain = _spread(position, term, name) if term.startswith("H") else term
            if position == _WEEKDAY and (last := _LAST.fullmatch(term)):
                plain = f"{Field(position).int(last[1])}L"
            terms.append(_checked(position, plain))
        except (CronSimError, ValueError) as error:
            reason = str(error) if isinstance(error, ValueError) else _reason(position, term)
            raise ConfigurationError(f"{where}the {_KINDS[position].name} cannot be {term!r}: {reason}.") from None
    return ",".join(terms)


@lru_cache(maxsize=4096)
def _checked(position: int, term: str) -> str:
    kind = _KINDS[position]
    Field(position).parse(term)
    base, _, step = term.partition("/")
    size = 7 if position == _WEEKDAY else kind.high - kind.low + 1
    if step and int(step) > size:
        raise ValueError(
            f"there are {size} values, so a step of {step} means one of them, not every {step}; for such a pace use every="
        )
    start, _, end = base.partition("-")
    # cronsim takes the step of a range of one (5-5/10) as 5/10, that is to the end of the field; cron means 5 alone
    return start if step and start == end else term


def _spread(position: int, term: str, name: str) -> str:
    """H as numbers: the same for the same name on every machine, and evenly spread over all names."""
    found = _HASHED.fullmatch(term)
    if not found:
        raise ValueError("H is written H, H(10-20), H/15 or H(0-29)/10")
    if not name:
        raise ValueError("H is chosen by the schedule's name, and this one has none; give it a name, or write a number")
    kind = _KINDS[position]
    low, high = _SPREAD.get(position, (kind.low, kind.high))
    if found[1]:
        low, high = int(found[1]), int(found[2])
        if not kind.low <= low <= high <= kind.high:
            raise ValueError(f"{low}-{high} is no range within {kind.low}-{kind.high}")
    step = int(found[3] or 0)
    if found[3] and not 1 <= step <= high - low + 1:
        raise ValueError(f"a step within {low}-{high} is 1 to {high - low + 1}")
    digest = blake2b(f"{name}\0{position}".encode(errors="surrogatepass"), digest_size=8).digest()
    start = low + int.from_bytes(digest) % (step or high - low + 1)
    return ",".join(map(str, range(start, high + 1, step))) if step else str(start)


def _reason(position: int, term: str) -> str:
    """Why cronsim refuses this part of a field."""
    kind = _KINDS[position]
    if not term:
        return "there is nothing between two commas"
    if position == _DAY and re.fullmatch(r"\d+W", term):
        return "the weekday nearest to a day is not known here; LW is the last weekday of the month"
    base, slash, step = term.partition("/")
    if slash and not (step.isdigit() and int(step)):
        return "after the / comes a step, a whole number from 1"
    ends = base.split("-")
    try:
        values = [Field(position).int(end) for end in ends]
    except CronSimError:
        numbers = [end for end in ends if end.isdigit() and not kind.low <= int(end) <= kind.high]
        if numbers:
            return f"{numbers[0]} is not within {kind.low}-{kind.high}"
        return f"it takes *, numbers {kind.low}-{kind.high}{kind.takes}, lists (1,3), ranges (1-5), steps (*/2) and H"
    if len(values) == 2:
        low = 1 if position == _WEEKDAY else kind.low
        return f"the range runs backwards; to go round the end write {ends[0]}-{kind.high},{low}-{ends[1]}"
    return "it takes one range with at most one step"
