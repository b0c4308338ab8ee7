"""Dead letters: jobs that used up their attempts, or took too many processes with them. They stay until someone resolves
them, and tell afterwards how that was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from rota.conversion.plain import read_json
from rota.errors import ConfigurationError, JobNotFound
from rota.jobs.definition import Task
from rota.jobs.inspect import check_id, check_page, text_filters
from rota.jobs.job import JobId, Owner
from rota.jobs.redact import shown_args
from rota.postgres.query import Query, Row, scalar, statement

__all__ = [
    "REASONS",
    "Filters",
    "Letter",
    "LetterFilters",
    "count_free_letters",
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
    #: the argument that other jobs gave it
    _takes: str | None = field(default=None, repr=False, compare=False)


class LetterFilters(TypedDict, total=False):
    """Which letters: those that fit all of these. `error` is a text in the type or the message of the last error."""

    queue: str | None
    task: Task[..., Any] | str | None
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
    return Filters(**text_filters(filters))


_LETTERS = """
    select
        letter.id, letter.task, letter.queue, null, letter.attempt, letter.losses, letter.reason,
        letter.error_type, letter.error_message, letter.error_trace, letter.created_at, letter.died_at, letter.tags,
        letter.version, letter.key, letter.origin, letter.resolved_at, letter.resolution, letter.resolved_by, letter.note,
        letter.successor, letter.args::text, letter.unique_key, letter.inputs ->> 'takes', letter.redact
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


def get_letter(id: JobId, app: Owner | None = None) -> Query[Letter | None]:
    return GET.query({"id": check_id(id)}, read=lambda rows: _letter(rows[0], app) if rows else None)


def found_letter(id: JobId, letter: Letter | None) -> Letter:
    if letter is None:
        raise JobNotFound(f"There is no dead letter {id}. `rota jobs show {id}` tells what became of that job.")
    return letter


def _letter(row: Row, app: Owner | None) -> Letter:
    *parts, redact = row
    letter = Letter(*parts)
    args = shown_args(app, letter.task, read_json(letter._stored), redact)
    return replace(letter, args=args, tags=tuple(letter.tags or ()))


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
    app: Owner | None = None,
) -> Query[list[Letter]]:
    """Letters that fit, the newest first; `after` is the last id of the page before."""
    check_page(limit, after)
    params = {**asdict(filters), "limit": limit, "after": after}
    return LIST[resolved].query(params, read=lambda rows: [_letter(row, app) for row in rows])


COUNT = statement(
    "count_letters",
    "select count(*) from {schema}.dead as letter where letter.resolved_at is null" + _FITTING,  # noqa: S608
)


def count_letters(filters: Filters) -> Query[int]:
    """How many open letters fit."""
    return COUNT.query(asdict(filters), read=scalar)


COUNT_FREE = statement(
    "count_free_letters",
    """
    select
        count(*) filter (where letter.unique_key is null)
        + count(distinct letter.unique_key) filter (
            where not exists (select from {schema}.jobs as live where live.unique_key = letter.unique_key)
        )
    from {schema}.dead as letter
    where letter.resolved_at is null
    """  # noqa: S608
    + _FITTING,
)


def count_free_letters(filters: Filters) -> Query[int]:
    """Of how many of them a job can be made now: one of each unique key, unless a live job has it."""
    return COUNT_FREE.query(asdict(filters), read=scalar)


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
