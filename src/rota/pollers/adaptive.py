"""A pace for each row that follows what its handler finds: faster while there is something new, slower while there is not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rota.clock import Duration, duration
from rota.errors import ConfigurationError

__all__ = ["LONGEST", "Adaptive", "Changed"]

#: No interval is longer: PostgreSQL must be able to add it to any time.
LONGEST = timedelta(days=365_000)
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Changed:
    """Returned by a handler that found something new; one that returns None found nothing."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Between which bounds the interval of a row moves, and by which factors: `faster` when its handler returned Changed,
    `slower` when it did not.

    It is kept in the column that `interval=` names. Without one Rota keeps it: the first is `interval`, or `min`, and a row that
    was polled before and that Rota knows nothing of yet is due when `max` has passed.
    """

    min: Duration
    max: Duration
    faster: float = 0.5
    slower: float = 1.5

    def __post_init__(self) -> None:
        problems = []
        if not timedelta(0) < self.shortest <= self.longest <= LONGEST:
            problems.append(
                f"min is {self.min!r} and max {self.max!r}; min is more than nothing, and max not less than it, nor more than "
                f"{LONGEST.days:,} days"
            )
        for name, factor, (low, high) in (("faster", self.faster, (0, 1)), ("slower", self.slower, (1, _MOST))):
            if not isinstance(factor, int | float) or not low < factor < high:
                problems.append(
                    f"{name} is {factor!r}; the interval is multiplied by it, so it is more than {low} and less than {high:,}"
                )
        if problems:
            raise ConfigurationError(f"This Adaptive cannot work: {'; '.join(problems)}.")

    @property
    def shortest(self) -> timedelta:
        return duration(self.min, "Adaptive(min=...)")

    @property
    def longest(self) -> timedelta:
        return duration(self.max, "Adaptive(max=...)")
