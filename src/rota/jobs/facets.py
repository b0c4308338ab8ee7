"""How many jobs there are of each kind: exact while all could be looked at, and else of the newest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rota.errors import ConfigurationError
from rota.jobs.search import REACH, WALKED, Floor, check_reach, find_floor
from rota.jobs.wanted import DEAD_FITTING, LIVE_FITTING, SETTLED_FITTING, Wanted, placed
from rota.postgres.query import Row, Steps, statement

__all__ = ["Facets", "count_jobs"]


@dataclass(frozen=True, slots=True)
class Facets:
    """How many jobs fit, and how many by what they are. `exact` says whether all were looked at.

    If not, these are numbers of the jobs that were enqueued since `searched_to`, and of those that run: there may be more.
    """

    total: int
    exact: bool
    searched_to: datetime | None
    states: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)


FACETS = statement(
    "count_jobs",
    """
    with job as materialized (
        select job.state, job.queue, job.task, job.tags, job.member
        from {schema}.jobs as job
    """  # noqa: S608
    + WALKED
    + LIVE_FITTING
    + """
        union all
        (
            select job.state, job.queue, job.task, job.tags, job.member
            from {schema}.jobs as job
            -- by the index of what runs: the sum keeps PostgreSQL from walking there by id
            where job.state = 'running' and job.id + 0 < %(floor)s
    """
    + LIVE_FITTING
    + """
            limit %(reach)s
        )
        union all
        select job.state, job.queue, job.task, job.tags, job.member
        from {schema}.history as job
    """
    + WALKED
    + SETTLED_FITTING
    + """
        union all
        select 'dead', job.queue, job.task, job.tags, job.member
        from {schema}.dead as job
    """
    + WALKED
    + DEAD_FITTING
    + """
    ), told as (
        select 'states' as facet, job.state as value, count(*) as jobs from job group by job.state
        union all
        select 'queues', job.queue, count(*) from job group by job.queue
        union all
        select 'tasks', job.task, count(*) from job group by job.task
        union all
        select 'members', job.member::text, count(*) from job where job.member is not null group by job.member
        union all
        select 'tags', tag, count(*) from job cross join lateral unnest(job.tags) as tag group by tag
    ), ranked as (
        select told.*, row_number() over (partition by told.facet order by told.jobs desc, told.value) as rank from told
    )
    select
        (select count(*) from job),
        (
            select coalesce(jsonb_agg(jsonb_build_array(ranked.facet, ranked.value, ranked.jobs) order by ranked.rank), '[]')
            from ranked
            where ranked.rank <= %(most)s
        )
    """,
)


def count_jobs(wanted: Wanted, *, reach: int = REACH, most: int = 50) -> Steps[Facets]:
    """How many fit, and by what they are: the `most` frequent of each kind. Looks at no more than `reach` rows of each table.

    By error nothing is counted: that would mean to look up every attempt.
    """
    check_reach(reach)
    if wanted.error is not None:
        raise ConfigurationError("Jobs cannot be counted by error. Search for them, or see the groups of dead letters.")
    return _count(wanted, reach, most)


def _count(wanted: Wanted, reach: int, most: int) -> Steps[Facets]:
    wanted, place = yield from placed(wanted)
    params = {**wanted.params, **place, "window": reach, "reach": reach, "most": most}
    floor: Floor = yield find_floor(params)

    def read(rows: Sequence[Row]) -> Facets:
        total, told = rows[0]
        by: dict[str, dict[str, int]] = {}
        for facet, value, jobs in told:
            by.setdefault(facet, {})[value] = jobs
        return Facets(total, floor.id == 0, floor.at if floor.id else None, **by)

    told: Facets = yield FACETS.query({**params, "floor": floor.id}, read=read)
    return told
