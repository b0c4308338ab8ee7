"""Reading the log of a job: page by page, or live while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.jobs.inspect import check_id, check_page
from rota.jobs.job import JobId
from rota.jobs.logs.level import level_name
from rota.postgres.query import Query, Row, statement

__all__ = ["Following", "LogLine", "read_log"]

# Between looks of who follows.
_LOOK_SECONDS = 0.5
# Lines gather for half a second before they are written: so long after its end the last ones of a job are there.
_LAST_LINES_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record of a job's body. `id` is what to go on after; `number` its place among the lines of its run.

    `dropped` is how many lines directly before it in its run were logged and not kept.
    """

    id: int
    job: JobId
    attempt: int
    number: int
    dropped: int
    logged_at: datetime
    level: str
    logger: str
    message: str


READ = statement(
    "read_log",
    """
    with page as materialized (
        select line.id, line.token, line.attempt, line.number, line.logged_at, line.level, line.logger, line.message
        from {schema}.logs as line
        where line.job_id = %(id)s
          and line.id > %(after)s
          and (%(attempt)s::integer is null or line.attempt = %(attempt)s)
        order by line.id
        limit %(limit)s
    )
    select
        page.id, page.attempt, page.number,
        page.number - 1 - coalesce(
            lag(page.number) over (partition by page.token order by page.number),
            -- the first of its run on this page
            case when page.number > 1 then (
                select max(line.number)
                from {schema}.logs as line
                where line.job_id = %(id)s and line.token = page.token and line.number < page.number
            ) end,
            0
        ),
        page.logged_at, page.level, page.logger, page.message
    from page
    order by page.id
    """,
)


def read_log(id: JobId, attempt: int | None, after: int | None, limit: int) -> Query[list[LogLine]]:
    """The lines of a job in the order in which they came, of one attempt or of all."""
    check_page(limit, after)

    def read(rows: Sequence[Row]) -> list[LogLine]:
        return [
            LogLine(line, id, attempt, number, dropped, logged_at, level_name(level), logger, message)
            for line, attempt, number, dropped, logged_at, level, logger, message in rows
        ]

    params = {"id": check_id(id), "attempt": attempt, "after": after or 0, "limit": limit}
    return READ.query(params, read=read)


class Following:
    """When someone who follows a log looks again, and when that is over."""

    def __init__(self) -> None:
        self._settled_at: float | None = None

    def pause(self, now: float, *, settled: bool) -> float | None:
        """How long to rest after a look that found nothing new; None if nothing more will come."""
        if not settled:
            self._settled_at = None  # it may have been retried by hand
            return _LOOK_SECONDS
        if self._settled_at is None:
            self._settled_at = now
        return None if now >= self._settled_at + _LAST_LINES_SECONDS else _LOOK_SECONDS
