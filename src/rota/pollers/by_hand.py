"""What polling by hand keeps from one call to the next: connections, plans, and a place among the members.

There is one of each per event loop, as connections belong to one; sync callers share a loop in a thread of its own. The first call
opens them, and they are closed with the app, with the loop, or a while after the last call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from rota.errors import RotaError
from rota.leases.control import Control, Reactions
from rota.leases.membership import Membership, Place
from rota.pollers.aside import Aside
from rota.pollers.declare import declare_pollers
from rota.pollers.definition import PollerDefinition
from rota.pollers.due import Plan
from rota.pollers.plan import plan_of
from rota.pollers.sessions import Sessions
from rota.pollers.shape import TableMark, mark_table
from rota.postgres.pool import Database

__all__ = ["ByHand", "Hand"]

T = TypeVar("T")

# For how long nothing is asked for until everything is closed: a process that polls once a day need not be a member all day.
_IDLE_SECONDS = 60.0


class Hand(NamedTuple):
    """What one round works with."""

    plan: Plan
    sessions: Sessions
    control: Control


class ByHand:
    """Keeps what polling by hand needs, for one app. Safe from any thread and any loop."""

    def __init__(
        self, database: Database, membership: Membership, definitions: Callable[[], Sequence[PollerDefinition]]
    ) -> None:
        self._database = database
        self._membership = membership
        self._definitions = definitions
        self._kept: WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = WeakKeyDictionary()
        self._aside: Aside | None = None
        self._lock = threading.Lock()

    @contextlib.asynccontextmanager
    async def round(self, definition: PollerDefinition) -> AsyncIterator[Hand]:
        """What a round of this poller works with, which it has declared."""
        async with self._planned(definition, declare=True) as (kept, plan):
            yield Hand(plan, kept.sessions, await kept.control())

    @contextlib.asynccontextmanager
    async def look(self, definition: PollerDefinition) -> AsyncIterator[tuple[Plan, Database]]:
        """What is needed to look at the poller's rows, which changes nothing."""
        async with self._planned(definition, declare=False) as (kept, plan):
            yield plan, kept.sessions.looking

    @contextlib.asynccontextmanager
    async def _planned(self, definition: PollerDefinition, *, declare: bool) -> AsyncIterator[tuple[_Kept, Plan]]:
        while True:
            with self._of_this_loop().used() as kept:
                plan = await kept.plan(definition, declare=declare)
                if plan is not None:
                    yield kept, plan
                    return

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[Database]:
        """Connections for looks at tables, with the settings that a process gets which starts now."""
        sessions = Sessions(self._database, pollers=1, handlers=1)
        try:
            yield sessions.looking
        finally:
            await sessions.close()

    def call(self, call: Coroutine[Any, Any, T], verb: str) -> T:
        """Run it to its end, for a sync caller."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            call.close()
            raise RotaError(f"{verb}_sync() cannot run inside an event loop. Write: await poller.{verb}(...)")
        with self._lock:
            if self._aside is None:
                self._aside = Aside()
                self._at_exit = weakref.finalize(self, self._aside.end)
            begun = self._aside.begin(call)
        return begun.result()

    async def close(self) -> None:
        """Close what this loop and sync callers opened; what is being polled first comes to its end, which is not waited for."""
        kept = self._kept.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.close()
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        self._end_of_closed_loops()
        with self._lock:
            aside, self._aside = self._aside, None
        if aside is not None:
            self._at_exit.detach()
            aside.end()

    def _of_this_loop(self) -> _Kept:
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None or kept.over:
            self._end_of_closed_loops()
            definitions = self._definitions()
            handlers = sum(definition.concurrency for definition in definitions)
            sessions = Sessions(self._database, pollers=len(definitions), handlers=handlers)
            kept = self._kept[loop] = _Kept(sessions, self._membership)
            kept.keeping.add_done_callback(lambda _: self._forget(loop, kept))
        return kept

    def _end_of_closed_loops(self) -> None:
        """Of loops that were closed by hand: a runner has what is kept closed with its loop."""
        for loop in [loop for found in self._kept.keyrefs() if (loop := found()) is not None and loop.is_closed()]:
            if (kept := self._kept.pop(loop, None)) is not None:
                kept.end()

    def _forget(self, loop: asyncio.AbstractEventLoop, kept: _Kept) -> None:
        """It is closed. It knows its loop, so that nothing else would free the two."""
        if self._kept.get(loop) is kept:
            del self._kept[loop]


class _Kept:
    """What is kept for one event loop, by a task that closes it when its time has come."""

    def __init__(self, sessions: Sessions, membership: Membership) -> None:
        self.sessions = sessions
        #: nobody may begin with it any more
        self.over = False
        self._membership = membership
        self._entering: asyncio.Task[Place] | None = None
        self._plans: dict[str, tuple[str | None, Plan]] = {}
        self._planning = asyncio.Lock()
        self._users = 0
        self._changed = asyncio.Event()
        self.keeping = asyncio.create_task(self._keep())

    @contextlib.contextmanager
    def used(self) -> Iterator[_Kept]:
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            self._changed.set()

    async def plan(self, definition: PollerDefinition, *, declare: bool) -> Plan | None:
        """The poller, fitted to its table; None when that is not what it was, which ends all this.

        Sessions have statements prepared for the table that they knew.
        """
        mark = await self._mark(definition)
        if definition.name not in self._plans or (declare and not mark.declared):
            async with self._planning:  # of many who come at once, one plans
                mark = await self._mark(definition)  # before: what is changed meanwhile, the next call sees
                if definition.name not in self._plans:
                    self._plans[definition.name] = mark.digest, await plan_of(self.sessions.looking, definition)
                if declare and not mark.declared:
                    await self.sessions.settling.run(declare_pollers([definition]))
        digest, plan = self._plans[definition.name]
        if digest == mark.digest and plan.definition is definition:
            return plan
        self.over = True
        return None

    async def _mark(self, definition: PollerDefinition) -> TableMark:
        return await self.sessions.looking.run(mark_table(definition.table, poller=definition.name))

    async def control(self) -> Control:
        """The control of the member that we are; there is one by then."""
        entering = self._entering
        if entering is None or (entering.done() and not _is_member(entering)):
            entering = self._entering = asyncio.create_task(self._membership.enter(Reactions()))
        return (await asyncio.shield(entering)).control

    async def close(self) -> None:
        """Be closed as soon as nobody uses it."""
        self.over = True
        self._changed.set()
        if not self._users:
            await asyncio.shield(self.keeping)

    def end(self) -> None:
        """The same when its loop is closed, and nothing runs in it any more."""
        if self._entering is not None and self._entering.done() and _is_member(self._entering):
            self._entering.result().leave_sync()
        self.sessions.close_sync()

    async def _keep(self) -> None:
        try:
            await self._needed()
        except (
            asyncio.CancelledError
        ):  # the loop ends, and has cancelled all that runs in it; those give back what they took
            self.over = True
            while self._users:
                self._changed.clear()
                await self._changed.wait()
            await self._leave()
            await self.sessions.close_with_loop()
        else:
            await self._leave()
            await self.sessions.close()

    async def _needed(self) -> None:
        """Return when nobody uses it, and it is over or was not used for a while."""
        while self._users or not self.over:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._users else _IDLE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                self.over = self._users == 0

    async def _leave(self) -> None:
        if self._entering is not None:
            with contextlib.suppress(Exception):  # it never entered
                await (await self._entering).leave()


def _is_member(entering: asyncio.Task[Place]) -> bool:
    return not entering.cancelled() and entering.exception() is None and entering.result().control.alive
