"""Terms of leadership: what is written and asked of the database about them.

A lease belongs to a member, and a term is over when its member has ended. So there is nothing to renew here: who keeps its
membership keeps its terms. To acquire is one statement, and it decides on the row of the lease alone, which it locks.

Fenced work locks that row too, shared, and with the epoch it believes in. As long as it is open no other term begins; once
another term has begun, it finds nothing to lock and is refused. A session that is open when its member has ended is in the
way of the next leader, who therefore ends it: `fence` leaves a mark by which it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from rota.postgres.keys import lock_key
from rota.postgres.query import Query, nothing, scalar, statement

__all__ = [
    "Acquired",
    "acquire_lease",
    "confirm_term",
    "evict",
    "evict_stale",
    "fence",
    "find_burden",
    "leave_standbys",
    "request_resignation",
    "resign_lease",
    "stand_by",
    "take_lease_away",
]


@dataclass(frozen=True, slots=True)
class Acquired:
    """What a try to acquire found: that it `won`, or who leads. `stale` is one that has ended and is still in the way."""

    won: bool
    stale: bool
    epoch: int
    since: datetime
    member: UUID
    holder: str
    host: str
    pid: int


ACQUIRE = statement(
    "acquire_lease",
    """
    with me as materialized (
        select member.id, member.name, member.host, member.pid
        from {schema}.members as member
        where member.id = %(member)s
          and member.ended_at is null
        -- whoever is just ending us is waited for
        for share
    ), first as (
        insert into {schema}.leases (name, epoch, member, acquired_at)
        select %(name)s, {schema}.new_epoch(0), me.id, clock_timestamp()
        from me
        on conflict (name) do nothing
        returning epoch, member, acquired_at
    ), next as (
        update {schema}.leases as lease
        set epoch = {schema}.new_epoch(lease.epoch),
            member = me.id,
            acquired_at = clock_timestamp()
        from me
        where lease.name = any (array(
            select free.name
            from {schema}.leases as free
            where free.name = %(name)s
              and (
                  free.member is null
                  or exists (select from {schema}.members as last where last.id = free.member and last.ended_at is not null)
              )
            -- never wait: a beat may be behind us, and whoever is inside the last term may be frozen
            for update skip locked
        ))
        returning lease.epoch, lease.member, lease.acquired_at
    ), won as (
        select * from first union all select * from next
    ), closed as (
        update {schema}.terms as term
        set ended_at = coalesce(
                (select member.ended_at from {schema}.members as member where member.id = term.member), won.acquired_at
            ),
            end_reason = 'lost'
        from won
        where term.name = %(name)s
          and term.epoch < won.epoch
          and term.ended_at is null
    ), opened as (
        insert into {schema}.terms (name, epoch, member, holder, host, pid, acquired_at)
        select %(name)s, won.epoch, me.id, me.name, me.host, me.pid, won.acquired_at
        from won, me
    )
    select true, false, won.epoch, won.acquired_at, me.id, me.name, me.host, me.pid
    from won, me
    union all
    select false, leader.ended_at is not null, lease.epoch, lease.acquired_at, leader.id, leader.name, leader.host, leader.pid
    from {schema}.leases as lease
    join {schema}.members as leader on leader.id = lease.member
    where lease.name = %(name)s
      and not exists (select from won)
    """,
)


def acquire_lease(name: str, member: UUID) -> Query[Acquired | None]:
    """Begin a term for this member, if nobody leads. None when that cannot be told: ask again, or our member has ended."""
    return ACQUIRE.query({"name": name, "member": member}, read=lambda rows: Acquired(*rows[0]) if rows else None)


CONFIRM = statement(
    "confirm_term",
    """
    select exists (
        select
        from {schema}.leases as lease
        join {schema}.members as member on member.id = lease.member
        where lease.name = %(name)s
          and lease.epoch = %(epoch)s
          and member.id = %(member)s
          and member.ended_at is null
    )
    """,
)


def confirm_term(name: str, epoch: int, member: UUID) -> Query[bool]:
    """Whether the term was still on when the database looked."""
    return CONFIRM.query({"name": name, "epoch": epoch, "member": member}, read=scalar)


FENCE = statement(
    "fence",
    """
    with inside as materialized (
        select pg_advisory_xact_lock_shared(%(mark)s::bigint)
    )
    select lease.epoch
    from inside, {schema}.leases as lease
    join {schema}.members as member on member.id = lease.member
    where lease.name = %(name)s::text
      and lease.epoch = %(epoch)s::bigint
      and member.ended_at is null
    for share of lease
    """,
)


def fence(name: str, epoch: int, schema: str) -> Query[bool]:
    """Hold the term fast until the transaction ends. False when it is over: then the transaction must not commit."""
    return FENCE.query({"name": name, "epoch": epoch, "mark": _mark(name, epoch, schema)}, read=lambda rows: bool(rows))


def _mark(name: str, epoch: int, schema: str) -> int:
    """By which sessions that are inside a term are found; nobody ever waits for it."""
    return lock_key(schema, "term", f"{name}/{epoch}")


EVICT = statement(
    "evict_stale",
    """
    with inside as materialized (
        select
            lock.pid, its.rolname as role,
            -- PostgreSQL's own rule, asked first: being refused for one session would leave the others
            (pg_has_role(its.oid, 'usage') or pg_has_role('pg_signal_backend', 'usage'))
                and (not its.rolsuper or mine.rolsuper) as may_end
        from pg_locks as lock
        join pg_stat_activity as session on session.pid = lock.pid
        join pg_roles as its on its.oid = session.usesysid
        join pg_roles as mine on mine.rolname = current_user
        where lock.locktype = 'advisory'
          and lock.objsubid = 1
          and lock.granted
          and lock.database = (select oid from pg_database where datname = current_database())
          and ((lock.classid::bigint << 32) | lock.objid::bigint) = %(mark)s
          and (
              %(forced)s
              or exists (
                  select
                  from {schema}.leases as lease
                  join {schema}.members as member on member.id = lease.member
                  where lease.name = %(name)s
                    and lease.epoch = %(epoch)s
                    and member.ended_at is not null
              )
          )
    )
    select
        count(case when inside.may_end then pg_terminate_backend(inside.pid) end),
        coalesce(array_agg(distinct inside.role::text order by inside.role::text) filter (where not inside.may_end), '{}')
    from inside
    """,
)


def evict_stale(name: str, epoch: int, schema: str) -> Query[list[str]]:
    """End the sessions that are still inside this term although its member has ended: they keep the next one from beginning.

    Returns the roles of those that we have no right to end. They are waited for.
    """
    params = {"name": name, "epoch": epoch, "mark": _mark(name, epoch, schema), "forced": False}
    return EVICT.query(params, read=lambda rows: list(rows[0][1]))


def evict(name: str, epoch: int, schema: str) -> Query[list[str]]:
    """End the sessions that are inside this term, whatever they do there: they keep it from being taken away. Returns the same."""
    params = {"name": name, "epoch": epoch, "mark": _mark(name, epoch, schema), "forced": True}
    return EVICT.query(params, read=lambda rows: list(rows[0][1]))


RESIGN = statement(
    "resign_lease",
    """
    with resigned as (
        update {schema}.leases
        set member = null
        where name = any (array(
            select lease.name
            from {schema}.leases as lease
            where lease.name = %(name)s
              and lease.epoch = %(epoch)s
              and lease.member = %(member)s
            -- never wait: fenced work of ours may be open, and the beat is behind us
            for update skip locked
        ))
        returning name, epoch
    ), closed as (
        update {schema}.terms as term
        set ended_at = statement_timestamp(),
            end_reason = 'resigned'
        from resigned
        where term.name = resigned.name
          and term.epoch = resigned.epoch
    ), told as materialized (
        select count({schema}.announce(resigned.name)) from resigned
    )
    select
        (select count(*) from resigned, told) > 0
        or not exists (
            select
            from {schema}.leases as lease
            where lease.name = %(name)s
              and lease.epoch = %(epoch)s
              and lease.member = %(member)s
        )
    """,
)


def resign_lease(name: str, epoch: int, member: UUID) -> Query[bool]:
    """End our own term; whoever waits hears of it. False when fenced work of it is open: nothing is done then, ask again later."""
    return RESIGN.query({"name": name, "epoch": epoch, "member": member}, read=scalar)


TAKE = statement(
    "take_lease_away",
    """
    with taken as (
        update {schema}.leases as lease
        set member = null
        where lease.name = %(name)s
          and lease.epoch = %(epoch)s
          and lease.member = %(member)s
        returning lease.name, lease.epoch
    ), closed as (
        update {schema}.terms as term
        set ended_at = statement_timestamp(),
            end_reason = 'taken'
        from taken
        where term.name = taken.name
          and term.epoch = taken.epoch
    ), told as materialized (
        select count({schema}.announce(taken.name)) from taken
    )
    select taken.name from taken, told
    """,
)


def take_lease_away(name: str, epoch: int, member: UUID) -> Query[None]:
    """End someone's term without their consent. Its fenced work is refused from here on; what else it does is not."""
    return TAKE.query({"name": name, "epoch": epoch, "member": member}, read=nothing)


