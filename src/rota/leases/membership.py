"""The one member that this process is to the database, for all in it that hold something.

It joins for the first who needs it and leaves after the last, and tells each of them the news. A second worker is a member
of its own, as each of two workers must know what exactly is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rota.errors import RotaError
from rota.leases.control import Control, Reactions
from rota.postgres.connection import check_fork

__all__ = ["Membership", "Place"]

MakeControl = Callable[[Reactions, Mapping[str, Any]], Control]


class Place:
    """A place in a membership, from `Membership.enter` until `leave`."""

    def __init__(self, membership: Membership, reactions: Reactions, control: Control) -> None:
        self.control = control
        self._membership = membership
        self._reactions = reactions

    async def leave(self) -> None:
        """Give it up, and end the membership if it was the last; harmless the second time."""
        await asyncio.shield(asyncio.to_thread(self.leave_sync))

    def leave_sync(self) -> None:
        self._membership._leave(self._reactions, self.control)


class Membership:
    """Who this process is. Safe from any thread."""

    def __init__(self, make: MakeControl) -> None:
        self._make = make
        #: those who hear everything for as long as there is a member, and do not keep it
        self.listeners: list[Reactions] = []
        self._lock = threading.Lock()
        self._guests: dict[Control, list[Reactions]] = {}
        self._worked: set[Control] = set()
        self._pid = os.getpid()

    async def enter(self, reactions: Reactions, work: Mapping[str, Any] | None = None) -> Place:
        """Join, if nobody here has yet. Raises what stands in the way; then nothing was started."""
        entering = asyncio.ensure_future(asyncio.to_thread(self.enter_sync, reactions, work))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            # nobody else would end it
            with contextlib.suppress(RotaError):
                await (await entering).leave()
            raise

    def enter_sync(self, reactions: Reactions, work: Mapping[str, Any] | None = None) -> Place:
        """`work` is what a worker shows of itself; others have none."""
        with self._lock:
            if not self._guests:
                self._pid = os.getpid()
            check_fork(self._pid)
            control = next((each for each in self._guests if work is None or each not in self._worked), None)
            if control is None or not control.alive:
                control = self._start(work or {})
            elif work is not None:
                control.describe(work)
            if work is not None:
                self._worked.add(control)
            self._guests[control].append(reactions)
            return Place(self, reactions, control)

    def _start(self, work: Mapping[str, Any]) -> Control:
        guests: list[Reactions] = []
        control = self._make(_for_each(self.listeners, guests), work)
        control.start()
        self._guests[control] = guests
        return control

    def _leave(self, reactions: Reactions, control: Control) -> None:
        with self._lock:
            guests = self._guests.get(control, [])
            if reactions not in guests:
                return
            guests.remove(reactions)
            if guests:
                return
            del self._guests[control]
            self._worked.discard(control)
        control.stop()


def _for_each(listeners: list[Reactions], guests: list[Reactions]) -> Reactions:
    """Reactions that hand on everything to whoever is there at that moment."""

    def all_of(name: str) -> Callable[..., None]:
        def react(*news: Any) -> None:
            for guest in (*listeners, *guests):
                getattr(guest, name)(*news)

        return react

    return Reactions(**{field.name: all_of(field.name) for field in fields(Reactions)})
