"""What leaders say of the progress of their work, kept until a beat has carried it to the database."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from rota.clock import boottime

__all__ = ["Progress", "Report"]

_LONGEST_NOTE = 200  # characters: a line in a table
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """That work in the name of this term went on just now."""

    name: str
    epoch: int
    note: str | None
    at: float


class Progress:
    """The last report of each term. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: dict[str, Report] = {}

    def report(self, name: str, epoch: int, note: object) -> None:
        # a beat that the database refuses would cost the lease: whatever is in the note, it can be stored
        text = None if note is None else _UNPRINTABLE.sub(" ", str(note)[:_LONGEST_NOTE])
        with self._lock:
            self._reports[name] = Report(name, epoch, text, boottime())

    def untold(self) -> list[Report]:
        with self._lock:
            return list(self._reports.values())

    def told(self, reports: list[Report]) -> None:
        """Forget these, unless there is something newer to tell."""
        with self._lock:
            for report in reports:
                if self._reports.get(report.name) is report:
                    del self._reports[report.name]
