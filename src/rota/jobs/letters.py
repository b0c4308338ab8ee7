"""Dead letters: jobs that used up their attempts, or took too many processes with them. They stay until someone resolves
them, and tell afterwards how that was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from rota.errors import ConfigurationError, JobNotFound
from rota.jobs.codec import Codec, readable
from rota.jobs.conversion.plain import read_json
from rota.jobs.inspect import check_id
from rota.jobs.job import JobId, masked
from rota.postgres.query import Query, Row, scalar, statement

__all__ = [
    "REASONS",
    "Filters",
    "Letter",
    "LetterFilters",
    "count_letters",
    "find_letters",
    "found_letter",
    "get_letter",
    "list_letters",
    "read_filters",
]

REASONS = ("failed", "lost")


@dataclass(frozen=True, slots=True)
class Letter:
    """A job that is dead. `reason` is failed or lost; `resolution`, once it has one, retried or acknowledged."""

    id: JobId
    task: str
    queue: str
    args: Any
    attempt: int
    losses: int
    reason: str
    error_type: str | None
    error_message: str | None
    error_trace: str | None
    created_at: datetime
    died_at: datetime
    tags: tuple[str, ...]
    version: int
    key: str | None
    #: the letter or settled job that this one repeated
    origin: JobId | None
    resolved_at: datetime | None
    resolution: str | None
    resolved_by: str | None
    note: str | None
    #: the job that was made when it was retried
    successor: JobId | None
    _stored: str = field(default="{}", repr=False, compare=False)
    _unique_key: UUID | None = field(default=None, repr=False, compare=False)


class LetterFilters(TypedDict, total=False):
    """Which letters: those that fit all of these. `error` is a text in the type or the message of the last error."""

    queue: str | None
    task: str | None
    tag: str | None
    reason: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Filters:
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    reason: str | None = None
    error: str | None = None


def read_filters(filters: LetterFilters) -> Filters:
    """Refuse what is no filter, rather than resolve more letters than were meant."""
    if unknown := filters.keys() - LetterFilters.__annotations__.keys():
        raise ConfigurationError(
            f"Dead letters cannot be chosen by {', '.join(sorted(unknown))}: "
            f"the filters are {', '.join(LetterFilters.__annotations__)}."
        )
    reason = filters.get("reason")
    if reason is not None and reason not in REASONS:
        raise ConfigurationError(f"No letter's reason is {reason!r}: it is one of {', '.join(REASONS)}.")
    return Filters(**filters)


_LETTERS = """
    select
        letter.id, letter.task, letter.queue, null, letter.attempt, letter.losses, letter.reason,
        letter.error_type, letter.error_message, letter.error_trace, letter.created_at, letter.died_at, letter.tags,
        letter.version, letter.key, letter.origin, letter.resolved_at, letter.resolution, letter.resolved_by, letter.note,
        letter.successor, letter.args::text, letter.unique_key, letter.redact
    from {schema}.dead as letter
"""

_FITTING = """
      and (%(queue)s::text is null or letter.queue = %(queue)s)
      and (%(task)s::text is null or letter.task = %(task)s)
      and (%(tag)s::text is null or %(tag)s = any (letter.tags))
      and (%(reason)s::text is null or letter.reason = %(reason)s)
      -- as it is shown, whatever the case
      and (
          %(error)s::text is null
          or strpos(lower(concat_ws(': ', letter.error_type, letter.error_message)), lower(%(error)s)) > 0
      )
"""

GET = statement("get_letter", _LETTERS + "where letter.id = %(id)s")


def get_letter(id: JobId, codec: Codec | None = None) -> Query[Letter | None]:
    return GET.query({"id": check_id(id)}, read=lambda rows: _letter(rows[0], codec) if rows else None)


def found_letter(id: JobId, letter: Letter | None) -> Letter:
    if letter is None:
        raise JobNotFound(f"There is no dead letter {id}. `rota jobs show {id}` tells what became of that job.")
    return letter


def _letter(row: Row, codec: Codec | None) -> Letter:
    *parts, redact = row
    letter = Letter(*parts)
    return replace(
        letter, args=masked(readable(codec, read_json(letter._stored)), redact), tags=tuple(letter.tags or ())
    )


_PAGE = """
      and (%(after)s::bigint is null or letter.id < %(after)s)
    order by letter.id desc
    limit %(limit)s
"""

LIST = {
    False: statement("list_open_letters", _LETTERS + "where letter.resolved_at is null" + _FITTING + _PAGE),
    True: statement("list_resolved_letters", _LETTERS + "where letter.resolved_at is not null" + _FITTING + _PAGE),
    None: statement("list_letters", _LETTERS + "where true" + _FITTING + _PAGE),
}


def list_letters(
    filters: Filters,
    *,
    resolved: bool | None = False,
    limit: int = 100,
    after: JobId | None = None,
    codec: Codec | None = None,
) -> Query[list[Letter]]:
    """Letters that fit, the newest first; `after` is the last id of the page before."""
    if not isinstance(limit, int) or not 1 <= limit <= 10_000:
        raise ConfigurationError(
            f"limit cannot be {limit!r}: it is a number from 1 to 10000; use after=... for the next page."
        )
    params = {**asdict(filters), "limit": limit, "after": None if after is None else check_id(after)}
    return LIST[resolved].query(params, read=lambda rows: [_letter(row, codec) for row in rows])


COUNT = statement(
    "count_letters",
    "select count(*) from {schema}.dead as letter where letter.resolved_at is null" + _FITTING,  # noqa: S608
)


def count_letters(filters: Filters) -> Query[int]:
    """How many open letters fit."""
    return COUNT.query(asdict(filters), read=scalar)


FIND = statement(
    "find_letters",
    "select letter.id from {schema}.dead as letter where letter.resolved_at is null"  # noqa: S608
    + _FITTING
    + """
      and letter.id > %(after)s
    order by letter.id
    limit %(limit)s
    """,
)


def find_letters(filters: Filters, after: JobId, limit: int) -> Query[list[JobId]]:
    """The next open letters that fit, the oldest first."""
    params = {**asdict(filters), "after": after, "limit": limit}
    return FIND.query(params, read=lambda rows: [row[0] for row in rows])
