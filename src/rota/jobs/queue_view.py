"""What waits and runs in each queue, and what someone has said about it.

Numbers are counted to a bound and no further, as in `depth`; a look costs the same with ten jobs or ten million.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rota.jobs.depth import LaneHead, QueueDepth, count_running, lane_heads, queue_depths
from rota.jobs.rate import Rate
from rota.postgres.query import Query, Steps, many, statement

__all__ = ["QueueView", "look_at_queue", "look_at_queues"]

_MOST = 10_000
_LANES = 2_000


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue; or, with the name None, all of them together, and what was said about them as such.

    `due` are those of the `queued` jobs that could begin now, `blocked` those that wait for their turn in a line or for other
    jobs. With `at_least` there may be more of each than the numbers say. `oldest_seconds` is for how long the oldest that waits
    has been due. `workers` is how many live ones take jobs from there. A queue `is_known` when it has jobs, a task of this app
    declares it, or a worker names it. The pause is told while it holds: `paused_at` is None when there is none. With `relaxed`
    its successes count a moment before they are on disk.
    """

    name: str | None
    queued: int = 0
    due: int = 0
    blocked: int = 0
    running: int = 0
    at_least: bool = False
    oldest_seconds: float = 0.0
    workers: int = 0
    is_known: bool = False
    paused_at: datetime | None = None
    paused_until: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    running_limit: int | None = None
    rate: str | None = None
    weight: float = 1.0
    relaxed: bool = False
    changed_at: datetime | None = None
    changed_by: str | None = None


class _Blocked(NamedTuple):
    queue: str
    jobs: int
    oldest_seconds: float
    at_least: bool


# Found by three indexes, as none has all of it: in line, not in line yet, and waiting for a batch. Asked for in the order of an
# index it is read from there, and not looked for in the whole table. Each line has a share of the bound, so that a long one
# does not hide the others; those that have more share the bound once more.
BLOCKED = statement(
    "count_blocked",
    """
    with line as materialized (
        select line.id from {schema}.lines as line order by line.id limit %(most)s
    ), few as materialized (
        select line.id, job.queue, job.due_at, job.turn = share.jobs as is_long
        from (select greatest(2, %(most)s::bigint / greatest(1, count(*))) as jobs from line) as share
        cross join line
        cross join lateral (
            select job.queue, job.due_at, row_number() over (order by job.place) as turn
            from {schema}.jobs as job
            where job.line = line.id and job.state = 'blocked' and job.place > 0
            order by job.place
            limit share.jobs
        ) as job
    ), long as materialized (
        select few.id from few where few.is_long
    )
    select
        blocked.queue, count(*),
        coalesce(greatest(0, extract(epoch from (select {schema}.now()) - min(blocked.due_at))), 0)::float8,
        bool_or(blocked.is_cut)
    from (
        select few.queue, few.due_at, false as is_cut
        from few
        where few.id not in (select long.id from long)
        union all
        select job.queue, job.due_at, job.turn = share.jobs
        from (select greatest(2, %(most)s::bigint / greatest(1, count(*))) as jobs from long) as share
        cross join long
        cross join lateral (
            select job.queue, job.due_at, row_number() over (order by job.place) as turn
            from {schema}.jobs as job
            where job.line = long.id and job.state = 'blocked' and job.place > 0
            order by job.place
            limit share.jobs
        ) as job
        union all
        (
            select job.queue, job.due_at, false
            from {schema}.jobs as job
            where job.state = 'blocked' and job.place is null and job.after is null
            order by job.due_at, job.id
            limit %(most)s
        )
        union all
        (
            -- when these were due says nothing: nobody could have run them
            select job.queue, null, false
            from {schema}.jobs as job
            where job.after is not null
            order by job.after
            limit %(most)s
        )
    ) as blocked
    group by blocked.queue
    """,
)


def count_blocked(*, most: int) -> Query[list[_Blocked]]:
    """What is blocked, by queue; of each kind no more than `most`, and of each line its share of that."""
    return BLOCKED.query({"most": most}, read=many(_Blocked))


class _Said(NamedTuple):
    """What someone has said about a queue; no name: about all of them."""

    name: str
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    pause_reason: str | None
    running_limit: int | None
    rate_count: int | None
    rate_seconds: float | None
    weight: float
    relaxed: bool
    changed_at: datetime | None
    changed_by: str | None

    @property
    def matters(self) -> bool:
        """Whether it differs from what holds for a queue nobody has said anything about."""
        said = (self.paused_at, self.running_limit, self.rate_count)
        return any(each is not None for each in said) or self.weight != 1 or self.relaxed


_NOTHING_SAID = _Said("", None, None, None, None, None, None, None, 1.0, False, None, None)

