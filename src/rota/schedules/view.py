"""A schedule as people see it: when it runs, how far it has come, and why it does not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from rota.errors import ConfigurationError
from rota.jobs.job import JobId, Owner
from rota.jobs.redact import shown_args
from rota.postgres.query import Query, Row, statement
from rota.schedules.definition import timing_of
from rota.schedules.store import beyond, readable_json

__all__ = ["STATES", "Schedule", "get_schedule", "list_schedules"]

STATES = ("active", "waiting", "paused", "broken", "ended")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was when it was read.

    `state` is active (time will make it run), waiting (for a parent, an event or someone), paused, broken or ended; `when`
    says in words when it runs, and `why_idle` why it does not. `slot` is a moment it stands for, `next_at` when the next one
    is due, jitter included.
    """

    name: str
    task: str
    args: Any
    version: int
    queue: str
    priority: int
    key: str | None
    tags: tuple[str, ...]
    kind: str
    cron: str | None
    every: str | None
    at: datetime | None
    event: str | None
    tz: str
    anchor: datetime
    dst_gap: str
    dst_overlap: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    jitter: timedelta
    exclude: Any
    misfire: str
    misfire_grace: timedelta
    misfire_limit: int
    overlap: str
    dormant: bool
    note: str | None
    state: str
    next_slot: datetime | None
    next_at: datetime | None
    last_slot: datetime | None
    last_job: JobId | None
    runs: int
    #: slots left out since a run was under way or someone skipped them; and those nobody was there to give out, or that another
    #: parent never matched
    skipped: int
    missed: int
    succeeded_at: datetime | None
    failed_at: datetime | None
    #: dead runs since the last success
    failures: int
    paused_at: datetime | None
    paused_by: str | None
    problem: str | None
    #: who put it as it is: a name, or "code"
    owner: str | None
    #: of one that code has declared: whether a live process does. None if no code ever has
    declared: bool | None
    #: whether a live worker knows its task
    known: bool
    revision: int
    created_at: datetime
    updated_at: datetime
    #: runs that wait for another to end, and jobs that are queued or running
    waiting: int
    live: int
    parents: tuple[str, ...] = ()
    when: str = ""
    why_idle: str | None = None
    _above: Sequence[dict[str, Any]] = field(default=(), repr=False, compare=False)


# What it is, from what its row says alone.
_STATE = """
    case
        when known.paused_at is not null then 'paused'
        when known.problem is not null then 'broken'
        when known.next_at is not null then 'active'
        when known.runs >= known.max_runs or known.end_at <= {schema}.now() then 'ended'
        when known.kind in ('after', 'event', 'manual') then 'waiting'
        -- its pause begins when its run ends
        when known.kind = 'delay' then 'active'
        else 'ended'
    end
"""

_COLUMNS = """
    select
        known.name, known.task, known.args::text, known.version, known.queue, known.priority, known.key, known.tags,
        known.kind, known.cron, known.every, known.at, known.event, known.tz, known.anchor, known.dst_gap,
        known.dst_overlap, known.start_at, known.end_at, known.max_runs, known.jitter, known.exclude::text, known.misfire,
        known.misfire_grace, known.misfire_limit, known.overlap, known.dormant, known.note, known.state, known.next_slot,
        known.next_at, known.last_slot, known.last_job, known.runs, known.skipped, known.missed, known.succeeded_at,
        known.failed_at, known.failures, known.paused_at, known.paused_by, known.problem, known.owner,
        case when known.digest is not null then __declared__ end, __has_worker__,
        known.revision, known.created_at, known.updated_at,
        (select count(*) from {schema}.slots as slot where slot.schedule = known.name and slot.job_id is null),
        (select count(*) from {schema}.jobs as job where job.schedule = known.name),
        (
            select jsonb_agg(jsonb_build_object(
                'name', edge.parent, 'state', parent.state, 'failures', parent.failures, 'fed', (
                    select count(*)
                    from {schema}.schedule_feed as feed
                    where feed.child = edge.child and feed.parent = edge.parent
                )
            ) order by edge.parent)
            from {schema}.schedule_parents as edge
            left join lateral (
                select known.failures, (__state__) as state
                from {schema}.schedules as known
                where known.name = edge.parent
            ) as parent on true
            where edge.child = known.name
        ),
        known.redact
    from (
        select known.*, (__state__) as state from {schema}.schedules as known
""".replace("__state__", _STATE)

# Of one it is cheap to ask each live process; of many, what they know is read once.
_ONE = _COLUMNS.replace(
    "__declared__",
    """
    exists (select from {schema}.members as member where member.ended_at is null and member.work -> 'schedules' ? known.name)
    """,
).replace(
    "__has_worker__",
    """
    exists (select from {schema}.members as member where member.ended_at is null and member.work -> 'tasks' ? known.task)
    """,
)
_MANY = _COLUMNS.replace("__declared__", "declared.name is not null").replace(
    "__has_worker__", "has_worker.name is not null"
)

GET = statement("get_schedule", _ONE + "where known.name = %(name)s ) as known")


def get_schedule(name: str, app: Owner | None) -> Query[Schedule | None]:
    """The schedule, or None."""
    return GET.query({"name": name}, read=lambda rows: _schedule(rows[0], app) if rows else None)


_PAGE = """
          and known.name > %(after)s
          and (%(state)s::text is null or (__state__) = %(state)s)
        order by known.name
        limit %(limit)s
    ) as known
    left join {schema}.live_names('schedules') as declared on declared.name = known.name
    left join {schema}.live_names('tasks') as has_worker on has_worker.name = known.task
    order by known.name
""".replace("__state__", _STATE)

