"""What is due, and giving it out: the statements of the scheduler.

No transaction stays open while Python works out what comes next. The rows are read, plans are made, and one statement carries
them out, each only if its row is still as it was read. So any number of processes may do this at once, and one that was
frozen in the middle changes nothing when it wakes; that one process leads only saves work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rota.postgres.query import Query, many, one, scalar, statement
from rota.schedules.misfire import Misfire

__all__ = [
    "Concluded",
    "DueSchedule",
    "Fired",
    "Horizon",
    "Plan",
    "conclude",
    "find_due",
    "find_unknown_tasks",
    "fire",
    "look_ahead",
    "mark_broken",
    "prune_slots",
    "resume_pauses",
    "walk_waiting",
]


# An error may quote what nobody can store.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class DueSchedule(NamedTuple):
    """A schedule whose time has come, as it was read: what its plan is made from.

    `is_checked`: its arguments are as they were when the task took them. `now` is the database's clock.
    """

    name: str
    revision: int
    task: str
    args: str
    version: int
    kind: str
    cron: str | None
    every: str | None
    at: datetime | None
    tz: str
    anchor: datetime
    dst_gap: str
    dst_overlap: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    jitter: timedelta
    #: JSON text where it was read to be given out; what it says where someone puts something else in its place
    exclude: Any
    misfire: Misfire
    misfire_grace: timedelta
    misfire_limit: int
    next_slot: datetime
    next_at: datetime
    last_slot: datetime | None
    skipped_slots: list[datetime]
    runs: int
    is_checked: bool
    now: datetime


FIND_DUE = statement(
    "find_due_schedules",
    """
    select
        due.name, due.revision, due.task, due.args::text, due.version, due.kind, due.cron, due.every, due.at, due.tz,
        due.anchor, due.dst_gap, due.dst_overlap, due.start_at, due.end_at, due.max_runs, due.jitter, due.exclude::text,
        due.misfire, due.misfire_grace, due.misfire_limit, due.next_slot, due.next_at, due.last_slot, due.skipped_slots,
        due.runs, coalesce(due.checked = {schema}.digest_of_call(due.task, due.version, due.args), false), {schema}.now()
    from {schema}.schedules as due
    where due.next_at <= least((select {schema}.now()), %(until)s::timestamptz)
      and due.paused_at is null
      and due.problem is null
      and (due.next_at, due.name) > (%(after_at)s::timestamptz, %(after_name)s::text)
    order by due.next_at, due.name
    limit %(limit)s
    """,
)


def find_due(limit: int, after: DueSchedule | None = None, until: datetime | None = None) -> Query[list[DueSchedule]]:
    """The schedules that are due, and were then, the longest first: those behind this one."""
    params = {
        "limit": limit,
        "until": "infinity" if until is None else until.isoformat(),
        "after_at": "-infinity" if after is None else after.next_at.isoformat(),
        "after_name": "" if after is None else after.name,
    }
    return FIND_DUE.query(params, read=lambda rows: [DueSchedule._make(row) for row in rows])


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to become of a due schedule: the slots that run, and what comes after them; or why it cannot go on.

    Where a run is under way and the overlap is to be skipped, the newest `made_up` of them wait, and the others are left out.
    """

    name: str
    revision: int
    next_at: datetime
    slots: Sequence[datetime]
    then_slot: datetime | None
    then_at: datetime | None
    made_up: int = 0
    missed: int = 0
    problem: str | None = None


class Fired(NamedTuple):
    """What a plan came to: so many runs were given out, left out since another was under way, and missed."""

    name: str
    fired: int
    skipped: int
    missed: int


FIRE = statement("fire", "select name, fired, skipped, missed from {schema}.fire(%(plans)s::text::jsonb)")


def fire(plans: Sequence[Plan]) -> Query[list[Fired]]:
    """Carry out the plans whose schedules are still as they were read; returns what they came to."""
    told = [
        {
            "name": plan.name,
            "revision": plan.revision,
            "next_at": plan.next_at.isoformat(),
            "slots": [slot.isoformat() for slot in plan.slots],
            "then_slot": None if plan.then_slot is None else plan.then_slot.isoformat(),
            "then_at": None if plan.then_at is None else plan.then_at.isoformat(),
            "made_up": plan.made_up,
            "missed": plan.missed,
            "problem": None if plan.problem is None else _UNSTORABLE.sub("?", plan.problem),
        }
        for plan in plans
    ]
    return FIRE.query({"plans": json.dumps(told)}, read=many(Fired))


@dataclass(frozen=True, slots=True)
class Horizon:
    """When the next schedule is due, in seconds, and whether anything has ended."""

    due_in: float | None
    ends: bool
    now: datetime


LOOK_AHEAD = statement(
    "look_ahead",
    """
    select
        (
            select extract(epoch from next.next_at - (select {schema}.now()))::float8
            from {schema}.schedules as next
            where next.next_at is not null
              and next.paused_at is null
              and next.problem is null
            order by next.next_at, next.name
            limit 1
        ),
        exists (select from {schema}.schedule_ends),
        {schema}.now()
    """,
)


