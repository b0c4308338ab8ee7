"""Finding jobs among millions, wherever they are, without ever reading more than was said.

There is no index on what people look for: each would make every job dearer. So a search walks back from the newest job by id,
which is the order in which jobs were enqueued, and looks at no more than `reach` rows of each table. A page that is not full then
says how far back it looked, and where to go on: nothing is passed over, however rare it is.

What does not have to be walked to is not. Jobs that run have an index. A search by error walks the attempts on record, and one
that ends at a time begins there: since ids grow with time, that place is found in some forty looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from rota.errors import ConfigurationError
from rota.jobs.depth import count_running
from rota.jobs.inspect import DEAD_JOBS, JOB_COLUMNS, LIVE_JOBS, SETTLED_JOBS, check_page, read_job
from rota.jobs.job import Job, JobId, Owner
from rota.jobs.wanted import DEAD_FITTING, LIVE_FITTING, SETTLED_FITTING, Wanted, placed
from rota.postgres.query import Query, Row, Steps, one, statement

__all__ = ["REACH", "WALKED", "Floor", "JobsFound", "check_reach", "find_floor", "search_jobs"]

REACH = 50_000  # rows of each table: a tenth of a second on a machine of today
_FIRST = 2_000  # what is common is found among these
_GROWTH = 5
_MOST_NAMED = 1_000  # jobs that are looked up by their ids in one statement


@dataclass(frozen=True, slots=True)
class JobsFound:
    """A page of jobs, the newest first. `after` goes on behind it; None says that there is nothing more.

    Before `searched_to`, the time at which the oldest job looked at was enqueued, nothing was looked at yet.
    """

    jobs: tuple[Job[Any], ...]
    after: JobId | None
    searched_to: datetime | None


WALKED = "where job.id < %(before)s and job.id >= %(floor)s"
_NAMED = "where job.id = any (%(ids)s::bigint[])"
_NEWEST_FIRST = """
            order by job.id desc
            limit %(limit)s
"""
_PAGE = """
    )) as all_jobs
    order by all_jobs.id desc
    limit %(limit)s
