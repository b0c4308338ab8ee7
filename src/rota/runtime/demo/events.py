"""What happened during the demo, in words, newest last."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

__all__ = ["Event", "Events", "worth_showing"]

KEPT = 50


@dataclass(frozen=True, slots=True)
class Event:
    """`source` is the worker that said it, or empty when the demo itself did."""

    at: datetime
    source: str
    text: str


class Events:
    """The last events; `listener` hears each at once."""

    def __init__(self, listener: Callable[[Event], None] = lambda event: None) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._listener = listener

    def tell(self, text: str, source: str = "") -> None:
        event = Event(datetime.now().astimezone(), source, text)
        self._kept.append(event)
        self._listener(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._kept)


_LOGGED = re.compile(r"^\d\d:\d\d:\d\d WARNING +(.*)$")


def worth_showing(line: str) -> str | None:
    """The words of a worker's warning; None for the rest of what it says.

    That a job was lost is left out: the demo counts those, from the database, and says so in one line.
    """
    logged = _LOGGED.match(line)
    return logged[1] if logged and " was lost with " not in logged[1] else None
