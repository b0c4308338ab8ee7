"""Putting back what a bulk changed, as far as it is still where the bulk put it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rota.jobs.bulk.change import lock_jobs, lock_keys, lock_letters, move_jobs, prioritise_jobs, put_jobs_off
from rota.jobs.cancel import cancel_jobs
from rota.jobs.job import JobId
from rota.jobs.repeat import lock_settled
from rota.postgres.query import Query, Steps, many, statement

__all__ = ["Changed", "PutBack", "put_back"]


class Changed(NamedTuple):
    """A job that was changed: what was made of it, and what it was."""

    id: JobId
    successor: JobId | None
    before: Mapping[str, Any] | None


class PutBack(NamedTuple):
    """Those that are as they were; and of others, why not."""

    undone: Sequence[JobId]
    kept: Mapping[JobId, str]


def put_back(
    bulk: int, action: str, options: Mapping[str, Any], changed: Sequence[Changed], *, wake: str, cancel: str
) -> Steps[PutBack]:
    """Put them back, in the transaction of the turn."""
    told = {each.id: each for each in changed}
    # what waited for these was told, or their schedule that the run has ended, so they do not come back
    chained = {each.id for each in changed if _is_chained(action, each)}
    ids = [each for each in told if each not in chained]
    undone: Sequence[JobId]
    if action in ("cancel", "discard"):
        undone = yield from _restore(bulk, ids, wake)
    elif action == "acknowledge":
        yield lock_letters(ids)
        undone = yield _reopen(ids, [None] * len(ids), "acknowledged")
    elif action == "retry":
        undone = yield from _retreat(bulk, [told[each] for each in ids], wake, cancel)
    else:
        undone = yield from _replace(action, options, [told[each] for each in ids], wake)
    back = set(undone)
    kept = {each: "chained" if each in chained else "since" for each in told if each not in back}
    return PutBack(undone, kept)


def _is_chained(action: str, changed: Changed) -> bool:
    before = changed.before or {}
    if action in ("cancel", "discard") and before.get("schedule") is not None:
        return True
    return action in ("retry", "cancel", "discard", "acknowledge") and (
        before.get("batch_id") is not None or before.get("after") is not None
    )


# A job comes back under its id, with the arguments that its record has kept; in its line it stands behind those that came since.
RESTORE = statement(
    "restore_jobs",
    """
    with gone as (
        delete from {schema}.history as done
        using {schema}.bulk_jobs as item, {schema}.bulks as bulk
        where done.id = any (%(ids)s::bigint[])
          and done.state = 'cancelled'
          and bulk.id = %(bulk)s
          and done.finished_at >= bulk.created_at
          and item.bulk = bulk.id
          and item.job = done.id
          and item.job = any (%(ids)s::bigint[])
          and (
              done.unique_key is null
              or (
                  not exists (select from {schema}.jobs as live where live.unique_key = done.unique_key)
                  -- of several under one key, the oldest
                  and not exists (
                      select
                      from {schema}.history as older
                      where older.id = any (%(ids)s::bigint[])
                        and older.id < done.id
                        and older.unique_key = done.unique_key
                  )
              )
          )
        returning done.id, done.args, item.before
    ), live as (
        insert into {schema}.jobs as job
        select was.*
        from gone
        cross join lateral jsonb_populate_record(
            null::{schema}.jobs, gone.before || jsonb_build_object('args', gone.args, 'place', null)
        ) as was
        where not gone.before ? 'died_at'
        returning job.id, job.queue, job.unique_key
    ), dead as (
        insert into {schema}.dead as letter
        select was.*
        from gone
        cross join lateral jsonb_populate_record(null::{schema}.dead, gone.before || jsonb_build_object('args', gone.args)) as was
        where gone.before ? 'died_at'
        returning letter.id, letter.unique_key
    ), held as (
        update {schema}.uniques as held
        set job_id = back.id,
            ended = null
        from (select id, unique_key from live union all select id, unique_key from dead) as back
        where held.key = back.unique_key
    ), woken as materialized (
        select count({schema}.notify(%(channel)s, queues.queue)) from (select distinct live.queue from live) as queues
    )
    select back.id from woken, (select id from live union all select id from dead) as back
    """,
)


def _restore(bulk: int, ids: Sequence[JobId], channel: str) -> Steps[list[JobId]]:
    """Have those wait again, or be open letters again, that were cancelled by this bulk, were not tried again since, and whose unique
    key is free."""
    yield lock_keys(ids)
    again: set[JobId] = yield from _tried_again(ids)
    free = [each for each in ids if each not in again]
    restored: list[JobId] = yield RESTORE.query({"bulk": bulk, "ids": free, "channel": channel}, read=_ids)
    return restored


# What was cancelled before it began is as good as none.
SUCCESSORS = statement(
    "find_successors",
    """
    select job.id, job.origin, true from {schema}.jobs as job where job.origin = any (%(ids)s::bigint[])
    union all
    select done.id, done.origin, done.attempt > 0 from {schema}.history as done where done.origin = any (%(ids)s::bigint[])
    union all
    select letter.id, letter.origin, true from {schema}.dead as letter where letter.origin = any (%(ids)s::bigint[])
    """,
)


def _tried_again(ids: Sequence[JobId]) -> Steps[set[JobId]]:
    """Those of which a job was made that waits or has begun, or of that one again. Nobody makes one of the others until the
    transaction ends."""
    again: set[JobId] = set()
    first = {each: each for each in ids}
    while first:
        # a statement of its own before: only after it the jobs are seen that the last holders of these locks have put
        yield lock_settled(sorted(first))
        found: list[tuple[JobId, JobId, bool]] = yield SUCCESSORS.query({"ids": sorted(first)}, read=list)
        again |= {first[origin] for _, origin, counts in found if counts}
        first = {made: first[origin] for made, origin, counts in found if not counts}
    return again


REOPEN = statement(
    "reopen_letters",
    """
    with reopened as (
        update {schema}.dead as letter
        set resolved_at = null,
            resolution = null,
            resolved_by = null,
            note = null,
            successor = null
        from unnest(%(ids)s::bigint[], %(successors)s::bigint[]) as resolved(id, successor)
        where letter.id = resolved.id
          and letter.resolution = %(resolution)s
          and letter.successor is not distinct from resolved.successor
        returning letter.id, letter.unique_key, resolved.successor
    ), held as (
        update {schema}.uniques as held
        set job_id = reopened.id
        from reopened
        where held.key = reopened.unique_key
          and held.job_id = reopened.successor
    )
    select reopened.id from reopened
    """,
)


def _reopen(ids: Sequence[JobId], successors: Sequence[JobId | None], resolution: str) -> Query[list[JobId]]:
    """Have letters be open again that are resolved so; returns which."""
    return REOPEN.query({"ids": list(ids), "successors": list(successors), "resolution": resolution}, read=_ids)


def _retreat(bulk: int, changed: Sequence[Changed], wake: str, cancel: str) -> Steps[list[JobId]]:
    """Cancel the new jobs that have not begun, and open their letters; have hastened ones be due when they were."""
    made = {each.successor: each for each in changed if each.successor is not None}
    hastened = [each for each in changed if each.successor is None]
    yield lock_keys([each.id for each in made.values()])
    now: dict[JobId, Now] = yield from _look([*made, *(each.id for each in hastened)])
    unbegun = [successor for successor in made if successor in now and not now[successor].attempt]
    ended = yield cancel_jobs(unbegun, f"bulk {bulk} was undone", cancel)
    gone = [made[each.id] for each in ended]
    yield _reopen([each.id for each in gone], [each.successor for each in gone], "retried")
    waiting = [each for each in hastened if each.id in now and now[each.id].attempt == _was(each)["attempt"]]
    moments = [datetime.fromisoformat(_was(each)["due_at"]) for each in waiting]
    delayed = yield put_jobs_off([each.id for each in waiting], moments, wake)
    return [*(each.id for each in gone), *delayed]


def _replace(action: str, options: Mapping[str, Any], changed: Sequence[Changed], wake: str) -> Steps[list[JobId]]:
    """Put back what was said of them, of those that it still holds for."""
    now: dict[JobId, Now] = yield from _look([each.id for each in changed])
    if action == "move":
        same = [each for each in changed if each.id in now and now[each.id].queue == options["to"]]
        query = move_jobs([each.id for each in same], [_was(each)["queue"] for each in same], wake)
    elif action == "prioritise":
        same = [each for each in changed if each.id in now and now[each.id].priority == options["priority"]]
        query = prioritise_jobs([each.id for each in same], [_was(each)["priority"] for each in same], wake)
    else:
        until = datetime.fromisoformat(options["at"])
        same = [each for each in changed if each.id in now and now[each.id].due_at == until]
        moments = [datetime.fromisoformat(_was(each)["due_at"]) for each in same]
        query = put_jobs_off([each.id for each in same], moments, wake)
    back: list[JobId] = yield query
    return back


def _was(changed: Changed) -> Mapping[str, Any]:
    assert changed.before is not None, "what waits is written down before it is changed"
    return changed.before


class Now(NamedTuple):
    """A job that waits, as it is."""

    id: JobId
    queue: str
    priority: int
    due_at: datetime
    attempt: int


LOOK = statement(
    "look_at_bulk_jobs",
    """
    select job.id, job.queue, job.priority, job.due_at, job.attempt
    from {schema}.jobs as job
    where job.id = any (%(ids)s::bigint[])
      and job.state <> 'running'
    """,
)


def _look(ids: Sequence[JobId]) -> Steps[dict[JobId, Now]]:
    """Those of them that wait, which they do from here to the end of the transaction."""
    locked: set[JobId] = yield lock_jobs(ids)
    found: list[Now] = yield LOOK.query({"ids": sorted(locked)}, read=many(Now))
    return {each.id: each for each in found}


def _ids(rows: Sequence[Any]) -> list[JobId]:
    return [row[0] for row in rows]
