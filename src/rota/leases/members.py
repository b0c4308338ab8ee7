"""The processes that hold anything: one row each, on the database's clock.

Ending a member is a write, guarded like renewing: both change the same row, and each only while `ended_at` is null, so
one of them wins and the other sees it. Whoever takes what a member held reads `ended_at` and nothing else.

    live ──(lock seen free)──▶ suspected ──(stood 0.75 s)──▶ ended     the process died, or cannot come back in time
      ▲                            │
      └──────(renewed)─────────────┘                                  a healthy member whose session broke
    live ──(not renewed for a lease)──▶ ended                         cut off, frozen, or behind a pooler
    live ──(leave)──▶ ended                                           a clean stop

What could look like death and is not: a server that restarted, or a replica that took over, holds none of the session
locks taken before, and leases ran out while nobody could renew. A cut network frees the locks of all at once. So a free
lock counts only for a member that attached to this very server since it started, and not in the eyes of a peer that was
itself cut off a moment ago; and an expiry only in the eyes of a peer whose own session has stood for a whole lease.

A member that finds itself renewable past its expiry is renewed: nobody has ended it, so nobody has taken anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.postgres.query import Query, many, nothing, scalar, statement

__all__ = [
    "EndedMember",
    "MemberView",
    "Watched",
    "attach_member",
    "hold_lock",
    "join_member",
    "leave_member",
    "list_members",
    "renew_member",
    "watch_members",
]


@dataclass(frozen=True, slots=True)
class EndedMember:
    id: UUID
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Watched:
    """What one look at the peers found: who was ended by it, and when the next suspicion ripens."""

    ended: tuple[EndedMember, ...]
    ripens_in: float | None


HOLD = statement("hold_member_lock", "select pg_try_advisory_lock(%(key)s)")


def hold_lock(key: int) -> Query[bool]:
    return HOLD.query({"key": key}, read=scalar)


JOIN = statement(
    "join_member",
    """
    insert into {schema}.members (id, name, host, pid, release, expires_at, lock_key, work)
    values (
        %(id)s, %(name)s, %(host)s, %(pid)s, %(release)s, statement_timestamp() + %(lease)s, %(key)s, %(work)s
    )
    on conflict (id) do nothing
    """,
)


def join_member(
    id: UUID, *, name: str, host: str, pid: int, release: str, lease: timedelta, key: int | None, work: dict[str, Any]
) -> Query[None]:
    """Enter the list of members. The lock under `key`, if any, must be held already. A repeat changes nothing."""
    params = {"id": id, "name": name, "host": host, "pid": pid, "release": release, "lease": lease, "key": key}
    return JOIN.query({**params, "work": Jsonb(work)}, read=nothing)


RENEW = statement(
    "renew_member",
    """
    update {schema}.members as member
    set expires_at = statement_timestamp() + %(lease)s,
        renewed_at = statement_timestamp(),
        suspected_at = null
    where member.id = %(id)s
      and member.ended_at is null
    returning true
    """,
)


def renew_member(id: UUID, lease: timedelta) -> Query[bool]:
    """Prolong the lease and clear any suspicion. False when the member was ended: it holds nothing any more."""
    return RENEW.query({"id": id, "lease": lease}, read=lambda rows: bool(rows))


ATTACH = statement(
    "attach_member",
    """
    update {schema}.members as member
    set expires_at = statement_timestamp() + %(lease)s,
        renewed_at = statement_timestamp(),
        attached_at = statement_timestamp(),
        server_started_at = pg_postmaster_start_time(),
        lock_key = %(key)s,
        suspected_at = null
    where member.id = %(id)s
      and member.ended_at is null
    returning true
    """,
)


def attach_member(id: UUID, lease: timedelta, key: int | None) -> Query[bool]:
    """Renew from a new control session that holds the lock under `key`. False when the member was ended meanwhile."""
    return ATTACH.query({"id": id, "lease": lease, "key": key}, read=lambda rows: bool(rows))


LEAVE = statement(
    "leave_member",
    """
    update {schema}.members as member
    set ended_at = statement_timestamp(),
        end_reason = 'left',
        ended_by = member.id
    where member.id = %(id)s
      and member.ended_at is null
    """,
)


def leave_member(id: UUID) -> Query[None]:
    """End our own membership: the last act of a clean stop, after everything held was given back."""
    return LEAVE.query({"id": id}, read=nothing)


WATCH = statement(
    "watch_members",
    """
    with held as materialized (
        select (lock.classid::bigint << 32) | lock.objid::bigint as key
        from pg_locks as lock
        where lock.locktype = 'advisory'
          and lock.objsubid = 1 -- the one-number form of a key
          and lock.granted
          and lock.database = (select oid from pg_database where datname = current_database())
    ), suspected as (
        update {schema}.members as member
        set suspected_at = statement_timestamp()
        where member.id = any (array(
            select peer.id
            from {schema}.members as peer
            where peer.ended_at is null
              and peer.suspected_at is null
              and peer.id <> %(id)s
              and peer.lock_key is not null
              and peer.lock_key <> all (array(select key from held))
            -- never wait for a peer: it may be renewing, or watching us
            for update skip locked
        ))
        returning member.id
    ), ended as (
        update {schema}.members as member
        set ended_at = statement_timestamp(),
            ended_by = %(id)s,
            end_reason = case when member.expires_at < statement_timestamp() then 'expired' else 'suspected' end
        where member.id = any (array(
            select peer.id
            from {schema}.members as peer
            where peer.ended_at is null
              and peer.id <> %(id)s
              and (
                  (peer.expires_at < statement_timestamp() and %(settled)s)
                  or (
                      peer.suspected_at < statement_timestamp() - %(grace)s
                      and peer.lock_key <> all (array(select key from held))
                      and %(steady)s
                      -- a lock that was taken on another server, or before this one started, is free for that reason
                      and peer.server_started_at = pg_postmaster_start_time()
                  )
              )
            for update skip locked
        ))
        returning member.id, member.name, member.end_reason
    )
    select ended.id, ended.name, ended.end_reason, null::float8
    from ended
    union all
    select null, null, null, extract(epoch from min(peer.since) + %(grace)s - statement_timestamp())::float8
    from (
        select suspected_at as since from {schema}.members where ended_at is null and suspected_at is not null
        union all
        select statement_timestamp() from suspected
    ) as peer
    """,
)


def watch_members(id: UUID, *, grace: timedelta, settled: bool, steady: bool) -> Query[Watched]:
    """Suspect the peers whose lock is free; end those whose suspicion or lease has run its time.

    `settled` says that our own session has stood for a whole lease, so that an expiry we see is neither our own absence nor
    the server's. `steady` says that we were not cut off a moment ago, by something that may have cut off the others too.
    """
    return WATCH.query({"id": id, "grace": grace, "settled": settled, "steady": steady}, read=_watched)


def _watched(rows: Any) -> Watched:
    ended = tuple(EndedMember(row[0], row[1], row[2]) for row in rows if row[0] is not None)
    ripens = [row[3] for row in rows if row[0] is None and row[3] is not None]
    return Watched(ended, max(0.0, ripens[0]) if ripens else None)


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as an operator sees it. `state` is live, suspected or ended; `end_reason` says how it ended."""

    id: UUID
    name: str
    host: str
    pid: int
    release: str
    state: str
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    end_reason: str | None
    work: dict[str, Any]


LIST = statement(
    "list_members",
    """
    select
        member.id, member.name, member.host, member.pid, member.release,
        case
            when member.ended_at is not null then 'ended'
            when member.suspected_at is not null then 'suspected'
            else 'live'
        end,
        member.started_at, member.renewed_at, member.expires_at, member.ended_at, member.end_reason,
        member.work
    from {schema}.members as member
    where member.ended_at is null or %(ended)s
    order by member.ended_at desc nulls first, member.started_at desc
    limit %(limit)s
    """,
)


def list_members(*, ended: bool = False, limit: int = 1000) -> Query[list[MemberView]]:
    """The live members first, newest first; with `ended`, also those that are gone."""
    return LIST.query({"ended": ended, "limit": limit}, read=many(MemberView))