REQUEST = statement(
    "request_resignation",
    """
    with asked as (
        update {schema}.terms as term
        set resign_requested_at = coalesce(term.resign_requested_at, statement_timestamp())
        from {schema}.leases as lease
        where lease.name = %(name)s
          and lease.member is not null
          and term.name = lease.name
          and term.epoch = lease.epoch
        returning term.name, term.epoch, term.holder
    ), told as materialized (
        select count({schema}.announce(asked.name)) from asked
    )
    select asked.epoch, asked.holder from asked, told
    """,
)


def request_resignation(name: str) -> Query[tuple[int, str] | None]:
    """Ask the leader to step down; returns its epoch and who it is. It does so when its body has ended."""
    return REQUEST.query({"name": name}, read=lambda rows: (rows[0][0], rows[0][1]) if rows else None)


STAND_BY = statement(
    "stand_by",
    """
    insert into {schema}.standbys (name, member)
    values (%(name)s, %(member)s)
    on conflict do nothing
    """,
)


def stand_by(name: str, member: UUID) -> Query[None]:
    """Show that this member waits to lead this."""
    return STAND_BY.query({"name": name, "member": member}, read=nothing)


LEAVE_STANDBYS = statement(
    "leave_standbys",
    "delete from {schema}.standbys where member = %(member)s and name = any (%(names)s::text[])",
)


def leave_standbys(names: Sequence[str], member: UUID) -> Query[None]:
    return LEAVE_STANDBYS.query({"names": list(names), "member": member}, read=nothing)


BURDEN = statement(
    "find_burden",
    """
    select mine.name
    from {schema}.leases as mine
    join {schema}.standbys as standby on standby.name = mine.name
    join {schema}.members as waiting on waiting.id = standby.member and waiting.ended_at is null
    where mine.member = %(member)s
      and (select count(*) from {schema}.leases as its where its.member = waiting.id) + 2
          <= (select count(*) from {schema}.leases as ours where ours.member = %(member)s)
    """,
)


def find_burden(member: UUID) -> Query[list[str]]:
    """What this member leads, and another waits for that leads at least two fewer."""
    return BURDEN.query({"member": member}, read=lambda rows: [name for (name,) in rows])
