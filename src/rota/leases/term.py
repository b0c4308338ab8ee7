"""A term of leadership, as its holder has it in hand.

It belongs to this process's membership, so nothing is renewed here; what is done here is to notice its end in time. It ends
when it is resigned, when the membership was ended by others, when an operator takes it, and, before any of that could happen
unnoticed, when the local deadline of the membership passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol, TypeVar

from rota.clock import Deadline
from rota.errors import DatabaseUnavailable, LeadershipLost, NotPossible
from rota.facts import EndKind, Facts, LeadershipEnded
from rota.leases.control import Control
from rota.leases.fenced import FencedTransaction, whoever
from rota.leases.terms import Acquired, confirm_term, resign_lease
from rota.postgres.pool import Database
from rota.postgres.query import Query

__all__ = ["Term", "answered", "answered_sync", "leading"]

T = TypeVar("T")

# How long the answer to a question may take before the database counts as away: longer than a session takes to be replaced.
_ANSWER_SECONDS = 10.0
# How long a resignation waits for fenced work that is open, and how often it looks.
_OPEN_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_RESIGNED = "it was resigned"
_OUT_OF_REACH = "the database was out of reach for too long"


class Registry(Protocol):
    """Who knows all terms of this process."""

    database: Database
    facts: Facts

    def forget(self, term: Term, /) -> bool: ...

    def close(self, term: Term, /) -> None: ...


class Term:
    """A term of leadership. `epoch` is greater than that of every term before it: hand it to whatever must refuse a stale leader."""

    def __init__(self, leads: Registry, control: Control, name: str, found: Acquired) -> None:
        self.name = name
        self.epoch = found.epoch
        self.since: datetime = found.since
        self.member = found.member
        self._leads = leads
        self.control = control
        self._ended: str | None = None
        #: who is inside a transaction of it
        self.insiders: list[object] = []
        #: called, in any thread, when it is over or has become doubtful
        self.on_news: Callable[[], None] = lambda: None

    @property
    def valid(self) -> bool:
        """Whether nobody else can lead at this moment. Asks nobody: it is known until when that is certain."""
        return self._ended is None and self.control.trusts(self.member)

    def check(self) -> None:
        """Raise LeadershipLost unless the term is valid."""
        if not self.valid:
            raise self.loss()

    @property
    def resigned(self) -> bool:
        return self._ended == _RESIGNED

    async def confirm(self) -> None:
        """Ask the database whether the term is on. Raises LeadershipLost, or DatabaseUnavailable when it cannot be told."""
        self._check_on()
        self._confirmed(await answered(self.control, self._confirmation()))

    def confirm_sync(self) -> None:
        self._check_on()
        self._confirmed(answered_sync(self.control, self._confirmation()))

    async def resign(self) -> None:
        """End the term; who waits for it leads within moments. Harmless when it is over already.

        Fenced work of it that is open elsewhere in this process may commit first: it is waited for, for up to ten seconds, and
        afterwards the term ends with it. Raises NotPossible inside that work, which cannot wait for itself.
        """
        self._refuse_inside()
        await self.give_up(_OPEN_SECONDS)

    def resign_sync(self) -> None:
        self._refuse_inside()
        self.give_up_sync(_OPEN_SECONDS)

    async def give_up(self, patience: float) -> None:
        """End the term, waiting no longer than this for fenced work of it that is open."""
        self.end(_RESIGNED, "resigned")
        self._leads.close(self)
        until = Deadline.after(patience)
        # whatever is missed here, the next beats find what nobody in this process knows of
        with contextlib.suppress(DatabaseUnavailable):
            while not await answered(self.control, self._resignation()) and until.left:  # noqa: ASYNC110 - the database is asked
                await asyncio.sleep(_LOOK_SECONDS)

    def give_up_sync(self, patience: float) -> None:
        self.end(_RESIGNED, "resigned")
        self._leads.close(self)
        until = Deadline.after(patience)
        with contextlib.suppress(DatabaseUnavailable):
            while not answered_sync(self.control, self._resignation()) and until.left:
                time.sleep(_LOOK_SECONDS)

    @property
    def patience(self) -> float:
        """How long to wait for open work when the block of the term has ended: not at all for what only its caller could end."""
        return 0.0 if whoever() in self.insiders else _OPEN_SECONDS

    def _refuse_inside(self) -> None:
        if whoever() in self.insiders:
            raise NotPossible(
                f"The term of {self.name!r} cannot be resigned inside its own transaction, which has to end first. Leave the block of "
                "term.transaction(), then resign."
            )

    def progress(self, note: object = None) -> None:
        """Say that the work goes on, for people who look for a leader that hangs: they see how long ago that was, and the note.

        Costs nothing, so say it after every piece of work: the next beat of this process, half a second later at most, carries the
        last one to the database. It decides nothing, and says nothing when the term is over.
        """
        if self._ended is None:
            self.control.progress.report(self.name, self.epoch, note)

    def transaction(self, on: Any = None) -> FencedTransaction:
        """Work that is committed only if the term is on: no other begins while it is open, and once another has, it is refused.

        `with` and `async with` give a psycopg connection, or take the session or connection of yours that you pass.
        """
        return FencedTransaction(self._leads.database, self, on)

    def _confirmation(self) -> Query[bool]:
        return confirm_term(self.name, self.epoch, self.member)

    def _confirmed(self, is_on: bool) -> None:
        if not is_on:
            self.end("someone else took over")
        self._check_on()
        if not self.valid:  # the answer is older than what cut us off since
            raise DatabaseUnavailable(
                f"Whether the term of {self.name!r} is on cannot be told: the database said so, and the session to it has ended "
                "since. Nothing is wrong with the call: repeat it."
            )

    def _check_on(self) -> None:
        """Raise LeadershipLost if the term is known to be over; not if that is only in doubt."""
        if self.look() <= 0 or self.resigned:
            raise self.loss()

    def _resignation(self) -> Query[bool]:
        return resign_lease(self.name, self.epoch, self.member)

    def end(self, reason: str, kind: EndKind = "lost") -> None:
        """Note that the term is over, for whatever reason came first. Called in any thread."""
        if self._leads.forget(self):
            self._ended = reason
            self.on_news()
            self._leads.facts.emit(LeadershipEnded(self.name, self.epoch, reason, kind))

    def loss(self) -> LeadershipLost:
        doubt = "it is that of the process this one was forked from" if self.control.forked else _OUT_OF_REACH
        return LeadershipLost(self.name, self.epoch, self._ended or doubt)

    def loss_sync(self) -> LeadershipLost | None:
        """What to tell a body that has ended, if the term was over by then. What is only in doubt is asked of the database."""
        if self.valid:
            return None
        try:
            self.confirm_sync()
        except LeadershipLost as lost:
            return lost
        except DatabaseUnavailable:
            return self.loss()
        return None

    def look(self) -> float:
        """For how long it is certain from now on, having ended it if that is no longer; for ever if it was resigned."""
        if self.resigned:
            return math.inf
        left = self.control.trusted_for(self.member) if self._ended is None else 0.0
        if left <= 0:
            self.end(_OUT_OF_REACH)
        return left

    def __repr__(self) -> str:
        return f"<Term {self.name!r} epoch={self.epoch} {'valid' if self.valid else 'over'}>"


async def answered(control: Control, query: Query[T]) -> T:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await asyncio.wrap_future(control.ask(query))
    except TimeoutError as error:
        raise _no_answer(query) from error


def answered_sync(control: Control, query: Query[T]) -> T:
    try:
        return control.ask(query).result(_ANSWER_SECONDS)
    except TimeoutError as error:
        raise _no_answer(query) from error


def _no_answer(query: Query[Any]) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"PostgreSQL did not answer {query.statement.name!r} within {_ANSWER_SECONDS:g} s. Nothing is wrong with the call; check that "
        "the server is up and reachable, then repeat it."
    )


#: the term under which this code runs: for those who tell of it, and nothing is decided by it
leading: ContextVar[Term | None] = ContextVar("rota_leading", default=None)
