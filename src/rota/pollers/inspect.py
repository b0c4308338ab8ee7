"""What people see of pollers: what they are, what they hold, what waits, and what is parked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.pollers.due import Plan
from rota.pollers.look import CLOCK, look, look_for_lost
from rota.postgres.query import Query, many, one, one_or_none, scalar, statement

__all__ = [
    "Backlog",
    "DueRow",
    "HeldRow",
    "Holder",
    "ParkedRow",
    "PollerView",
    "backlog",
    "count_due",
    "count_parked",
    "find_holder",
    "get_poller",
    "list_held",
    "list_parked",
    "list_pollers",
    "preview_rows",
]


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row that would be taken next. `due_at` is None for one that was never polled, or is polled for its state."""

    key: list[Any]
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is due at this moment and nobody has yet: how many rows, and since when the oldest of them."""

    rows: int
    never_polled: int
    oldest_due_at: datetime | None
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class PollerView:
    """A poller as the database knows it."""

    name: str
    definition: dict[str, Any]
    declared_at: datetime
    paused_at: datetime | None
    paused_by: str | None
    held: int
    waiting: int
    parked: int
    #: how many live workers poll for it
    workers: int


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row whose attempts are used up, or that took too many processes with it. It stays until it is released."""

    poller: str
    key: list[Any]
    parked_at: datetime
    attempts: int
    losses: int
    error_type: str | None
    error_message: str | None
    error_trace: str | None


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row that someone polls at this moment: who, since when, and for how long by the clock of the database."""

    poller: str
    key: list[Any]
    member: UUID
    holder: str | None
    claimed_at: datetime | None
    seconds: float | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who polls a row at this moment, and since when."""

    name: str
    claimed_at: datetime


def preview_rows(plan: Plan, limit: int) -> Query[list[DueRow]]:
    """The rows that would be taken next, in their order; takes none, and locks none."""
    lost, parts = look_for_lost(plan)
    due, others = look(plan)
    text = f"{CLOCK}{lost},{due} {_PREVIEW}".replace("{columns}", f"{plan.when[1]} as rota_due_at")
    previewing = statement(f"preview_rows:{plan.definition.name}", text).composed(parts | others | {"lock": ""})
    return previewing.query({"poller": plan.definition.name, "limit": limit}, read=many(DueRow))


_PREVIEW = """
    select rota_next.rota_key, rota_next.rota_due_at
    from (select * from rota_lost union all select * from rota_found) as rota_next
    limit %(limit)s
"""
_BACKLOG = """
    with rota_clock as materialized (select {schema}.now() as rota_now),
    rota_due as (
        select {since} as rota_due_at
        from {table}
        where ({where}
        )
          and {due}
          and not exists (
              select
              from {schema}.poll_claims as rota_claim
              where rota_claim.poller = %(poller)s
                and rota_claim.key = {key}
                and (
                    rota_claim.member is not null
                    or rota_claim.parked_at is not null
                    or rota_claim.retry_at > (select rota_clock.rota_now from rota_clock)
                )
          )
    )
    select
        count(*), count(*) filter (where rota_due.rota_due_at is null), min(rota_due.rota_due_at),
        extract(epoch from (select rota_clock.rota_now from rota_clock) - min(rota_due.rota_due_at))::float8
    from rota_due
"""


def backlog(plan: Plan) -> Query[Backlog]:
    """Count what is due; reads all of it."""
    due, since = plan.when
    text = _BACKLOG.replace("{due}", due).replace("{since}", since)
    counting = statement(f"backlog:{plan.definition.name}", text).composed(plan.parts)
    return counting.query({"poller": plan.definition.name}, read=one(Backlog))


_COUNTED = """
    select
        count(*), count(*) filter (where rota_next.rota_due_at is null), min(rota_next.rota_due_at),
        extract(epoch from (select rota_clock.rota_now from rota_clock) - min(rota_next.rota_due_at))::float8
    from (select * from rota_lost union all select * from rota_found) as rota_next
"""


def count_due(plan: Plan, *, most: int) -> Query[Backlog]:
    """Count what is due as a look finds it: no more than `most` rows, by the index of looks, and none while it is paused."""
    lost, parts = look_for_lost(plan)
    due, others = look(plan)
    text = f"{CLOCK}{lost},{due} {_COUNTED}".replace("{columns}", f"{plan.when[1]} as rota_due_at")
    counting = statement(f"count_due:{plan.definition.name}", text).composed(parts | others | {"lock": ""})
    return counting.query({"poller": plan.definition.name, "limit": most}, read=one(Backlog))


