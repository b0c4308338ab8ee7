"""What `@app.poller(...)` makes of a function: still callable, and able to run a round or one row by hand."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from rota.clock import Deadline
from rota.errors import ConfigurationError, DatabaseUnavailable, NotPossible, RotaError
from rota.facts import Facts, RowLost
from rota.leases.control import Control
from rota.pollers.by_hand import ByHand
from rota.pollers.check import PollerCheck, check_poller
from rota.pollers.claim import ClaimedRow
from rota.pollers.ddl import ddl_of
from rota.pollers.definition import PollerDefinition
from rota.pollers.due import Plan
from rota.pollers.execute import Executor, FailedPoll, Outcome
from rota.pollers.inspect import Backlog, DueRow, Holder, backlog, find_holder, preview_rows
from rota.pollers.long_keys import is_too_long
from rota.pollers.rescue import rescue_rows
from rota.pollers.running import key_text
from rota.pollers.sessions import Sessions
from rota.pollers.settle import Finish
from rota.pollers.shape import key_value
from rota.pollers.source import PollSource
from rota.postgres.notify import poll_channel
from rota.postgres.pool import Database

__all__ = ["PollStats", "Poller"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A round goes on past rows that fail, so that they do not take the places of others; but not for ever.
_MOST_FAILURES = 10
_LOCKED_SECONDS = 0.25
_LOCKED_PATIENCE = 60.0
_MOST_LOOKS = 100
# For how long what became of a row is tried to be written while PostgreSQL does not answer, and how often.
_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class PollStats:
    """What a round did: how many rows were taken, how many of them polled well, and why the others were not.

    Each of `errors` is "key: type: message". `held_by` is who had the row that `poll(key)` was asked for, if someone did.
    """

    claimed: int = 0
    completed: int = 0
    errors: list[str] = field(default_factory=list)
    held_by: str | None = None


class Home(Protocol):
    """The app of a poller."""

    database: Database
    facts: Facts
    _by_hand: ByHand

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]: ...


class Poller(Generic[P, R]):
    """A function that polls rows of a table. Calling it calls the function."""

    def __init__(self, definition: PollerDefinition, home: Home) -> None:
        self.definition = definition
        self._home = home
        functools.update_wrapper(self, definition.handler)

    @property
    def name(self) -> str:
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.definition.handler(*args, **kwargs)  # type: ignore[no-any-return]

    async def run_once(self, max_rows: int = 10, *, dry_run: bool = False) -> PollStats:
        """Take rows that are due and poll them, until `max_rows` are polled well or none is due; returns what came of it.

        Rows that fail wait for their next attempt and do not count, so that they take the place of no other; ten times `max_rows`
        ends a round all the same. With `dry_run` nothing is taken: `claimed` says how many would be.

        Cancelled, it gives back what is not polled, but for rows whose handler runs in a thread: those it keeps until that has
        ended, or it is cancelled again.
        """
        if not isinstance(max_rows, int) or isinstance(max_rows, bool) or max_rows < 1:
            raise ConfigurationError(f"max_rows cannot be {max_rows!r}: it is a whole number, 1 or more.")
        if dry_run:
            return PollStats(claimed=len(await self.preview(max_rows)))
        async with self._round() as round_:
            return await round_.poll_due(max_rows)

    def run_once_sync(self, max_rows: int = 10, *, dry_run: bool = False) -> PollStats:
        return self._now(self.run_once(max_rows, dry_run=dry_run), "run_once")

    async def poll(self, *key: Any) -> PollStats:
        """Poll the row of this key now, be it due or not, waiting for another attempt or parked.

        If someone else polls it at this moment nothing is done, and `held_by` says who. Raises NotPossible when there is no such
        row, or it does not fit the poller's `where`.
        """
        values = _key(key, self.definition)
        async with self._round() as round_:
            return await round_.poll_this(values)

    def poll_sync(self, *key: Any) -> PollStats:
        return self._now(self.poll(*key), "poll")

    async def preview(self, max_rows: int = 10) -> list[DueRow]:
        """The rows that would be taken next, in their order."""
        async with self._home._by_hand.look(self.definition) as (plan, database):
            return await database.run(preview_rows(plan, max_rows))

    def preview_sync(self, max_rows: int = 10) -> list[DueRow]:
        return self._now(self.preview(max_rows), "preview")

    async def backlog(self) -> Backlog:
        """How many rows are due at this moment that nobody has yet, and since when; counts all of them."""
        async with self._home._by_hand.look(self.definition) as (plan, database):
            return await database.run(backlog(plan))

    def backlog_sync(self) -> Backlog:
        return self._now(self.backlog(), "backlog")

    async def check(self) -> PollerCheck:
        """How PostgreSQL finds its due rows, which index is missing for that, and what else to know; changes nothing."""
        async with self._home._by_hand.fresh() as database:
            return await check_poller(database, self.definition)

    def check_sync(self) -> PollerCheck:
        return self._now(self.check(), "check")

    async def ddl(self, *, notify: bool = False) -> str:
        """SQL for whoever may change the table: the index that is missing, and with `notify` a trigger that wakes idle workers
        when rows are written. Runs none of it."""
        async with self._home._by_hand.fresh() as database:
            return await ddl_of(database, self.definition, notify=notify)

    def ddl_sync(self, *, notify: bool = False) -> str:
        return self._now(self.ddl(notify=notify), "ddl")

    def _now(self, call: Coroutine[Any, Any, T], verb: str) -> T:
        return self._home._by_hand.call(call, verb)

    @contextlib.asynccontextmanager
    async def _round(self) -> AsyncIterator[_Round]:
        async with self._home._by_hand.round(self.definition) as (plan, sessions, control):
            round_ = _Round(plan, sessions, control, self._home.facts)
            try:
                yield round_
            finally:
                await round_.close()

    def __repr__(self) -> str:
        return f"<Poller {self.name!r}>"


class _Round:
    """Polls by hand: rows are taken, polled and settled batch by batch."""

    def __init__(self, plan: Plan, sessions: Sessions, control: Control, facts: Facts) -> None:
        finish = Finish(plan)
        self._plan = plan
        self._sessions = sessions
        self._control = control
        self._facts = facts
        self._executor = Executor(
            plan, finish, transactions=sessions.transactions, stopping=lambda: self._ending, facts=facts
        )
        self._source = PollSource(
            plan,
            finish,
            sessions,
            control=lambda: control,
            failed=self._executor.failed,
            facts=facts,
            settled=self._settled,
        )
        self._completed = 0
        self._errors: dict[tuple[int, str], str] = {}  # by claim, in the order in which rows were taken; most are empty
        self._held: list[ClaimedRow] = []
        self._waiting: list[ClaimedRow] = []  # those of them that were not begun
        self._polled: set[asyncio.Task[Any] | None] = set()  # who have an outcome to write
        self._places = asyncio.Semaphore(plan.definition.concurrency)
        self._caller: asyncio.Task[Any] | None = None
        self._ending = False

    async def poll_due(self, max_rows: int) -> PollStats:
        await self._rescue()
        claimed = looks_in_vain = 0
        while self._completed < max_rows and claimed < _MOST_FAILURES * max_rows and looks_in_vain < _MOST_LOOKS:
            rows = await self._source.claim(max_rows - self._completed)
            if rows:
                claimed += len(rows)
                await self._run(rows)
                continue
            self._check_look()
            if not self._source.found_more:
                break
            looks_in_vain += 1  # others had first what was found, and there is more
        return PollStats(claimed, self._completed, self._told())

    def _check_look(self) -> None:
        """Raise why nothing was found, if it is not for want of due rows."""
        if self._source.hindered_by is not None:
            raise RotaError(self._source.hindered_by)
        if not self._control.may_act:
            raise DatabaseUnavailable(
                f"Poller {self._plan.definition.name!r} may not take rows: the session that keeps this process's lease is lost. "
                "Nothing is wrong with the call; repeat it when the database is back."
            )

    async def poll_this(self, key: list[Any]) -> PollStats:
        await self._rescue()
        name = self._plan.definition.name
        try:
            exists, row = await self._source.claim_this(key)
        except RotaError as error:
            if not is_too_long(error):
                raise
            raise NotPossible(
                f"Poller {name!r} cannot poll row {key_text(key)[:100]}…: its key is too long for a claim, which takes about "
                "2,600 bytes. Give the table a shorter unique key for key=..."
            ) from error
        if row is None and not exists:
            raise NotPossible(
                f"Poller {name!r} cannot poll row {key_text(key)}: there is none in {self._plan.shape}"
                + (f" that fits {self._plan.definition.where!r}." if self._plan.definition.where else ".")
            )
        if row is None:
            holder: Holder | None = await self._sessions.settling.run(find_holder(self._plan, key))
            return PollStats(held_by=holder.name if holder else "someone who has just ended")
        await self._run([row])
        return PollStats(1, self._completed, self._told())

    async def close(self) -> None:
        """Give back what was taken and not settled: the caller was cancelled, or PostgreSQL did not answer."""
        self._executor.close()
        with contextlib.suppress(RotaError):  # rescue does it when this process ends
            await _patiently(lambda: self._source.hand_back(self._held))

    async def _rescue(self) -> None:
        """Take over from ended members: where rows are only polled by hand, nobody else does."""
        channel = poll_channel(self._sessions.settling.schema)
        for lost in await self._sessions.settling.run(rescue_rows(channel)):
            self._facts.emit(RowLost(lost.poller, lost.key, lost.member, lost.losses, lost.parked))

    async def _run(self, rows: Sequence[ClaimedRow]) -> None:
        """Poll these to their end."""
        self._held += rows
        self._waiting = [*rows]
        self._errors |= {_claim(row): "" for row in rows}
        self._caller = asyncio.current_task()
        tasks = [asyncio.create_task(self._run_one(row)) for row in rows]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            self._ending = True  # whose cancellation is whose
            for task in tasks:
                if task not in self._polled and not task.cancelling():  # whoever cleans up is left to it
                    task.cancel()
            # a handler in a thread goes on to its end; others need not wait for it to have what was not begun
            unbegun = self._source.hand_back(self._waiting)
            await asyncio.gather(unbegun, *tasks, return_exceptions=True)
            self._ending = False
            self._polled.clear()

    async def _run_one(self, row: ClaimedRow) -> None:
        async with self._places:
            self._waiting.remove(row)
            try:
                outcome = await self._executor.run(row)
            except BaseException as error:
                if self._ending or self._is_cancelled() or isinstance(error, KeyboardInterrupt):
                    raise  # cancelled by us, or along with us at the end of the loop
                outcome = self._executor.broken(row, error)
        self._polled.add(asyncio.current_task())
        patience = Deadline.after(_LOCKED_PATIENCE)
        while await _patiently(lambda: self._source.settle([outcome])):
            if patience.left <= 0 or self._ending:
                self._errors[_claim(row)] = (
                    "it was polled, but someone has it locked, so it is not stamped and will be polled again"
                )
                return  # it is given back at the end
            await asyncio.sleep(_LOCKED_SECONDS)
        self._held.remove(row)

    def _told(self) -> list[str]:
        return [f"{key}: {error}" for (_, key), error in self._errors.items() if error]

    def _is_cancelled(self) -> bool:
        return self._caller is not None and self._caller.cancelling() > 0

    def _settled(self, outcome: Outcome, fate: str) -> None:
        if fate == "failed" and isinstance(outcome, FailedPoll):
            self._errors[_claim(outcome.row)] = f"{outcome.failure.type}: {outcome.failure.message}"
        elif fate == "lost":
            self._errors[_claim(outcome.row)] = (
                "ClaimLost: it was taken over meanwhile, and what this poll did changed nothing"
            )
        else:
            self._completed += 1


def _claim(row: ClaimedRow) -> tuple[int, str]:
    return row.token, key_text(row.key)


def _key(given: tuple[Any, ...], definition: PollerDefinition) -> list[Any]:
    values = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    if len(values) != len(definition.key):
        raise ConfigurationError(
            f"poll({', '.join(map(repr, given))}) names no row: the key of {definition.name!r} is {', '.join(definition.key)}."
        )
    return [key_value(value) for value in values]


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat the call while PostgreSQL does not answer, for a while: what a handler has done is not known to anyone else."""
    patience = Deadline.after(_PATIENCE_SECONDS)
    while True:
        try:
            return await call()
        except DatabaseUnavailable:
            if patience.left <= 0:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)
