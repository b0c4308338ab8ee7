"""One run of a worker in this process: started in order, and stopped on the way back.

The order is: the database, its schema, the resources that bodies share, the tables of pollers, projections, the member and its
listener, the limits and schedules that code declares, leaderships, pollers, and jobs last, when everything they rely upon is
there. At a stop nothing new is begun anywhere from the first moment: leaderships are resigned, and jobs and pollers stop
claiming, at the same time and under one deadline. Only when all of them have ended does the member leave, as one that left while
it still held something would look dead to its peers. The resources are closed after that, and the pool is its owner's to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from rota.clock import Duration
from rota.errors import DatabaseUnavailable, ResourceUnavailable
from rota.facts import DatabaseAwaited, Facts, ResourceAwaited, WishHeard
from rota.jobs.worker import Worker
from rota.leases.control import Control
from rota.leases.members import Wish
from rota.leases.singletons import Singletons
from rota.pollers.polling import Polling
from rota.projections.projecting import Projecting
from rota.service.stages import Stages
from rota.service.watchdog import watched

__all__ = ["Working"]

# Between tries to start while the database is away.
_SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
# And for a resource, which may be a service of somebody else's that is in trouble already.
_LONGEST_RESOURCE_PAUSE = 10.0


Enter = Callable[[str, AbstractAsyncContextManager[None]], Awaitable[object]]
Wait = Callable[[ResourceUnavailable], Awaitable[None]]


class Working:
    """A worker, from its start to its end. Belongs to the event loop it is made on."""

    def __init__(
        self,
        facts: Facts,
        worker: Worker,
        polling: Polling,
        projecting: Projecting,
        singletons: Singletons,
        *,
        reach: Callable[[], Awaitable[object]],
        check: Callable[[], Awaitable[object]],
        resources: Callable[[Enter, Wait | None], Awaitable[None]],
        member: Callable[[], AbstractAsyncContextManager[Control]],
        limits: Callable[[], Awaitable[object]],
        declared: Callable[[], AbstractAsyncContextManager[None]],
        exits: Callable[[str], object] | None,
    ) -> None:
        self._facts = facts
        self._worker = worker
        self._polling = polling
        self._projecting = projecting
        self._singletons = singletons
        self._reach = reach
        self._check = check
        self._resources = resources
        self._member = member
        self._limits = limits
        self._declared = declared
        self._exits = exits
        self._loop = asyncio.get_running_loop()
        #: its membership, once it has joined
        self.control: Control | None = None
        self._wish: Wish | None = None
        self._drains = False

    @property
    def state(self) -> Literal["starting", "running", "quiet", "stopping"]:
        if self._worker.stopping:
            return "stopping"
        if self._worker.paused:
            return "quiet"
        return "running" if self._worker.started else "starting"

    @property
    def finished(self) -> int:
        """How many jobs it has run to their end."""
        return self._worker.finished

    @property
    def slots(self) -> int:
        """How many jobs it runs at once."""
        return self._worker.slots

    @property
    def running(self) -> int:
        """How many of its slots are taken."""
        return self._worker.running

    @property
    def projections(self) -> dict[str, dict[str, Any]]:
        """How the projections stand that it reads for."""
        return self._projecting.told()

    async def run(self, *, drain: bool, grace: Duration) -> None:
        """Work until stopped or cancelled, or with `drain` until there is nothing left.

        It waits for a database that is away when it starts, and for a resource that cannot be opened, but not with `drain`:
        whoever calls that expects an end.
        """
        stages = Stages(self._facts)
        self._drains = drain
        with watched(self._facts):
            try:
                control = await self._started(stages, patient=not drain)
                if self._wish is not None:  # of who was asked while it started
                    self._loop.call_soon(self._heed, self._wish)
                await self._worker.run(control, (self._singletons, self._polling), drain=drain, grace=grace)
            finally:
                await stages.stop()

    def stop(self) -> bool:
        """Ask it to stop; asked again, it stops waiting for bodies. False while it starts: then it is to be cancelled."""
        if self.control is None:
            return False
        self._worker.stop()
        return True

    def wished(self, wish: Wish | None) -> None:
        """Do what someone wants of this process, or what it did before. In the control thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: all is over
            self._loop.call_soon_threadsafe(self._heed, wish)

    def _heed(self, wish: Wish | None) -> None:
        if self.control is None or self._worker.stopping:
            self._wish = wish  # it starts, and heeds it then
            return
        if wish is None and not self._worker.paused:
            return
        self._facts.emit(WishHeard(self.control.member, wish.what if wish else None, wish.by if wish else None))
        if wish is None:
            self._worker.resume()
        elif wish.what == "drain" and self._exits is not None:
            self._exits(f"drain, asked for by {wish.by}")
        elif wish.what == "drain" or self._drains:
            # one that rests would never see the end of its work, and whoever started it waits for that
            self.stop()
        else:
            self._worker.pause()

    async def _started(self, stages: Stages, *, patient: bool) -> Control:
        reasons, pause = set[str](), _SHORTEST_PAUSE
        while True:
            try:
                return await self._start(stages, self._wait() if patient else None)
            except DatabaseUnavailable as error:
                await stages.stop()
                if not patient:
                    raise
                # each reason once: that nobody answers is one story, that nobody is let in another
                if str(error) not in reasons:
                    reasons.add(str(error))
                    self._facts.emit(DatabaseAwaited(str(error)))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _wait(self) -> Wait:
        """How to wait for a resource that cannot be opened: longer each time, and telling each reason once."""
        reasons, pause = set[str](), _SHORTEST_PAUSE

        async def wait(unavailable: ResourceUnavailable) -> None:
            nonlocal pause
            if str(unavailable) not in reasons:
                reasons.add(str(unavailable))
                self._facts.emit(ResourceAwaited(str(unavailable)))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_RESOURCE_PAUSE, pause * 2)

        return wait

    async def _start(self, stages: Stages, wait: Wait | None) -> Control:
        await stages.run("database", self._reach)
        await stages.run("schema", self._check)
        # before joining: nobody counts on a member that cannot run anything yet, and closing them comes when it has left
        await self._resources(stages.enter, wait)
        await stages.enter("connections of pollers", self._polling.prepared())
        if self._projecting.definitions:
            await stages.enter("projections", self._projecting.prepared())
        control = await stages.enter("member", self._member())
        # after joining: whoever looks for those who declare this finds us
        await stages.run("limits", self._limits)
        await stages.enter("schedules", self._declared())
        await stages.run("leaderships", self._singletons.start)
        await stages.run("pollers", lambda: self._polling.start(control))
        self.control = control
        return control
