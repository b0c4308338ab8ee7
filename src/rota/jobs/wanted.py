"""Which jobs someone looks for: the filters, as they are given and as the statements have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from rota.clock import Duration, duration
from rota.errors import ConfigurationError
from rota.jobs.definition import Task
from rota.jobs.inspect import STATES, database_time, text_filters
from rota.postgres.query import Steps, scalar, statement

__all__ = ["DEAD_FITTING", "LIVE_FITTING", "SETTLED_FITTING", "JobFilters", "Wanted", "placed", "read_wanted"]

_SEPARATOR = "\x1f"
_NEWEST = 2**63 - 1
_LIVE, _SETTLED = ("queued", "blocked", "running"), ("succeeded", "cancelled")


class JobFilters(TypedDict, total=False):
    """Which jobs: those that fit all of these.

    `attempt` is how many attempts began, or more. `args` are values by path, such as `{"user.id": 1}`: a value is compared as it is
    written, None fits what is null or not there, and arguments that are redacted fit nothing. `error` is a text in the type or the
    message of any failed attempt on record. `since` and `until` are times, or how long ago: when a settled job settled, and when
    any other was enqueued.
    """

    state: str | None
    queue: str | None
    task: Task[..., Any] | str | None
    tag: str | None
    member: UUID | str | None
    attempt: int | None
    args: Mapping[str, Any] | None
    error: str | None
    since: datetime | Duration | None
    until: datetime | Duration | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters, checked."""

    state: str | None = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    member: UUID | None = None
    attempt: int | None = None
    error: str | None = None
    paths: tuple[str, ...] = ()
    values: tuple[str | None, ...] = ()
    since: datetime | timedelta | None = None
    until: datetime | timedelta | None = None
    #: tasks that redact one of the paths by now, whatever their rows say
    hiding: tuple[str, ...] = ()

    @property
    def params(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("state", "queue", "task", "tag", "member", "attempt")},
            "since": self.since,
            "until": self.until,
            "paths": list(self.paths) or None,
            "values": list(self.values),
            "hiding": list(self.hiding),
            "live": self.state in (None, *_LIVE),
            "settled": self.state in (None, *_SETTLED),
            "dead": self.state in (None, "dead"),
        }


def read_wanted(filters: JobFilters, tasks: Mapping[str, Task[..., Any]], *, has_codec: bool = False) -> Wanted:
    """Refuse what is no filter, rather than find what was not meant."""
    if unknown := filters.keys() - JobFilters.__annotations__.keys():
        raise ConfigurationError(
            f"Jobs cannot be chosen by {', '.join(sorted(unknown))}: the filters are {', '.join(JobFilters.__annotations__)}."
        )
    state, attempt = filters.get("state"), filters.get("attempt")
    if state is not None and state not in STATES:
        raise ConfigurationError(f"No job is ever {state!r}: the states are {', '.join(STATES)}.")
    if attempt is not None and (not isinstance(attempt, int) or isinstance(attempt, bool) or not 0 <= attempt < 2**31):
        raise ConfigurationError(f"attempt cannot be {attempt!r}: it is how many attempts a job has had at least.")
    texts = text_filters({name: filters.get(name) for name in ("queue", "task", "tag", "error")})
    paths, values = _read_paths(filters.get("args"), has_codec)
    first = {path.split(_SEPARATOR)[0] for path in paths}
    return Wanted(
        state=state,
        **texts,
        member=_read_member(filters.get("member")),
        attempt=attempt,
        paths=paths,
        values=values,
        since=_read_moment("since", filters.get("since")),
        until=_read_moment("until", filters.get("until")),
        hiding=tuple(name for name, task in tasks.items() if first & set(task.options.redact)),
    )


def _read_paths(args: Any, has_codec: bool) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    if args is None:
        return (), ()
    if not isinstance(args, Mapping) or not all(isinstance(path, str) and path for path in args):
        raise ConfigurationError(f"args cannot be {args!r}: it is values by path, such as {{'user.id': 1}}.")
    if args and has_codec:
        raise ConfigurationError(
            "Jobs cannot be chosen by their arguments here: this app has a codec, so the database cannot read them. Choose by a tag."
        )
    values = tuple(_as_stored(value) for value in args.values())
    return tuple(path.replace(".", _SEPARATOR) for path in args), values


def _as_stored(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise ConfigurationError(f"No argument can be {value!r}: a value in args is plain JSON.") from None


def _read_member(member: Any) -> UUID | None:
    try:
        return member if member is None or isinstance(member, UUID) else UUID(member)
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f"member cannot be {member!r}: it is the id of a process, as `rota members list` has it."
        ) from None


