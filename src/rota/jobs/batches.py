"""`app.batches`: many jobs under one handle, in both colours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from rota.clock import Duration, seconds
from rota.errors import BatchNotFound, ConfigurationError, NotPossible, WaitTimedOut
from rota.jobs.cancel import cancel_jobs
from rota.jobs.chains import Plan, Put, taken_by
from rota.jobs.close import close_batches
from rota.jobs.definition import BoundTask, Task
from rota.jobs.intake import check_new
from rota.jobs.job import JobId, NewJob
from rota.postgres.audit import actor, record
from rota.postgres.names import check_name
from rota.postgres.notify import cancel_channel
from rota.postgres.pool import Database
from rota.postgres.query import Query, Steps, many, one_or_none, statement

__all__ = ["Batch", "Batches", "Progress"]

T = TypeVar("T")

_STRETCH = 1_000  # jobs that one transaction cancels: enough to be quick, few enough to lock nobody out for long


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is: how many of its jobs ended how, run, and wait. `forgotten` are those that history no longer has.

    It is also what the callback of a batch is given.
    """

    batch: int
    total: int
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    forgotten: int = 0
    name: str | None = None

    @property
    def left(self) -> int:
        """How many have not ended."""
        return self.running + self.waiting

    @property
    def done(self) -> int:
        """How many have ended, one way or another."""
        return self.total - self.left


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that were started together. `closed_at` is when the last of them ended, if that was so when this was read."""

    id: int
    name: str | None
    total: int
    created_at: datetime
    closed_at: datetime | None = None
    _batches: Batches | None = field(default=None, repr=False, compare=False)

    async def progress(self) -> Progress:
        """How far it is now."""
        return await self._owner().progress(self.id)

    def progress_sync(self) -> Progress:
        return self._owner().progress_sync(self.id)

    async def wait(self, timeout: Duration | None = None) -> Progress:
        """Wait until all its jobs have ended, one way or another, and return how. Raises WaitTimedOut, a TimeoutError."""
        return await self._owner().wait(self.id, timeout)

    def wait_sync(self, timeout: Duration | None = None) -> Progress:
        return self._owner().wait_sync(self.id, timeout)

    async def cancel(self, reason: str = "") -> int:
        """Cancel what is left of it; see app.batches.cancel."""
        return await self._owner().cancel(self.id, reason)

    def cancel_sync(self, reason: str = "") -> int:
        return self._owner().cancel_sync(self.id, reason)

    def _owner(self) -> Batches:
        assert self._batches is not None, "a batch is read through an app"
        return self._batches


class Taking(Protocol):
    """How the jobs of a batch come into the queue."""

    async def take_plan(self, plan: Plan, on: Any) -> Put: ...

    def take_plan_sync(self, plan: Plan, on: Any) -> Put: ...


class Batches:
    """Start batches, look at them, and cancel what is left of one."""

    def __init__(
        self,
        database: Database,
        intake: Taking,
        *,
        inline: Callable[[], bool],
        admit: Callable[[Sequence[NewJob]], list[NewJob]],
    ) -> None:
        self._database = database
        self._intake = intake
        self._inline = inline
        self._admit = admit

    async def start(
        self,
        jobs: Iterable[NewJob],
        *,
        then: NewJob | Task[..., Any] | BoundTask[..., Any] | None = None,
        name: str | None = None,
        on: Any = None,
    ) -> Batch:
        """Add jobs made by `task.bind(...)` under one handle, all of them or after an error none.

        When the last of them has ended, whatever became of them, `then` is enqueued, exactly once: its first parameter that has no
        value is given a Progress. A dead letter has ended. With `on` they are there when that connection's transaction commits.
        """
        plan = self._planned(jobs, then, name)
        put = await self._intake.take_plan(plan, on)
        if not plan.waits[0].members and on is None:
            await self._database.run(close_batches())  # nobody else will, until a worker looks by itself
        return self._started(plan, put)

    def start_sync(
        self,
        jobs: Iterable[NewJob],
        *,
        then: NewJob | Task[..., Any] | BoundTask[..., Any] | None = None,
        name: str | None = None,
        on: Any = None,
    ) -> Batch:
        plan = self._planned(jobs, then, name)
        put = self._intake.take_plan_sync(plan, on)
        if not plan.waits[0].members and on is None:
            self._database.run_sync(close_batches())
        return self._started(plan, put)

    def _planned(self, jobs: Iterable[NewJob], then: Any, name: str | None) -> Plan:
        if self._inline():
            raise NotPossible(
                "A batch cannot be started inside app.inline(): how far it is, is kept in the database. Give the test the fixture "
                "rota_app, or enqueue the jobs with app.enqueue_many(...)."
            )
        plan = _planned(jobs, then, name)
        plan.jobs = self._admit(plan.jobs)
        return plan

    def _started(self, plan: Plan, put: Put) -> Batch:
        wait = plan.waits[0]
        assert put.at is not None
        return Batch(put.batches[0], wait.name, len(wait.members), put.at, None, self)

    async def get(self, id: int) -> Batch:
        """The batch as it is now. Raises BatchNotFound."""
        return _found(id, await self._database.run(self._get(id)))

    def get_sync(self, id: int) -> Batch:
        return _found(id, self._database.run_sync(self._get(id)))

    async def list(
        self, *, name: str | None = None, open: bool = False, limit: int = 100, after: int | None = None
    ) -> Sequence[Batch]:
        """Batches, the newest first; of one name, or those that have not ended; `after` is the last id of the page before."""
        return await self._database.run(self._list(name, open, limit, after))

    def list_sync(
        self, *, name: str | None = None, open: bool = False, limit: int = 100, after: int | None = None
    ) -> Sequence[Batch]:
        return self._database.run_sync(self._list(name, open, limit, after))

    async def progress(self, id: int) -> Progress:
        """How far a batch is now. Raises BatchNotFound."""
        return _found(id, await self._database.run(find_progress(id)))

    def progress_sync(self, id: int) -> Progress:
        return _found(id, self._database.run_sync(find_progress(id)))

    async def wait(self, id: int, timeout: Duration | None = None) -> Progress:
        """Wait until all jobs of a batch have ended; see Batch.wait."""
        for pause in _pauses(timeout):
            if await self._database.run(_has_ended(id)):
                return await self.progress(id)
            await asyncio.sleep(pause)
        raise _not_in_time(await self.progress(id), timeout)

    def wait_sync(self, id: int, timeout: Duration | None = None) -> Progress:
        for pause in _pauses(timeout):
            if self._database.run_sync(_has_ended(id)):
                return self.progress_sync(id)
            time.sleep(pause)
        raise _not_in_time(self.progress_sync(id), timeout)

    async def cancel(self, id: int, reason: str = "", *, by: str | None = None, dry_run: bool = False) -> int:
        """Cancel what is left of a batch, and return how many jobs that was: those that wait at once, those that run are told.

        Its callback runs all the same, when the last has ended. It takes several transactions, and may be repeated.
        """
        count, last = 0, 0
        while True:
            found, last = await self._database.run_steps(self._cancelling(id, reason, by, last), dry_run=dry_run)
            count += found
            if found < _STRETCH:
                break
        if not dry_run:
            await self._database.run(close_batches())
        return count

    def cancel_sync(self, id: int, reason: str = "", *, by: str | None = None, dry_run: bool = False) -> int:
        count, last = 0, 0
        while True:
            found, last = self._database.run_steps_sync(self._cancelling(id, reason, by, last), dry_run=dry_run)
            count += found
            if found < _STRETCH:
                break
        if not dry_run:
            self._database.run_sync(close_batches())
        return count

    def _cancelling(self, id: int, reason: str, by: str | None, last: JobId) -> Steps[tuple[int, JobId]]:
        _found(id, (yield self._get(id)))
        ids = yield _find_live(id, last)
        if not ids:
            return 0, last
        channel = cancel_channel(self._database.schema)
        ended = yield cancel_jobs(ids, reason or f"batch {id} was cancelled", channel)
        yield record(actor(by), "cancel", {"batch": id, "jobs": len(ended)})
        return len(ids), ids[-1]

    def _get(self, id: int) -> Query[Batch | None]:
        return GET_BATCH.query({"id": _check_id(id)}, read=one_or_none(self._batch))

    def _list(self, name: str | None, open: bool, limit: int, after: int | None) -> Query[Any]:
        params = {"name": name, "open": open, "limit": _check_limit(limit), "after": after}
        return LIST_BATCHES.query(params, read=many(self._batch))

    def _batch(self, id: int, name: str | None, total: int, created_at: datetime, closed_at: datetime | None) -> Batch:
        return Batch(id, name, total, created_at, closed_at, self)


def _planned(jobs: Iterable[NewJob], then: Any, name: str | None) -> Plan:
    plan = Plan()
    members = tuple(plan.add(each, None) for each in check_new(jobs))
    batch = plan.wait(members, "summary", "run", None if name is None else check_name("name", name, 200))
    if then is not None:
        call = then.bind() if isinstance(then, Task | BoundTask) else then
        if not isinstance(call, NewJob):
            raise ConfigurationError(f"then= cannot be {then!r}: it is a task, or what task.bind(...) returns.")
        taken = taken_by(call, [], "summary")
        plan.add(replace(call, takes=taken), batch)
    return plan


GET_BATCH = statement(
    "get_batch",
    """
    select batch.id, batch.name, batch.total, batch.created_at, batch.closed_at
    from {schema}.batches as batch
    where batch.id = %(id)s
    """,
)

LIST_BATCHES = statement(
    "list_batches",
    """
    select batch.id, batch.name, batch.total, batch.created_at, batch.closed_at
    from {schema}.batches as batch
    -- links of chains are batches too, and not what anyone looks for
    where batch.gives = 'summary'
      and batch.of is null
      and (%(name)s::text is null or batch.name = %(name)s::text)
      and (not %(open)s or batch.closed_at is null)
      and (%(after)s::bigint is null or batch.id < %(after)s::bigint)
    order by batch.id desc
    limit %(limit)s
    """,
)

# Once it was found ended, what was found then is what counts: history forgets.
PROGRESS = statement(
    "find_progress",
    """
    select
        batch.id, batch.total,
        case when known.stands then batch.succeeded else (
            select count(*) from {schema}.history as done where done.batch_id = batch.id and done.state = 'succeeded'
        ) end,
        case when known.stands then batch.dead else letters.dead end,
        case when known.stands then batch.cancelled else (
            select count(*) from {schema}.history as done where done.batch_id = batch.id and done.state = 'cancelled'
        ) end,
        live.running, live.waiting, batch.name
    from {schema}.batches as batch
    cross join lateral (
        select
            count(*) filter (where job.state = 'running') as running, count(*) filter (where job.state <> 'running') as waiting
        from {schema}.jobs as job
        where job.batch_id = batch.id
    ) as live
    cross join lateral (
        select count(*) as dead
        from {schema}.dead as letter
        where letter.batch_id = batch.id and letter.resolution is distinct from 'retried'
    ) as letters
    cross join lateral (select batch.closed_at is not null and live.running + live.waiting = 0 as stands) as known
    where batch.id = %(id)s
    """,
)


def find_progress(id: int) -> Query[Progress | None]:
    """How far the batch is; None when there is none."""
    return PROGRESS.query({"id": _check_id(id)}, read=one_or_none(_progress))


def _progress(
    batch: int, total: int, succeeded: int, dead: int, cancelled: int, running: int, waiting: int, name: str | None
) -> Progress:
    known = succeeded + dead + cancelled + running + waiting
    return Progress(batch, total, succeeded, dead, cancelled, running, waiting, max(0, total - known), name)


# from the end, as jobs are mostly taken from the beginning
HAS_ENDED = statement(
    "has_batch_ended",
    """
    select (
        select job.id from {schema}.jobs as job where job.batch_id = %(id)s order by job.batch_id desc, job.id desc limit 1
    ) is null
    """,
)


def _has_ended(id: int) -> Query[bool]:
    return HAS_ENDED.query({"id": _check_id(id)}, read=lambda rows: bool(rows[0][0]))


FIND_LIVE = statement(
    "find_live_members",
    """
    select job.id
    from {schema}.jobs as job
    where job.batch_id = %(id)s
      and job.id > %(after)s
    order by job.batch_id, job.id
    limit %(limit)s
    """,
)


def _find_live(id: int, after: JobId) -> Query[list[JobId]]:
    params = {"id": id, "after": after, "limit": _STRETCH}
    return FIND_LIVE.query(params, read=lambda rows: [row[0] for row in rows])


def _check_id(id: Any) -> int:
    if not isinstance(id, int) or isinstance(id, bool):
        raise ConfigurationError(f"{id!r} is no id of a batch: that is a whole number.")
    return id if 0 < id < 2**63 else 0


def _check_limit(limit: Any) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 10_000:
        raise ConfigurationError(f"limit cannot be {limit!r}: it is a number from 1 to 10000.")
    return limit


def _found(id: int, found: T | None) -> T:
    if found is None:
        raise BatchNotFound(
            f"There is no batch {id}: it was never started here, the transaction that did was rolled back, or it ended so long ago "
            "that it is forgotten."
        )
    return found


def _pauses(timeout: Duration | None) -> Iterator[float]:
    """How long to rest after each look: short at first, ever longer. The last look comes when the time is up."""
    until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
    pause = 0.01
    while True:
        left = pause if until is None else until - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(pause * 1.5, 0.5)


def _not_in_time(progress: Progress, timeout: Duration | None) -> WaitTimedOut:
    return WaitTimedOut(
        f"Batch {progress.batch} has {progress.left} of {progress.total} jobs left after {seconds(timeout or 0):g} s of waiting; "
        "they go on."
    )
