"""A new version beside the one that readers use: its tables are made before its first event, and take over with no gap.

Each version has its own checkpoint and its own owner, so the old one goes on while the new one replays the log. When the new one
has caught up, one transaction holds both checkpoints, sees that the old one is no further, runs the author's `switch` and retires the
old one. So readers change from one to the other at a moment at which the new one has all that the old one had.
"""

from __future__ import annotations

from rota.postgres.query import Query, scalar, statement
from rota.projections.checkpoint import Owned
from rota.projections.feed import START

__all__ = ["may_prepare", "may_switch", "note_prepared", "note_switched"]

MAY_PREPARE = statement(
    "may_prepare",
    """
    select true
    from {schema}.projections
    where name = %(name)s::text
      and version = %(version)s::int
      and epoch = %(epoch)s::bigint
      and prepared_at is null
      -- what was taken in already is in tables that are there
      and order_xid = '0'
      and position = %(start)s::bigint
    for update
    """,
)
NOTE_PREPARED = statement(
    "note_prepared",
    """
    update {schema}.projections
    set prepared_at = {schema}.now()
    where name = %(name)s::text
      and version = %(version)s::int
    returning true
    """,
)


def may_prepare(owned: Owned) -> Query[bool]:
    """Whether its tables are still to be made, and by us; held until the transaction ends."""
    return MAY_PREPARE.query(owned.params | {"start": START.position}, read=lambda rows: bool(rows))


def note_prepared(owned: Owned) -> Query[bool]:
    return NOTE_PREPARED.query(owned.params, read=scalar)


MAY_SWITCH = statement(
    "may_switch",
    """
    with held as materialized (
        select version, order_xid, position, epoch, live_at, state
        from {schema}.projections
        where name = %(name)s::text
          and version <= %(version)s::int
        -- whoever moves one of them is waited for, and nobody moves one until this is decided
        order by version desc
        for update
    )
    select exists (
        select
        from held as mine
        where mine.version = %(version)s::int
          and mine.epoch = %(epoch)s::bigint
          and mine.live_at is null
          and not exists (
              select
              from held as other
              where other.version < mine.version
                and other.state <> 'retired'
                and (other.order_xid, other.position) > (mine.order_xid, mine.position)
          )
    )
    """,
)
NOTE_SWITCHED = statement(
    "note_switched",
    """
    update {schema}.projections
    set live_at = case when version = %(version)s::int then {schema}.now() end,
        state = case when version = %(version)s::int then state else 'retired' end,
        state_at = case when version = %(version)s::int then state_at else {schema}.now() end,
        state_by = case when version = %(version)s::int then state_by end
    where name = %(name)s::text
      and version <= %(version)s::int
    returning true
    """,
)


def may_switch(owned: Owned) -> Query[bool]:
    """Whether readers can be given this version: it is ours, not live yet, and as far as those before it, which are held there."""
    return MAY_SWITCH.query(owned.params, read=scalar)


def note_switched(owned: Owned) -> Query[bool]:
    """From now on it is the one that readers use; those before it retire."""
    return NOTE_SWITCHED.query(owned.params, read=scalar)
