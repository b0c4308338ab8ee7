"""What a person does with projections: have them rest and go on, move their checkpoints, and replay what is parked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rota.errors import NotPossible
from rota.postgres.audit import record
from rota.postgres.notify import notify
from rota.postgres.query import Steps, nothing, scalar, statement
from rota.projections.feed import Feed, FeedRow, Found, Pair
from rota.projections.inspect import PartitionView, ProjectionView, get_projection, show_builds
from rota.projections.parked import ParkedEvent, list_parked

__all__ = [
    "Asked",
    "chosen_partitions",
    "drop_parked",
    "find_builds",
    "find_parked",
    "find_projection",
    "forget_projection",
    "hold_projection",
    "pause_projection",
    "place_checkpoint",
    "read_stored",
    "replay_parked",
    "resume_projection",
    "skip_event",
    "told_of",
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
      and build = any (%(builds)s::int[])
      and (partition = %(partition)s or %(partition)s::int is null)
      and state <> %(state)s
    """,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Of which projection, by whom, and where its owner hears of it.

    Without a version it is the last; without a build the one that readers use, or whichever that can be; without a partition all.
    """

    name: str
    version: int | None
    by: str
    channel: str
    build: int | None = None
    partition: int | None = None


HOLD = statement(
    "hold_projection",
    """
    select count(*)
    from (
        select
        from {schema}.projections
        where name = %(name)s
          and version = %(version)s
        -- as a switch does: two who lock several never wait for each other in a circle
        order by build, partition
        for update
    ) as held
    """,
)


def hold_projection(asked: Asked) -> Steps[ProjectionView]:
    """It as it stands, and stays until the transaction ends: a switch that is under way is waited for, and none begins.

    Raises NotPossible when no process has declared it.
    """
    found = yield from find_projection(asked)
    yield HOLD.query({"name": found.name, "version": found.version}, read=nothing)
    # what was just committed may have changed what can be done
    return (yield from find_projection(asked))


def pause_projection(asked: Asked) -> Steps[ProjectionView]:
    """Have nobody read for it. A batch in hand is undone, and read again when it is resumed."""
    return (yield from _set_state(asked, "paused"))


def resume_projection(asked: Asked) -> Steps[ProjectionView]:
    """Go on at once, with the event at which it stopped and all its attempts."""
    return (yield from _set_state(asked, "running"))


def _set_state(asked: Asked, state: str) -> Steps[ProjectionView]:
    found = yield from hold_projection(asked)
    builds: list[ProjectionView] = yield show_builds(found.name, found.version)
    # one that is being rebuilt rests and goes on with the one that readers use, unless it is asked for
    chosen = [each.build for each in builds if each.build == asked.build or asked.build is None]
    params = {"name": found.name, "version": found.version, "builds": chosen, "partition": asked.partition}
    by = asked.by if state == "paused" else None
    yield SET_STATE.query(params | {"state": state, "by": by}, read=nothing)
    verb = "pause" if state == "paused" else "resume"
    yield record(asked.by, f"projection.{verb}", told_of(asked, found))
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
      and build = %(build)s
      and partition = %(partition)s
      and (order_xid, position) = (%(at_xid)s::text::xid8, %(at_position)s)
    returning true
    """,
)


def skip_event(asked: Asked, feed_of: Callable[..., Feed]) -> Steps[FeedRow]:
    """Pass over the event that comes next, which is returned. Raises NotPossible when there is none that can be read.

    Of several partitions, in the only one that has stopped; otherwise one is to be named.
    """
    view = yield from find_projection(asked)
    choices = chosen_partitions(asked, view)
    if len(choices) > 1:
        choices = [each for each in choices if each.state == "stopped"]
    if len(choices) != 1:
        stopped = ", ".join(str(each.partition) for each in choices) or "none"
        raise NotPossible(
            f"Projection {view.name!r} has {len(view.partitions)} partitions, of which {stopped} have stopped: say in which one the "
            "next event is to be skipped, with --partition (partition=...)."
        )
    found: Found | None = yield feed_of(build=view.build, partition=choices[0].partition).look(1)
    if found is None or not found.rows:
        raise NotPossible(
            f"There is no event that projection {view.name!r} could skip: it is at the end of what can be read."
        )
    row = found.rows[0]
    yield from place_checkpoint(view, choices[0], row.pair)
    told = {"partition": choices[0].partition, "position": row.position, "type": row.type}
    yield record(asked.by, "projection.skip", told_of(asked, view) | told)
    yield notify(asked.channel, "")
    return row


