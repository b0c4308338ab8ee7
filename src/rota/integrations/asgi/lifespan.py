"""One life of a web process: from the server's start to its end, with the worker beside the requests.

    opened     the signals are taken; the application's own start-up follows
    started    it serves, and the worker starts in the background: a database that is away keeps nobody from being served
    ending     from the signal on: the worker drains at once, while requests are still served
    stopped    the worker has ended, and holds nothing; the application's own shutdown follows
    closed     the pool, last

The way back is the same whoever asks for it: a signal, the server's shutdown, or a server that skips its shutdown and just
cancels what runs. The worker's drain begins at the signal and not at the shutdown, which an open stream may put off.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import random
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rota.app import Rota
from rota.clock import boottime
from rota.errors import ConfigurationError, LeadershipHeld, LeadershipLost, RotaError, SchemaMismatch
from rota.facts import (
    DatabaseAwaited,
    Ended,
    EndingBegan,
    EndingHurried,
    Facts,
    JobStuck,
    ResourceAwaited,
    StageFailed,
    StageStopped,
    WorkerStarted,
)
from rota.integrations.asgi.signals import HOOK, Unhooked, server_config
from rota.integrations.logging import log_facts
from rota.runtime.budgets import Budgets
from rota.runtime.health import health_of
from rota.runtime.process import bodies_in_threads, left_behind
from rota.service.ending import ENDING
from rota.service.loop import leave_refusing
from rota.service.stages import stopped
from rota.service.watchdog import watched

__all__ = ["Exchange", "Life", "WorkerOptions", "life_of", "lifespan_of", "worker_options"]

logger = logging.getLogger("rota")

# Beyond its grace, what a worker may take to cancel bodies, write down what it knows, and leave.
_AFTER_SECONDS = 10.0
# And when it is cancelled although it should have ended by then.
_MOMENT_SECONDS = 3.0
_POOL_SECONDS = 5.0
# Between tries of a worker that cannot start: someone may be about to migrate the schema.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 15.0
# What no second try would change.
_FOR_GOOD = (ConfigurationError, LeadershipHeld, LeadershipLost)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    queues: Sequence[str] | None = None
    concurrency: int | None = None


def worker_options(worker: bool, queues: Sequence[str] | None, concurrency: int | None) -> WorkerOptions | None:
    return WorkerOptions(queues, concurrency) if worker else None


class Exchange(Protocol):
    """A request or connection under way."""

    #: whether it lasts until someone ends it: a stream of events, a WebSocket
    endless: bool

    async def end(self) -> None:
        """End a stream in order, so that its client asks elsewhere."""

    def cut(self) -> None:
        """Do not wait for it any longer."""


class Life:
    """Belongs to the event loop of the server."""

    def __init__(self, app: Rota | None, worker: WorkerOptions | None, budgets: Budgets) -> None:
        self.app = app
        self.budgets = budgets
        self.worker = worker if app is not None else None
        self.facts = app.facts if app is not None else Facts()
        self.exchanges: set[Exchange] = set()
        #: why the worker does not work, in the word for readiness; None when it does, or none is wanted
        self.trouble: str | None = "starting"
        self.started = False
        #: whether others serve on the same port already
        self.joins = False
        #: whether the server exits without bodies that are still in their threads
        self.leaves = False
        #: whether the application's own shutdown has failed
        self.failed = False
        #: what could not be ended in order, in words
        self.left, forget = left_behind(self.facts)
        self._stuck: list[str] = []
        self._awaited = False
        self._closed = False
        self.loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._working: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._undo: list[Callable[[], object]] = [forget, self.facts.subscribe(self._on_stuck, JobStuck)]

    async def open(self) -> None:
        """Take the signals. Does not wait for the database, and neither does anything else before the server serves."""
        if self.app is not None:
            _LIVES[self.app] = self
            self.app.serves = True
            self._undo.append(lambda: setattr(self.app, "serves", False))
            self._undo.append(log_facts(self.facts))
            self._undo.append(self.facts.subscribe(self._on_awaited, DatabaseAwaited, ResourceAwaited))
            self._undo.append(self.facts.subscribe(self._on_working, WorkerStarted))
            health = health_of(self.app)
            health.expect_worker = self.worker is not None
            self._undo.append(health.close)
            if self.worker is None:  # a worker watches its loop itself
                watching = contextlib.ExitStack()
                watching.enter_context(watched(self.facts))
                self._undo.append(watching.close)
            leave = functools.partial(_leave, self.app)
            atexit.register(leave)
            self._undo.append(lambda: atexit.unregister(leave))
        try:
            self._undo.append(HOOK.enter(self.window))
        except Unhooked as why:
            logger.log(
                logging.INFO if why.expected else logging.WARNING,
                "no drain window at a signal: %s. Call POST /health/drain before it, or wait in preStop",
                why,
            )
        self._undo.append(ENDING.on_begin(lambda: self._soon(self._begin)))
        self._undo.append(ENDING.on_hurry(lambda: self._soon(self._hurry)))

    def start(self) -> None:
        """The application has started, and is served from now on: start the worker, and do not wait for it."""
        self.started = True
        if self.worker is not None and not ENDING.begun:
            self._working = self.loop.create_task(self._work(self.worker))
        else:
            self.trouble = None
        config = server_config()
        if config is not None and getattr(config, "timeout_graceful_shutdown", 0) is None and not config.reload:
            logger.warning(
                "uvicorn waits for open requests without a limit of its own; they are cut off %g s after the signal. Start it with "
                "--timeout-graceful-shutdown %d to be sure also of those that cannot be cancelled",
                self.budgets.grace,
                self.budgets.graceful_timeout,
            )

    def window(self) -> float:
        """How long to serve after the signal: not at all before it is served."""
        return self.budgets.window if self.started else 0.0

    def take(self, exchange: Exchange) -> None:
        """Have this ended when the time has come."""
        self.exchanges.add(exchange)
        if exchange.endless and self._began is not None:
            self._end_later(exchange)

    def drop(self, exchange: Exchange) -> None:
        self.exchanges.discard(exchange)

    async def stop(self) -> None:
        """Await the end of the worker, under its deadline; the first step on the way back if no signal was."""
        self._begin_stop()
        working = self._working
        if working is None or self._awaited:
            return
        self._awaited = True
        began = boottime()
        grace = max(0.0, (self._began or began) + self.budgets.grace - began)
        await asyncio.wait([working], timeout=grace + _AFTER_SECONDS)
        if not working.done():
            working.cancel()
            await asyncio.wait([working], timeout=_MOMENT_SECONDS)
        if working.done():
            self.facts.emit(StageStopped("worker", boottime() - began))
        else:
            error = TimeoutError(f"it was not done within {grace + _AFTER_SECONDS:g} s")
            self.facts.emit(StageFailed("worker", error))

    async def close(self) -> None:
        """Close the pool, and give the signals back. Harmless the second time."""
        if self._closed:
            return
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        if self.app is not None:
            await stopped(self.facts, "pool", self.app.close(), within=_POOL_SECONDS)
            if refusing := leave_refusing():
                error = TimeoutError(f"{refusing} coroutine(s) refuse to be cancelled")
                self.facts.emit(StageFailed("bodies", error))
        if not self.left and not self.failed:
            self.facts.emit(Ended(boottime() - (self._began or boottime())))
        if not self.leaves and (stuck := bodies_in_threads()):
            logger.error(
                "%s%s. Nothing can end a thread: a server that exits as Python does, unlike uvicorn, which dies of its signal, exits "
                "only when they return, or is killed. What they ran was handed back, and may run elsewhere meanwhile. Serve by "
                '`rota serve`, which leaves without them, or give such a task executor="process"',
                "; ".join(stuck),
                f": {', '.join(self._stuck)}" if self._stuck else "",
            )
        while self._undo:
            self._undo.pop()()
        if self.app is not None and _LIVES.get(self.app) is self:
            del _LIVES[self.app]

    def _soon(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all is over
            self.loop.call_soon_threadsafe(call)

    def _begin(self) -> None:
        self.facts.emit(EndingBegan(ENDING.reason or ""))
        self._begin_stop()
        for exchange in [each for each in self.exchanges if each.endless]:
            self._end_later(exchange)
        self._later(max(self.budgets.window, self.budgets.grace), self._cut)

    def _begin_stop(self) -> None:
        if self._began is not None:
            return
        self._began = boottime()
        self._stop_working()

    def _stop_working(self) -> None:
        if self._working is not None and self.app is not None and not self.app.stop():
            self._working.cancel()  # still starting, or between two tries: there is nothing to drain

    def _hurry(self) -> None:
        self.facts.emit(EndingHurried())
        self._stop_working()
        for exchange in list(self.exchanges):
            if exchange.endless:
                self._keep(self.loop.create_task(exchange.end()))
        self._cut()

    def _cut(self) -> None:
        for exchange in list(self.exchanges):
            if not exchange.endless:
                exchange.cut()

    def _end_later(self, exchange: Exchange) -> None:
        """In the second half of the window, when the balancer has had time to look, and each at a moment of its own, so that not
        all clients come back at the same one."""
        assert self._began is not None
        left = self._began + self.window() * random.uniform(0.5, 1.0) - boottime()
        self._later(max(0.0, left), lambda: self._keep(self.loop.create_task(exchange.end())))

    def _later(self, wait: float, call: Callable[[], None]) -> None:
        self._timers.add(self.loop.call_later(wait, call))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, options: WorkerOptions) -> None:
        """Keep a worker running. A web process goes on without it, and says so."""
        assert self.app is not None
        pause = _SHORTEST_PAUSE
        while True:
            try:
                await self.app.work(options.queues, options.concurrency, grace=self.budgets.grace)
                return
            except _FOR_GOOD as error:
                self.trouble = "worker"
                logger.error(
                    "the worker of this process does not run, and will not: %s This process serves on, and is not ready until it is "
                    "started anew",
                    error,
                )
                return
            except Exception as error:
                self.trouble = "schema" if isinstance(error, SchemaMismatch) else "worker"
                logger.error(
                    "the worker of this process does not run: %s It is started again in %.0f s; until then this process is not ready",
                    error,
                    pause,
                    exc_info=None if isinstance(error, RotaError) else error,
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _on_stuck(self, fact: JobStuck) -> None:
        self._stuck.append(f"job {fact.job} ({fact.task})")

    def _on_awaited(self, fact: DatabaseAwaited | ResourceAwaited) -> None:
        if isinstance(fact, DatabaseAwaited):
            self.trouble = "database"
        elif self.trouble is not None:  # one that works on waits in a child, for a job
            self.trouble = "starting"

    def _on_working(self, _: WorkerStarted) -> None:
        self.trouble = None
        if self._began is not None:
            # it was cancelled while it started, and what it awaited at that moment has swallowed that
            self._soon(self._stop_working)


# Those that are now, for the pieces that are given to a framework apart from each other.
_LIVES: weakref.WeakKeyDictionary[Rota, Life] = weakref.WeakKeyDictionary()


def life_of(app: Rota) -> Life | None:
    return _LIVES.get(app)


def lifespan_of(
    app: Rota, worker: WorkerOptions | None, budgets: Budgets
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan for a framework: `FastAPI(lifespan=app.lifespan())`."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        life = Life(app, worker, budgets)
        await life.open()
        try:
            life.start()
            yield
        except BaseException:
            life.failed = True
            raise
        finally:
            await life.stop()
            await life.close()

    return lifespan


def _leave(app: Rota) -> None:
    """At the end of a process whose server has skipped the shutdown: leave, so that others take over at once."""
    for working in app.workings:
        if working.control is not None:
            working.control.stop()
