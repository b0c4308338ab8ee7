"""An attempt at a task of Django's: what the body gets, what it may return, and the signals around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

from django.tasks.base import Task, TaskContext, TaskError, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils.json import normalize_json

from rota.integrations.django.results import result_of, told
from rota.jobs.job import Job
from rota.jobs.outcome import Discard, Snooze
from rota.jobs.queue import Jobs
from rota.jobs.running import current_job
from rota.retry import Retry

__all__ = ["body_of"]


def body_of(task: Task, jobs: Callable[[], Jobs], retry: Retry) -> Callable[..., Any]:
    """A task of Django's as the body of one of ours. Arguments and result are plain JSON, as Django has it."""
    if inspect.iscoroutinefunction(task.func):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            attempt = _Attempt(task, await jobs().get(current_job().id), retry)
            await task_started.asend_robust(**attempt.signal)
            try:
                value = attempt.succeed(await task.func(*attempt.context, *args, **kwargs))
            except Exception as error:
                if attempt.fails_for_good(error):
                    await task_finished.asend_robust(**attempt.signal)
                raise
            await task_finished.asend_robust(**attempt.signal)
            return value

        return _named(coroutine, task)

    def body(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(task, jobs().get_sync(current_job().id), retry)
        task_started.send_robust(**attempt.signal)
        try:
            value = attempt.succeed(task.func(*attempt.context, *args, **kwargs))
        except Exception as error:
            if attempt.fails_for_good(error):
                task_finished.send_robust(**attempt.signal)
            raise
        # a receiver that raises must not have the body run once more
        task_finished.send_robust(**attempt.signal)
        return value

    return _named(body, task)


def _named(body: Callable[..., Any], task: Task) -> Callable[..., Any]:
    # not functools.wraps: the function's own annotations would be read from it, and arguments converted
    body.__module__, body.__name__, body.__qualname__ = task.func.__module__, task.name, task.func.__qualname__
    body.__doc__ = task.func.__doc__
    return body


class _Attempt:
    def __init__(self, task: Task, job: Job[Any], retry: Retry) -> None:
        self._job = job
        self._retry = retry
        self._task = task.using(queue_name=job.queue, priority=job.priority)
        self.result = result_of(replace(job, state="running"), self._task, task.backend)

    @property
    def context(self) -> tuple[TaskContext, ...]:
        """What the function gets before its arguments."""
        return (TaskContext(task_result=self.result),) if self._task.takes_context else ()

    @property
    def signal(self) -> dict[str, Any]:
        return {"sender": type(self._task.get_backend()), "task_result": self.result}

    def succeed(self, value: Any) -> Any:
        """The value as JSON. Raises TypeError or ValueError for one that is none."""
        stored = normalize_json(value)
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", stored)
        return stored

    def fails_for_good(self, error: Exception) -> bool:
        """Whether nothing comes after this attempt; then the result says so."""
        if isinstance(error, Snooze):
            return False
        failures = self._job.attempt - self._job.losses
        if not isinstance(error, Discard) and self._retry.pause(failures, error) is not None:
            return False
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        self.result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
        self._end(TaskResultStatus.FAILED)
        return True

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", told(datetime.now(UTC)))
