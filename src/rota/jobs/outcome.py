"""What an attempt can end in, and what a body may raise to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rota.clock import Duration, seconds
from rota.failure import Failure
from rota.jobs.claim import ClaimedJob

__all__ = [
    "AlreadySettled",
    "Buried",
    "Cancelled",
    "Discard",
    "HandedBack",
    "Lost",
    "Outcome",
    "Retried",
    "Snooze",
    "Snoozed",
    "Succeeded",
    "Unsuccessful",
]


class Snooze(Exception):
    """Raised by a body: not now. The job is due again after the pause, and the attempt costs nothing."""

    def __init__(self, pause: Duration) -> None:
        super().__init__(pause)
        self.pause = max(0.0, seconds(pause, "Snooze(...)"))


class Discard(Exception):
    """Raised by a body: there is no point in this job. It ends as cancelled, for this reason, and is not tried again."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Succeeded(NamedTuple):
    """The one outcome there are very many of; a tuple, as it is built fastest."""

    job: ClaimedJob
    result: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Retried:
    """It raised, and is due again after a pause."""

    job: ClaimedJob
    failure: Failure
    seconds: float
    pause: float
    kind: ClassVar = "retried"


@dataclass(frozen=True, slots=True)
class Buried:
    """It raised, and that was its last attempt."""

    job: ClaimedJob
    failure: Failure
    seconds: float
    pause: ClassVar = None
    kind: ClassVar = "buried"


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that ran it, one made for this job alone, is gone; or nobody may begin it again.

    `limit` is how many losses bury it, as its task says here; None for what the row says.
    """

    job: ClaimedJob
    failure: Failure
    seconds: float
    limit: int | None = None
    pause: ClassVar = None
    kind: ClassVar = "lost"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """It asked for a later time."""

    job: ClaimedJob
    seconds: float
    pause: float
    failure: ClassVar = None
    kind: ClassVar = "snoozed"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It discarded itself, or someone cancelled it; `reason` is None when the row says why."""

    job: ClaimedJob
    seconds: float
    reason: str | None = None
    pause: ClassVar = None
    failure: ClassVar = None
    kind: ClassVar = "cancelled"


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Not begun, or interrupted by our own stop: it costs no attempt."""

    job: ClaimedJob
    seconds: float = 0.0
    pause: ClassVar = None
    failure: ClassVar = None
    kind: ClassVar = "handed_back"


class AlreadySettled(NamedTuple):
    """Its success was committed with its own work by `job.transaction()`; there is nothing left to write."""

    job: ClaimedJob
    seconds: float


Unsuccessful = Retried | Buried | Lost | Snoozed | Cancelled | HandedBack
Outcome = Succeeded | AlreadySettled | Unsuccessful
