"""Taking in a batch: the handler's writes and the checkpoint in one transaction, or neither.

The transaction holds the term fast from its first statement (see `leases.terms`), so nobody else begins to read while it is
open, and a session that a frozen process left in it is ended by whoever takes over. Its last statement moves the checkpoint.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import psycopg

from rota.errors import DatabaseUnavailable
from rota.events.event import Event
from rota.leases.fenced import FencedTransaction
from rota.leases.term import Term
from rota.postgres.foreign import foreign
from rota.postgres.pool import Database
from rota.postgres.query import Query
from rota.projections.checkpoint import CheckpointMoved, Owned, move_checkpoint
from rota.projections.definition import ProjectionDefinition
from rota.projections.feed import Pair
from rota.projections.parked import Unfit, park_events, take_parked
from rota.projections.rebuild import wait_a_moment
from rota.service.points import reach

__all__ = ["STOP_SECONDS", "Applier", "Batch", "is_away", "is_passing"]

P = ParamSpec("P")
T = TypeVar("T")

#: What a handler has to end its event, and a hook to end, when its process stops.
STOP_SECONDS = 5.0

# For how many moments what has to be waited for with locks held is: about a second.
_MOMENTS = 40
# What PostgreSQL refuses for what others do at the same time: the same again may well succeed.
_PASSING = psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected


@dataclass(slots=True)
class Batch:
    """Events in hand, and how far they were taken in."""

    at: Pair
    events: Sequence[Event]
    unfit: Sequence[Unfit]
    #: where the checkpoint is when all of it is done
    to: Pair
    #: one that was parked, and is tried again: the checkpoint stays where it is
    replay: bool = False
    #: set from outside: end after the event that is being taken in
    stopping: bool = False
    #: the event that the handler has; None when it has all of them, or none any more
    index: int | None = None
    done: int = 0
    _connection: Any = field(default=None, repr=False)

    @property
    def is_cut_off(self) -> bool:
        return self._connection is not None and bool(self._connection.closed)


class Applier:
    """Runs the handler of one projection: async on the loop, sync in a thread."""

    def __init__(self, definition: ProjectionDefinition, database: Database, build: int = 1) -> None:
        self._definition = definition
        self._said: dict[str, Any] = {"build": build} if definition.takes_build else {}
        self._database = database
        self._threads: ThreadPoolExecutor | None = None
        self._in_thread: Future[Any] | None = None

    @property
    def is_in_a_thread(self) -> bool:
        """Whether a handler or a hook is busy in a thread, though nobody may wait for it any more."""
        return self._in_thread is not None and not self._in_thread.done()

    async def apply(self, term: Term, owned: Owned, batch: Batch) -> Pair:
        """Take in the batch, or as much of it as there is before `stopping`, and return where the checkpoint is."""
        reach("project.read")
        if self._definition.is_async:
            async with FencedTransaction(self._database, term, None) as connection:
                place = await self._take_in(connection, owned, batch)
        else:
            place = await asyncio.wrap_future(self._begun(self._apply_in_thread, term, owned, batch))
        reach("project.committed")
        return place

    async def change(self, term: Term, hook: Callable[..., Any], may: Query[bool | None], note: Query[Any]) -> bool:
        """Run a hook of the author's between two statements of ours, in one transaction. False when the first says no.

        One that cannot tell yet is asked again, for about a second.
        """
        if self._definition.is_async:
            async with FencedTransaction(self._database, term, None) as connection:
                return await self._change(connection, hook, may, note)
        changing = asyncio.wrap_future(self._begun(self._change_in_thread, term, hook, may, note))
        try:
            return await asyncio.shield(changing)
        except asyncio.CancelledError:
            await asyncio.wait([changing], timeout=STOP_SECONDS)
            raise

    def _begun(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="rota-project")
        self._in_thread = begun = self._threads.submit(work, *args, **named)
        return begun

    def _change_in_thread(
        self, term: Term, hook: Callable[..., Any], may: Query[bool | None], note: Query[Any]
    ) -> bool:
        with FencedTransaction(self._database, term, None) as connection:
            return foreign(connection).at_once(self._change, connection, hook, may, note)

    async def _change(
        self, connection: Any, hook: Callable[..., Any], may: Query[bool | None], note: Query[Any]
    ) -> bool:
        on, schema = foreign(connection), self._database.schema
        for _ in range(_MOMENTS):
            if (allowed := await on.run(may, schema)) is not None:
                break
            await on.run(wait_a_moment(), schema)
        if not allowed:
            return False
        value = hook(connection, **self._said)
        if inspect.isawaitable(value):
            await value
        await on.run(note, schema)
        return True

    def leave(self) -> None:
        """Take no more. A thread that is in a handler goes on by itself, and is not waited for; what it writes is refused."""
        self._in_thread = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _apply_in_thread(self, term: Term, owned: Owned, batch: Batch) -> Pair:
        with FencedTransaction(self._database, term, None) as connection:
            try:
                return foreign(connection).at_once(self._take_in, connection, owned, batch)
            except StopIteration as error:
                # no future can hold it, and whoever waits would wait for ever
                raise RuntimeError("the handler raised StopIteration") from error

    # Written once for both colours, as `postgres.foreign` is: on a sync connection nothing is ever waited for.

    async def _take_in(self, connection: Any, owned: Owned, batch: Batch) -> Pair:
        on, schema = foreign(connection), self._database.schema
        batch._connection = connection
        if batch.replay and not await on.run(take_parked(owned, batch.to), schema):
            raise CheckpointMoved(
                f"The event {batch.to.position} is no longer parked, or someone else reads for {owned.name!r}."
            )
        if self._definition.in_batches and batch.events:
            await self._handle(list(batch.events), connection)
            batch.done = len(batch.events)
        else:
            for index, event in enumerate(batch.events):
                if batch.stopping and index:
                    break
                batch.index = index
                await self._handle(event, connection)
                batch.done = index + 1
        batch.index = None
        place = batch.to
        if batch.done < len(batch.events):
            last = batch.events[batch.done - 1]
            place = Pair(last.order_xid, last.position)
        if unfit := [each for each in batch.unfit if each.row.pair <= place]:
            await on.run(park_events(owned, unfit), schema)
        reach("project.handled")
        if not batch.replay:
            await on.run(move_checkpoint(owned, batch.at, place), schema)
        reach("project.moved")
        return place

    async def _handle(self, what: Any, connection: Any) -> None:
        value = self._definition.handler(what, connection, **self._said)
        if inspect.isawaitable(value):
            await value


def is_passing(error: BaseException, batch: Batch) -> bool:
    """Whether it is no fault of the event or the handler: PostgreSQL is away, or others were in the way."""
    if isinstance(error, DatabaseUnavailable | _PASSING):
        return True
    # a handler may have raised an error of its own about it
    causes = list(_causes(error))
    if any(isinstance(each, psycopg.errors.IdleInTransactionSessionTimeout) for each in causes):
        return False  # the handler kept its transaction waiting, and will again
    lost = any(isinstance(each, psycopg.OperationalError | psycopg.InterfaceError) for each in causes)
    return lost and batch.is_cut_off


def is_away(error: BaseException, batch: Batch) -> bool:
    """Whether the database cannot be worked with now: it is not there, or has no disk, memory or connections left to give."""
    if isinstance(error, DatabaseUnavailable) or (batch.is_cut_off and is_passing(error, batch)):
        return True
    return any(
        isinstance(each, psycopg.OperationalError) and (each.sqlstate or "").startswith("53") for each in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised for."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        yield cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
