"""Taking jobs, many at a time, so that each has one holder: the statements. When they are run: see `claimer`.

A claim walks each due lane from where it is told to begin. What is in lines, and in the lanes of a queue that someone has
limited, is taken by a function of the database, `claim_flow`, which counts what runs under a lock.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

from rota.jobs.job import JobId
from rota.jobs.lanes import LANES, LANES_OF, WAYS, Lane, Look, Start, read_look
from rota.postgres.arrays import numbers, texts
from rota.postgres.query import Query, Row, scalar, statement

__all__ = [
    "ClaimedJob",
    "claim",
    "claim_flow",
    "claim_named",
    "claim_suspect",
    "give_back_claim",
    "join_lines",
    "look_and_claim",
    "new_token",
]


class ClaimedJob(NamedTuple):
    """A job of ours to run. A tuple, because a frozen dataclass costs more to build than the rest of the claim."""

    id: JobId
    queue: str
    task: str
    priority: int
    attempt: int
    losses: int
    due_at: float  # seconds since 1970
    args: str
    token: int
    version: int = 1
    saved: str | None = None
    schedule: str | None = None
    slot_at: datetime | None = None
    waited: float | None = None  # seconds from when it was due to when it was claimed, by the clock of the database
    trace_context: str | None = None
    inputs: str | None = None  # what came of the batch it waited for
    batch: int | None = None
    in_line: bool = False
    limited: bool = False  # others wait for it to end: it is in a line, or its queue is limited


# the same names are sent again and again
_known = lru_cache(maxsize=512)(texts)


def new_token() -> int:
    """A claim's token: random, so that no other claim of the same job ever has it."""
    return secrets.randbits(63)


# Takes what is chosen in between.
_UPDATE = """
        update {schema}.jobs as job
        -- what came here without knowing of the limit of its task goes into its line
        set state = case when job.task = any (%(limited)s::text[]) then 'blocked' else 'running' end,
            token = case when job.task = any (%(limited)s::text[]) then null else %(token)s end,
            member = case when job.task = any (%(limited)s::text[]) then null else %(member)s end,
            claimed_at = case when job.task = any (%(limited)s::text[]) then null else {schema}.now() end,
            attempt = job.attempt + case when job.task = any (%(limited)s::text[]) then 0 else 1 end
        where job.id = any (array({chosen}))
          -- Who has ended may not take anything: nobody would know that it has it. Who is suspected may be ended at any moment.
          and exists (
              select
              from {schema}.members as member
              where member.id = %(member)s and member.ended_at is null and member.suspected_at is null
          )
          -- none of these is in a line, so no line has to follow: to look for that costs a lone job a tenth of its claim
          and (select set_config('rota.claiming', 'yes', true)) = 'yes'
"""
_TAKE = (
    """
    claimed as ("""
    + _UPDATE
    + """
        returning
            job.id, job.queue, job.task, job.priority, job.attempt, job.due_at, job.claimed_at, job.args::text, job.token,
            job.version, job.saved::text, job.schedule, job.slot_at, job.trace_context, job.inputs::text, job.batch_id,
            num_nonnulls(job.saved, job.schedule, job.trace_context, job.inputs, job.batch_id) > 0
                or job.version <> 1 or job.attempt <> 1 as is_special
    )
"""
)
# A job as a row. For few of them: a client pays for each value of each.
_ROW = """
        job.id, job.queue, job.task, job.priority, job.attempt, job.losses, date_part('epoch', job.due_at), job.args::text, job.token,
        job.version, job.saved::text, job.schedule, job.slot_at, extract(epoch from job.claimed_at - job.due_at)::float8,
        job.trace_context, job.inputs::text, job.batch_id
"""
# From the lanes that are named in between.
_WALK = """
            select due.id
            from {lanes} as lane(queue, priority, after_due, after_id)
            cross join lateral (
                select job.id
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = lane.queue
                  and job.priority = lane.priority
                  and (job.due_at, job.id) > (lane.after_due, lane.after_id)
                  and job.due_at <= (select {schema}.now())
                  -- what this process does not know stays for those who do
                  and job.task = any (%(tasks)s::text[])
                  and (
                      job.version = 1
                      or job.version <= (%(versions)s::smallint[])[array_position(%(tasks)s::text[], job.task)]
                  )
                  -- what went down with a process before is taken apart: see claim_suspect
                  and job.losses = 0
                  and job.cancel_requested_at is null
                order by job.due_at, job.id
                limit %(limit)s
                for update skip locked
            ) as due
            -- lanes are walked in the order given, and no further than needed: the locks are taken row by row
            limit %(limit)s
        """