def _read_moment(name: str, given: Any) -> datetime | timedelta | None:
    if isinstance(given, datetime) and given.tzinfo is None:
        raise ConfigurationError(f"{name} cannot be {given!r}: a time says in which time zone it is.")
    return given if given is None or isinstance(given, datetime) else duration(given, name)


_FITTING = """
              and (%(queue)s::text is null or job.queue = %(queue)s)
              and (%(task)s::text is null or job.task = %(task)s)
              and (%(tag)s::text is null or %(tag)s = any (job.tags))
              and (%(member)s::uuid is null or job.member = %(member)s)
              and (%(attempt)s::integer is null or job.attempt >= %(attempt)s)
              and (
                  %(paths)s::text[] is null
                  or not exists (
                      select
                      from unnest(%(paths)s::text[], %(values)s::text[]) as wanted(path, value)
                      where job.args #>> string_to_array(wanted.path, e'\\x1f') is distinct from wanted.value
                         -- or anyone could find out a secret by asking whether it is this one
                         or split_part(wanted.path, e'\\x1f', 1) = any (job.redact)
                         or job.task = any (%(hiding)s::text[])
                  )
              )
"""

LIVE_FITTING = (
    """
              and %(live)s
              and (%(state)s::text is null or job.state = %(state)s)
              and (%(since)s::timestamptz is null or job.created_at >= %(since)s)
              and (%(until)s::timestamptz is null or job.created_at < %(until)s)
"""
    + _FITTING
)

# whole partitions are left out by the time from which on they matter
SETTLED_FITTING = (
    """
              and %(settled)s
              and job.finished_at >= coalesce(%(from_at)s::timestamptz, '-infinity')
              and (%(state)s::text is null or job.state = %(state)s)
              and (%(since)s::timestamptz is null or job.finished_at >= %(since)s)
              and (%(until)s::timestamptz is null or job.finished_at < %(until)s)
"""
    + _FITTING
)

DEAD_FITTING = (
    """
              and %(dead)s
              and job.resolved_at is null
              and (%(since)s::timestamptz is null or job.died_at >= %(since)s)
              and (%(until)s::timestamptz is null or job.died_at < %(until)s)
"""
    + _FITTING
)

# Partitions that end before are not looked into. Within one that is, no row is left out by this, since each counts for the walk:
# but in the nets, which hold next to nothing unless something went wrong.
FROM = statement(
    "find_oldest_partition",
    """
    select min(there.from_at)
    from {schema}.timelines() as line
    cross join lateral {schema}.partitions(line.timeline) as there
    where there.from_at <= %(since)s
      and there.to_at > %(since)s
    having max(pg_relation_size(line.net)) + pg_relation_size($name${schema}.history_rest$name$::regclass) <= 1048576
    """,
)

# Ids grow with time, but for what was enqueued at the same moment: the minute allows for that. Of the rows up to the middle the
# last tells in which half the place is; where there is none, there is nothing in that half.
BEFORE = statement(
    "find_newest_before",
    """
    with recursive part as (
        select
            0::bigint as low,
            greatest(
                (select max(job.id) from {schema}.jobs as job),
                (select max(job.id) from {schema}.history as job),
                (select max(job.id) from {schema}.dead as job),
                0
            ) + 1 as high
        union all
        select
            case when row.created_at >= %(until)s::timestamptz + interval '1 minute' then part.low else middle.id end,
            case when row.created_at >= %(until)s::timestamptz + interval '1 minute' then row.id else part.high end
        from part
        cross join lateral (select (part.low + part.high) / 2 as id) as middle
        left join lateral (
            (
                select job.id, job.created_at
                from {schema}.jobs as job
                where job.id <= middle.id and job.id > part.low
                order by job.id desc
                limit 1
            )
            union all
            (
                select job.id, job.created_at
                from {schema}.history as job
                where job.id <= middle.id and job.id > part.low
                order by job.id desc
                limit 1
            )
            union all
            (
                select job.id, job.created_at
                from {schema}.dead as job
                where job.id <= middle.id and job.id > part.low
                order by job.id desc
                limit 1
            )
            order by id desc
            limit 1
        ) as row on true
        where part.high - part.low > 1
    )
    select min(part.high) from part
    """,
)


def placed(wanted: Wanted) -> Steps[tuple[Wanted, dict[str, Any]]]:
    """The same with times for how long ago, the partition from which on it looks, and the id before which it begins."""
    since, until = wanted.since, wanted.until
    if isinstance(since, timedelta) or isinstance(until, timedelta):
        now: datetime = yield database_time()
        since = now - since if isinstance(since, timedelta) else since
        until = now - until if isinstance(until, timedelta) else until
    from_at = None if since is None else (yield FROM.query({"since": since}, read=scalar))
    before = _NEWEST if until is None else (yield BEFORE.query({"until": until}, read=scalar))
    return replace(wanted, since=since, until=until), {"from_at": from_at, "before": before}
