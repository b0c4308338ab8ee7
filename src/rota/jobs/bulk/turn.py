"""Turns: one short transaction each, taken by any worker. What it changes and how far the bulk is are committed together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from rota.jobs.bulk.action import ACTIONS
from rota.jobs.bulk.change import Chosen, change_chosen, lock_jobs, lock_keys, lock_letters
from rota.jobs.bulk.fitting import FITTING, fitting_params, thawed
from rota.jobs.bulk.undo import Changed, put_back
from rota.jobs.job import JobId
from rota.jobs.repeat import lock_settled
from rota.postgres.audit import actor, record
from rota.postgres.query import Query, Steps, many, nothing, one_or_none, scalar, statement
from rota.service.points import reach

__all__ = [
    "BATCH",
    "At",
    "Turn",
    "give_up_job",
    "is_any_due",
    "next_due",
    "prune_bulks",
    "put_off_turn",
    "take_turn",
    "tell_trouble",
]

# What one turn changes: enough to be quick, few enough to lock nobody out for long.
BATCH = 500
# Of one that is paced, what half a second brings.
_TURNS_PER_SECOND = 2.0
# Nobody who holds a job for longer is waited for: the turn is taken again, with fewer.
_LOCK_TIMEOUT = "2s"
_LONGEST_SAID = 500


@dataclass(slots=True)
class At:
    """Where a turn is, for whoever finds that it failed: the bulk, how it stood, and the first of the jobs."""

    bulk: int = 0
    state: str = ""
    after: JobId = 0
    job: JobId = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn left: how the bulk stands, what became of its jobs so far, and whether it ended with that."""

    bulk: int
    action: str
    state: str
    done: int
    skipped: int
    failed: int
    ended: bool


class _Taken(NamedTuple):
    id: int
    action: str
    state: str
    filter: Mapping[str, Any] | None
    options: Mapping[str, Any]
    actor: str
    pace: float | None
    after: JobId
    reasons: Mapping[str, int]
    done: int
    skipped: int
    failed: int


SETTINGS = statement("begin_turn", "select pg_catalog.set_config('lock_timeout', %(limit)s, true)")

# One that waited longest, so that several go on side by side. Whoever is at it has locked it, and is not waited for.
TAKE = statement(
    "take_bulk",
    """
    select
        bulk.id, bulk.action, bulk.state, bulk.filter, bulk.options, bulk.actor, bulk.pace, bulk.after, bulk.reasons,
        bulk.done, bulk.skipped, bulk.failed
    from {schema}.bulks as bulk
    where bulk.state in ('running', 'undoing')
      and bulk.not_before <= statement_timestamp()
    order by bulk.not_before
    limit 1
    for update skip locked
    """,
)

NEXT = statement(
    "next_bulk_jobs",
    """
    select item.job, item.successor, item.before
    from {schema}.bulk_jobs as item
    where item.bulk = %(bulk)s
      and item.job > %(after)s
      and item.outcome is not distinct from %(outcome)s::text
    order by item.job
    limit %(limit)s
    """,
)

FIT = {
    error: statement(
        f"fit_bulk_jobs{'_failed' if error else ''}",
        FITTING["named", error] + "select fitting.id, fitting.state, fitting.why from fitting",  # noqa: S608
    )
    for error in (False, True)
}

WRITE = statement(
    "write_bulk_outcomes",
    """
    update {schema}.bulk_jobs as item
    set outcome = told.outcome,
        successor = coalesce(told.successor, item.successor),
        before = case when told.outcome = 'done' then item.before end
    from unnest(%(ids)s::bigint[], %(outcomes)s::text[], %(successors)s::bigint[]) as told(job, outcome, successor)
    where item.bulk = %(bulk)s
      and item.job = told.job
      -- said twice: of a table that nobody has counted yet PostgreSQL would rather walk the whole bulk
      and item.job = any (%(ids)s::bigint[])
    """,
)

ADVANCE = statement(
    "advance_bulk",
    """
    update {schema}.bulks
    set after = %(after)s,
        begun_at = coalesce(begun_at, {schema}.now()),
        done = done + %(done)s,
        skipped = skipped + %(skipped)s,
        failed = failed + %(failed)s,
        undone = undone + %(undone)s,
        kept = kept + %(kept)s,
        reasons = %(reasons)s,
        not_before = greatest(not_before, statement_timestamp()) + coalesce(%(seconds)s::float8 * interval '1 second', '0'),
        trouble = null
    where id = %(bulk)s
    """,
)

# the values of arguments, if it went by such, are of no use any more
END = statement(
    "end_bulk",
    """
    update {schema}.bulks
    set state = %(state)s,
        begun_at = coalesce(begun_at, {schema}.now()),
        ended_at = {schema}.now(),
        filter = filter - '{values,hiding}'::text[],
        trouble = null
    where id = %(bulk)s
    """,
)


