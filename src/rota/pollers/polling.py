"""All pollers of one worker, from `start` until `drain`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

from rota.clock import Deadline
from rota.errors import ConfigurationError, DatabaseUnavailable, RotaError
from rota.facts import Facts, RowLost
from rota.leases.control import Control, Reactions
from rota.pollers.claim import ClaimedRow
from rota.pollers.declare import declare_pollers
from rota.pollers.definition import PollerDefinition
from rota.pollers.due import Plan
from rota.pollers.execute import Executor, Outcome
from rota.pollers.plan import plan_of
from rota.pollers.rescue import rescue_rows
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Finish
from rota.pollers.source import PollSource
from rota.pollers.tidy import tidy
from rota.postgres.notify import poll_channel
from rota.postgres.pool import Database
from rota.service.consume import Consumer

__all__ = ["Polling"]

_RESCUE_SECONDS = 5.0  # the net under the rescue that follows at once when we end a member
_TIDY_SECONDS = 600.0
_TIDY_MORE_SECONDS = 1.0  # while there is more of it


class Polling:
    """Keeps the pollers of one worker polling. `reactions` belong into the control thread."""

    name = "pollers"

    def __init__(self, database: Database, definitions: Sequence[PollerDefinition], facts: Facts) -> None:
        self._definitions = definitions
        self._facts = facts
        self._loop = asyncio.get_running_loop()
        handlers = sum(definition.concurrency for definition in definitions)
        self._sessions = Sessions(database, pollers=len(definitions), handlers=handlers)
        self._channel = poll_channel(database.schema)
        self._control: Control | None = None
        self._plans: list[Plan] = []
        self._parts: dict[str, _Part] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self.reactions = Reactions(
            on_poll=lambda name: self._in_loop(self._wake, name),
            on_ended=lambda members: self._in_loop(self._ended.set),
            on_identity_lost=lambda member: self._in_loop(self._drop, member),
            at_ease=lambda: not self._definitions or self._rests,
        )

    @contextlib.asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Have the pollers fitted to their tables, and their connections, for the length of a block.

        Raises ConfigurationError with all that does not fit, before anything starts.
        """
        try:
            await self._prepare()
            yield
        finally:
            await self._sessions.close()

    async def _prepare(self) -> None:
        problems = []
        self._plans.clear()  # of a start that did not succeed
        for definition in self._definitions:
            try:
                self._plans.append(await plan_of(self._sessions.looking, definition))
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("\n".join(problems))
        if self._plans:
            await self._sessions.settling.run(declare_pollers(self._definitions))

    def start(self, control: Control) -> None:
        self._control = control
        for plan in self._plans:
            part = _Part(plan, self._sessions, lambda: self.control, self._stopping.is_set, self._facts)
            self._parts[plan.definition.name] = part
            part.consumer.start()
        if self._plans:
            self._tasks = [asyncio.create_task(loop) for loop in (self._rescue(), self._tidy())]

    @property
    def control(self) -> Control:
        assert self._control is not None, "pollers poll for a member"
        return self._control

    @property
    def _rests(self) -> bool:
        consumers = [part.consumer for part in self._parts.values()]
        return bool(consumers) and all(consumer.paused and consumer.idle for consumer in consumers)

    @property
    def finished(self) -> int:
        return sum(part.consumer.finished for part in self._parts.values())

    async def failure(self) -> None:
        """Return never, or raise what made one of them give up."""
        waiting = [*self._tasks, *(asyncio.create_task(part.consumer.failure()) for part in self._parts.values())]
        if not waiting:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waiting[len(self._tasks) :]:
                task.cancel()

    async def empty(self) -> list[str]:
        """Return when a look of each poller, made with nothing at hand, found nothing, or was refused."""
        for part in self._parts.values():
            while True:
                await part.consumer.wait_idle()
                before = part.consumer.finished
                await part.source.found_nothing()
                if part.consumer.idle and part.consumer.finished == before:
                    break
        return [why for part in self._parts.values() if (why := part.source.hindered_by) is not None]

    async def drain(self, deadline: Deadline) -> None:
        """Stop in the one order that loses nothing: what was not begun is released at once."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(part.consumer.drain(deadline) for part in self._parts.values()))
        for part in self._parts.values():
            part.executor.close()

    def pause(self) -> None:
        """Poll for nothing until `resume`: what runs goes on, and what was not begun is released."""
        for part in self._parts.values():
            part.consumer.pause()

    def resume(self) -> None:
        for part in self._parts.values():
            part.consumer.resume()

    def hurry(self) -> None:
        """Do not wait for handlers that have not ended."""
        for part in self._parts.values():
            part.consumer.hurry()

    def _wake(self, name: str) -> None:
        for part in self._parts.values() if not name else filter(None, [self._parts.get(name)]):
            part.source.wake()

    def _drop(self, member: UUID) -> None:
        """A peer has ended us: what we held is void."""
        for part in self._parts.values():
            part.consumer.drop()
            part.source.forget()

    async def _rescue(self) -> None:
        """Take over from ended members: at once when we ended one, and now and then, in case a rescuer died at it."""
        while True:
            self._ended.clear()
            with contextlib.suppress(DatabaseUnavailable):  # the claim says so already; the next round comes
                while lost := await self._sessions.settling.run(rescue_rows(self._channel)):
                    for row in lost:
                        self._facts.emit(RowLost(row.poller, row.key, row.member, row.losses, row.parked))
                        self._wake(row.poller)
                for part in self._parts.values():
                    await part.source.give_back_unknown(part.consumer.held())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESCUE_SECONDS * random.uniform(0.8, 1.2)):
                    await self._ended.wait()

    async def _tidy(self) -> None:
        """Forget what is remembered of rows that are gone."""
        more = False
        while True:
            await asyncio.sleep(_TIDY_MORE_SECONDS if more else _TIDY_SECONDS * random.uniform(0.5, 1.5))
            more = False
            for plan in self._plans:
                with contextlib.suppress(RotaError):  # it comes again
                    more = await self._sessions.settling.run(tidy(plan)) or more

    def _in_loop(self, call: Callable[..., None], *given: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody cares any more
            self._loop.call_soon_threadsafe(call, *given)


class _Part:
    """One poller at work."""

    def __init__(
        self,
        plan: Plan,
        sessions: Sessions,
        control: Callable[[], Control],
        stopping: Callable[[], bool],
        facts: Facts,
    ) -> None:
        finish = Finish(plan)
        self.executor = Executor(
            plan,
            finish,
            transactions=sessions.transactions,
            stopping=stopping,
            facts=facts,
            occupied=lambda body: self.consumer.occupy(body),
        )
        self.source = PollSource(plan, finish, sessions, control=control, failed=self.executor.failed, facts=facts)
        self.consumer: Consumer[ClaimedRow, Outcome] = Consumer(
            self.source,
            self.executor.run,
            self.executor.broken,
            concurrency=plan.definition.concurrency,
            facts=facts,
            part=f"poller {plan.definition.name}",
        )