LIST = statement("list_schedules", _MANY + "where true" + _PAGE)
LIST_PREFIX = statement(
    "list_schedules_with_prefix", _MANY + "where known.name >= %(prefix)s and known.name < %(beyond)s" + _PAGE
)


def list_schedules(
    app: Owner | None, *, prefix: str | None, state: str | None, limit: int, after: str | None
) -> Query[list[Schedule]]:
    """Schedules that fit, by name; `after` is the last of the page before."""
    if state is not None and state not in STATES:
        raise ConfigurationError(f"No schedule is ever {state!r}: the states are {', '.join(STATES)}.")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 10_000:
        raise ConfigurationError(
            f"limit cannot be {limit!r}: it is a number from 1 to 10000; use after=... for the next page."
        )
    for what, text in (("prefix", prefix), ("after", after)):
        if text is not None and not isinstance(text, str):
            raise ConfigurationError(f"{what} cannot be {text!r}: it is text, or None.")
    params = {"state": state, "limit": limit, "after": after or ""}

    def read(rows: Sequence[Row]) -> list[Schedule]:
        return [_schedule(row, app) for row in rows]

    if not prefix:
        return LIST.query(params, read=read)
    return LIST_PREFIX.query({**params, "prefix": prefix, "beyond": beyond(prefix)}, read=read)


def _schedule(row: Row, app: Owner | None) -> Schedule:
    *parts, above, redact = row
    # behind a pooler the session has the time zone of the server
    times = (each.astimezone(UTC) if isinstance(each, datetime) else each for each in parts)
    told: dict[str, Any] = dict(zip(Schedule.__dataclass_fields__, times, strict=False))
    told["args"] = shown_args(app, told["task"], readable_json(told["args"]), redact)
    told["exclude"] = readable_json(told["exclude"])
    told["tags"] = tuple(told["tags"] or ())
    parents = above or []
    schedule = Schedule(**told, parents=tuple(parent["name"] for parent in parents), _above=parents)
    object.__setattr__(schedule, "when", _when(schedule))
    object.__setattr__(schedule, "why_idle", _why_idle(schedule))
    return schedule


def _when(schedule: Schedule) -> str:
    if schedule.kind == "after":
        named = _listed(schedule.parents) or "nothing"
        if schedule.dormant:
            return f"When a run of {named} activates it"
        return f"After {named} succeeded" if len(schedule.parents) < 2 else f"After each of {named} succeeded"
    if schedule.kind == "event":
        return f"On event {schedule.event!r}"
    if schedule.kind == "manual":
        return "When it is triggered"
    try:
        return timing_of(schedule, schedule.anchor).explain()
    except ConfigurationError as error:  # someone wrote something else into the row
        return f"Never: {error}"


def _why_idle(schedule: Schedule) -> str | None:
    if schedule.state == "paused":
        lost = {
            "after": "; successes of its parents count for nothing meanwhile",
            "event": "; events pass it by meanwhile",
        }
        since = f"{schedule.paused_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"paused by {schedule.paused_by or 'someone'} since {since}{lost.get(schedule.kind, '')}"
    if schedule.state == "broken":
        return f"it cannot go on until it is put anew or resumed: {schedule.problem}"
    if schedule.state == "ended":
        return _why_ended(schedule)
    if schedule.state == "active":
        return None
    if schedule.kind == "event":
        return f"it waits for event {schedule.event!r}"
    if schedule.kind == "manual":
        return "it runs when it is triggered"
    if not schedule.parents:
        return "it has no parents left"
    told = [words for parent in schedule._above if (words := _hindered(parent))] or [_awaits(schedule)]
    return "; ".join([*told, *(_gave(parent) for parent in schedule._above if parent["fed"])])


def _awaits(schedule: Schedule) -> str:
    """Whose turn it is, where nothing hinders them."""
    if schedule.dormant:
        one = "one of " if len(schedule.parents) > 1 else ""
        return f"it waits until {one}{_listed(schedule.parents)} activates it"
    awaited = [parent["name"] for parent in schedule._above if not parent["fed"]] or schedule.parents
    return f"it waits until {'each of ' if len(awaited) > 1 else ''}{_listed(awaited)} succeeds (again)"


def _gave(parent: dict[str, Any]) -> str:
    """What of a parent is kept until the others have as much to give."""
    return f"{parent['fed']} success(es) of {parent['name']!r} wait for that"


def _hindered(parent: dict[str, Any]) -> str | None:
    """Why nothing is to be expected of a parent."""
    name, state, failures = parent["name"], parent["state"], parent["failures"]
    if state is None:
        return f"its parent {name!r} is gone"
    if state in ("paused", "broken", "ended"):
        return f"its parent {name!r} {'has ended' if state == 'ended' else f'is {state}'}"
    if failures:
        return f"its parent {name!r} is failing: {failures} dead run(s) since its last success"
    return None


def _why_ended(schedule: Schedule) -> str:
    if schedule.max_runs is not None and schedule.runs >= schedule.max_runs:
        return f"it has had its {schedule.max_runs} run(s)"
    if schedule.kind == "once":
        return "its moment is past"
    if schedule.end_at is not None:
        return f"its last slot before end_at, {schedule.end_at:%Y-%m-%d %H:%M:%S} UTC, is past"
    return "no slot is left for it: all that come are excluded, or none comes in any year"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
