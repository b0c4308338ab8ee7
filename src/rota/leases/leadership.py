"""Leading something, one process at a time: to try, to wait, or to try again.

The primitive tries once. It never waits, and never tries again by itself: `wait` and `retry` are for those who ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import time
from contextvars import Token
from types import TracebackType
from typing import Any, Protocol, TypeVar

from rota.clock import Deadline, Duration, seconds
from rota.errors import ConfigurationError, DatabaseUnavailable, LeadershipHeld, RotaError
from rota.facts import StandingBy
from rota.leases.control import Control, Reactions
from rota.leases.interrupt import Interrupt
from rota.leases.leads import Leads, Seat
from rota.leases.membership import Membership, Place
from rota.leases.term import Term, answered, answered_sync, leading
from rota.leases.terms import acquire_lease, evict_stale, stand_by
from rota.postgres.names import check_name
from rota.postgres.query import Query

__all__ = ["Leadership", "Policy"]

T = TypeVar("T")

# The net under the news, which every beat brings as long as nobody leads; a process may wait for a great many.
_LOOK_SECONDS = 60.0
# When the database is away.
_AWAY_SECONDS = 0.5
# Those who wait do not all come at once, and who leads much already comes later.
_SPREAD_SECONDS = 0.02
_BURDEN_SECONDS = 0.04
# How many times what is in the way for a moment only is tried again.
_MOMENTS = 40


class Policy(Protocol):
    """When to try again: seconds after so many tries that ended with this error, or None for no more. `rota.Retry` is one."""

    def pause(self, failures: int, error: BaseException, /) -> float | None: ...


class Way(Protocol):
    """How a try waits. What is tried is written once, as if it were async; in a thread nothing is ever suspended."""

    async def enter(self, membership: Membership, /) -> Place: ...

    async def leave(self, place: Place, /) -> None: ...

    async def ask(self, control: Control, query: Query[T], /) -> T: ...

    async def news(self, seat: Seat, limit: float, /) -> None: ...

    async def pause(self, seconds: float, /) -> None: ...


class _InLoop:
    async def enter(self, membership: Membership) -> Place:
        return await membership.enter(Reactions())

    async def leave(self, place: Place) -> None:
        await place.leave()

    async def ask(self, control: Control, query: Query[T]) -> T:
        return await answered(control, query)

    async def news(self, seat: Seat, limit: float) -> None:
        await seat.wait(limit)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _InThread:
    async def enter(self, membership: Membership) -> Place:
        return membership.enter_sync(Reactions())

    async def leave(self, place: Place) -> None:
        place.leave_sync()

    async def ask(self, control: Control, query: Query[T]) -> T:
        return answered_sync(control, query)

    async def news(self, seat: Seat, limit: float) -> None:
        seat.wait_sync(limit)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - in a thread


def check_leader_name(name: Any) -> str:
    """A name that users may lead. Raises ConfigurationError."""
    if check_name("name", name, 200).startswith("rota."):
        raise ConfigurationError(f"name cannot be {name!r}: names that begin with 'rota.' are Rota's own.")
    return str(name)


class Leadership:
    """Leadership of a name, for the length of a `with` or `async with` block, which gives the Term.

    As it stands it tries once, and raises LeadershipHeld if someone else leads. In an `async with` block LeadershipLost is raised
    into the body when the term ends; a sync body asks `term.valid`, and is told at the end of the block.
    """

    def __init__(self, leads: Leads, name: str, *, limit: float | None = 0.0, policy: Policy | None = None) -> None:
        self.name = name
        self.leads = leads
        self._limit = limit
        self._policy = policy
        self._place: Place | None = None
        self._term: Term | None = None
        self._interrupt: Interrupt | None = None
        self._before: Token[Term | None] | None = None

    def wait(self, timeout: Duration | None = None) -> Leadership:
        """The same, waiting for its turn; for at most this long, then LeadershipHeld is raised.

        A database that is away is waited for as well; at the end of the time that is DatabaseUnavailable.
        """
        if self._policy is not None:
            raise self._either()
        limit = None if timeout is None else seconds(timeout, "wait(timeout=...)")
        return Leadership(self.leads, self.name, limit=limit)

    def retry(self, policy: Policy) -> Leadership:
        """The same, trying again as the policy says: `rota.Retry(attempts=5, base="1s")` is one."""
        if self._limit != 0:
            raise self._either()
        return Leadership(self.leads, self.name, policy=policy)

    def _either(self) -> ConfigurationError:
        return ConfigurationError(
            f"The leadership of {self.name!r} cannot both be waited for and be tried for again: who waits is told when it is free. "
            "Use .wait(timeout=...) or .retry(...)."
        )

    async def __aenter__(self) -> Term:
        self._place, self._term = await self._lead(_InLoop())
        self._interrupt = Interrupt(self._term.look)
        self._term.on_news = self._interrupt.look
        self._before = leading.set(self._term)
        return self._term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._term is not None
        assert self._place is not None
        assert self._interrupt is not None
        interrupted = self._interrupt.close(error)
        loss = self._term.loss()
        self._leave_context()
        try:
            await asyncio.shield(self._term.give_up(self._term.patience))
        finally:
            await self._place.leave()
        if interrupted:
            raise loss from error

    def __enter__(self) -> Term:
        try:
            self._lead(_InThread()).send(None)
        except StopIteration as end:
            self._place, self._term = end.value
            self._before = leading.set(self._term)
            return self._term
        raise AssertionError("a thread was suspended")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._term is not None
        assert self._place is not None
        loss = None if self._term.resigned else self._term.loss_sync()
        self._leave_context()
        try:
            self._term.give_up_sync(self._term.patience)
        finally:
            self._place.leave_sync()
        if loss is not None and error is None:
            raise loss

    def _leave_context(self) -> None:
        with contextlib.suppress(ValueError):  # entered in another task, whose context is its own
            if self._before is not None:
                leading.reset(self._before)

    async def _lead(self, way: Way) -> tuple[Place, Term]:
        """Try until it is won, or not to be had the way it was asked for."""
        until = None if self._limit is None else Deadline.after(self._limit)
        place: Place | None = None
        seat: Seat | None = None
        try:
            with contextlib.ExitStack() as seated:
                for failures in itertools.count(1):
                    try:
                        if place is None or seat is None:
                            place = await way.enter(self.leads.membership)
                            seat = seated.enter_context(self.leads.seated(place.control, self.name))
                        return place, await self._try(way, place.control)
                    except (LeadershipHeld, DatabaseUnavailable) as error:
                        if self._policy is not None:
                            pause = self._policy.pause(failures, error)
                            if pause is None:
                                raise
                            await way.pause(pause)
                        elif until is not None and until.left <= 0:
                            raise
                        else:
                            await self._wait(way, place, seat, math.inf if until is None else until.left, error)
        except BaseException:
            if place is not None:
                await way.leave(place)
            raise
        raise AssertionError("it is tried for ever")

    async def _wait(self, way: Way, place: Place | None, seat: Seat | None, left: float, error: RotaError) -> None:
        """Wait for news, or until it is worth a try without any."""
        if place is None or seat is None:
            await way.pause(min(left, _AWAY_SECONDS))
            return
        member = place.control.member
        if isinstance(error, LeadershipHeld) and seat.stands_by_as != member:
            seat.stands_by_as = member
            with contextlib.suppress(DatabaseUnavailable):
                await way.ask(place.control, stand_by(self.name, member))
            self.leads.facts.emit(StandingBy(self.name, error.holder))
        await way.news(seat, min(left, _LOOK_SECONDS if isinstance(error, LeadershipHeld) else _AWAY_SECONDS))
        await way.pause(random.uniform(0, _SPREAD_SECONDS) + self.leads.burden * _BURDEN_SECONDS)

    async def _try(self, way: Way, control: Control) -> Term:
        """One try. What may be in the way and is not someone who leads is moved out of it."""
        for _ in range(_MOMENTS):
            with self.leads.trying():
                found = await way.ask(control, acquire_lease(self.name, control.member))
                if found is not None and found.won:
                    return self.leads.begun(control, self.name, found)
            if found is None:
                # our own membership is just being replaced, or someone was faster by a moment
                await way.pause(0.05)
            elif found.stale:
                roles = await way.ask(control, evict_stale(self.name, found.epoch, self.leads.database.schema))
                if roles:
                    raise self.leads.hindered(self.name, found.epoch, roles)
                await way.pause(0.02)
            else:
                raise LeadershipHeld(self.name, found.holder, found.host, found.since, found.epoch)
        raise DatabaseUnavailable(
            f"Whether {self.name!r} can be led could not be told: this process's own membership is not settled, or a session of "
            "the last leader cannot be ended. Try again."
        )
