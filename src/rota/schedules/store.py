"""The rows of schedules: locked, read and written, many at a time.

Who changes what schedules say holds one lock for it, so that none of them can close a circle of parents behind another's
back, and two that put the same name find it in turn. Rows are then locked in order of name, as all do who lock several.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from rota.conversion.plain import read_json
from rota.postgres.keys import lock_key
from rota.postgres.query import Query, Row, nothing, statement
from rota.schedules.misfire import Misfire

__all__ = [
    "LockedName",
    "StoredSchedule",
    "beyond",
    "delete_rows",
    "live_digests",
    "lock_definitions",
    "lock_rows",
    "read_rows",
    "readable_json",
    "write_rows",
]


class StoredSchedule(NamedTuple):
    """A schedule as its row has it. `live`: a run of it is under way or waits; `now` is the database's clock."""

    name: str
    revision: int
    task: str
    args: str
    version: int
    queue: str
    priority: int
    key: str | None
    tags: tuple[str, ...]
    redact: tuple[str, ...]
    retention: str | None
    lost_limit: int | None
    kind: str
    cron: str | None
    every: str | None
    delay: timedelta | None
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
    misfire: Misfire
    misfire_grace: timedelta
    misfire_limit: int
    overlap: str
    dormant: bool
    note: str | None
    next_slot: datetime | None
    next_at: datetime | None
    last_slot: datetime | None
    skipped_slots: list[datetime]
    runs: int
    paused_at: datetime | None
    problem: str | None
    owner: str | None
    digest: UUID | None
    digests: list[UUID]
    is_checked: bool
    parents: tuple[str, ...]
    live: bool
    now: datetime


LOCK_DEFINITIONS = statement("lock_definitions", "select pg_advisory_xact_lock(%(key)s::bigint)")


def lock_definitions(schema: str) -> Query[None]:
    """Be the only one who changes what schedules say, until the transaction ends."""
    return LOCK_DEFINITIONS.query({"key": lock_key(schema, "schedules", "definitions")}, read=nothing)


LOCK_ROWS = statement(
    "lock_schedules",
    """
    select known.name, known.digest is not null
    from {schema}.schedules as known
    where known.name = any (%(names)s::text[])
    order by known.name
    for update
    """,
)
LOCK_PREFIX = statement(
    "lock_schedules_with_prefix",
    """
    select known.name, known.digest is not null
    from {schema}.schedules as known
    where known.name = any (%(names)s::text[] || array(
        select fits.name from {schema}.schedules as fits where fits.name >= %(prefix)s and fits.name < %(beyond)s
    ))
    order by known.name
    for update
    """,
)


class LockedName(NamedTuple):
    name: str
    is_declared: bool


def lock_rows(names: Sequence[str], prefix: str | None = None) -> Query[list[LockedName]]:
    """Lock these, and all with this prefix; returns those there are. What is read afterwards stays as it is."""

    def read(rows: Sequence[Row]) -> list[LockedName]:
        return [LockedName._make(row) for row in rows]

    if prefix is None:
        return LOCK_ROWS.query({"names": list(names)}, read=read)
    return LOCK_PREFIX.query({"names": list(names), "prefix": prefix, "beyond": beyond(prefix)}, read=read)


def beyond(prefix: str) -> str:
    """The first text that comes after all with this prefix, in the order of the names of schedules: by code point."""
    last = chr(0x10FFFF)
    stem = prefix.rstrip(last)
    if not stem:
        return last * 201  # longer than any name
    # surrogates stand for nothing
    return stem[:-1] + chr(0xE000 if stem[-1] == "\ud7ff" else ord(stem[-1]) + 1)


READ_ROWS = statement(
    "read_schedules",
    """
    select
        known.name, known.revision, known.task, known.args::text, known.version, known.queue, known.priority, known.key,
        known.tags, known.redact, known.retention, known.lost_limit, known.kind, known.cron, known.every, known.delay,
        known.at, known.event, known.tz, known.anchor, known.dst_gap, known.dst_overlap, known.start_at, known.end_at,
        known.max_runs, known.jitter, known.exclude::text, known.misfire, known.misfire_grace, known.misfire_limit,
        known.overlap, known.dormant, known.note, known.next_slot, known.next_at, known.last_slot, known.skipped_slots,
        known.runs, known.paused_at, known.problem, known.owner, known.digest, known.digests,
        coalesce(known.checked = {schema}.digest_of_call(known.task, known.version, known.args), false),
        array(
            select edge.parent
            from {schema}.schedule_parents as edge
            where edge.child = known.name
            order by edge.parent
        ),
        exists (select from {schema}.jobs as live where live.schedule = known.name)
            or exists (select from {schema}.slots as waits where waits.schedule = known.name and waits.job_id is null),
        {schema}.now()
    from {schema}.schedules as known
    where known.name = any (%(names)s::text[])
    """,
)


def read_rows(names: Sequence[str]) -> Query[dict[str, StoredSchedule]]:
    """Those of these that there are, by name."""
    return READ_ROWS.query({"names": list(names)}, read=_stored)


def _stored(rows: Sequence[Row]) -> dict[str, StoredSchedule]:
    found = (StoredSchedule._make(row) for row in rows)
    return {
        row.name: row._replace(
            tags=tuple(row.tags or ()),
            redact=tuple(row.redact or ()),
            parents=tuple(row.parents),
            exclude=readable_json(row.exclude) or None,
        )
        for row in found
    }


