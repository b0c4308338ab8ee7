"""Rota: any number of Python processes share work safely, with nothing but PostgreSQL between them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rota.release import RELEASE as __version__  # noqa: N811

if TYPE_CHECKING:
    from rota.app import Rota
    from rota.errors import (
        AppNotFound,
        BatchNotFound,
        BulkNotFound,
        ClaimLost,
        ConfigurationError,
        DatabaseUnavailable,
        EmbeddedError,
        ForeignDatabase,
        ForkedProcess,
        InvalidArguments,
        InvalidDsn,
        JobCancelled,
        JobExists,
        JobFailed,
        JobNotFound,
        LeadershipHeld,
        LeadershipLost,
        LockHeld,
        NotPossible,
        PayloadTooLarge,
        ResourceUnavailable,
        ResultsMissing,
        RotaError,
        ScheduleNotFound,
        SchemaMismatch,
        UndecodableEvent,
        UnknownTask,
        WaitTimedOut,
        WrongVersion,
    )
    from rota.events.append import Appended, NewEvent
    from rota.events.event import Event
    from rota.events.log import EventLog
    from rota.events.table import EventTable
    from rota.integrations.asgi.drain import DrainMiddleware, draining
    from rota.jobs.batches import Batch, Progress
    from rota.jobs.bulk.start import BulkPreview
    from rota.jobs.bulk.view import Bulk
    from rota.jobs.chains import Chain, Group, group
    from rota.jobs.codec import Codec
    from rota.jobs.definition import Task
    from rota.jobs.erase import Erased
    from rota.jobs.explain import Explanation
    from rota.jobs.flow import Flow
    from rota.jobs.job import AttemptError, Job, NewJob
    from rota.jobs.letters import Letter
    from rota.jobs.limit import Limit
    from rota.jobs.logs.read import LogLine
    from rota.jobs.outcome import Discard, Snooze
    from rota.jobs.package import Package
    from rota.jobs.retention import Retention
    from rota.jobs.running import RunningJob, Transaction, current_job
    from rota.jobs.unique import Debounce, Throttle, Unique
    from rota.leases.term import Term
    from rota.pollers.adaptive import Adaptive, Changed
    from rota.pollers.inspect import DueRow, ParkedRow, PollerView
    from rota.pollers.poller import Poller, PollStats
    from rota.pollers.running import PollTransaction, RunningPoll, current_poll
    from rota.projections.inspect import ProjectionStatus, ProjectionView
    from rota.projections.parked import ParkedEvent
    from rota.projections.projection import Projection
    from rota.projections.trouble import Park, Stop
    from rota.retry import Retry
    from rota.schedules.definition import ScheduleDefinition
    from rota.schedules.exclude import Exclude
    from rota.schedules.history import ScheduleRun
    from rota.schedules.put import SchedulesPut
    from rota.schedules.view import Schedule
    from rota.service.inject import inject

__all__ = [
    "Rota",
    "Package",
    "Task",
    "Retry",
    "Unique",
    "Debounce",
    "Throttle",
    "Limit",
    "LogLine",
    "Snooze",
    "Discard",
    "Retention",
    "Codec",
    "Job",
    "NewJob",
    "group",
    "Chain",
    "Group",
    "Flow",
    "Batch",
    "Bulk",
    "BulkPreview",
    "Progress",
    "RunningJob",
    "Transaction",
    "AttemptError",
    "Explanation",
    "Letter",
    "Erased",
    "Schedule",
    "ScheduleDefinition",
    "ScheduleRun",
    "SchedulesPut",
    "Exclude",
    "Term",
    "Adaptive",
    "Changed",
    "DueRow",
    "ParkedRow",
    "PollStats",
    "PollTransaction",
    "Poller",
    "PollerView",
    "RunningPoll",
    "EventLog",
    "EventTable",
    "Event",
    "NewEvent",
    "Appended",
    "Projection",
    "ProjectionStatus",
    "ProjectionView",
    "ParkedEvent",
    "Stop",
    "Park",
    "current_job",
    "current_poll",
    "inject",
    "DrainMiddleware",
    "draining",
    "RotaError",
    "AppNotFound",
    "BatchNotFound",
    "BulkNotFound",
    "ClaimLost",
    "ConfigurationError",
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
    "NotPossible",
    "PayloadTooLarge",
    "ResourceUnavailable",
    "ResultsMissing",
    "ScheduleNotFound",
    "SchemaMismatch",
    "UndecodableEvent",
    "UnknownTask",
    "WaitTimedOut",
    "WrongVersion",
    "__version__",
]

# Loaded when first used: a program that only looks up the version, or the pytest plugin, pays for nothing else.
_ROOMS = {
    "rota.app": ("Rota",),
    "rota.events.append": ("Appended", "NewEvent"),
    "rota.events.event": ("Event",),
    "rota.events.log": ("EventLog",),
    "rota.events.table": ("EventTable",),
    "rota.jobs.definition": ("Task",),
    "rota.jobs.batches": ("Batch", "Progress"),
    "rota.jobs.bulk.start": ("BulkPreview",),
    "rota.jobs.bulk.view": ("Bulk",),
    "rota.jobs.chains": ("Chain", "Group", "group"),
    "rota.jobs.flow": ("Flow",),
    "rota.jobs.codec": ("Codec",),
    "rota.jobs.erase": ("Erased",),
    "rota.jobs.explain": ("Explanation",),
    "rota.jobs.letters": ("Letter",),
    "rota.jobs.job": ("AttemptError", "Job", "NewJob"),
    "rota.jobs.outcome": ("Discard", "Snooze"),
    "rota.jobs.package": ("Package",),
    "rota.jobs.retention": ("Retention",),
    "rota.integrations.asgi.drain": ("DrainMiddleware", "draining"),
    "rota.retry": ("Retry",),
    "rota.jobs.running": ("RunningJob", "Transaction", "current_job"),
    "rota.jobs.limit": ("Limit",),
    "rota.jobs.logs.read": ("LogLine",),
    "rota.jobs.unique": ("Debounce", "Throttle", "Unique"),
    "rota.leases.term": ("Term",),
    "rota.pollers.adaptive": ("Adaptive", "Changed"),
    "rota.pollers.inspect": ("DueRow", "ParkedRow", "PollerView"),
    "rota.pollers.poller": ("PollStats", "Poller"),
    "rota.pollers.running": ("PollTransaction", "RunningPoll", "current_poll"),
    "rota.projections.inspect": ("ProjectionStatus", "ProjectionView"),
    "rota.projections.parked": ("ParkedEvent",),
    "rota.projections.projection": ("Projection",),
    "rota.projections.trouble": ("Park", "Stop"),
    "rota.schedules.definition": ("ScheduleDefinition",),
    "rota.schedules.exclude": ("Exclude",),
    "rota.schedules.history": ("ScheduleRun",),
    "rota.schedules.put": ("SchedulesPut",),
    "rota.schedules.view": ("Schedule",),
    "rota.service.inject": ("inject",),
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'rota' has no attribute {name!r}")
        room = next((room for room, names in _ROOMS.items() if name in names), "rota.errors")
        value = globals()[name] = getattr(import_module(room), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
