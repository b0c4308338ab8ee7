"""An ASGI application with Rota around it: its lifespan, the probes and the drain, in one layer outside of all others.

Outside, since what is inside may refuse a probe (authentication), answer in its place (a catch-all route), or send a response
past the middleware (an error page): whether it was attached before or after those does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from typing import Any

from rota.app import Rota
from rota.errors import ConfigurationError
from rota.integrations.asgi.drain import Asgi, Message, Receive, Scope, Send, drained
from rota.integrations.asgi.health import HealthRoutes
from rota.integrations.asgi.lifespan import Life, WorkerOptions
from rota.runtime.budgets import Budgets
from rota.service.ending import ENDING

__all__ = ["Attached", "attach", "attached_to"]

logger = logging.getLogger("rota")

# What the application's own start-up has to clean up when it is interrupted.
_ABORT_SECONDS = 5.0


class Attached:
    """An ASGI application. `app` None: there is no Rota, and only the drain is wanted."""

    def __init__(
        self,
        inner: Asgi,
        app: Rota | None,
        *,
        worker: WorkerOptions | None,
        budgets: Budgets,
        drain_token: str | None = None,
        health: bool = True,
    ) -> None:
        self._inner = inner
        #: what a server is given: itself, or the application that it was put inside of
        self.served: Asgi = self
        self.app = app
        self.worker = worker
        self.budgets = budgets
        self.life: Life | None = None
        #: what `Life` has of the same names
        self.joins = self.leaves = False
        self._warned = False
        self._health = HealthRoutes(app, lambda: self.life, drain_token, self._wants_life) if health else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        if self.life is None and not self._warned:
            self._warned = True
            logger.warning(
                "requests come, and the lifespan of the application has not begun: %sthere is no drain at a signal. Nobody tells an "
                "application of its start that is mounted inside another, or whose server runs with --lifespan off. Attach to the "
                "outermost application, or give that one lifespan=app.lifespan(); and leave --lifespan off out",
                "no worker runs in this process, readiness says so, and " if self._wants_life() else "",
            )
        if self._health is not None and self._health.handles(scope):
            await self._health(scope, receive, send)
        else:
            await drained(self.life, self._inner, scope, receive, send)

    def _wants_life(self) -> bool:
        return self.app is not None and self.worker is not None

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.life = life = Life(self.app, self.worker, self.budgets)
        life.joins, life.leaves = self.joins, self.leaves
        await life.open()
        try:
            await _Lifespan(self._inner, life, scope, receive, send).run()
        finally:
            # also when the server has cancelled this instead of telling it to shut down
            await life.stop()
            await life.close()


class _Lifespan:
    """The lifespan of the application inside ours: it starts before the worker, and shuts down after it, so that jobs find what it
    has set up for as long as they run."""

    def __init__(self, inner: Asgi, life: Life, scope: Scope, receive: Receive, send: Send) -> None:
        self._inner = inner
        self._life = life
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = asyncio.Event()
        self._heard = False
        self._failed = False
        self._shutting_down = False
        self._over = False
        self._aborted = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        inner = loop.create_task(self._run_inner())

        def abort() -> None:
            loop.call_soon_threadsafe(self._aborted.set)

        forget = ENDING.on_begin(abort)
        try:
            await self._wait_for(inner, self._started, self._aborted)
            forget()
            if not self._started.is_set() and not inner.done():
                await self._abort(inner)
            elif inner.done() and not self._started.is_set() and not self._failed:
                await self._without(inner)
            else:
                await self._ended(inner)
        except asyncio.CancelledError:
            inner.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await inner
            raise
        finally:
            forget()

    async def _ended(self, inner: asyncio.Task[None]) -> None:
        try:
            await inner
        except Exception:
            self._life.failed = True
            if self._over or not self._shutting_down:
                raise
            # a server would take the silence for that of an application without a lifespan
            await self._tell({"type": "lifespan.shutdown.failed", "message": traceback.format_exc()})

    async def _run_inner(self) -> None:
        await self._inner(self._scope, self._hear, self._tell)

    async def _hear(self) -> Message:
        message = await self._receive()
        self._heard = True
        if message["type"] == "lifespan.shutdown":
            await self._life.stop()
            self._shutting_down = True
        return message

    async def _tell(self, message: Message) -> None:
        if self._aborted.is_set() and not self._started.is_set():
            return
        match message["type"]:
            case "lifespan.startup.complete":
                self._started.set()
                self._life.start()
            case "lifespan.startup.failed":
                self._failed = True
            case "lifespan.shutdown.complete" | "lifespan.shutdown.failed":
                self._over = True
                self._life.failed = message["type"] == "lifespan.shutdown.failed"
                await self._life.close()
        await self._send(message)

    async def _wait_for(self, inner: asyncio.Task[None], *events: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait([inner, *waits], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _abort(self, inner: asyncio.Task[None]) -> None:
        """A signal during start-up: interrupt it, and let the server go through its own end, which it has been told of.

        That is why it is told that the start is complete: a failed one would end the supervisors of some servers as well.
        """
        logger.info("interrupting the start-up of the application (%s)", ENDING.reason)
        inner.cancel()
        await asyncio.wait([inner], timeout=_ABORT_SECONDS)
        await self._life.close()
        await self._send({"type": "lifespan.startup.complete"})
        await self._receive()
        await self._send({"type": "lifespan.shutdown.complete"})

    async def _without(self, inner: asyncio.Task[None]) -> None:
        """The application knows nothing of lifespans, as is its right."""
        if (error := inner.exception()) is not None:
            logger.debug("the application has no lifespan: %r", error)
        if not self._heard:
            await self._receive()
        self._life.start()
        await self._send({"type": "lifespan.startup.complete"})
        await self._receive()
        await self._life.stop()
        await self._life.close()
        await self._send({"type": "lifespan.shutdown.complete"})


def attach(api: Any, attached: Attached) -> None:
    """Put it around a FastAPI or Starlette application, which stays the object that is served."""
    if not hasattr(api, "build_middleware_stack") or not hasattr(api, "router"):
        raise ConfigurationError(
            f"app.attach() takes a FastAPI or Starlette application, and {type(api).__name__} is none. For another ASGI application "
            "start it with `rota serve`, or give its own hooks app.lifespan() and rota.DrainMiddleware."
        )
    if attached_to(api) is not None:
        raise ConfigurationError(
            "A Rota is attached to this application already: its probes, drain and worker would be there twice. Call attach() once; "
            "for a second Rota in the same process, give its app.lifespan() to the lifespan of the application."
        )
    if api.middleware_stack is not None:
        raise ConfigurationError(
            "This application has started already, so nothing can be attached to it any more. Call attach() where the "
            "application is made, beside its routes."
        )
    build = api.build_middleware_stack

    def build_around() -> Asgi:
        attached._inner = build()
        return attached

    api.build_middleware_stack = build_around
    attached.served = api
    api._rota = attached


def attached_to(api: Any) -> Attached | None:
    """What is attached to this application, if anything is."""
    return api if isinstance(api, Attached) else getattr(api, "_rota", None)
