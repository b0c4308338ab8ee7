"""The scheduler: gives out what is due, on time, and draws conclusions from what has ended.

One process leads it (`rota.scheduler`), sleeps until the next slot, and is woken when something changes. Leading only saves
work: each step is safe wherever it runs, so a drain does the same without leading, and two who both believe that they lead
do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

from rota.clock import boottime
from rota.errors import DatabaseUnavailable
from rota.facts import Facts, ScheduleBroken, ScheduleFired, ScheduleMissed, ScheduleSkipped
from rota.jobs.codec import Codec, decoded
from rota.jobs.definition import Task
from rota.leases.term import Term
from rota.postgres.pool import Database
from rota.postgres.query import Query, scalar, statement
from rota.postgres.session import Session
from rota.schedules.due import (
    DueSchedule,
    Horizon,
    conclude,
    find_due,
    fire,
    look_ahead,
    prune_slots,
    release,
    resume_pauses,
)
from rota.schedules.plan import make_plan

__all__ = ["LEADERSHIP", "Scheduler"]

LEADERSHIP = "rota.scheduler"

_BATCH = 500
# Between looks while messages arrive: what a lost one may cost. And while they do not.
_POLL_SECONDS = 5.0
_POLL_DEAF_SECONDS = 1.0
_NEEDED_SECONDS = 60.0
_TIDY_SECONDS = 60.0
# How long a plan is waited for when the database is away.
_AWAY_SECONDS = 0.5

# The plans of these statements are known; see those of the worker.
_PLANNING = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}

NEEDED = statement("schedules_exist", "select exists (select from {schema}.schedules)")


def schedules_exist() -> Query[bool]:
    """Whether there is any schedule at all."""
    return NEEDED.query(read=scalar)


class Scheduler:
    """Looks after the schedules of a database, while it leads or for the length of a drain."""

    def __init__(
        self,
        database: Database,
        tasks: Mapping[str, Task[..., Any]],
        facts: Facts,
        *,
        codec: Codec | None,
        hears: Callable[[], bool],
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._facts = facts
        self._codec = codec
        self._hears = hears
        self._woken = asyncio.Event()
        self._checked: dict[str, int] = {}
        self._tidy_at = 0.0

    def wake(self) -> None:
        """There may be something to do."""
        self._woken.set()

    async def needed(self) -> None:
        """Return when there is a schedule. Until then nobody need lead."""
        while True:
            self._woken.clear()
            with contextlib.suppress(DatabaseUnavailable):
                if await self._database.run(schedules_exist()):
                    return
            await self._sleep(_NEEDED_SECONDS)

    async def lead(self, term: Term) -> None:
        """Give out what is due for as long as the term lasts."""
        session = self._session()
        try:
            while True:
                self._woken.clear()
                try:
                    horizon = await self._catch_up(session)
                    await self._tidy(session)
                except DatabaseUnavailable:
                    # the control session says so already; nothing is given away meanwhile
                    await asyncio.sleep(_AWAY_SECONDS)
                    term.check()
                    continue
                pause = _POLL_SECONDS if self._hears() else _POLL_DEAF_SECONDS
                await self._sleep(pause if horizon.due_in is None else min(pause, max(0.0, horizon.due_in)))
        finally:
            await session.close()

    async def catch_up(self) -> None:
        """Give out all that is due now, without leading. Waits for a database that is away."""
        while True:
            try:
                horizon = await self._database.run(look_ahead())
                if not horizon.ends and not horizon.waiting and (horizon.due_in is None or horizon.due_in > 0):
                    return
                session = self._session()
                try:
                    await self._catch_up(session)
                finally:
                    await session.close()
                return
            except DatabaseUnavailable:
                await asyncio.sleep(_AWAY_SECONDS)

    def _session(self) -> Session:
        return Session(self._database.connector("schedule", settings=_PLANNING), self._database.schema)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _catch_up(self, session: Session) -> Horizon:
        """Do all there is to do; returns what comes next."""
        while True:
            horizon = await session.run(look_ahead())
            done = 0
            if horizon.ends:
                done += await session.run(conclude(2 * _BATCH))
            if horizon.waiting or done:
                done += await session.run(release(_BATCH))
            if horizon.due_in is not None and horizon.due_in <= 0:
                done += await self._fire(session)
            if not done:
                return horizon

    async def _fire(self, session: Session) -> int:
        due = await session.run(find_due(_BATCH))
        if not due:
            return 0
        plans = [make_plan(each, self._check) for each in due]
        problems = {plan.name: plan.problem for plan in plans if plan.problem is not None}
        for fired in await session.run(fire(plans)):
            if problem := problems.get(fired.name):
                self._facts.emit(ScheduleBroken(fired.name, problem))
            if fired.fired and self._facts.wanted(ScheduleFired):
                self._facts.emit(ScheduleFired(fired.name, fired.fired))
            if fired.skipped:
                self._facts.emit(ScheduleSkipped(fired.name, fired.skipped))
            if fired.missed:
                self._facts.emit(ScheduleMissed(fired.name, fired.missed))
        return len(due)

    def _check(self, due: DueSchedule) -> None:
        """Raise RotaError when its task cannot take its arguments, as far as this process knows that task."""
        task = self._tasks.get(due.task)
        if task is None or self._checked.get(due.name) == due.revision:
            return
        task.signature.decode(task.upgraded(decoded(self._codec, due.args), due.version))
        if len(self._checked) > 100_000:
            self._checked.clear()
        self._checked[due.name] = due.revision

    async def _tidy(self, session: Session) -> None:
        """Now and then: forget old runs, and start pauses anew whose run left no trace of its end."""
        if boottime() < self._tidy_at:
            return
        self._tidy_at = boottime() + _TIDY_SECONDS * random.uniform(0.8, 1.2)
        await session.run(resume_pauses())
        while await session.run(prune_slots(5000)) == 5000:
            pass
