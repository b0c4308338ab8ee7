"""What a person does with pollers: have them rest and go on, release rows that are parked, waiting or held, and forget them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from rota.errors import NotPossible
from rota.pollers.inspect import HeldRow, ParkedRow, PollerView, get_poller, list_held, list_parked
from rota.postgres.audit import record
from rota.postgres.query import Query, Steps, nothing, one, scalar, statement

__all__ = [
    "ForgottenPoller",
    "find_held",
    "find_parked",
    "forget_poller",
    "pause_poller",
    "release_rows",
    "resume_poller",
]

PAUSE = statement(
    "pause_poller",
    """
    update {schema}.pollers
    set paused_at = {schema}.now(),
        paused_by = %(by)s
    where name = %(name)s
      and paused_at is null
    """,
)
RESUME = statement(
    "resume_poller",
    """
    with resumed as (
        update {schema}.pollers
        set paused_at = null,
            paused_by = null
        where name = %(name)s
          and paused_at is not null
        returning name
    )
    select {schema}.notify(%(channel)s, resumed.name) from resumed
    """,
)


def pause_poller(name: str, by: str) -> Steps[PollerView]:
    """Have nobody take rows for this poller; what is being polled goes on to its end."""
    yield from _found(name)
    yield PAUSE.query({"name": name, "by": by}, read=nothing)
    yield record(by, "poller.pause", {"poller": name})
    return (yield from _found(name))


def resume_poller(name: str, by: str, channel: str) -> Steps[PollerView]:
    """Go on, at once."""
    yield from _found(name)
    yield RESUME.query({"name": name, "channel": channel}, read=nothing)
    yield record(by, "poller.resume", {"poller": name})
    return (yield from _found(name))


RELEASE = statement(
    "release_rows",
    """
    with chosen as materialized (
        select claim.key
        from {schema}.poll_claims as claim
        where claim.poller = %(poller)s
          and (%(keys)s::jsonb[] is null or claim.key = any (%(keys)s::jsonb[]))
          and (claim.member is null or %(held)s)
          and (%(keys)s::jsonb[] is not null or claim.parked_at is not null)
        order by claim.key
        for update
    ), released as (
        delete from {schema}.poll_claims as claim
        using chosen
        where claim.poller = %(poller)s
          and claim.key = chosen.key
        returning claim.key
    ), woken as (
        select {schema}.notify(%(channel)s, %(poller)s)
    )
    select count(*) from released, woken
    """,
)


def release_rows(poller: str, keys: Sequence[Sequence[Any]] | None, *, held: bool, by: str, channel: str) -> Steps[int]:
    """Let these rows, or all that are parked, be taken again with all their attempts; returns how many there were.

    With `held` also those that someone polls at this moment: whoever does has lost its claim, and writes nothing more.
    """
    yield from _found(poller)
    count: int = yield _release(poller, keys, held, channel)
    told = None if keys is None else [list(key) for key in keys[:100]]
    yield record(by, "poller.release", {"poller": poller, "rows": count, "keys": told, "held": held})
    return count


@dataclass(frozen=True, slots=True)
class ForgottenPoller:
    """What was remembered of a poller: rows that waited or were held by the dead, rows that were parked, and paces of rows."""

    name: str
    waiting: int
    parked: int
    paces: int


WHO_POLLS = statement(
    "who_polls",
    """
    select member.name
    from {schema}.members as member
    where member.ended_at is null
      and (
          member.work -> 'pollers' ? %(poller)s
          -- by hand
          or exists (
              select from {schema}.poll_claims as claim where claim.member = member.id and claim.poller = %(poller)s
          )
      )
    order by member.name
    """,
)
FORGET = statement(
    "forget_poller",
    """
    with chosen as materialized (
        select claim.key
        from {schema}.poll_claims as claim
        where claim.poller = %(poller)s
        order by claim.key
        for update
    ), claims as (
        delete from {schema}.poll_claims as claim
        using chosen
        where claim.poller = %(poller)s
          and claim.key = chosen.key
        returning claim.parked_at
    ), paces as (
        delete from {schema}.poll_intervals as pace
        where pace.poller = %(poller)s
        returning pace.key
    ), declared as (
        delete from {schema}.pollers as poller
        where poller.name = %(poller)s
    )
    select
        %(poller)s::text,
        (select count(*) from claims where claims.parked_at is null),
        (select count(*) from claims where claims.parked_at is not null),
        (select count(*) from paces)
    """,
)


def forget_poller(name: str, by: str) -> Steps[ForgottenPoller]:
    """Forget a poller that no code has any more, with all that is remembered of its rows. Theirs are not touched.

    Raises NotPossible while a live process polls for it: it would go on without its failures, and declare it again when it restarts.
    """
    yield from _found(name)
    polling: list[str] = yield WHO_POLLS.query({"poller": name}, read=lambda rows: [row[0] for row in rows])
    if polling:
        raise NotPossible(
            f"Poller {name!r} cannot be forgotten: {_some(polling)} of `rota members` poll for it. Take it out of the code, or "
            "leave it out with `rota worker --pollers ...`, and restart them; then forget it."
        )
    forgotten: ForgottenPoller = yield FORGET.query({"poller": name}, read=one(ForgottenPoller))
    counts = {"waiting": forgotten.waiting, "parked": forgotten.parked, "paces": forgotten.paces}
    yield record(by, "poller.forget", {"poller": name, **counts})
    return forgotten


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def find_parked(name: str, *, limit: int, after: Sequence[Any] | None) -> Steps[list[ParkedRow]]:
    """The rows of this poller that are parked, by key."""
    yield from _found(name)
    rows: list[ParkedRow] = yield list_parked(name, limit=limit, after=after)
    return rows


def find_held(name: str, *, limit: int) -> Steps[list[HeldRow]]:
    """The rows of this poller that are polled at this moment."""
    yield from _found(name)
    rows: list[HeldRow] = yield list_held(name, limit=limit)
    return rows


def _release(poller: str, keys: Sequence[Sequence[Any]] | None, held: bool, channel: str) -> Query[int]:
    given = None if keys is None else [Jsonb(list(key)) for key in keys]
    return RELEASE.query({"poller": poller, "keys": given, "held": held, "channel": channel}, read=scalar)


def _found(name: str) -> Steps[PollerView]:
    view: PollerView | None = yield get_poller(name)
    if view is None:
        raise NotPossible(
            f"There is no poller {name!r}: no process has declared one. `rota pollers list` shows all there are."
        )
    return view
