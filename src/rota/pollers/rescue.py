"""Taking rows over from processes that were lost. What was lost too often may be the reason, and is parked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rota.postgres.query import Query, many, statement

__all__ = ["LOST_LIMIT", "LostRow", "rescue_rows"]

#: How many processes a row may take with it before it is parked.
LOST_LIMIT = 3


@dataclass(frozen=True, slots=True)
class LostRow:
    """A row taken from a member that ended."""

    poller: str
    key: list[Any]
    member: UUID
    losses: int
    parked: bool


RESCUE_ROWS = statement(
    "rescue_rows",
    """
    with held as materialized (
        select claim.poller, claim.key, claim.member
        from {schema}.members as member
        join {schema}.poll_claims as claim on claim.member = member.id
        where member.ended_at is not null
        order by claim.poller, claim.key
        limit %(limit)s
        -- a holder that is settling this very row is let go first
        for update of claim skip locked
    ), lost as (
        update {schema}.poll_claims as claim
        set member = null,
            token = null,
            losses = claim.losses + 1,
            failed_at = {schema}.now(),
            retry_at = {schema}.now(),
            parked_at = case when claim.losses + 1 >= %(lost_limit)s then {schema}.now() end,
            error_type = 'Lost',
            error_message = 'the process that polled it was lost',
            error_trace = ''
        from held
        where claim.poller = held.poller
          and claim.key = held.key
          and claim.member = held.member
        returning claim.poller, claim.key, held.member, claim.losses, claim.parked_at
    ), woken as (
        select count({schema}.notify(%(channel)s, pollers.poller)) from (select distinct lost.poller from lost) as pollers
    )
    select lost.poller, lost.key, lost.member, lost.losses, lost.parked_at is not null from lost, woken
    """,
)


def rescue_rows(channel: str, *, limit: int = 500, lost_limit: int = LOST_LIMIT) -> Query[list[LostRow]]:
    """Take up to `limit` rows from members that ended, so that others may poll them."""
    return RESCUE_ROWS.query({"channel": channel, "limit": limit, "lost_limit": lost_limit}, read=many(LostRow))
