"""How a projection stands in the process that reads for it, as far as that is known without asking anyone."""

from __future__ import annotations

from typing import Any

from rota.clock import boottime
from rota.projections.feed import START, Found

__all__ = ["Standing"]

# While events wait for the horizon, which moves without a message: soon at first.
_PENDING_FIRST = 0.01
_PENDING_LONGEST = 1.0
# When it has not moved for so long, it is worth knowing who holds it; and after twice as long again.
_HINDERED_SECONDS = 5.0


class Standing:
    """What the last look found, since when a handler is busy, and how long events have waited for the horizon."""

    def __init__(self) -> None:
        self._found: Found | None = None
        self.busy_since: float | None = None
        self._waits_since: float | None = None
        self._pause = _PENDING_FIRST
        self._tell_after = _HINDERED_SECONDS
        self.held_by: str | None = None

    def found(self, found: Found | None) -> None:
        """Note what a look found; None when we no longer read for it."""
        self._found = found
        if found is None or found.rows or not found.pending:
            self._waits_since, self._pause, self._tell_after, self.held_by = (
                None,
                _PENDING_FIRST,
                _HINDERED_SECONDS,
                None,
            )

    def waits(self) -> tuple[float, bool]:
        """Events wait for the horizon: for how long they have, and whether it is time to find out who holds it."""
        if self._waits_since is None:
            self._waits_since = boottime()
        waited = boottime() - self._waits_since
        is_due = waited >= self._tell_after
        if is_due:
            self._tell_after = waited * 2
        return waited, is_due

    def pause(self) -> float:
        """How long to wait for it before the next look: longer each time."""
        pause, self._pause = self._pause, min(self._pause * 2, _PENDING_LONGEST)
        return pause

    def told(self) -> dict[str, Any] | None:
        """For people; None while this process does not read for it."""
        found, now = self._found, boottime()
        if found is None:
            return None
        return {
            "state": found.state,
            "position": found.at.position if found.at != START else None,
            "caught_up": not found.rows and not found.pending,
            "failures": found.failures,
            "busy": None if self.busy_since is None else round(now - self.busy_since, 3),
            "waiting": None if self._waits_since is None else round(now - self._waits_since, 3),
            "held_by": self.held_by,
        }
