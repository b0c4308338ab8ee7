"""Where a projection is, and who may move it.

The checkpoint is moved by the transaction that has the handler's writes, by compare-and-swap: from the pair that its events were
read behind, in the term that read them. So it is the fence as well. Whoever takes over writes its epoch here first, and waits for
a move that is just being committed; a move that comes later finds another epoch, or another pair, changes nothing, and its
transaction is rolled back with all that the handler wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from rota.errors import RotaError
from rota.failure import Failure
from rota.postgres.query import Query, nothing, statement
from rota.projections.feed import Pair

__all__ = ["CheckpointMoved", "Owned", "declare_projection", "fail_projection", "move_checkpoint", "take_projection"]


class CheckpointMoved(RotaError):
    """Someone else has moved the checkpoint, or reads for the projection by now: what was done since is void."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A projection in the term that reads for it."""

    name: str
    version: int
    epoch: int

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "epoch": self.epoch}


DECLARE = statement(
    "declare_projection",
    """
    insert into {schema}.projections as projection (name, version, definition)
    values (%(name)s, %(version)s, %(definition)s)
    on conflict (name, version) do update
    set definition = excluded.definition,
        declared_at = excluded.declared_at
    where projection.definition <> excluded.definition
    """,
)


def declare_projection(name: str, version: int, definition: dict[str, Any]) -> Query[None]:
    """Say what it is. One that is new begins at the first event; where another is, and whether it rests, stays as it is."""
    return DECLARE.query({"name": name, "version": version, "definition": Jsonb(definition)}, read=nothing)


TAKE = statement(
    "take_projection",
    """
    update {schema}.projections
    set epoch = %(epoch)s
    where name = %(name)s
      and version = %(version)s
      and epoch <= %(epoch)s
    returning epoch
    """,
)


def take_projection(owned: Owned) -> Query[bool]:
    """Begin to read in this term: from here on, those before it move nothing. False when a later one has begun, or it is gone."""
    return TAKE.query(owned.params, read=lambda rows: bool(rows))


MOVE = statement(
    "move_checkpoint",
    """
    update {schema}.projections
    set order_xid = %(to_xid)s::text::xid8,
        position = %(to_position)s::bigint,
        progress_at = clock_timestamp(),
        failures = 0
    where name = %(name)s::text
      and version = %(version)s::int
      -- where these events were read behind, and in whose term: whatever has changed since, they are not ours to take in
      and order_xid = %(order_xid)s::text::xid8
      and position = %(position)s::bigint
      and epoch = %(epoch)s::bigint
      -- nor when someone has paused it since, or a later version has its place
      and state = 'running'
    returning position
    """,
)


def move_checkpoint(owned: Owned, at: Pair, to: Pair) -> Query[None]:
    """Move from one place to another, in the transaction that has taken in what lies between.

    Raises CheckpointMoved when the projection is not at that place, or is read in another term: nothing may be committed then.
    """
    places = {"order_xid": str(at.order_xid), "position": at.position}
    params = owned.params | places | {"to_xid": str(to.order_xid), "to_position": to.position}
    return MOVE.query(params, read=lambda rows: _moved(owned, at, rows))


def _moved(owned: Owned, at: Pair, rows: Sequence[Any]) -> None:
    if not rows:
        raise CheckpointMoved(
            f"The checkpoint of projection {owned.name!r} is no longer at {at.order_xid}/{at.position} in the term with epoch "
            f"{owned.epoch}: someone else reads for it, or a person has moved it. What was written for these events is undone, and "
            "they are read again from where it is now."
        )


FAIL = statement(
    "fail_projection",
    """
    update {schema}.projections
    set failures = failures + %(counts)s::int,
        failed_at = clock_timestamp(),
        error_type = %(type)s,
        error_message = %(message)s,
        error_trace = %(trace)s,
        state = case when %(stop)s then 'stopped' else state end,
        state_at = case when %(stop)s then {schema}.now() else state_at end,
        state_by = case when %(stop)s then null else state_by end
    where name = %(name)s
      and version = %(version)s
      and order_xid = %(order_xid)s::text::xid8
      and position = %(position)s
      and epoch = %(epoch)s
      and state = 'running'
    returning failures
    """,
)


def fail_projection(owned: Owned, at: Pair, failure: Failure, *, stop: bool, counts: bool = True) -> Query[bool]:
    """Write down that the event behind this place failed; with `stop` nothing more is read until someone resumes it.

    Without `counts` it is no attempt of that event, but something else that was in the way.
    False when the projection is elsewhere or someone else's by now, and nothing was written.
    """
    error = {
        "type": failure.type,
        "message": failure.message,
        "trace": failure.trace,
        "stop": stop,
        "counts": int(counts),
    }
    places = {"order_xid": str(at.order_xid), "position": at.position}
    return FAIL.query(owned.params | places | error, read=lambda rows: bool(rows))
