"""What a log record tells beside its sentence: which job, row, term and process it belongs to, and all of it as JSON.

    handler.addFilter(Context())                # each record knows its job: "%(job)s %(task)s %(message)s"
    handler.setFormatter(JsonFormatter())       # one JSON object per line, ids included
    structlog.configure(processors=[structlog_context, ...])

The ids are those of the code that logs. A filter on a handler that runs elsewhere, behind a queue, finds none: put it on the
handler that takes the record.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from rota.facts import Fact, Facts, MemberIdentityLost, MemberJoined, MemberLeft
from rota.jobs.running import running as running_job
from rota.leases.term import leading
from rota.pollers.running import running as running_poll

__all__ = ["FIELDS", "Context", "JsonFormatter", "TextFormatter", "current_context", "know_member", "structlog_context"]

#: what a record may know of where it comes from
FIELDS = (
    *("job", "task", "queue", "attempt", "schedule"),
    *("poller", "row"),
    *("leader", "epoch"),
    *("member", "trace_id", "span_id"),
)

# What every record has anyway; the rest is what its author gave it.
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_member: UUID | None = None


def know_member(source: Facts) -> Callable[[], None]:
    """Have records name the lease under which this process works; returns how to stop."""

    def note(fact: MemberJoined | MemberLeft | MemberIdentityLost) -> None:
        global _member  # noqa: PLW0603 - of the process, as its lease is
        _member = fact.member if isinstance(fact, MemberJoined) else None

    return source.subscribe(note, MemberJoined, MemberLeft, MemberIdentityLost)


def current_context() -> dict[str, Any]:
    """The ids of the code that asks: only those there are."""
    told: dict[str, Any] = {}
    attempt = running_job.get(None)
    if attempt is not None:
        job = attempt.claim
        told |= {"job": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}
        if job.schedule is not None:
            told["schedule"] = job.schedule
    poll = running_poll.get(None)
    if poll is not None:
        told |= {"poller": poll.poller, "row": poll.key, "attempt": poll.attempt}
    term = leading.get()
    if term is not None:
        told |= {"leader": term.name, "epoch": term.epoch}
    if _member is not None:
        told["member"] = str(_member)
    return told | _trace()


def _trace() -> dict[str, str]:
    # asked only where someone else has imported it: without a tracer there is no trace
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return {}
    span = tracing.get_current_span().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"} if span.is_valid else {}


class Context(logging.Filter):
    """Gives each record the ids of the code that logged it, None for those there are not; what a record has already, it keeps."""

    def filter(self, record: logging.LogRecord) -> bool:
        told = current_context()
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, told.get(name))
        return True


def structlog_context(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog: adds the ids of the code that logs, where the event has none of that name."""
    for name, value in current_context().items():
        event.setdefault(name, value)
    return event


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, message, ids, what its author gave in `extra`, and the trace.

    A fact's record has the fields of the fact. It needs no Context beside it.
    """

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        fact = given.pop("fact", None)
        told |= _fields(fact) if isinstance(fact, Fact) else {}
        # the fact is about its own job, whoever emits it
        for each in (given, current_context()):
            told |= {name: value for name, value in each.items() if value is not None and name not in told}
        if record.exc_info and record.exc_info[1] is not None:
            told["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            told["exception"] = record.exc_text
        if record.stack_info:
            told["stack"] = self.formatStack(record.stack_info)
        try:
            line = _json(told)
        except Exception:  # whatever an object of the user's raises: what can be told is, the rest as Python shows it
            line = _json({name: _shown(value) for name, value in told.items()})
        # half a character, as in the name of a file, has an escape in JSON and no bytes in UTF-8
        return line.encode(errors="backslashreplace").decode()


class TextFormatter(logging.Formatter):
    """A line for people. What was logged in a body ends with what body that was."""

    def __init__(self, label: str = "") -> None:
        super().__init__(f"%(asctime)s {label.replace('%', '%%')}%(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        line = super().formatMessage(record)
        if isinstance(getattr(record, "fact", None), Fact):
            return line
        shown = ("job", "task", "attempt", "poller", "row")
        ids = " ".join(f"{name}={value}" for name in shown if (value := getattr(record, name, None)) is not None)
        return f"{line} [{ids}]" if ids else line


def _fields(fact: Fact) -> dict[str, Any]:
    """A fact as JSON has it. Errors are what was told of them: where a task redacts, secrets are blotted out in that."""
    told: dict[str, Any] = {"fact": type(fact).__name__}
    for name, value in fact.fields().items():
        if isinstance(value, BaseException):
            told["error_type"] = type(value).__name__
            told[name] = str(value)
        elif value is not None:
            told[name] = value
    return told


def _plain(value: Any) -> Any:
    """What stands for a value that JSON has no word for."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)


def _shown(value: Any) -> Any:
    """The value, if JSON has words for it; else as Python shows it: keys that are no text, a circle, what is no number."""
    try:
        _json(value)
    except Exception:
        try:
            return repr(value)
        except Exception as error:
            return f"<{type(value).__name__}: {type(error).__name__} when it is shown>"
    return value
