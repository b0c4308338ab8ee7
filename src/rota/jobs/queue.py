"""`app.jobs`: jobs in hand, in both colours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Page
from typing import Any

from rota.clock import Duration, seconds
from rota.errors import JobCancelled, JobFailed, JobNotFound
from rota.jobs.definition import Task
from rota.jobs.inspect import get_job, list_jobs
from rota.jobs.job import Job, JobId
from rota.postgres.pool import Database

__all__ = ["Jobs"]

_SETTLED = ("succeeded", "dead", "cancelled")


class Jobs:
    """Find jobs and wait for them."""

    def __init__(self, database: Database, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._database = database
        self._tasks = tasks

    async def get(self, id: JobId) -> Job[Any]:
        """The job as it is now, with its errors. Raises JobNotFound."""
        return self._found(id, await self._database.run(get_job(id, self)))

    def get_sync(self, id: JobId) -> Job[Any]:
        return self._found(id, self._database.run_sync(get_job(id, self)))

    async def list(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: JobId | None = None,
    ) -> Page[Job[Any]]:
        """Jobs that fit all filters, the newest first; `after` is the last id of the page before."""
        return await self._database.run(
            list_jobs(self, state=state, queue=queue, task=task, tag=tag, limit=limit, after=after)
        )

    def list_sync(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: JobId | None = None,
    ) -> Page[Job[Any]]:
        return self._database.run_sync(
            list_jobs(self, state=state, queue=queue, task=task, tag=tag, limit=limit, after=after)
        )

    async def wait(self, job: Job[Any], timeout: Duration | None = None) -> Any:
        """Wait until the job is settled and return its result; raises JobFailed, JobCancelled or TimeoutError."""
        for pause in _pauses(job, timeout):
            job = await self.get(job.id)
            if job.state in _SETTLED:
                return self._result(job)
            await asyncio.sleep(pause)
        raise _not_in_time(job, timeout)

    def wait_sync(self, job: Job[Any], timeout: Duration | None = None) -> Any:
        for pause in _pauses(job, timeout):
            job = self.get_sync(job.id)
            if job.state in _SETTLED:
                return self._result(job)
            time.sleep(pause)
        raise _not_in_time(job, timeout)

    async def refresh(self, job: Job[Any]) -> Job[Any]:
        return await self.get(job.id)

    def refresh_sync(self, job: Job[Any]) -> Job[Any]:
        return self.get_sync(job.id)

    def _found(self, id: JobId, job: Job[Any] | None) -> Job[Any]:
        if job is None:
            raise JobNotFound(
                f"There is no job {id}: it was never enqueued here, or the transaction that did was rolled back."
            )
        return job

    def _result(self, job: Job[Any]) -> Any:
        if job.state == "cancelled":
            raise JobCancelled(f"Job {job.id} ({job.task}) was cancelled.")
        if job.state == "dead":
            last = job.errors[-1] if job.errors else None
            why = f"{last.type or last.kind}: {last.message}" if last else "no attempt is on record"
            raise JobFailed(f"Job {job.id} ({job.task}) is dead after {job.attempt} attempt(s): {why}")
        task = self._tasks.get(job.task)
        return task.signature.decode_result(job.result) if task is not None else job.result


def _pauses(job: Job[Any], timeout: Duration | None) -> Iterator[float]:
    """How long to rest between looks: short at first, as most jobs are; ends when the time is up."""
    until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
    pause = 0.01
    while until is None or time.monotonic() < until:
        yield pause if until is None else max(0.0, min(pause, until - time.monotonic()))
        pause = min(pause * 1.5, 0.5)


def _not_in_time(job: Job[Any], timeout: Duration | None) -> TimeoutError:
    return TimeoutError(
        f"Job {job.id} ({job.task}) is still {job.state} after {seconds(timeout or 0):g} s of waiting; it goes on."
    )