# Of those that someone named, what the claim of a lane would take.
_NAMED = """
            select job.id
            from {schema}.jobs as job
            where job.id = any (%(ids)s::bigint[])
              and job.state = 'queued'
              and job.due_at <= (select {schema}.now())
              and (%(queues)s::text[] is null or job.queue = any (%(queues)s::text[]))
              and job.task = any (%(tasks)s::text[])
              and (
                  job.version = 1
                  or job.version <= (%(versions)s::smallint[])[array_position(%(tasks)s::text[], job.task)]
              )
              and job.losses = 0
              and job.cancel_requested_at is null
              -- what someone has limited is taken under its lock, see claim_flow, and what is paused not at all
              and not exists (
                  select from {schema}.queues as queue
                  where queue.name in ('', job.queue)
                    and (
                        queue.running_limit is not null
                        or queue.rate_count is not null
                        or queue.paused_at is not null and coalesce(queue.paused_until > (select {schema}.now()), true)
                    )
              )
            order by job.priority desc, job.due_at, job.id
            limit %(limit)s
            for update skip locked
        """
# One row of columns, which a client reads several times as fast as it reads rows. What few jobs have comes apart.
_COLUMNS = """
        array_agg(id), array_agg(queue), array_agg(task), array_agg(priority), array_agg(date_part('epoch', due_at)),
        array_agg(args), date_part('epoch', max(claimed_at)), array_agg(id) filter (where token is null),
        array_agg(id) filter (where is_special), array_agg(attempt) filter (where is_special),
        array_agg(version) filter (where is_special),
        array_agg(saved) filter (where is_special), array_agg(schedule) filter (where is_special),
        array_agg(slot_at) filter (where is_special), array_agg(trace_context) filter (where is_special),
        array_agg(inputs) filter (where is_special), array_agg(batch_id) filter (where is_special)
    from (select * from claimed order by priority desc, due_at, id) as claimed
"""
_GIVEN = """unnest(
                %(queues)s::text[], %(priorities)s::smallint[], %(after_due)s::timestamptz[], %(after_id)s::bigint[]
            )"""
CLAIM = statement("claim", "with " + _TAKE.replace("{chosen}", _WALK.replace("{lanes}", _GIVEN)) + "select" + _COLUMNS)


def claim(
    *,
    lanes: Sequence[tuple[Lane, Start | None]],
    tasks: Mapping[str, int],
    limited: Sequence[str] = (),
    limit: int,
    token: int,
    member: UUID,
) -> Query[list[ClaimedJob]]:
    """Take up to `limit` due jobs of these lanes and tasks (up to this version of each) for this member, under one token.

    Those of `limited` tasks are not taken, but sent to their lines; they are among those returned, without a token.
    """
    return CLAIM.query(
        {
            **_walked(lanes),
            "tasks": _known(tuple(tasks)),
            "versions": numbers(tasks.values()),
            "limited": _known(tuple(limited)),
            "limit": limit,
            "token": token,
            "member": member,
        },
        read=lambda rows: _claimed_by_column(rows[0], token),
        binary=True,
    )


CLAIM_NAMED = statement("claim_named", _UPDATE.replace("{chosen}", _NAMED) + "returning" + _ROW)


