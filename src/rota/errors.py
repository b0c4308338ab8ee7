"""Every error Rota raises, in one tree.

    RotaError
    ├── ConfigurationError          something the author or operator wrote cannot work
    │   ├── InvalidDsn              the database address cannot be read
    │   └── AppNotFound             an APP path names no Rota, or more than one
    ├── InvalidArguments            a call does not fit the task's signature, or cannot be stored as JSON; nor can an event
    │   ├── PayloadTooLarge         it fits, and is larger than a row should carry
    │   └── ResultsMissing          what a job was to be given by others is gone, or too large
    ├── UnknownTask                 a task name this process has not registered
    ├── DatabaseUnavailable         PostgreSQL did not answer; the same call may succeed later
    ├── ResourceUnavailable         an @app.resource could not be opened; what it raised is the cause
    ├── SchemaMismatch              the database's tables are not those this version of Rota works with
    │   ├── SchemaMissing           there are none, or they are too old: `rota migrate`
    │   ├── SchemaTooNew            a newer Rota changed them in a way this one cannot work with
    │   └── MigrationChanged        an applied migration differs from the one in this package
    ├── ForeignDatabase             a copied or restored database nobody has adopted: `rota adopt`
    ├── ForkedProcess               an app that was started before a fork is used in the child
    ├── LeadershipHeld              someone else leads; normal, and no fault of anything
    ├── LeadershipLost              the term is over; what it still does must not count
    ├── LockHeld                    someone else is in the section, and it was not waited for
    ├── ClaimLost                   the attempt's claim has ended; someone else has the job now
    ├── JobExists                   a job that may exist only once does already
    ├── JobNotFound                 no job has this id
    ├── BatchNotFound               no batch has this id
    ├── BulkNotFound                no bulk has this id
    ├── ScheduleNotFound            no schedule has this name
    ├── WrongVersion                a stream of events is not at the version that an append expected
    ├── UndecodableEvent            a stored event is not what its type says
    ├── NotPossible                 a job, letter or schedule is not in a state in which this can be done to it
    ├── JobFailed                   a job waited for is dead
    ├── JobCancelled                a job waited for was cancelled
    ├── WaitTimedOut                a job waited for is not settled yet; also a TimeoutError
    └── EmbeddedError               the embedded PostgreSQL cannot be had
        ├── PostgresNotFound        no usable binaries
        ├── DataDirectoryError      the data directory cannot be used as it is
        └── PostgresStartFailed     initdb or the server gave up; the message ends with what it said

A class exists when a caller would catch it apart. Every message says what happened, why, and what to do next.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

__all__ = [
    "AppNotFound",
    "BatchNotFound",
    "BulkNotFound",
    "ClaimLost",
    "ConfigurationError",
    "DataDirectoryError",
    "DatabaseUnavailable",
    "EmbeddedError",
    "ForeignDatabase",
    "ForkedProcess",
    "InvalidArguments",
    "InvalidDsn",
    "JobCancelled",
    "JobExists",
    "JobFailed",
    "JobNotFound",
    "LeadershipHeld",
    "LeadershipLost",
    "LockHeld",
    "MigrationChanged",
    "NotPossible",
    "PayloadTooLarge",
    "PostgresNotFound",
    "PostgresStartFailed",
    "ResourceUnavailable",
    "ResultsMissing",
    "RotaError",
    "ScheduleNotFound",
    "SchemaMismatch",
    "SchemaMissing",
    "SchemaTooNew",
    "UndecodableEvent",
    "UnknownTask",
    "WaitTimedOut",
    "WrongVersion",
]


class RotaError(Exception):
    """The root of all errors raised by Rota. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigurationError(RotaError):
    """Something the author or operator wrote cannot work."""

    exit_code = 2


class InvalidDsn(ConfigurationError):
    """The database address cannot be read."""


class AppNotFound(ConfigurationError):
    """An APP path names no Rota, or more than one."""


class InvalidArguments(RotaError):
    """A call does not fit the task's signature, or cannot be stored as JSON; or an event cannot."""


class PayloadTooLarge(InvalidArguments):
    """The arguments or the result are larger than a row should carry."""


class ResultsMissing(InvalidArguments):
    """What a job was to be given by the jobs it waited for is no longer kept, or too large to be handed on."""


class UnknownTask(RotaError):
    """A task name that this process has not registered."""


class DatabaseUnavailable(RotaError):
    """PostgreSQL did not answer. Nothing is wrong with the call: it may succeed later."""

    exit_code = 4


class ResourceUnavailable(RotaError):
    """What an `@app.resource` provides could not be opened, for the reason that is its cause. It may succeed later."""


class SchemaMismatch(RotaError):
    """The database's tables are not those this version of Rota works with."""

    exit_code = 5


