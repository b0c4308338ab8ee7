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

from rota.errors import ConfigurationError, RotaError
from rota.failure import Failure
from rota.postgres.query import Query, statement
from rota.projections.feed import Pair

__all__ = ["CheckpointMoved", "Owned", "declare_projection", "fail_projection", "move_checkpoint", "take_projection"]


class CheckpointMoved(RotaError):
    """Someone else has moved the checkpoint, or reads for the projection by now: what was done since is void."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition of a build of a projection, in the term that reads for it."""

    name: str
    version: int
    epoch: int
    build: int = 1
    partition: int = 0

    @property
    def params(self) -> dict[str, Any]:
        place = {"build": self.build, "partition": self.partition}
        return {"name": self.name, "version": self.version, "epoch": self.epoch, **place}


DECLARE = statement(
    "declare_projection",
    """
    with known as materialized (
        select projection.partitions, projection.definition
        from {schema}.projections as projection
        where projection.name = %(name)s
          and projection.version = %(version)s
          and projection.partition = 0
        order by projection.build desc
        limit 1
    ), first as (
        -- whoever declares it at the same moment is waited for, and decides
        insert into {schema}.projections as projection (name, version, partitions, definition)
        select %(name)s, %(version)s, %(partitions)s, %(definition)s
        where not exists (select from known)
        on conflict (name, version, build, partition) do update
        set definition = projection.definition
        returning projection.partitions
    ), others as (
        insert into {schema}.projections (name, version, partition, partitions, definition)
        select %(name)s, %(version)s, number, %(partitions)s, %(definition)s
        from first, generate_series(1, %(partitions)s - 1) as number
        where first.partitions = %(partitions)s
        on conflict (name, version, build, partition) do nothing
    ), changed as (
        update {schema}.projections as projection
        set definition = %(definition)s,
            declared_at = {schema}.now()
        from known
        where projection.name = %(name)s
          and projection.version = %(version)s
          and known.partitions = %(partitions)s
          and known.definition <> %(definition)s
    )
    select known.partitions from known
    union all
    select first.partitions from first
    """,
)


def declare_projection(name: str, version: int, definition: dict[str, Any], partitions: int = 1) -> Query[None]:
    """Say what it is. One that is new begins at the first event; where another is, and whether it rests, stays as it is.

    Raises ConfigurationError for a version that was declared with another number of partitions.
    """
    params = {"name": name, "version": version, "definition": Jsonb(definition), "partitions": partitions}
    return DECLARE.query(params, read=lambda rows: _declared(name, version, partitions, rows))


def _declared(name: str, version: int, partitions: int, rows: Sequence[Any]) -> None:
    known: int = rows[0][0]
    if known != partitions:
        raise ConfigurationError(
            f"Version {version} of projection {name!r} has {known} partition(s), and this code says {partitions}: streams would come "
            f"to lie in other partitions, and their events would be read twice or not at all. Say partitions={known} again, or give "
            f"the projection version={version + 1}, which begins with the first event beside this one."
        )


TAKE = statement(
    "take_projection",
    """
    update {schema}.projections
    set epoch = %(epoch)s
    where name = %(name)s
      and version = %(version)s
      and build = %(build)s
      and partition = %(partition)s
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
      and build = %(build)s::int
      and partition = %(partition)s::int
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
      and build = %(build)s
      and partition = %(partition)s
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