def readable_json(text: str | None) -> Any:
    """What a column says. PostgreSQL holds JSON that Python cannot read: one such row must not hide the others."""
    try:
        return None if text is None else read_json(text)
    except (ValueError, RecursionError):
        return "unreadable"


# One JSON array, however many: what it says of each takes the place of all that was said before.
WRITE_ROWS = statement(
    "write_schedules",
    """
    insert into {schema}.schedules as known (
        name, task, args, version, queue, priority, key, tags, redact, retention, lost_limit, kind, cron, every, delay, at,
        event, tz, anchor, dst_gap, dst_overlap, start_at, end_at, max_runs, jitter, exclude, misfire, misfire_grace,
        misfire_limit, overlap, dormant, note, next_slot, next_at, owner, digest, digests, checked, revision
    )
    select
        said.name, said.task, said.args, said.version, said.queue, said.priority, said.key, said.tags, said.redact,
        said.retention, said.lost_limit, said.kind, said.cron, said.every,
        case when said.kind = 'delay' then make_interval(months => said.delay_months, secs => said.delay_seconds) end,
        said.at, said.event, said.tz, said.anchor, said.dst_gap, said.dst_overlap, said.start_at, said.end_at, said.max_runs,
        make_interval(secs => said.jitter), said.exclude, said.misfire, make_interval(secs => said.misfire_grace),
        said.misfire_limit, said.overlap, said.dormant, said.note, said.next_slot, said.next_at, said.owner, said.digest,
        said.digests, case when said.checked then {schema}.digest_of_call(said.task, said.version, said.args) end, said.revision
    from jsonb_to_recordset(%(rows)s::text::jsonb) as said(
        name text, task text, args jsonb, version smallint, queue text, priority smallint, key text, tags text[],
        redact text[], retention text, lost_limit smallint, kind text, cron text, every text, delay_months integer,
        delay_seconds float8, at timestamptz, event text, tz text, anchor timestamptz, dst_gap text, dst_overlap text,
        start_at timestamptz, end_at timestamptz, max_runs bigint, jitter float8, exclude jsonb, misfire text,
        misfire_grace float8, misfire_limit integer, overlap text, dormant boolean, note text, next_slot timestamptz,
        next_at timestamptz, owner text, digest uuid, digests uuid[], checked boolean, revision bigint
    )
    on conflict (name) do update set
        task = excluded.task, args = excluded.args, version = excluded.version, queue = excluded.queue,
        priority = excluded.priority, key = excluded.key, tags = excluded.tags, redact = excluded.redact,
        retention = excluded.retention, lost_limit = excluded.lost_limit, kind = excluded.kind, cron = excluded.cron,
        every = excluded.every, delay = excluded.delay, at = excluded.at, event = excluded.event, tz = excluded.tz,
        anchor = excluded.anchor, dst_gap = excluded.dst_gap, dst_overlap = excluded.dst_overlap,
        start_at = excluded.start_at, end_at = excluded.end_at, max_runs = excluded.max_runs, jitter = excluded.jitter,
        exclude = excluded.exclude, misfire = excluded.misfire, misfire_grace = excluded.misfire_grace,
        misfire_limit = excluded.misfire_limit, overlap = excluded.overlap, dormant = excluded.dormant,
        note = excluded.note, next_slot = excluded.next_slot, next_at = excluded.next_at, owner = excluded.owner,
        digest = excluded.digest, digests = excluded.digests, checked = excluded.checked, revision = excluded.revision,
        problem = null, updated_at = {schema}.now()
    """,
)


def write_rows(rows: Sequence[Mapping[str, Any]]) -> Query[None]:
    """Put the rows, or in place of those there are. How far they have come, and whether they are paused, stays."""
    return WRITE_ROWS.query({"rows": json.dumps(rows)}, read=nothing)


# What waits to run goes too: nothing would ever let it begin. What was given out is history, and stays.
DELETE_ROWS = statement(
    "delete_schedules",
    """
    with gone as (
        delete from {schema}.schedules as known
        where known.name = any (%(names)s::text[])
        returning known.name
    ), unheard as (
        delete from {schema}.slots as slot
        using gone
        where slot.schedule = gone.name
          and slot.job_id is null
    )
    select gone.name from gone order by gone.name
    """,
)


def delete_rows(names: Sequence[str]) -> Query[list[str]]:
    """Delete these schedules with what waits of them; returns the names of those there were."""
    return DELETE_ROWS.query({"names": list(names)}, read=lambda rows: [row[0] for row in rows])


LIVE_DIGESTS = statement(
    "live_digests",
    """
    select said.key, array_agg(distinct said.value)
    from {schema}.members as member
    cross join lateral jsonb_each_text(
        case jsonb_typeof(member.work -> 'schedules') when 'object' then member.work -> 'schedules' else '{}' end
    ) as said
    where member.ended_at is null
    group by said.key
    """,
)


def live_digests() -> Query[dict[str, set[str]]]:
    """What the processes that are alive declare, by the names of the schedules: the digests of it, as text."""
    return LIVE_DIGESTS.query(read=lambda rows: {name: set(digests) for name, digests in rows})
