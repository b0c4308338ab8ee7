"""How many statements a piece of work asks of the database: for whoever must not ask too much, such as a page that stays open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["Spent", "counting", "spend"]


class Spent:
    """What was asked so far, with what begins and ends transactions."""

    statements = 0


_SPENT: ContextVar[Spent | None] = ContextVar("rota_spent", default=None)


@contextlib.contextmanager
def counting() -> Iterator[Spent]:
    """Count what this task, and those that it starts, ask through pools of the app, until the block ends."""
    spent = Spent()
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


def spend(statements: int = 1) -> None:
    spent = _SPENT.get()
    if spent is not None:
        spent.statements += statements
