"""What pollers did in this process, counted from facts, for those who have no metrics library or feed one."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rota.facts import Facts, RowClaimLost, RowFailed, RowPolled, RowsClaimed

__all__ = ["DURATIONS", "Durations", "PollerTally", "Tally"]

#: from a look at a cache to a slow page; beyond the last, how long exactly matters to nobody
DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long polls took. `counts` has one number for each of `bounds`, of those no longer than it and longer than the one
    before, and one for the rest."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class PollerTally:
    """How many rows a poller has taken, how many of them were polled well and how many not, and how long that took."""

    claimed: int
    completed: int
    errors: int
    durations: Durations


@dataclass(slots=True)
class _Counts:
    claimed: int = 0
    completed: int = 0
    errors: int = 0
    seconds: float = 0.0
    durations: list[int] = field(default_factory=lambda: [0] * (len(DURATIONS) + 1))


class Tally:
    """Counts for as long as the facts are there. A fact comes for each row, so this is all that is done with it."""

    def __init__(self, facts: Facts) -> None:
        self._lock = threading.Lock()  # rounds may run in several threads
        self._counts: defaultdict[str, _Counts] = defaultdict(_Counts)
        facts.subscribe(self._claimed, RowsClaimed)
        facts.subscribe(self._polled, RowPolled)
        facts.subscribe(self._failed, RowFailed)
        facts.subscribe(self._lost, RowClaimLost)

    def told(self, pollers: Iterable[str]) -> dict[str, PollerTally]:
        """What was counted so far, also of those of which nothing was."""
        with self._lock:
            for name in pollers:
                self._counts[name]
            return {name: _frozen(counts) for name, counts in self._counts.items()}

    def _claimed(self, fact: RowsClaimed) -> None:
        with self._lock:
            self._counts[fact.poller].claimed += fact.rows

    def _polled(self, fact: RowPolled) -> None:
        with self._lock:
            counts = self._counts[fact.poller]
            counts.completed += 1
            counts.seconds += fact.seconds
            counts.durations[bisect_left(DURATIONS, fact.seconds)] += 1

    def _failed(self, fact: RowFailed) -> None:
        with self._lock:
            counts = self._counts[fact.poller]
            counts.errors += 1
            counts.seconds += fact.seconds
            counts.durations[bisect_left(DURATIONS, fact.seconds)] += 1

    def _lost(self, fact: RowClaimLost) -> None:
        with self._lock:
            self._counts[fact.poller].errors += 1


def _frozen(counts: _Counts) -> PollerTally:
    durations = Durations(DURATIONS, tuple(counts.durations), counts.seconds)
    return PollerTally(counts.claimed, counts.completed, counts.errors, durations)
