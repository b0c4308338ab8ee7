"""Erasing someone's data: all jobs with a tag, wherever they are, what is known of them, and schedules that would put more.

No index knows tags, since hardly anyone asks for them, so each table is walked by id: a stretch of rows per transaction,
however large the table. Jobs move while this goes on, from live to dead or settled, or by hand from dead to live, so the
walks follow that way. What is enqueued with the tag meanwhile may escape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from rota.jobs.job import JobId
from rota.postgres.audit import record
from rota.postgres.query import Query, Steps, nothing, one, scalar, statement

__all__ = ["Erased", "Erasing", "count_batch", "erase_batch"]

# Rows that one transaction looks at: some hundredths of a second.
_STRETCH = 20_000


@dataclass(frozen=True, slots=True)
class Erased:
    """How many rows are gone: jobs that were live, dead or settled, records of attempts, unique keys, schedules, and lines of logs."""

    live: int = 0
    dead: int = 0
    history: int = 0
    attempts: int = 0
    uniques: int = 0
    schedules: int = 0
    logs: int = 0

    def __add__(self, other: Erased) -> Erased:
        return Erased(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(Erased)))


@dataclass(frozen=True, slots=True)
class Erasing:
    """How far it is: what is gone, which of the walks, and the last id of that."""

    erased: Erased = Erased()
    walk: int = 0
    after: JobId = 0
    finished: bool = False


_TAGGED = """
    select max(stretch.id), coalesce(array_agg(stretch.id) filter (where %(tag)s = any (stretch.tags)), '{}')
    from (
"""

TAGGED = {
    "live": statement(
        "find_tagged_live",
        _TAGGED  # noqa: S608 - all parts are written out here
        + "select id, tags from {schema}.jobs where id > %(after)s order by id limit %(limit)s) as stretch",
    ),
    "dead": statement(
        "find_tagged_dead",
        _TAGGED  # noqa: S608
        + "select id, tags from {schema}.dead where id > %(after)s order by id limit %(limit)s) as stretch",
    ),
    "history": statement(
        "find_tagged_history",
        _TAGGED  # noqa: S608
        + "select id, tags from {schema}.history where id > %(after)s order by id limit %(limit)s) as stretch",
    ),
}

# Schedules first, as they would put more jobs. A letter that is retried while we are among the letters is met as a live job,
# and one that dies among those as a letter. What bulks remember comes before all of these, so that none of them is put back behind us;
# and once more at the end, since one may have ended some meanwhile.
_ERASE_WALKS = ("schedules", "bulks", "dead", "live", "dead", "history", "bulks")
_COUNT_WALKS = ("schedules", "live", "dead", "history")


def _find_tagged(where: str, tag: str, after: JobId) -> Query[tuple[JobId | None, list[JobId]]]:
    """The last id of the next stretch of rows, None at the end, and those of the stretch that have the tag."""
    params = {"tag": tag, "after": after, "limit": _STRETCH}
    return TAGGED[where].query(params, read=lambda rows: (rows[0][0], rows[0][1]))


def erase_batch(tag: str, so_far: Erasing, channel: str, actor: str) -> Steps[Erasing]:
    """Erase what the next stretch has."""
    if _ERASE_WALKS[so_far.walk] == "schedules":
        gone = Erased(schedules=(yield ERASE_SCHEDULES.query({"tag": tag}, read=scalar)))
        if gone.schedules:
            yield record(actor, "erase", {"tag": tag, **asdict(gone)})
        return _next(so_far, gone, None, len(_ERASE_WALKS))
    if _ERASE_WALKS[so_far.walk] == "bulks":
        yield LOCK_BULKS.query(read=nothing)
        yield FORGET.query({"tag": tag}, read=nothing)
        return (yield from _noted(so_far, Erased(), None, [], tag, actor))
    last, ids = yield _find_tagged(_ERASE_WALKS[so_far.walk], tag, so_far.after)
    erased = Erased()
    if ids:
        yield LOCK_LOGS.query(read=nothing)
        yield _lock_keys(ids)
        erased = yield _erase(ids, tag, channel)
    return (yield from _noted(so_far, erased, last, ids, tag, actor))


def _noted(
    so_far: Erasing, erased: Erased, last: JobId | None, ids: Sequence[JobId], tag: str, actor: str
) -> Steps[Erasing]:
    then = _next(so_far, erased, last, len(_ERASE_WALKS))
    # that someone asked is on record even if there was nothing
    if ids or (then.finished and then.erased == Erased()):
        yield record(actor, "erase", {"tag": tag, **asdict(erased)})
    return then


def count_batch(tag: str, so_far: Erasing) -> Steps[Erasing]:
    """Count what the next stretch has, and change nothing."""
    if _COUNT_WALKS[so_far.walk] == "schedules":
        there = Erased(schedules=(yield COUNT_SCHEDULES.query({"tag": tag}, read=scalar)))
        return _next(so_far, there, None, len(_COUNT_WALKS))
    last, ids = yield _find_tagged(_COUNT_WALKS[so_far.walk], tag, so_far.after)
    counted = (yield _count(ids, tag)) if ids else Erased()
    return _next(so_far, counted, last, len(_COUNT_WALKS))


def _next(so_far: Erasing, erased: Erased, last: JobId | None, walks: int) -> Erasing:
    total = so_far.erased + erased
    if last is not None:
        return Erasing(total, so_far.walk, after=last)
    return Erasing(total, so_far.walk + 1, finished=so_far.walk + 1 == walks)


# They are few beside jobs: one walk over all of them will do.
ERASE_SCHEDULES = statement(
    "erase_schedules",
    """
    with gone as (
        delete from {schema}.schedules
        where %(tag)s = any (tags)
        returning name
    ), unput as (
        delete from {schema}.slots as slot
        using gone
        where slot.schedule = gone.name
          and slot.job_id is null
    )
    select count(*)::integer from gone
    """,
)

COUNT_SCHEDULES = statement(
    "count_tagged_schedules", "select count(*)::integer from {schema}.schedules where %(tag)s = any (tags)"
)

# A turn with a bulk is short: what it puts back is there when it is over, and is found.
LOCK_BULKS = statement(
    "lock_undoing_bulks", "select id from {schema}.bulks where state in ('running', 'undoing') order by id for update"
)

FORGET = statement("forget_bulk_jobs", "delete from {schema}.bulk_jobs where before -> 'tags' ? %(tag)s")

# Whoever writes lines waits, looks for their job after that, and finds it gone. No body waits for it. It keeps out a second one who
# erases, too: two who may both read and then delete would wait for each other in a circle.
LOCK_LOGS = statement("lock_logs", "lock table only {schema}.logs in share row exclusive mode")

LOCK_KEYS = statement(
    "lock_erased_keys",
    """
    select held.key
    from {schema}.uniques as held
    where held.key = any (array(
        select job.unique_key from {schema}.jobs as job where job.id = any (%(ids)s::bigint[])
        union all
        select letter.unique_key from {schema}.dead as letter where letter.id = any (%(ids)s::bigint[])
        union all
        select done.unique_key from {schema}.history as done where done.id = any (%(ids)s::bigint[])
    ))
    -- before the jobs, and in the order in which those who enqueue take them
    order by held.key
    for update
    """,
)


def _lock_keys(ids: Sequence[JobId]) -> Query[None]:
    """Keep anyone from putting another call in the place of these jobs, until the transaction ends."""
    return LOCK_KEYS.query({"ids": list(ids)}, read=nothing)


ERASE = statement(
    "erase_jobs",
    """
    with chosen as materialized (
        select job.id, job.member
        from {schema}.jobs as job
        where job.id = any (%(ids)s::bigint[])
          -- a call that was put in its place meanwhile is someone else's
          and %(tag)s = any (job.tags)
        order by job.id
        for update
    ), live as (
        delete from {schema}.jobs as job
        using chosen
        where job.id = chosen.id
        returning job.id, job.unique_key
    ), dead as (
        delete from {schema}.dead as letter
        where letter.id = any (%(ids)s::bigint[])
        returning letter.id, letter.unique_key
    ), settled as (
        delete from {schema}.history as done
        where done.id = any (%(ids)s::bigint[])
        returning done.id, done.unique_key
    ), tried as (
        delete from {schema}.attempts as attempt
        where attempt.job_id = any (%(ids)s::bigint[])
        returning attempt.job_id
    ), told_of as (
        delete from {schema}.logs as line
        where line.job_id = any (%(ids)s::bigint[])
        returning line.job_id
    ), freed as (
        delete from {schema}.uniques as held
        using (
            select id, unique_key from live
            union all
            select id, unique_key from dead
            union all
            select id, unique_key from settled
        ) as gone
        where held.key = gone.unique_key
          and held.job_id = gone.id
        returning held.key
    ), told as materialized (
        select count({schema}.notify(%(channel)s, members.member::text))
        from (select distinct member from chosen where member is not null) as members
    )
    select
        (select count(*) from live), (select count(*) from dead), (select count(*) from settled),
        (select count(*) from tried), (select count(*) from freed), 0, (select count(*) from told_of)
    from told
    """,
)


def _erase(ids: Sequence[JobId], tag: str, channel: str) -> Query[Erased]:
    """Delete all that is known of these jobs, wherever they are by now. A claim on one is void from here on."""
    return ERASE.query({"ids": list(ids), "tag": tag, "channel": channel}, read=one(Erased))


COUNT = statement(
    "count_erasable",
    """
    with live as materialized (
        select id, unique_key from {schema}.jobs where id = any (%(ids)s::bigint[]) and %(tag)s = any (tags)
    ), dead as materialized (
        select id, unique_key from {schema}.dead where id = any (%(ids)s::bigint[])
    ), settled as materialized (
        select id, unique_key from {schema}.history where id = any (%(ids)s::bigint[])
    )
    select
        (select count(*) from live), (select count(*) from dead), (select count(*) from settled),
        (select count(*) from {schema}.attempts where job_id = any (%(ids)s::bigint[])),
        (
            select count(*)
            from {schema}.uniques as held
            join (
                select id, unique_key from live
                union all
                select id, unique_key from dead
                union all
                select id, unique_key from settled
            ) as gone on gone.unique_key = held.key and gone.id = held.job_id
        ),
        0,
        (select count(*) from {schema}.logs where job_id = any (%(ids)s::bigint[]))
    """,
)


def _count(ids: Sequence[JobId], tag: str) -> Query[Erased]:
    return COUNT.query({"ids": list(ids), "tag": tag}, read=one(Erased))
