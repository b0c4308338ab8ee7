"""The app of a test: on a database of its own, with a clock that is set and work that is done when asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from rota.app import Rota
from rota.clock import Duration, duration
from rota.errors import ConfigurationError, RotaError, SchemaMissing
from rota.events.logs import EventLogs
from rota.facts import JobCancelled, JobFailed, JobLost, JobSucceeded
from rota.jobs.definition import Task
from rota.jobs.job import Job
from rota.pollers.pollers import Pollers
from rota.postgres.loop_pool import LoopPool, close_with_loop
from rota.postgres.pool import Database, UserPool
from rota.projections.projections import Projections
from rota.settings import Settings
from rota.testing.clock import advance

__all__ = ["TestRota", "guarded", "pointed_at"]


class TestRota(Rota):
    """A Rota on a test's database. `of` is the app whose tasks it runs; without one it begins with none.

    Its connections are closed with the event loop that opened them, so a test need not close it.
    """

    __test__ = False  # pytest would take it for a class of tests

    def __init__(
        self, dsn: str, *, schema: str | None = None, of: Rota | None = None, lease: Duration | None = None
    ) -> None:
        super().__init__(dsn, schema=schema, lease=lease)
        if of is not None:
            self.facts, self.tasks, self.task, self.singletons = of.facts, of.tasks, of.task, of.singletons
            self.resource, self.override = of.resource, of.override
            self.middlewares, self.middleware = of.middlewares, of.middleware
            self.codec, self.retention, self.tracing = of.codec, of.retention, of.tracing
            self.job_logs = of.job_logs
            self.declared, self.cron, self.every = of.declared, of.cron, of.every
            self.pollers = Pollers(self, of.pollers)
            self.poller = self.pollers.poller
            self.event_logs = EventLogs(lambda: self.database, of.event_logs)
            self.event_log, self.event_table = self.event_logs.event_log, self.event_logs.event_table
            self.projections = Projections(self, of.projections)
            self.projection = self.projections.projection
            self._use(self.settings)

    def _make_database(self, settings: Settings, pools: tuple[UserPool, ...]) -> Database:
        return _LoopBoundDatabase(self._address, settings.schema, size=settings.pool_size)

    async def drain(self, *, queues: list[str] | None = None, concurrency: int | None = None) -> int:
        """Run all that is due, also what those jobs enqueue, and return how many jobs are settled by it, dead or alive.

        What waits for a later time, such as another attempt, stays queued: `advance` makes it due.
        """
        with self.facts.recorded(JobSucceeded, JobFailed, JobCancelled, JobLost) as attempts:
            await self.work(queues, concurrency, drain=True)
        return sum(_settles(attempt) for attempt in attempts)

    def drain_sync(self, *, queues: list[str] | None = None, concurrency: int | None = None) -> int:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise RotaError(
                "drain_sync() cannot run inside an event loop. In an async test, write: await rota_app.drain()"
            )
        return asyncio.run(self.drain(queues=queues, concurrency=concurrency))

    def advance(self, by: Duration) -> None:
        """Move the time by which jobs become due, for every process on this database, and have the workers look again.

        Leases and timeouts keep real time. Raises ConfigurationError on a database that is not one of the kit's.
        """
        step = duration(by, "advance(...)")
        if step < timedelta(0):
            raise ConfigurationError(f"Time cannot be advanced by {by!r}: it only goes forward.")
        try:
            self.database.run_sync(advance(step, self.settings.schema))
        except SchemaMissing as error:
            raise ConfigurationError(
                f"Time cannot be moved on {self.database.dsn}: that is no database of the test kit (its schema "
                f"{self.settings.schema!r} has no test_clock). Use the one of the fixture rota_database."
            ) from error

    def enqueued(self, task: Task[..., Any] | str | None = None) -> list[Job[Any]]:
        """The jobs that wait, due or not, in a line or not, of one task or of all; the newest last."""
        waiting = [
            job for state in ("queued", "blocked") for job in self.jobs.list_sync(state=state, task=task, limit=10_000)
        ]
        return sorted(waiting, key=lambda job: job.id)

    def close_everywhere(self) -> None:
        """Close what sync callers opened, and what is left on event loops that are idle now."""
        self._by_hand.close_sync()
        for database in (self._held, self.looking, self.database):
            assert isinstance(database, _LoopBoundDatabase)
            database.close_everywhere()


def _settles(attempt: JobSucceeded | JobFailed | JobCancelled | JobLost) -> bool:
    if isinstance(attempt, JobFailed):
        return attempt.retry_in is None
    return not isinstance(attempt, JobLost) or attempt.fate != "queued"


class _LoopBoundDatabase(Database):
    """Closes each async pool with the loop it belongs to.

    A test's loop is gone before the teardown of the sync fixture that made the app, and then nothing can be closed in it.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._closers: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Task[None]]] = WeakKeyDictionary()

    async def _open(self) -> LoopPool:
        pool = await super()._open()
        loop = asyncio.get_running_loop()
        self._closers.setdefault(loop, set()).add(loop.create_task(_close_with_loop(pool)))
        return pool

    async def close(self) -> None:
        await super().close()
        closers = self._closers.pop(asyncio.get_running_loop(), set())
        for closer in closers:
            closer.cancel()
        await asyncio.gather(*closers, return_exceptions=True)

    async def close_with_loop(self) -> None:
        """That is what its closers do."""

    def close_everywhere(self) -> None:
        for loop in list(self._closers):
            if not loop.is_closed() and not loop.is_running():
                loop.run_until_complete(self.close())
        self.close_sync()


