"""What a worker sends a child on: one job, where its task is found, and where the database is. And what comes back.

Messages are JSON, one to a line, on a socket that nobody but the two holds; nothing is ever unpickled. To the child go

    {"path": [...], "argv": [...]}     first: how this process finds modules
    {"number": 3, "task": "name", …}   what all errands of a task have in common; said again only when it changes
    {"load": 3}                        load this task ahead; answered by {"ready": true}, found or not
    {"stopping": true}                 the worker drains
    [7, "default", 3, …]               an errand: a job, with the number of its task; the next one comes when this one is answered

and from it come, for each errand, `{"begun": true}` when the body is about to be called, and one answer: `[result, seconds]` of a
success, or another outcome, or `{"missing": "why", "trace": "..."}` when the task cannot be found, or `{"unopened": "why"}` when a
resource that the task wants cannot be opened. Between them come `{"lines": [...], "token": …}`, what the body has logged.

A child reads these between bodies only. What it is to hear during one comes on a second socket: `stopping`, as the worker drains,
and `end`, by which the body is interrupted; or the end of it, as the worker is gone.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from rota.failure import Failure, StandIn
from rota.jobs.claim import ClaimedJob
from rota.jobs.outcome import (
    AlreadySettled,
    Buried,
    Cancelled,
    HandedBack,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
)
from rota.jobs.places import Place

__all__ = [
    "BEGUN",
    "END",
    "LINES",
    "LINE_LIMIT",
    "STOPPING",
    "Errand",
    "Standing",
    "failure_from",
    "line_of",
    "outcome_from",
    "written",
    "written_errand",
    "written_failure",
]

# Payloads are bounded where they are made; this only has to lie beyond them.
LINE_LIMIT = 2**28

BEGUN = b'{"begun": true}'
# How a message with log lines begins.
LINES = b'{"lines":'
STOPPING = b"stopping\n"
END = b"end\n"

_TASK = ClaimedJob._fields.index("task")
_SLOT_AT = ClaimedJob._fields.index("slot_at")


@dataclass(frozen=True, slots=True)
class Standing:
    """What all errands of a task have in common. It is what stands at `path`, or is registered under its name, in the first place
    that has it."""

    number: int
    task: str
    places: tuple[Place, ...]
    path: str
    schema: str
    dsn: str = field(repr=False)  # with its password: this is the only way it goes
    logs: int | None = None  # the level from which on log records are sent back, if any are

    def to_line(self) -> bytes:
        return line_of({each.name: getattr(self, each.name) for each in dataclasses.fields(self)})

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Standing:
        return cls(**message | {"places": tuple(Place(*place) for place in message["places"])})


class Errand(NamedTuple):
    """One job, as a child has it."""

    job: ClaimedJob
    standing: Standing
    trace: str | None  # of the attempt, where someone traces

    @classmethod
    def from_message(cls, message: list[Any], standing: dict[int, Standing]) -> Errand:
        trace = message.pop()
        its = standing[message[_TASK]]
        message[_TASK] = its.task
        if message[_SLOT_AT] is not None:
            message[_SLOT_AT] = datetime.fromisoformat(message[_SLOT_AT])
        return cls(ClaimedJob._make(message), its, trace)


def written_errand(job: ClaimedJob, number: int, trace: str | None) -> bytes:
    """The errand of a job, whose task was told under this number."""
    values: list[Any] = [*job, trace]
    values[_TASK] = number
    if job.slot_at is not None:
        values[_SLOT_AT] = job.slot_at.isoformat()
    return line_of(values)


def line_of(message: dict[str, Any] | list[Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


_OUTCOMES: dict[str, Any] = {
    kind.__name__: kind for kind in (AlreadySettled, Retried, Buried, Snoozed, Cancelled, HandedBack)
}


def written(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a message: all of it but the job, which the worker has."""
    fields = (
        outcome._asdict()
        if isinstance(outcome, tuple)
        else {each.name: getattr(outcome, each.name) for each in dataclasses.fields(outcome)}
    )
    del fields["job"]
    if "failure" in fields:
        fields["failure"] = written_failure(fields["failure"])
    return {"outcome": type(outcome).__name__, **fields}


def outcome_from(message: dict[str, Any] | list[Any], job: ClaimedJob) -> Outcome:
    if isinstance(message, list):
        return Succeeded(job, *message)
    fields = dict(message)
    kind = _OUTCOMES[fields.pop("outcome")]
    if "failure" in fields:
        fields["failure"] = failure_from(fields["failure"])
    outcome: Outcome = kind(job=job, **fields)
    return outcome


def written_failure(failure: Failure) -> dict[str, str]:
    return {"type": failure.type, "message": failure.message, "trace": failure.trace}


def failure_from(message: dict[str, str]) -> Failure:
    return Failure(**message, error=StandIn.of(**message))