def claim_named(
    *,
    ids: Collection[JobId],
    queues: Sequence[str] | None,
    tasks: Mapping[str, int],
    limited: Sequence[str] = (),
    limit: int,
    token: int,
    member: UUID,
) -> Query[list[ClaimedJob]]:
    """Take those of these jobs that are due and that a claim of their lanes would take.

    It says nothing of what else there is: for who has room, has been told of them, and knew of nothing else a moment ago.
    """
    return CLAIM_NAMED.query(
        {
            "ids": numbers(ids),
            "queues": None if queues is None else _known(tuple(queues)),
            "tasks": _known(tuple(tasks)),
            "versions": numbers(tasks.values()),
            "limited": _known(tuple(limited)),
            "limit": limit,
            "token": token,
            "member": member,
        },
        read=lambda rows: sorted(_claimed(rows), key=_urgency),
    )


def _urgency(job: ClaimedJob) -> tuple[int, float, JobId]:
    return -job.priority, job.due_at, job.id


# A look and a claim in one, for who has nothing at hand: a lone job waits for one round trip less. Where something must be taken
# otherwise, or before, nothing is claimed.
_FOUND = """(
                select way.queue, way.priority, way.due_at, way.id - 1
                from way, plain
                where plain.is_all and way.due_in <= 0
                -- lanes of one priority take turns, each as often as its weight says
                order by way.priority desc, power(random(), 1 / way.weight) desc
            )"""
_LOOK_AND_CLAIM = (
    WAYS  # noqa: S608 - all parts are written out here
    + """
    , plain as materialized (
        select
            looked.seconds, looked.joins_in,
            coalesce(looked.joins_in > 0, true)
            and not exists (select from way where way.suspects or way.due_in <= 0 and (way.lines or way.limited)) as is_all
        from looked
    ), """
    + _TAKE.replace("{chosen}", _WALK.replace("{lanes}", _FOUND))
    + """
    , taken as (select"""
    + _COLUMNS
    + """)
    select way.*, null::boolean as is_all, taken.*
    from way
    left join taken on false
    union all
    select null, null, plain.seconds, null, plain.joins_in, {schema}.now(), null, null, null, null, plain.is_all, taken.*
    from plain, taken
    """
)
LOOK_AND_CLAIM = statement("look_and_claim", LANES + _LOOK_AND_CLAIM)
LOOK_AND_CLAIM_OF = statement("look_and_claim_of", LANES_OF + _LOOK_AND_CLAIM)


def look_and_claim(
    *,
    only: Sequence[str] | None,
    tasks: Mapping[str, int],
    limited: Sequence[str] = (),
    limit: int,
    token: int,
    member: UUID,
) -> Query[tuple[Look, list[ClaimedJob] | None]]:
    """What is found in these queues, as `find_lanes` does, and up to `limit` jobs of it, as `claim` takes them; None instead of
    jobs where a claim has to be made apart."""

    def read(rows: Sequence[Row]) -> tuple[Look, list[ClaimedJob] | None]:
        last = rows[-1]
        look = read_look([row[:_LOOK_COLUMNS] for row in rows])
        return look, _claimed_by_column(last[_LOOK_COLUMNS + 1 :], token) if last[_LOOK_COLUMNS] else None

    look = LOOK_AND_CLAIM if only is None else LOOK_AND_CLAIM_OF
    return look.query(
        {
            "queues": None if only is None else _known(tuple(only)),
            "tasks": _known(tuple(tasks)),
            "versions": numbers(tasks.values()),
            "limited": _known(tuple(limited)),
            "limit": limit,
            "token": token,
            "member": member,
        },
        read=read,
    )


# and then, whether all of it could be taken from
_LOOK_COLUMNS = 10


