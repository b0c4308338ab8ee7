"""What becomes of rows that were taken: polled, failed, or given back.

Every one of these writes carries the token of the claim: whoever has lost it changes nothing. A stamp and the end of its claim
are one statement. A row that the application holds locked is not waited for, since a batch that waits while it holds other rows
would wait in a circle with the application sooner or later: it is left, and comes again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.failure import Failure
from rota.pollers.claim import OWN_BITS, ClaimedRow
from rota.pollers.due import Plan
from rota.postgres.query import Query, Row, Statement, nothing, scalar, statement

__all__ = [
    "Failed",
    "Fate",
    "Finish",
    "fail",
    "hand_back",
    "held_tokens",
    "release_token",
]

#: done; changed: it no longer fits `where`, and was stamped all the same; gone: it was deleted; locked: the application has it
#: locked; undone: it is still in the state that it was polled for; unstamped: PostgreSQL was kept from writing the stamp; lost:
#: the claim is not ours any more
Fate = Literal["done", "changed", "gone", "locked", "undone", "unstamped", "lost"]

# Rows and claims are found one by one, by their keys: a join would be planned by what the statistics say, and they may say that
# there are no claims. What was locked is then found by its place.
_FINISH = """
    with rota_clock as materialized (select {schema}.now() as rota_now),
    rota_given as materialized (
        select given.*
        -- keys as text: each driver sends that alike, and this may run on a connection of the user's
        from unnest(%(keys)s::text[]::jsonb[], %(tokens)s::bigint[], %(changed)s::boolean[])
            with ordinality as given (rota_key, rota_token, rota_changed, rota_at)
        order by given.rota_key
    ), rota_row as materialized (
        select
            rota_given.*, rota_row.rota_fits,
            rota_row.rota_fits is null and not exists (select from {table} where {given_row} offset 0) as rota_gone
        from rota_given
        left join lateral (
            select ({where}
            ) is true as rota_fits
            from {table}
            where {given_row}
            -- the user's row before our claim, as whoever claims takes them in this order
            for no key update {skip}
        ) as rota_row on true
    ), rota_held as materialized (
        select rota_row.*, rota_claim.rota_place, rota_claim.rota_claimed_at
        from rota_row
        cross join lateral (
            select claim.ctid as rota_place, claim.claimed_at as rota_claimed_at
            from {schema}.poll_claims as claim
            where claim.poller = %(poller)s
              and claim.key = rota_row.rota_key
              and claim.token = rota_row.rota_token
            for update
        ) as rota_claim
        where rota_row.rota_fits is not null
           or rota_row.rota_gone
    ), rota_stamped as (
        {stamped}
    ), {paced} rota_over as (
        delete from {schema}.poll_claims as claim
        where claim.ctid = any (array(
            select rota_held.rota_place from rota_held where rota_held.rota_gone
            union all
            select rota_stamped.rota_place from rota_stamped where not rota_stamped.rota_undone
        ))
    )
    select
        array(select rota_row.rota_at from rota_row where rota_row.rota_fits is null and not rota_row.rota_gone),
        array(select rota_held.rota_at from rota_held where rota_held.rota_gone),
        array(select rota_stamped.rota_at from rota_stamped where not rota_stamped.rota_undone),
        array(select rota_held.rota_at from rota_held where not rota_held.rota_fits),
        array(select rota_held.rota_at from rota_held)
"""
_STAMPED = """
        update {table}
        set {stamp}
        from rota_held
        where {held_row}
        returning rota_held.rota_key, rota_held.rota_at, rota_held.rota_place, rota_held.rota_changed, ({undone}
        ) is true as rota_undone
"""
# Nothing to write: what was done shows in that the row does not fit any more.
_LOOKED_AT = """
        select rota_held.rota_key, rota_held.rota_at, rota_held.rota_place, rota_held.rota_changed, rota_held.rota_fits as rota_undone
        from rota_held
        where not rota_held.rota_gone
