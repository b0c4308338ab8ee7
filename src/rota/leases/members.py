"""The processes that hold anything: one row each, on the database's clock.

Ending a member is a write, guarded like renewing: both change the same row, and each only while `ended_at` is null, so
one of them wins and the other sees it. Whoever takes what a member held reads `ended_at` and nothing else.

    live ──(lock seen free)──▶ suspected ──(stood 0.75 s)──▶ ended     the process died, or cannot come back in time
      ▲                            │
      └──────(renewed)─────────────┘                                  a healthy member whose session broke
    live ──(not renewed for a lease)──▶ ended                         cut off, frozen, or behind a pooler
    live ──(leave)──▶ ended                                           a clean stop

What could look like death and is not: a server that restarted, or a replica that took over, holds none of the session
locks taken before, and leases ran out while nobody could renew. A cut network frees the locks of all at once. A server that
is about to stop serves who is connected, and lets nobody come back. So a free lock counts only for a member that attached to
this very server since it started, and in the eyes of a peer that was not itself cut off a moment ago and was let in by a new
session when the other had had its time; and an expiry only in the eyes of a peer whose own session has stood for a whole lease.
A clock of the server that is set forward makes every lease look old: whoever sees by its own clock that more time has passed there
than here ends nobody until all have had the time to renew. One that is set back only makes leases longer.

A member that finds itself renewable past its expiry is renewed: nobody has ended it, so nobody has taken anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from rota.clock import boottime
from rota.leases.progress import Report
from rota.postgres.query import Query, nothing, scalar, statement

__all__ = [
    "EndedMember",
    "Saying",
    "Watched",
    "Wish",
    "attach_member",
    "describe_member",
    "end_marked",
    "hold_lock",
    "join_member",
    "leave_member",
    "watch_members",
]


@dataclass(frozen=True, slots=True)
class EndedMember:
    id: UUID
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What someone wants of a member: that it is quiet, or drains."""

    what: str
    by: str


@dataclass(frozen=True, slots=True)
class Saying:
    """What a member says of itself with its beat: that it ends, that it rests, and its condition, as JSON, if there is news of it."""

    draining: bool = False
    quiet: bool = False
    condition: str | None = None


SILENT = Saying()


@dataclass(frozen=True, slots=True)
class Watched:
    """What one beat found. `renewed` is False when we were ended: then we hold nothing any more.

    Besides who was ended by it, and when the next suspicion ripens: which of the names we seek nobody leads, and the epochs of
    those we lead; `asked` are those of them that someone wants us to give up. `stepped` says that the database's clock was set
    forward since our last beat, `live` how many members there are, we among them; `neighbours` are the processes of our host that
    lead what we seek; `wish` is what someone wants of us.
    """

    renewed: bool
    ended: tuple[EndedMember, ...]
    ripens_in: float | None
    vacant: tuple[str, ...]
    leads: Mapping[str, int]
    asked: frozenset[str]
    stepped: bool
    live: int
    neighbours: tuple[int, ...]
    wish: Wish | None = None


HOLD = statement("hold_member_lock", "select pg_try_advisory_lock(%(key)s)")


def hold_lock(key: int) -> Query[bool]:
    return HOLD.query({"key": key}, read=scalar)


JOIN = statement(
    "join_member",
    """
    with wanted as (
        -- who was ended by its peers is still the process of which someone wanted something
        insert into {schema}.wishes (member, wish, asked_at, asked_by)
        select %(id)s, was.wish, was.asked_at, was.asked_by
        from {schema}.wishes as was
        where was.member = %(was)s::uuid
        on conflict (member) do nothing
    )
    insert into {schema}.members (id, name, host, pid, release, app_release, expires_at, lock_key, work)
    values (
        %(id)s, %(name)s, %(host)s, %(pid)s, %(release)s, %(app_release)s, statement_timestamp() + %(lease)s, %(key)s, %(work)s
    )
    on conflict (id) do nothing
    """,
)


def join_member(
    id: UUID,
    *,
    name: str,
    host: str,
    pid: int,
    release: str,
    lease: timedelta,
    key: int | None,
    work: dict[str, Any],
    app_release: str | None = None,
    was: UUID | None = None,
) -> Query[None]:
    """Enter the list of members. The lock under `key`, if any, must be held already. A repeat changes nothing.

    `was` is who we were before, if peers have ended that: what someone wanted of it is wanted of us.
    """
    params = {"id": id, "name": name, "host": host, "pid": pid, "release": release, "lease": lease, "key": key}
    return JOIN.query({**params, "app_release": app_release, "work": Jsonb(work), "was": was}, read=nothing)


