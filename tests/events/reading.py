"""A reader that goes on from where it is, as projections do."""

from __future__ import annotations

from typing import Any

from rota import Event
from rota.testing import until_sync


class Reader:
    """Reads a log on and on; `seen` is all that it has read so far."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.seen: list[Event] = []

    def read(self, limit: int = 1000) -> list[Event]:
        """What is there now, after the last that was seen."""
        events: list[Event] = self._log.read_all_sync(after=self.seen[-1] if self.seen else None, limit=limit)
        self.seen += events
        return events

    def read_until(self, count: int) -> list[Event]:
        """All that was seen when that is so many: other tests' transactions on the server may hold events back."""
        until_sync(lambda: self.read() is None or len(self.seen) >= count, what=f"{count} events")
        return self.seen


def read_to_end(log: Any, count: int) -> list[Event]:
    """All events of a log, in their order, when there are so many."""
    return Reader(log).read_until(count)