PARKED = statement(
    "count_parked",
    """
    select count(*)
    from (
        select
        from {schema}.poll_claims as claim
        where claim.poller = %(poller)s
          and claim.parked_at is not null
        limit %(most)s
    ) as parked
    """,
)


def count_parked(poller: str, *, most: int) -> Query[int]:
    """How many rows of a poller are parked; no more than `most`."""
    return PARKED.query({"poller": poller, "most": most}, read=scalar)


LIST_POLLERS = statement(
    "list_pollers",
    """
    select
        poller.name, poller.definition, poller.declared_at, poller.paused_at, poller.paused_by,
        coalesce(claims.held, 0), coalesce(claims.waiting, 0), coalesce(claims.parked, 0), coalesce(known.workers, 0)
    from {schema}.pollers as poller
    left join (
        select
            claim.poller,
            count(*) filter (where claim.member is not null) as held,
            count(*) filter (where claim.member is null and claim.parked_at is null) as waiting,
            count(*) filter (where claim.parked_at is not null) as parked
        from {schema}.poll_claims as claim
        group by claim.poller
    ) as claims on claims.poller = poller.name
    left join (
        select told.name, count(*) as workers
        from {schema}.members as member
        cross join lateral jsonb_array_elements_text(
            case jsonb_typeof(member.work -> 'pollers') when 'array' then member.work -> 'pollers' else '[]' end
        ) as told (name)
        where member.ended_at is null
        group by told.name
    ) as known on known.name = poller.name
    where %(name)s::text is null or poller.name = %(name)s
    order by poller.name
    """,
)


def list_pollers() -> Query[list[PollerView]]:
    """All pollers that a process has declared, by name."""
    return LIST_POLLERS.query({"name": None}, read=many(PollerView))


def get_poller(name: str) -> Query[PollerView | None]:
    return LIST_POLLERS.query({"name": name}, read=one_or_none(PollerView))


LIST_PARKED = statement(
    "list_parked",
    """
    select
        claim.poller, claim.key, claim.parked_at, claim.attempts, claim.losses, claim.error_type, claim.error_message,
        claim.error_trace
    from {schema}.poll_claims as claim
    where claim.poller = %(poller)s
      and claim.parked_at is not null
      and (%(after)s::jsonb is null or claim.key > %(after)s::jsonb)
    order by claim.key
    limit %(limit)s
    """,
)


def list_parked(poller: str, *, limit: int, after: Sequence[Any] | None) -> Query[list[ParkedRow]]:
    """Rows that are parked, by key."""
    params = {"poller": poller, "limit": limit, "after": None if after is None else Jsonb(list(after))}
    return LIST_PARKED.query(params, read=many(ParkedRow))


LIST_HELD = statement(
    "list_held",
    """
    select
        claim.poller, claim.key, claim.member, member.name, claim.claimed_at,
        extract(epoch from {schema}.now() - claim.claimed_at)::float8, claim.attempts
    from {schema}.poll_claims as claim
    left join {schema}.members as member on member.id = claim.member
    where claim.poller = %(poller)s
      and claim.member is not null
    order by claim.claimed_at, claim.key
    limit %(limit)s
    """,
)


def list_held(poller: str, *, limit: int) -> Query[list[HeldRow]]:
    """Rows that are polled at this moment, those first that have been for longest."""
    return LIST_HELD.query({"poller": poller, "limit": limit}, read=many(HeldRow))


_HOLDER = """
    with rota_asked as materialized (select %(key)s::jsonb as rota_key)
    select coalesce(rota_member.name, rota_claim.member::text), rota_claim.claimed_at
    from {schema}.poll_claims as rota_claim
    left join {schema}.members as rota_member on rota_member.id = rota_claim.member
    where rota_claim.poller = %(poller)s
      -- the row's own: the same value can be asked for in more than one way
      and rota_claim.key = (select {key} from {table} where {this_row})
      and rota_claim.member is not null
"""


def find_holder(plan: Plan, key: Sequence[Any]) -> Query[Holder | None]:
    this_row = plan.shape.is_row(plan.definition.key, "(select rota_asked.rota_key from rota_asked)")
    finding = statement(f"find_row_holder:{plan.definition.name}", _HOLDER).composed(
        plan.parts | {"this_row": this_row}
    )
    return finding.query({"poller": plan.definition.name, "key": Jsonb(list(key))}, read=one_or_none(Holder))