def _claimed_by_column(columns: Row, token: int) -> list[ClaimedJob]:
    ids, queues, tasks, priorities, due, args, claimed_at, strays, special, *of_special = columns
    if ids is None:
        return []
    jobs = _jobs(ids, queues, tasks, priorities, due, args, claimed_at, token=token)
    if special is not None:
        names = ("attempt", "version", *_RARE)
        jobs = _with_special(jobs, names, special, of_special)
    if strays is not None:
        jobs = [job._replace(token=None) if job.id in strays else job for job in jobs]  # type: ignore[arg-type]
    return jobs


def _claimed_under_limits(columns: Row, token: int) -> list[ClaimedJob]:
    *common, in_line, special, attempts, losses, versions = columns[:12]
    jobs = _jobs(*common, token=token, in_line=in_line, limited=True)
    if special is not None:
        names = ("attempt", "losses", "version", *_RARE)
        jobs = _with_special(jobs, names, special, [attempts, losses, versions, *columns[12:]])
    return jobs


def _jobs(
    ids: list[JobId],
    queues: list[str],
    tasks: list[str],
    priorities: list[int],
    due: list[float],
    args: list[str],
    claimed_at: float | None,
    *,
    token: int,
    in_line: bool = False,
    limited: bool = False,
) -> list[ClaimedJob]:
    none = repeat(None)
    waited = [claimed_at - due_at for due_at in due] if claimed_at else none
    found = zip(
        # what few have comes apart: a later attempt than the first, another version than 1, and what follows that
        ids, queues, tasks, priorities, repeat(1), repeat(0), due, args, repeat(token), repeat(1), none, none, none, waited,
        none, none, none, repeat(in_line), repeat(limited),
    )  # fmt: skip
    # past the constructor, which takes them by name
    return list(map(tuple.__new__, repeat(ClaimedJob), found))


# what few jobs have, as it is sent
_RARE = ("saved", "schedule", "slot_at", "trace_context", "inputs", "batch")


def _with_special(
    jobs: list[ClaimedJob], names: Sequence[str], special: list[JobId], values: Sequence[list[Any]]
) -> list[ClaimedJob]:
    told = {job: dict(zip(names, each, strict=True)) for job, *each in zip(special, *values, strict=True)}
    return [job._replace(**told[job.id]) if job.id in told else job for job in jobs]


def _walked(lanes: Sequence[tuple[Lane, Start | None]]) -> dict[str, str]:
    return {
        "queues": _known(tuple(lane.queue for lane, _ in lanes)),
        "priorities": numbers(lane.priority for lane, _ in lanes),
        # a time has neither quotes nor commas in it
        "after_due": f"{{{','.join('-infinity' if start is None else start.due_at.isoformat() for _, start in lanes)}}}",
        "after_id": numbers(0 if start is None else start.id for _, start in lanes),
    }


# As `claim`, under the locks of queues and lines: a row of columns for each lane that gave something.
CLAIM_FLOW = statement(
    "claim_flow",
    """
    select *
    from {schema}.claim_by_column(
        %(queues)s::text[], %(priorities)s::smallint[], %(lines)s::boolean[], %(after_due)s::timestamptz[],
        %(after_id)s::bigint[], %(tasks)s::text[], %(versions)s::smallint[], %(limited)s::text[], %(limit)s, %(most_losses)s,
        %(token)s, %(member)s
    )
    -- asked before it is called, which itself asks only whether the member has ended
    where exists (select from {schema}.members as member where member.id = %(member)s and member.suspected_at is null)
    """,
)


def claim_flow(
    *,
    lanes: Sequence[tuple[Lane, Start | None]],
    tasks: Mapping[str, int],
    limited: Sequence[str] = (),
    limit: int,
    most_losses: int,
    token: int,
    member: UUID,
) -> Query[list[ClaimedJob]]:
    """Take as many as their limits allow; at most one that was lost before, and no more often than told."""
    return CLAIM_FLOW.query(
        {
            **_walked(lanes),
            "lines": [lane.lines for lane, _ in lanes],
            "tasks": _known(tuple(tasks)),
            "versions": numbers(tasks.values()),
            "limited": _known(tuple(limited)),
            "limit": limit,
            "most_losses": most_losses,
            "token": token,
            "member": member,
        },
        read=lambda rows: [job for lane in rows for job in _claimed_under_limits(lane, token)],
        binary=True,
    )