"""
_PACED = """rota_paced as (
        insert into {schema}.poll_intervals as rota_pace (poller, key, pace, due_at)
        select
            %(poller)s, rota_next.rota_key, rota_next.rota_pace,
            -- not all days are as long where a session of the user's may think it is
            (rota_clock.rota_now at time zone 'UTC' + rota_next.rota_pace) at time zone 'UTC'
        from rota_clock, (
            select
                rota_stamped.rota_key,
                greatest(%(shortest)s::interval, least(%(longest)s::interval, coalesce((
                    select known.pace
                    from {schema}.poll_intervals as known
                    where known.poller = %(poller)s
                      and known.key = rota_stamped.rota_key
                ), %(first)s::interval) * case
                    when rota_stamped.rota_changed then %(faster)s::float8
                    else %(slower)s::float8
                end)) as rota_pace
            from rota_stamped
        ) as rota_next
        on conflict (poller, key) do update
        set pace = excluded.pace,
            due_at = excluded.due_at
    ),"""


class Finish:
    """The statements that end polls of one poller well."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        definition, shape = plan.definition, plan.shape
        parts = plan.parts | {
            "given_row": shape.is_row(definition.key, "rota_given.rota_key"),
            "held_row": shape.is_row(definition.key, "rota_held.rota_key"),
            "stamp": plan.stamp or "",
            # a row that is polled for its state, and has it still, would be polled for ever
            "undone": plan.parts["where"] if definition.form == "state" else "false",
        }
        looked_at = plan.stamp is None
        text = _FINISH.replace("{stamped}", _LOOKED_AT if looked_at else _STAMPED)
        text = text.replace("{paced}", _PACED if definition.own_pace else "")
        name = f"finish_rows:{definition.name}"
        self._many = statement(name, text.replace("{skip}", "skip locked")).composed(parts)
        # in a transaction of the handler's own: one row, which it may have locked itself
        self._one = statement(name, text.replace("{skip}", "")).composed(parts)

    def many(self, rows: Sequence[ClaimedRow], changed: Sequence[bool]) -> Query[list[Fate]]:
        """Stamp the rows and end their claims; what became of each, in the order given."""
        return self._query(self._many, rows, changed)

    def one(self, row: ClaimedRow, changed: bool) -> Query[list[Fate]]:
        """The same for one row, waiting for it."""
        return self._query(self._one, [row], [changed])

    def _query(self, finish: Statement, rows: Sequence[ClaimedRow], changed: Sequence[bool]) -> Query[list[Fate]]:
        definition = self._plan.definition
        params: dict[str, Any] = {
            "poller": definition.name,
            "keys": [json.dumps(row.key) for row in rows],
            "tokens": [row.token for row in rows],
            "changed": list(changed),
        }
        if definition.own_pace and definition.adaptive is not None:
            adaptive, first = definition.adaptive, definition.interval
            params |= {
                "shortest": adaptive.shortest,
                "longest": adaptive.longest,
                "first": first if first is not None else adaptive.shortest,
                "faster": adaptive.faster,
                "slower": adaptive.slower,
            }

        def read(found: Sequence[Row]) -> list[Fate]:
            locked, gone, ended, unfit, held = map(set, found[0])
            return [self._fate(at, locked, gone, ended, unfit, held) for at in range(1, len(rows) + 1)]

        return finish.query(params, read=read)

    def _fate(
        self, at: int, locked: set[int], gone: set[int], ended: set[int], unfit: set[int], held: set[int]
    ) -> Fate:
        if at in locked:
            return "locked"
        if at not in held:
            return "lost"
        if at in gone:
            return "gone"
        is_state = self._plan.definition.form == "state"
        if at not in ended:
            return "undone" if is_state else "unstamped"
        return "changed" if at in unfit and not is_state else "done"


class Failed(NamedTuple):
    """A poll that failed, and in how many seconds it is tried again: None parks the row."""

    row: ClaimedRow
    failure: Failure
    pause: float | None


FAIL = statement(
    "fail_rows",
    """
    with given as materialized (
        select given.*
        from unnest(
            %(keys)s::jsonb[], %(tokens)s::bigint[], %(pauses)s::float8[], %(types)s::text[], %(messages)s::text[], %(traces)s::text[]
        ) with ordinality as given (key, token, pause, type, message, trace, at)
        order by given.key
    ), held as materialized (
        select given.*, claim.place
        from given
        cross join lateral (
            select claim.ctid as place
            from {schema}.poll_claims as claim
            where claim.poller = %(poller)s
              and claim.key = given.key
              and claim.token = given.token
            for update
        ) as claim
    )
    update {schema}.poll_claims as claim
    set member = null,
        token = null,
        attempts = claim.attempts + 1,
        failed_at = {schema}.now(),
        retry_at = {schema}.now() + held.pause * interval '1 second',
        parked_at = case when held.pause is null then {schema}.now() end,
        error_type = held.type,
        error_message = held.message,
        error_trace = held.trace
    from held
    where claim.ctid = held.place
    returning held.at
    """,
)


