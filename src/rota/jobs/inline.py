"""Running a job at once, where it was enqueued, with no database at all: for tests of code that enqueues."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rota.conversion.plain import dumps
from rota.errors import NotPossible
from rota.jobs.chains import Plan
from rota.jobs.claim import ClaimedJob
from rota.jobs.definition import Task
from rota.jobs.job import Job, JobId, NewJob
from rota.jobs.middleware import Middleware
from rota.jobs.package import Package
from rota.jobs.redact import masked
from rota.jobs.running import Held, RunningJob, running
from rota.service.filling import Opened, fill
from rota.service.loop import off_the_loop

__all__ = ["run_inline", "run_inline_sync", "run_plan_inline", "run_plan_inline_sync"]

_ids = itertools.count(1)


async def run_inline(new: NewJob, tasks: Package, middleware: Middleware) -> Job[Any]:
    """Run the body now, with arguments that went through JSON as they would. What it raises is raised here."""
    task, args, kwargs, job = _prepare(new, tasks)
    token = running.set(job._held)
    try:
        value = await _call(task, args, kwargs, tasks, middleware)
    finally:
        running.reset(token)
    return _done(new, task, job, value)


def run_inline_sync(new: NewJob, tasks: Package, middleware: Middleware) -> Job[Any]:
    task, args, kwargs, job = _prepare(new, tasks)

    def call() -> Any:
        running.set(job._held)
        if task.is_async or task.wants or middleware.around_run:
            return asyncio.run(_call(task, args, kwargs, tasks, middleware))
        return task.function(*args, **kwargs)

    # in a thread of its own: the caller may be inside a running event loop, and the context stays clean
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(_caught(call)), name="rota-inline")
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    return _done(new, task, job, value)


async def _call(
    task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tasks: Package, middleware: Middleware
) -> Any:
    """Call the body with all around it, and with the resources that it wants opened for it, and closed after it."""

    async def call() -> Any:
        async with AsyncExitStack() as stack:
            values = await fill(tasks.resources, task.wants, stack)
            if task.is_async:
                return await task.function(*args, **kwargs, **values)
            with off_the_loop():
                return task.function(*args, **kwargs, **values)

    async with AsyncExitStack() as stack:
        opened = Opened(tasks.resources)
        wants = [*task.wants.values(), *middleware.wants()]
        await opened.open(wants, lambda _, life: stack.enter_async_context(life))
        with opened.standing():
            return await middleware.run(running.get().job, call)


async def run_plan_inline(plan: Plan, tasks: Package, middleware: Middleware) -> list[Job[Any]]:
    """Run the jobs of a chain or a group, each with what those before it returned. What one raises is raised here."""
    done: list[Job[Any]] = []
    for place in range(len(plan.jobs)):
        done.append(await run_inline(_given(plan, place, done), tasks, middleware))
    return done


def run_plan_inline_sync(plan: Plan, tasks: Package, middleware: Middleware) -> list[Job[Any]]:
    done: list[Job[Any]] = []
    for place in range(len(plan.jobs)):
        done.append(run_inline_sync(_given(plan, place, done), tasks, middleware))
    return done


def _given(plan: Plan, place: int, done: Sequence[Job[Any]]) -> NewJob:
    """A job with what came of those it waits for, which are planned before it."""
    new, after = plan.jobs[place], plan.after[place]
    if after is None or new.takes is None:
        return new
    wait = plan.waits[after]
    results = [done[member].result for member in wait.members]
    return replace(
        new, args=dumps(json.loads(new.args) | {new.takes: results if wait.gives == "results" else results[0]})
    )


def _caught(call: Any) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


def _prepare(new: NewJob, tasks: Package) -> tuple[Task[..., Any], tuple[Any, ...], dict[str, Any], RunningJob]:
    task = tasks.find(new.task)
    args, kwargs = task.signature.decode(json.loads(new.args))
    claimed = ClaimedJob(
        next(_ids),
        new.queue,
        new.task,
        new.priority,
        1,
        0,
        datetime.now(UTC).timestamp(),
        new.args,
        token=0,
        version=new.version,
    )
    job = Held(claimed, task.signature, desk=None).job
    return task, args, kwargs, job


def _done(new: NewJob, task: Task[..., Any], job: RunningJob, value: Any) -> Job[Any]:
    stored = task.signature.encode_result(value)
    now = datetime.now(UTC)
    return Job(
        id=job.id,
        task=new.task,
        queue=new.queue,
        state="succeeded",
        priority=new.priority,
        attempt=1,
        created_at=now,
        due_at=now,
        args=masked(json.loads(new.args), new.redact),
        result=None if stored is None else json.loads(stored),
        started_at=now,
        finished_at=now,
        tags=new.tags,
        version=new.version,
        key=new.key,
        retention=new.retention,
        _app=_Settled(task),
    )


class _Settled:
    """An inline job is done when it is returned: there is nothing to wait for."""

    codec = None

    def __init__(self, task: Task[..., Any]) -> None:
        self._task = task

    def redacted(self, task: str) -> tuple[str, ...]:
        return self._task.options.redact

    async def wait(self, job: Job[Any], timeout: object) -> Any:
        return self._task.signature.decode_result(job.result)

    def wait_sync(self, job: Job[Any], timeout: object) -> Any:
        return self._task.signature.decode_result(job.result)

    async def refresh(self, job: Job[Any]) -> Job[Any]:
        return job

    def refresh_sync(self, job: Job[Any]) -> Job[Any]:
        return job

    async def cancel(self, id: JobId, reason: str = "") -> Job[Any]:
        return self.cancel_sync(id, reason)

    def cancel_sync(self, id: JobId, reason: str = "") -> Job[Any]:
        raise NotPossible(f"Job {id} ran inline and is done: there is nothing to cancel.")

    async def retry(self, id: JobId) -> Job[Any]:
        return self.retry_sync(id)

    def retry_sync(self, id: JobId) -> Job[Any]:
        raise NotPossible(f"Job {id} ran inline and is done: enqueue it again.")
