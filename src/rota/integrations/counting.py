"""What this process did, counted from its facts: for those who show it, in whatever format.

A fact comes for each job, so all that is done with it is done here: a dictionary, two bisections and a few additions. Names
come from users and may be without end, so only the first of them are told apart.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from rota import facts
from rota.facts import Fact, Facts
from rota.pollers.tally import DURATIONS

__all__ = ["DURATIONS", "MOST_NAMES", "OTHERS", "OUTCOMES", "WAITS", "Counting", "Histogram", "JobCounts"]

#: from at once to a backlog of a day; beyond the last, how long exactly matters to nobody
WAITS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

OUTCOMES = ("succeeded", "failed", "dead", "cancelled", "snoozed", "lost")

#: how many names of each kind are told apart: their number is what a metric costs those who store it
MOST_NAMES = 200
#: what stands for all names beyond those that are told apart
OTHERS = "(others)"


class Histogram:
    """How often a number fell below each bound, and what they add up to."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        copied = Histogram(self.bounds)
        copied.counts[:] = self.counts
        copied.total = self.total
        return copied


class JobCounts:
    """The attempts of one task in one queue."""

    __slots__ = ("durations", "outcomes", "waits")

    def __init__(self) -> None:
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.durations = Histogram(DURATIONS)
        self.waits = Histogram(WAITS)

    def copy(self) -> JobCounts:
        copied = JobCounts()
        copied.outcomes.update(self.outcomes)
        copied.durations, copied.waits = self.durations.copy(), self.waits.copy()
        return copied


class Counting:
    """Counts from when it is made until `stop`. `most` is how many names of each kind are told apart."""

    def __init__(self, source: Facts, *, most: int = MOST_NAMES) -> None:
        self._lock = threading.Lock()  # an app may be worked on in several threads
        self._most = most
        self._jobs: dict[tuple[str, str], JobCounts] = {}
        self._leading: dict[str, int] = {}
        self._by_name: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._events: defaultdict[str, int] = defaultdict(int)
        self._states: dict[str, int | None] = {}
        self._unsubscribe = [source.subscribe(count, kind) for kind, count in self._counters().items()]

    def stop(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def jobs(self) -> dict[tuple[str, str], JobCounts]:
        """What was counted of attempts so far, by queue and task."""
        with self._lock:
            return {names: counts.copy() for names, counts in self._jobs.items()}

    def leading(self) -> dict[str, int]:
        """What this process leads (1), or has led or waits for (0)."""
        with self._lock:
            return dict(self._leading)

    def named(self, what: str) -> dict[str, int]:
        """How often something happened to what bears a name."""
        with self._lock:
            return dict(self._by_name[what])

    def events(self, what: str) -> int:
        with self._lock:
            return self._events[what]

    def state(self, what: str) -> int | None:
        """1 or 0; None while there is no such thing."""
        return self._states.get(what)

    def _counters(self) -> dict[type[Fact], Callable[[Any], None]]:
        return {
            facts.JobSucceeded: partial(self._ended, "succeeded"),
            facts.JobFailed: lambda fact: self._ended("dead" if fact.retry_in is None else "failed", fact),
            facts.JobCancelled: partial(self._ended, "cancelled"),
            facts.JobSnoozed: partial(self._ended, "snoozed"),
            facts.JobLost: self._lost,
            facts.JobStuck: lambda fact: self._happened("jobs_stuck"),
            facts.JobClaimLost: lambda fact: self._happened("claims_lost") if fact.finished else None,
            facts.LeadershipGained: self._gained,
            facts.LeadershipEnded: lambda fact: self._leads(fact.name, 0),
            facts.StandingBy: lambda fact: self._leads(fact.name, 0),
            facts.SingletonFailed: lambda fact: self._happened_to("singleton_failures", fact.name),
            facts.ScheduleFired: lambda fact: self._happened_to("schedule_fired", fact.name, fact.runs),
            facts.ScheduleSkipped: lambda fact: self._happened_to("schedule_skipped", fact.name, fact.runs),
            facts.ScheduleMissed: lambda fact: self._happened_to("schedule_missed", fact.name, fact.runs),
            facts.ScheduleBroken: lambda fact: self._happened_to("schedule_broken", fact.name),
            facts.MemberEnded: lambda fact: self._happened("members_ended"),
            facts.MemberIdentityLost: lambda fact: self._happened("identities_lost"),
            facts.MemberJoined: lambda fact: self._is("control", 1),
            facts.ControlRestored: lambda fact: self._is("control", 1),
            facts.ControlLost: lambda fact: self._is("control", 0),
            facts.MemberLeft: lambda fact: self._is("control", None),
            facts.ListenerDeaf: lambda fact: self._is("listener", 0),
            facts.ListenerHeard: lambda fact: self._is("listener", 1),
        }

    def _ended(self, outcome: str, fact: Any) -> None:
        with self._lock:
            counts = self._jobs.get((fact.queue, fact.task)) or self._new(fact.queue, fact.task)
            counts.outcomes[outcome] += 1
            if fact.attempt:
                counts.durations.add(fact.seconds)
            if fact.waited is not None:
                counts.waits.add(fact.waited)

    def _lost(self, fact: facts.JobLost) -> None:
        # how long it ran before its process went down, nobody knows
        with self._lock:
            counts = self._jobs.get((fact.queue, fact.task)) or self._new(fact.queue, fact.task)
            counts.outcomes["lost"] += 1

    def _new(self, queue: str, task: str) -> JobCounts:
        names = (queue, task) if len(self._jobs) < self._most else (OTHERS, OTHERS)
        if names not in self._jobs:
            self._jobs[names] = JobCounts()
        return self._jobs[names]

    def _gained(self, fact: facts.LeadershipGained) -> None:
        self._leads(fact.name, 1)
        self._happened_to("leader_changes", fact.name)

    def _leads(self, name: str, value: int) -> None:
        with self._lock:
            if name in self._leading or len(self._leading) < self._most:
                self._leading[name] = value

    def _happened_to(self, what: str, name: str, times: int = 1) -> None:
        with self._lock:
            names = self._by_name[what]
            names[name if name in names or len(names) < self._most else OTHERS] += times

    def _happened(self, what: str) -> None:
        with self._lock:
            self._events[what] += 1

    def _is(self, what: str, value: int | None) -> None:
        self._states[what] = value
