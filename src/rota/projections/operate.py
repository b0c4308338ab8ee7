"""What a person does with projections: have them rest and go on, move their checkpoints, and replay what is parked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rota.errors import NotPossible
from rota.postgres.audit import record
from rota.postgres.notify import notify
from rota.postgres.query import Steps, nothing, scalar, statement
from rota.projections.feed import START, Feed, FeedRow, Found, Pair
from rota.projections.inspect import ProjectionView, get_projection
from rota.projections.parked import ParkedEvent, list_parked

__all__ = [
    "Asked",
    "drop_parked",
    "find_parked",
    "find_projection",
    "forget_projection",
    "pause_projection",
    "rebuild_projection",
    "replay_parked",
    "resume_projection",
    "rewind_projection",
    "skip_event",
]

# A pause or a move also waits for what is being committed just now.
SET_STATE = statement(
    "set_projection_state",
    """
    update {schema}.projections
    set state = %(state)s,
        state_at = {schema}.now(),
        state_by = %(by)s,
        failures = case when %(state)s = 'running' then 0 else failures end
    where name = %(name)s
      and version = %(version)s
      and state <> %(state)s
    """,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Of which projection, by whom, and where its owner hears of it. Without a version it is the last."""

    name: str
    version: int | None
    by: str
    channel: str


def pause_projection(asked: Asked) -> Steps[ProjectionView]:
    """Have nobody read for it. A batch in hand is undone, and read again when it is resumed."""
    return (yield from _set_state(asked, "paused"))


def resume_projection(asked: Asked) -> Steps[ProjectionView]:
    """Go on at once, with the event at which it stopped and all its attempts."""
    return (yield from _set_state(asked, "running"))


def _set_state(asked: Asked, state: str) -> Steps[ProjectionView]:
    found = yield from find_projection(asked)
    by = asked.by if state == "paused" else None
    yield SET_STATE.query({"name": found.name, "version": found.version, "state": state, "by": by}, read=nothing)
    verb = "pause" if state == "paused" else "resume"
    yield record(asked.by, f"projection.{verb}", {"projection": found.name, "version": found.version})
    yield notify(asked.channel, "")
    return (yield from find_projection(asked))


SET_PLACE = statement(
    "set_checkpoint",
    """
    update {schema}.projections
    set order_xid = %(order_xid)s::text::xid8,
        position = %(position)s,
        failures = 0
    where name = %(name)s
      and version = %(version)s
      and (order_xid, position) = (%(at_xid)s::text::xid8, %(at_position)s)
    returning true
    """,
)


UNPARK = statement(
    "unpark_ahead",
    """
    delete from {schema}.parked_events
    where projection = %(name)s
      and version = %(version)s
      and (order_xid, position) > (%(order_xid)s::text::xid8, %(position)s)
    """,
)


def rewind_projection(asked: Asked, feed: Feed | None, position: int | None) -> Steps[ProjectionView]:
    """Read again from the event at this position, or from the first. What the handler has written is left as it is.

    What is parked from there on leaves the list: it is read again as well, and a replay would be its second time.
    Raises NotPossible when there is no such event, or it lies ahead.
    """
    found = yield from find_projection(asked)
    to = START
    if position is not None:
        if feed is None:
            raise NotPossible(
                f"Where position {position} is in the order of the log is known to an app that has the projection only: name it with "
                "--app. Without one it can be rewound to the beginning."
            )
        row: FeedRow | None = yield feed.at(position)
        if row is None:
            raise NotPossible(f"There is no event at position {position} of {feed.source.name}.")
        to = Pair(row.order_xid, position - 1)
        if to > found.pair:
            raise NotPossible(
                f"Projection {found.name!r} cannot be rewound to position {position}: it has not come that far. It is at "
                f"{found.position}."
            )
    yield from _place(asked, found, to)
    yield UNPARK.query(
        {"name": found.name, "version": found.version, "order_xid": str(to.order_xid), "position": to.position},
        read=nothing,
    )
    told = {"projection": found.name, "version": found.version, "from": found.position, "to": position}
    yield record(asked.by, "projection.rewind", told)
    yield notify(asked.channel, "")
    return (yield from find_projection(asked))


BEGIN_ANEW = statement(
    "begin_anew",
    """
    with emptied as (
        delete from {schema}.parked_events where projection = %(name)s and version = %(version)s
    )
    update {schema}.projections
    set order_xid = '0',
        position = -9223372036854775808,
        began_at = {schema}.now(),
        prepared_at = null,
        live_at = null,
        progress_at = null,
        failures = 0,
        state = 'running',
        state_at = {schema}.now(),
        state_by = null
    where name = %(name)s
      and version = %(version)s
    """,
)


