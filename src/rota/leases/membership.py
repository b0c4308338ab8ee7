"""The one member that this process is to the database, for all in it that hold something.

It joins for the first who needs it and leaves after the last, and tells each of them the news. A second worker is a member
of its own, as each of two workers must know what exactly is its own.

Joining and leaving wait for the database, each in a thread of its own: whoever gives up waiting goes on at once, and the
threads that others lend out may all be busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rota.leases.control import Control, Reactions
from rota.postgres.connection import check_fork

__all__ = ["Membership", "Place", "for_each"]

T = TypeVar("T")
MakeControl = Callable[[Reactions, Mapping[str, Any]], Control]


@dataclass(slots=True, eq=False)
class _Member:
    """A member that is, or is about to be. Who waits for it to join is among its guests already."""

    work: Mapping[str, Any] | None
    guests: list[Reactions] = field(default_factory=list)
    joined: Future[Control] = field(default_factory=Future)
    worker: Reactions | None = None  # whose work it is

    @property
    def gone(self) -> bool:
        return self.joined.done() and not self.joined.result().alive


class Place:
    """A place in a membership, from `Membership.enter` until `leave`."""

    def __init__(self, membership: Membership, reactions: Reactions, member: _Member) -> None:
        self.control = member.joined.result()
        self._membership = membership
        self._reactions = reactions
        self._member = member

    async def leave(self) -> None:
        """Give it up, and end the membership if it was the last; harmless the second time."""
        await asyncio.shield(asyncio.wrap_future(_in_thread(self.leave_sync)))

    def leave_sync(self) -> None:
        self._membership._leave(self._reactions, self._member)


class Membership:
    """Who this process is. Safe from any thread."""

    def __init__(self, make: MakeControl) -> None:
        self._make = make
        #: those who hear everything for as long as there is a member, and do not keep it
        self.listeners: list[Reactions] = []
        self._lock = threading.Lock()
        self._members: list[_Member] = []
        self._pid = os.getpid()

    async def enter(self, reactions: Reactions, work: Mapping[str, Any] | None = None) -> Place:
        """Join, if nobody here has yet. Raises what stands in the way; then nothing was started."""
        member = self._take(reactions, work)
        try:
            await asyncio.wrap_future(member.joined)
        except asyncio.CancelledError:
            _in_thread(lambda: self._leave(reactions, member))  # nobody else would end it, and it may take a while
            raise
        return Place(self, reactions, member)

    @contextlib.asynccontextmanager
    async def joined(self, reactions: Reactions, work: Mapping[str, Any]) -> AsyncIterator[Control]:
        """The same for the length of a block."""
        place = await self.enter(reactions, work)
        try:
            yield place.control
        finally:
            await place.leave()

    def enter_sync(self, reactions: Reactions, work: Mapping[str, Any] | None = None) -> Place:
        """`work` is what a worker shows of itself; others have none."""
        member = self._take(reactions, work)
        try:
            member.joined.result()
        except BaseException:
            self._leave(reactions, member)
            raise
        return Place(self, reactions, member)

    def _take(self, reactions: Reactions, work: Mapping[str, Any] | None) -> _Member:
        """Be a guest of a member that there is, or else of one that joins from now on."""
        with self._lock:
            if not self._members:
                self._pid = os.getpid()
            check_fork(self._pid)
            self._members = [member for member in self._members if not member.gone]
            member = next((each for each in self._members if work is None or each.work is None), None)
            if member is None:
                member = _Member(work, [reactions], worker=None if work is None else reactions)
                member.joined.set_running_or_notify_cancel()  # who waits for it may be cancelled, and others wait too
                self._members.append(member)
                _in_thread(lambda: self._join(member))
                return member
            member.guests.append(reactions)
            if member.joined.done() and not reactions.at_ease():
                member.joined.result().take_hold()  # the next beat, which would ask it, may be a while off
            if work is not None:
                member.work, member.worker = work, reactions
                if member.joined.done():
                    member.joined.result().describe(work)
            return member

    def _join(self, member: _Member) -> None:
        work = member.work
        try:
            control = self._make(for_each(self.listeners, member.guests), work or {})
            control.start()
        except BaseException as error:
            with self._lock:
                self._members.remove(member)
            member.joined.set_exception(error)
            return
        with self._lock:
            if member.work is not work:
                control.describe(member.work or {})
            deserted = not member.guests
            if deserted:
                self._members.remove(member)
            member.joined.set_result(control)
        if deserted:
            control.stop()

    def _leave(self, reactions: Reactions, member: _Member) -> None:
        with self._lock:
            if reactions not in member.guests:
                return
            member.guests.remove(reactions)
            if reactions is member.worker:
                member.worker = member.work = None  # whoever stays does not do its work
                if member.guests and member.joined.done() and not member.gone:
                    member.joined.result().describe({})
            if member.guests or not member.joined.done():
                return  # if it is yet to join, and finds nobody then, it leaves by itself
            with contextlib.suppress(ValueError):
                self._members.remove(member)
        if member.joined.exception() is None:
            member.joined.result().stop()


def _in_thread(work: Callable[[], T]) -> Future[T]:
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="rota-member", daemon=True).start()
    return answer


def for_each(listeners: Sequence[Reactions], guests: Sequence[Reactions]) -> Reactions:
    """Reactions that hand on everything to whoever is there at that moment."""

    def all_of(name: str) -> Callable[..., None]:
        def react(*news: Any) -> None:
            for guest in (*listeners, *guests):
                getattr(guest, name)(*news)

        return react

    return Reactions(
        **{field.name: all_of(field.name) for field in fields(Reactions) if field.name != "at_ease"},
        at_ease=lambda: all(guest.at_ease() for guest in (*listeners, *guests)),
    )
