"""Taking due rows: one statement for many, after which nothing is open and no row of the user's is locked.

A row is whose the claim says it is, in `poll_claims`; its key is unique there, and that decides.
"""

# ruff: noqa: S608 - the parts of these statements are written out here, or come quoted from the catalog

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.pollers.due import Plan
from rota.pollers.look import CLOCK, ROW, look, look_for_lost
from rota.postgres.query import Query, Row, Statement, Steps, scalar, statement

__all__ = ["OWN_BITS", "Claim", "ClaimedRow", "Claims", "new_token"]


class ClaimedRow(NamedTuple):
    """A row of the user's that is ours until it is settled. `values` are those of the plan's columns."""

    poller: str
    key: list[Any]
    token: int
    member: UUID
    attempts: int
    losses: int
    occurrence: str
    values: tuple[Any, ...]


class Claim(NamedTuple):
    """What a claim took, and whether there may be more of the kind."""

    rows: list[ClaimedRow]
    more: bool


#: How many bits of a token are random for each claim; those before them are the mark of who claims.
OWN_BITS = 39


def new_token(mark: int = 0) -> int:
    """A claim's token: random, so that no other claim of the same row has it. It begins with the mark."""
    return mark << OWN_BITS | secrets.randbits(OWN_BITS)


# What was found, and what of it was taken: in one value, as a join of the two would be planned blindly.
_TOLD = """
    , rota_claims as (
        select jsonb_object_agg(
            rota_taken.rota_key::text, jsonb_build_array(rota_taken.rota_attempts, rota_taken.rota_losses)
        ) as rota_taken
        from rota_taken
    )
    select rota_claims.rota_taken -> rota_found.rota_key::text, rota_found.*
    from rota_claims, rota_found
"""

_TAKE = (
    """
    , rota_taken as (
        insert into {schema}.poll_claims as rota_claim (poller, key, member, token, claimed_at)
        select %(poller)s, rota_found.rota_key, %(member)s, %(token)s, rota_clock.rota_now
        from rota_found, rota_clock
        -- everyone who writes several of these does so in this order, and so they never wait for each other in a circle
        order by rota_found.rota_key
        on conflict (poller, key) do update
        set member = excluded.member,
            token = excluded.token,
            claimed_at = excluded.claimed_at,
            retry_at = null
        -- someone else may have had it between our look and our lock
        where rota_claim.member is null
          and rota_claim.parked_at is null
          and rota_claim.losses = 0
          and (rota_claim.retry_at is null or rota_claim.retry_at <= excluded.claimed_at)
        returning rota_claim.key as rota_key, rota_claim.attempts as rota_attempts, rota_claim.losses as rota_losses
    )
"""
    + _TOLD
)
# What was lost with its process, one at a time: it may be the reason.
_SUSPECT = """
    , rota_taken as (
        update {schema}.poll_claims as rota_claim
        set member = %(member)s,
            token = %(token)s,
            claimed_at = rota_clock.rota_now,
            retry_at = null
        from rota_lost, rota_clock
        where rota_claim.poller = %(poller)s
          and rota_claim.key = rota_lost.rota_key
          and rota_claim.member is null
          and rota_claim.parked_at is null
        returning rota_claim.key as rota_key, rota_claim.attempts as rota_attempts, rota_claim.losses as rota_losses
    )
    """ + _TOLD.replace("rota_found", "rota_lost")

# One row, due or not, waiting or parked: unless someone has it.
_THIS = (
    CLOCK
    + f"""
    rota_asked as materialized (select %(key)s::jsonb as rota_key),
    rota_found as materialized (
        select {ROW}
        from {{table}}
        where ({{where}}
      )
      and {{this_row}}
        for no key update
    ), rota_taken as (
        insert into {{schema}}.poll_claims as rota_claim (poller, key, member, token, claimed_at)
        select %(poller)s, rota_found.rota_key, %(member)s, %(token)s, rota_clock.rota_now
        from rota_found, rota_clock
        on conflict (poller, key) do update
        set member = excluded.member,
            token = excluded.token,
            claimed_at = excluded.claimed_at,
            retry_at = null,
            parked_at = null
        where rota_claim.member is null
        returning rota_claim.key as rota_key, rota_claim.attempts as rota_attempts, rota_claim.losses as rota_losses
    )
    """
    + _TOLD
)
_NEXT = """
    with rota_clock as materialized (select {schema}.now() as rota_now)
    select extract(epoch from least(
        {next},
        (
            select min(rota_claim.retry_at)
            from {schema}.poll_claims as rota_claim
            where rota_claim.poller = %(poller)s
              and rota_claim.member is null
              and rota_claim.parked_at is null
              and rota_claim.retry_at > rota_clock.rota_now
        )
    ) - rota_clock.rota_now)::float8
    from rota_clock
"""
_NEXT_ROW = """(
            select {due_at}
            from {table}
            where ({where}
          )
          and {due_since} > {by}
            order by {due_since}
            limit 1
        )"""
