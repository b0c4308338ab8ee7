"""What of the flow keeps a job from running: a pause, a limit of its queue or of all, its place in the line of its task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from rota.jobs.job import Job, JobId
from rota.jobs.moments import at, span
from rota.jobs.rate import Rate
from rota.postgres.query import Query, Row, statement

__all__ = ["Flow", "look_at_flow", "why_held_up"]

_COUNTED = 10_000
_NAMED = 5


class _Gate(NamedTuple):
    """What was said about a queue, or, without a name, about all of them: only what holds now. `held` run, as far as that matters."""

    name: str
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    reason: str | None
    running: int | None
    held: int | None
    rate_count: int | None
    rate_seconds: float | None
    room: int | None
    room_at: datetime | None


class _Line(NamedTuple):
    """The line of the job, and what its task lets happen there. `place` is None for one that is not in it yet."""

    id: UUID | None
    place: int | None
    after: int | None
    running: int | None
    by_key: bool | None
    rate_count: int | None
    rate_seconds: float | None
    room: int | None
    room_at: datetime | None
    running_ids: Sequence[JobId]
    held: int
    ahead: int
    first: JobId | None
    first_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Flow:
    """How it was at one moment, by the clock of the database."""

    now: datetime
    gates: tuple[_Gate, ...]
    line: _Line


FLOW = statement(
    "look_at_flow",
    """
    select
        {schema}.now(),
        gate.name, pause.at, pause.until, pause.by, pause.reason,
        queue.running_limit, held.jobs, queue.rate_count, queue.rate_seconds, rate.room, rate.not_before,
        job.line, job.place, job.after,
        rule.running, rule.by_key, rule.rate_count, rule.rate_seconds, line_rate.room, line_rate.not_before,
        array(
            select running.id
            from {schema}.jobs as running
            where running.line = job.line and running.state = 'running'
            order by running.id
            limit %(named)s
        ),
        (
            select count(*)
            from (
                select
                from {schema}.jobs as running
                where running.line = job.line and running.state = 'running'
                limit %(counted)s + 1
            ) as running
        ),
        (
            select count(*)
            from (
                select
                from {schema}.jobs as waiting
                where waiting.line = job.line
                  and waiting.state = 'blocked'
                  and waiting.place > 0
                  and (job.place is null or waiting.place < job.place)
                limit %(counted)s + 1
            ) as waiting
        ),
        first.id, first.due_at
    from (select) as always
    left join {schema}.jobs as job on job.id = %(id)s
    left join {schema}.limits as rule on rule.task = job.task
    left join {schema}.lines as line on line.id = job.line
    left join lateral {schema}.rate_after(
        rule.rate_count, rule.rate_seconds, 0, {schema}.now(), line.spent, line.spent_slot
    ) as line_rate
      on rule.rate_count is not null
    left join lateral (
        select waiting.id, waiting.due_at
        from {schema}.jobs as waiting
        where waiting.line = job.line
          and waiting.state = 'blocked'
          and waiting.place > 0
        order by waiting.place
        limit 1
    ) as first on true
    cross join unnest(array['', %(queue)s::text]) as gate(name)
    left join {schema}.queues as queue on queue.name = gate.name
    left join lateral (
        select queue.paused_at as at, queue.paused_until as until, queue.paused_by as by, queue.pause_reason as reason
        where queue.paused_until is null or queue.paused_until > {schema}.now()
    ) as pause on true
    left join lateral {schema}.rate_after(
        queue.rate_count, queue.rate_seconds, 0, {schema}.now(), queue.spent, queue.spent_slot
    ) as rate
      on queue.rate_count is not null
    left join lateral (
        select count(*) as jobs
        from {schema}.jobs as running
        where running.state = 'running'
          and gate.name in ('', running.queue)
    ) as held on queue.running_limit is not null
    order by gate.name
    """,
)


def look_at_flow(job: Job[Any]) -> Query[Flow]:
    """What is said about the queue of the job, and where it stands in its line."""
    params = {"id": job.id, "queue": job.queue, "counted": _COUNTED, "named": _NAMED}
    return FLOW.query(params, read=_flow)


def _flow(rows: Sequence[Row]) -> Flow:
    gates = 1 + len(_Gate._fields)
    return Flow(rows[0][0], tuple(_Gate(*row[1:gates]) for row in rows), _Line(*rows[0][gates:]))


def why_held_up(job: Job[Any], flow: Flow) -> Iterator[str]:
    """A sentence for each thing that keeps a queued or blocked job from being taken, also when there are workers for it."""
    for gate in flow.gates:
        if gate.paused_at is not None and (gate.paused_until is None or gate.paused_until > job.due_at):
            yield _paused(gate, flow.now)
    if job.due_at <= flow.now:
        for gate in flow.gates:
            yield from _limited(gate, flow.now)
    if job.state == "blocked":
        yield from _in_line(job, flow)


def _paused(gate: _Gate, now: datetime) -> str:
    which, goes = (f"Queue {gate.name!r} is", "It goes") if gate.name else ("All queues are", "They go")
    who = f"since {at(gate.paused_at)} by {gate.paused_by}{f': {gate.reason}' if gate.reason else ''}"
    resume = f"rota queues resume {gate.name or '--all'}"
    if gate.paused_until is None:
        return f"{which} paused {who}. To go on: {resume}."
    ends = f"{at(gate.paused_until)}, in {span(gate.paused_until, now)}"
    return f"{which} paused {who}. {goes} on at {ends}, or sooner with: {resume}."


def _limited(gate: _Gate, now: datetime) -> Iterator[str]:
    which, has = (f"Queue {gate.name!r} lets", "has") if gate.name else ("All queues together let", "have")
    limit = f"rota queues limit {gate.name or '--all'}"
    if gate.running is not None and gate.held is not None and gate.held >= gate.running:
        yield (
            f"{which} {gate.running} job(s) run at once, and {gate.held} do. More begin when fewer than that are left; to let more "
            f"run: {limit} --running N."
        )
    if gate.rate_count is not None and gate.room == 0:
        yield (
            f"{which} {_rate(gate.rate_count, gate.rate_seconds)} begin, and {has} room for the next "
            f"{_when(gate.room_at, now)}. To let more begin: {limit} --rate N/TIME."
        )


def _in_line(job: Job[Any], flow: Flow) -> Iterator[str]:
    line, now = flow.line, flow.now
    if line.after is not None:
        yield f"It waits for the jobs of batch {line.after} to end."
        return
    if line.place is None:
        waiting = f", behind those that wait there: {_many(line.ahead)} now" if line.ahead else ""
        when = "within moments" if job.due_at <= now else _when(job.due_at, now)
        sooner = "" if job.due_at <= now else f" To have it join now: rota jobs retry {job.id}."
        yield f"It joins its line {when}{waiting}.{sooner}"
        return
    key = f" with the key {job.key!r}" if line.by_key and job.key is not None else ""
    if line.running is not None and line.held >= line.running:
        more = ", …" if line.held > len(line.running_ids) else ""
        yield (
            f"Task {job.task!r} lets {line.running} of its jobs{key} run at once, and {_many(line.held)} do: "
            f"{', '.join(map(str, line.running_ids))}{more}. Its line moves on when one of them ends."
        )
    if line.rate_count is not None and line.room == 0:
        yield (
            f"Task {job.task!r} lets {_rate(line.rate_count, line.rate_seconds)} of its jobs{key} begin, and has room for the next "
            f"{_when(line.room_at, now)}."
        )
    if line.ahead:
        yield f"Jobs in front of it in its line{key}: {_many(line.ahead)}. Job {line.first} is first."
    if line.first_due_at is not None and line.first_due_at > now:
        who = f"Job {line.first}" if line.ahead else "It"
        yield (
            f"{who} is tried again {_when(line.first_due_at, now)}, and keeps its place until then: what stands behind it waits with "
            f"it, as the limit of its task says. To try it now: rota jobs retry {line.first}."
        )


def _rate(count: int, seconds: float | None) -> str:
    return str(Rate(count, seconds or 0.0))


def _when(moment: datetime | None, now: datetime) -> str:
    return "soon" if moment is None else f"at {at(moment)}, in {span(moment, now)}"


def _many(count: int) -> str:
    return f"{_COUNTED}+" if count > _COUNTED else str(count)
