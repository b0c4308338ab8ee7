"""How a process is, in a few numbers that its beat carries along: rarely, and only when they say something new.

A beat is sent anyway, and what it writes anyway is one row; but what has changed of that row goes into the server's log. So a process
that does nothing, and is as it was, says nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from rota.clock import boottime

__all__ = ["Condition", "resident_bytes"]

# Between two of them: people look at these numbers, and one that is a few seconds old is as good as new.
_EVERY_SECONDS = 3.0
# Memory breathes: what is less than this share more or less is no news.
_MEMORY_SHARE = 0.05


class Condition:
    """Asked and told by the control thread. `look` gives the numbers, and must wait for nothing."""

    def __init__(self, look: Callable[[], Mapping[str, Any]]) -> None:
        self._look = look
        self._looked_at = float("-inf")
        self._last: Mapping[str, Any] | None = None
        self._next: Mapping[str, Any] | None = None

    def news(self) -> str | None:
        """The numbers as JSON, if there are any, it is time to tell them, and they are not those that were told last."""
        if boottime() - self._looked_at < _EVERY_SECONDS:
            return None
        self._looked_at = boottime()
        now: Mapping[str, Any] = {}
        with contextlib.suppress(Exception):  # whatever is wrong with a number, it must not cost the lease
            now = self._look()
        if not now or (self._last is not None and _alike(now, self._last)):
            return None
        self._next = now
        return json.dumps(now)

    def told(self, news: str | None) -> None:
        """These have arrived; until then they are told again."""
        if news is not None:
            self._last = self._next

    def forget(self) -> None:
        """Nobody knows them any more."""
        self._last, self._looked_at = None, float("-inf")


def _alike(now: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    memory, before = now.get("rss", 0), last.get("rss", 0)
    rest = {name: value for name, value in now.items() if name != "rss"}
    return abs(memory - before) <= before * _MEMORY_SHARE and rest == {
        name: value for name, value in last.items() if name != "rss"
    }


def resident_bytes() -> int | None:
    """How much memory this process has in use; None where that cannot be told."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as told:
        return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
