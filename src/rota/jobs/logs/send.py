"""The log lines of a body in a child, on their way to its worker, which writes them down with all others.

A thread sends them, so that a body never waits for the line to the worker. What a child says last before it answers is sent first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rota.jobs.logs.notes import Notes
from rota.jobs.logs.run import Line

__all__ = ["LogSender", "lines_from"]

# How long lines wait for others. The first is sent at once: it may be the last before a crash.
_GATHER_SECONDS = 0.2


class LogSender:
    """Sends what is noted in this process. `say` is how, and may be called from any thread."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._sending = threading.Lock()
        self._woken = threading.Event()

    def start(self, notes: Notes) -> None:
        self._notes = notes
        threading.Thread(target=self._run, name="rota-logs", daemon=True).start()

    def wake(self) -> None:
        self._woken.set()

    def send(self) -> None:
        """Send all there is. Returns when it is sent."""
        with self._sending:
            while parcels := self._notes.due(all_of_them=True):
                for parcel in parcels:
                    self._say({"lines": parcel.lines, "token": parcel.run.claim.token})
                self._notes.wrote(parcels)

    def _run(self) -> None:
        while True:
            self._woken.wait()
            self._woken.clear()
            self.send()
            time.sleep(_GATHER_SECONDS)


def lines_from(message: dict[str, Any]) -> Sequence[Line]:
    return [Line(*line) for line in message["lines"]]
