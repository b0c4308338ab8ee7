"""Running a schedule by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from rota.clock import Duration
from rota.errors import ConfigurationError, ScheduleNotFound
from rota.jobs.checks import check_at, check_delay
from rota.jobs.codec import Codec
from rota.jobs.definition import Task
from rota.jobs.inspect import get_job
from rota.jobs.job import Job, Owner
from rota.postgres.audit import record
from rota.postgres.query import Query, Row, Steps, statement
from rota.schedules.arguments import laid_over
from rota.schedules.operate import find_schedule

__all__ = ["trigger_schedule"]


QUEUED_ARGUMENTS = statement(
    "queued_arguments",
    """
    select job.args::text
    from {schema}.jobs as job
    where job.schedule = %(name)s
      and job.state in ('queued', 'blocked')
      and job.attempt = 0
    order by job.id
    limit 1000
    """,
)


def queued_arguments(name: str) -> Query[list[str]]:
    """The arguments of its runs that have not begun, as they are stored."""
    return QUEUED_ARGUMENTS.query({"name": name}, read=lambda rows: [row[0] for row in rows])


TRIGGER = statement(
    "trigger_schedule",
    """
    select made.job_id, made.existing
    from {schema}.trigger_schedule(
        %(name)s::text, %(args)s::text::jsonb,
        coalesce(%(at)s::timestamptz, {schema}.now() + %(delay)s::float8 * interval '1 second')
    ) as made
    """,
)


def trigger_schedule(
    name: str,
    args: Mapping[str, Any] | None,
    at: datetime | None,
    delay: Duration | None,
    *,
    tasks: Mapping[str, Task[..., Any]],
    codec: Codec | None,
    actor: str,
    app: Owner,
) -> Steps[Job[Any]]:
    """Have a run of it by hand, whatever its rules say; or the one that was asked for before and has not begun."""
    if at is not None and delay is not None:
        raise ConfigurationError(f"{name!r} cannot be triggered with both at= and delay=: give one of them.")
    # by a codec only we can tell whether one was asked for before: no other may ask meanwhile
    looks = codec is not None and bool(args)
    row = yield from find_schedule(name, lock=looks)
    said: list[str] = (yield queued_arguments(name)) if looks else []
    given: str | None = None
    # what listens or is dormant may have been put without arguments that somebody must bring along
    if args or row.kind == "event" or row.dormant:
        refused = f"Schedule {name!r} was not triggered"
        task = tasks.get(row.task)
        given = laid_over(row.args, row.version, args, task=task, codec=codec, refused=refused, said=said)
    params = {
        "name": name,
        "args": given if args else None,
        "at": None if at is None else check_at(at),
        "delay": None if delay is None else check_delay(delay),
    }
    made: Row | None = yield TRIGGER.query(params, read=lambda rows: rows[0] if rows else None)
    if made is None:
        raise ScheduleNotFound(f"Schedule {name!r} was deleted just now.")
    made_id, existing = made
    if not existing:
        yield record(actor, "schedule.trigger", {"schedule": name, "job": made_id})
    job: Job[Any] = yield get_job(made_id, app)
    return replace(job, existing=existing)
