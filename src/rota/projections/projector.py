"""One projection at work, in the process that leads it: look, take in, move on; and what to do when it cannot.

It looks when something was appended, and now and then. While a batch fails it goes on in smaller steps, so that what is before
the event at fault is committed, and the policy meets that one event alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, LeadershipLost, RotaError
from rota.facts import (
    DatabaseBack,
    DatabaseLost,
    EventParked,
    EventsProjected,
    Facts,
    ProjectionAbandoned,
    ProjectionFailed,
    ProjectionHindered,
    ProjectionStalled,
    ProjectionStopped,
)
from rota.failure import describe
from rota.leases.term import Term
from rota.leases.terms import evict
from rota.postgres.pool import Database
from rota.projections.apply import STOP_SECONDS, Applier, Batch, is_away, is_passing
from rota.projections.checkpoint import (
    CheckpointMoved,
    Owned,
    declare_projection,
    fail_projection,
    move_checkpoint,
    take_projection,
)
from rota.projections.definition import ProjectionDefinition
from rota.projections.feed import START, FeedRow, Found, Pair
from rota.projections.hooks import Hooks
from rota.projections.horizon import who_holds_the_horizon
from rota.projections.parked import ParkedEvent, Unfit, fail_replay, find_replays, set_aside
from rota.projections.standing import Standing
from rota.projections.trouble import Park, decide

__all__ = ["Projector"]

# Between looks that find nothing: while messages arrive, and while they do not or nobody sends any.
_POLL_SECONDS = 5.0
_POLL_DEAF_SECONDS = 1.0
# After one that found something or was woken: longer each time, up to those. An append sends no message if another of its
# process did so a moment before.
_AGAIN_SECONDS = 0.005
_AGAIN_FACTOR = 4
_AWAY_SECONDS = 0.5
# How often the checkpoint moves over events that concern nobody here, unless a whole window is full of them.
_PASS_SECONDS = 0.5
# After so long in one batch a handler counts as stalled, and is told of; and after twice as long again.
_STALLED_SECONDS = 30.0
# What ending the session of a handler that hangs may take: its process is about to end, and the session with it.
_EVICT_SECONDS = 2.0
# How often what others' locks were in the way of is repeated before it counts as a failure.
_MOST_PASSING = 10
_REPLAYS = 100


class _Gone(Exception):
    """There is no such build any more: a projection that was forgotten begins with its first."""


class Projector:
    """Reads for one build of one partition while its process leads that. Belongs to the event loop it is made on."""

    def __init__(
        self,
        definition: ProjectionDefinition,
        *,
        build: int,
        partition: int,
        looking: Database,
        applying: Database,
        facts: Facts,
        hears: Callable[[], bool],
        noticed: Callable[[int], None],
    ) -> None:
        self.definition = definition
        self.build = build
        self.partition = partition
        self._noticed = noticed
        # the end of each fact
        self._which = (build, None if definition.partitions == 1 else partition)
        self._looking = looking
        self._facts = facts
        self._hears = hears
        self._feed = definition.feed_of(build=build, partition=partition)
        self._applier = Applier(definition, applying, build)
        self._hooks = Hooks(
            definition, self._feed, self._applier, looking, facts, build=build, partition=partition, rest=self._rest
        )
        self._woken = asyncio.Event()
        self._sizes: deque[int] = deque()
        self._passing = 0
        self._term: Term | None = None
        self._attended_task: asyncio.Task[Pair] | None = None
        self._passed_at = 0.0
        self._again = _POLL_SECONDS
        self.standing = Standing()
        self._away = False

    def wake(self) -> None:
        """There may be something new."""
        self._woken.set()

    async def lead(self, term: Term) -> None:
        """Take in events for as long as the term lasts, or until a later build has taken the place of this one."""
        self._term = term
        try:
            with contextlib.suppress(_Gone):
                await self._lead(term)
        finally:
            self.standing.found(None)
            await self._abandon()

    async def _lead(self, term: Term) -> None:
        owned = Owned(self.definition.name, self.definition.version, term.epoch, self.build, self.partition)
        self._sizes.clear()
        while not await self._taken(owned, term):  # noqa: ASYNC110 - the database is asked
            await asyncio.sleep(_AWAY_SECONDS)
        while True:
            if self._woken.is_set():
                self._woken.clear()
                self._again = _AGAIN_SECONDS
            try:
                if await self._step(term, owned):
                    return
                self._is_back()
            except CheckpointMoved:
                self._sizes.clear()
                if not await self._taken(owned, term):
                    await asyncio.sleep(_AWAY_SECONDS)
            except DatabaseUnavailable as error:
                self._is_away(error)
                await asyncio.sleep(_AWAY_SECONDS * random.uniform(0.5, 1.0))

    async def close(self) -> None:
        """Wait for nobody. What is still in the handler, or in a hook, changes nothing any more."""
        await self._abandon()
        self._applier.leave()

    async def _abandon(self) -> None:
        """End the session of a handler that has not ended in time, so that the next owner need not wait for it.

        The transaction is rolled back by that, and whatever the handler writes later is refused. It may be in a thread, which
        cannot be stopped: it goes on by itself, and the next event is taken in by another.
        """
        refuses = self._attended_task is not None and not self._attended_task.done()
        if self._term is None or not (refuses or self._applier.is_in_a_thread):
            return
        term, self._attended_task = self._term, None
        self._applier.leave()
        # where it cannot be reached, neither can the handler commit: the term that its transaction is bound to is over
        with contextlib.suppress(TimeoutError, RotaError):
            async with asyncio.timeout(_EVICT_SECONDS):
                await self._looking.run(evict(term.name, term.epoch, self._looking.schema))
        told = (self.definition.name, self.definition.version, term.epoch)
        self._facts.emit(ProjectionAbandoned(*told, *self._which))

    async def _taken(self, owned: Owned, term: Term) -> bool:
        try:
            if not await self._looking.run(take_projection(owned)):
                # it was forgotten, or a later term has begun: then ours is over
                await term.confirm()
                if self.build > 1:
                    raise _Gone
                definition = self.definition
                told = (definition.name, definition.version, definition.told(), definition.partitions)
                await self._looking.run(declare_projection(*told))
                return await self._looking.run(take_projection(owned))
        except DatabaseUnavailable as error:
            self._is_away(error)
            return False
        self._is_back()
        return True

    async def _step(self, term: Term, owned: Owned) -> bool:
        """Do what comes next; whether that was the last."""
        size = self._sizes.popleft() if self._sizes else self.definition.batch
        found = await self._looking.run(self._feed.look(size))
        if found is None or found.epoch != owned.epoch:
            raise CheckpointMoved(f"Projection {owned.name!r} is gone, or someone else reads for it.")
        self.standing.found(found)
        term.progress({"position": found.at.position} if found.at.order_xid else None)
        if found.newest != self.build:
            self._noticed(found.newest)
            if found.state == "retired":
                return True
        if found.state != "running":
            self._sizes.clear()
            await self._sleep(self._poll)
        elif not found.prepared and found.at == START and self.definition.prepare is not None:
            await self._hooks.prepare(term, owned, found)
        elif found.replays and not self._sizes:
            await self._replay(term, owned, found)
        elif found.rows:
            self._again = _AGAIN_SECONDS
            done = await self._take_in(term, owned, found)
            if done and not found.live and len(found.rows) < size:
                await self._hooks.switch(term, owned, found)
        elif not found.live and self._has_caught_up(found) and await self._hooks.switch(term, owned, found):
            return False
        elif found.end != found.at and self._is_to_pass(found):
            await self._looking.run(move_checkpoint(owned, found.at, found.end))
        elif found.pending:
            await self._wait_for_the_horizon()
        else:
            # what concerns nobody here is passed over soon, and behind it may come what was appended without a word
            is_soon = found.end != found.at or self._builds(found)
            await self._sleep(min(self._pause(), _PASS_SECONDS) if is_soon else self._pause())
        return False

    def _builds(self, found: Found) -> bool:
        """Whether it is to take the place of another, and has not yet."""
        return not found.live and self.definition.switch is not None

    @staticmethod
    def _has_caught_up(found: Found) -> bool:
        # one that has taken in nothing, while all there is waits for the horizon, is as far as any other and has nothing to show
        return found.end == found.at and not (found.pending and found.at == START)

    # Events.

    async def _take_in(self, term: Term, owned: Owned, found: Found) -> bool:
        """Whether all of it is taken in."""
        batch = self._batch(found)
        began = boottime()
        if isinstance(batch, Unfit):
            # there is nothing to run, but it fails all the same
            await self._failed(owned, found, found.rows[0], batch.failure.error or ValueError(batch.failure.message))
            return False
        try:
            place = await self._attended(term, owned, batch)
        except (CheckpointMoved, LeadershipLost):
            raise
        except Exception as error:
            await self._trouble(owned, found, batch, error)
            return False
        self._passing = 0
        told = (self.definition.name, self.definition.version)
        for each in batch.unfit:
            if each.row.pair <= place and each.failure.error is not None:
                self._facts.emit(EventParked(*told, *each.row.pair, each.attempts, each.failure.error, *self._which))
        took = boottime() - began
        self._facts.emit(EventsProjected(*told, batch.done, *place, took, *self._which))
        return place == found.end

    def _batch(self, found: Found) -> Batch | Unfit:
        """What can be taken in of this together; or the one event that cannot be decoded, if it comes first."""
        # others than the one policy that never waits meet such an event alone
        parks = isinstance(self.definition.on_error, Park) and self.definition.on_error.retry is None
        events, unfit, to = [], [], found.end
        for row in found.rows:
            try:
                events.append(self.definition.readable.decode(row))
            except Exception as error:
                failed = Unfit(row, found.failures + 1, describe(error))
                if parks:
                    unfit.append(failed)
                    continue
                if not events:
                    return failed
                last = events[-1]
                to = Pair(last.order_xid, last.position)
                break
        return Batch(found.at, events, unfit, to)

    async def _attended(self, term: Term, owned: Owned, batch: Batch) -> Pair:
        """Take in the batch. Cancelled, the event that is in hand comes to its end, and what was done is committed."""
        began, tell_after = boottime(), _STALLED_SECONDS
        self.standing.busy_since = began
        self._attended_task = task = asyncio.ensure_future(self._applier.apply(term, owned, batch))
        try:
            while not (await asyncio.wait([task], timeout=tell_after - (boottime() - began)))[0]:
                position = batch.events[batch.index or 0].position if batch.events else batch.at.position
                told = (self.definition.name, self.definition.version, position)
                self._facts.emit(ProjectionStalled(*told, boottime() - began, *self._which))
                tell_after *= 2
        except asyncio.CancelledError:
            batch.stopping = True
            if term.valid:
                await asyncio.wait([task], timeout=STOP_SECONDS)
            task.cancel()
            # whatever becomes of it: it is committed, or it is not
            await asyncio.wait([task], timeout=STOP_SECONDS)
            if task.done() and not task.cancelled():
                task.exception()
            raise
        finally:
            self.standing.busy_since = None
        return task.result()

    # Trouble.

    async def _trouble(self, owned: Owned, found: Found, batch: Batch, error: Exception) -> None:
        if is_away(error, batch):
            raise DatabaseUnavailable(str(error)) from error
        if is_passing(error, batch):
            self._passing += 1
            if self._passing < _MOST_PASSING:
                await asyncio.sleep(0.01 * 2**self._passing * random.uniform(0.5, 1.0))
                return
        rows = [row.pair for row in found.rows]
        if len(rows) > 1:
            # what comes before it is committed first, and it meets the policy alone; what cannot be read counts as well
            event = None if batch.index is None else batch.events[batch.index]
            at = None if event is None else rows.index(Pair(event.order_xid, event.position))
            self._sizes = deque([1] * len(rows) if at is None else [at, 1] if at else [1])
            return
        await self._failed(owned, found, found.rows[0], error)

    async def _failed(self, owned: Owned, found: Found, row: FeedRow, error: BaseException) -> None:
        """An event that came alone cannot be taken in."""
        self._passing = 0
        attempt = found.failures + 1
        told = (self.definition.name, self.definition.version)
        try:
            verdict = decide(self.definition.on_error, attempt, error)
        except Exception as broken:  # the user's backoff function; its fault is told along with the handler's
            broken.__cause__ = error
            error, verdict = broken, "stop"
        failure = describe(error)
        if verdict == "park":
            unfit = Unfit(row, attempt, failure)
            await self._looking.run_steps(set_aside(owned, found.at, unfit))
            self._facts.emit(EventParked(*told, *row.pair, attempt, error, *self._which))
            return
        if not await self._looking.run(fail_projection(owned, found.at, failure, stop=verdict == "stop")):
            raise CheckpointMoved(f"Projection {owned.name!r} was moved, or someone else reads for it.")
        if verdict == "stop":
            self._facts.emit(ProjectionStopped(*told, row.position, attempt, error, *self._which))
            return
        assert isinstance(verdict, float | int)
        self._facts.emit(ProjectionFailed(*told, row.position, attempt, error, verdict, *self._which))
        await self._rest(owned, found.at, verdict)
        self._sizes = deque([1])

    async def _rest(self, owned: Owned, at: Pair, seconds: float) -> None:
        """Wait before the next attempt, unless someone has paused, moved or resumed the projection meanwhile."""
        until = boottime() + seconds
        while (left := until - boottime()) > 0:
            await asyncio.sleep(min(left, _POLL_DEAF_SECONDS))
            found = await self._looking.run(self._feed.look(1))
            if found is None or (found.state, found.at, found.epoch) != ("running", at, owned.epoch):
                return

    async def _replay(self, term: Term, owned: Owned, found: Found) -> None:
        """Try again what was parked and is to be replayed, one by one in the order of the log."""
        for parked in await self._looking.run(find_replays(owned, _REPLAYS)):
            try:
                await self._replay_one(term, owned, found, parked)
            except (CheckpointMoved, LeadershipLost, DatabaseUnavailable):
                raise
            except Exception as error:
                await self._looking.run(fail_replay(owned, parked.pair, describe(error)))
                told = (self.definition.name, self.definition.version)
                self._facts.emit(EventParked(*told, *parked.pair, parked.attempts + 1, error, *self._which))

    async def _replay_one(self, term: Term, owned: Owned, found: Found, parked: ParkedEvent) -> None:
        row = await self._looking.run(self._feed.read(parked.pair))
        if row is None:
            raise LookupError(f"the event at position {parked.position} is no longer in {self.definition.source.name}")
        event = self.definition.readable.decode(row)
        batch = Batch(found.at, [event], [], parked.pair, replay=True)
        try:
            await self._attended(term, owned, batch)
        except Exception as error:
            if is_away(error, batch):
                raise DatabaseUnavailable(str(error)) from error
            raise

    # Waiting.

    @property
    def _poll(self) -> float:
        # nobody need say that a table of the user's has new rows
        return _POLL_SECONDS if self._hears() and self.definition.source.log is not None else _POLL_DEAF_SECONDS

    def _pause(self) -> float:
        pause = min(self._again, self._poll)
        self._again = pause * _AGAIN_FACTOR
        return pause

    def _is_to_pass(self, found: Found) -> bool:
        """Whether the checkpoint is to move over events that concern nobody here; not for each of them."""
        if boottime() - self._passed_at < _PASS_SECONDS and not found.is_full and not self._builds(found):
            return False
        self._passed_at = boottime()
        return True

    async def _wait_for_the_horizon(self) -> None:
        """Something older may still commit, and says nothing when it ends without an event."""
        waited, is_due = self.standing.waits()
        if is_due:
            holder = await self._looking.run(who_holds_the_horizon())
            if holder is not None:
                self.standing.held_by = str(holder)
                told = (self.definition.name, self.definition.version, waited)
                self._facts.emit(ProjectionHindered(*told, str(holder), *self._which))
        await self._sleep(self.standing.pause())

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(1.0, 1.1)):
                await self._woken.wait()

    def _is_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            self._facts.emit(DatabaseLost(f"projection {self.definition.name}", str(error)))

    def _is_back(self) -> None:
        if self._away:
            self._away = False
            self._facts.emit(DatabaseBack(f"projection {self.definition.name}"))
