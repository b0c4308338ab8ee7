"""How many jobs may begin in a period, as people write it: "100/1m", "5/s", "1000/1h 30m"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rota.clock import seconds
from rota.errors import ConfigurationError

__all__ = ["Rate", "read_rate"]

_TEXT = re.compile(r"\s*([0-9]+)\s*/\s*(.*\S)\s*", re.S)
_UNITS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}

_MOST = 2**31 - 1  # what the column holds
_SHORTEST = 0.001
_LONGEST = 366 * 86400.0  # far from where timestamps end, whatever is reckoned with it


@dataclass(frozen=True, slots=True)
class Rate:
    """No more than `count` in any period of so many `seconds`."""

    count: int
    seconds: float

    def __str__(self) -> str:
        for unit, size in _UNITS.items():
            if self.seconds >= size and self.seconds % size == 0:
                return f"{self.count}/{self.seconds / size:.0f}{unit}"
        return f"{self.count}/{round(self.seconds * 1000, 3):.15g}ms"


def read_rate(value: str, field: str) -> Rate:
    """The rate that text such as "100/1m" means; `field` is what it was given for. Raises ConfigurationError."""
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _refused(field, value, "it is how many may begin in which time, such as '100/1m', '5/s' or '1000/1h'")
    count, period = int(found[1][:20]), found[2]
    if not 1 <= count <= _MOST:
        raise _refused(field, value, f"it lets 1 to {_MOST} begin; to have none begin, pause the queue")
    try:
        length = seconds(period if period[0].isdigit() else f"1{period}", field)
    except ConfigurationError as error:
        raise _refused(field, value, f"{period!r} is no time; write it as '100/1m', '5/s' or '1000/1h 30m'") from error
    if not _SHORTEST <= length <= _LONGEST:
        raise _refused(field, value, "its period is 1 ms to 366 days")
    return Rate(count, length)


def _refused(field: str, value: Any, why: str) -> ConfigurationError:
    return ConfigurationError(f"{field} cannot be {value!r}: {why}.")
