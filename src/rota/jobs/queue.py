"""`app.jobs`: jobs in hand, in both colours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from collections.abc import Sequence as Page
from typing import Any, TypeVar, Unpack

from rota.clock import Duration, seconds
from rota.errors import JobCancelled, JobFailed, JobNotFound, WaitTimedOut
from rota.jobs.cancel import cancel_jobs, discard_jobs
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.erase import Erased, Erasing, count_batch, erase_batch
from rota.jobs.explain import Explanation, explain_job
from rota.jobs.facets import Facets, count_jobs
from rota.jobs.inspect import check_id, get_job, list_jobs
from rota.jobs.job import Job, JobId
from rota.jobs.logs.read import Following, LogLine, read_log
from rota.jobs.repeat import retry_job
from rota.jobs.search import REACH, JobsFound, search_jobs
from rota.jobs.wanted import JobFilters, read_wanted
from rota.postgres.audit import actor, record
from rota.postgres.look import look
from rota.postgres.names import check_name
from rota.postgres.notify import cancel_channel, wake_channel
from rota.postgres.pool import Database
from rota.postgres.query import Steps

__all__ = ["Jobs"]

Found = TypeVar("Found")

_SETTLED = ("succeeded", "dead", "cancelled")


class Jobs:
    """Find jobs, wait for them, and change what becomes of them."""

    def __init__(self, database: Database, tasks: Mapping[str, Task[..., Any]], codec: Codec | None = None) -> None:
        self._database = database
        self._tasks = tasks
        self.codec = codec

    def redacted(self, task: str) -> Page[str]:
        known = self._tasks.get(task)
        return () if known is None else known.options.redact

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
        task: Task[..., Any] | str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: JobId | None = None,
    ) -> Page[Job[Any]]:
        """Jobs that fit all filters, the newest first; `after` is the last id of the page before. `task` is one, or its name."""
        return await self._database.run(
            list_jobs(self, state=state, queue=queue, task=task, tag=tag, limit=limit, after=after)
        )

    def list_sync(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        task: Task[..., Any] | str | None = None,
        tag: str | None = None,
        limit: int = 100,
        after: JobId | None = None,
    ) -> Page[Job[Any]]:
        return self._database.run_sync(
            list_jobs(self, state=state, queue=queue, task=task, tag=tag, limit=limit, after=after)
        )

    async def search(
        self,
        *,
        limit: int = 100,
        after: JobId | None = None,
        reach: int = REACH,
        deadline: Duration | None = None,
        **filters: Unpack[JobFilters],
    ) -> JobsFound:
        """Jobs that fit all filters, the newest first: live, settled and dead ones.

        Looks at no more than `reach` jobs of each kind. A page that is not full tells by `searched_to` how far back it looked, and its
        `after` goes on from there; at the end that is None. The filters: `state`, `queue`, `task`, `tag`, `member`; `attempt`, so many
        or more; `args={"user.id": 1}`, values by path; `error`, a text in the type or the message of any failed attempt; `since`
        and `until`, times or how long ago, when a settled job settled and any other was enqueued. A statement that takes longer than
        `deadline` is given up: DatabaseUnavailable.
        """
        return await self._database.run_steps(self._searching(limit, after, reach, deadline, filters))

    def search_sync(
        self,
        *,
        limit: int = 100,
        after: JobId | None = None,
        reach: int = REACH,
        deadline: Duration | None = None,
        **filters: Unpack[JobFilters],
    ) -> JobsFound:
        return self._database.run_steps_sync(self._searching(limit, after, reach, deadline, filters))

    async def count(
        self, *, reach: int = REACH, deadline: Duration | None = None, **filters: Unpack[JobFilters]
    ) -> Facets:
        """How many jobs fit all filters, and how many of them by state, queue, task, tag and member.

        Looks at no more than `reach` jobs of each kind, the newest; `exact` says whether those were all. Otherwise like `search`, but
        nothing is counted by `error`.
        """
        return await self._database.run_steps(self._counting(reach, deadline, filters))

    def count_sync(
        self, *, reach: int = REACH, deadline: Duration | None = None, **filters: Unpack[JobFilters]
    ) -> Facets:
        return self._database.run_steps_sync(self._counting(reach, deadline, filters))

    async def wait(self, job: Job[Any], timeout: Duration | None = None) -> Any:
        """Wait until the job is settled and return its result; raises JobFailed, JobCancelled or WaitTimedOut, a TimeoutError."""
        for pause in _pauses(timeout):
            job = await self.get(job.id)
            if job.state in _SETTLED:
                return self._result(job)
            await asyncio.sleep(pause)
        raise _not_in_time(job, timeout)

    def wait_sync(self, job: Job[Any], timeout: Duration | None = None) -> Any:
        for pause in _pauses(timeout):
            job = self.get_sync(job.id)
            if job.state in _SETTLED:
                return self._result(job)
            time.sleep(pause)
        raise _not_in_time(job, timeout)

    async def refresh(self, job: Job[Any]) -> Job[Any]:
        return await self.get(job.id)

    def refresh_sync(self, job: Job[Any]) -> Job[Any]:
        return self.get_sync(job.id)

    async def cancel(self, id: JobId, reason: str = "", *, by: str | None = None, dry_run: bool = False) -> Job[Any]:
        """Have the job never run, or stop running, and return it as it is then.

        One that waits is cancelled when this returns. One that runs is told: a coroutine is cancelled, a thread sees
        `job.stopping`, a process is terminated; it is cancelled when its body has ended, and never tried again. A settled job
        stays as it is. `by` is who is on record for it; by default this process. With `dry_run` nothing is changed, and what
        is returned or raised is what would be. Raises JobNotFound.
        """
        return await self._database.run_steps(self._cancelling(id, reason, by), dry_run=dry_run)

    def cancel_sync(self, id: JobId, reason: str = "", *, by: str | None = None, dry_run: bool = False) -> Job[Any]:
        return self._database.run_steps_sync(self._cancelling(id, reason, by), dry_run=dry_run)

    async def discard(self, id: JobId, reason: str = "", *, by: str | None = None, dry_run: bool = False) -> Job[Any]:
        """Cancel the job without waiting for its body, which from now on can change nothing; a dead letter too.

        Raises JobNotFound.
        """
        return await self._database.run_steps(self._discarding(id, reason, by), dry_run=dry_run)

    def discard_sync(self, id: JobId, reason: str = "", *, by: str | None = None, dry_run: bool = False) -> Job[Any]:
        return self._database.run_steps_sync(self._discarding(id, reason, by), dry_run=dry_run)

    async def retry(self, id: JobId, *, by: str | None = None, dry_run: bool = False) -> Job[Any]:
        """Have the job tried now, and return the one that will run.

        One that waits for a later time, or its next attempt, becomes due. Of a dead one a new job is made, with all its
        attempts before it, and the letter is resolved; asked again, that same job is returned. Of a settled one a new job is
        made too, or the one that was is returned while it is live. Raises JobNotFound; NotPossible for one that runs or is
        blocked, and when a live job has the unique key of a dead or settled one.
        """
        return await self._database.run_steps(self._retrying(id, by), dry_run=dry_run)

    def retry_sync(self, id: JobId, *, by: str | None = None, dry_run: bool = False) -> Job[Any]:
        return self._database.run_steps_sync(self._retrying(id, by), dry_run=dry_run)

    async def explain(self, id: JobId) -> Explanation:
        """Why the job is not running, or how it is, and what would change that. Raises JobNotFound."""
        return self._found(id, await self._database.run_steps(explain_job(id, self)))

    def explain_sync(self, id: JobId) -> Explanation:
        return self._found(id, self._database.run_steps_sync(explain_job(id, self)))

    async def logs(
        self, id: JobId, *, attempt: int | None = None, after: int | None = None, limit: int = 1000
    ) -> Page[LogLine]:
        """What the job's body logged, in the order in which it was written down: within a second of being logged.

        Of one attempt, or of all. `after` is the id of the last line of the page before. What is kept, and how much of it, is said
        by `Rota(job_logs=...)` and the bounds of a run. Raises JobNotFound.
        """
        return await self._database.run_steps(self._reading(id, attempt, after, limit))

    def logs_sync(
        self, id: JobId, *, attempt: int | None = None, after: int | None = None, limit: int = 1000
    ) -> Page[LogLine]:
        return self._database.run_steps_sync(self._reading(id, attempt, after, limit))

    async def follow_logs(
        self, id: JobId, *, attempt: int | None = None, after: int | None = None
    ) -> AsyncIterator[Page[LogLine]]:
        """The same while it goes on: pages of lines as they come, until the job is settled and its last lines were there.

        It looks twice a second. Raises JobNotFound.
        """
        following = Following()
        while True:
            settled = (await self.get(id)).state in _SETTLED
            if lines := await self.logs(id, attempt=attempt, after=after):
                after = lines[-1].id
                yield lines
            elif (pause := following.pause(time.monotonic(), settled=settled)) is not None:
                await asyncio.sleep(pause)
            else:
                return

    def follow_logs_sync(
        self, id: JobId, *, attempt: int | None = None, after: int | None = None
    ) -> Iterator[Page[LogLine]]:
        following = Following()
        while True:
            settled = self.get_sync(id).state in _SETTLED
            if lines := self.logs_sync(id, attempt=attempt, after=after):
                after = lines[-1].id
                yield lines
            elif (pause := following.pause(time.monotonic(), settled=settled)) is not None:
                time.sleep(pause)
            else:
                return

    async def erase(self, *, tag: str, by: str | None = None, dry_run: bool = False) -> Erased:
        """Delete all jobs with this tag and all that is known of them, and return how much that was.

        Live, running, dead and settled ones; the body of one that runs can change nothing from then on. It takes several
        transactions: what fails midway has erased what came before, and may be repeated. With `dry_run`, nothing is deleted.
        """
        so_far = Erasing()
        while not so_far.finished:
            so_far = await self._database.run_steps(self._erasing(tag, so_far, by, dry_run))
        return so_far.erased

    def erase_sync(self, *, tag: str, by: str | None = None, dry_run: bool = False) -> Erased:
        so_far = Erasing()
        while not so_far.finished:
            so_far = self._database.run_steps_sync(self._erasing(tag, so_far, by, dry_run))
        return so_far.erased

    def _searching(
        self, limit: int, after: JobId | None, reach: int, deadline: Duration | None, filters: JobFilters
    ) -> Steps[JobsFound]:
        wanted = read_wanted(filters, self._tasks, has_codec=self.codec is not None)
        return look(search_jobs(wanted, self, limit=limit, after=after, reach=reach), deadline)

    def _counting(self, reach: int, deadline: Duration | None, filters: JobFilters) -> Steps[Facets]:
        wanted = read_wanted(filters, self._tasks, has_codec=self.codec is not None)
        return look(count_jobs(wanted, reach=reach), deadline)

    def _cancelling(self, id: JobId, reason: str, by: str | None) -> Steps[Job[Any]]:
        if (yield cancel_jobs([check_id(id)], reason or None, cancel_channel(self._database.schema))):
            yield record(actor(by), "cancel", {"job": id})
        return self._found(id, (yield get_job(id, self)))

    def _discarding(self, id: JobId, reason: str, by: str | None) -> Steps[Job[Any]]:
        if (yield discard_jobs([check_id(id)], reason or None, cancel_channel(self._database.schema))):
            yield record(actor(by), "discard", {"job": id})
        return self._found(id, (yield get_job(id, self)))

    def _retrying(self, id: JobId, by: str | None) -> Steps[Job[Any]]:
        return retry_job(id, wake_channel(self._database.schema), actor(by), self)

    def _reading(self, id: JobId, attempt: int | None, after: int | None, limit: int) -> Steps[Page[LogLine]]:
        lines: Page[LogLine] = yield read_log(id, attempt, after, limit)
        if not lines:
            self._found(id, (yield get_job(id, self)))
        return lines

    def _erasing(self, tag: str, so_far: Erasing, by: str | None, dry_run: bool) -> Steps[Erasing]:
        name = check_name("a tag", tag, 200)
        if dry_run:
            return count_batch(name, so_far)
        return erase_batch(name, so_far, cancel_channel(self._database.schema), actor(by))

    def _found(self, id: JobId, found: Found | None) -> Found:
        if found is None:
            raise JobNotFound(
                f"There is no job {id}: it was never enqueued here, the transaction that did was rolled back, or it settled so "
                "long ago that it was dropped from the history (see Rota(retention=...))."
            )
        return found

    def _result(self, job: Job[Any]) -> Any:
        if job.state == "cancelled":
            why = f": {job.reason}" if job.reason else ""
            raise JobCancelled(f"Job {job.id} ({job.task}) was cancelled{why}.")
        if job.state == "dead":
            last = job.errors[-1] if job.errors else None
            why = f"{last.type or last.kind}: {last.message}" if last else "no attempt is on record"
            raise JobFailed(f"Job {job.id} ({job.task}) is dead after {job.attempt} attempt(s): {why}")
        result = job.result
        task = self._tasks.get(job.task)
        return task.signature.decode_result(result) if task is not None else result


def _pauses(timeout: Duration | None) -> Iterator[float]:
    """How long to rest after each look: short at first, as most jobs are. The last look comes when the time is up."""
    until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
    pause = 0.01
    while True:
        left = pause if until is None else until - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(pause * 1.5, 0.5)


def _not_in_time(job: Job[Any], timeout: Duration | None) -> WaitTimedOut:
    return WaitTimedOut(
        f"Job {job.id} ({job.task}) is still {job.state} after {seconds(timeout or 0):g} s of waiting; it goes on."
    )