def look_ahead() -> Query[Horizon]:
    """What the scheduler is to do next, and when."""
    return LOOK_AHEAD.query(read=one(Horizon))


class Concluded(NamedTuple):
    """How many ends were looked at.

    By name, how many runs do not follow: since one was under way, or since another parent never gave as much.
    """

    taken: int
    skipped: Mapping[str, int]
    missed: Mapping[str, int]


CONCLUDE = statement("conclude_schedules", "select taken, skipped, missed from {schema}.conclude_schedules(%(most)s)")


def conclude(most: int) -> Query[Concluded]:
    """Draw conclusions from runs that ended: children that follow, pauses that begin, runs whose turn it is."""
    return CONCLUDE.query({"most": most}, read=lambda rows: Concluded._make(rows[0]))


PRUNE = statement("prune_slots", "select {schema}.prune_slots(%(most)s)")


def prune_slots(most: int) -> Query[int]:
    """Forget runs that are as old as history; returns how many."""
    return PRUNE.query({"most": most}, read=scalar)


RESUME_PAUSES = statement(
    "resume_pauses",
    """
    with resumed as (
        update {schema}.schedules as known
        set next_slot = {schema}.end_of_pause({schema}.now(), known.delay),
            next_at = {schema}.end_of_pause({schema}.now(), known.delay)
        where known.name = any (array(
            select lost.name
            from {schema}.schedules as lost
            where lost.kind = 'delay'
              and lost.next_at is null
              and lost.paused_at is null
              and lost.problem is null
              and (lost.max_runs is null or lost.runs < lost.max_runs)
              and (lost.end_at is null or {schema}.end_of_pause({schema}.now(), lost.delay) < lost.end_at)
              and not {schema}.is_under_way(lost.name)
              and not exists (select from {schema}.slots as waits where waits.schedule = lost.name and waits.job_id is null)
              and not exists (select from {schema}.schedule_ends as ended where ended.schedule = lost.name)
            order by lost.name
            for no key update skip locked
        ))
        returning known.name
    )
    select count(*) from resumed
    """,
)


def resume_pauses() -> Query[int]:
    """Begin the pause of schedules whose last run is nowhere to be found, as one that was erased; returns how many."""
    return RESUME_PAUSES.query(read=scalar)


WALK_WAITING = statement(
    "walk_waiting",
    """
    with recursive waiting as (
        -- from one schedule that waits to the next, however much waits in each
        (
            select slot.schedule
            from {schema}.slots as slot
            where slot.job_id is null
              and slot.schedule > %(after)s::text
            order by slot.schedule
            limit 1
        )
        union all
        select next.schedule
        from waiting
        cross join lateral (
            select slot.schedule
            from {schema}.slots as slot
            where slot.job_id is null
              and slot.schedule > waiting.schedule
            order by slot.schedule
            limit 1
        ) as next
    ), walked as materialized (
        select waiting.schedule from waiting limit %(most)s
    ), asked as (
        insert into {schema}.schedule_ends (schedule, outcome)
        select walked.schedule, 'none'
        from walked
        join {schema}.schedules as known on known.name = walked.schedule
        where known.paused_at is null
          and (known.overlap = 'allow' or not {schema}.is_under_way(walked.schedule))
        returning schedule
    ), gone as (
        delete from {schema}.slots as slot
        using walked
        where slot.schedule = walked.schedule
          and slot.job_id is null
          and not exists (select from {schema}.schedules as known where known.name = walked.schedule)
    )
    select
        case when count(*) = %(most)s then max(walked.schedule) else '' end,
        exists (select from asked)
    from walked
    """,
)


def walk_waiting(after: str, most: int) -> Query[tuple[str, bool]]:
    """Look for runs that wait and need not, as the one before left no trace of its end; forget those of schedules that are gone.

    Looks at so many schedules behind this one. Returns the last of them, or nothing if it was the last of all, and whether
    something is to begin.
    """
    return WALK_WAITING.query({"after": after, "most": most}, read=lambda rows: (rows[0][0], rows[0][1]))


FIND_UNKNOWN = statement(
    "find_unknown_tasks",
    """
    select asked.task
    from unnest(%(tasks)s::text[]) as asked(task)
    left join {schema}.live_names('tasks') as known on known.name = asked.task
    where known.name is null
    """,
)


def find_unknown_tasks(tasks: Sequence[str]) -> Query[set[str]]:
    """Those of these tasks that no live worker knows."""
    return FIND_UNKNOWN.query({"tasks": list(tasks)}, read=lambda rows: {task for (task,) in rows})


MARK_BROKEN = statement(
    "mark_broken",
    """
    with marked as (
        update {schema}.schedules
        set problem = %(problem)s,
            next_slot = null,
            next_at = null
        where name = %(name)s
          and revision = %(revision)s
        returning name
    )
    select count(*) from marked
    """,
)


def mark_broken(due: DueSchedule, problem: str) -> Query[int]:
    """Leave it out until someone puts it anew; returns whether it was still as it was read."""
    params = {"name": due.name, "revision": due.revision, "problem": _UNSTORABLE.sub("?", problem)[:2000]}
    return MARK_BROKEN.query(params, read=scalar)
