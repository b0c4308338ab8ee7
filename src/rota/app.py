"""The app: what a user builds. Tasks are registered on it, jobs are enqueued through it, and it can work on them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rota.clock import Duration
from rota.errors import ConfigurationError
from rota.events.logs import EventLogs
from rota.facts import Facts
from rota.figures import Figures
from rota.jobs.batches import Batches
from rota.jobs.bulk.bulks import Bulks
from rota.jobs.chains import Plan
from rota.jobs.codec import Codec, check_codec
from rota.jobs.dead import Dead
from rota.jobs.flow import Flow
from rota.jobs.inline import run_inline, run_inline_sync, run_plan_inline, run_plan_inline_sync
from rota.jobs.intake import Intake, check_new
from rota.jobs.job import Job, NewJob
from rota.jobs.logs.level import Level, read_app_level
from rota.jobs.middleware import Middleware
from rota.jobs.package import Package
from rota.jobs.queue import Jobs
from rota.jobs.queues import Queues
from rota.jobs.retention import Retention, read_retention
from rota.jobs.tracing import Tracing
from rota.jobs.trends import Trends
from rota.leases.condition import Condition
from rota.leases.connect import control_on
from rota.leases.control import Control, Reactions
from rota.leases.leaders import Leaders
from rota.leases.leadership import Leadership, check_leader_name
from rota.leases.leads import Leads
from rota.leases.lock import Lock
from rota.leases.member_view import MemberView
from rota.leases.membership import Membership
from rota.leases.singletons import OnHeld, Singleton
from rota.leases.steer import Members
from rota.leases.term import Term
from rota.on_event import OnEvent
from rota.pollers.by_hand import ByHand
from rota.pollers.pollers import Pollers
from rota.postgres.audit import Audit
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.identity import adopt, check_identity, compare_identity
from rota.postgres.look import LOOKING, look
from rota.postgres.names import check_name
from rota.postgres.pool import Database, UserPool
from rota.postgres.roles import grant_roles
from rota.postgres.schema import Migration, applied_migrations, check_schema, migrate, migration_files
from rota.postgres.vitals import Vitals, read_vitals
from rota.projections.projections import Projections
from rota.schedules.declare import Declarations
from rota.schedules.emit import Emit, EmitSync
from rota.schedules.schedules import Schedules
from rota.service.filling import filling
from rota.service.loop import leave_stuck
from rota.settings import Settings, read_settings
from rota.workers import Workers
from rota.working import Working

__all__ = ["Rota"]

DEFAULT_GRACE = 25.0  # below the 30 s that Kubernetes and systemd commonly give

_READ_ONLY = {"default_transaction_read_only": "on", **LOOKING}
# what takes longer is not worth a busy server's time: a page shows what it last knew instead
_SHORT = {"statement_timeout": "2s", "lock_timeout": "500ms"}


class Rota:
    """Tasks, and the database between those who enqueue them and those who run them.

    The database is `dsn`, else ROTA_DATABASE_URL, DATABASE_URL or libpq's PG* variables; else an embedded PostgreSQL in
    `.rota/postgres`, started and given its tables at first use. `schema` (or ROTA_SCHEMA) lets several Rotas share a
    database. `pool` is a psycopg pool of yours (or two, one of each colour) for enqueueing; `pool_size` bounds our own.
    `environment` (or ROTA_ENVIRONMENT) is a label such as "production" that a database must not contradict. `codec` makes
    payloads unreadable to others, or keeps them elsewhere. `retention` says how long settled jobs are kept, by class.
    `schedule_poll` (or ROTA_SCHEDULE_POLL) is how often the scheduler looks although nothing told it to, 5 seconds unless said.
    `job_logs` (or ROTA_JOB_LOGS) is the level from which on what bodies log is kept with their jobs, or "off"; warnings unless said.
    `release` (or ROTA_RELEASE) is what you call this version of your code, such as a tag or a commit: it marks deploys.

    Connections are opened at first use; `async with app:` or `with app:` bounds their life, `close` ends it.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        environment: str | None = None,
        pool: UserPool | Sequence[UserPool] | None = None,
        pool_size: int = 10,
        lease: Duration | None = None,
        codec: Codec | None = None,
        retention: Mapping[str, Retention | Duration] | None = None,
        schedule_poll: Duration | None = None,
        job_logs: Level | None = None,
        release: str | None = None,
    ) -> None:
        settings = read_settings(
            dsn,
            schema=schema,
            environment=environment,
            pool_size=pool_size,
            lease=lease,
            schedule_poll=schedule_poll,
            release=release,
        )
        pools = () if pool is None else tuple(pool) if isinstance(pool, Sequence) else (pool,)
        self.facts = Facts()
        self.codec = check_codec(codec)
        self.retention = read_retention(retention or {})
        self.job_logs = read_app_level(job_logs)
        self.tasks = Package()
        self.tasks.settle_in(self)
        self.task, self.resource = self.tasks.task, self.tasks.resource
        self.override = self.tasks.resources.override
        self.middlewares = Middleware(self.tasks)
        self.middleware = self.middlewares.add
        self.singletons: dict[str, Singleton] = {}
        self.declared = Declarations(self.tasks)
        self.cron, self.every = self.declared.cron, self.declared.every
        self.pollers: Pollers = Pollers(self)
        self.poller = self.pollers.poller
        self.event_logs = EventLogs(lambda: self.database)
        self.event_log, self.event_table = self.event_logs.event_log, self.event_logs.event_table
        self.projections: Projections = Projections(self)
        self.projection = self.projections.projection
        self.on_event = OnEvent(self).on_event
        #: by which whoever started this process finds its membership when it is dead
        self.mark: str | None = None
        #: ends this process when someone asks it from outside to drain, given why; without it, its workers return as after stop()
        self.exits: Callable[[str], object] | None = None
        #: whether this process is there for requests too: then it never ends for that, and its workers rest instead
        self.serves = False
        #: who traces what is enqueued and run, if anyone does: see rota.integrations.otel
        self.tracing: Tracing | None = None
        self._inline = 0
        self._workers = Workers(self)
        self._use(settings, pools)

    def _use(self, settings: Settings, pools: tuple[UserPool, ...] = ()) -> None:
        """Point the app at a database; the test kit points it at another for the length of a test."""
        self.settings = settings
        self._pools = pools
        self._embedded: Dsn | None = None
        self._starting = threading.Lock()
        self.database = self._make_database(settings, pools)
        self.jobs = Jobs(self.database, self.tasks, self.codec)
        self.dead = Dead(self.database, self.tasks, self.codec, self.jobs)
        self.bulk = Bulks(self.database, self.tasks, self.codec, self.jobs)
        self.queues = Queues(self.database, self.tasks)
        self.trends = Trends(self.database)
        self.audit = Audit(self.database)
        self.schedules = Schedules(self.database, self.tasks, self.codec, self.jobs)
        self.emit = Emit(self.database, self.codec, lambda: self._inline > 0)
        self.emit_sync = EmitSync(self.database, self.codec, lambda: self._inline > 0)
        self.leaders = Leaders(self.database)
        self.members = Members(self.database)
        self._intake = Intake(self.database, self.jobs, self.codec, lambda: self.tracing)
        self.batches = Batches(
            self.database,
            self._intake,
            inline=lambda: self._inline > 0,
            admit=lambda new: self.middlewares.admit_all(new),
        )
        self._membership = Membership(self._control)
        self._by_hand = ByHand(self.database, self._membership, lambda: self.pollers.definitions)
        # for those who hold one for a while, so that they do not hold up the others; and those who lock not those who lead
        size = settings.pool_size
        self._held = self.database.apart("hold", size=size, purpose="locks that are held or waited for")
        fenced = self.database.apart("fence", size=size, purpose="term.transaction()")
        #: for pages that people look at: few, short, and unable to change anything
        self.looking = self.database.apart(
            "look",
            size=min(4, size),
            purpose="its dashboard",
            settings=_READ_ONLY,
            everywhere=_SHORT,
            prompt=True,
            looks=True,
        )
        self._leads = Leads(self._membership, fenced, self.facts)

    def _make_database(self, settings: Settings, pools: tuple[UserPool, ...]) -> Database:
        return Database(self._address, settings.schema, size=settings.pool_size, pools=pools)

    def _control(self, reactions: Reactions, work: Mapping[str, Any]) -> Control:
        lease, environment = self.settings.lease, self.settings.environment
        figures = Figures(self.facts, lambda: self.workings, self.pool_statistics)
        return control_on(
            self.database,
            lease,
            reactions,
            work,
            environment=environment,
            facts=self.facts,
            app_release=self.settings.release,
            condition=Condition(figures.look),
        )

    def use(self, *, dsn: str | None = None, schema: str | None = None) -> None:
        """Point the app at another database, before it is used: what the command line's --dsn and --schema do."""
        known = self.settings
        self._use(
            read_settings(
                dsn if dsn is not None or known.dsn is None else known.dsn.conninfo,
                schema=schema or known.schema,
                environment=known.environment,
                pool_size=known.pool_size,
                lease=known.lease.lease,
                schedule_poll=known.schedule_poll,
                release=known.release,
            ),
            self._pools if dsn is None else (),  # a pool of the user's leads to the database they had
        )

    def package(self, package: Package | str = "") -> Package:
        """Take in a library's tasks; or, given a name, make a package of this app whose tasks carry it as a prefix."""
        taken = package if isinstance(package, Package) else Package(package)
        taken.join(self.tasks)
        return taken

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What a body is called through: with its resources filled in. An app of a framework's sees to what that expects, too."""
        return filling(self.tasks.resources, function)

    async def enqueue(self, new: NewJob, *, on: Any = None) -> Job[Any]:
        """Add one job made by `task.bind(...)`. It is there when this returns; with `on`, when that connection's transaction
        commits."""
        new = self.middlewares.admit(new)
        return await (run_inline(new, self.tasks, self.middlewares) if self._inline else self._intake.take(new, on))

    def enqueue_sync(self, new: NewJob, *, on: Any = None) -> Job[Any]:
        new = self.middlewares.admit(new)
        return run_inline_sync(new, self.tasks, self.middlewares) if self._inline else self._intake.take_sync(new, on)

    async def enqueue_many(self, new: Iterable[NewJob], *, on: Any = None) -> list[Job[Any]]:
        """Add jobs made by `task.bind(...)` and return them in the order given: all of them, or after an error none."""
        jobs = self.middlewares.admit_all(check_new(new))
        if self._inline:
            return [await run_inline(job, self.tasks, self.middlewares) for job in jobs]
        return await self._intake.take_all(jobs, on)

    def enqueue_many_sync(self, new: Iterable[NewJob], *, on: Any = None) -> list[Job[Any]]:
        jobs = self.middlewares.admit_all(check_new(new))
        if self._inline:
            return [run_inline_sync(job, self.tasks, self.middlewares) for job in jobs]
        return self._intake.take_all_sync(jobs, on)

    async def enqueue_plan(self, plan: Plan, *, on: Any = None) -> Flow:
        """Add the jobs of a chain or a group: what `chain.enqueue()` does."""
        plan.jobs = self.middlewares.admit_all(plan.jobs)
        if self._inline:
            return plan.flow(await run_plan_inline(plan, self.tasks, self.middlewares))
        return plan.flow((await self._intake.take_plan(plan, on)).jobs)

    def enqueue_plan_sync(self, plan: Plan, *, on: Any = None) -> Flow:
        plan.jobs = self.middlewares.admit_all(plan.jobs)
        if self._inline:
            return plan.flow(run_plan_inline_sync(plan, self.tasks, self.middlewares))
        return plan.flow(self._intake.take_plan_sync(plan, on).jobs)

    def leadership(self, name: str) -> Leadership:
        """Lead `name` for the length of a block, if nobody else does: `async with app.leadership("indexer") as term:`.

        Raises LeadershipHeld at once if someone else leads, and DatabaseUnavailable if that cannot be told. To wait for it, or to
        try again, is asked for: `.wait(timeout="5m")`, `.retry(rota.Retry(...))`.
        """
        return Leadership(self._leads, check_leader_name(name))

    def lock(self, name: str, *, wait: bool | Duration = True) -> Lock:
        """Be the only one in a short section: `async with app.lock("refill") as connection:`.

        It waits for its turn; with `wait=False` not at all, and with a duration no longer than that: then LockHeld is raised. The
        lock is that of a transaction, which the block commits at its end, and writes through `connection` are part of it.
        """
        return Lock(self._held, check_name("name", name, 200), wait=wait)

    def singleton(
        self, name: str, *, on_held: OnHeld = "wait"
    ) -> Callable[[Callable[[Term], Awaitable[Any]]], Singleton]:
        """Have `async def body(term)` run on exactly one of the workers of this app, for as long as there is one.

        One that fails is started again after a pause; when its process stops or dies, another takes over. Where someone else
        leads, `on_held` says what a worker does: wait for its turn, exit (code 3), or skip it for good.
        """

        def register(function: Callable[[Term], Awaitable[Any]]) -> Singleton:
            if name in self.singletons:
                raise ConfigurationError(f"There is a singleton {name!r} already. Give one of them another name.")
            body = filling(self.tasks.resources, function)
            self.singletons[name] = Singleton(check_leader_name(name), body, on_held)
            return self.singletons[name]

        return register

    @contextlib.contextmanager
    def inline(self) -> Iterator[None]:
        """Run tasks at once where they are enqueued, with no database at all; what a body raises, enqueue raises."""
        self._inline += 1
        try:
            yield
        finally:
            self._inline -= 1

    async def work(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        drain: bool = False,
        *,
        pollers: Sequence[str] | None = None,
        grace: Duration = DEFAULT_GRACE,
    ) -> None:
        """Run a worker in this process until it is cancelled, stopped, or with `drain` finds nothing that is due.

        What is due later then, a delayed job or one that waits for its next attempt, stays queued. Raises RotaError when all
        that is left are pollers whose look for due rows PostgreSQL refuses.
        `pollers` names those of the app's that it polls for: all if that is None, and none if it is empty.
        `stop` lets running bodies finish for `grace`, then cancels them and hands them back; cancelling hands back at once.
        """
        await self._workers.work(queues, concurrency, pollers, drain=drain, grace=grace)

    def work_sync(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        drain: bool = False,
        *,
        pollers: Sequence[str] | None = None,
        grace: Duration = DEFAULT_GRACE,
    ) -> None:
        """The same for scripts: runs its own event loop, and closes what it opened.

        A coroutine that ignores its cancellation is left behind, and its job was handed back; a thread cannot be, and keeps
        the script from ending until its body does.
        """

        async def run() -> None:
            try:
                async with self:
                    await self.work(queues, concurrency, drain, pollers=pollers, grace=grace)
            finally:
                await leave_stuck()

        asyncio.run(run())

    def stop(self) -> bool:
        """Ask the workers on this event loop to stop; asked again, they stop waiting for bodies. False if there are none."""
        return self._workers.stop()

    @property
    def workings(self) -> tuple[Working, ...]:
        """The workers of this app in this process, also those that start or stop."""
        return self._workers.all()

    def attach(
        self,
        api: Any,
        *,
        worker: bool = True,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        drain_window: Duration | None = None,
        grace: Duration | None = None,
        drain_token: str | None = None,
        health: bool = True,
        dashboard: str | None = None,
        auth: Any = None,
    ) -> None:
        """Work in the process of a FastAPI or Starlette application, and end it in order: lifespan, probes and drain in one call.

        At SIGTERM readiness says 503 while requests are served for `drain_window` (ROTA_DRAIN_WINDOW, 5 seconds); jobs and open
        requests have `grace` (ROTA_GRACE, 25 seconds). `drain_token` (ROTA_DRAIN_TOKEN) opens POST /health/drain. `dashboard` is
        the path under which `app.dashboard(auth=auth)` is mounted, if it is.
        """
        from rota.integrations.asgi.attach import Attached, attach
        from rota.integrations.asgi.lifespan import worker_options
        from rota.runtime.budgets import read_budgets

        if dashboard is not None:
            from rota.dashboard.application import check_mount

            check_mount(dashboard)
        options = worker_options(worker, queues, concurrency)
        budgets = read_budgets(drain_window, grace)
        attach(api, Attached(api, self, worker=options, budgets=budgets, drain_token=drain_token, health=health))
        if dashboard is not None:
            from rota.dashboard.application import mount

            mount(api, dashboard, self.dashboard(auth=auth))

    def lifespan(
        self,
        *,
        worker: bool = True,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        drain_window: Duration | None = None,
        grace: Duration | None = None,
    ) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
        """The lifespan alone: `FastAPI(lifespan=app.lifespan())`, or inside one of yours `async with app.lifespan()(api):`."""
        from rota.integrations.asgi.lifespan import lifespan_of, worker_options
        from rota.runtime.budgets import read_budgets

        return lifespan_of(self, worker_options(worker, queues, concurrency), read_budgets(drain_window, grace))

    def dashboard(self, *, auth: Any = None, read_only: bool = False, redact: Sequence[str] = ()) -> Any:
        """The web page and its JSON API as an ASGI application: `api.mount("/rota", app.dashboard(auth="ana:secret"))`.

        `auth` is who may come in: "user:password", a token, a mapping of those to rights, or a function that is given the request
        and returns a `rota.dashboard.User`; without it, only who is on this machine. With `read_only` nobody changes anything.
        `redact` names arguments that nobody is to see, besides those that tasks redact; "*" stands for all of them.
        """
        from rota.dashboard.application import make_dashboard

        return make_dashboard(self, auth=auth, read_only=read_only, redact=redact)

    def health_router(self, *, drain_token: str | None = None) -> Any:
        """The probes alone: `api.include_router(app.health_router())`; for Starlette `routes=app.health_router().routes`."""
        from rota.integrations.asgi.health import health_router

        return health_router(self, drain_token)

    @property
    def terms(self) -> list[Term]:
        """The terms of leadership that this process has."""
        return self._leads.terms()

    async def check(self) -> None:
        """Refuse a database that this release or this process must not work on."""
        applied = await self.database.run(applied_migrations())
        check_schema(applied, migration_files(), self.settings.schema)
        check_identity(await self.database.run(compare_identity()), self.settings.environment)

    def migrate_sync(
        self, *, to: int | None = None, roles: bool = False, waiting: Callable[[str], None] = lambda _: None
    ) -> list[Migration]:
        """Create or update the tables, and return what was applied; with `roles`, also the three roles and their grants.

        `waiting` is told while a lock of someone else's is in the way.
        """
        connector = Connector(self._address(), "migrate")
        applied = migrate(connector, self.settings.schema, to=to, facts=self.facts, waiting=waiting)
        if roles:
            grant_roles(connector, self.settings.schema)
        return applied

    async def migrate(self, *, to: int | None = None, roles: bool = False) -> list[Migration]:
        return await asyncio.to_thread(lambda: self.migrate_sync(to=to, roles=roles))

    async def adopt(self) -> None:
        """Accept a restored or copied database as the one to work on."""
        await self.database.run(adopt(self.settings.environment))

    def adopt_sync(self) -> None:
        self.database.run_sync(adopt(self.settings.environment))

    async def vitals(self, *, deadline: Duration | None = None) -> Vitals:
        """How the database is, as far as it concerns a queue: tables, open transactions, connections, notifications."""
        return await self.database.run_steps(look(read_vitals(self.settings.schema), deadline))

    def vitals_sync(self, *, deadline: Duration | None = None) -> Vitals:
        return self.database.run_steps_sync(look(read_vitals(self.settings.schema), deadline))

    def members_sync(self, *, ended: bool = False) -> list[MemberView]:
        """What `await app.members()` lists."""
        return self.members.list_sync(ended=ended)

    def pool_statistics(self) -> dict[str, dict[str, int]]:
        """What psycopg's pools tell of themselves, by what they are for: the app, locks, fenced transactions, looking."""
        pools = {"app": self.database, "hold": self._held, "fence": self._leads.database, "look": self.looking}
        return {name: told for name, pool in pools.items() if (told := pool.statistics())}

    async def close(self) -> None:
        """Close what this event loop and sync callers opened. Using the app again opens it again."""
        await self._by_hand.close()
        await self._leads.database.close()
        await self._held.close()
        await self.looking.close()
        await self.database.close()

    def close_sync(self) -> None:
        self._by_hand.close_sync()
        self._leads.database.close_sync()
        self._held.close_sync()
        self.looking.close_sync()
        self.database.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_sync()

    def __repr__(self) -> str:
        return f"<Rota {self.settings.dsn or 'on the embedded PostgreSQL'} schema={self.settings.schema!r} tasks={len(self.tasks)}>"

    def _address(self) -> Dsn:
        if self.settings.dsn is not None:
            return self.settings.dsn
        with self._starting:
            if self._embedded is None:
                # most apps have a server of their own
                from rota.embedded import shared_server

                address = Dsn(shared_server().start(), source="the embedded server")
                # a database that nobody set up has nobody to run `rota migrate` either
                migrate(Connector(address, "migrate"), self.settings.schema, facts=self.facts)
                self._embedded = address
            return self._embedded
