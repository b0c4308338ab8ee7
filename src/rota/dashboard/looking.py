"""Reading for pages: the functions that users call, on sessions that are short and can change nothing.

What was read a moment ago is given again, so that ten open tabs cost as much as one; and what cannot be read now is given as it was
known last, with its age, so that a page shows something while the database is away or busy.

Pages stay open for days. So that one costs the database next to nothing, whatever it shows, what it reads to stay as it is has to be
paid for: after so many statements nothing is read anew for as long as they would have taken at `_PER_SECOND`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rota.app import Rota
from rota.dashboard.last_words import before_the_end
from rota.errors import DatabaseUnavailable
from rota.jobs.bulk.bulks import Bulks
from rota.jobs.dead import Dead
from rota.jobs.queue import Jobs
from rota.jobs.queues import Queues
from rota.jobs.trends import Trends
from rota.leases.leaders import Leaders
from rota.leases.steer import Members
from rota.pollers.pollers import Pollers
from rota.postgres.audit import Audit
from rota.postgres.pool import Database
from rota.postgres.spent import counting
from rota.projections.projections import Projections
from rota.schedules.schedules import Schedules

__all__ = ["Known", "Looking", "Readings", "bounded", "paid_after"]

T = TypeVar("T")

_FRESH_SECONDS = 0.9  # just below the beat at which pages look
_LONGEST_FRESH = 60.0  # of any reading
_DEADLINE_SECONDS = 4.0  # of all statements of one reading together; each has two on the server
_PER_SECOND = 4.0  # statements for one open tab, and for all that show the same
_KEPT = 500


class Looking:
    """What an app has for looking, each bound to the sessions for it."""

    def __init__(self, app: Rota) -> None:
        # a pool of the user's leads where they want it to lead; its sessions are theirs to bound
        self.database: Database = app.database if app.database.is_users else app.looking
        self.of = app.database
        self.jobs = Jobs(self.database, app.tasks, app.codec)
        self.dead = Dead(self.database, app.tasks, app.codec, self.jobs)
        self.bulk = Bulks(self.database, app.tasks, app.codec, self.jobs)
        self.queues = Queues(self.database, app.tasks)
        self.schedules = Schedules(self.database, app.tasks, app.codec, self.jobs)
        self.leaders = Leaders(self.database)
        self.members = Members(self.database)
        self.trends = Trends(self.database)
        self.audit = Audit(self.database)
        home = _Home(app, self.database)
        self.pollers: Pollers = Pollers(home, app.pollers)
        self.projections: Projections = Projections(home, app.projections)


class _Home:
    """The app as pollers and projections know it, on other sessions."""

    def __init__(self, app: Rota, database: Database) -> None:
        self.database = database
        self.facts = app.facts
        self.around = app.around
        self._by_hand = app._by_hand


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """What was read, `age` seconds ago; and, if it could not be read just now, why.

    `statements` is how many it took, unless it was there already.
    """

    value: T
    age: float
    trouble: str | None = None
    statements: int = 0


@dataclass(frozen=True, slots=True)
class _Read:
    value: Any
    statements: int
    at: float


class Readings:
    """Readings by key, on one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, _Read] = OrderedDict()
        self._running: dict[Hashable, asyncio.Task[_Read]] = {}
        self._changes = 0

    async def read(
        self, key: Hashable, function: Callable[[], Awaitable[T]], fresh: float | None = None, *, paced: bool = False
    ) -> Known[T]:
        """What the function reads; or, if that was moments ago, or `fresh` seconds, what it read then.

        Of what is `paced` nothing is read anew before it has been paid for. Raises what the function does, unless the database is to
        blame and there is something to show in its stead.
        """
        known = self._known.get(key)
        if known is not None:
            wanted = _FRESH_SECONDS if fresh is None else fresh
            if time.monotonic() - known.at < max(wanted, paid_after(known.statements) if paced else 0.0):
                return Known(known.value, 0.0)
        # one reading, however many ask at once; one that goes away does not end it for the others
        running = self._running.get(key)
        if is_ours := running is None:
            running = self._running[key] = asyncio.ensure_future(self._read(key, function))
            running.add_done_callback(lambda done: self._ended(key, done))
        try:
            read = await asyncio.shield(running)
        except DatabaseUnavailable as error:
            if known is None:
                raise
            return Known(known.value, time.monotonic() - known.at, str(error))
        return Known(read.value, 0.0, statements=read.statements if is_ours else 0)

    def forget(self) -> None:
        """Something was changed: what comes next is read anew."""
        self._changes += 1
        self._running.clear()  # what is under way may have been read before it
        stale = time.monotonic() - _LONGEST_FRESH
        for key, read in self._known.items():
            self._known[key] = replace(read, at=min(read.at, stale), statements=0)

    def _ended(self, key: Hashable, done: asyncio.Task[_Read]) -> None:
        if self._running.get(key) is done:
            del self._running[key]
        if not done.cancelled():
            done.exception()  # whoever asked may be gone, and then nobody else looks at it

    async def _read(self, key: Hashable, function: Callable[[], Awaitable[Any]]) -> _Read:
        began = self._changes
        with counting() as spent:
            value = await bounded(function())
        read = _Read(value, spent.statements, time.monotonic())
        if began != self._changes:
            return read
        self._known[key] = read
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return read


def paid_after(statements: int) -> float:
    """How many seconds it takes until so many statements are paid for."""
    return statements / _PER_SECOND


async def bounded(reading: Awaitable[T]) -> T:
    """What is read, within the time that one who looks is kept waiting. Raises DatabaseUnavailable when that is over."""
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            return await before_the_end(reading)
    except TimeoutError as error:
        raise DatabaseUnavailable(
            f"The database did not answer within {_DEADLINE_SECONDS:g} s. Nothing is wrong with the page: it asks again by itself."
        ) from error
