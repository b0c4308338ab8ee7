"""A backend for Django's tasks framework: `TASKS = {"default": {"BACKEND": "rota.integrations.django.backend.RotaBackend"}}`.

A function with `@task` of `django.tasks` becomes a task of the project's app, under the path of its module and its name, and a
Rota worker runs it. `OPTIONS` are those of `@app.task`: retry, timeout, retention.

Enqueueing is a statement on Django's connection: inside `transaction.atomic()` the job is there when the block commits, and
never if it does not. Results are read there too, so a transaction sees the jobs it has enqueued.
"""

from __future__ import annotations

import inspect
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskResult
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from rota.errors import ConfigurationError, InvalidArguments
from rota.integrations.django.attempt import body_of
from rota.integrations.django.project import project_app
from rota.integrations.django.results import aware, result_of, told
from rota.jobs.definition import Task as RotaTask
from rota.jobs.inspect import get_job
from rota.jobs.job import Job
from rota.postgres.foreign import foreign
from rota.retry import Retry

__all__ = ["RotaBackend"]

_OPTIONS = ("retry", "timeout", "retention")


class RotaBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := self.options.keys() - set(_OPTIONS):
            raise ConfigurationError(
                f"TASKS[{alias!r}]['OPTIONS'] in the Django settings does not know {', '.join(sorted(map(repr, unknown)))}: "
                f"it may hold {', '.join(_OPTIONS)}."
            )

    def validate_task(self, task: Task) -> None:
        """Refuse what Django refuses. Called when a task is declared, which is when it becomes one of the app's."""
        super().validate_task(task)
        self._of_the_app(task)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Add the job on Django's connection, in the transaction that is open there, if one is."""
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        _check_call(task, args, kwargs)
        at = aware(task.run_after)
        bound = self._of_the_app(task).using(queue=task.queue_name, priority=task.priority, at=at)
        job = bound.on(project_app().connection).enqueue_sync(*args, **kwargs)
        result = result_of(job, task, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The job of this id as it is now. Raises TaskResultDoesNotExist, also for one of no task of Django's."""
        app = project_app()
        number = int(result_id) if result_id.isascii() and result_id.isdecimal() else 0
        job = foreign(app.connection).run_sync(get_job(number, app.jobs), app.settings.schema)
        if job is None:
            raise TaskResultDoesNotExist(
                f"There is no job {result_id}: it was never enqueued here, the transaction that did was rolled back, or it settled "
                "so long ago that it was dropped from the history (see ROTA['RETENTION'])."
            )
        return result_of(job, self._task_of(job), self.alias)

    def check(self, **_: Any) -> list[CheckMessage]:
        if apps.is_installed("rota.integrations.django"):
            return []
        return [
            Error(
                f"TASKS[{self.alias!r}] is Rota's, and Rota is not among the INSTALLED_APPS: its tasks would not be found.",
                hint="Add 'rota.integrations.django' to INSTALLED_APPS.",
                id="rota.E006",
            )
        ]

    def _of_the_app(self, task: Task) -> RotaTask[..., Any]:
        app = project_app()
        known = app.tasks.get(task.module_path)
        if known is None:
            options = {"retry": Retry(), **self.options}
            retry = options["retry"]
            attempts = retry if isinstance(retry, Retry) else Retry(attempts=1 if retry is None else retry)
            body = body_of(task, lambda: project_app().jobs, attempts)
            known = app.task(name=task.module_path, queue=task.queue_name, **options)(body)
        return known

    def _task_of(self, job: Job[Any]) -> Task:
        """The task as this job was enqueued. One that this process has not imported yet is."""
        try:
            task = import_string(job.task)
        except ImportError as error:
            raise TaskResultDoesNotExist(
                f"Job {job.id} is of the task {job.task!r}, which cannot be imported: {error}. Was it renamed, or is it of "
                "another project?"
            ) from error
        if not isinstance(task, Task):
            raise TaskResultDoesNotExist(
                f"Job {job.id} is of {job.task!r}, which is no task of Django's. Read it with app.jobs.get_sync({job.id})."
            )
        later = job.due_at if job.attempt == 0 and job.due_at > job.created_at else None
        return task.using(queue_name=job.queue, priority=job.priority, run_after=told(later), backend=self.alias)


def _check_call(task: Task, args: list[Any], kwargs: dict[str, Any]) -> None:
    signature = inspect.signature(task.func)
    try:
        signature.bind(*([None] if task.takes_context else []), *args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(
            f"Task {task.module_path!r} was not enqueued: {error}. The call is {task.name}{signature}."
        ) from None
