"""The workers of an app in this process: each is put together from what the app has, run, and stopped when asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rota.clock import Duration
from rota.errors import ConfigurationError
from rota.facts import Facts
from rota.jobs.codec import Codec
from rota.jobs.limit import declare_limits
from rota.jobs.middleware import Middleware
from rota.jobs.package import Package
from rota.jobs.retention import STANDARD, Retention, declare_retention
from rota.jobs.tracing import Tracing
from rota.jobs.worker import Worker, WorkerSettings
from rota.leases.control import Reactions
from rota.leases.leads import Leads
from rota.leases.membership import Membership, for_each
from rota.leases.singletons import Singleton, Singletons
from rota.pollers.pollers import Pollers, choose_pollers
from rota.pollers.polling import Polling
from rota.postgres.ask import run_apart
from rota.postgres.names import check_name
from rota.postgres.pool import Database
from rota.postgres.schema import applied_migrations
from rota.projections.projecting import Projecting
from rota.projections.projections import Projections
from rota.schedules.declare import Declarations
from rota.schedules.scheduler import LEADERSHIP, Scheduler
from rota.service.filling import Opened
from rota.settings import Settings
from rota.working import Working

__all__ = ["Workers"]


class Home(Protocol):
    """The app that they work for. It is asked anew for each: a test points it at another database."""

    settings: Settings
    database: Database
    facts: Facts
    codec: Codec | None
    retention: dict[str, Retention]
    job_logs: int
    tasks: Package
    middlewares: Middleware
    singletons: dict[str, Singleton]
    declared: Declarations
    pollers: Pollers
    projections: Projections
    mark: str | None
    exits: Callable[[str], object] | None
    serves: bool
    tracing: Tracing | None
    _membership: Membership
    _leads: Leads

    async def check(self) -> None: ...


class Workers:
    """Those that start, run or stop now."""

    def __init__(self, app: Home) -> None:
        self._app = app
        self._workings: list[Working] = []

    def all(self) -> tuple[Working, ...]:
        return tuple(self._workings)

    def stop(self) -> bool:
        """Ask all of them to stop. False if there is none that can be asked."""
        asked = [working.stop() for working in self._workings]
        return any(asked)

    async def work(
        self,
        queues: Sequence[str] | None,
        concurrency: int | None,
        pollers: Sequence[str] | None,
        *,
        drain: bool,
        grace: Duration,
    ) -> None:
        """Run one more from its start to its end; see `Rota.work`. What is wrong with what was asked is told before it starts."""
        app = self._app
        settings = _worker_settings(queues, concurrency)
        polled = choose_pollers(app.pollers, pollers)
        schedules = app.declared.definitions()
        limits = {name: app.tasks[name].options.limit for name in sorted(app.tasks)}
        self._check_retention()
        bodies: dict[str, Callable[..., Any]] = {f"poller {each.name!r}": each.handler for each in polled}
        bodies |= {f"singleton {name!r}": each.function for name, each in app.singletons.items() if not drain}
        projected = [] if drain else app.projections.definitions
        bodies |= {f"projection {each.name!r}": each.handler for each in projected}
        bodies |= {f"middleware {name!r}": each for name, each in app.middlewares.around_run}
        needs = app.tasks.needs(bodies)
        opened = Opened(app.tasks.resources)
        scheduler = Scheduler(
            app.database,
            app.tasks,
            app.facts,
            hears=lambda: working.control is not None and working.control.hears,
            poll=app.settings.schedule_poll,
        )
        around = app.middlewares
        worker = Worker(
            app.database, app.tasks, settings, app.facts, app.codec, scheduler, app.tracing, around, app.job_logs
        )
        polling = Polling(app.database, polled, app.facts)
        projecting = Projecting(
            app.database,
            projected,
            app.facts,
            hears=lambda: working.control is not None and working.control.hears,
        )
        scheduling = Singleton(LEADERSHIP, scheduler.lead, when=scheduler.needed)
        led = (*app.singletons.values(), scheduling, *projecting.singletons())
        reactions = (
            worker.reactions,
            polling.reactions,
            Reactions(on_wish=lambda wish: working.wished(wish), at_ease=lambda: True),
            *([projecting.reactions] if projected else []),
        )
        shown = {
            "queues": queues if queues is None else list(queues),
            "concurrency": settings.concurrency,
            "bulk": True,
            "tasks": {name: app.tasks[name].version for name in sorted(app.tasks)},
            "limited": [name for name, limit in limits.items() if limit is not None],
            "schedules": {schedule.name: str(schedule.digest()) for schedule in schedules},
            "pollers": sorted(definition.name for definition in polled),
            **({"projections": {each.name: each.version for each in projected}} if projected else {}),
            **({"projecting": projecting.connections} if projected else {}),
            **({"mark": app.mark} if app.mark else {}),
            "drains": "quiet" if app.serves else "returns" if app.exits is None else "exits",
        }
        working = Working(
            app.facts,
            worker,
            polling,
            projecting,
            Singletons(app._leads, () if drain else led),
            reach=lambda: app.database.run(applied_migrations()),
            check=self._prepare,
            resources=lambda enter, wait: opened.open(needs, enter, wait),
            member=lambda: app._membership.joined(for_each((), reactions), shown),
            limits=lambda: run_apart(app.database.run, declare_limits(limits)),
            declared=lambda: app.declared.kept(schedules, app.database, app.codec, app.facts),
            exits=app.exits,
        )
        self._workings.append(working)
        try:
            with opened.standing():
                await working.run(drain=drain, grace=grace)
        finally:
            self._workings.remove(working)

    async def _prepare(self) -> None:
        await self._app.check()
        if self._app.retention:
            await self._app.database.run(declare_retention(self._app.retention))

    def _check_retention(self) -> None:
        known = {None, STANDARD, *self._app.retention}
        unknown = {task.options.retention for task in self._app.tasks.values()} - known
        if unknown:
            raise ConfigurationError(
                f"Tasks name the retention {', '.join(sorted(map(repr, unknown)))}, and this app does not say what that is: "
                'write Rota(retention={"name": "30d"}).'
            )


def _worker_settings(queues: Sequence[str] | None, concurrency: int | None) -> WorkerSettings:
    if isinstance(queues, str):
        raise ConfigurationError(f"queues is a list of names, not text: write queues=[{queues!r}].")
    if concurrency is not None and (
        not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1
    ):
        raise ConfigurationError(
            f"concurrency cannot be {concurrency!r}: it is how many bodies run at once, 1 or more."
        )
    if queues is not None and not queues:
        raise ConfigurationError(
            "queues is empty, so this worker would never do anything: name some, or None for all of them."
        )
    names = None if queues is None else tuple(check_name("queue", queue, 200) for queue in queues)
    return (
        WorkerSettings(queues=names) if concurrency is None else WorkerSettings(queues=names, concurrency=concurrency)
    )
