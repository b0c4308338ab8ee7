"""`app.queues`: queues as operators see and steer them, in both colours."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Page
from datetime import datetime
from types import EllipsisType
from typing import Any, TypedDict

from rota.clock import Duration
from rota.jobs.definition import Task
from rota.jobs.queue_view import QueueView, look_at_queue, look_at_queues
from rota.jobs.steer import check_queue, limit_queue, pause_queue, relax_queue, resume_queue, weigh_queue
from rota.postgres.audit import actor
from rota.postgres.notify import wake_channel
from rota.postgres.pool import Database
from rota.postgres.query import Steps

__all__ = ["Queues"]


class Queues:
    """Look at queues; pause, limit, weigh and relax them while workers run, which all of them honour within a second.

    Where a name is asked for, None stands for all queues together: their pause holds for each, and their limits are on top of
    those that a queue has. `by` is who is on record for a change; by default this process. With `dry_run` nothing is changed, and
    what is returned or raised is what would be.
    """

    def __init__(self, database: Database, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._database = database
        self._tasks = tasks

    async def list(self) -> Page[QueueView]:
        """Every queue that has jobs, that someone has paused, limited or weighed, or that a task of this app or a live worker
        names; by name. Where something was said about all of them together, that comes first, under the name None."""
        return await self._database.run_steps(look_at_queues(self._declared()))

    def list_sync(self) -> Page[QueueView]:
        return self._database.run_steps_sync(look_at_queues(self._declared()))

    async def get(self, name: str | None) -> QueueView:
        """One queue as it is now, also one that nobody has used yet."""
        return await self._database.run_steps(look_at_queue(check_queue(name), self._declared()))

    def get_sync(self, name: str | None) -> QueueView:
        return self._database.run_steps_sync(look_at_queue(check_queue(name), self._declared()))

    async def pause(
        self,
        name: str | None,
        reason: str = "",
        *,
        until: datetime | None = None,
        for_: Duration | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> QueueView:
        """Have no job of this queue begin: until it is resumed, `until` that time, or `for_` so long. What runs goes on to its end.

        Said again, it holds as it was said last.
        """
        return await self._database.run_steps(self._pausing(name, reason, until, for_, by), dry_run=dry_run)

    def pause_sync(
        self,
        name: str | None,
        reason: str = "",
        *,
        until: datetime | None = None,
        for_: Duration | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> QueueView:
        return self._database.run_steps_sync(self._pausing(name, reason, until, for_, by), dry_run=dry_run)

    async def resume(self, name: str | None, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        """End the pause of this queue, at once. One that is not paused stays as it is; so does a pause of all queues together."""
        return await self._database.run_steps(self._resuming(name, by), dry_run=dry_run)

    def resume_sync(self, name: str | None, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        return self._database.run_steps_sync(self._resuming(name, by), dry_run=dry_run)

    async def limit(
        self,
        name: str | None,
        *,
        running: int | EllipsisType | None = ...,
        rate: str | EllipsisType | None = ...,
        by: str | None = None,
        dry_run: bool = False,
    ) -> QueueView:
        """Let no more than so many jobs of this queue run at once in all processes, and begin in a period: `rate="100/1m"`.

        None removes a limit, and one that is not given stays as it is. What runs already goes on, also if that is more.
        """
        return await self._database.run_steps(self._limiting(name, running, rate, by), dry_run=dry_run)

    def limit_sync(
        self,
        name: str | None,
        *,
        running: int | EllipsisType | None = ...,
        rate: str | EllipsisType | None = ...,
        by: str | None = None,
        dry_run: bool = False,
    ) -> QueueView:
        return self._database.run_steps_sync(self._limiting(name, running, rate, by), dry_run=dry_run)

    async def weigh(self, name: str, weight: float, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        """Give this queue a share of so much where several have due jobs of the same priority: one of weight 2 has twice as many
        begin as one of weight 1, which is what every queue has that nobody weighed."""
        return await self._database.run_steps(self._weighing(name, weight, by), dry_run=dry_run)

    def weigh_sync(self, name: str, weight: float, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        return self._database.run_steps_sync(self._weighing(name, weight, by), dry_run=dry_run)

    async def relax(self, name: str, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        """Have successes in this queue count before PostgreSQL has them on disk (`synchronous_commit` off), a moment later: for jobs
        that do no harm when they run again. When the server crashes in that moment, workers write them down anew; those of a worker
        that goes down with it are lost, and their jobs run again."""
        return await self._database.run_steps(self._relaxing(name, True, by), dry_run=dry_run)

    def relax_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        return self._database.run_steps_sync(self._relaxing(name, True, by), dry_run=dry_run)

    async def tighten(self, name: str, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        """Have successes in this queue be on disk before they count, as in every queue that nobody has relaxed."""
        return await self._database.run_steps(self._relaxing(name, False, by), dry_run=dry_run)

    def tighten_sync(self, name: str, *, by: str | None = None, dry_run: bool = False) -> QueueView:
        return self._database.run_steps_sync(self._relaxing(name, False, by), dry_run=dry_run)

    def _pausing(
        self, name: str | None, reason: str, until: datetime | None, for_: Duration | None, by: str | None
    ) -> Steps[QueueView]:
        return pause_queue(check_queue(name), reason, until, for_, **self._told(by))

    def _resuming(self, name: str | None, by: str | None) -> Steps[QueueView]:
        return resume_queue(check_queue(name), **self._told(by))

    def _limiting(
        self, name: str | None, running: int | EllipsisType | None, rate: str | EllipsisType | None, by: str | None
    ) -> Steps[QueueView]:
        return limit_queue(check_queue(name), running, rate, **self._told(by))

    def _weighing(self, name: str, weight: float, by: str | None) -> Steps[QueueView]:
        return weigh_queue(check_queue(name), weight, **self._told(by))

    def _relaxing(self, name: str, relaxed: bool, by: str | None) -> Steps[QueueView]:
        return relax_queue(check_queue(name), relaxed, **self._told(by))

    def _told(self, by: str | None) -> _Told:
        return {"by": actor(by), "channel": wake_channel(self._database.schema), "declared": self._declared()}

    def _declared(self) -> frozenset[str]:
        return frozenset(task.options.queue for task in self._tasks.values())


class _Told(TypedDict):
    by: str
    channel: str
    declared: frozenset[str]