def rebuild_projection(asked: Asked, has_prepare: bool) -> Steps[ProjectionView]:
    """Begin with the first event, in tables that are made anew. Raises NotPossible for a version that readers use."""
    found = yield from find_projection(asked)
    if found.live_at is not None or not has_prepare:
        why = (
            "readers use it" if found.live_at is not None else "it has no prepare=..., which would make its tables anew"
        )
        raise NotPossible(
            f"Version {found.version} of projection {found.name!r} cannot be rebuilt: {why}. Give it version={found.version + 1} in "
            "the code, with prepare=... and switch=..., and deploy that: it is built beside this one, and takes its place when it has "
            "caught up."
        )
    yield BEGIN_ANEW.query({"name": found.name, "version": found.version}, read=nothing)
    yield record(asked.by, "projection.rebuild", {"projection": found.name, "version": found.version})
    yield notify(asked.channel, "")
    return (yield from find_projection(asked))


def skip_event(asked: Asked, feed: Feed) -> Steps[FeedRow]:
    """Pass over the event that comes next, which is returned. Raises NotPossible when there is none that can be read."""
    view = yield from find_projection(asked)
    found: Found | None = yield feed.look(1)
    if found is None or not found.rows:
        raise NotPossible(
            f"There is no event that projection {view.name!r} could skip: it is at the end of what can be read."
        )
    row = found.rows[0]
    yield from _place(asked, view, row.pair)
    told = {"projection": view.name, "version": view.version, "position": row.position, "type": row.type}
    yield record(asked.by, "projection.skip", told)
    yield notify(asked.channel, "")
    return row


def _place(asked: Asked, found: ProjectionView, to: Pair) -> Steps[None]:
    params: dict[str, Any] = {"name": found.name, "version": found.version}
    params |= {"order_xid": str(to.order_xid), "position": to.position}
    params |= {"at_xid": str(found.pair.order_xid), "at_position": found.pair.position}
    moved: bool | None = yield SET_PLACE.query(params, read=scalar)
    if not moved:
        raise NotPossible(
            f"The checkpoint of projection {found.name!r} moved while this was decided. Pause it first: rota projections pause "
            f"{found.name}."
        )


REPLAY = statement(
    "replay_parked",
    """
    with chosen as (
        update {schema}.parked_events
        set replay_at = coalesce(replay_at, {schema}.now())
        where projection = %(name)s
          and version = %(version)s
          and (%(positions)s::bigint[] is null or position = any (%(positions)s::bigint[]))
        returning position
    )
    select count(*) from chosen
    """,
)
DROP = statement(
    "drop_parked",
    """
    with dropped as (
        delete from {schema}.parked_events
        where projection = %(name)s
          and version = %(version)s
          and (%(positions)s::bigint[] is null or position = any (%(positions)s::bigint[]))
        returning position
    )
    select count(*) from dropped
    """,
)


def replay_parked(asked: Asked, positions: Sequence[int] | None) -> Steps[int]:
    """Have whoever reads for it try these again, or all that are parked; returns how many there are.

    Each is given to the handler once more, in the order of the log, and leaves the list in the same transaction.
    """
    return (yield from _with_parked(asked, positions, REPLAY.query, "replay"))


def drop_parked(asked: Asked, positions: Sequence[int] | None) -> Steps[int]:
    """Give these up, or all that are parked; returns how many there were."""
    return (yield from _with_parked(asked, positions, DROP.query, "drop"))


def _with_parked(asked: Asked, positions: Sequence[int] | None, do: Any, verb: str) -> Steps[int]:
    found = yield from find_projection(asked)
    given = None if positions is None else list(positions)
    params = {"name": found.name, "version": found.version, "positions": given}
    count: int = yield do(params, read=scalar)
    told = {"projection": found.name, "version": found.version, "events": count, "positions": given and given[:100]}
    yield record(asked.by, f"projection.{verb}", told)
    yield notify(asked.channel, "")
    return count


def find_parked(name: str, version: int | None, *, limit: int, after: Pair | None) -> Steps[list[ParkedEvent]]:
    """What is parked, in the order of the log."""
    found = yield from find_projection(Asked(name, version, "", ""))
    events: list[ParkedEvent] = yield list_parked(found.name, found.version, limit=limit, after=after)
    return events


FORGET = statement(
    "forget_projection",
    "delete from {schema}.projections where name = %(name)s and version = %(version)s",
)


def forget_projection(asked: Asked) -> Steps[ProjectionView]:
    """Forget a version that is no longer in any code, with its checkpoint and what is parked. What it wrote is left alone.

    Raises NotPossible while a live process has it: it would begin anew.
    """
    found = yield from find_projection(asked)
    if found.workers or found.owner is not None:
        raise NotPossible(
            f"Projection {found.name!r} (version {found.version}) cannot be forgotten: {found.workers} worker(s) have it. Take it out "
            "of the code and restart them; then forget it."
        )
    yield FORGET.query({"name": found.name, "version": found.version}, read=nothing)
    yield record(asked.by, "projection.forget", {"projection": found.name, "version": found.version})
    return found


def find_projection(asked: Asked) -> Steps[ProjectionView]:
    """It as it stands. Raises NotPossible when no process has declared it."""
    view: ProjectionView | None = yield get_projection(asked.name, asked.version)
    if view is None:
        which = "" if asked.version is None else f" of version {asked.version}"
        raise NotPossible(
            f"There is no projection {asked.name!r}{which}: no process has declared one. `rota projections list` shows all there are."
        )
    return view
