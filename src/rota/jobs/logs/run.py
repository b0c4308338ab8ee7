"""The log lines of one attempt, within bounds: the first ones, the newest, and by their numbers how many there were between.

A body may log a million lines. The first tell how it began, the newest what it does or how it ended; what lies between is let go.
Lines wait here until they are written. The newest ones go on being written while the body logs, for who looks on; then those
before them, which are no longer among the newest, are forgotten in the database as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rota.jobs.claim import ClaimedJob

__all__ = ["FIRST_LINES", "FIRST_SIZE", "NEWEST_LINES", "NEWEST_SIZE", "Line", "Run"]

# More than anyone reads of one run, and so little that a thousand such runs fit in a gigabyte.
FIRST_LINES = NEWEST_LINES = 500
FIRST_SIZE = NEWEST_SIZE = 128_000  # characters


class Line(NamedTuple):
    """One record. `at` is by the clock that measures durations here; `number` is its place among all lines of its claim."""

    number: int
    at: float
    level: int
    logger: str
    text: str

    @property
    def size(self) -> int:
        return len(self.text) + len(self.logger)


class Run:
    """What is known of the lines of one attempt. Guarded by its owner's lock.

    `secrets` are the texts to blot out, None until someone has asked what they are.
    """

    __slots__ = (
        "_beyond_first",
        "_first",
        "_first_size",
        "_last_first",
        "_lowest_stored",
        "_newest",
        "_newest_size",
        "_stored",
        "claim",
        "number",
        "secrets",
        "waiting_size",
        "wrote_at",
    )

    def __init__(self, claim: ClaimedJob, secrets: Sequence[str] | None = None) -> None:
        self.claim = claim
        self.secrets = secrets
        self.number = 0  # of the last line, kept or not
        self.waiting_size = 0  # of the lines that are to be written
        self.wrote_at: float | None = None  # when lines beyond the first were last written
        self._first: deque[Line] = deque()  # that wait
        self._first_size = 0  # of all there were
        self._last_first = 0  # the number of the last of them
        self._beyond_first = False
        self._newest: deque[Line] = deque()  # that wait
        self._stored: deque[tuple[int, int]] = (
            deque()
        )  # number and size of those that are written, and still among the newest
        self._newest_size = 0  # of both
        self._lowest_stored: int | None = None  # the lowest number beyond the first that the database has

    @property
    def waiting(self) -> int:
        """How many lines are to be written."""
        return len(self._first) + len(self._newest)

    @property
    def flooded(self) -> bool:
        """Whether there are more lines than the first ones."""
        return self._beyond_first

    def add(self, line: Line) -> None:
        """Take in the next line; its number is higher than that of any before."""
        self.number = line.number
        self.waiting_size += line.size
        if not self._beyond_first:
            if self._last_first < FIRST_LINES and self._first_size + line.size <= FIRST_SIZE:
                self._first.append(line)
                self._first_size += line.size
                self._last_first = line.number
                return
            self._beyond_first = True
        self._newest.append(line)
        self._newest_size += line.size
        # what is alone stays, however long it is
        while (kept := len(self._stored) + len(self._newest)) > NEWEST_LINES or (
            self._newest_size > NEWEST_SIZE and kept > 1
        ):
            if self._stored:
                self._newest_size -= self._stored.popleft()[1]
            else:
                size = self._newest.popleft().size
                self._newest_size -= size
                self.waiting_size -= size

    def next(self, most: int) -> list[Line]:
        """The next lines to write, in order. They wait until `wrote` says that they are written."""
        lines = [*self._first, *self._newest]
        return lines[:most]

    def wrote(self, lines: Sequence[Line], at: float) -> None:
        """These lines are in the database."""
        last = lines[-1].number
        while self._first and self._first[0].number <= last:
            self.waiting_size -= self._first.popleft().size
        while self._newest and self._newest[0].number <= last:
            line = self._newest.popleft()
            self.waiting_size -= line.size
            self._stored.append((line.number, line.size))
        if last > self._last_first and self._beyond_first:
            self.wrote_at = at
            if self._lowest_stored is None:
                self._lowest_stored = next(line.number for line in lines if line.number > self._last_first)

    def unwanted(self) -> tuple[int, int] | None:
        """Between which two numbers the database may have lines that are no longer among the newest; None if it has none."""
        oldest = self._stored[0][0] if self._stored else self._newest[0].number if self._newest else self.number + 1
        if self._lowest_stored is None or self._lowest_stored >= oldest:
            return None
        return self._last_first, oldest

    def forgot(self, between: tuple[int, int]) -> None:
        """The database has none of these any more."""
        self._lowest_stored = between[1]