class SchemaMissing(SchemaMismatch):
    """There are no tables, or they are older than this version needs."""


class SchemaTooNew(SchemaMismatch):
    """A newer Rota changed the tables in a way this version cannot work with."""


class MigrationChanged(SchemaMismatch):
    """A migration that was applied differs from the one of that number in this package."""


class ForeignDatabase(RotaError):
    """The database is a copy or a restore that nobody has adopted; working on it might repeat real effects."""


class ForkedProcess(RotaError):
    """An app that was started before a fork is used in the child, whose sockets it would share."""


class LeadershipHeld(RotaError):
    """Someone else leads: `holder` on `host`, since `since`, in the term of this `epoch`. A normal state, not a failure."""

    exit_code = 3

    def __init__(self, name: str, holder: str, host: str, since: datetime, epoch: int) -> None:
        super().__init__(
            f"{name!r} is led by {holder} since {since:%Y-%m-%d %H:%M:%S %Z} (epoch {epoch}). Wait with "
            f".wait(timeout=...), try again with .retry(...), or go on without."
        )
        self.name = name
        self.holder = holder
        self.host = host
        self.since = since
        self.epoch = epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.name,
            self.holder,
            self.host,
            self.since,
            self.epoch,
        )  # it goes from process to process


class LeadershipLost(RotaError):
    """The term is over: someone else may lead by now. Stop; fenced work of this term is refused by the database."""

    exit_code = 3

    def __init__(self, name: str, epoch: int, reason: str) -> None:
        super().__init__(
            f"The term of {name!r} with epoch {epoch} is over: {reason}. Stop what was done in its name; to lead again, "
            "acquire it anew."
        )
        self.name = name
        self.epoch = epoch
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.epoch, self.reason)


class LockHeld(RotaError):
    """Someone else is inside the section, and it was not waited for, or not for that long."""

    exit_code = 3


class ClaimLost(RotaError):
    """The attempt's claim has ended: the job belongs to someone else, and what this attempt did changes nothing."""


class JobExists(RotaError):
    """A job that may exist only once does already: `job` is that one, when it was there before this call."""

    def __init__(self, message: str, job: Any = None) -> None:
        super().__init__(message)
        self.job = job


class NotPossible(RotaError):
    """A job, dead letter or schedule is not in a state in which this can be done to it."""


class WrongVersion(RotaError):
    """A stream is not at the version that an append expected: someone else appended first. Nothing was appended."""

    def __init__(self, log: str, stream: str, expected: int, actual: int) -> None:
        there = f"is at version {actual}" if actual else "does not exist"
        super().__init__(
            f"Nothing was appended to stream {stream!r} of event log {log!r}: it {there}, and expected_version is {expected}. "
            + (
                "Read what was appended since, decide again, and append with the version it is at then."
                if actual
                else "Check its name, or give expected_version=0 to begin it."
            )
        )
        self.log = log
        self.stream = stream
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.log, self.stream, self.expected, self.actual)


class UndecodableEvent(RotaError):
    """A stored event is not what its type says, as this process knows it. `why` says what does not fit."""

    def __init__(self, source: str, order_xid: int, position: int, type: str | None, why: str) -> None:
        named = "" if type is None else f", of type {type!r},"
        super().__init__(
            f"The event at position {position} of {source!r}{named} cannot be decoded: {why}. Register how data of that shape become "
            "those of today with upcast(...), or mend the class; the stored event is as it was."
        )
        self.source = source
        self.order_xid = order_xid
        self.position = position
        self.type = type
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.order_xid, self.position, self.type, self.why)


class ScheduleNotFound(RotaError):
    """No schedule has this name: it was never put, or it was deleted."""


class BulkNotFound(RotaError):
    """No bulk has this id, or none any more."""


class BatchNotFound(RotaError):
    """No batch has this id: it was never started, or it ended so long ago that it is forgotten."""


class JobNotFound(RotaError):
    """No job has this id: it was never enqueued, or its transaction was rolled back."""


class JobFailed(RotaError):
    """A job that was waited for is dead."""


class JobCancelled(RotaError):
    """A job that was waited for was cancelled."""


class WaitTimedOut(RotaError, TimeoutError):
    """A job that was waited for is not settled yet. It goes on."""


class EmbeddedError(RotaError):
    """The embedded PostgreSQL cannot be had."""


class PostgresNotFound(EmbeddedError):
    """No usable PostgreSQL binaries on this machine."""


class DataDirectoryError(EmbeddedError):
    """The data directory cannot be used as it is. Nothing in it was changed."""


class PostgresStartFailed(EmbeddedError):
    """initdb or the server gave up; the message ends with what it said."""
