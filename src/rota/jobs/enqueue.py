"""From a call to a row, in one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any
from uuid import UUID

from rota.conversion.plain import dumps, read_json
from rota.errors import JobExists
from rota.jobs.codec import Codec, encoded, readable
from rota.jobs.job import Job, JobId, NewJob, NewUnique, Owner, enqueued, kind_of, kind_of_each, kinds
from rota.jobs.redact import masked, shown_args
from rota.postgres.arrays import numbers, texts
from rota.postgres.notify import wake_channel
from rota.postgres.query import Query, Row, Steps, one, statement

__all__ = [
    "added",
    "are_plain",
    "digest",
    "enqueue",
    "enqueue_many",
    "fit_together",
    "in_batches",
    "is_plain",
    "numbered",
    "put_all",
    "put_jobs",
    "refuse_twins",
    "stored_args",
]

# What one statement carries: large enough to be fast, small enough to stay far below its deadline.
BATCH_ROWS = 5_000
BATCH_BYTES = 8_000_000


# One row, one round trip; the wake-up travels with the commit, so nobody looks before there is something to see.
ENQUEUE = statement(
    "enqueue",
    """
    insert into {schema}.jobs (
        task, args, queue, priority, due_at, tags, version, key, retention, redact, lost_limit, trace_context
    )
    values (
        %(task)s, %(args)s::jsonb, %(queue)s, %(priority)s,
        coalesce(%(at)s, {schema}.now() + coalesce(%(delay)s * interval '1 second', interval '0')),
        %(tags)s, %(version)s, %(key)s, %(retention)s, %(redact)s, %(lost_limit)s, %(trace)s
    )
    returning
        id, created_at, due_at,
        case when %(channel)s::text is not null then {schema}.notify(
            -- one that is due at once is named, see notify.wake_message: who waits for work takes it without a look
            %(channel)s::text, queue || case when %(at)s is null and %(delay)s is null then E'\\x1f' || id else '' end
        ) end
    """,
)


def enqueue(
    new: NewJob, schema: str, app: Owner, *, wake: bool, codec: Codec | None = None, trace: str | None = None
) -> Query[Job[Any]]:
    """Add one job. It is there once the statement's transaction commits; `wake` also tells idle workers then.

    `trace` is the context it is enqueued in, see `tracing`.
    """
    like = kind_of(new)
    params = {
        "task": like.task,
        "args": stored_args(new, codec),
        "queue": like.queue,
        "priority": like.priority,
        "at": like.at,
        "delay": like.delay,
        "tags": list(like.tags) or None,
        "version": like.version,
        "key": like.key,
        "retention": like.retention,
        "redact": list(like.redact) or None,
        "lost_limit": like.lost_limit,
        "trace": trace,
        "channel": wake_channel(schema) if wake else None,
    }
    return ENQUEUE.query(params, read=lambda rows: _job(new, rows[0], app, trace))


# The arguments travel as one text: to divide it takes the server no longer than an array of texts, and the client much less.
# What else the calls say is usually the same for all of them, so it travels once, as a template that each names by its number.
# What comes back is one row: a client pays for each value of each.
ENQUEUE_MANY = statement(
    "enqueue_many",
    """
    with template as materialized (
        select
            said.number, said.task, said.queue, said.priority, said.tags::text[], said.version, said.key, said.retention,
            said.redact::text[], said.lost_limit,
            coalesce(said.at, {schema}.now() + coalesce(said.delay * interval '1 second', interval '0')) as due_at
        from unnest(
            %(tasks)s::text[], %(queues)s::text[], %(priorities)s::smallint[],
            %(ats)s::timestamptz[], %(delays)s::float8[], %(tags)s::text[], %(versions)s::smallint[],
            %(keys)s::text[], %(retentions)s::text[], %(redacts)s::text[], %(lost_limits)s::smallint[]
        ) with ordinality as said(
            task, queue, priority, at, delay, tags, version, key, retention, redact, lost_limit, number
        )
    ), job as (
        insert into {schema}.jobs (
            task, args, queue, priority, due_at, tags, version, key, retention, redact, lost_limit, trace_context
        )
        select
            template.task, new.args::jsonb, template.queue, template.priority, template.due_at, template.tags,
            template.version, template.key, template.retention, template.redact, template.lost_limit, %(trace)s::text
        from rows from (unnest(%(templates)s::integer[]), string_to_table(%(args)s::text, E'\\x1e'))
            with ordinality as new(template, args, place)
        join template on template.number = new.template
        -- ids are given in this order, which is how the rows find their calls again
        order by new.place
        returning id, created_at
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queue)) from unnest(%(wake)s::text[]) as queue
    )
    select
        array_agg(job.id), min(job.created_at),
        (select array_agg(template.due_at order by template.number) from template)
    from job, woken
    """,
)
_BETWEEN = "\x1e"  # no JSON text has such a character in it


def enqueue_many(
    new: Sequence[NewJob], schema: str, app: Owner, *, codec: Codec | None = None, trace: str | None = None
) -> Query[list[Job[Any]]]:
    """Add the jobs in one statement and return them in the order given."""
    which, some = numbered(new)
    params = {
        "args": _BETWEEN.join(map(_args, new) if codec is None else [stored_args(each, codec) for each in new]),
        "templates": numbers(which),
        "tasks": [n.task for n in some],
        "queues": [n.queue for n in some],
        "priorities": numbers(n.priority for n in some),
        "ats": [n.at for n in some],
        "delays": [n.delay for n in some],
        "tags": [texts(n.tags) if n.tags else None for n in some],
        "versions": numbers(n.version for n in some),
        "keys": [n.key for n in some],
        "retentions": [n.retention for n in some],
        "redacts": [texts(n.redact) if n.redact else None for n in some],
        "lost_limits": [n.lost_limit for n in some],
        "trace": trace,
        "channel": wake_channel(schema),
        "wake": sorted({n.queue for n in some if n.wake}),
    }
    return ENQUEUE_MANY.query(params, read=one(partial(added, new, which, some, app, trace)))


def added(
    new: Sequence[NewJob],
    which: Sequence[int],
    some: Sequence[NewJob],
    app: Owner,
    trace: str | None,
    ids: list[JobId],
    created_at: datetime,
    due_at: Sequence[datetime],
) -> list[Job[Any]]:
    """The jobs in the order given, under these ids, which grow in that order; those of each kind are due at its time."""
    ids.sort()
    if len(some) == 1 and not some[0].redact:
        like = _job(some[0].but(args="{}"), (0, created_at, due_at[0]), app, trace)
        return enqueued(like, ids, list(map(_args, new)))
    return [
        _job(each, (known, created_at, due_at[number - 1]), app, trace)
        for each, known, number in zip(new, ids, which, strict=True)
    ]


def numbered(new: Sequence[NewJob]) -> tuple[list[int], list[NewJob]]:
    """The number, from one, of what each has in common with others; and of each of those one job, in order."""
    some = kinds(new)
    if len(some) == 1:
        return [1] * len(new), some
    numbers_of: dict[tuple[Any, ...], int] = {}
    number_by_kind = {id(kind): numbers_of.setdefault(_alike(kind), len(numbers_of) + 1) for kind in some}
    which = [number_by_kind[id(kind)] for kind in kind_of_each(new)]
    # the last of each kind speaks for it
    return which, [each for _, each in sorted(dict(zip(which, new, strict=True)).items())]


# For jobs that must look at others before they are put, and for connections that are not ours: everything is one text.
PUT = statement(
    "put_jobs",
    """
    select put.place, put.id, put.created_at, put.due_at, put.existing, put.stored::text
    from {schema}.put_jobs(%(jobs)s::text::jsonb, %(later)s::text::jsonb) as put
    order by put.place
    """,
)


def put_jobs(
    new: Sequence[NewJob],
    app: Owner,
    *,
    call: UUID | None = None,
    codec: Codec | None = None,
    before: int = 0,
    later: Sequence[NewJob] = (),
    trace: str | None = None,
) -> Query[list[Job[Any]]]:
    """Add the jobs, each unique one under its key, and return them, or the ones that are there already, in the order given.

    Raises JobExists where a job that may not exist twice does: nothing was added then. The same `call`, repeated because its
    reply was lost, adds nothing the second time. It may come in parts, in one transaction: so many jobs came `before`, and
    the keys of those that come `later` are locked now.
    """

    def read(rows: Sequence[Row]) -> list[Job[Any]]:
        jobs = []
        for place, *fresh, existing, stored in rows:
            asked = new[place - 1]
            job = _job(asked, fresh, app, trace)
            if stored is not None:
                job = replace(_found(job, read_json(stored), app, codec), existing=existing)
            if existing and asked.unique is not None and asked.unique.conflict == "raise":
                raise JobExists(
                    f"{job.task!r} was not enqueued: job {job.id}, which is {job.state}, has the same unique key"
                    f"{_shown_key(asked)}. Nothing was added; use conflict='return' to get that job instead.",
                    job,
                )
            jobs.append(job)
        return jobs

    params = {
        "jobs": f"[{','.join([_written(each, call, place, codec, trace) for place, each in enumerate(new, before)])}]",
        "later": dumps([{"unique": _key(each, each.unique)} for each in later if each.unique is not None]),
    }
    return PUT.query(params, read=read)


def _shown_key(new: NewJob) -> str:
    """A key for a message, unless what it was made of is not for everyone to see."""
    return "" if new.unique is None or new.redact else f" {new.unique.key[:200]!r}"


def _written(new: NewJob, call: UUID | None, place: int, codec: Codec | None, trace: str | None) -> str:
    said: dict[str, Any] = {
        "task": new.task,
        "queue": new.queue,
        "priority": new.priority,
        "version": new.version,
        "wake": new.wake,
        "delay": new.delay,
        "at": None if new.at is None else new.at.isoformat(),
        "key": new.key,
        "tags": list(new.tags) or None,
        "redact": list(new.redact) or None,
        "retention": new.retention,
        "lost_limit": new.lost_limit,
        "trace_context": trace,
        "line": None if new.line is None else str(new.line),
        "batch": new.batch,
        "after": new.after,
        "takes": new.takes,
    }
    if new.unique is not None:
        said["unique"] = {
            **_key(new, new.unique),
            "states": list(new.unique.states),
            "within": new.unique.within,
            "keep": new.unique.keep,
            "longest": new.unique.longest,
            "hold": new.unique.hold,
            "call": None if call is None else str(call),
            "turn": place,  # a twin in the same call is not a repetition
        }
    # the arguments are JSON already
    return f'{{"args":{stored_args(new, codec)},{dumps({name: value for name, value in said.items() if value is not None})[1:]}'


def stored_args(new: NewJob, codec: Codec | None) -> str:
    """The arguments as they are stored."""
    if codec is None:
        return new.args
    return encoded(codec, new.args, f"Task {new.task!r} was not enqueued", secret=bool(new.redact))


def _key(new: NewJob, unique: NewUnique) -> dict[str, str]:
    return {"digest": str(digest(new.task, unique.key)), "conflict": unique.conflict}


def digest(task: str, key: str) -> UUID:
    """What stands for a key in the tables, whatever its size; in SQL this is `unique_digest`."""
    return UUID(bytes=sha256(f"{task}\x1f{key}".encode("utf-8", "surrogatepass")).digest()[:16])


def refuse_twins(new: Sequence[NewJob]) -> None:
    """Raise JobExists where two of these jobs have one key, and the second minds."""
    if all(kind.unique is None for kind in kinds(new)):
        return
    seen: dict[tuple[str, str], int] = {}
    for place, each in enumerate(new):
        if each.unique is None:
            continue
        first = seen.setdefault((each.task, each.unique.key), place)
        if first != place and each.unique.conflict == "raise":
            raise JobExists(
                f"Nothing was enqueued: items {first} and {place} are both {each.task!r} with the same unique key{_shown_key(each)}. "
                "Leave one out, or use conflict='return'."
            )


def is_plain(new: NewJob) -> bool:
    """Whether it looks at no others: neither when it is put, nor before it runs."""
    new = kind_of(new)
    return new.unique is None and new.line is None and new.batch is None and new.after is None


def are_plain(new: Sequence[NewJob]) -> bool:
    """Whether none of them does."""
    return all(map(is_plain, kinds(new)))


def fit_together(new: Sequence[NewJob]) -> bool:
    """Whether one statement can carry all of them well."""
    return len(next(in_batches(new), ())) == len(new)


def put_all(
    new: Sequence[NewJob],
    app: Owner,
    *,
    call: UUID | None,
    codec: Codec | None,
    trace: str | None = None,
) -> Steps[list[Job[Any]]]:
    """Add the jobs in one transaction, in as many statements as it takes, and return them in the order given; see `put_jobs`."""
    added: list[Job[Any]] = []
    for batch in in_batches(new):
        # the first locks all keys: two calls that each lock theirs part by part could wait for each other in a circle
        later = () if added else new[len(batch) :]
        added += yield put_jobs(batch, app, call=call, codec=codec, before=len(added), later=later, trace=trace)
    return added


def in_batches(new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """The jobs in runs that one statement can carry well: so many rows, so many bytes."""
    for first in range(0, len(new), BATCH_ROWS):
        rows = new if len(new) <= BATCH_ROWS else new[first : first + BATCH_ROWS]
        if sum(map(len, map(_args, rows))) <= BATCH_BYTES:
            yield rows
        else:
            yield from _by_size(rows)


def _by_size(new: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    start = size = 0
    for place, job in enumerate(new):
        if place > start and size + len(job.args) > BATCH_BYTES:
            yield new[start:place]
            start, size = place, 0
        size += len(job.args)
    yield new[start:]


_args = attrgetter("args")

# What calls of one kind have in common: all that is stored of them here but their arguments.
_alike = attrgetter(
    *("task", "queue", "priority", "at", "delay", "tags", "version", "key", "retention", "redact", "lost_limit", "wake")
)


def _job(new: NewJob, row: Any, app: Owner, trace: str | None) -> Job[Any]:
    like = kind_of(new)
    return Job(
        id=row[0],
        task=like.task,
        queue=like.queue,
        state="queued" if like.line is None and like.after is None else "blocked",
        priority=like.priority,
        attempt=0,
        created_at=row[1],
        due_at=row[2],
        args=masked(read_json(new.args), like.redact),
        tags=like.tags,
        version=like.version,
        key=like.key,
        retention=like.retention,
        trace_context=trace,
        _app=app,
    )


def _found(asked: Job[Any], stored: dict[str, Any], app: Owner, codec: Codec | None) -> Job[Any]:
    """The job that holds a key, by its row in whichever table that is. Of one that history has dropped, little is known."""
    return replace(
        asked,
        queue=stored.get("queue", asked.queue),
        state=stored["state"],
        priority=stored.get("priority", asked.priority),
        attempt=stored.get("attempt", 0),
        args=shown_args(app, asked.task, stored.get("args"), stored.get("redact")),
        result=readable(codec, stored.get("result")),
        losses=stored.get("losses", 0),
        started_at=_time(stored.get("started_at") or stored.get("claimed_at")),
        finished_at=_time(stored.get("finished_at") or stored.get("died_at")),
        member=UUID(stored["member"]) if stored.get("member") else None,
        tags=tuple(stored.get("tags") or ()),
        version=stored.get("version", asked.version),
        key=stored.get("key"),
        progress=stored.get("progress"),
        progress_note=stored.get("progress_note"),
        cancel_requested_at=_time(stored.get("cancel_requested_at")),
        reason=stored.get("reason") or stored.get("cancel_reason"),
        origin=stored.get("origin"),
        retention=stored.get("retention"),
        trace_context=stored.get("trace_context"),
    )


def _time(written: str | None) -> datetime | None:
    return None if written is None else datetime.fromisoformat(written)
