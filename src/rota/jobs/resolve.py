"""Resolving dead letters: having them tried again, or letting them rest.

To retry a letter is to make a new job of it, which starts with all its attempts. Letter and job name each other. A unique
job takes its key back first, under the lock of that key, as one that is enqueued does; whoever needs both locks the keys
before the letters, and each kind in its own order, so that nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import Any, NamedTuple
from uuid import UUID

from rota.errors import NotPossible
from rota.jobs.inspect import check_id
from rota.jobs.job import JobId, Owner
from rota.jobs.letters import Filters, Letter, find_letters, found_letter, get_letter
from rota.postgres.audit import record
from rota.postgres.query import Query, Row, Steps, many, nothing, statement

__all__ = [
    "Batch",
    "Retried",
    "acknowledge_batch",
    "acknowledge_chosen",
    "acknowledge_letter",
    "acknowledge_letters",
    "find_holder",
    "lock_letter_keys",
    "retry_batch",
    "retry_chosen",
    "retry_letter",
    "retry_letters",
]

# What one transaction resolves: enough to be quick, few enough to lock nobody out for long.
_BATCH = 1_000

LOCK_KEYS = statement(
    "lock_letter_keys",
    """
    insert into {schema}.uniques (key)
    select distinct letter.unique_key as key
    from {schema}.dead as letter
    where letter.id = any (%(ids)s::bigint[])
      and letter.unique_key is not null
    -- in the order in which those who enqueue take them
    order by key
    on conflict (key) do update set key = excluded.key
    """,
)


def lock_letter_keys(ids: Sequence[JobId]) -> Query[None]:
    """Keep anyone else from putting a job under the unique keys of these letters, until the transaction ends."""
    return LOCK_KEYS.query({"ids": list(ids)}, read=nothing)


# A statement of its own after the lock: only then does it see what the last holder of the key has committed.
RETRY = statement(
    "retry_letters",
    """
    with chosen as materialized (
        select
            letter.id, letter.task, letter.args, letter.queue, letter.priority, letter.version, letter.key, letter.tags,
            letter.retention, letter.redact, letter.lost_limit, letter.saved, letter.unique_key,
            letter.schedule, letter.slot_at, letter.trace_context, letter.batch_id, letter.inputs,
            -- it takes the place of the letter among the jobs that someone waits for
            case when letter.batch_id is not null then coalesce(letter.instead_of, letter.id) end as instead_of
        from {schema}.dead as letter
        where letter.id = any (%(ids)s::bigint[])
          and letter.resolved_at is null
        order by letter.id
        for update
    ), put as (
        insert into {schema}.jobs as job (
            task, args, queue, priority, version, key, tags, retention, redact, lost_limit, saved, unique_key,
            schedule, slot_at, trace_context, batch_id, inputs, instead_of, origin
        )
        select
            task, coalesce(%(args)s::jsonb, args), queue, priority, version, key, tags, retention, redact, lost_limit,
            -- where it had got to with other arguments is nowhere
            case when %(args)s::jsonb is null then saved end,
            unique_key, schedule, slot_at, trace_context, batch_id, inputs, instead_of, id
        from chosen
        where unique_key is null
           or (
               not exists (select from {schema}.jobs as live where live.unique_key = chosen.unique_key)
               and not exists (
                   select from chosen as older where older.unique_key = chosen.unique_key and older.id < chosen.id
               )
           )
        order by id
        returning job.id, job.queue, job.origin, job.unique_key, job.created_at
    ), resolved as (
        update {schema}.dead as letter
        set resolved_at = {schema}.now(),
            resolution = 'retried',
            resolved_by = %(actor)s,
            successor = put.id
        from put
        where letter.id = put.origin
    ), held as (
        update {schema}.uniques as held
        set job_id = put.id,
            created_at = put.created_at,
            -- a period in which there is to be one only begins anew
            keep_until = held.keep_until + (put.created_at - held.created_at),
            ended = null
        from put
        where held.key = put.unique_key
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue)) from (select distinct queue from put) as queues
    )
    select put.id, put.origin from put, woken
    """,
)


class Retried(NamedTuple):
    """A job, and the letter that it was made of."""

    id: JobId
    origin: JobId


def retry_letters(ids: Sequence[JobId], channel: str, actor: str, args: str | None = None) -> Query[list[Retried]]:
    """Make a new job of each letter that is open and whose unique key is free.

    Of several letters under one key, the oldest is retried. With `args`, those are the arguments.
    """
    params = {"ids": list(ids), "channel": channel, "actor": actor, "args": args}
    return RETRY.query(params, read=many(Retried))


def retry_letter(
    id: JobId, channel: str, actor: str, edited: Callable[[Letter], str | None] = lambda _: None
) -> Steps[JobId]:
    """Make a new job of the letter; returns its id. `edited` gives the arguments as they are stored, or None to keep them.

    Raises JobNotFound; NotPossible when the letter is resolved, or a live job holds its unique key; and what `edited` raises.
    """
    letter = _open(id, (yield get_letter(id)))
    args = edited(letter)
    if letter._unique_key is not None:
        yield lock_letter_keys([id])
    while not (retried := (yield retry_letters([id], channel, actor, args))):
        # someone else was faster with the letter, or with its key
        _open(id, (yield get_letter(id)))
        holder = yield find_holder(letter._unique_key)
        if holder is not None:
            raise NotPossible(
                f"Letter {id} ({letter.task}) was not retried: job {holder[0]}, which is {holder[1]}, has its unique key, and "
                f"there may be only one of them. Wait for that job, or end it: rota jobs cancel {holder[0]}. The letter stays."
            )
    successor: JobId = retried[0].id
    yield record(actor, "retry", {"job": id, "successor": successor, "edited": args is not None})
    return successor


def _open(id: JobId, read: Letter | None) -> Letter:
    letter = found_letter(id, read)
    if letter.resolved_at is None:
        return letter
    how = f"retried as job {letter.successor}" if letter.resolution == "retried" else "acknowledged"
    note = f" ({letter.note})" if letter.note else ""
    again = f" To try again: rota jobs retry {letter.successor}." if letter.resolution == "retried" else ""
    raise NotPossible(
        f"Letter {id} ({letter.task}) is resolved: {how} by {letter.resolved_by} at "
        f"{letter.resolved_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC{note}.{again}"
    )


HOLDER = statement(
    "find_key_holder",
    """
    select live.id, live.state
    from {schema}.jobs as live
    where live.unique_key = %(key)s
    -- an expression, which no index is sorted by: without statistics PostgreSQL would rather walk all ids backwards
    order by live.id + 0 desc
    limit 1
    """,
)


def find_holder(key: UUID | None) -> Query[Row | None]:
    """The id and the state of the live job under this key."""
    return HOLDER.query({"key": key}, read=lambda rows: rows[0] if rows else None)


ACKNOWLEDGE = statement(
    "acknowledge_letters",
    """
    with chosen as materialized (
        select letter.id
        from {schema}.dead as letter
        where letter.id = any (%(ids)s::bigint[])
          and letter.resolved_at is null
        order by letter.id
        for update
    ), resolved as (
        update {schema}.dead as letter
        set resolved_at = {schema}.now(),
            resolution = 'acknowledged',
            resolved_by = %(actor)s,
            note = %(note)s
        from chosen
        where letter.id = chosen.id
        returning letter.id
    )
    select resolved.id from resolved
    """,
)


def acknowledge_letters(ids: Sequence[JobId], actor: str, note: str) -> Query[list[JobId]]:
    """Resolve the open ones of these letters; returns which."""
    params = {"ids": list(ids), "actor": actor, "note": note or None}
    return ACKNOWLEDGE.query(params, read=lambda rows: [row[0] for row in rows])


def acknowledge_letter(id: JobId, actor: str, note: str, app: Owner | None = None) -> Steps[Letter]:
    """Resolve the letter without another try. Raises JobNotFound, or NotPossible when it is resolved already."""
    if not (yield acknowledge_letters([check_id(id)], actor, note)):
        _open(id, (yield get_letter(id)))
    yield record(actor, "acknowledge", {"job": id})
    letter: Letter = yield get_letter(id, app)
    return letter


@dataclass(frozen=True, slots=True)
class Batch:
    """How far a change of many letters is: how many are resolved, and up to which id."""

    resolved: int = 0
    after: JobId = 0
    finished: bool = False


def retry_batch(filters: Filters, so_far: Batch, channel: str, actor: str) -> Steps[Batch]:
    """Retry the next letters that fit."""
    ids = yield find_letters(filters, so_far.after, _BATCH)
    yield lock_letter_keys(ids)
    retried = yield retry_letters(ids, channel, actor)
    return (yield from _recorded(so_far, ids, len(retried), actor, "retry", filters))


def acknowledge_batch(filters: Filters, so_far: Batch, actor: str, note: str) -> Steps[Batch]:
    """Acknowledge the next letters that fit."""
    ids = yield find_letters(filters, so_far.after, _BATCH)
    resolved = yield acknowledge_letters(ids, actor, note)
    return (yield from _recorded(so_far, ids, len(resolved), actor, "acknowledge", filters))


def _recorded(
    so_far: Batch, ids: Sequence[JobId], resolved: int, actor: str, action: str, filters: Filters
) -> Steps[Batch]:
    if resolved:
        chosen = {name: value for name, value in asdict(filters).items() if value is not None}
        if "error" in chosen:
            chosen["error"] = True  # what it says may quote arguments, which entries outlive
        yield record(actor, action, {"letters": resolved, "filters": chosen})
    return Batch(so_far.resolved + resolved, ids[-1] if ids else so_far.after, finished=len(ids) < _BATCH)


def retry_chosen(ids: Sequence[JobId], channel: str, actor: str, details: Mapping[str, Any]) -> Steps[Sequence[JobId]]:
    """Make new jobs of those of these letters that are open and whose unique key is free; returns the jobs."""
    yield lock_letter_keys(ids)
    retried: list[Retried] = yield retry_letters(ids, channel, actor)
    if retried:
        yield record(actor, "retry", {"letters": len(retried), **details})
    return [job.id for job in retried]


def acknowledge_chosen(
    ids: Sequence[JobId], actor: str, note: str, details: Mapping[str, Any]
) -> Steps[Sequence[JobId]]:
    """Resolve the open ones of these letters without another try; returns as many of them."""
    resolved: list[JobId] = yield acknowledge_letters(ids, actor, note)
    if resolved:
        yield record(actor, "acknowledge", {"letters": len(resolved), **details})
    return resolved
