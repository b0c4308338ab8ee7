"""What a person says about queues: have them rest and go on, how much of them runs, how they share, and how soon what came of their
jobs is on disk. Honoured within a second.

Each is one row, written under its lock: those who claim under the old limit have it until they are done, and those after see
the new one. The row with no name is about all queues together.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from types import EllipsisType
from typing import Any

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError
from rota.jobs.checks import LATEST_YEAR, LONGEST_DELAY
from rota.jobs.queue_view import QueueView, look_at_queue
from rota.jobs.rate import Rate, read_rate
from rota.postgres.audit import record
from rota.postgres.names import check_name
from rota.postgres.notify import notify
from rota.postgres.query import Steps, nothing, scalar, statement

__all__ = ["check_queue", "limit_queue", "pause_queue", "relax_queue", "resume_queue", "weigh_queue"]

_MOST_RUNNING = 2**31 - 1
_LIGHTEST, _HEAVIEST = 0.001, 1000.0  # beyond that one of two queues never gets its turn, which is what priority is for


def check_queue(name: Any) -> str | None:
    """The name of a queue, or None for all of them together; raises ConfigurationError."""
    return None if name is None else check_name("queue", name, 200)


PAUSE = statement(
    "pause_queue",
    """
    insert into {schema}.queues as queue (
        name, paused_at, paused_until, paused_by, pause_reason, changed_at, changed_by
    )
    select %(name)s, {schema}.now(), given.until, %(by)s, %(reason)s, {schema}.now(), %(by)s
    from (
        select coalesce(%(until)s::timestamptz, {schema}.now() + %(seconds)s::float8 * interval '1 second') as until
    ) as given
    where given.until is null or given.until > {schema}.now()
    on conflict (name) do update
    set -- said again while it holds, it still began when it did
        paused_at = case
            when queue.paused_until is null or queue.paused_until > {schema}.now()
            then coalesce(queue.paused_at, excluded.paused_at)
            else excluded.paused_at
        end,
        paused_until = excluded.paused_until,
        paused_by = excluded.paused_by,
        pause_reason = excluded.pause_reason,
        changed_at = excluded.changed_at,
        changed_by = excluded.changed_by
    returning true
    """,
)


def pause_queue(
    name: str | None,
    reason: str,
    until: datetime | None,
    for_: Duration | None,
    *,
    by: str,
    channel: str,
    declared: Collection[str],
) -> Steps[QueueView]:
    """Have nobody take jobs from this queue; what runs goes on to its end."""
    if until is not None and for_ is not None:
        raise ConfigurationError("A pause ends at a time (until) or after one (for_): give one of them.")
    params = {
        "name": name or "",
        "until": None if until is None else _check_until(until),
        "seconds": None if for_ is None else _check_for(for_),
        "reason": check_name("reason", reason, 1000) if reason else None,
        "by": by,
    }
    if not (yield PAUSE.query(params, read=scalar)):
        assert until is not None  # what lasts for so long ends later than now
        raise ConfigurationError(
            f"{f'Queue {name}' if name else 'All queues'} cannot be paused until {until.isoformat(' ', 'seconds')}: by the clock of "
            "the database that time has passed. Give a later one, say for how long instead, or neither, and resume it by hand."
        )
    paused: QueueView = yield from _changed(name, channel, declared)
    ends = None if paused.paused_until is None else paused.paused_until.astimezone(UTC).isoformat()
    yield record(by, "queue.pause", {"queue": name, "until": ends, "reason": reason or None})
    return paused


def _check_until(until: Any) -> datetime:
    if not isinstance(until, datetime) or until.tzinfo is None or not 1 < until.year < LATEST_YEAR:
        raise ConfigurationError(
            f"until cannot be {until!r}: it is a datetime with a time zone, before the year {LATEST_YEAR}."
        )
    return until


def _check_for(for_: Duration) -> float:
    length = seconds(for_, "for_")
    if not 0 < length <= LONGEST_DELAY:
        raise ConfigurationError(
            f"for_ cannot be {for_!r}: a pause is longer than nothing and no longer than a hundred years."
        )
    return length


RESUME = statement(
    "resume_queue",
    """
    update {schema}.queues
    set paused_at = null,
        paused_until = null,
        paused_by = null,
        pause_reason = null,
        changed_at = {schema}.now(),
        changed_by = %(by)s
    where name = %(name)s
      and paused_at is not null
    returning true
    """,
)


def resume_queue(name: str | None, *, by: str, channel: str, declared: Collection[str]) -> Steps[QueueView]:
    """Go on, at once. One that is not paused stays as it is."""
    if (yield RESUME.query({"name": name or "", "by": by}, read=scalar)):
        yield record(by, "queue.resume", {"queue": name})
    return (yield from _changed(name, channel, declared))


# What has begun in the period counts under another rate too. Slots of another length have other numbers: what began within the
# old period is then taken to have begun now, so that at worst a wait of one new period is longer than it had to be.
LIMIT = statement(
    "limit_queue",
    """
    insert into {schema}.queues as queue (name, running_limit, rate_count, rate_seconds, changed_at, changed_by)
    values (%(name)s, %(running)s, %(count)s, %(seconds)s, {schema}.now(), %(by)s)
    on conflict (name) do update
    set running_limit = case when %(set_running)s then excluded.running_limit else queue.running_limit end,
        rate_count = case when %(set_rate)s then excluded.rate_count else queue.rate_count end,
        rate_seconds = case when %(set_rate)s then excluded.rate_seconds else queue.rate_seconds end,
        (spent, spent_slot, not_before) = (
            select rate.spent, rate.slot, rate.not_before
            from (
                select
                    case when %(set_rate)s then excluded.rate_count else queue.rate_count end as count,
                    case when %(set_rate)s then excluded.rate_seconds else queue.rate_seconds end as seconds
            ) as wanted
            cross join lateral (select queue.rate_seconds = wanted.seconds as same) as slots
            left join lateral {schema}.rate_after(
                wanted.count, wanted.seconds,
                case when slots.same then 0 else (
                    select coalesce(sum(each), 0)::integer
                    from {schema}.rate_after(
                            queue.rate_count, queue.rate_seconds, 0, {schema}.now(), queue.spent, queue.spent_slot
                         ) as old,
                         unnest(old.spent) as each
                ) end,
                {schema}.now(), case when slots.same then queue.spent end, queue.spent_slot
            ) as rate
              on wanted.count is not null
        ),
        changed_at = excluded.changed_at,
        changed_by = excluded.changed_by
    """,
)


def limit_queue(
    name: str | None,
    running: int | EllipsisType | None,
    rate: str | EllipsisType | None,
    *,
    by: str,
    channel: str,
    declared: Collection[str],
) -> Steps[QueueView]:
    """Let so many of its jobs run, and so many begin in a period. None: as many as may; what is `...` stays as it is."""
    if running is ... and rate is ...:
        raise ConfigurationError(
            "Nothing is said about the queue: give running=, rate=, or both; None removes a limit."
        )
    per: Rate | None = None if rate is ... or rate is None else read_rate(rate, "rate")
    most = None if running is ... or running is None else _check_running(running)
    params = {
        "name": name or "",
        "set_running": running is not ...,
        "running": most,
        "set_rate": rate is not ...,
        "count": None if per is None else per.count,
        "seconds": None if per is None else per.seconds,
        "by": by,
    }
    yield LIMIT.query(params, read=nothing)
    said: dict[str, Any] = {} if running is ... else {"running": most}
    if rate is not ...:
        said["rate"] = None if per is None else str(per)
    yield record(by, "queue.limit", {"queue": name, **said})
    return (yield from _changed(name, channel, declared))


def _check_running(running: Any) -> int:
    if not isinstance(running, int) or isinstance(running, bool) or not 1 <= running <= _MOST_RUNNING:
        raise ConfigurationError(
            f"running cannot be {running!r}: it is how many of its jobs run at once, 1 or more, or None for as many as may. To have "
            "none run, pause the queue."
        )
    return running


WEIGH = statement(
    "weigh_queue",
    """
    insert into {schema}.queues as queue (name, weight, changed_at, changed_by)
    values (%(name)s, %(weight)s, {schema}.now(), %(by)s)
    on conflict (name) do update
    set weight = excluded.weight,
        changed_at = excluded.changed_at,
        changed_by = excluded.changed_by
    """,
)


def weigh_queue(
    name: str | None, weight: float, *, by: str, channel: str, declared: Collection[str]
) -> Steps[QueueView]:
    """Give this queue so large a share beside others of the same priority; 1 is that of a queue nobody has weighed."""
    if name is None:
        raise ConfigurationError("queue cannot be None here: a weight is that of one queue beside others. Name it.")
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not _LIGHTEST <= weight <= _HEAVIEST:
        raise ConfigurationError(
            f"weight cannot be {weight!r}: it is a number from {_LIGHTEST:g} to {_HEAVIEST:g}, and 1 is that of a queue nobody has "
            "weighed."
        )
    yield WEIGH.query({"name": name, "weight": float(weight), "by": by}, read=nothing)
    yield record(by, "queue.weigh", {"queue": name, "weight": float(weight)})
    return (yield from _changed(name, channel, declared))


RELAX = statement(
    "relax_queue",
    """
    insert into {schema}.queues as queue (name, relaxed, changed_at, changed_by)
    values (%(name)s, %(relaxed)s, {schema}.now(), %(by)s)
    on conflict (name) do update
    set relaxed = excluded.relaxed,
        changed_at = excluded.changed_at,
        changed_by = excluded.changed_by
    """,
)


def relax_queue(
    name: str | None, relaxed: bool, *, by: str, channel: str, declared: Collection[str]
) -> Steps[QueueView]:
    """Have successes in this queue count before they are on disk, or, as in all queues by default, not before."""
    if name is None:
        raise ConfigurationError("queue cannot be None here: each queue is relaxed, or not, by itself. Name it.")
    yield RELAX.query({"name": name, "relaxed": relaxed, "by": by}, read=nothing)
    yield record(by, "queue.relax" if relaxed else "queue.tighten", {"queue": name})
    return (yield from _changed(name, channel, declared))


def _changed(name: str | None, channel: str, declared: Collection[str]) -> Steps[QueueView]:
    """Have the workers look at once; no name reaches all of them. Returns what holds now."""
    yield notify(channel, name or "")
    return (yield from look_at_queue(name, declared))
