"""The scheduler: gives out what is due, on time, and draws conclusions from what has ended.

One process leads it (`rota.scheduler`), sleeps until the next slot, and is woken when something changes. Leading only saves
work: each step is safe wherever it runs, so a drain does the same without leading, and two who both believe that they lead
do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rota.clock import boottime
from rota.conversion.plain import read_json
from rota.errors import DatabaseUnavailable, RotaError
from rota.facts import (
    DatabaseBack,
    DatabaseLost,
    Facts,
    ScheduleBroken,
    ScheduleFired,
    ScheduleMissed,
    ScheduleRoundBegan,
    ScheduleRoundEnded,
    ScheduleSkipped,
    ScheduleUnclaimed,
)
from rota.jobs.codec import is_coded
from rota.jobs.definition import Task
from rota.leases.term import Term
from rota.postgres.connection import is_about_data
from rota.postgres.pool import Database
from rota.postgres.query import Query, scalar, statement
from rota.postgres.session import Session
from rota.schedules.due import (
    DueSchedule,
    Fired,
    Horizon,
    Plan,
    conclude,
    find_due,
    find_unknown_tasks,
    fire,
    look_ahead,
    mark_broken,
    prune_slots,
    resume_pauses,
    walk_waiting,
)
from rota.schedules.plan import make_plan

__all__ = ["LEADERSHIP", "Scheduler"]

LEADERSHIP = "rota.scheduler"

_BATCH = 500
# Between looks while messages arrive, unless it is said: what a lost one may cost. And at most while they do not.
_POLL_SECONDS = 5.0
_POLL_DEAF_SECONDS = 1.0
_NEEDED_SECONDS = 60.0
_TIDY_SECONDS = 60.0
# How long a plan is waited for when the database is away.
_AWAY_SECONDS = 0.5
_LOCKED_SECONDS = 0.25
_CONCLUDE_SECONDS = 0.25
# And how often, while there is page after page of what is due.
_BETWEEN_SECONDS = 0.25
# Slots that one statement gives out, about.
_BATCH_SLOTS = 5000
_PRUNED = 5000
# Schedules with runs that wait, looked at in one go: some 50 ms, as slots come due meanwhile.
_WALKED = 5000
_TIDY_MORE_SECONDS = 1.0

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
        hears: Callable[[], bool],
        poll: timedelta | None = None,
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._facts = facts
        self._hears = hears
        self._poll = None if poll is None else poll.total_seconds()
        self._woken = asyncio.Event()
        self._checked: dict[str, int] = {}
        self._asked: dict[str, float] = {}
        self._elsewhere = 0
        self._tidy_at = 0.0
        self._walked = ""
        self._until: datetime | None = None

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
            await self._sleep(_NEEDED_SECONDS if self._hears() else _POLL_DEAF_SECONDS)

    async def lead(self, term: Term) -> None:
        """Give out what is due for as long as the term lasts."""
        session = self._session()
        away = False
        try:
            while True:
                self._woken.clear()
                try:
                    horizon, done = await self._round(session)
                    await self._tidy(session)
                except DatabaseUnavailable as error:
                    if not away:
                        self._facts.emit(DatabaseLost("schedules", str(error)))
                    away = True
                    await asyncio.sleep(_AWAY_SECONDS)
                    term.check()
                    continue
                if away:
                    self._facts.emit(DatabaseBack("schedules"))
                away = False
                if done:  # there may be more
                    continue
                pause = self._poll or _POLL_SECONDS
                if not self._hears():
                    pause = min(pause, _POLL_DEAF_SECONDS)
                pause = min(pause, max(0.0, self._tidy_at - boottime()))
                if horizon.due_in is not None:
                    # what is due and could not be given out is locked by someone
                    pause = min(pause, max(_LOCKED_SECONDS if horizon.due_in <= 0 else 0.0, horizon.due_in))
                if horizon.ends:  # and so is what has ended and was not taken
                    pause = min(pause, _LOCKED_SECONDS)
                await self._sleep(pause)
        finally:
            await session.close()

    async def catch_up(self) -> None:
        """Give out all that was due when this was first asked for, without leading. Waits for a database that is away.

        What becomes due meanwhile is left for another time: a drain must end, however short a pace is.
        """
        while True:
            try:
                if self._until is None:  # where nobody ever leads, nobody tidies
                    walked, _ = await self._database.run(walk_waiting("", _WALKED))
                    while walked:
                        walked, _ = await self._database.run(walk_waiting(walked, _WALKED))
                horizon = await self._database.run(look_ahead())
                self._until = self._until or horizon.now
                if not horizon.ends and (horizon.due_in is None or horizon.due_in > 0):
                    return
                session = self._session()
                try:
                    while (await self._round(session))[1]:
                        pass
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

    async def _round(self, session: Session) -> tuple[Horizon, int]:
        """Give out what is due by now, and draw conclusions; returns what was to be done, and how much of it is.

        What someone has locked is left for another time, and so is what becomes due meanwhile: with very short paces that
        never ends, and there is more to do than to give out.
        """
        self._facts.emit(ScheduleRoundBegan())
        began, self._elsewhere = boottime(), 0
        horizon = await session.run(look_ahead())
        moved = ends = 0
        if horizon.due_in is not None and horizon.due_in <= 0:
            moved, ends = await self._give_out(session, self._until or horizon.now)
        if horizon.ends:
            ends += await self._conclude(session)
        self._facts.emit(ScheduleRoundEnded(moved, self._elsewhere, ends, boottime() - began))
        return horizon, moved + ends

    async def _conclude(self, session: Session) -> int:
        """Draw conclusions from what has ended, for a moment, as slots come due meanwhile; returns from how much."""
        done = 0
        until = boottime() + _CONCLUDE_SECONDS
        while True:
            concluded = await session.run(conclude(2 * _BATCH))
            for name, slots in concluded.skipped.items():
                self._facts.emit(ScheduleSkipped(name, slots))
            for name, slots in concluded.missed.items():
                self._facts.emit(ScheduleMissed(name, slots))
            done += concluded.taken
            if not concluded.taken or boottime() > until:
                return done

    async def _give_out(self, session: Session, until: datetime) -> tuple[int, int]:
        """Give out what was due by then; returns how many schedules moved on, and how many ends were concluded meanwhile."""
        moved = ends = 0
        concluded_at = boottime()
        firing: asyncio.Task[int] | None = None
        try:
            async with contextlib.aclosing(self._plans(session, until)) as planned:
                async for plans in planned:
                    # the next ones are planned while PostgreSQL gives out these
                    moved += await firing if firing else 0
                    firing = asyncio.create_task(self._fire(session, plans))
                    # as many end as are given out: what follows from them does not wait for the last page
                    if boottime() - concluded_at > _BETWEEN_SECONDS:
                        ends += await self._conclude(session)
                        concluded_at = boottime()
            moved += await firing if firing else 0
        finally:
            if firing and not firing.done():
                firing.cancel()
                await asyncio.wait([firing])
        return moved, ends

    async def _plans(
        self, session: Session, until: datetime
    ) -> AsyncGenerator[Sequence[tuple[DueSchedule, Plan]], None]:
        """The plans of what was due by then, about as many at once as one statement should carry out."""
        due = await session.run(find_due(_BATCH, None, until))
        while due:
            plans: list[tuple[DueSchedule, Plan]] = []
            slots = 0
            for number, each in enumerate(due):
                plan = make_plan(each, self._check)
                plans.append((each, plan))
                slots += len(plan.slots)
                if slots >= _BATCH_SLOTS:
                    yield plans
                    plans, slots = [], 0
                elif number % 50 == 49:
                    await asyncio.sleep(0)  # others have their turn
            # read before these are given out, so that it can be planned meanwhile
            due = await session.run(find_due(_BATCH, due[-1], until)) if len(due) == _BATCH else []
            if plans:
                yield plans

    async def _fire(self, session: Session, plans: Sequence[tuple[DueSchedule, Plan]]) -> int:
        try:
            fired = await session.run(fire([plan for _, plan in plans]))
        except DatabaseUnavailable:
            raise
        except RotaError as error:
            if not is_about_data(error.__cause__):
                raise
            return await self._fire_apart(session, plans, error)
        await self._tell(session, {plan.name: (due, plan) for due, plan in plans}, fired)
        self._elsewhere += len(plans) - len(fired)
        return len(fired)

    async def _fire_apart(self, session: Session, plans: Sequence[tuple[DueSchedule, Plan]], error: RotaError) -> int:
        """PostgreSQL refused what one of them would write: find that one, and let it alone be broken."""
        if len(plans) > 1:
            middle = len(plans) // 2
            return await self._fire(session, plans[:middle]) + await self._fire(session, plans[middle:])
        ((due, _),) = plans
        problem = f"its slots could not be given out: {error}"
        marked: int = await session.run(mark_broken(due, problem))
        if marked:
            self._facts.emit(ScheduleBroken(due.name, problem))
        return marked

    async def _tell(
        self, session: Session, plans: Mapping[str, tuple[DueSchedule, Plan]], fired: Sequence[Fired]
    ) -> None:
        strange: dict[str, str] = {}
        for each in fired:
            due, plan = plans[each.name]
            if plan.problem is not None:
                self._facts.emit(ScheduleBroken(each.name, plan.problem))
            if each.fired and self._facts.wanted(ScheduleFired):
                self._facts.emit(ScheduleFired(each.name, each.fired))
            if each.skipped:
                self._facts.emit(ScheduleSkipped(each.name, each.skipped))
            if each.missed:
                self._facts.emit(ScheduleMissed(each.name, each.missed))
            if due.task not in self._tasks and boottime() > self._asked.get(due.task, 0.0) + _TIDY_SECONDS:
                strange[due.task] = each.name
        if strange:
            self._asked |= dict.fromkeys(strange, boottime())
            for task in await session.run(find_unknown_tasks(sorted(strange))):
                self._facts.emit(ScheduleUnclaimed(strange[task], task))

    def _check(self, due: DueSchedule) -> None:
        """Raise RotaError when its task cannot take its arguments, as far as this process can tell.

        What the task took when it was put is not judged again: other code, older or newer, may know the task better. Nor is
        what a codec keeps, which may ask a key service that is away. Both show where it runs. What nobody has checked, as it
        was written by SQL, is checked here.
        """
        task = self._tasks.get(due.task)
        if task is None or due.is_checked or due.version != task.version or is_coded(due.args):
            return
        if self._checked.get(due.name) == due.revision:
            return
        task.signature.decode(read_json(due.args))
        if len(self._checked) > 100_000:
            self._checked.clear()
        self._checked[due.name] = due.revision

    async def _tidy(self, session: Session) -> None:
        """Now and then: forget old runs, and go on where a run left no trace of its end."""
        if boottime() < self._tidy_at:
            return
        if not self._walked:
            await session.run(resume_pauses())
        self._walked, asked = await session.run(walk_waiting(self._walked, _WALKED))
        if asked:
            self.wake()
        # a batch at a time, as slots come due meanwhile
        more = await session.run(prune_slots(_PRUNED)) == _PRUNED or self._walked
        self._tidy_at = boottime() + (_TIDY_MORE_SECONDS if more else _TIDY_SECONDS * random.uniform(0.8, 1.2))
