"""The worker's side of `executor="process"`: bodies run in child processes, one at a time in each, and can always be ended.

A child is started when it is needed and kept for the next job, since starting Python and importing the app costs more than
most bodies. It is ended, and replaced by the next need, when its body outstays its timeout or is cancelled: asked first,
which interrupts the body so that it can clean up, and killed when that does not help. One that dies by itself, by a crash or
for want of memory, takes down its own job and nothing else; that attempt is lost.

Jobs wait for a child in the order in which they came, and get the first that is free: one that another job leaves, or one that was
started beside. As long as there are fewer children than cores, a job that finds none free has one started at once. More than that
start each other's starts only slower, and small bodies never need them: they come when a job has waited for a while nevertheless,
as bodies that wait for something themselves would have it, and never more at a time than there are cores. A start that takes long
holds up nobody but the job it was made for.

No child outlives its worker: see `child`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rota.errors import ConfigurationError, RotaError
from rota.facts import Facts, JobRaisedAfterSuccess, ResourceAwaited
from rota.jobs.claim import ClaimedJob
from rota.jobs.definition import Task
from rota.jobs.errand import STOPPING, Standing, failure_from, line_of, outcome_from, written_errand
from rota.jobs.execute import outcome_of, timed_out
from rota.jobs.logs.level import OFF
from rota.jobs.logs.notes import Notes
from rota.jobs.logs.send import lines_from
from rota.jobs.outcome import HandedBack, Outcome, Snoozed
from rota.jobs.places import Place, loading, place_of
from rota.jobs.running import Desk, Held
from rota.jobs.spawn import Child
from rota.postgres.dsn import Dsn

__all__ = ["Children"]

# What this process may use.
_CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
# How long a job waits for a child of others before there is one more than cores: a third of what a start takes.
_LONG_SECONDS = 0.1
# A start that takes longer hangs, for all one knows: it is no reason for others not to start.
_SLOW_SECONDS = 5.0
# How long a body may clean up when its time is up or someone cancels it.
_PATIENCE_SECONDS = 5.0
# And when it is handed back: another worker has the job in a moment, and by then it must be gone.
_HURRY_SECONDS = 0.3
# Idle for so long, a child is not worth its memory.
_IDLE_SECONDS = 60.0
# When a job is tried again whose child could not open a resource.
_UNOPENED_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Wait:
    """A job that waits for a child."""

    standing: Standing
    since: float
    child: asyncio.Future[Child]


class Children:
    """The children of one worker, at most `limit` besides those on their way out. Belongs to the event loop of that worker."""

    def __init__(
        self, limit: int, desk: Desk, address: Callable[[], Dsn], facts: Facts, notes: Notes | None = None
    ) -> None:
        if loading.get():
            raise RotaError(
                "A worker was started by a module that is being loaded to find a task in it. Put what starts it behind "
                '`if __name__ == "__main__":`, so that the module can be imported.'
            )
        self._desk = desk
        self._address = address
        self._facts = facts
        self._notes = notes
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._children: set[Child] = set()
        self._idle: dict[Child, float] = {}  # with the time since which they are, the last used one last
        self._leaving: dict[Child, asyncio.Task[None]] = {}
        self._waiting: deque[_Wait] = deque()  # whoever is done with it may still be in there, and is passed over
        self._starts: dict[asyncio.Task[Child], _Wait] = {}  # with the job that each was made for
        self._slow_starts: dict[asyncio.Task[Child], _Wait] = {}
        self._served_since = 0.0  # when there was a child, and none before
        self._next_look: asyncio.TimerHandle | None = None
        self._next_retirement: asyncio.TimerHandle | None = None
        self._stopping = False
        self._standing: dict[str, Standing] = {}

    async def run(self, task: Task[..., Any], job: ClaimedJob, attempt: Held, trace: str | None = None) -> Outcome:
        """Run the body in a child, to its end, as part of this trace. When this returns or raises, nothing of it runs any more.

        Cancelled, it ends the child before it raises; cancelled once more, it does not wait for the body to clean up.
        """
        standing = self._standing_of(task)
        errand = written_errand(job, standing.number, trace)
        died = False
        while True:
            child = self._idle.popitem()[0] if self._idle else await self._free_child(standing)
            try:
                outcome = await self._answer(child, task, attempt, standing, errand)
            except BaseException:
                await child.end(_PATIENCE_SECONDS if attempt.told == "cancelled" else _HURRY_SECONDS)
                raise
            self._keep(child)
            if outcome is not None:
                return outcome
            if self._stopping:
                return HandedBack(job)  # whoever stops this worker may have meant its children too
            if died or not child.ready:
                return child.lost(job)
            # one that died while it had nothing to do: the body has not begun, and another child may run it; but if that one
            # dies too, it is what the job makes it load
            died = True

    def stopping(self) -> None:
        """Tell the bodies that the worker drains: `job.stopping` is true, and the next checkpoint ends the attempt."""
        self._stopping = True
        for child in self._children:
            child.order(STOPPING)

    async def close(self) -> None:
        """End all children. Those with nothing to do close what they opened; a body that still runs is not waited for, and a
        job that still waits for a child is cancelled."""
        for timer in (self._next_look, self._next_retirement):
            if timer is not None:
                timer.cancel()
        self._next_look = self._next_retirement = None
        for wait in self._waiting:
            wait.child.cancel()
        starts = [*self._starts, *self._slow_starts]
        for starting in starts:
            starting.cancel()
        ending = [child.leave() if child in self._idle else child.end(0) for child in self._children]
        self._idle.clear()
        await asyncio.gather(*ending, *self._leaving.values())
        if starts:
            await asyncio.wait(starts)

    def _standing_of(self, task: Task[..., Any]) -> Standing:
        level = OFF if self._notes is None else self._notes.level_of(task.name)
        schema, dsn, logs = self._desk.database.schema, self._address().conninfo, None if level == OFF else level
        known = self._standing.get(task.name)
        if known is None:
            places, path = _places(task), getattr(task.function, "__qualname__", "")
            known = Standing(len(self._standing), task.name, places, path, schema, dsn, logs)
        elif (known.schema, known.dsn, known.logs) != (schema, dsn, logs):
            known = replace(known, schema=schema, dsn=dsn, logs=logs)
        else:
            return known
        self._standing[task.name] = known
        return known

    def _note(self, attempt: Held, said: dict[str, Any]) -> None:
        # something that an earlier body left behind in the child may still log
        if self._notes is not None and said["token"] == attempt.claim.token:
            self._notes.add(attempt, lines_from(said))

    async def _free_child(self, standing: Standing) -> Child:
        """The next child that gets free. One that is gone, and was never ready, died over this task."""
        wait = _Wait(standing, self._loop.time(), self._loop.create_future())
        self._waiting.append(wait)
        if self._next_look is None:
            self._look()
        try:
            return await wait.child
        except BaseException:
            if wait.child.done() and not wait.child.cancelled() and wait.child.exception() is None:
                self._keep(wait.child.result())  # it was given this one in the moment in which it was cancelled
            else:
                self._leave_the_queue(wait)
            raise

    def _leave_the_queue(self, wait: _Wait) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(wait)
        for starting, made_for in [*self._starts.items(), *self._slow_starts.items()]:
            # not twice: it waits for the end of its process
            if made_for is wait and not starting.cancelling():
                starting.cancel()  # it may be this task that it hangs over
        self._look()

    def _look(self) -> None:
        """Start what those who wait need. To be called when that may have changed; when time alone does, it calls itself."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        waiting = [wait for wait in self._waiting if not wait.child.done()]
        while len(self._starts) < min(len(waiting), _CORES) and (count := self._count()) < self._limit:
            if count >= _CORES:
                # who has waited while there was no child at all has not learnt that there are too few
                due_at = max(waiting[0].since, self._served_since) + _LONG_SECONDS
                if self._loop.time() < due_at:
                    self._next_look = self._loop.call_at(due_at, self._look)
                    return
            started_for = self._starts.values()
            self._start(next(wait for wait in waiting if wait not in started_for))

    def _count(self) -> int:
        return len(self._children - self._leaving.keys()) + len(self._starts) + len(self._slow_starts)

    def _start(self, wait: _Wait) -> None:
        # in a context of its own: it is nothing of this job's that others will run in
        starting = asyncio.create_task(Child.start(wait.standing), context=contextvars.Context())
        self._starts[starting] = wait
        slow = self._loop.call_later(_SLOW_SECONDS, self._take_for_slow, starting)
        starting.add_done_callback(lambda _: slow.cancel())
        starting.add_done_callback(self._started)

    def _take_for_slow(self, starting: asyncio.Task[Child]) -> None:
        """Let this start and the job it was made for wait for each other, and nobody else for them."""
        wait = self._slow_starts[starting] = self._starts.pop(starting)
        with contextlib.suppress(ValueError):
            self._waiting.remove(wait)
        if wait.child.done():
            # it has another by now, or is gone, and this one may hang for ever
            starting.cancel()
        self._look()

    def _started(self, starting: asyncio.Task[Child]) -> None:
        slow = self._slow_starts.pop(starting, None)
        wait = slow or self._starts.pop(starting)
        if starting.cancelled():
            wait.child.cancel()
        elif (error := starting.exception()) is not None:
            if not wait.child.done():
                wait.child.set_exception(error)
        elif not (child := starting.result()).ready:
            if not wait.child.done():
                wait.child.set_result(child)  # it is the death of this one, and of nobody who was luckier
        else:
            if not self._children:
                self._served_since = self._loop.time()
            self._children.add(child)
            child.when_gone(lambda: self._forget(child))
            if self._stopping:
                child.order(STOPPING)
            if slow is not None:
                self._waiting.appendleft(slow)
            self._keep(child)
        self._look()

    async def _answer(
        self, child: Child, task: Task[..., Any], attempt: Held, standing: Standing, errand: bytes
    ) -> Outcome | None:
        """What became of the job; None if the child died before the body began."""
        job, timeout = attempt.claim, task.options.timeout
        if self._stopping:
            errand = line_of({"stopping": True}) + errand  # it may not have heard of it yet: that came by another line
        try:
            answer = await child.errand(standing, errand, timeout, lambda said: self._note(attempt, said))
        except TimeoutError:
            assert timeout is not None
            await child.end(_PATIENCE_SECONDS)
            seconds = time.perf_counter() - (child.line.begun_at or 0.0)
            return outcome_of(task, job, timed_out(timeout), seconds, self._desk.codec)
        if answer is None:
            return None if child.line.begun_at is None else child.lost(job, time.perf_counter() - child.line.begun_at)
        said = json.loads(answer)
        if isinstance(said, list):
            return outcome_from(said, job)
        if "unopened" in said:
            # no fault of the job's, and nothing of it has run
            self._facts.emit(ResourceAwaited(said["unopened"]))
            return Snoozed(job, 0.0, _UNOPENED_SECONDS * random.uniform(0.8, 1.2))
        if "missing" in said:
            return outcome_of(task, job, _not_found(task, **said), 0.0, self._desk.codec)
        if "raised" in said:
            error = failure_from(said.pop("raised")).error
            assert error is not None
            self._facts.emit(JobRaisedAfterSuccess(job.id, job.task, job.attempt, error))
        return outcome_from(said, job)

    def _keep(self, child: Child) -> None:
        """Give a child to the job that has waited longest, if it is still there, or keep it for the next; not for ever."""
        if child.gone:
            child.hang_up()
            return
        while self._waiting:
            wait = self._waiting.popleft()
            if not wait.child.done():
                wait.child.set_result(child)
                return
        self._idle[child] = self._loop.time()
        if self._next_retirement is None:
            self._next_retirement = self._loop.call_later(_IDLE_SECONDS, self._retire)

    def _forget(self, child: Child) -> None:
        self._children.discard(child)
        if self._idle.pop(child, None) is not None:
            child.hang_up()
        self._look()

    def _retire(self) -> None:
        """Let those go that were idle for too long."""
        self._next_retirement = None
        for child, since in list(self._idle.items()):
            if self._loop.time() < since + _IDLE_SECONDS:
                self._next_retirement = self._loop.call_at(since + _IDLE_SECONDS, self._retire)
                return
            del self._idle[child]
            self._let_go(child)

    def _let_go(self, child: Child) -> None:
        leaving = self._leaving[child] = asyncio.create_task(child.leave())
        leaving.add_done_callback(lambda _: self._leaving.pop(child))


def _places(task: Task[..., Any]) -> tuple[Place, ...]:
    """Where a child may find a task: where its function is, or else where its app is, which may be what brings it about."""
    home = task.home
    holders = [
        name
        for name, module in list(sys.modules.items())
        if any(value is home for value in list(getattr(module, "__dict__", {}).values()))
    ]
    return tuple(place_of(name) for name in dict.fromkeys([task.function.__module__, *holders]))


def _not_found(task: Task[..., Any], missing: str, trace: str) -> ConfigurationError:
    error = ConfigurationError(
        f"Task {task.name!r} runs in a process of its own, and was not found there: {missing}. Define it at the top level of "
        "a module that can be imported, on an app which that module makes or imports."
    )
    if trace:
        error.add_note(trace)
    return error
