"""Where a tracer hooks in: around enqueueing, around a body, and around writing down what became of it.

The context of a trace travels in the row, as text that only the tracer reads. `app.tracing` is None unless someone traces, and
then nothing of this is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rota.jobs.claim import ClaimedJob
from rota.jobs.job import Job, NewJob
from rota.jobs.outcome import Outcome

__all__ = ["Processing", "Sending", "Tracing"]


class Sending(Protocol):
    """Jobs on their way into the queue."""

    @property
    def context(self) -> str | None:
        """What to store with them."""

    def sent(self, jobs: Sequence[Job[Any]]) -> None:
        """They are there, or will be when the caller's transaction commits."""


class Processing(Protocol):
    """An attempt."""

    @property
    def context(self) -> str | None:
        """What to hand to a process that runs its body."""

    def ended(self, outcome: Outcome) -> None: ...


class Tracing(Protocol):
    """What a tracer is to us. None of it may raise, and all of it is on the way of every job: it must be quick."""

    def sending(self, new: Sequence[NewJob]) -> AbstractContextManager[Sending]: ...

    def processing(self, job: ClaimedJob) -> AbstractContextManager[Processing]:
        """Around a body, in the context that the body runs in; or it raises what ended it."""

    def continuing(self, context: str | None) -> AbstractContextManager[None]:
        """Around a body in a process of its own, whose attempt is traced in another."""

    def settling(self, outcomes: Sequence[Outcome]) -> AbstractContextManager[None]: ...
