"""Rota: any number of Python processes share work safely, with nothing but PostgreSQL between them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rota.release import RELEASE as __version__  # noqa: N811

if TYPE_CHECKING:
    from rota.app import Rota
    from rota.errors import (
        AppNotFound,
        ClaimLost,
        ConfigurationError,
        DatabaseUnavailable,
        EmbeddedError,
        ForeignDatabase,
        ForkedProcess,
        InvalidArguments,
        InvalidDsn,
        JobCancelled,
        JobFailed,
        JobNotFound,
        PayloadTooLarge,
        RotaError,
        SchemaMismatch,
        UnknownTask,
    )
    from rota.jobs.definition import Package, Task
    from rota.jobs.job import AttemptError, Job, NewJob, RunningJob, current_job
    from rota.jobs.retry import Retry

__all__ = [
    "Rota",
    "Package",
    "Task",
    "Retry",
    "Job",
    "NewJob",
    "RunningJob",
    "AttemptError",
    "current_job",
    "RotaError",
    "AppNotFound",
    "ClaimLost",
    "ConfigurationError",
    "DatabaseUnavailable",
    "EmbeddedError",
    "ForeignDatabase",
    "ForkedProcess",
    "InvalidArguments",
    "InvalidDsn",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "PayloadTooLarge",
    "SchemaMismatch",
    "UnknownTask",
    "__version__",
]

# Loaded when first used: a program that only looks up the version, or the pytest plugin, pays for nothing else.
_ROOMS = {
    "rota.app": ("Rota",),
    "rota.jobs.definition": ("Package", "Task"),
    "rota.jobs.job": ("AttemptError", "Job", "NewJob", "RunningJob", "current_job"),
    "rota.jobs.retry": ("Retry",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rota' has no attribute {name!r}")
    room = next((room for room, names in _ROOMS.items() if name in names), "rota.errors")
    value = globals()[name] = getattr(import_module(room), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
