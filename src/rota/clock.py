"""Durations as people write them, and the one clock that keeps counting while a laptop sleeps.

Points in time come from the database (`rota.now()`); what is measured here are durations only.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import timedelta

from rota.errors import ConfigurationError

__all__ = ["Deadline", "Duration", "boottime", "duration", "seconds"]

Duration = timedelta | float | int | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])")
_TEXT = re.compile(rf"(?:\s*{_PART.pattern})+\s*")


def duration(value: Duration, what: str = "duration") -> timedelta:
    """A timedelta from a timedelta, a number of seconds, or text such as "90s", "5m" or "1h 30m"."""
    try:
        if isinstance(value, timedelta):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str) and _TEXT.fullmatch(value):
            return timedelta(seconds=sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(value)))
    except (OverflowError, ValueError):
        pass  # longer than anything lasts, or not a number at all
    raise ConfigurationError(
        f"{what} cannot be {value!r}: it is neither a number of seconds, a timedelta, nor text such as '90s', '5m', "
        f"'1h 30m' or '2d' (units: {', '.join(_UNITS)})."
    )


def seconds(value: Duration, what: str = "duration") -> float:
    """The same as a number of seconds."""
    return duration(value, what).total_seconds()


if hasattr(time, "CLOCK_BOOTTIME"):

    def boottime() -> float:
        """Seconds on a clock that only goes forward and goes on while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock stops during sleep; the lease on the server still decides

    def boottime() -> float:
        """Seconds on a clock that only goes forward."""
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on this process's clock, and how far away it is."""

    at: float

    @classmethod
    def after(cls, value: Duration) -> Deadline:
        return cls(boottime() + seconds(value))

    @property
    def left(self) -> float:
        return max(0.0, self.at - boottime())
