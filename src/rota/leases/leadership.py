"""Leading something, one process at a time: to try, to wait, or to try again.

The primitive tries once. It never waits, and never tries again by itself: `wait` and `retry` are for those who ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Protocol
from uuid import UUID

from rota.clock import Deadline, Duration, seconds
from rota.errors import DatabaseUnavailable, LeadershipHeld, RotaError
from rota.facts import StandingBy
from rota.leases.control import Control, Reactions
from rota.leases.interrupt import Interrupt
from rota.leases.leads import Leads, Seat
from rota.leases.membership import Place
from rota.leases.term import Term, answered, answered_sync
from rota.leases.terms import Acquired, acquire_lease, evict_stale, stand_by
from rota.postgres.query import Query

__all__ = ["Leadership", "Policy"]

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


#: What a try for leadership asks for: an answer of the database; a pause; or the next news, for at most so many seconds.
Wish = Query[Any] | tuple[str, float]
Trying = Generator[Wish, Any, Term]


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

    def wait(self, timeout: Duration | None = None) -> Leadership:
        """The same, waiting for its turn; for at most this long, then LeadershipHeld is raised."""
        limit = None if timeout is None else seconds(timeout, "wait(timeout=...)")
        return Leadership(self.leads, self.name, limit=limit)

    def retry(self, policy: Policy) -> Leadership:
        """The same, trying again as the policy says: `rota.Retry(attempts=5, base="1s")` is one."""
        return Leadership(self.leads, self.name, policy=policy)

    async def __aenter__(self) -> Term:
        place = await self.leads.membership.enter(Reactions())
        try:
            # closed, so that a try that was cancelled is one no longer
            with (
                contextlib.closing(self._trying(place.control)) as trying,
                self.leads.seated(place.control, self.name) as seat,
            ):
                term = await _pursued(trying, place.control, seat)
        except BaseException:
            await place.leave()
            raise
        self._place, self._term = place, term
        self._interrupt = Interrupt(term.look)
        term.on_news = self._interrupt.look
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._term is not None
        assert self._place is not None
        assert self._interrupt is not None
        interrupted = self._interrupt.close(error)
        loss = self._term.loss()
        try:
            await asyncio.shield(self._term.resign())
        finally:
            await self._place.leave()
        if interrupted:
            raise loss from error

    def __enter__(self) -> Term:
        place = self.leads.membership.enter_sync(Reactions())
        try:
            with (
                contextlib.closing(self._trying(place.control)) as trying,
                self.leads.seated(place.control, self.name) as seat,
            ):
                term = _pursued_sync(trying, place.control, seat)
        except BaseException:
            place.leave_sync()
            raise
        self._place, self._term = place, term
        return term

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._term is not None
        assert self._place is not None
        loss = None if self._term.resigned else self._term.loss_sync()
        try:
            self._term.resign_sync()
        finally:
            self._place.leave_sync()
        if loss is not None and error is None:
            raise loss

    def _trying(self, control: Control) -> Trying:
        """Try until it is won, or not to be had the way it was asked for. Whoever drives it gets what it wishes for."""
        until = None if self._limit is None else Deadline.after(self._limit)
        failures = 0
        stood_as: UUID | None = None
        while True:
            try:
                return (yield from self._tried(control))
            except (LeadershipHeld, DatabaseUnavailable) as error:
                failures += 1
                if self._policy is not None:
                    pause = self._policy.pause(failures, error)
                    if pause is None:
                        raise
                    yield "pause", pause
                    continue
                if until is not None and until.left <= 0:
                    raise
                if isinstance(error, LeadershipHeld) and stood_as != control.member:
                    stood_as = control.member
                    with contextlib.suppress(DatabaseUnavailable):
                        yield stand_by(self.name, control.member)
                    self.leads.facts.emit(StandingBy(self.name, error.holder))
                left = _LOOK_SECONDS if until is None else until.left
                yield "news", min(left, _LOOK_SECONDS if isinstance(error, LeadershipHeld) else _AWAY_SECONDS)
                yield "pause", random.uniform(0, _SPREAD_SECONDS) + self.leads.burden * _BURDEN_SECONDS

    def _tried(self, control: Control) -> Trying:
        """One try. What may be in the way and is not someone who leads is moved out of it."""
        for _ in range(_MOMENTS):
            with self.leads.trying():
                found: Acquired | None = yield acquire_lease(self.name, control.member)
                if found is not None and found.won:
                    return self.leads.begun(control, self.name, found)
            if found is None:
                # our own membership is just being replaced, or someone was faster by a moment
                yield "pause", 0.05
            elif found.stale:
                yield evict_stale(self.name, found.epoch, self.leads.database.schema)
                yield "pause", 0.02
            else:
                raise LeadershipHeld(self.name, found.holder, found.host, found.since, found.epoch)
        raise DatabaseUnavailable(
            f"Whether {self.name!r} can be led could not be told: this process's own membership is not settled, or a session of "
            "the last leader cannot be ended. Try again."
        )


async def _pursued(trying: Trying, control: Control, seat: Seat) -> Term:
    """Give the try what it wishes for, until it has what it wants."""
    send: Callable[[], Wish] = lambda: next(trying)  # noqa: E731
    while True:
        try:
            wish = send()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            answer = None
            if isinstance(wish, Query):
                answer = await answered(control, wish)
            elif wish[0] == "news":
                await seat.wait(wish[1])
            else:
                await asyncio.sleep(wish[1])
        except RotaError as error:
            send = lambda error=error: trying.throw(error)  # type: ignore[misc]  # noqa: E731
        else:
            send = lambda answer=answer: trying.send(answer)  # type: ignore[misc]  # noqa: E731


def _pursued_sync(trying: Trying, control: Control, seat: Seat) -> Term:
    send: Callable[[], Wish] = lambda: next(trying)  # noqa: E731
    while True:
        try:
            wish = send()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            answer = None
            if isinstance(wish, Query):
                answer = answered_sync(control, wish)
            elif wish[0] == "news":
                seat.wait_sync(wish[1])
            else:
                time.sleep(wish[1])
        except RotaError as error:
            send = lambda error=error: trying.throw(error)  # type: ignore[misc]  # noqa: E731
        else:
            send = lambda answer=answer: trying.send(answer)  # type: ignore[misc]  # noqa: E731
