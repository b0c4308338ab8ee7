"""What this process leads and waits for, and what the control thread says about it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Generator, Mapping, Sequence
from uuid import UUID

from rota.errors import DatabaseUnavailable
from rota.facts import Facts, LeadershipGained, TakeoverHindered
from rota.leases.control import Control, Reactions
from rota.leases.membership import Membership
from rota.leases.term import Term
from rota.leases.terms import Acquired, leave_standbys, resign_lease
from rota.postgres.connection import IDLE_LIMIT
from rota.postgres.pool import Database

__all__ = ["Leads", "Seat"]


class Seat:
    """Someone who waits, in either colour, to be told that it may be worth a try."""

    def __init__(self) -> None:
        self.stands_by_as: UUID | None = None
        self._told = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told_here: asyncio.Event | None = None

    def tell(self) -> None:
        self._told.set()
        loop, event = self._loop, self._told_here
        if loop is not None and event is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed, and nobody waits there
                loop.call_soon_threadsafe(event.set)

    async def wait(self, limit: float) -> None:
        if self._told_here is None:
            self._loop, self._told_here = asyncio.get_running_loop(), asyncio.Event()
        if not self._told.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._told_here.wait()
        self._told.clear()
        self._told_here.clear()

    def wait_sync(self, limit: float) -> None:
        self._told.wait(limit)
        self._told.clear()


class Leads:
    """What this process leads and waits for."""

    def __init__(self, membership: Membership, database: Database, facts: Facts) -> None:
        self.membership = membership
        self.database = database
        self.facts = facts
        self._lock = threading.Lock()
        self._terms: dict[UUID, dict[str, Term]] = {}
        self._seats: dict[str, list[Seat]] = {}
        self._open: set[tuple[str, int]] = set()
        self._strangers: set[tuple[str, int]] = set()
        self._hindered: dict[str, int] = {}
        self._trying = 0
        self.reactions = Reactions(
            on_identity_lost=self._on_identity_lost,
            on_doubt=self._on_doubt,
            on_vacant=self._on_vacant,
            on_leading=self._on_leading,
            # who waits for its turn is told of it
            at_ease=lambda: not (self._terms or self._trying),
        )
        membership.listeners.append(self.reactions)

    @property
    def burden(self) -> int:
        """How many terms this process has."""
        return sum(map(len, self._terms.values()))

    def terms(self) -> list[Term]:
        with self._lock:
            return [term for terms in self._terms.values() for term in terms.values()]

    @contextlib.contextmanager
    def trying(self) -> Generator[None]:
        with self._lock:
            self._trying += 1
        try:
            yield
        finally:
            with self._lock:
                self._trying -= 1

    def begun(self, control: Control, name: str, found: Acquired) -> Term:
        term = Term(self, control, name, found)
        with self._lock:
            self._terms.setdefault(found.member, {})[name] = term
            self._open.add((name, found.epoch))
        control.take_hold()
        self.facts.emit(LeadershipGained(name, found.epoch))
        return term

    def hindered(self, name: str, epoch: int, roles: Sequence[str]) -> DatabaseUnavailable:
        """What to raise when the last leader of this left a session that we have no right to end; told once."""
        with self._lock:
            is_news, self._hindered[name] = self._hindered.get(name) != epoch, epoch
        if is_news:
            self.facts.emit(TakeoverHindered(name, epoch, tuple(roles)))
        return DatabaseUnavailable(
            f"{name!r} cannot be led yet: its last leader, which has ended, left a session inside its transaction, and this role may "
            f"not end a session of {', '.join(roles)}. PostgreSQL ends it when it has been idle for {IDLE_LIMIT}; try again then. To "
            "take over at once, log in as the same role, or have `grant pg_signal_backend` for yours."
        )

    @contextlib.contextmanager
    def seated(self, control: Control, name: str) -> Generator[Seat]:
        """Be told when nobody leads this."""
        seat = Seat()
        with self._lock:
            self._seats.setdefault(name, []).append(seat)
            control.seek(self._seats)
        try:
            yield seat
        finally:
            with self._lock:
                self._seats[name].remove(seat)
                last = not self._seats[name]
                if last:
                    del self._seats[name]
                elif seat.stands_by_as is not None:
                    # who is left shows as standing by, and is the one to end that
                    self._seats[name][0].stands_by_as = seat.stands_by_as
                control.seek(self._seats)
            if last and seat.stands_by_as is not None:
                control.ask(leave_standbys([name], control.member))

    def forget(self, term: Term) -> bool:
        """Forget the term; False if that was done before."""
        with self._lock:
            mine = self._terms.get(term.member, {})
            if mine.get(term.name) is not term:
                return False
            del mine[term.name]
            if not mine:
                del self._terms[term.member]
            return True

    def close(self, term: Term) -> None:
        """Whoever had the term is done with it: nothing is in the way of giving it up."""
        with self._lock:
            self._open.discard((term.name, term.epoch))

    # In the control thread.

    def _on_identity_lost(self, member: UUID) -> None:
        for term in self.terms():
            if term.member == member:
                term.end("this process was taken for dead, and its membership ended")
        for name in list(self._seats):
            self._on_vacant((name,))  # who waits must say so again, under its new name

    def _on_doubt(self) -> None:
        for term in self.terms():
            term.on_news()

    def _on_vacant(self, names: Collection[str]) -> None:
        with self._lock:
            seats = [seat for name in names for seat in self._seats.get(name, ())]
        for seat in seats:
            seat.tell()

    def _on_leading(self, control: Control, epochs: Mapping[str, int], asked: Collection[str]) -> None:
        with self._lock:
            known = dict(self._terms.get(control.member, {}))
            # a body that was told to stop may take its time, and nobody else begins before it has ended
            strangers = {each for each in epochs.items() if each[0] not in known} - self._open
        for name, term in known.items():
            if epochs.get(name) != term.epoch:
                term.end("it was taken away", "taken")
            elif name in asked:
                term.end("this process was asked to step down", "asked")
        self._give_up_strangers(control, strangers)

    def _give_up_strangers(self, control: Control, strangers: set[tuple[str, int]]) -> None:
        """Resign what the database says we lead and nobody here knows of: the answer to its acquisition, or to its resignation,
        was lost. Twice in a row, and not while someone tries: the answer may be on its way."""
        for name, epoch in strangers & self._strangers if not self._trying else ():
            control.ask(resign_lease(name, epoch, control.member))
        self._strangers = strangers