SAID = statement(
    "said_about_queues",
    """
    select
        queue.name, pause.at, pause.until, pause.by, pause.reason,
        queue.running_limit, queue.rate_count, queue.rate_seconds, queue.weight, queue.relaxed, queue.changed_at,
        queue.changed_by
    from {schema}.queues as queue
    -- one that is over is as none
    left join lateral (
        select queue.paused_at as at, queue.paused_until as until, queue.paused_by as by, queue.pause_reason as reason
        where queue.paused_until is null or queue.paused_until > {schema}.now()
    ) as pause on true
    """,
)

TAKEN = statement(
    "queues_taken",
    """
    select member.work -> 'queues'
    from {schema}.members as member
    where member.ended_at is null
      and member.suspected_at is null
      and member.expires_at > statement_timestamp()
      and member.work ? 'tasks'
    """,
)


@dataclass(frozen=True, slots=True)
class _Look:
    heads: Sequence[LaneHead]
    depths: Mapping[str, QueueDepth]
    blocked: Mapping[str, _Blocked]
    running: Mapping[str, int]
    said: Mapping[str, _Said]
    taken: Sequence[Sequence[str] | None]
    declared: Collection[str]

    @property
    def with_jobs(self) -> set[str]:
        return {*self.depths, *self.blocked, *self.running}

    @property
    def named(self) -> set[str]:
        """The queues that live workers name; one that takes from all of them names none."""
        return {queue for queues in self.taken for queue in queues or ()}


def look_at_queues(declared: Collection[str]) -> Steps[list[QueueView]]:
    """Every queue that has jobs, that something was said about, that is `declared` or that a live worker names; by name.

    All of them together come first, if something was said about those.
    """
    look: _Look = yield from _look(None, declared)
    said = {name for name, each in look.said.items() if each.matters}
    return [_view(name or None, look) for name in sorted(look.with_jobs | look.named | said | set(declared))]


def look_at_queue(name: str | None, declared: Collection[str]) -> Steps[QueueView]:
    """One queue, whether anyone knows it or not; or all of them together."""
    look: _Look = yield from _look(name, declared)
    return _view(name, look)


def _look(name: str | None, declared: Collection[str]) -> Steps[_Look]:
    """At all queues; with a name, of what is queued at that in this one only."""
    found: list[LaneHead] = yield lane_heads(() if name is None else (name,), lanes=_LANES)
    heads = [head for head in found if name in (None, head.queue)]
    depths: dict[str, QueueDepth] = yield queue_depths(heads, most=_MOST)
    blocked: list[_Blocked] = yield count_blocked(most=_MOST)
    running: dict[str, int] = yield count_running(most=_MOST)
    said: list[_Said] = yield SAID.query(read=many(_Said))
    taken: list[Sequence[str] | None] = yield TAKEN.query(read=lambda rows: [queues for (queues,) in rows])
    by_queue = {each.queue: each for each in blocked}
    return _Look(heads, depths, by_queue, running, {each.name: each for each in said}, taken, declared)


def _view(name: str | None, look: _Look) -> QueueView:
    depth = sum((each for queue, each in look.depths.items() if name in (None, queue)), QueueDepth())
    blocked = [each for queue, each in look.blocked.items() if name in (None, queue)]
    ages = [head.oldest_seconds for head in look.heads if name in (None, head.queue)]
    said = look.said.get(name or "") or _NOTHING_SAID
    return QueueView(
        name=name,
        queued=depth.ready + depth.scheduled,
        due=depth.ready,
        blocked=sum(each.jobs for each in blocked),
        running=sum(jobs for queue, jobs in look.running.items() if name in (None, queue)),
        at_least=_reached(depth, look),
        oldest_seconds=max((*ages, *(each.oldest_seconds for each in blocked)), default=0.0),
        workers=sum(name is None or queues is None or name in queues for queues in look.taken),
        is_known=name is None or name in look.with_jobs or name in look.declared or name in look.named,
        paused_at=said.paused_at,
        paused_until=said.paused_until,
        paused_by=said.paused_by,
        pause_reason=said.pause_reason,
        running_limit=said.running_limit,
        rate=None if said.rate_count is None else str(Rate(said.rate_count, said.rate_seconds or 0.0)),
        weight=said.weight,
        relaxed=said.relaxed,
        changed_at=said.changed_at,
        changed_by=said.changed_by,
    )


def _reached(depth: QueueDepth, look: _Look) -> bool:
    """Whether there may be more than was counted."""
    share = max(1, _MOST // max(1, -(-len(look.heads) // 20)))  # of a lane, as in `depth`
    of_all = (sum(each.jobs for each in look.blocked.values()), sum(look.running.values()))
    is_cut = max(of_all) >= _MOST or any(each.at_least for each in look.blocked.values())
    return is_cut or max(depth.ready, depth.scheduled) >= share or len(look.heads) >= _LANES
