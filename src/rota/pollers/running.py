"""A poll as its handler sees it: which row it is about, and how the handler's writes commit together with the row's stamp."""

from __future__ import annotations

import contextvars
import json
import time
from collections.abc import Callable
from typing import Any

from rota.errors import ClaimLost, RotaError
from rota.pollers.adaptive import Changed
from rota.pollers.claim import ClaimedRow
from rota.pollers.settle import Fate, Finish
from rota.postgres.block import Block
from rota.postgres.pool import Database

__all__ = ["Held", "NotDone", "PollTransaction", "RunningPoll", "current_poll", "key_text", "not_done", "running"]


class NotDone(RotaError):
    """A row that was polled for its state is still in it."""


def key_text(key: list[Any]) -> str:
    """A key as people write it: the value alone where it has one column."""
    return str(key[0]) if len(key) == 1 else json.dumps(key, ensure_ascii=False)


class Held:
    """A poll as whoever runs it keeps it. Its handler sees a RunningPoll, which has none of this."""

    __slots__ = ("_started", "changed", "claim", "fate", "finish", "stopping", "transactions", "unsure")

    def __init__(self, claim: ClaimedRow, finish: Finish, transactions: Database, stopping: Callable[[], bool]) -> None:
        self.claim = claim
        self.finish = finish
        self.transactions = transactions
        self.stopping = stopping
        self.fate: Fate | None = None  # what a transaction of the handler's has committed
        self.changed = False
        self.unsure = False  # whether such a commit was asked for, and nobody has said what came of it
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started


class RunningPoll:
    """The poll whose handler is running here."""

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def poller(self) -> str:
        return self._held.claim.poller

    @property
    def key(self) -> Any:
        """The row's key; a tuple where it has several columns."""
        key = self._held.claim.key
        return key[0] if len(key) == 1 else tuple(key)

    @property
    def attempt(self) -> int:
        """1 for the first since the row was last polled well; lost ones count too."""
        return self._held.claim.attempts + self._held.claim.losses + 1

    @property
    def token(self) -> int:
        """Changes with every claim; what this attempt writes is valid only while it holds this."""
        return self._held.claim.token

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt to poll this row at this time: hand it to a service that forgets repeats."""
        claim = self._held.claim
        occurrence = f"@{claim.occurrence}" if claim.occurrence else ""
        return f"{self._held.transactions.schema}:{claim.poller}:{key_text(claim.key)}{occurrence}"

    @property
    def stopping(self) -> bool:
        """Whether the worker wants to end, so that a long handler does well to end too."""
        return self._held.stopping()

    def transaction(self, on: Any = None) -> PollTransaction:
        """Work that is committed together with the row's stamp and the end of its claim, or not at all.

        `with` and `async with` give a transaction with a psycopg connection, or with the session or connection of yours that
        you pass. If the claim has ended meanwhile nothing is committed, and ClaimLost is raised. What the handler raises
        afterwards is reported and changes nothing.
        """
        return PollTransaction(self, on)

    def __repr__(self) -> str:
        return f"RunningPoll(poller={self.poller!r}, key={self.key!r}, attempt={self.attempt})"


class PollTransaction(Block):
    """The block of `poll.transaction()`. `connection` is what to write through; set `changed` for a poller that adapts."""

    def __init__(self, poll: RunningPoll, on: Any) -> None:
        if poll._held.fate is not None:
            raise RotaError(f"{poll!r} has been settled already, in an earlier transaction of this handler.")
        super().__init__(poll._held.transactions, on)
        self._held = poll._held
        self.changed: bool | Changed = False

    async def _settle(self) -> None:
        held, changed = self._held, bool(self.changed)
        (fate,) = await self._own.run(held.finish.one(held.claim, changed), held.transactions.schema)
        _check(held.claim, fate)
        self._settled: tuple[Fate, bool] = fate, changed

    async def _commit(self) -> None:
        self._held.unsure = True
        await self._own.commit()
        self._held.fate, self._held.changed = self._settled


def _check(claim: ClaimedRow, fate: Fate) -> None:
    if fate == "lost":
        raise ClaimLost(
            f"The poll of row {key_text(claim.key)} by {claim.poller!r} no longer holds its claim: it was taken over, or released by "
            "hand. What this handler writes changes nothing; let it end."
        )
    if fate in ("undone", "unstamped"):
        raise not_done(claim, fate)


def not_done(claim: ClaimedRow, fate: Fate) -> NotDone:
    """Why a row whose handler returned was not polled well."""
    if fate == "unstamped":
        return NotDone(
            f"row {key_text(claim.key)} was polled, and PostgreSQL did not write its stamp: a trigger, rule or policy of the table "
            "keeps it from being updated"
        )
    return NotDone(
        f"row {key_text(claim.key)} was polled for its state and is still in it: change it in the handler's transaction, or say "
        "with done=... what shall be written"
    )


running: contextvars.ContextVar[RunningPoll] = contextvars.ContextVar("rota_running_poll")


def current_poll() -> RunningPoll:
    """The poll this code runs for. Raises RotaError outside of a poller's handler."""
    try:
        return running.get()
    except LookupError:
        raise RotaError(
            "There is no current poll here: current_poll() works inside the handler of a poller while it runs."
        ) from None