def take_turn(at: At, fewer: Mapping[int, int], *, wake: str, cancel: str) -> Steps[Turn | None]:
    """Go on with a bulk that is due, for a batch of jobs, or as many as `fewer` says; None if there is none, or someone is at it."""
    yield SETTINGS.query({"limit": _LOCK_TIMEOUT}, read=nothing)
    taken: _Taken | None = yield TAKE.query(read=one_or_none(_Taken))
    if taken is None:
        return None
    most = fewer.get(taken.id, BATCH)
    limit = most if taken.pace is None else max(1, min(most, math.ceil(taken.pace / _TURNS_PER_SECOND)))
    reach("bulk.taken")
    found: list[Changed] = yield _next(taken, limit + 1)
    items, is_last = found[:limit], len(found) <= limit
    if not items:  # what is left was erased
        return (yield from _end(taken, {}))
    at.bulk, at.state, at.after, at.job = taken.id, taken.state, taken.after, items[0].id
    reasons = Counter(taken.reasons)
    counts: Counter[str] = Counter()
    if taken.state == "running":
        outcomes, successors, why = yield from _change(taken, [each.id for each in items], wake, cancel)
    else:
        back = yield from put_back(taken.id, taken.action, taken.options, items, wake=wake, cancel=cancel)
        outcomes = {**dict.fromkeys(back.undone, "undone"), **dict.fromkeys(back.kept, "kept")}
        successors, why = {}, list(back.kept.values())
    reach("bulk.changed")
    reasons.update(why)
    counts.update(outcomes.values())
    ids = list(outcomes)
    yield WRITE.query(
        {
            "bulk": taken.id,
            "ids": ids,
            "outcomes": [outcomes[each] for each in ids],
            "successors": [successors.get(each) for each in ids],
        },
        read=nothing,
    )
    changed = counts["done"] + counts["undone"]
    yield ADVANCE.query(
        {
            "bulk": taken.id,
            "after": items[-1].id,
            **{name: counts[name] for name in ("done", "skipped", "failed", "undone", "kept")},
            "reasons": Jsonb(dict(reasons)),
            "seconds": None if taken.pace is None else changed / taken.pace,
        },
        read=nothing,
    )
    ended = (yield from _end(taken, counts)) if is_last else None
    reach("bulk.before_commit")
    return ended or Turn(taken.id, taken.action, taken.state, **_counted(taken, counts), ended=False)


def _next(taken: _Taken, limit: int) -> Query[list[Changed]]:
    params = {
        "bulk": taken.id,
        "after": taken.after,
        "limit": limit,
        "outcome": None if taken.state == "running" else "done",
    }
    return NEXT.query(params, read=many(Changed))


def _change(
    taken: _Taken, ids: Sequence[JobId], wake: str, cancel: str
) -> Steps[tuple[dict[JobId, str], Mapping[JobId, JobId | None], list[str]]]:
    """What became of each, the jobs that were made, and why others were passed over."""
    if taken.action == "retry":
        yield lock_keys(ids)
    locked: set[JobId] = yield lock_jobs(ids)
    if taken.action in ("retry", "discard", "acknowledge"):
        yield lock_letters(ids)
    if taken.action == "retry":
        yield lock_settled(ids)
    wanted, named = thawed(taken.filter), ids if taken.filter is None else None
    params = fitting_params(ACTIONS[taken.action], taken.options, wanted, named)
    fitting = yield FIT[wanted.error is not None].query({**params, "ids": list(ids)}, read=list)
    places: dict[str, list[JobId]] = {"live": [], "dead": [], "settled": []}
    passed: dict[JobId, str] = dict.fromkeys(ids, "changed")
    for job, state, why in fitting:
        where = "dead" if state == "dead" else "live" if state in ("queued", "blocked", "running") else "settled"
        # one that ran when the others were locked may be taken again at any moment
        reason = "running" if why is None and where == "live" and job not in locked else why
        if reason is not None:
            passed[job] = reason
        else:
            del passed[job]
            places[where].append(job)
    chosen = Chosen(*(sorted(each) for each in places.values()))
    told = yield from change_chosen(
        taken.id, taken.action, taken.options, chosen, taken.actor, wake=wake, cancel=cancel
    )
    passed |= told.not_done
    outcomes = {job: "failed" if why == "key" else "skipped" for job, why in passed.items()}
    outcomes |= dict.fromkeys(told.done, "done")
    return outcomes, told.done, list(passed.values())


def _end(taken: _Taken, counts: Mapping[str, int]) -> Steps[Turn]:
    state = "finished" if taken.state == "running" else "undone"
    yield END.query({"bulk": taken.id, "state": state}, read=nothing)
    told = _counted(taken, counts)
    # by whoever had the last turn: the person has begun it, and may be long gone
    details = {"bulk": taken.id, "action": taken.action, "state": state, "by": taken.actor, **told}
    yield record(actor(None), "bulk.end", details)
    return Turn(taken.id, taken.action, state, **told, ended=True)


