"""Waking others up, and knowing whether we would hear it.

NOTIFY is a hint: it may be lost with a connection, kept back by a pooler, or cost a busy server dearly. Polling is the
truth, so a wake-up only makes work start sooner. Whether hints arrive is not assumed but probed: now and then one of those who
listen says something to all of them, and who does not hear even itself polls more often.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rota.clock import boottime
from rota.postgres.keys import channel
from rota.postgres.query import Query, nothing, statement

__all__ = [
    "BULK",
    "Probe",
    "Throttle",
    "cancel_channel",
    "event_channel",
    "lead_channel",
    "notify",
    "poll_channel",
    "probe_channel",
    "schedule_channel",
    "wake_channel",
    "wake_message",
    "wish_channel",
]


@lru_cache(maxsize=256)
def wake_channel(schema: str) -> str:
    """Where workers listen; the payload names a queue, and maybe a job there, and is never trusted for more than a look."""
    return channel(schema, "wake")


def wake_message(said: str) -> tuple[str, int | None]:
    """The queue that a message names, and the job if it names one: behind a character that separates them.

    Anyone may say anything there: what can be no id is none.
    """
    queue, between, job = said.rpartition("\x1f")
    return (queue, int(job)) if between and re.fullmatch("[0-9]{1,18}", job) else (said, None)


#: Said where workers listen when a bulk is begun. No queue has such a name; who knows nothing of bulks looks for jobs.
BULK = "\x1fbulk"


def cancel_channel(schema: str) -> str:
    """Where workers hear that something they run is to end; the payload names the member that runs it."""
    return channel(schema, "cancel")


def wish_channel(schema: str) -> str:
    """Where members hear that someone wants something of one of them; the payload names that."""
    return channel(schema, "wish")


def lead_channel(schema: str) -> str:
    """Where those who lead or wait to lead hear that something is new; the payload is the name."""
    return channel(schema, "lead")


def schedule_channel(schema: str) -> str:
    """Where whoever leads the scheduler hears that there is something new to do; the payload says nothing."""
    return channel(schema, "schedule")


def poll_channel(schema: str) -> str:
    """Where workers hear that a poller may find something; the payload is its name, or empty for all."""
    return channel(schema, "poll")


def event_channel(schema: str) -> str:
    """Where projections hear that a log has new events; the payload is its name."""
    return channel(schema, "event")


def probe_channel(schema: str) -> str:
    """Where all who listen find out whether they hear; the payload says nothing."""
    return channel(schema, "probe")


NOTIFY = statement("notify", "select {schema}.notify(%(channel)s, %(payload)s)")


def notify(channel: str, payload: str) -> Query[None]:
    """Say it to whoever listens, unless the queue of messages is nearly full."""
    return NOTIFY.query({"channel": channel, "payload": payload}, read=nothing)


# So many windows after a wake-up, whoever it woke looks again soon: not after more than 80 ms.
_STILL_AWAKE = 4


class Throttle:
    """At most one wake-up per queue in a short window.

    Commits that notify are serialised by PostgreSQL, so one per job would cap the whole database. A worker that was woken
    looks again a few times with growing pauses, which is how it finds the jobs whose wake-up was left out here.
    """

    def __init__(self, window: float = 0.005) -> None:
        self._window = window
        self._last: dict[str, float] = {}
        self._sent: dict[str, float] = {}

    def admits(self, queue: str) -> bool:
        now = boottime()
        if now - self._last.get(queue, -1.0) < self._window:
            return False
        if len(self._last) > 10_000:
            self._last.clear()
            self._sent.clear()
        self._last[queue] = now
        return True

    def sent(self, queue: str) -> None:
        """One that was admitted is committed."""
        self._sent[queue] = boottime()

    def is_overdue(self, queue: str) -> bool:
        """Whether one that was left out, and is committed now, has nothing to rely on: whoever is told so speaks.

        What was admitted may have failed, still wait for a lock, or be so long ago that whoever it woke rests again.
        """
        now = boottime()
        if now - self._sent.get(queue, float("-inf")) <= self._window * _STILL_AWAKE:
            return False
        self._sent[queue] = now
        return True


class Probe:
    """Whether what is said to all who listen arrives here. `hears` is False from the first word of our own that did not.

    Any of them proves it, so that only one of many has to speak: each message wakes the sessions of all who listen, and fifty
    that spoke to themselves alone would wake fifty each.
    """

    def __init__(self, *, every: float = 10.0, patience: float = 2.0) -> None:
        self._every = every
        self._patience = patience
        self._waits = False
        self._last_at = float("-inf")  # when we last spoke, or heard anyone
        self.hears = False

    def reset(self) -> None:
        """A new connection has proved nothing yet."""
        self._waits = False
        self._last_at = float("-inf")
        self.hears = False

    def due(self) -> bool:
        """Whether to speak now; whoever is told so does."""
        if boottime() - self._last_at < (self._every if self.hears else self._patience):
            return False
        self._last_at = boottime()
        self._waits = True
        return True

    def heard(self) -> bool:
        """Something arrived on the probe channel, from whomever; True when hearing has just begun (again)."""
        self._last_at = boottime()
        self._waits = False
        began, self.hears = not self.hears, True
        return began

    def check(self) -> bool:
        """True when hearing has just ended: what we said is overdue."""
        if self.hears and self._waits and boottime() - self._last_at > self._patience:
            self.hears = False
            return True
        return False
