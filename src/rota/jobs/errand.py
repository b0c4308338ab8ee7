"""What a worker sends a child on: one job, where its task is found, and where the database is. And what comes back.

Messages are JSON, one to a line, on a socket that nobody but the two holds; nothing is ever unpickled. To the child go

    {"path": [...], "argv": [...]}        first: how this process finds modules
    {"task": "name", "places": [...], …}  a task to load ahead; answered by {"ready": true}, found or not
    {"job": {...}, "places": [...], …}    an errand; the next one comes when this one is answered
    {"stopping": true}                    the worker drains
    {"end": true}                         end now: the body is interrupted

and from it come, for each errand, `{"begun": true}` when the body is about to be called, and one answer: an outcome, or
`{"missing": "why", "trace": "..."}` when the task cannot be found, or `{"unopened": "why"}` when a resource that the task wants
cannot be opened. Between them come `{"lines": [...], "token": …}`, what the body has logged.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

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
    "LINE_LIMIT",
    "Errand",
    "Sought",
    "failure_from",
    "line",
    "outcome_from",
    "written",
    "written_failure",
]

# Payloads are bounded where they are made; this only has to lie beyond them.
LINE_LIMIT = 2**28


@dataclass(frozen=True, slots=True)
class Sought:
    """A task to be found: what stands at `path`, or is registered under its name, in the first place that has it."""

    task: str
    places: tuple[Place, ...]
    path: str

    def to_message(self) -> dict[str, Any]:
        return {"task": self.task, "places": self.places, "path": self.path}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Sought:
        places = tuple(Place(*place) for place in message["places"])
        return cls(message["task"], places, message["path"])


@dataclass(frozen=True, slots=True)
class Errand:
    """One job of a task."""

    job: ClaimedJob
    sought: Sought
    schema: str
    dsn: str = field(repr=False)  # with its password: this is the only way it goes
    trace: str | None = None  # of the attempt, where someone traces
    logs: int | None = None  # the level from which on log records are sent back, if any are

    def to_message(self) -> dict[str, Any]:
        slot_at = self.job.slot_at and self.job.slot_at.isoformat()
        # the line it is in is nothing to the body
        job = self.job._asdict() | {"slot_at": slot_at, "line": None}
        errand = {"job": job, "schema": self.schema, "dsn": self.dsn, "trace": self.trace, "logs": self.logs}
        return errand | self.sought.to_message()

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Errand:
        claim = message["job"]
        slot_at = claim["slot_at"] and datetime.fromisoformat(claim["slot_at"])
        job = ClaimedJob(**claim | {"slot_at": slot_at})
        told = {name: message[name] for name in ("schema", "dsn", "trace", "logs")}
        return cls(job, Sought.from_message(message), **told)


def line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


_OUTCOMES: dict[str, Any] = {
    kind.__name__: kind for kind in (Succeeded, AlreadySettled, Retried, Buried, Snoozed, Cancelled, HandedBack)
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


def outcome_from(message: dict[str, Any], job: ClaimedJob) -> Outcome:
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