def _counted(taken: _Taken, counts: Mapping[str, int]) -> dict[str, int]:
    """How many so far, with those of this turn."""
    return {name: getattr(taken, name) + counts.get(name, 0) for name in ("done", "skipped", "failed")}


# One that nobody is at: it has not begun, or its last turn is seconds ago.
IS_ANY_DUE = statement(
    "is_any_bulk_due",
    """
    select exists (
        select
        from {schema}.bulks as bulk
        where bulk.state in ('running', 'undoing')
          and bulk.not_before
              <= statement_timestamp() - case when bulk.after = 0 then 0 else %(patience)s end * interval '1 second'
    )
    """,
)


def is_any_due(patience: float) -> Query[bool]:
    """Whether there is a bulk that nobody has begun with, or was at for so many seconds."""
    return IS_ANY_DUE.query({"patience": patience}, read=scalar)


# those that are paced or put off only: whoever had the last turn waits for the next
NEXT_DUE = statement(
    "next_bulk_due",
    """
    select extract(epoch from min(bulk.not_before) - statement_timestamp())::float8
    from {schema}.bulks as bulk
    where bulk.state in ('running', 'undoing')
      and (%(only)s::bigint[] is null or bulk.id = any (%(only)s::bigint[]))
    """,
)


def next_due(only: Sequence[int] | None = None) -> Query[float | None]:
    """In how many seconds the next turn may be taken, of these bulks or any; None if none is open."""
    return NEXT_DUE.query({"only": None if only is None else list(only)}, read=scalar)


PUT_OFF = statement(
    "put_off_turn",
    """
    update {schema}.bulks
    set not_before = statement_timestamp() + %(seconds)s * interval '1 second'
    where id = %(bulk)s
      and state = %(state)s
      and after = %(after)s
    """,
)


def put_off_turn(at: At, seconds: float) -> Query[None]:
    """Have other bulks go on before this one is tried again, unless someone else has had another turn with it since."""
    return PUT_OFF.query({**asdict(at), "seconds": seconds}, read=nothing)


GIVE_UP = statement(
    "give_up_bulk_job",
    """
    with next as (
        select bulk.id, bulk.state
        from {schema}.bulks as bulk
        where bulk.id = %(bulk)s
          and bulk.state = %(state)s
          and bulk.after = %(after)s
        for update
    ), passed as (
        update {schema}.bulk_jobs as item
        set outcome = case when next.state = 'undoing' then 'kept' else 'failed' end
        from next
        where item.bulk = next.id
          and item.job = %(job)s
    )
    update {schema}.bulks as bulk
    set after = %(job)s,
        failed = bulk.failed + (next.state = 'running')::integer,
        kept = bulk.kept + (next.state = 'undoing')::integer,
        reasons = bulk.reasons || jsonb_build_object(%(why)s::text, coalesce((bulk.reasons ->> %(why)s)::integer, 0) + 1),
        not_before = statement_timestamp(),
        trouble = %(said)s
    from next
    where bulk.id = next.id
    """,
)


def give_up_job(at: At, why: str, said: str) -> Query[None]:
    """Pass over the one job that a turn was at, unless someone else has had another turn since."""
    return GIVE_UP.query({**asdict(at), "why": why, "said": said[:_LONGEST_SAID]}, read=nothing)


TROUBLE = statement(
    "tell_bulk_trouble",
    "update {schema}.bulks set trouble = %(said)s where id = %(bulk)s and trouble is distinct from %(said)s",
)


def tell_trouble(at: At, said: str) -> Query[None]:
    """Have people see what keeps it from going on; it is tried again."""
    return TROUBLE.query({"bulk": at.bulk, "said": said[:_LONGEST_SAID]}, read=nothing)


PRUNE = statement(
    "prune_bulks",
    """
    with over as materialized (
        select bulk.id, bulk.created_at < {schema}.now() - interval '30 days' as forgotten
        from {schema}.bulks as bulk
        where bulk.state not in ('running', 'undoing')
          and bulk.undo_until < {schema}.now()
    ), items as materialized (
        select item.bulk, item.job
        from over
        cross join lateral (
            select item.bulk, item.job from {schema}.bulk_jobs as item where item.bulk = over.id limit %(most)s
        ) as item
        limit %(most)s
    ), gone as (
        delete from {schema}.bulk_jobs as item
        using items
        where item.bulk = items.bulk
          and item.job = items.job
    ), forgotten as (
        delete from {schema}.bulks as bulk
        using over
        where bulk.id = over.id
          and over.forgotten
          and not exists (select from items where items.bulk = over.id)
    )
    select count(*)::integer from items
    """,
)


def prune_bulks(most: int = 20_000) -> Query[int]:
    """Forget what jobs were before bulks that cannot be undone any more, up to so many; and bulks a month later. Returns how many."""
    return PRUNE.query({"most": most}, read=scalar)
