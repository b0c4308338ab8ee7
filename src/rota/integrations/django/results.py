"""A job as a result of Django's tasks framework."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.conf import settings
from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
from django.utils.timezone import make_aware, make_naive

import rota.errors
from rota.jobs.job import AttemptError, Job

__all__ = ["aware", "result_of", "told"]

_STATUS = {
    "queued": TaskResultStatus.READY,
    "blocked": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}


def result_of(job: Job[Any], task: Task, backend: str) -> TaskResult:
    """The job as Django sees it. An attempt that failed and is tried again is among its errors; the job is ready then."""
    payload = job.args or {}
    begun = [each for each in (*(error.started_at for error in job.errors), job.started_at) if each is not None]
    result = TaskResult(
        task=task,
        id=str(job.id),
        status=_STATUS[job.state],
        enqueued_at=told(job.created_at),
        started_at=told(begun[0]) if begun else None,
        finished_at=told(job.finished_at),
        last_attempted_at=told(begun[-1]) if begun else None,
        args=payload.get("args", []),
        kwargs=payload.get("kwargs", {}),
        backend=backend,
        errors=[*_errors(job)],
        worker_ids=_workers(job),
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def _workers(job: Job[Any]) -> list[str]:
    """One for each attempt: Django counts attempts by them."""
    known = {error.attempt: error.member for error in job.errors}
    if job.state in ("running", "succeeded", "cancelled"):
        known.setdefault(job.attempt, job.member)
    return [str(known.get(attempt) or "unknown") for attempt in range(1, job.attempt + 1)]


def _errors(job: Job[Any]) -> Iterator[TaskError]:
    for error in job.errors:
        yield TaskError(exception_class_path=_class_path(error), traceback=error.trace or error.message or error.kind)
    if job.state == "cancelled":
        yield TaskError(exception_class_path="rota.errors.JobCancelled", traceback=job.reason or "cancelled")


def _class_path(error: AttemptError) -> str:
    if error.type is None:
        return "rota.errors.ClaimLost"  # the process went, and raised nothing
    if "." in error.type:
        return error.type
    return f"{'rota.errors' if hasattr(rota.errors, error.type) else 'builtins'}.{error.type}"


def told(moment: datetime | None) -> datetime | None:
    """A moment as this project has them: aware, or by USE_TZ = False in its local time."""
    return moment if moment is None or settings.USE_TZ else make_naive(moment)


def aware(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo is not None else make_aware(moment)
