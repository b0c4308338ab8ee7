"""What the database alone knows, read for a scrape: at most once in a while, in bounded time, and without failing anyone.

The reading runs in a thread and a loop of its own, over connections that it opens and closes: so it can be asked for from
anywhere, holds no connection between scrapes, and waits behind nobody.

What takes one look comes first, and what is counted after it: a count that takes too long is missing, and all else is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rota.app import Rota
from rota.clock import boottime
from rota.errors import RotaError
from rota.events.source import EventSource
from rota.integrations.counting import MOST_NAMES, OTHERS
from rota.jobs.depth import QueueDepth, count_open_letters, count_running, lane_heads, queue_depths
from rota.jobs.queue_view import count_blocked
from rota.leases.inspect import count_members
from rota.pollers.due import Plan
from rota.pollers.inspect import Backlog, count_due, count_parked
from rota.pollers.plan import plan_of
from rota.postgres.horizon import horizon
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.postgres.session import Session
from rota.projections.behind import Behind, ProjectionState, count_behind, projection_states
from rota.schedules.lag import schedule_lag, schedule_names

__all__ = ["DatabaseReader", "Reading", "own_queues", "said_of_schedules"]

T = TypeVar("T")
N = TypeVar("N", int, QueueDepth)

# The plans of these statements are known, and must not flip to a scan because statistics are stale.
_PLANNING = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off", "plan_cache_mode": "force_custom_plan"}
# On the tables of users PostgreSQL plans as it likes, and their names are found as in a session of theirs.
_ON_TABLES: dict[str, str | None] = {"search_path": None, "jit": "off", "plan_cache_mode": "force_custom_plan"}


@dataclass(slots=True)
class Reading:
    """What was told; None for what was not. Queues of the app are in it also while they are empty."""

    oldest: dict[str, float] | None = None
    depths: dict[str, QueueDepth] | None = None
    running: dict[str, int] | None = None
    blocked: dict[str, int] | None = None
    letters: int | None = None
    members: int | None = None
    schedules: list[str] = field(default_factory=list)
    schedule_lag: float | None = None
    oldest_xmin: float | None = None
    notify_queue: float | None = None
    backlogs: dict[str, Backlog] = field(default_factory=dict)
    parked: dict[str, int] = field(default_factory=dict)
    projections: list[ProjectionState] = field(default_factory=list)
    behind: list[Behind] = field(default_factory=list)
    #: whether the database answered what takes one look
    up: bool = False
    #: whether all that is counted was, within its time
    counted: bool = False

    def so_far(self) -> Reading:
        """A copy, for those who do not wait until it is whole."""
        return replace(self, backlogs=dict(self.backlogs), parked=dict(self.parked), behind=list(self.behind))


class DatabaseReader:
    """Reads for whoever asks, in any thread; those who ask at the same time share a reading."""

    def __init__(self, app: Rota, *, cache: float, patience: float, most: int) -> None:
        self._app = app
        self._cache = cache
        self._patience = patience
        self._most = most
        self._lock = threading.Lock()
        self._last = Reading()
        self._read_at = float("-inf")
        self._under_way: tuple[threading.Event, Reading] | None = None
        self._plans: dict[str, Plan] = {}

    @property
    def has_address(self) -> bool:
        """Whether it knows where the database is. An app that was given a pool and nothing else does not: a scrape must not start
        an embedded server in its place."""
        return not self._app.database.is_users or self._app.settings.dsn is not None

    def told(self) -> Reading:
        """What the database says, or said no longer ago than the cache allows. Waits no longer than its patience."""
        with self._lock:
            if boottime() - self._read_at < self._cache:
                return self._last
            if self._under_way is None:
                self._under_way = (threading.Event(), Reading())
                # a daemon: an interpreter that ends does not wait for a database that is away
                threading.Thread(target=self._run, args=self._under_way, name="rota-metrics", daemon=True).start()
            done, reading = self._under_way
        return reading if done.wait(self._patience) else reading.so_far()

    def _run(self, done: threading.Event, reading: Reading) -> None:
        try:
            with contextlib.suppress(Exception):  # whatever it is, it is no reason for the rest to be missing
                asyncio.run(self._read(reading))
        finally:
            with self._lock:
                self._last, self._read_at, self._under_way = reading, boottime(), None
            done.set()

    async def _read(self, reading: Reading) -> None:
        app, most = self._app, self._most
        # each statement its share: one that takes too long leaves time for the others; behind a pooler too, where it would go on
        limits = {"statement_timeout": f"{max(1, int(self._patience * 500))}ms"}
        session = Session(
            app.database.connector("metrics", everywhere=_PLANNING | limits, patience=self._patience),
            app.database.schema,
            deadline=self._patience,
        )
        missing = 0

        async def told(query: Query[T]) -> T | None:
            nonlocal missing
            try:
                return await session.run(query)
            except RotaError:
                missing += 1
                return None

        own = own_queues(app)
        names = _Names(own)
        try:
            async with asyncio.timeout(self._patience):
                reading.members = await told(count_members())
                reading.oldest_xmin, reading.notify_queue = await told(horizon()) or (None, None)
                reading.schedule_lag = await told(schedule_lag())
                reading.schedules = await told(schedule_names(most=MOST_NAMES)) or []
                heads = await told(lane_heads(own))
                if heads is not None:
                    reading.oldest = names.largest((head.queue, head.oldest_seconds) for head in heads)
                reading.up = not missing

                reading.letters = await told(count_open_letters(most=most))
                running = await told(count_running(most=most))
                if running is not None:
                    reading.running = names.add_up(running.items(), 0)
                blocked = await told(count_blocked(most=most))
                if blocked is not None:
                    reading.blocked = names.add_up(((each.queue, each.jobs) for each in blocked), 0)
                if heads is not None and blocked is not None:
                    ages = [(head.queue, head.oldest_seconds) for head in heads]
                    reading.oldest = names.largest([*ages, *((each.queue, each.oldest_seconds) for each in blocked)])
                depths = await told(queue_depths(heads or [], most=most, first=own))
                if heads is not None and depths is not None:
                    reading.depths = names.add_up(depths.items(), QueueDepth())
                for name in app.pollers:
                    if (parked := await told(count_parked(name, most=most))) is not None:
                        reading.parked[name] = parked
                states = projection_states(most=most, names=MOST_NAMES, first=list(app.projections))
                reading.projections = await told(states) or []
                missing += await self._read_tables(reading, limits)
                reading.counted = not missing
        finally:
            await session.close()

    async def _read_tables(self, reading: Reading, limits: dict[str, str]) -> int:
        """What waits in tables of the user's, and in logs; returns of how many that could not be told."""
        app = self._app
        if not app.pollers and not app.projections:
            return 0
        tables: Database = app.database.apart("metrics", size=1, settings=_ON_TABLES, everywhere=limits)
        missing = 0
        try:
            for name, poller in app.pollers.items():
                try:
                    plan = self._plans.get(name) or await plan_of(tables, poller.definition)
                    self._plans[name] = plan
                    reading.backlogs[name] = await tables.run(count_due(plan, most=self._most))
                except RotaError:
                    self._plans.pop(name, None)  # the table may have changed
                    missing += 1
            # one statement for all that read from the same; with many of them, a share of the bound for each
            read_from = _by_source(app)
            most = max(1, self._most // max(1, len(app.projections) // 20))
            for source, projections in read_from.items():
                try:
                    behind = await tables.run(count_behind(source, projections, most=most))
                    reading.behind += behind
                except RotaError:
                    missing += 1
        finally:
            await tables.close()
        return missing


def own_queues(app: Rota) -> list[str]:
    """The queues that this app declares: those of its tasks, and of its schedules."""
    tasks = (task.options.queue for task in app.tasks.values())
    return list(dict.fromkeys((*tasks, *said_of_schedules(app, "queue"))))


def said_of_schedules(app: Rota, what: str) -> list[str]:
    """As it was said: to make definitions of it takes longer, and tells of mistakes, which are for those who work with them."""
    return [said[what] for said in app.declared.said if isinstance(said.get(what), str)]


def _by_source(app: Rota) -> dict[EventSource, list[tuple[str, int]]]:
    """What the first projections of the app read from, and which do."""
    found: dict[EventSource, list[tuple[str, int]]] = {}
    for definition in app.projections.definitions[:MOST_NAMES]:
        found.setdefault(definition.source, []).append((definition.name, definition.version))
    return found


class _Names:
    """Which queues are told apart: those of the app, then the first others that are met. The rest becomes one."""

    def __init__(self, own: Sequence[str]) -> None:
        self._own = own[:MOST_NAMES]
        self._known = set(self._own)

    def largest(self, numbers: Iterable[tuple[str, float]]) -> dict[str, float]:
        found = dict.fromkeys(self._own, 0.0)
        for queue, number in numbers:
            name = self._name(queue)
            found[name] = max(found.get(name, 0.0), number)
        return found

    def add_up(self, numbers: Iterable[tuple[str, N]], nothing: N) -> dict[str, N]:
        found = dict.fromkeys(self._own, nothing)
        for queue, number in numbers:
            name = self._name(queue)
            found[name] = found.get(name, nothing) + number
        return found

    def _name(self, queue: str) -> str:
        if queue not in self._known:
            if len(self._known) >= MOST_NAMES:
                return OTHERS
            self._known.add(queue)
        return queue