async def _close_with_loop(pool: LoopPool) -> None:
    try:
        await asyncio.Event().wait()  # until the runner of the loop cancels what is left
    finally:
        await close_with_loop(pool)


# what of an app leads to its database
_OF_ITS_DATABASE = (
    "settings",
    "database",
    "jobs",
    "dead",
    "queues",
    "schedules",
    "emit",
    "emit_sync",
    "leaders",
    "_address",
    "_intake",
    "batches",
    "_held",
    "looking",
    "_membership",
    "_by_hand",
    "_leads",
)


@contextlib.contextmanager
def pointed_at(app: Rota, other: Rota) -> Iterator[None]:
    """Let an app use the database of another for the length of a block; what is declared meanwhile is forgotten."""
    with _restored(app), app.event_logs.as_they_are():
        projections, singletons = dict(app.projections), dict(app.singletons)
        tasks, declared, pollers = dict(app.tasks), list(app.declared.said), dict(app.pollers)
        provided = dict(app.tasks.resources.providers)
        around = list(app.middlewares.around_run), list(app.middlewares.at_enqueue)
        for name in _OF_ITS_DATABASE:
            setattr(app, name, getattr(other, name))
        try:
            yield
        finally:
            app.tasks._tasks.clear()
            app.tasks._tasks.update(tasks)
            app.tasks.resources.providers.clear()
            app.tasks.resources.providers.update(provided)
            app.middlewares.around_run[:], app.middlewares.at_enqueue[:] = around
            app.declared.said[:] = declared
            app.pollers._pollers.clear()
            app.pollers._pollers.update(pollers)
            app.projections._projections.clear()
            app.projections._projections.update(projections)
            app.singletons.clear()
            app.singletons.update(singletons)


@contextlib.contextmanager
def guarded(app: Rota, name: str) -> Iterator[None]:
    """Keep an app from its real database for the length of a block: using it raises."""

    def refuse() -> NoReturn:
        raise ConfigurationError(
            f"A test used the database of {name} without a database of its own, and would have reached the real one. "
            "Give the test the fixture rota_app, or mark it with @pytest.mark.usefixtures('rota_app')."
        )

    with _restored(app):
        vars(app)["_address"] = refuse
        app._use(app.settings)
        yield


@contextlib.contextmanager
def _restored(app: Rota) -> Iterator[None]:
    before = dict(vars(app))
    try:
        yield
    finally:
        vars(app).clear()
        vars(app).update(before)