def chosen_partitions(asked: Asked, found: ProjectionView) -> list[PartitionView]:
    """Those that are asked for. Raises NotPossible for one that there is not."""
    chosen = [each for each in found.partitions if asked.partition in (None, each.partition)]
    if not chosen:
        raise NotPossible(
            f"Projection {found.name!r} has no partition {asked.partition}: it has {len(found.partitions)}, from 0 on."
        )
    return chosen


def told_of(asked: Asked, found: ProjectionView) -> dict[str, Any]:
    """For the record: which version of it, and what else was asked for."""
    told: dict[str, Any] = {"projection": found.name, "version": found.version}
    return told | {what: value for what in ("build", "partition") if (value := getattr(asked, what)) is not None}


def place_checkpoint(found: ProjectionView, partition: PartitionView, to: Pair) -> Steps[None]:
    """Have it go on behind this place. Raises NotPossible when it moved meanwhile."""
    at = partition.pair
    params: dict[str, Any] = {"name": found.name, "version": found.version, "build": found.build}
    params |= {"partition": partition.partition, "order_xid": str(to.order_xid), "position": to.position}
    params |= {"at_xid": str(at.order_xid), "at_position": at.position}
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
          and build = %(build)s
          and (partition = %(partition)s or %(partition)s::int is null)
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
          and build = %(build)s
          and (partition = %(partition)s or %(partition)s::int is null)
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
    params = {"name": found.name, "version": found.version, "build": found.build, "partition": asked.partition}
    count: int = yield do(params | {"positions": given}, read=scalar)
    told = {"events": count, "positions": given and given[:100]}
    yield record(asked.by, f"projection.{verb}", told_of(asked, found) | told)
    yield notify(asked.channel, "")
    return count


def find_parked(asked: Asked, *, limit: int, after: Pair | None) -> Steps[list[ParkedEvent]]:
    """What is parked, in the order of the log."""
    found = yield from find_projection(asked)
    place = (found.name, found.version, found.build, asked.partition)
    events: list[ParkedEvent] = yield list_parked(*place, limit=limit, after=after)
    return events


def read_stored(feed: Feed, pairs: Sequence[Pair]) -> Steps[list[FeedRow | None]]:
    """The events at these places as they are stored."""
    found: list[FeedRow | None] = []
    for pair in pairs:
        found.append((yield feed.read(pair)))
    return found


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


def find_builds(asked: Asked) -> Steps[list[ProjectionView]]:
    """All that are at work, the one that readers use first. Raises NotPossible when no process has declared it."""
    found = yield from find_projection(asked)
    builds: list[ProjectionView] = yield show_builds(found.name, found.version)
    return builds


def find_projection(asked: Asked) -> Steps[ProjectionView]:
    """It as it stands. Raises NotPossible when no process has declared it."""
    view: ProjectionView | None = yield get_projection(asked.name, asked.version)
    if view is not None:
        chosen_partitions(asked, view)
    if view is not None and asked.build not in (None, view.build):
        builds: list[ProjectionView] = yield show_builds(view.name, view.version)
        chosen = next((each for each in builds if each.build == asked.build), None)
        if chosen is None:
            known = ", ".join(str(each.build) for each in builds)
            raise NotPossible(
                f"Version {view.version} of projection {view.name!r} has no build {asked.build} any more, or not yet: it has {known}."
            )
        view = chosen
    if view is None:
        which = "" if asked.version is None else f" of version {asked.version}"
        raise NotPossible(
            f"There is no projection {asked.name!r}{which}: no process has declared one. `rota projections list` shows all there are."
        )
    return view