def fail(poller: str, failed: Sequence[Failed]) -> Query[list[bool]]:
    """Write down that these polls failed, and let their rows wait or be parked; whether each claim was still ours."""

    def read(rows: Sequence[Row]) -> list[bool]:
        ours = {at for (at,) in rows}
        return [at in ours for at in range(1, len(failed) + 1)]

    return FAIL.query(
        {
            "poller": poller,
            "keys": [Jsonb(each.row.key) for each in failed],
            "tokens": [each.row.token for each in failed],
            "pauses": [each.pause for each in failed],
            "types": [each.failure.type for each in failed],
            "messages": [each.failure.message for each in failed],
            "traces": [each.failure.trace for each in failed],
        },
        read=read,
    )


HAND_BACK = statement(
    "hand_back_rows",
    """
    with given as materialized (
        select given.*
        from unnest(%(keys)s::jsonb[], %(tokens)s::bigint[]) as given (key, token)
        order by given.key
    ), held as materialized (
        select claim.place, claim.remembered
        from given
        cross join lateral (
            select claim.ctid as place, claim.attempts + claim.losses > 0 as remembered
            from {schema}.poll_claims as claim
            where claim.poller = %(poller)s
              and claim.key = given.key
              and claim.token = given.token
            for update
        ) as claim
    ), kept as (
        update {schema}.poll_claims as claim
        set member = null,
            token = null,
            retry_at = {schema}.now()
        where claim.ctid = any (array(select held.place from held where held.remembered))
    ), forgotten as (
        delete from {schema}.poll_claims as claim
        where claim.ctid = any (array(select held.place from held where not held.remembered))
    )
    select {schema}.notify(%(channel)s, %(poller)s) from held limit 1
    """,
)


def hand_back(poller: str, rows: Sequence[ClaimedRow], channel: str) -> Query[None]:
    """Give up claims that came to nothing, free of charge, and have others look."""
    return HAND_BACK.query(
        {
            "poller": poller,
            "keys": [Jsonb(row.key) for row in rows],
            "tokens": [row.token for row in rows],
            "channel": channel,
        },
        read=nothing,
    )


RELEASE_TOKEN = statement(
    "release_row_token",
    """
    with held as materialized (
        select claim.ctid as place, claim.attempts + claim.losses > 0 as remembered
        from {schema}.poll_claims as claim
        where claim.member = %(member)s
          and claim.poller = %(poller)s
          and claim.token = %(token)s
        order by claim.key
        for update
    ), kept as (
        update {schema}.poll_claims as claim
        set member = null,
            token = null,
            retry_at = {schema}.now()
        where claim.ctid = any (array(select held.place from held where held.remembered))
    ), forgotten as (
        delete from {schema}.poll_claims as claim
        where claim.ctid = any (array(select held.place from held where not held.remembered))
    )
    select count(*) from held
    """,
)


def release_token(poller: str, member: UUID, token: int) -> Query[int]:
    """Give up all that was taken under this token, by a claim whose answer never came."""
    return RELEASE_TOKEN.query({"poller": poller, "member": member, "token": token}, read=scalar)


HELD_TOKENS = statement(
    "held_row_tokens",
    """
    select distinct claim.token
    from {schema}.poll_claims as claim
    where claim.member = %(member)s
      and claim.poller = %(poller)s
      and claim.token between %(first)s::bigint and %(last)s::bigint
    """,
)


def held_tokens(poller: str, member: UUID, mark: int) -> Query[set[int]]:
    """The tokens with this mark under which the member holds rows."""
    return HELD_TOKENS.query(
        {"poller": poller, "member": member, "first": mark << OWN_BITS, "last": (mark + 1 << OWN_BITS) - 1},
        read=lambda rows: {token for (token,) in rows},
    )
