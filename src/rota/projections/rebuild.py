"""What is built beside the one that readers use, a new version or a new build of the same: its tables are made before its first
event, and take over with no gap.

Each has its own checkpoints, so the old one goes on while the new one replays the log. When the new one has caught up, one
transaction holds the checkpoints of the old one, sees that it is no further, runs the author's `switch` and retires it. So readers
change from one to the other at a moment at which the new one has all that the old one had.

Where there are partitions, the owner of the first does that for all. While it holds the old ones, which lasts a second at most, the
other partitions of the new one go on: they may still lack a moment's events, and come to where the old ones are held. So that the old
one is not held in vain, that is tried only when all of them have passed a place at which the old one was before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.postgres.query import Query, scalar, statement
from rota.projections.checkpoint import Owned
from rota.projections.feed import START, Pair

__all__ = ["find_places", "may_prepare", "may_switch", "note_prepared", "note_switched", "wait_a_moment"]

MAY_PREPARE = statement(
    "may_prepare",
    """
    with held as materialized (
        select partition, epoch, prepared_at, position
        from {schema}.projections
        where name = %(name)s::text
          and version = %(version)s::int
          and build = %(build)s::int
        order by partition
        for update
    )
    select exists (
        select
        from held as mine
        where mine.partition = %(partition)s::int
          and mine.epoch = %(epoch)s::bigint
          and mine.prepared_at is null
          -- what was taken in already, by any of them, is in tables that are there
          and not exists (select from held where held.position > %(start)s::bigint)
    )
    """,
)
NOTE_PREPARED = statement(
    "note_prepared",
    """
    update {schema}.projections
    set prepared_at = {schema}.now()
    where name = %(name)s::text
      and version = %(version)s::int
      and build = %(build)s::int
    returning true
    """,
)


def may_prepare(owned: Owned) -> Query[bool]:
    """Whether its tables are still to be made, and by us; held until the transaction ends."""
    return MAY_PREPARE.query(owned.params | {"start": START.position}, read=scalar)


def note_prepared(owned: Owned) -> Query[bool]:
    return NOTE_PREPARED.query(owned.params, read=scalar)


FIND_PLACES = statement(
    "find_places",
    """
    (
        select projection.order_xid::text::bigint, projection.position
        from {schema}.projections as projection
        where projection.name = %(name)s
          and projection.version = %(version)s
          and projection.build = %(build)s
        order by projection.order_xid, projection.position
        limit 1
    )
    union all
    (
        select projection.order_xid::text::bigint, projection.position
        from {schema}.projections as projection
        where projection.name = %(name)s
          and (projection.version, projection.build) < (%(version)s, %(build)s)
          and projection.state <> 'retired'
        order by projection.order_xid desc, projection.position desc
        limit 1
    )
    """,
)


def find_places(owned: Owned) -> Query[tuple[Pair, Pair]]:
    """How far the last of its partitions is, and how far the first of those that are to retire; the beginning if there are none."""
    return FIND_PLACES.query(owned.params, read=_places)


def _places(rows: Sequence[Any]) -> tuple[Pair, Pair]:
    places = [Pair(*row) for row in rows]
    return (places[0] if places else START), (places[1] if len(places) > 1 else START)


MAY_SWITCH = statement(
    "may_switch",
    """
    with held as materialized (
        select version, build, partition, order_xid, position
        from {schema}.projections
        where name = %(name)s::text
          and (version, build) < (%(version)s::int, %(build)s::int)
          and state <> 'retired'
        -- whoever moves one of them is waited for, and nobody moves one until this is decided
        order by version, build, partition
        for update
    ), own as materialized (
        select
        from {schema}.projections
        where name = %(name)s::text
          and version = %(version)s::int
          and build = %(build)s::int
          and partition = %(partition)s::int
          and epoch = %(epoch)s::bigint
          and live_at is null
          and state = 'running'
          -- after those before it: whoever locks several does so in that order
          and (select count(*) from held) >= 0
        -- nobody gives it up, or begins it anew, until this is decided
        for update
    ), mine as materialized (
        select partition, order_xid, position
        from {schema}.projections
        where name = %(name)s::text
          and version = %(version)s::int
          and build = %(build)s::int
    ), behind as (
        select mine.partition
        from mine
        where exists (
            select
            from held as other
            where (other.order_xid, other.position) > (mine.order_xid, mine.position)
        )
    )
    select case
        when not exists (select from own) then false
        -- ours does not move meanwhile; the others do
        when exists (select from behind where behind.partition = %(partition)s::int) then false
        when exists (select from behind) then null
        else true
    end
    """,
)
WAIT = statement("wait_a_moment", "select pg_sleep(0.02) is not null")
NOTE_SWITCHED = statement(
    "note_switched",
    """
    update {schema}.projections as projection
    set live_at = case when its.new then {schema}.now() end,
        state = case when its.new then projection.state else 'retired' end,
        state_at = case when its.new then projection.state_at else {schema}.now() end,
        state_by = case when its.new then projection.state_by end
    from (
        select held.build, held.version, held.partition, (held.version, held.build) = (%(version)s::int, %(build)s::int) as new
        from {schema}.projections as held
        where held.name = %(name)s::text
          and (held.version, held.build) <= (%(version)s::int, %(build)s::int)
          and held.state <> 'retired'
        order by held.version, held.build, held.partition
        for update
    ) as its
    where projection.name = %(name)s::text
      and (projection.version, projection.build, projection.partition) = (its.version, its.build, its.partition)
    returning true
    """,
)


def may_switch(owned: Owned) -> Query[bool | None]:
    """Whether readers can be given this: it is ours, at work, not live yet, and as far as those before it, which are held there.

    None when only other partitions of it are behind: ask again, they are on their way.
    """
    return MAY_SWITCH.query(owned.params, read=scalar)


def wait_a_moment() -> Query[bool]:
    """In a transaction of either colour."""
    return WAIT.query(read=scalar)


def note_switched(owned: Owned) -> Query[bool]:
    """From now on it is the one that readers use; those before it retire."""
    return NOTE_SWITCHED.query(owned.params, read=scalar)