DESCRIBE = statement(
    "describe_member",
    """
    with wanted as (
        delete from {schema}.wishes where member = %(id)s
    )
    update {schema}.members set work = %(work)s where id = %(id)s
    """,
)


def describe_member(id: UUID, work: dict[str, Any]) -> Query[None]:
    """Show what this member does from now on. What someone wanted of it was for what it did before."""
    return DESCRIBE.query({"id": id, "work": Jsonb(work)}, read=nothing)


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
    with gone as (
        update {schema}.members as member
        set ended_at = statement_timestamp(),
            end_reason = 'left',
            ended_by = member.id
        where member.id = %(id)s
          and member.ended_at is null
        returning member.id
    )
    select count({schema}.announce(lease.name))
    from {schema}.leases as lease
    where lease.member in (select gone.id from gone)
    """,
)


def leave_member(id: UUID) -> Query[None]:
    """End our own membership: the last act of a clean stop, after everything held was given back."""
    return LEAVE.query({"id": id}, read=nothing)


END_MARKED = statement(
    "end_marked",
    """
    with gone as (
        update {schema}.members as member
        set ended_at = statement_timestamp(),
            end_reason = 'suspected'
        where member.work ->> 'mark' = %(mark)s
          and member.ended_at is null
        returning member.id
    )
    select count({schema}.announce(lease.name))
    from {schema}.leases as lease
    where lease.member in (select gone.id from gone)
    """,
)


def end_marked(mark: str) -> Query[None]:
    """End the membership of a process that showed this mark and has been seen to be dead: nobody needs to suspect it first."""
    return END_MARKED.query({"mark": mark}, read=nothing)


WATCH = statement(
    "watch_members",
    """
    with renewed as (
        update {schema}.members as member
        set expires_at = statement_timestamp() + %(lease)s,
            renewed_at = statement_timestamp(),
            suspected_at = null,
            draining_at = case when %(draining)s::boolean then coalesce(member.draining_at, statement_timestamp()) end,
            quiet_at = case when %(quiet)s::boolean then coalesce(member.quiet_at, statement_timestamp()) end,
            condition = coalesce(%(condition)s::jsonb, member.condition),
            condition_at = case when %(condition)s is null then member.condition_at else statement_timestamp() end
        where member.id = %(id)s
          and member.ended_at is null
        returning member.id
    ), held as materialized (
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
    ), clock as materialized (
        select exists (
            select
            from {schema}.members as member
            where member.id = %(id)s
              and statement_timestamp() - member.renewed_at > %(within)s::interval
        ) as stepped
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
              -- a clock that was set forward makes every lease and every suspicion look old
              and not (select clock.stepped from clock)
              and (
                  (peer.expires_at < statement_timestamp() and %(settled)s)
                  or (
                      peer.suspected_at < %(let_in_at)s::timestamptz - %(grace)s
                      and peer.lock_key <> all (array(select key from held))
                      -- a lock that was taken on another server, or before this one started, is free for that reason
                      and peer.server_started_at = pg_postmaster_start_time()
                  )
              )
            for update skip locked
        ))
        returning member.id, member.name, member.end_reason
    ), told as materialized (
        select count({schema}.announce(lease.name))
        from {schema}.leases as lease
        where lease.member in (select ended.id from ended)
    ), said as materialized (
        select term.name, term.epoch, report.note, statement_timestamp() - make_interval(secs => report.age) as at
        from renewed, unnest(%(names)s::text[], %(epochs)s::bigint[], %(notes)s::text[], %(ages)s::float8[])
            as report(name, epoch, note, age)
        join {schema}.terms as term on term.name = report.name and term.epoch = report.epoch and term.ended_at is null
        -- who has it locked may be an operator who takes their time
        for update of term skip locked
    ), progressed as (
        update {schema}.terms as term
        set progressed_at = said.at,
            progress_note = said.note
        from said
        where term.name = said.name
          and term.epoch = said.epoch
    ), mine as materialized (
        select lease.name, lease.epoch, term.resign_requested_at is not null as asked
        from {schema}.leases as lease
        left join {schema}.terms as term on term.name = lease.name and term.epoch = lease.epoch
        where lease.member = %(id)s
    )
    select
        exists (select from renewed),
        (select json_agg(json_build_array(ended.id, ended.name, ended.end_reason)) from ended, told),
        (
            select extract(epoch from min(peer.since) + %(grace)s - statement_timestamp())::float8
            from (
                select suspected_at as since
                from {schema}.members
                where ended_at is null and suspected_at is not null and id <> %(id)s
                  and server_started_at = pg_postmaster_start_time()
                union all
                select statement_timestamp() from suspected
            ) as peer
        ),
        array(
            select sought.name
            from unnest(%(seeking)s::text[]) as sought(name)
            where not exists (
                select
                from {schema}.leases as lease
                join {schema}.members as leader on leader.id = lease.member and leader.ended_at is null
                where lease.name = sought.name
            )
        ),
        (select json_agg(json_build_array(mine.name, mine.epoch, mine.asked)) from mine),
        (select clock.stepped from clock),
        (select count(*) from {schema}.members where ended_at is null),
        array(
            select leader.pid
            from {schema}.leases as lease
            join {schema}.members as leader on leader.id = lease.member and leader.ended_at is null
            where lease.name = any (%(seeking)s::text[])
              and leader.id <> %(id)s
              and leader.host = (select me.host from {schema}.members as me where me.id = %(id)s)
        ),
        (select array[wanted.wish, wanted.asked_by] from {schema}.wishes as wanted where wanted.member = %(id)s),
        -- A renewal need not be on disk: a server that crashed is believed in no expiry until all have had the time to come
        -- back. Whoever acts upon an end commits that later, and with it all that was before.
        case when not exists (select from ended) then set_config('synchronous_commit', 'off', true) end,
        case when %(probed)s::text is not null then {schema}.notify(%(probed)s::text, '') end
    """,
)


def watch_members(
    id: UUID,
    lease: timedelta,
    *,
    grace: timedelta,
    settled: bool,
    let_in_at: datetime | None,
    within: timedelta | None = None,
    seeking: Collection[str] = (),
    progress: Sequence[Report] = (),
    probed: str | None = None,
    saying: Saying = SILENT,
) -> Query[Watched]:
    """The beat: prolong our lease and clear any suspicion; suspect the peers whose lock is free, and end those whose suspicion
    or lease has run its time, telling those who wait for what they led.

    `settled` says that our own session has stood for a whole lease, so that an expiry we see is neither our own absence nor
    the server's. `let_in_at` is when the server last let a new session of ours in: who was suspected for its time by then could
    have come back as well. None when we were cut off a moment ago, by something that may have cut off the others too.
    `within` is how long ago our last beat can have been at most: if the database's clock says more, it was set forward, and nobody
    is ended. `progress` is what our leaders said since then, `probed` a channel to say something on, by which all who listen know
    that they hear. `saying` is what others see of us from now on.
    One statement, since each process sends it twice a second.
    """
    now = boottime()
    params = {"id": id, "lease": lease, "grace": grace, "settled": settled, "let_in_at": let_in_at, "within": within}
    # an empty list costs the driver as much as a full one, and a beat has little else to pay for
    reports = {
        "names": [report.name for report in progress] or None,
        "epochs": [report.epoch for report in progress] or None,
        "notes": [report.note for report in progress] or None,
        "ages": [now - report.at for report in progress] or None,
    }
    said = {"draining": saying.draining, "quiet": saying.quiet, "condition": saying.condition}
    return WATCH.query(
        {**params, **reports, **said, "seeking": sorted(seeking) or None, "probed": probed}, read=_watched
    )


def _watched(rows: Any) -> Watched:
    ((renewed, ended, ripens_in, vacant, mine, stepped, live, neighbours, wish, *_),) = rows
    return Watched(
        renewed,
        tuple(EndedMember(UUID(member), name, reason) for member, name, reason in ended or ()),
        None if ripens_in is None else max(0.0, ripens_in),
        tuple(vacant),
        {name: epoch for name, epoch, _ in mine or ()},
        frozenset(name for name, _, asked in mine or () if asked),
        stepped,
        live,
        tuple(neighbours),
        None if wish is None else Wish(*wish),
    )
