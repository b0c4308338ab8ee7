"""Giving the events of a restored database an order that its new server understands.

A dump that is restored into another cluster brings its transaction ids along, and the new server begins to count anew. Its
horizon is then far below what the events carry: they could not be read, and new ones would come before them. So they are given
new numbers, small ones, in the same order.

There need not be many. The order is that of the pair (order_xid, position), and where positions go up along it one number does
for all; a new one is needed only where a position is smaller than the one before it, which is where commits overtook each other.
Checkpoints and parked events are moved along with the events they stand at. All transaction ids from then on must be greater:
where the server is so young that they are not, some are used up first.

What was appended since the restore carries a small id of this server, or that of the restored event before it in its stream: either
way it lies behind checkpoints that have not seen it. Nobody has read it yet, as no worker starts before the rebase, and so it is put
behind all that was restored, by position, which keeps the order of each stream. Which events those are is told by `xmin`, the
transaction that brought a row into this table: a dump is copied in by one. Where rows came one by one that says nothing; then
whoever restored it has to say which event was the last, and nothing is guessed.

All of it is one transaction with no deadline: ten million events take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from rota.errors import ForeignDatabase, NotPossible
from rota.postgres.audit import record
from rota.postgres.foreign import foreign
from rota.postgres.pool import Database
from rota.postgres.query import Query, Row, Steps, many, nothing, statement
from rota.projections.definition import ProjectionDefinition
from rota.projections.feed import Ahead
from rota.projections.horizon import HorizonHolder, who_holds_the_horizon

__all__ = ["Rebased", "check_order", "rebase", "rebase_sync"]

# Smaller ones than this PostgreSQL never gives to a transaction.
_FIRST_ID = 3
# How many ids one statement uses up.
_AT_ONCE = 1_000

LIMITS = statement(
    "rebase_limits",
    """
    select
        -- however many events there are
        set_config('statement_timeout', '0', true),
        -- whoever appends for longer is to be stopped, and not to be waited for behind our back
        set_config('lock_timeout', '10s', true)
    """,
)
LOCK = statement(
    "lock_events",
    """
    lock table {schema}.events, {schema}.streams, {schema}.projections, {schema}.parked_events in exclusive mode
    """,
)
LOGS = statement(
    "find_foreign_logs",
    """
    with logs as (
        -- the age of its first row here: a dump is copied in by one transaction
        select event.log, max(age(event.xmin)) as age, max(event.position) as position
        from {schema}.events as event
        group by event.log
        having bool_or(event.order_xid >= pg_snapshot_xmax(pg_current_snapshot()))
    )
    select
        logs.log, logs.age, logs.position, late.count,
        late.count > 0 and (
            late.position <= (
                select max(event.position)
                from {schema}.events as event
                where event.log = logs.log
                  and age(event.xmin) = logs.age
            )
            or exists (
                select
                from {schema}.events as event
                where event.log = logs.log
                  and age(event.xmin) < logs.age
                  and (
                      -- what was appended has an id of this server, or that of what was restored of its stream
                      event.order_xid >= pg_snapshot_xmax(pg_current_snapshot())
                      and not exists (
                          select
                          from {schema}.events as restored
                          where restored.log = event.log
                            and restored.order_xid = event.order_xid
                            and restored.stream = event.stream
                            and age(restored.xmin) = logs.age
                      )
                      -- and nobody has read it
                      or exists (
                          select
                          from {schema}.projections as projection
                          where projection.definition ->> 'source' = event.log
                            and projection.definition ->> 'kind' is distinct from 'table'
                            and projection.order_xid = event.order_xid
                            and projection.position = event.position
                      )
                  )
            )
        )
    from logs
    cross join lateral (
        select count(*) as count, min(event.position) as position
        from {schema}.events as event
        where event.log = logs.log
          and age(event.xmin) < logs.age
    ) as late
    order by logs.log
    """,
)


@dataclass(frozen=True, slots=True)
class ForeignLog:
    """A log with ids that this server has not given out: how long ago its rows came here, and how many came later."""

    log: str
    age: int
    last: int
    late: int
    is_unclear: bool


REBASE = statement(
    "rebase_events",
    """
    with numbered as materialized (
        select
            walked.tuple, walked.log, walked.stream, walked.order_xid, walked.position, walked.is_late,
            %(first)s::bigint + sum(walked.back::int) over (
                partition by walked.log order by walked.is_late, walked.sorted_by, walked.position
            ) as number
        from (
            select
                event.*,
                coalesce(
                    event.position < lag(event.position) over (
                        partition by event.log order by event.is_late, event.sorted_by, event.position
                    ),
                    false
                ) as back
            from (
                select
                    event.ctid as tuple, event.log, event.stream, event.order_xid, event.position, late.is_late,
                    -- what came later was read by nobody: it goes behind all others, as it was appended
                    case when late.is_late then '0' else event.order_xid end as sorted_by
                from unnest(%(logs)s::text[], %(ages)s::int[]) as given (log, age)
                join {schema}.events as event on event.log = given.log
                cross join lateral (
                    select case
                        when %(restored_to)s::bigint is null then age(event.xmin) < given.age
                        else event.position > %(restored_to)s::bigint
                    end as is_late
                ) as late
            ) as event
        ) as walked
    ), events as (
        update {schema}.events as event
        set order_xid = numbered.number::text::xid8
        from numbered
        where event.ctid = numbered.tuple
        returning event.log
    ), heads as (
        update {schema}.streams as head
        set order_xid = last.number::text::xid8
        from (
            select numbered.log, numbered.stream, max(numbered.number) as number from numbered group by numbered.log, numbered.stream
        ) as last
        where head.log = last.log
          and head.stream = last.stream
    ), readers as materialized (
        select projection.*, projection.definition ->> 'source' as log
        from {schema}.projections as projection
        where projection.definition ->> 'source' = any (%(logs)s::text[])
          -- a table of the user's may have the name of a log
          and projection.definition ->> 'kind' is distinct from 'table'
    ), parked as (
        update {schema}.parked_events as parked
        set order_xid = numbered.number::text::xid8
        from readers, numbered
        where readers.name = parked.projection
          and readers.version = parked.version
          and readers.build = parked.build
          and readers.partition = parked.partition
          and numbered.log = readers.log
          and numbered.order_xid = parked.order_xid
          and numbered.position = parked.position
    ), checkpoints as (
        update {schema}.projections as projection
        set order_xid = coalesce(place.number, 0)::text::xid8,
            position = coalesce(place.position, -9223372036854775808)
        from readers
        left join lateral (
            -- the last event that it has taken in
            select numbered.number, numbered.position
            from numbered
            where numbered.log = readers.log
              and not numbered.is_late
              and (numbered.order_xid, numbered.position) <= (readers.order_xid, readers.position)
            order by numbered.order_xid desc, numbered.position desc
            limit 1
        ) as place on true
        where projection.name = readers.name
          and projection.version = readers.version
          and projection.build = readers.build
          and projection.partition = readers.partition
        returning projection.name
    )
    select
        (select count(*) from events), (select count(*) from checkpoints), (select count(*) from numbered where numbered.is_late),
        (select max(numbered.number) from numbered)
    """,
)
HORIZON = statement(
    "rebase_horizon",
    "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
)


@dataclass(frozen=True, slots=True)
class Rebased:
    """How many events have new numbers, how many checkpoints were moved along, and how many of the events were appended after the
    restore: they come behind the others."""

    events: int
    projections: int
    appended: int = 0


class _TooYoung(Exception):
    """So many ids are to be used up before all that come are greater than the numbers that events need."""

    def __init__(self, missing: int) -> None:
        self.missing = missing


def _rebase(by: str, restored_to: int | None, *, dry_run: bool) -> Steps[Rebased]:
    """Number the events of logs with ids of the future anew. Raises NotPossible, or _TooYoung when nothing may be committed yet."""
    yield LIMITS.query(read=nothing)
    yield LOCK.query(read=nothing)
    logs: list[ForeignLog] = yield LOGS.query(read=many(ForeignLog))
    if not logs:
        raise NotPossible(
            "There is nothing to rebase: the transaction ids of all events are of this server's past. That is needed once, after a "
            "dump was restored into another cluster."
        )
    if restored_to is None:
        _check_clear(logs)
    params: dict[str, Any] = {"logs": [each.log for each in logs], "ages": [each.age for each in logs]}
    rows: Sequence[Row] = yield REBASE.query(
        params | {"first": _FIRST_ID, "restored_to": restored_to}, read=lambda rows: rows
    )
    *counts, last = rows[0]
    rebased = Rebased(*counts)
    # also one that is open and has its id already may yet append
    horizon: int = yield HORIZON.query(read=lambda rows: rows[0][0])
    if horizon <= last and not dry_run:
        raise _TooYoung(last + 1 - horizon)
    told = {"events": rebased.events, "projections": rebased.projections, "appended": rebased.appended}
    yield record(by, "projections.rebase", told)
    return rebased


def _check_clear(logs: Sequence[ForeignLog]) -> None:
    unclear = [each for each in logs if each.is_unclear]
    if unclear:
        told = ", ".join(f"{each.log} (its last is at position {each.last})" for each in unclear)
        raise NotPossible(
            f"It cannot be told which events were restored and which were appended since, in {told}: their rows came into the table "
            "one by one, and not by one COPY. Nothing was changed. Say at which position the last one is that was restored, which is "
            "the last of all if nothing was appended since: rota projections rebase --restored-to POSITION."
        )


USE_UP = statement(
    "use_up_ids",
    """
    do $$
    begin
        for number in 1..1000 loop
            -- a block with a handler is a transaction in a transaction, and what is written in it gives it an id
            begin
                perform pg_catalog.pg_logical_emit_message(true, 'rota', '');
            exception when no_data_found then
                null;
            end;
        end loop;
    end
    $$
    """,
)


def use_up_ids() -> Query[None]:
    """A thousand transaction ids, and nothing else."""
    return USE_UP.query(read=nothing)


async def rebase(database: Database, by: str, restored_to: int | None, *, dry_run: bool) -> Rebased:
    """Give the events of logs that were restored from another cluster an order that this server understands, all or nothing.

    Raises NotPossible when there is nothing to do, when it cannot be told what was restored, and while a transaction is open
    that is older than the numbers to be given.
    """
    try:
        return await _run(database, _rebase(by, restored_to, dry_run=dry_run), dry_run=dry_run)
    except _TooYoung as young:
        for _ in range(young.missing // _AT_ONCE + 1):
            await database.run(use_up_ids())
    try:
        return await _run(database, _rebase(by, restored_to, dry_run=dry_run), dry_run=dry_run)
    except _TooYoung:
        raise _held(await database.run(who_holds_the_horizon())) from None


def rebase_sync(database: Database, by: str, restored_to: int | None, *, dry_run: bool) -> Rebased:
    try:
        return _run_sync(database, _rebase(by, restored_to, dry_run=dry_run), dry_run=dry_run)
    except _TooYoung as young:
        for _ in range(young.missing // _AT_ONCE + 1):
            database.run_sync(use_up_ids())
    try:
        return _run_sync(database, _rebase(by, restored_to, dry_run=dry_run), dry_run=dry_run)
    except _TooYoung:
        raise _held(database.run_sync(who_holds_the_horizon())) from None


# Like a transaction of the user's: no statement of it is given up for taking long.


async def _run(database: Database, steps: Steps[Rebased], *, dry_run: bool) -> Rebased:
    with database.in_words():
        async with database.transaction() as connection:
            rebased = await foreign(connection).run_steps(steps, database.schema)
            if dry_run:
                raise psycopg.Rollback
    return rebased


def _run_sync(database: Database, steps: Steps[Rebased], *, dry_run: bool) -> Rebased:
    with database.in_words(), database.transaction_sync() as connection:
        rebased = foreign(connection).run_steps_sync(steps, database.schema)
        if dry_run:
            raise psycopg.Rollback
    return rebased


def _held(holder: HorizonHolder | None) -> NotPossible:
    return NotPossible(
        "The events cannot be rebased while a transaction is open that is older than the numbers they would be given, as it may still "
        f"append: {holder or 'it has just ended'}. Nothing was changed. Have it end, and try again."
    )


def check_order(definition: ProjectionDefinition, ahead: Ahead) -> None:
    """Raises ForeignDatabase for a source whose events are not of this server, and for a checkpoint that is not."""
    if not ahead.events and not ahead.checkpoint:
        return
    refused = f"Projection {definition.name!r} cannot read {definition.source.name}"
    rewind = f"rota projections rewind {definition.name} [--to POSITION]"
    if not ahead.events:
        raise ForeignDatabase(
            f"{refused}: its checkpoint has a transaction id that this server has not given out yet, as after a restore into another "
            "cluster, and the events have none such. It would pass over all that is to come. Say with which event it goes on: "
            f"{rewind}."
        )
    how = (
        "stop the workers, and run: rota projections rebase"
        if definition.source.log is not None
        else f"set its column {definition.source.order_xid} to null in all rows, which makes them history, read by position; then say "
        f"with which event the projection goes on: {rewind}"
    )
    raise ForeignDatabase(
        f"{refused}: its events carry transaction ids that this server has not given out yet, as after a restore into another "
        f"cluster. New ones would come before them. To mend it, {how}."
    )
