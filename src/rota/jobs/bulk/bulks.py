"""`app.bulk`: many jobs changed at once, in both colours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Page
from typing import Any, Unpack

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, WaitTimedOut
from rota.jobs.bulk.action import BulkAction, BulkOptions
from rota.jobs.bulk.operate import stop_bulk, undo_bulk
from rota.jobs.bulk.start import Asked, BulkPreview, preview_bulk, read_asked, start_bulk
from rota.jobs.bulk.view import Bulk, get_bulk, list_bulks
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.job import JobId, Owner
from rota.jobs.search import REACH
from rota.jobs.wanted import JobFilters, read_wanted
from rota.postgres.audit import actor
from rota.postgres.look import look
from rota.postgres.notify import wake_channel
from rota.postgres.pool import Database
from rota.postgres.query import Steps

__all__ = ["BulkChoice", "Bulks"]


class BulkChoice(JobFilters, BulkOptions, total=False):
    """Which jobs, as `app.jobs.search` has it: state, queue, task, tag, member, attempt, args, error, since and until. And what an
    action is told: `to`, the queue to move to; `priority`; `delay` or `at`; `reason`."""


class Bulks:
    """Change many jobs at once: see first what it would do, then have workers do it, watch it, stop it, undo it.

    Jobs are chosen by the filters of `app.jobs.search`, or named by `ids`. What is done is one of retry, cancel, discard, acknowledge,
    move (`to=`), prioritise (`priority=`) and put_off (`delay=` or `at=`); jobs that run are left alone. `by` is who is on record; by
    default this process.
    """

    def __init__(
        self, database: Database, tasks: Mapping[str, Task[..., Any]], codec: Codec | None, app: Owner
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._codec = codec
        self._app = app

    async def preview(
        self,
        action: BulkAction | str,
        *,
        ids: Page[JobId] | None = None,
        reach: int = REACH,
        deadline: Duration | None = None,
        **choice: Unpack[BulkChoice],
    ) -> BulkPreview:
        """What it would do: how many jobs, five of them, how many are left out and why, what cannot be undone, and who would run it.

        Looks at no more than `reach` jobs of each kind, the newest; `exact` says whether those were all. Changes nothing. Raises
        ConfigurationError for what cannot be meant.
        """
        return await self._database.run_steps(self._previewing(action, ids, reach, deadline, choice))

    def preview_sync(
        self,
        action: BulkAction | str,
        *,
        ids: Page[JobId] | None = None,
        reach: int = REACH,
        deadline: Duration | None = None,
        **choice: Unpack[BulkChoice],
    ) -> BulkPreview:
        return self._database.run_steps_sync(self._previewing(action, ids, reach, deadline, choice))

    async def start(
        self,
        action: BulkAction | str,
        *,
        ids: Page[JobId] | None = None,
        pace: float | None = None,
        undo_for: Duration = "1h",
        by: str | None = None,
        dry_run: bool = False,
        **choice: Unpack[BulkChoice],
    ) -> Bulk:
        """Write down the jobs that fit now, and have workers change them; returns at once.

        What comes to fit later is not among them, and one that no longer fits when its turn comes is skipped. With `pace`, no more
        than so many are changed a second. For `undo_for` it can be undone. Raises NotPossible if there is no job to change, or more
        than a million; ConfigurationError for what cannot be meant. With `dry_run` nothing is begun, and what is returned or raised is
        what would be.
        """
        return await self._database.run_steps(self._starting(action, ids, pace, undo_for, by, choice), dry_run=dry_run)

    def start_sync(
        self,
        action: BulkAction | str,
        *,
        ids: Page[JobId] | None = None,
        pace: float | None = None,
        undo_for: Duration = "1h",
        by: str | None = None,
        dry_run: bool = False,
        **choice: Unpack[BulkChoice],
    ) -> Bulk:
        return self._database.run_steps_sync(self._starting(action, ids, pace, undo_for, by, choice), dry_run=dry_run)

    async def get(self, id: int) -> Bulk:
        """How far it is. Raises BulkNotFound."""
        return await self._database.run_steps(get_bulk(id))

    def get_sync(self, id: int) -> Bulk:
        return self._database.run_steps_sync(get_bulk(id))

    async def list(self, *, open: bool | None = None, limit: int = 100, after: int | None = None) -> Page[Bulk]:
        """Bulks, the last first: all, those that go on (`open`), or those that ended. `after` is the last id of the page before."""
        return await self._database.run_steps(list_bulks(open=open, limit=limit, after=after))

    def list_sync(self, *, open: bool | None = None, limit: int = 100, after: int | None = None) -> Page[Bulk]:
        return self._database.run_steps_sync(list_bulks(open=open, limit=limit, after=after))

    async def stop(self, id: int, *, by: str | None = None, dry_run: bool = False) -> Bulk:
        """Change no more jobs; what was changed stays so, unless it is undone. Raises NotPossible if it has ended, BulkNotFound."""
        return await self._database.run_steps(stop_bulk(id, actor(by)), dry_run=dry_run)

    def stop_sync(self, id: int, *, by: str | None = None, dry_run: bool = False) -> Bulk:
        return self._database.run_steps_sync(stop_bulk(id, actor(by)), dry_run=dry_run)

    async def undo(self, id: int, *, by: str | None = None, dry_run: bool = False) -> Bulk:
        """Have workers put back what it changed, as far as it is still where the bulk put it; returns at once.

        Raises NotPossible while it goes on, after its time, and if there is nothing to put back; BulkNotFound.
        """
        return await self._database.run_steps(self._undoing(id, by), dry_run=dry_run)

    def undo_sync(self, id: int, *, by: str | None = None, dry_run: bool = False) -> Bulk:
        return self._database.run_steps_sync(self._undoing(id, by), dry_run=dry_run)

    async def wait(self, id: int, timeout: Duration | None = None) -> Bulk:
        """Wait until it has ended, or is undone, and return it. Raises WaitTimedOut, a TimeoutError; BulkNotFound."""
        for pause in _pauses(timeout):
            bulk = await self.get(id)
            if not bulk.open:
                return bulk
            await asyncio.sleep(pause)
        raise _not_in_time(id, timeout)

    def wait_sync(self, id: int, timeout: Duration | None = None) -> Bulk:
        for pause in _pauses(timeout):
            bulk = self.get_sync(id)
            if not bulk.open:
                return bulk
            time.sleep(pause)
        raise _not_in_time(id, timeout)

    def _previewing(
        self, action: Any, ids: Any, reach: int, deadline: Duration | None, choice: BulkChoice
    ) -> Steps[BulkPreview]:
        return look(preview_bulk(self._asked(action, ids, choice, whole=False), self._app, reach), deadline)

    def _starting(
        self, action: Any, ids: Any, pace: float | None, undo_for: Duration, by: str | None, choice: BulkChoice
    ) -> Steps[Bulk]:
        asked = self._asked(action, ids, choice, pace, undo_for)
        return start_bulk(asked, actor(by), wake_channel(self._database.schema))

    def _undoing(self, id: int, by: str | None) -> Steps[Bulk]:
        return undo_bulk(id, actor(by), wake_channel(self._database.schema))

    def _asked(
        self,
        action: Any,
        ids: Any,
        choice: BulkChoice,
        pace: float | None = None,
        undo_for: Duration = "1h",
        *,
        whole: bool = True,
    ) -> Asked:
        known = JobFilters.__annotations__.keys() | BulkOptions.__annotations__.keys()
        if unknown := choice.keys() - known:
            raise ConfigurationError(
                f"A bulk knows no {', '.join(sorted(unknown))}: there is {', '.join(sorted(known))}."
            )
        filters = {name: value for name, value in choice.items() if name in JobFilters.__annotations__}
        options = {name: value for name, value in choice.items() if name in BulkOptions.__annotations__}
        wanted = read_wanted(filters, self._tasks, has_codec=self._codec is not None)  # type: ignore[arg-type]
        return read_asked(action, options, wanted, ids, pace, undo_for, whole=whole)  # type: ignore[arg-type]


def _pauses(timeout: Duration | None) -> Iterator[float]:
    """How long to sleep before each further look, until the time is over."""
    until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
    pause = 0.02
    while True:
        left = float("inf") if until is None else until - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(0.5, pause * 1.5)


def _not_in_time(id: int, timeout: Duration | None) -> WaitTimedOut:
    return WaitTimedOut(
        f"Bulk {id} has not ended within {timeout}. It goes on; `rota bulk show {id}` tells how far it is."
    )
