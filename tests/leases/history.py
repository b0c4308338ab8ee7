"""Histories of leadership, and what must never be in one. Pure: it is told what was seen, and says what is wrong with it.

Processes write down every moment at which `term.valid` said yes, with the time before and after they asked, on the one clock of
their machine. That a term was valid is certain from the end of its first look to the beginning of its last: a process that is
stopped in the middle of a look does not make that longer. What the database keeps, writes and terms, is on its own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

__all__ = ["Begun", "Look", "Span", "Write", "spans", "violations"]


@dataclass(frozen=True, slots=True)
class Look:
    """Someone asked whether its term is valid, and was told that it is."""

    who: str
    epoch: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Write:
    """A fenced write that was committed; numbered in the order in which they were made."""

    number: int
    epoch: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Begun:
    """A term, as the database has it on record."""

    epoch: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when a term was certainly valid."""

    who: str
    epoch: int
    start: float
    end: float


def spans(looks: Iterable[Look]) -> list[Span]:
    """By epoch. One look alone says only that it was valid at some time."""
    terms: dict[tuple[int, str], list[Look]] = {}
    for look in looks:
        terms.setdefault((look.epoch, look.who), []).append(look)
    return [
        Span(who, epoch, min(look.after for look in seen), max(look.before for look in seen))
        for (epoch, who), seen in sorted(terms.items())
    ]


def violations(looks: Iterable[Look], writes: Sequence[Write] = (), begun: Sequence[Begun] = ()) -> list[str]:
    """What is wrong with this history, in words; nothing, if all is well."""
    return [*_of_terms(spans(looks)), *_of_writes(sorted(writes, key=lambda write: write.number), begun)]


def _of_terms(terms: list[Span]) -> Iterable[str]:
    for one, other in pairwise(terms):
        if one.epoch == other.epoch:
            yield f"epoch {one.epoch} was led by both {one.who} and {other.who}"
    latest: Span | None = None  # of those before, the one that was valid last
    for term in terms:
        # who was valid for no time that is certain cannot have been beside anyone
        if term.start > term.end:
            continue
        if latest is not None and term.start <= latest.end:
            yield (
                f"{latest.who} was valid in epoch {latest.epoch} until {latest.end:.3f}, "
                f"and {term.who} in epoch {term.epoch} from {term.start:.3f}"
            )
        latest = term if latest is None or term.end > latest.end else latest


def _of_writes(writes: Sequence[Write], begun: Sequence[Begun]) -> Iterable[str]:
    for before, after in pairwise(writes):
        if after.epoch < before.epoch:
            yield f"write {after.number} of epoch {after.epoch} landed after one of epoch {before.epoch}"
    epochs = {term.epoch for term in begun}
    for write in writes if begun else ():
        if write.epoch not in epochs:
            yield f"write {write.number} is of epoch {write.epoch}, and there was no such term"
        successor = min((term for term in begun if term.epoch > write.epoch), key=lambda t: t.epoch, default=None)
        if successor is not None and write.at >= successor.at:
            yield f"write {write.number} of epoch {write.epoch} was made after epoch {successor.epoch} had begun"
