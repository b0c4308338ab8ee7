"""From wall clocks to instants and back, exactly, in any zone.

What a schedule says is wall clock ("at two"); what is stored is an instant. Between the two stands the zone, whose clock
jumps forward (a gap: wall times that do not exist) and back (an overlap: wall times that exist twice). Everything here
that depends on a jump is in this module, and triggers only say which wall times they want:

* a wall time in a gap comes at the first instant after the gap, or not at all;
* a wall time in an overlap comes at its first instant, or at both.

`zoneinfo` does not tell its transitions, but by PEP 495 the two offsets of a wall time do: they differ in a gap (the first
is the smaller) and in an overlap (the first is the larger). The jump itself is then found by halving the time between.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from rota.errors import ConfigurationError

__all__ = ["INSTANT", "Gap", "Overlap", "aware", "following", "jump", "offsets", "until", "zone_of"]

Gap = Literal["run", "skip"]
Overlap = Literal["once", "twice"]

INSTANT = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


def zone_of(tz: str) -> ZoneInfo:
    """The zone of this name, or a ConfigurationError that names the nearest ones."""
    try:
        if isinstance(tz, str):
            return _zone(tz)
    except (OSError, ValueError, LookupError):  # no such file, a folder, a path out of the tree, no zone in it
        pass
    near = difflib.get_close_matches(str(tz), sorted(available_timezones()), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "use a name such as 'Europe/Berlin' or 'UTC'."
    raise ConfigurationError(f"tz={tz!r}: this machine's zone data has no such zone; {hint}")


@lru_cache(maxsize=1024)
def _zone(tz: str) -> ZoneInfo:
    # these differ from machine to machine, or count leap seconds: two schedulers would not agree on a slot
    if tz not in ("localtime", "posixrules") and not tz.startswith(("right/", "posix/")):
        return ZoneInfo(tz)
    raise LookupError(tz)


def aware(at: object, what: str) -> datetime:
    """The instant in UTC, or a ConfigurationError if it is no datetime or names no instant."""
    try:
        if isinstance(at, datetime) and at.utcoffset() is not None:
            return at.astimezone(UTC)
    except OverflowError:  # in UTC it is in a year that no datetime holds
        pass
    raise ConfigurationError(
        f"{what}={at!r}: an instant is a datetime with a time zone, such as datetime(2027, 1, 31, 9, tzinfo=UTC)."
    )


def offsets(zone: ZoneInfo, wall: datetime) -> tuple[timedelta, timedelta]:
    """The offsets from UTC at the wall time's first and second coming: the same, unless it lies in a gap or overlap."""
    first = zone.utcoffset(wall)
    second = zone.utcoffset(wall.replace(fold=1))
    assert first is not None
    assert second is not None
    return first, second


def jump(zone: ZoneInfo, wall: datetime) -> datetime:
    """The instant (in UTC) of the jump whose gap or overlap this naive wall time lies in."""
    first, second = offsets(zone, wall)
    early, late = sorted((wall - first, wall - second))
    before = early.replace(microsecond=0)
    steps = -((before - late) // _SECOND)
    offset = _offset_at(zone, before)
    low, high = 0, steps
    while high - low > 1:  # jumps happen at whole seconds
        middle = (low + high) // 2
        if _offset_at(zone, before + middle * _SECOND) == offset:
            low = middle
        else:
            high = middle
    return (before + high * _SECOND).replace(tzinfo=UTC)


def _offset_at(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.replace(tzinfo=UTC).astimezone(zone).utcoffset()


def following(
    zone: ZoneInfo,
    after: datetime,
    next_wall: Callable[[datetime], datetime | None],
    gap: Gap,
    overlap: Overlap,
) -> datetime | None:
    """The first instant (in UTC) after `after` at which one of the wanted wall times comes.

    `next_wall` gives the first wanted wall time strictly after another, both naive, or None at the end of time.
    """
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    wanted = next_wall(wall)
    first, second = offsets(zone, wall)
    if first > second:  # in an overlap
        at = jump(zone, wall).replace(tzinfo=None)
        begin, end = at + second, at + first
        if local.fold and overlap == "twice":
            if wanted is not None and wanted < end:
                return (wanted - second).replace(tzinfo=UTC)
        elif local.fold:
            wanted = next_wall(end - INSTANT)  # what comes again has been
        elif overlap == "twice" and (wanted is None or wanted >= end):
            # the clock goes back before it gets there, maybe to before a wanted time that has been
            again = next_wall(begin - INSTANT)
            if again is not None and again < end:
                return (again - second).replace(tzinfo=UTC)
    while wanted is not None:
        first, second = offsets(zone, wanted)
        if first >= second:
            return (wanted - first).replace(tzinfo=UTC)
        at = jump(zone, wanted)
        if gap == "run":
            return at
        wanted = next_wall(at.replace(tzinfo=None) + second - INSTANT)
    return None


def until(zone: ZoneInfo, after: datetime, next_wall: Callable[[datetime], datetime]) -> datetime:
    """The first instant after `after` at which the clock reaches or passes the next of these wall times, or is put back.

    What depends on the wall clock alone and changes only at these wall times stays as it is until then.
    """
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    first, second = offsets(zone, wall)
    if first > second and not local.fold:
        at = jump(zone, wall)
        if next_wall(wall) >= at.replace(tzinfo=None) + first:
            return at
    reached = following(zone, after, next_wall, "run", "twice")
    assert reached is not None
    return reached
