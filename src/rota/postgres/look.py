"""How people look: bounded in time, and at nobody's expense.

A page would rather show what it has than wait; and whoever works must not notice that someone looks.
"""

from __future__ import annotations

from typing import Any, TypeVar

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError
from rota.postgres.query import Query, Steps, nothing, statement

__all__ = ["LOOKING", "alone", "is_setting_up", "look"]

T = TypeVar("T")

#: How a session is set up in which people look, and nobody does anything else. Why, is told below.
LOOKING = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}

# The same for this transaction only: it holds behind a pooler as well, and nobody else has it afterwards.
SETTINGS = statement(
    "begin_look",
    """
    select
        -- stale statistics must not turn a short walk into a read of everything
        pg_catalog.set_config('enable_seqscan', 'off', true),
        -- or into one that reads, and sorts, all that lies behind the row it would have stopped at
        pg_catalog.set_config('enable_bitmapscan', 'off', true),
        -- nor may a look cost a busy server more than one of its processors, or be compiled for longer than it takes
        pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
        pg_catalog.set_config('jit', 'off', true),
        pg_catalog.set_config('statement_timeout', coalesce(%(limit)s, current_setting('statement_timeout')), true)
    """,
)


def look(steps: Steps[T], deadline: Duration | None = None) -> Steps[T]:
    """The same steps for people. A statement that takes longer than `deadline` is ended by the server: DatabaseUnavailable."""
    limit = None if deadline is None else seconds(deadline, "deadline")
    if limit is not None and not 0.001 <= limit <= 86400:
        raise ConfigurationError(f"deadline cannot be {deadline!r}: it is from a millisecond to a day.")

    def begun() -> Steps[T]:
        yield SETTINGS.query({"limit": None if limit is None else f"{int(limit * 1000)}ms"}, read=nothing)
        return (yield from steps)

    return begun()


def is_setting_up(query: Query[Any]) -> bool:
    """Whether this only sets up what a session for looking has anyway."""
    return query.statement is SETTINGS


def alone(query: Query[T]) -> Steps[T]:
    """One query as steps."""
    return (yield query)  # type: ignore[no-any-return]