"""

SEARCH = statement(
    "search_jobs",
    JOB_COLUMNS
    + "from (("
    + LIVE_JOBS
    + WALKED
    + LIVE_FITTING
    + _NEWEST_FIRST
    + ") union all ("
    + SETTLED_JOBS
    + WALKED
    + SETTLED_FITTING
    + _NEWEST_FIRST
    + ") union all ("
    + DEAD_JOBS
    + WALKED
    + DEAD_FITTING
    + _NEWEST_FIRST
    + _PAGE,
)

SEARCH_NAMED = statement(
    "search_named_jobs",
    JOB_COLUMNS
    + "from (("
    + LIVE_JOBS
    + _NAMED
    + LIVE_FITTING
    + ") union all ("
    + SETTLED_JOBS
    + _NAMED
    + SETTLED_FITTING
    + ") union all ("
    + DEAD_JOBS
    + _NAMED
    + DEAD_FITTING
    + _PAGE,
)

# What runs was mostly enqueued long ago, behind all that waits. It has an index of its own, and all of it is looked at: the sum
# keeps PostgreSQL from walking there by id.
SEARCH_RUNNING = statement(
    "search_running_jobs",
    JOB_COLUMNS
    + "from (("
    + LIVE_JOBS
    + "where job.state = 'running' and job.id < %(before)s"
    + LIVE_FITTING
    + """
            order by job.id + 0 desc
            limit %(limit)s
    """
    + _PAGE,
)


class Floor(NamedTuple):
    """The last row of a walk, and when it was enqueued; 0 when the walk ends before that."""

    id: JobId = 0
    at: datetime | None = None


FLOOR = statement(
    "find_floor",
    """
    select coalesce(max(row.id), 0), (array_agg(row.created_at order by row.id desc))[1]
    from (
        (
            select job.id, job.created_at
            from {schema}.jobs as job
            where %(live)s and job.id < %(before)s
            order by job.id desc
            offset %(window)s - 1
            limit 1
        )
        union all
        (
            select job.id, job.created_at
            from {schema}.history as job
            where %(settled)s and job.id < %(before)s
              and job.finished_at >= coalesce(%(from_at)s::timestamptz, '-infinity')
            order by job.id desc
            offset %(window)s - 1
            limit 1
        )
        union all
        (
            select job.id, job.created_at
            from {schema}.dead as job
            where %(dead)s and job.id < %(before)s and job.resolved_at is null
            order by job.id desc
            offset %(window)s - 1
            limit 1
        )
    ) as row
    """,
)


def find_floor(params: Mapping[str, Any]) -> Query[Floor]:
    """Where a walk from `before` over `window` rows of each table ends."""
    return FLOOR.query(params, read=one(Floor))


# the dead keep their last error themselves, as attempts are dropped by age
FAILED = statement(
    "find_failed_jobs",
    """
    with floor as materialized (
        select coalesce(max(row.id), 0) as id, (array_agg(row.at order by row.id desc))[1] as at
        from (
            (
                select attempt.job_id as id, attempt.finished_at as at
                from {schema}.attempts as attempt
                where attempt.job_id < %(before)s
                order by attempt.job_id desc
                offset %(window)s - 1
                limit 1
            )
            union all
            (
                select letter.id, letter.created_at
                from {schema}.dead as letter
                where letter.id < %(before)s and letter.resolved_at is null
                order by letter.id desc
                offset %(window)s - 1
                limit 1
            )
        ) as row
    ), failed as materialized (
        (
            select attempt.job_id as id, max(attempt.finished_at) as at
            from {schema}.attempts as attempt
            where attempt.job_id < %(before)s
              and attempt.job_id >= (select floor.id from floor)
              and strpos(lower(concat_ws(': ', attempt.error_type, attempt.error_message)), lower(%(error)s)) > 0
            group by attempt.job_id
            order by attempt.job_id desc
            limit %(most)s
        )
        union all
        (
            select letter.id, letter.died_at
            from {schema}.dead as letter
            where letter.id < %(before)s
              and letter.id >= (select floor.id from floor)
              and letter.resolved_at is null
              and strpos(lower(concat_ws(': ', letter.error_type, letter.error_message)), lower(%(error)s)) > 0
            order by letter.id desc
            limit %(most)s
        )
        order by id desc
        limit %(most)s
    )
    select floor.id, floor.at, array(select failed.id from failed), (select min(failed.at) from failed)
    from floor
    """,
)


def search_jobs(
    wanted: Wanted, app: Owner | None, *, limit: int = 100, after: JobId | None = None, reach: int = REACH
) -> Steps[JobsFound]:
    """Jobs that fit, the newest first; looks at no more than `reach` rows of each table, and tells how far that was."""
    check_page(limit, after)
    check_reach(reach)
    return _search(wanted, app, limit, after, reach)


def _search(wanted: Wanted, app: Owner | None, limit: int, after: JobId | None, reach: int) -> Steps[JobsFound]:
    wanted, place = yield from placed(wanted)
    params = {**wanted.params, **place, "limit": limit, "errors": False}
    if after is not None:
        params["before"] = min(params["before"], after)

    def read(rows: Sequence[Row]) -> list[Job[Any]]:
        return [read_job(row, app) for row in rows]

    if wanted.state == "running" and wanted.error is None and (yield from _few_run(reach)):
        jobs = yield SEARCH_RUNNING.query(params, read=read)
        return JobsFound(tuple(jobs), jobs[-1].id if len(jobs) == limit else None, None)

    found: list[Job[Any]] = []
    floor = Floor()
    for window in _windows(reach):
        params.update(window=window, limit=limit - len(found))
        if wanted.error is None:
            floor = yield find_floor(params)
            found += yield SEARCH.query({**params, "floor": floor.id}, read=read)
        else:
            floor, ids = yield _failed(wanted.error, params)
            found += yield SEARCH_NAMED.query({**params, "ids": ids}, read=read)
        if len(found) == limit:
            return JobsFound(tuple(found), found[-1].id, found[-1].created_at)
        if not floor.id:
            return JobsFound(tuple(found), None, None)
        params["before"] = floor.id
    return JobsFound(tuple(found), floor.id, floor.at)


def _failed(error: str, params: Mapping[str, Any]) -> Query[tuple[Floor, list[JobId]]]:
    """Where a walk over failures ends, and which jobs on it had such an error. One that finds many ends at the last of them."""

    def read(rows: Sequence[Row]) -> tuple[Floor, list[JobId]]:
        floor, at, ids, failed_at = rows[0]
        return (Floor(ids[-1], failed_at) if len(ids) == _MOST_NAMED else Floor(floor, at)), ids

    return FAILED.query({**params, "error": error, "most": _MOST_NAMED}, read=read)


def _windows(reach: int) -> Iterable[int]:
    """Parts that add up to the reach: a small one first, as most searches need no more."""
    window = _FIRST
    while reach > 0:
        yield min(window, reach)
        reach -= window
        window *= _GROWTH


def _few_run(reach: int) -> Steps[bool]:
    running: dict[str, int] = yield count_running(most=reach + 1)
    return sum(running.values()) <= reach


def check_reach(reach: Any) -> None:
    if not isinstance(reach, int) or isinstance(reach, bool) or not 1 <= reach <= 10_000_000:
        raise ConfigurationError(
            f"reach cannot be {reach!r}: it is how many jobs of each table are looked at, 1 to 10000000."
        )
