"""Writing outcomes so that one which PostgreSQL refuses holds up no other.

Many are written by one statement, and what it does to one row may be refused: by a constraint, by a trigger of the user's, since
that waits for a lock, or takes too long. Then nothing of the statement is written. What was in it is tried again in smaller
pieces, until it is known which row it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

import psycopg

from rota.clock import boottime
from rota.errors import DatabaseUnavailable, RotaError

__all__ = ["Pieces", "is_too_slow", "may_pass", "said"]

Outcome = TypeVar("Outcome")

MOST = 500
# Each refusal may have been waited for, and what is written is not: rather many small pieces than many refusals.
_DIVISOR = 8
# After so long in refusals, others have their turn.
_REFUSALS_SECONDS = 2.0
# For how long pieces stay smaller after one that took too long, before larger ones are tried.
_CAREFUL_SECONDS = 60.0


class Pieces(Generic[Outcome]):
    """How large the pieces are, and what is known of outcomes that were refused until they are written."""

    def __init__(self) -> None:
        self._most = MOST
        self._careful_until = 0.0
        # by the id of the outcome: in how large a piece it may be; less than nothing, how often it was refused alone
        self._room: dict[int, int] = {}
        self._refused_at: dict[int, float] = {}

    async def write(
        self, outcomes: Sequence[Outcome], write: Callable[[Sequence[Outcome]], Awaitable[None]]
    ) -> tuple[list[tuple[Outcome, RotaError]], list[Outcome]]:
        """Write them; returns those that were refused alone, and why, and those that it did not come to.

        Raises DatabaseUnavailable when PostgreSQL did not answer.
        """
        if self._most < MOST and boottime() > self._careful_until:
            self._be_careful(min(MOST, self._most * 2))
        refused: list[tuple[Outcome, RotaError]] = []
        waiting, patience = list(outcomes), _REFUSALS_SECONDS
        while waiting and patience > 0:
            # first what nothing is known against
            waiting.sort(key=self._room_of, reverse=True)
            room = self._room_of(waiting[0])
            alike = takewhile(lambda each: self._room_of(each) == room, waiting[: max(1, room)])  # noqa: B023
            piece = list(alike)
            del waiting[: len(piece)]
            begun_at = boottime()
            try:
                await write(piece)
            except RotaError as error:
                if isinstance(error, DatabaseUnavailable) and not may_pass(error):
                    raise
                patience -= boottime() - begun_at
                self._note(piece, error)
                if len(piece) == 1:
                    refused.append((piece[0], error))
                else:
                    waiting += piece
            else:
                self._forget(map(id, piece))
        return refused, waiting

    def refused_for(self, outcome: Outcome) -> float | None:
        """For how many seconds it has been refused alone, and None for the first time."""
        if self._room.get(id(outcome), 0) >= -1:
            return None
        return boottime() - self._refused_at[id(outcome)]

    def _forget(self, ids: Iterable[int]) -> None:
        for each in ids:
            self._room.pop(each, None)
            self._refused_at.pop(each, None)

    def _room_of(self, outcome: Outcome) -> int:
        return self._room.get(id(outcome), self._most)

    def _note(self, piece: Sequence[Outcome], error: RotaError) -> None:
        if len(piece) > 1:
            smaller = max(1, len(piece) // _DIVISOR)
            if is_too_slow(error) and not any(id(each) in self._room for each in piece):
                self._be_careful(smaller)  # not when it was looked for one slow row among these
            self._room |= dict.fromkeys(map(id, piece), smaller)
            return
        alone = id(piece[0])
        self._room[alone] = min(0, self._room.get(alone, 0)) - 1
        self._refused_at.setdefault(alone, boottime())

    def _be_careful(self, most: int) -> None:
        self._most, self._careful_until = most, boottime() + _CAREFUL_SECONDS


def may_pass(error: RotaError) -> bool:
    """Whether PostgreSQL answered, and refused for what others do at the same time, for a lock, or since it took too long."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and (cause.sqlstate or "").startswith(("40", "55P03", "57014"))


def is_too_slow(error: RotaError) -> bool:
    """Whether PostgreSQL gave up a statement for the time that it took."""
    return isinstance(error.__cause__, psycopg.errors.QueryCanceled)


def said(error: RotaError) -> str:
    """What PostgreSQL said about something of the user's: our words would be about tables of Rota's."""
    cause = error.__cause__
    return (cause.diag.message_primary if isinstance(cause, psycopg.Error) else None) or str(error)
