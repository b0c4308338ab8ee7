"""Claim, run, settle: how any kind of claimable work is consumed. No SQL here; a source knows where the work comes from.

    claim ──▶ ready ──▶ running ──▶ unsettled ──▶ settle
              (bounded)  (concurrency)  (bounded)    (batches)

Work is claimed in batches, ahead of its need only as far as it can run within moments: what waits in this process is
work that no idle peer can have, so what turns out to wait longer is handed back. Outcomes are settled in batches too: at
once when nothing else is going on, a little later while more are coming. Until a batch is durable its outcomes stay here,
also while the database is away; nothing new is started when too many wait.

Stopping has one order: claim no more; hand back what never started; let what runs finish until the deadline, then cancel it
and hand it back; settle what finished. Nothing is dropped on the way: what could not be written in time is
left to rescue, and that is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from rota.clock import Deadline, boottime
from rota.errors import DatabaseUnavailable
from rota.facts import DatabaseBack, DatabaseLost, Drained, Facts
from rota.service.loop import note_refusing

__all__ = ["Consumer", "Source"]

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
ItemInvariant = TypeVar("ItemInvariant")
OutcomeIn = TypeVar("OutcomeIn", contravariant=True)
Result = TypeVar("Result")

# A body that begins here and now, and need not wait, is never on the loop: that is most of what a small one costs.
_EAGER = sys.version_info >= (3, 12)
# For how long bodies are begun in a row, before others have their turn on the loop.
_SLICE_SECONDS = 0.002
# Claim ahead what will be started in this time: a few round trips to the database, so that it is never waited for.
_AHEAD_SECONDS = 0.05
_AHEAD_LIMIT = 4000
# At once: a claim is one statement, and a long one keeps others waiting. A short one leaves the server idle for as long as it takes
# us to read it and to ask for the next, which is a fifth of what a thousand take.
_CLAIM_LIMIT = 2000
# And no more than so many times what the last claim brought: the first few may have been the quick ones.
_GROWTH = 4
# What is ready but will not start within this time is handed back: the work was slower than its predecessors.
_STALE_SECONDS = 0.5
# Outcomes gather while more work is at hand, up to this many or this long.
_SETTLE_BATCH = 1000
_SETTLE_SECONDS = 0.02
_UNSETTLED_LIMIT = 5000
# How soon an outcome that could not be written, though others could, is tried again.
_HINDERED_SECONDS = 0.25
# What a stop may take beyond its deadline to write down what it knows.
_LAST_WORDS_SECONDS = 2.0


class Source(Protocol[ItemInvariant, OutcomeIn]):
    """Where work comes from and where its outcomes go. Each call raises DatabaseUnavailable when it must be repeated."""

    async def claim(self, limit: int) -> Sequence[ItemInvariant]: ...

    async def wait_for_more(self) -> None:
        """Return when a claim may find something: after a wake-up, at a due time, or at the next poll."""

    async def settle(self, outcomes: Sequence[OutcomeIn]) -> Sequence[object]:
        """Make them durable. Returns those that something of their own hinders: they come again, and hold up no others."""

    async def hand_back(
        self, items: Sequence[ItemInvariant], begun: Sequence[ItemInvariant] = ()
    ) -> Sequence[ItemInvariant]:
        """Give up these, which were not begun, and those, whose bodies were cancelled. Returns those that something hinders."""

    def may_start(self) -> bool:
        """Whether what was claimed may still be started."""


class Consumer(Generic[Item, Outcome]):
    """Consumes one source, from `start` until it is drained.

    `run` makes of an item what came of it, and `broken` what came of one that raised instead. SystemExit may not come out of `run`,
    since it ends the loop.
    """

    def __init__(
        self,
        source: Source[Item, Outcome],
        run: Callable[[Item], Coroutine[Any, Any, Outcome]],
        broken: Callable[[Item, BaseException], Outcome],
        *,
        concurrency: int,
        facts: Facts,
        part: str,
    ) -> None:
        self._source = source
        self._run_item = run
        self._broken = broken
        self._concurrency = concurrency
        self._facts = facts
        self._part = part
        self._ready: deque[Item] = deque()
        self._running: dict[int, tuple[asyncio.Task[Outcome], Item]] = {}
        self._started = 0
        self._starting = False
        self._given_up: set[int] = set()
        self._abandoned: set[int] = set()
        self._outlived = 0
        self._unsettled: list[tuple[Item, Outcome]] = []
        self._settling: list[tuple[Item, Outcome]] = []
        self._hindered: list[tuple[Item, Outcome]] = []
        self._stale: list[Item] = []
        self._rate = _Rate()
        self._ahead = 0
        self._most_ahead = 0
        self._room = asyncio.Event()
        self._batch = asyncio.Event()
        self._batch_full = asyncio.Event()
        self._quiet = asyncio.Event()
        self._stocked = asyncio.Event()
        self._hurried = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._paused = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._context = contextvars.copy_context()
        self.finished = 0

    @property
    def idle(self) -> bool:
        """Nothing ready, running, unsettled or on its way back; nor just begun, as another thread may ask."""
        held = self._ready or self._running or self._unsettled or self._settling or self._hindered or self._stale
        return not (held or self._starting)

    async def wait_idle(self) -> None:
        while not self.idle:
            self._quiet.clear()
            await self._quiet.wait()

    def start(self) -> None:
        self._context = contextvars.copy_context()
        self._loops = [asyncio.create_task(loop) for loop in (self._claim(), self._settle(), self._hand_back_stale())]

    async def failure(self) -> None:
        """Return never, or raise what made a loop give up."""
        done, _ = await asyncio.wait(self._loops, return_when=asyncio.FIRST_EXCEPTION)
        for loop in done:
            loop.result()

    async def drain(self, deadline: Deadline) -> None:
        """Stop in the one order that loses nothing."""
        claiming, settling, handing_back = self._loops
        await _cancelled(claiming, handing_back)
        self._stale = [*self._ready, *self._stale]
        self._ready.clear()
        unstarted = len(self._stale)
        await self._wait_for_running(deadline)
        if self._hurried.is_set():
            deadline = Deadline.after(0)
        unfinished = await self._cancel_running()
        given_back = unstarted - len(self._stale)
        left = self._stale = [*self._stale, *unfinished]
        try:
            async with asyncio.timeout(max(deadline.left, _LAST_WORDS_SECONDS)):
                await self._hand_back(unfinished)
                await self.wait_idle()
        except TimeoutError:
            pass
        abandoned = len(self._stale) + len(self._outcomes)
        await _cancelled(settling)
        self._facts.emit(Drained(self.finished, given_back + len(left) - len(self._stale), abandoned))

    @property
    def paused(self) -> bool:
        return self._paused.is_set()

    @property
    def running(self) -> int:
        """How many of its slots are taken."""
        return self._concurrency - self._free

    def pause(self) -> None:
        """Begin nothing new until `resume`: what runs goes on, and what was not begun is handed back."""
        self._open.clear()
        self._paused.set()
        self._stocked.set()

    def resume(self) -> None:
        self._paused.clear()
        self._open.set()
        self._go_on()

    def hurry(self) -> None:
        """End the wait for running items: the drain under way, or the next one, cancels them and hands them back."""
        self._hurried.set()

    def drop(self) -> list[Item]:
        """Forget everything held, since its claims are void, and return it. Bodies are cancelled; an outcome that comes
        all the same is still tried, and refused."""
        running = list(self._running.values())
        self._give_up_running()
        void = [*self._ready, *self._stale, *(item for _, item in running)]
        self._ready.clear()
        self._running.clear()
        self._note_change()
        return void

    def held(self) -> list[Item]:
        """All that is claimed and not yet settled or handed back."""
        finished = [item for item, _ in self._outcomes]
        return [*self._ready, *self._stale, *finished, *(item for _, item in self._running.values())]

    def abandon(self, item: Item, outcome: Outcome) -> None:
        """Settle an item although its body does not end. Its slot stays taken until it does, and what it says then is void."""
        for number, (task, running) in self._running.items():
            if running is item:
                del self._running[number]
                self._abandoned.add(number)
                note_refusing(task)
                self._take_in(item, outcome)
                return

    def occupy(self, body: Future[Any]) -> None:
        """Count a body that goes on after its item was settled, in a thread that nobody can stop, until it ends."""
        loop = asyncio.get_running_loop()
        self._outlived += 1

        def vacate() -> None:
            self._outlived -= 1
            self._go_on()

        def ended(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody counts any more
                loop.call_soon_threadsafe(vacate)

        body.add_done_callback(ended)

    @property
    def _outcomes(self) -> list[tuple[Item, Outcome]]:
        """All that is not durable yet."""
        return [*self._settling, *self._hindered, *self._unsettled]

    @property
    def _free(self) -> int:
        return self._concurrency - len(self._running) - len(self._abandoned) - self._outlived

    def _give_up_running(self) -> None:
        for number, (task, _) in self._running.items():
            self._given_up.add(number)
            task.add_done_callback(lambda _, number=number: self._given_up.discard(number))  # type: ignore[misc]
            task.cancel()

    async def _claim(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.paused:
                await self._open.wait()
            soon = int(self._rate.per_second(self.finished) * _AHEAD_SECONDS)
            self._ahead = min(_AHEAD_LIMIT, soon, self._most_ahead)
            wanted = self._wanted()
            if wanted <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            items = await self._until_done("claim", lambda n=wanted: self._source.claim(n))  # type: ignore[misc]
            self._most_ahead = _GROWTH * max(len(items), self._concurrency)
            if items:
                self._ready.extend(items)
                self._rate.go_on()
                self._stocked.set()
            if len(items) < wanted:
                self._go_on()
                await self._source.wait_for_more()
            else:
                # the next claim is sent first: the server is at it while these begin
                loop.call_soon(self._go_on)

    def _wanted(self) -> int:
        """How many to claim now: free slots, and what the next moments will need."""
        if len(self._unsettled) > _UNSETTLED_LIMIT:
            return 0
        missing = self._free + self._ahead - len(self._ready)
        # with enough at hand, wait until a fair batch is missing rather than claim one by one
        return min(missing, _CLAIM_LIMIT) if missing * 4 >= self._ahead else 0

    def _start_ready(self) -> None:
        """Begin what is ready, as far as there is room. Called by a body that ends while we begin others, we see to it ourselves."""
        if not self._ready or self._starting or self.paused or not self._source.may_start():
            return
        self._starting = True
        loop = asyncio.get_running_loop()
        ends = time.monotonic() + _SLICE_SECONDS
        # what else is counted changes on the loop alone, and that has no turn meanwhile
        ready, running, most, unsettled = self._ready, self._running, self._free + len(self._running), self._unsettled
        try:
            while ready and len(running) < most and len(unsettled) <= _UNSETTLED_LIMIT:
                self._start(ready.popleft(), loop)
                if time.monotonic() > ends:
                    loop.call_soon(self._go_on)
                    break
        finally:
            self._starting = False

    def _go_on(self) -> None:
        self._start_ready()
        self._note_change()

    def _start(self, item: Item, loop: asyncio.AbstractEventLoop) -> None:
        self._started = number = self._started + 1
        # in the context of the start, also when the end of a thread has made the room for it
        context = self._context.copy()
        if not _EAGER:
            self._running[number] = (loop.create_task(self._run_one(number, item), context=context), item)
            return
        try:
            # no coroutine of ours around the body: each costs as much as a small one
            task = asyncio.Task(self._run_item(item), loop=loop, eager_start=True, context=context)  # type: ignore[call-arg]
        except KeyboardInterrupt:  # someone at a terminal wants us to end: what began is handed back with the rest
            self._stale.append(item)
            raise
        if task.done():
            self.finished += 1
            self._unsettled.append((item, self._outcome(item, task)))
        else:
            self._running[number] = (task, item)
            task.add_done_callback(lambda task: self._ended(number, item, task))

    async def _run_one(self, number: int, item: Item) -> Outcome:
        """The body and what comes after it, where bodies begin on the loop: a callback would cost one more turn of it for each."""
        try:
            outcome = await self._run_item(item)
        except BaseException as error:
            if self._is_ours(number, error):
                raise
            outcome = self._broken(item, error)
        self._finish(number, item, outcome)
        return outcome

    def _ended(self, number: int, item: Item, task: asyncio.Task[Outcome]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None or not self._is_ours(number, error):
            self._finish(number, item, self._outcome(item, task))

    def _is_ours(self, number: int, error: BaseException) -> bool:
        """We have cancelled it, and account for it; or someone at a terminal wants us to end, and it is handed back with what runs."""
        return number in self._given_up or isinstance(error, KeyboardInterrupt)

    def _outcome(self, item: Item, task: asyncio.Task[Outcome]) -> Outcome:
        try:
            return task.result()
        except BaseException as error:
            return self._broken(item, error)

    def _finish(self, number: int, item: Item, outcome: Outcome) -> None:
        if self._abandoned and number in self._abandoned:
            self._abandoned.discard(number)
            self._go_on()
            return
        self._running.pop(number, None)
        self._take_in(item, outcome)

    def _take_in(self, item: Item, outcome: Outcome) -> None:
        self.finished += 1
        self._unsettled.append((item, outcome))
        if not self._starting:
            self._start_ready()
            self._note_change()

    async def _settle(self) -> None:
        while True:
            await self._batch.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await self._batch_full.wait()
            batch, self._unsettled = [*self._hindered, *self._unsettled], []
            self._settling, self._hindered = batch, []
            self._batch.clear()
            self._batch_full.clear()
            outcomes = [outcome for _, outcome in batch]
            try:
                left = await self._until_done("settle", lambda outcomes=outcomes: self._source.settle(outcomes))  # type: ignore[misc]
            except BaseException:
                self._unsettled = [*batch, *self._unsettled]
                raise
            finally:
                self._settling = []
            if left:
                hindered = set(map(id, left))
                self._hindered = [each for each in batch if id(each[1]) in hindered]
                asyncio.get_running_loop().call_later(_HINDERED_SECONDS, self._batch.set)
            self._go_on()

    async def _hand_back_stale(self) -> None:
        while True:
            await self._stocked.wait()  # an idle process is not to wake up for nothing
            finished = self.finished
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STALE_SECONDS):
                    await self._paused.wait()
            self._go_on()  # what was held back while nothing might be started
            # the same time again will bring as many to their end as the last did; none of them while nothing is begun
            soon = 0 if self.paused else self.finished - finished
            self._stale = [self._ready.pop() for _ in range(len(self._ready) - soon)]
            if self._stale:
                await self._hand_back()
                self._note_change()
            if not self._ready:
                self._stocked.clear()

    async def _hand_back(self, begun: Sequence[Item] = ()) -> None:
        """Hand back what is stale, of which these were begun; what is hindered is tried again until it is done."""
        were_begun = set(map(id, begun))
        while True:
            stale = self._stale
            fresh = [item for item in stale if id(item) not in were_begun]
            ended = [item for item in stale if id(item) in were_begun]
            # also when there is nothing to name: a claim cut off by a stop may have taken something
            self._stale = list(
                await self._until_done("hand back", lambda: self._source.hand_back(fresh, ended))  # noqa: B023
            )
            if not self._stale:
                return
            await asyncio.sleep(_HINDERED_SECONDS)

    async def _wait_for_running(self, deadline: Deadline) -> None:
        tasks = [task for task, _ in self._running.values()]
        if not tasks:
            return
        # others need not wait for them to have what was not begun
        handing_back = asyncio.create_task(self._hand_back())
        ended = asyncio.create_task(asyncio.wait(tasks))
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait({ended, hurried}, timeout=deadline.left, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        hurried.cancel()
        await _cancelled(handing_back)

    async def _cancel_running(self) -> list[Item]:
        tasks = [task for task, _ in self._running.values()]
        self._give_up_running()
        if tasks:
            # a body that ignores its cancellation is not waited for: its item is handed back, which voids its token
            _, refusing = await asyncio.wait(tasks, timeout=0.5)
            for task in refusing:
                note_refusing(task)
        # one that has ended well is about to say so
        unfinished = [item for task, item in self._running.values() if not _succeeded(task)]
        self._running.clear()
        return unfinished

    def _note_change(self) -> None:
        """Wake whoever waits for room, for outcomes or a full batch of them, or for quiet."""
        if self._unsettled:
            self._batch.set()
            if len(self._unsettled) >= _SETTLE_BATCH or not (self._ready or self._running):
                self._batch_full.set()
        if not self._room.is_set() and self._wanted() > 0:
            self._room.set()
        if not self._ready and not self._running:
            self._rate.rest()
            if self.idle:
                self._quiet.set()

    async def _until_done(self, part: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat the call while the database is away, saying so when it goes, for each reason once, and when it is back."""
        failures, reasons = 0, set[str]()
        while True:
            try:
                result = await call()
            except DatabaseUnavailable as error:
                # that a session was ended is one story, that the next is refused another, and the one to act upon
                if str(error) not in reasons:
                    reasons.add(str(error))
                    self._facts.emit(DatabaseLost(f"{self._part}: {part}", str(error)))
                await asyncio.sleep(min(1.0, 0.05 * 2**failures) * random.uniform(0.5, 1.0))
                failures = min(failures + 1, 10)
                continue
            if failures:
                self._facts.emit(DatabaseBack(f"{self._part}: {part}"))
            return result


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class _Rate:
    """How many are finished per second, over the last moments in which there was something to do.

    The time that a claim takes is none of it: if it were, what is claimed slowly would be claimed in small batches, and so more
    slowly still.
    """

    def __init__(self, window: float = 0.05) -> None:
        self._window = window
        self._finished = 0
        self._since = boottime()
        self._rests_since: float | None = self._since
        self._last: float | None = None

    def rest(self) -> None:
        """There is nothing to do."""
        if self._rests_since is None:
            self._rests_since = boottime()

    def go_on(self) -> None:
        if self._rests_since is not None:
            self._since += boottime() - self._rests_since
            self._rests_since = None

    def per_second(self, finished: int) -> float:
        """Given how many are finished by now. Asked after a pause, it tells the rate over that pause."""
        passed = (self._rests_since or boottime()) - self._since
        rate = (finished - self._finished) / passed if passed > 0 else 0.0
        if passed >= self._window:
            self._last, self._finished = rate, finished
            self._since += passed
        return rate if self._last is None else self._last
