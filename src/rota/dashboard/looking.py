"""Reading for pages: the functions that users call, on sessions that are short and can change nothing.

What was read a moment ago is given again, so that ten open tabs cost as much as one; and what cannot be read now is given as it was
known last, with its age, so that a page shows something while the database is away or busy.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rota.app import Rota
from rota.dashboard.last_words import before_the_end
from rota.errors import DatabaseUnavailable, RotaError
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
from rota.projections.projections import Projections
from rota.schedules.schedules import Schedules

__all__ = ["Known", "Looking", "Readings"]

T = TypeVar("T")

_FRESH_SECONDS = 0.9  # just below the beat at which pages look
_LONGEST_FRESH = 60.0  # of any reading
_DEADLINE_SECONDS = 4.0  # of all statements of one reading together; each has two on the server
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
    """What was read, `age` seconds ago; and, if it could not be read just now, why."""

    value: T
    age: float
    trouble: str | None = None


class Readings:
    """Readings by key, on one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._changes = 0

    async def read(self, key: Hashable, function: Callable[[], Awaitable[T]], fresh: float | None = None) -> Known[T]:
        """What the function reads; or, if that was moments ago, or `fresh` seconds, what it read then.

        Raises what the function does, unless the database is to blame and there is something to show in its stead.
        """
        known = self._known.get(key)
        if known is not None and time.monotonic() - known[0] < (_FRESH_SECONDS if fresh is None else fresh):
            return Known(known[1], 0.0)
        # one reading, however many ask at once; one that goes away does not end it for the others
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(self._read(key, function))
            running.add_done_callback(lambda done: self._ended(key, done))
        try:
            return Known(await asyncio.shield(running), 0.0)
        except (DatabaseUnavailable, TimeoutError) as error:
            if known is None:
                raise _in_words(error) from error
            return Known(known[1], time.monotonic() - known[0], str(_in_words(error)))

    def forget(self) -> None:
        """Something was changed: what comes next is read anew."""
        self._changes += 1
        self._running.clear()  # what is under way may have been read before it
        stale = time.monotonic() - _LONGEST_FRESH
        for key, (at, value) in self._known.items():
            self._known[key] = (min(at, stale), value)

    def _ended(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        if self._running.get(key) is done:
            del self._running[key]
        if not done.cancelled():
            done.exception()  # whoever asked may be gone, and then nobody else looks at it

    async def _read(self, key: Hashable, function: Callable[[], Awaitable[T]]) -> T:
        began = self._changes
        async with asyncio.timeout(_DEADLINE_SECONDS):
            value = await before_the_end(function())
        if began != self._changes:
            return value
        self._known[key] = (time.monotonic(), value)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return value


def _in_words(error: Exception) -> RotaError:
    if isinstance(error, RotaError):
        return error
    return DatabaseUnavailable(
        f"The database did not answer within {_DEADLINE_SECONDS:g} s. Nothing is wrong with the page: it asks again by itself."
    )
