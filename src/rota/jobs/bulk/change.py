"""Doing it to some jobs of a bulk: what they were is written down, then each action goes by the statements that it has for one job.

The rows are locked in the order in which others lock them: unique keys first, then live jobs by id, then letters by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rota.jobs.cancel import cancel_jobs, discard_jobs
from rota.jobs.job import JobId
from rota.jobs.repeat import Repeated, hasten_jobs, repeat_jobs
from rota.jobs.resolve import Retried, acknowledge_letters, retry_letters
from rota.postgres.query import Query, Steps, nothing, statement

__all__ = [
    "Chosen",
    "Told",
    "change_chosen",
    "lock_jobs",
    "lock_keys",
    "lock_letters",
    "move_jobs",
    "prioritise_jobs",
    "put_jobs_off",
]


class Chosen(NamedTuple):
    """Jobs that have their turn, by where they are."""

    live: Sequence[JobId]
    dead: Sequence[JobId]
    settled: Sequence[JobId]


class Told(NamedTuple):
    """What became of those that are done, by id: the job that was made of it, if one was; and of others, why not."""

    done: Mapping[JobId, JobId | None]
    not_done: Mapping[JobId, str]


LOCK_KEYS = statement(
    "lock_bulk_keys",
    """
    insert into {schema}.uniques (key)
    select distinct ended.unique_key as key
    from (
        select letter.unique_key from {schema}.dead as letter where letter.id = any (%(ids)s::bigint[])
        union all
        select done.unique_key from {schema}.history as done where done.id = any (%(ids)s::bigint[])
    ) as ended
    where ended.unique_key is not null
    -- in the order in which those who enqueue take them
    order by key
    on conflict (key) do update set key = excluded.key
    """,
)


def lock_keys(ids: Sequence[JobId]) -> Query[None]:
    """Keep anyone from putting a job under the unique keys of those of these jobs that have ended."""
    return LOCK_KEYS.query({"ids": list(ids)}, read=nothing)


LOCK_JOBS = statement(
    "lock_bulk_jobs",
    """
    select job.id
    from {schema}.jobs as job
    where job.id = any (%(ids)s::bigint[])
      -- what runs is left alone, and whoever is about to settle it is not waited for
      and job.state <> 'running'
    order by job.id
    for update
    """,
)


def lock_jobs(ids: Sequence[JobId]) -> Query[set[JobId]]:
    """Keep anyone from taking those of these jobs that wait, until the transaction ends; returns which."""
    return LOCK_JOBS.query({"ids": list(ids)}, read=lambda rows: {row[0] for row in rows})


LOCK_LETTERS = statement(
    "lock_bulk_letters",
    """
    select letter.id
    from {schema}.dead as letter
    where letter.id = any (%(ids)s::bigint[])
    order by letter.id
    for update
    """,
)


def lock_letters(ids: Sequence[JobId]) -> Query[None]:
    return LOCK_LETTERS.query({"ids": list(ids)}, read=nothing)


# Of jobs that go away all is kept but the arguments, which stay with the record of the job: whoever erases it finds them there.
REMEMBER_WHOLE = statement(
    "remember_whole",
    """
    update {schema}.bulk_jobs as item
    set before = was.row
    from (
        select job.id, to_jsonb(job) - 'args' as row from {schema}.jobs as job where job.id = any (%(live)s::bigint[])
        union all
        select letter.id, to_jsonb(letter) - 'args' from {schema}.dead as letter where letter.id = any (%(dead)s::bigint[])
    ) as was
    where item.bulk = %(bulk)s
      and item.job = was.id
      -- said twice: of a table that nobody has counted yet PostgreSQL would rather walk the whole bulk
      and item.job = any (%(live)s::bigint[] || %(dead)s::bigint[])
    """,
)

REMEMBER_PLACE = statement(
    "remember_place",
    """
    update {schema}.bulk_jobs as item
    set before = was.row
    from (
        select
            job.id,
            jsonb_build_object('queue', job.queue, 'priority', job.priority, 'due_at', job.due_at, 'attempt', job.attempt) as row
        from {schema}.jobs as job
        where job.id = any (%(live)s::bigint[])
        union all
        select letter.id, jsonb_build_object('batch_id', letter.batch_id)
        from {schema}.dead as letter
        where letter.id = any (%(dead)s::bigint[])
    ) as was
    where item.bulk = %(bulk)s
      and item.job = was.id
      -- said twice: of a table that nobody has counted yet PostgreSQL would rather walk the whole bulk
      and item.job = any (%(live)s::bigint[] || %(dead)s::bigint[])
    """,
)

MOVE = statement(
    "move_jobs",
    """
    with moved as (
        update {schema}.jobs as job
        set queue = wanted.queue
        from unnest(%(ids)s::bigint[], %(queues)s::text[]) as wanted(id, queue)
        where job.id = wanted.id
          and job.state <> 'running'
        returning job.id, job.queue
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue)) from (select distinct moved.queue from moved) as queues
    )
    select moved.id from moved, woken
    """,
)


def move_jobs(ids: Sequence[JobId], queues: Sequence[str], channel: str) -> Query[list[JobId]]:
    """Put each that waits into its queue; returns which."""
    return MOVE.query({"ids": list(ids), "queues": list(queues), "channel": channel}, read=_ids)


# In the one line of a task the more urgent go first: a place there holds the priority, and below that the order in which they came.
PRIORITISE = statement(
    "prioritise_jobs",
    """
    with changed as (
        update {schema}.jobs as job
        set priority = wanted.priority,
            place = case
                when job.place > 0 and coalesce(
                    (select not rule.by_key from {schema}.limits as rule where rule.task = job.task),
                    job.line = {schema}.line_of(job.task, null)
                )
                then (job.place & ((1::bigint << 47) - 1)) + ((32767 - wanted.priority)::bigint << 47)
                else job.place
            end
        from unnest(%(ids)s::bigint[], %(priorities)s::integer[]) as wanted(id, priority)
        where job.id = wanted.id
          and job.state <> 'running'
        returning job.id, job.queue
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue)) from (select distinct changed.queue from changed) as queues
    )
    select changed.id from changed, woken
    """,
)


def prioritise_jobs(ids: Sequence[JobId], priorities: Sequence[int], channel: str) -> Query[list[JobId]]:
    """Give each that waits its priority; returns which."""
    return PRIORITISE.query({"ids": list(ids), "priorities": list(priorities), "channel": channel}, read=_ids)


# One that is due later is not in line until then: those behind it do not wait for it.
PUT_OFF = statement(
    "put_jobs_off",
    """
    with changed as (
        update {schema}.jobs as job
        set due_at = wanted.at,
            place = case when job.place > 0 and wanted.at > {schema}.now() then null else job.place end
        from unnest(%(ids)s::bigint[], %(moments)s::timestamptz[]) as wanted(id, at)
        where job.id = wanted.id
          and job.state <> 'running'
        returning job.id, job.queue
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue)) from (select distinct changed.queue from changed) as queues
    )
    select changed.id from changed, woken
    """,
)


def put_jobs_off(ids: Sequence[JobId], moments: Sequence[datetime], channel: str) -> Query[list[JobId]]:
    """Have each that waits be due at its time; returns which."""
    return PUT_OFF.query({"ids": list(ids), "moments": list(moments), "channel": channel}, read=_ids)


def _ids(rows: Sequence[Any]) -> list[JobId]:
    return [row[0] for row in rows]


def change_chosen(
    bulk: int,
    action: str,
    options: Mapping[str, Any],
    chosen: Chosen,
    actor: str,
    *,
    wake: str,
    cancel: str,
) -> Steps[Told]:
    """Do it to them, in the transaction of the turn. Those that wait are locked, and of the letters that are retried the keys."""
    remember = REMEMBER_WHOLE if action in ("cancel", "discard") else REMEMBER_PLACE
    yield remember.query({"bulk": bulk, "live": list(chosen.live), "dead": list(chosen.dead)}, read=nothing)
    reason = options.get("reason") or f"bulk {bulk}, by {actor}"
    match action:
        case "retry":
            return (yield from _retry(chosen, actor, wake))
        case "cancel":
            ended = yield cancel_jobs(chosen.live, reason, cancel)
            done = [each.id for each in ended]
        case "discard":
            ended = yield discard_jobs([*chosen.live, *chosen.dead], reason, cancel)
            done = [each.id for each in ended]
        case "acknowledge":
            done = yield acknowledge_letters(chosen.dead, actor, options.get("reason") or "")
        case "move":
            done = yield move_jobs(chosen.live, [options["to"]] * len(chosen.live), wake)
        case "prioritise":
            done = yield prioritise_jobs(chosen.live, [options["priority"]] * len(chosen.live), wake)
        case _:
            until = datetime.fromisoformat(options["at"])
            done = yield put_jobs_off(chosen.live, [until] * len(chosen.live), wake)
    changed = set(done)
    asked = (each for part in chosen for each in part)
    return Told(dict.fromkeys(done), {each: "changed" for each in asked if each not in changed})


def _retry(chosen: Chosen, actor: str, channel: str) -> Steps[Told]:
    done: dict[JobId, JobId | None] = {}
    not_done: dict[JobId, str] = {}
    if chosen.live:
        for job in (yield hasten_jobs(chosen.live, channel)):
            if job.waited:
                done[job.id] = None
            else:
                not_done[job.id] = "blocked"
    if chosen.dead:
        retried: list[Retried] = yield retry_letters(chosen.dead, channel, actor)
        done |= {job.origin: job.id for job in retried}
        not_done |= {letter: "key" for letter in chosen.dead if letter not in done}
    if chosen.settled:
        repeated: list[Repeated] = yield repeat_jobs(chosen.settled, channel)
        done |= {job.origin: job.id for job in repeated if job.is_new}
        not_done |= {job.origin: "again" for job in repeated if not job.is_new}
        not_done |= {job: "key" for job in chosen.settled if job not in done and job not in not_done}
    return Told(done, not_done)