_NEXT_PACED = """(
            select min(rota_pace.due_at)
            from {schema}.poll_intervals as rota_pace
            where rota_pace.poller = %(poller)s
              and rota_pace.due_at > rota_clock.rota_now
        )"""

ROOM = statement(
    "poller_room",
    """
    -- one after the other: who comes next counts what this one takes
    select %(limit)s - (select count(*) from {schema}.poll_claims where poller = %(poller)s and member is not null)
    from (select from {schema}.pollers where name = %(poller)s for no key update) as gate
    """,
)


class Claims:
    """The statements that take rows for one poller."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        definition, shape = plan.definition, plan.shape
        text, parts = look(plan)
        self._claim = statement(f"claim_rows:{definition.name}", CLOCK + text + _TAKE).composed(parts)
        text, parts = look_for_lost(plan)
        self._suspect = statement(f"claim_suspect_row:{definition.name}", CLOCK + text + _SUSPECT).composed(parts)
        self._this = statement(f"claim_this_row:{definition.name}", _THIS).composed(
            plan.parts | {"this_row": shape.is_row(definition.key, "(select rota_asked.rota_key from rota_asked)")}
        )
        self._next = _next_statement(plan)

    @property
    def statement(self) -> Statement:
        """The one that takes due rows: what `check` explains."""
        return self._claim

    def due(self, *, limit: int, token: int, member: UUID) -> Query[Claim]:
        """Take up to `limit` rows that are due, under one token."""
        params = {"poller": self._plan.definition.name, "limit": limit, "token": token, "member": member}
        return self._claim.query(params, read=lambda rows: self._read(rows, token, member, limit), values_apart=True)

    def within(self, most: int, take: Callable[[int], Query[Claim]]) -> Steps[Claim]:
        """Take what there is room for, while no more than `most` are taken by all workers together."""
        name = self._plan.definition.name
        room: int | None = yield ROOM.query({"limit": most, "poller": name}, read=scalar)
        if room is None or room <= 0:
            return Claim([], more=False)
        # the lock is ours by now: a new statement sees what was taken before
        room = yield ROOM.query({"limit": most, "poller": name}, read=scalar)
        if room is None or room <= 0:
            return Claim([], more=False)
        claim: Claim = yield take(room)
        return claim

    def nothing(self) -> Query[Claim]:
        """Take nothing: for those who want to know whether PostgreSQL understands the statement."""
        return self.due(limit=0, token=0, member=UUID(int=0))

    def suspect(self, *, token: int, member: UUID) -> Query[Claim]:
        """Take one row that was lost with the process that had it, and may be tried again."""
        params = {"poller": self._plan.definition.name, "limit": 1, "token": token, "member": member}
        return self._suspect.query(params, read=lambda rows: self._read(rows, token, member, 1), values_apart=True)

    def this(self, key: Sequence[Any], *, token: int, member: UUID) -> Query[tuple[bool, list[ClaimedRow]]]:
        """Take the row of this key, due or not; whether there is such a row, and the row unless someone has it."""
        params = {"poller": self._plan.definition.name, "key": Jsonb(list(key)), "token": token, "member": member}

        def read(rows: Sequence[Row]) -> tuple[bool, list[ClaimedRow]]:
            return bool(rows), self._read(rows, token, member, 1).rows

        return self._this.query(params, read=read, values_apart=True)

    def next_in(self) -> Query[float | None]:
        """In how many seconds the next row is due that is not yet, as far as that is known."""
        return self._next.query({"poller": self._plan.definition.name}, read=scalar)

    def _read(self, rows: Sequence[Row], token: int, member: UUID, limit: int) -> Claim:
        name = self._plan.definition.name
        taken = [
            ClaimedRow(name, key, token, member, counts[0], counts[1], occurrence, tuple(values))
            for counts, key, occurrence, *values in rows
            if counts is not None
        ]
        # of what was found, someone may have had some first, and there may be others
        return Claim(taken, more=len(rows) >= limit)


def _next_statement(plan: Plan) -> Statement:
    parts = plan.parts
    name = f"next_row:{plan.definition.name}"
    if plan.definition.own_pace:
        return Statement(name, _NEXT.replace("{next}", _NEXT_PACED), tuple(parts.items()))
    if plan.due_since is None or plan.due_at is None:
        return Statement(name, _NEXT.replace("{next}", "null::timestamptz"), tuple(parts.items()))
    return Statement(name, _NEXT.replace("{next}", _NEXT_ROW), tuple(parts.items()))
