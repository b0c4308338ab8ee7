"""From a call to a row, in one statement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.conversion.plain import read_json
from rota.jobs.job import Job, NewJob, Waiter
from rota.postgres.arrays import numbers
from rota.postgres.notify import wake_channel
from rota.postgres.query import Query, statement

__all__ = ["check_name", "check_priority", "check_tags", "enqueue", "enqueue_many", "in_batches"]

# What one statement carries: large enough to be fast, small enough to stay far below its deadline.
BATCH_ROWS = 5_000
BATCH_BYTES = 8_000_000

LATEST_YEAR = 9000  # Python's calendar ends soon after, and a row it cannot read would fail every list it is in
LONGEST_DELAY = 100 * 365 * 86400.0

_FORBIDDEN = re.compile("[\0\ud800-\udfff]")


def check_name(what: str, name: Any, longest: int) -> str:
    """A queue, task or tag name that PostgreSQL and NOTIFY can carry."""
    if not isinstance(name, str) or not 1 <= len(name) <= longest or _FORBIDDEN.search(name):
        raise ConfigurationError(
            f"{what} cannot be {name!r}: it is text of 1 to {longest} characters without NUL or lone surrogates."
        )
    return name


def check_priority(priority: Any) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not -32768 <= priority <= 32767:
        raise ConfigurationError(
            f"priority cannot be {priority!r}: it is a whole number from -32768 to 32767, and the higher runs first."
        )
    return priority


def check_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence | set | frozenset):
        raise ConfigurationError(f"tags cannot be {tags!r}: it is a list of short texts, such as ['user:42'].")
    return tuple(check_name("a tag", tag, 200) for tag in tags)


def check_delay(delay: Duration) -> float:
    wait = seconds(delay, "delay")
    if wait > LONGEST_DELAY:
        raise ConfigurationError(f"delay cannot be {delay!r}: no job waits longer than a hundred years.")
    return max(0.0, wait)


def check_at(at: datetime) -> datetime:
    if not isinstance(at, datetime) or at.tzinfo is None or not 1 < at.year < LATEST_YEAR:
        raise InvalidArguments(
            f"at={at!r} is no point in time for a job: give a datetime with a time zone, such as datetime.now(timezone.utc), before "
            f"the year {LATEST_YEAR}."
        )
    return at


# One row, one round trip; the wake-up travels with the commit, so nobody looks before there is something to see.
ENQUEUE = statement(
    "enqueue",
    """
    with job as (
        insert into {schema}.jobs (task, args, queue, priority, due_at, tags)
        values (
            %(task)s, %(args)s::jsonb, %(queue)s, %(priority)s,
            coalesce(%(at)s, {schema}.now() + coalesce(%(delay)s * interval '1 second', interval '0')),
            %(tags)s
        )
        returning id, created_at, due_at
    )
    select
        job.id, job.created_at, job.due_at,
        case when %(channel)s::text is not null then pg_notify(%(channel)s::text, %(queue)s) end
    from job
    """,
)


def enqueue(new: NewJob, schema: str, app: Waiter, *, wake: bool) -> Query[Job[Any]]:
    """Add one job. It is there once the statement's transaction commits; `wake` also tells idle workers then."""
    params = {
        "task": new.task,
        "args": new.args,
        "queue": new.queue,
        "priority": new.priority,
        "at": new.at,
        "delay": new.delay,
        "tags": list(new.tags) or None,
        "channel": wake_channel(schema) if wake else None,
    }
    return ENQUEUE.query(params, read=lambda rows: _job(new, rows[0], app))


# The calls travel as one JSON array and need no quoting one by one; what else they say is usually the same for all of
# them, so it travels once, as a template that each call names by its number.
ENQUEUE_MANY = statement(
    "enqueue_many",
    """
    with job as (
        insert into {schema}.jobs (task, args, queue, priority, due_at, tags)
        select
            template.task, new.args, template.queue, template.priority,
            coalesce(template.at, {schema}.now() + coalesce(template.delay * interval '1 second', interval '0')),
            template.tags::text[]
        from rows from (unnest(%(templates)s::integer[]), jsonb_array_elements(%(args)s::jsonb))
            with ordinality as new(template, args, place)
        join unnest(
            %(tasks)s::text[], %(queues)s::text[], %(priorities)s::smallint[],
            %(ats)s::timestamptz[], %(delays)s::float8[], %(tags)s::text[]
        ) with ordinality as template(task, queue, priority, at, delay, tags, number)
          on template.number = new.template
        -- ids are given in this order, which is how the rows find their calls again
        order by new.place
        returning id, created_at, due_at
    ), woken as materialized (
        select count(pg_notify(%(channel)s, queue)) from unnest(%(wake)s::text[]) as queue
    )
    select job.id, job.created_at, job.due_at
    from job, woken
    order by job.id
    """,
)


def enqueue_many(new: Sequence[NewJob], schema: str, app: Waiter) -> Query[list[Job[Any]]]:
    """Add the jobs in one statement and return them in the order given."""
    numbered: dict[NewJob, int] = {}
    which = [numbered.setdefault(_template(n), len(numbered) + 1) for n in new]
    params = {
        "args": "[" + ",".join([n.args for n in new]) + "]",
        "templates": numbers(which),
        "tasks": [n.task for n in numbered],
        "queues": [n.queue for n in numbered],
        "priorities": numbers(n.priority for n in numbered),
        "ats": [n.at for n in numbered],
        "delays": [n.delay for n in numbered],
        "tags": [_array(n.tags) for n in numbered],
        "channel": wake_channel(schema),
        "wake": sorted({n.queue for n in numbered if n.wake}),
    }
    return ENQUEUE_MANY.query(params, read=lambda rows: [_job(n, row, app) for n, row in zip(new, rows, strict=True)])


def in_batches(new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """The jobs in runs that one statement can carry well: so many rows, so many bytes."""
    start = size = 0
    for place, job in enumerate(new):
        if place > start and (place - start == BATCH_ROWS or size + len(job.args) > BATCH_BYTES):
            yield new[start:place]
            start, size = place, 0
        size += len(job.args)
    if start < len(new):
        yield new[start:]


def _template(new: NewJob) -> NewJob:
    return NewJob(new.task, "", new.queue, new.priority, new.delay, new.at, new.tags, new.wake)


def _array(tags: tuple[str, ...]) -> str | None:
    """Tags as an array literal, since arrays of arrays must be rectangular."""
    if not tags:
        return None
    return "{" + ",".join('"' + tag.replace("\\", "\\\\").replace('"', '\\"') + '"' for tag in tags) + "}"


def _job(new: NewJob, row: Any, app: Waiter) -> Job[Any]:
    return Job(
        id=row[0],
        task=new.task,
        queue=new.queue,
        state="queued",
        priority=new.priority,
        attempt=0,
        created_at=row[1],
        due_at=row[2],
        args=read_json(new.args),
        tags=new.tags,
        _app=app,
    )
