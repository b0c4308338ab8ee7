"""Telling a poison from its neighbours.

A process that dies takes down all it runs, and nobody can say which of the jobs was at fault. So a job that was lost is a
*suspect*, and suspects are kept apart from each other; fresh jobs go on beside them. Whatever kills the process next takes
with it fresh jobs, which become suspects by it, and few others. A job that was lost twice runs with no other suspect beside
it at all. So a poison is dead after three losses, while a neighbour of its survives its third attempt at the latest.

After a first loss a suspect keeps others out for a moment only, as most poison works at once: a machine that died with
twenty long jobs must not have them run one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from rota.jobs.claim import ClaimedJob

__all__ = ["Gate"]

_PROBATION_SECONDS = 1.0
_ANY = 32767  # more losses than anything survives


class Gate:
    """Which suspect this process may take next. It closes when one is claimed, until that has shown itself harmless."""

    def __init__(self, opened: Callable[[], None]) -> None:
        self._opened = opened
        self._inside: set[int] = set()
        self._held_by: int | None = None

    @property
    def most_losses(self) -> int:
        """How often the next suspect may have been lost; 0 for none at all."""
        if self._held_by is not None:
            return 0
        return 1 if self._inside else _ANY

    def close(self, suspect: ClaimedJob) -> None:
        """This suspect has been claimed."""
        self._held_by = suspect.token
        self._inside.add(suspect.token)

    @contextlib.contextmanager
    def passed(self, suspect: ClaimedJob) -> Iterator[None]:
        """Open the gate when the suspect's body has ended, or after a moment if it was lost only once."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_PROBATION_SECONDS, self._open, suspect.token) if suspect.losses == 1 else None
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self.leave(suspect)

    def leave(self, suspect: ClaimedJob) -> None:
        """This suspect has ended, was handed back, or its claim is void."""
        self._inside.discard(suspect.token)
        self._open(suspect.token)
        self._opened()

    def _open(self, token: int) -> None:
        if self._held_by == token:
            self._held_by = None
            self._opened()