JOIN_LINES = statement("join_lines", "select {schema}.join_lines(%(most)s)")


def join_lines(most: int = 200) -> Query[int]:
    """Put those into line that are due by now, or have been sent there; returns how many."""
    return JOIN_LINES.query({"most": most}, read=scalar)


def _claimed(rows: Sequence[Row]) -> list[ClaimedJob]:
    return [ClaimedJob._make((*row, False, False)) for row in rows]


# One at a time per process, so that what kills its process is told from what merely ran beside it.
CLAIM_SUSPECT = statement(
    "claim_suspect",
    """
    update {schema}.jobs as job
    -- what came here without knowing of the limit of its task goes into its line
    set state = case when job.task = any (%(limited)s::text[]) then 'blocked' else 'running' end,
        token = case when job.task = any (%(limited)s::text[]) then null else %(token)s end,
        member = case when job.task = any (%(limited)s::text[]) then null else %(member)s end,
        claimed_at = case when job.task = any (%(limited)s::text[]) then null else {schema}.now() end,
        attempt = job.attempt + case when job.task = any (%(limited)s::text[]) then 0 else 1 end
    where job.id = (
        select job.id
        from {schema}.jobs as job
        where job.state = 'queued'
          and job.losses > 0
          and job.losses <= %(most_losses)s
          and job.cancel_requested_at is null
          and job.due_at <= (select {schema}.now())
          and job.task = any (%(tasks)s::text[])
          and (job.version = 1 or job.version <= (%(versions)s::smallint[])[array_position(%(tasks)s::text[], job.task)])
          and (%(queues)s::text[] is null or job.queue = any (%(queues)s::text[]))
          -- what someone has limited is taken under its lock, see claim_flow, and what is paused not at all
          and not exists (
              select from {schema}.queues as queue
              where queue.name in ('', job.queue)
                and (
                    queue.running_limit is not null
                    or queue.rate_count is not null
                    or queue.paused_at is not null and coalesce(queue.paused_until > (select {schema}.now()), true)
                )
          )
        order by job.priority desc, job.due_at, job.id
        limit 1
        for update skip locked
    )
      and exists (
          select
          from {schema}.members as member
          where member.id = %(member)s and member.ended_at is null and member.suspected_at is null
      )
    returning"""  # noqa: S608 - all parts are written out here
    + _ROW,
)


def claim_suspect(
    *,
    queues: Sequence[str] | None,
    tasks: Mapping[str, int],
    limited: Sequence[str] = (),
    most_losses: int,
    token: int,
    member: UUID,
) -> Query[list[ClaimedJob]]:
    """Take the most urgent due job that went down with a process before, but no more often than this, if there is one."""
    return CLAIM_SUSPECT.query(
        {
            "most_losses": most_losses,
            "queues": None if queues is None else _known(tuple(queues)),
            "tasks": _known(tuple(tasks)),
            "versions": numbers(tasks.values()),
            "limited": _known(tuple(limited)),
            "token": token,
            "member": member,
        },
        read=_claimed,
    )


GIVE_BACK_CLAIM = statement(
    "give_back_claim",
    """
    with given_back as (
        update {schema}.jobs as job
        set state = case when job.line is null then 'queued' else 'blocked' end,
            token = null,
            member = null,
            claimed_at = null,
            attempt = job.attempt - 1
        where job.state = 'running'
          and job.member = %(member)s
          and job.token = %(token)s
        returning job.id
    )
    select count(*) from given_back
    """,
)


def give_back_claim(member: UUID, token: int) -> Query[int]:
    """Undo a claim whose reply never came: if it was committed, nobody here knows what it took."""
    return GIVE_BACK_CLAIM.query({"member": member, "token": token}, read=scalar)
