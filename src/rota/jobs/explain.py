"""Why a job is not running, in words for whoever was woken up by it, and what would change that.

What decides is read in one statement: the clock, the workers that answer and what they take, and how many jobs come first.
Saying it is a function of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rota.jobs.close import Waiting, find_waiting, why_blocked
from rota.jobs.explain_flow import Flow, look_at_flow, why_held_up
from rota.jobs.inspect import get_job
from rota.jobs.job import AttemptError, Job, JobId, Owner
from rota.jobs.letters import Letter, get_letter
from rota.jobs.moments import at, span
from rota.postgres.query import Query, Row, Steps, statement

__all__ = ["Explanation", "explain_job"]

# Beyond this nobody cares how many exactly, and counting on would read too much.
_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is as it is. `reasons` are sentences: what keeps it from running, and what would change that."""

    job: Job[Any]
    state: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"Job {self.job.id} ({self.job.task}) is {self.state}.", *self.reasons))


def explain_job(id: JobId, app: Owner) -> Steps[Explanation | None]:
    """Explain the job as it is now; None when there is none."""
    job: Job[Any] | None = yield get_job(id, app)
    if job is None:
        return None
    letter = (yield get_letter(id)) if job.state == "dead" else None
    situation = (yield _look_around(job)) if job.state in ("queued", "blocked", "running") else None
    waiting: Waiting | None = (yield find_waiting(id)) if job.state == "blocked" else None
    if waiting is not None:
        return Explanation(job, job.state, tuple(why_blocked(waiting)))
    flow = (yield look_at_flow(job)) if job.state in ("queued", "blocked") else None
    return Explanation(job, job.state, tuple(_reasons(job, situation, flow, letter)))


@dataclass(frozen=True, slots=True)
class _Member:
    """A worker: what it takes, and how much it has taken. `answers` is False when its lease is in doubt; `rests` says why it takes
    on nothing new, if it does not."""

    id: UUID
    name: str
    answers: bool
    renewed_at: datetime
    queues: Sequence[str] | None
    tasks: dict[str, int]
    concurrency: int
    held: int
    rests: str | None


@dataclass(frozen=True, slots=True)
class _Situation:
    now: datetime
    members: tuple[_Member, ...]
    ahead: int


SITUATION = statement(
    "look_around_job",
    """
    with recursive lane as (
        (
            select job.priority
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = %(queue)s
            order by job.priority desc
            limit 1
        )
        union all
        select (
            select job.priority
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = %(queue)s
              and job.priority < lane.priority
            order by job.priority desc
            limit 1
        )
        from lane
        where lane.priority > %(priority)s
    ), ahead as (
        select count(*) as jobs
        from (
            select
            from lane
            cross join lateral (
                select
                from {schema}.jobs as job
                where job.state = 'queued'
                  and job.queue = %(queue)s
                  and job.priority = lane.priority
                  -- one bound for both kinds of lanes, so that the walk ends at it
                  and (job.due_at, job.id) < (
                      case when lane.priority > %(priority)s then (select {schema}.now()) else %(due_at)s end,
                      case when lane.priority > %(priority)s then 0 else %(id)s end
                  )
                order by job.due_at, job.id
                limit %(counted)s + 1
            ) as first
            where lane.priority >= %(priority)s
            limit %(counted)s + 1
        ) as first
    )
    select
        {schema}.now(), (select ahead.jobs from ahead), member.id, member.name,
        member.ended_at is null and member.suspected_at is null and member.expires_at > statement_timestamp(),
        member.renewed_at, member.work,
        (select count(*) from {schema}.jobs as job where job.state = 'running' and job.member = member.id),
        case when member.draining_at is not null then 'it ends' when member.quiet_at is not null then 'it is quiet' end
    from (select) as always
    left join {schema}.members as member on member.ended_at is null or member.id = %(member)s
    """,
)


def _look_around(job: Job[Any]) -> Query[_Situation]:
    """Who could take the job, and which jobs come before it."""
    return SITUATION.query(
        {
            "queue": job.queue,
            "priority": job.priority,
            "due_at": job.due_at,
            "id": job.id,
            "member": job.member,
            "counted": _COUNTED,
        },
        read=_situation,
    )


def _situation(rows: Sequence[Row]) -> _Situation:
    members = [
        _Member(member, name, answers, renewed_at, work.get("queues"), work["tasks"], work["concurrency"], held, rests)
        for _, _, member, name, answers, renewed_at, work, held, rests in rows
        # a member may hold other things than jobs
        if member is not None and "tasks" in work
    ]
    return _Situation(now=rows[0][0], members=tuple(members), ahead=rows[0][1])


def _reasons(job: Job[Any], situation: _Situation | None, flow: Flow | None, letter: Letter | None) -> Iterator[str]:
    if situation is None:
        yield from _why_dead(job, letter) if job.state == "dead" else _why_settled(job)
    elif flow is None:
        yield from _how_running(job, situation)
    else:
        yield from _why_waiting(job, situation, flow)
    if job.origin is not None:
        yield f"It repeats job {job.origin}."


def _why_settled(job: Job[Any]) -> Iterator[str]:
    if job.state == "succeeded":
        yield f"It succeeded at {at(job.finished_at)}, in attempt {job.attempt}. For the same call again: rota jobs retry {job.id}."
    else:
        why = f", for this reason: {job.reason}" if job.reason else ", and nobody said why"
        yield f"It was cancelled at {at(job.finished_at)}{why}. For the same call after all: rota jobs retry {job.id}."


def _why_dead(job: Job[Any], letter: Letter | None) -> Iterator[str]:
    last = job.errors[-1] if job.errors else None
    if job.reason == "lost":
        yield f"It went down with its process {job.losses} times, the last at {at(job.finished_at)}, so it is not tried any more."
    else:
        yield f"Attempt {job.attempt}, its last, failed at {at(job.finished_at)}{_with_error(last)}."
    if letter is None or letter.resolution is None:
        yield (
            f"It stays until someone decides: `rota dead retry {job.id}` tries it again, with other arguments if --args is given; "
            f"`rota dead acknowledge {job.id} --note ...` puts it away."
        )
    elif letter.resolution == "retried":
        yield f"{letter.resolved_by} retried it at {at(letter.resolved_at)}: see job {letter.successor}."
    else:
        yield f"{letter.resolved_by} acknowledged it at {at(letter.resolved_at)}{f': {letter.note}' if letter.note else '.'}"


def _how_running(job: Job[Any], situation: _Situation) -> Iterator[str]:
    since = f"since {at(job.started_at)} ({span(situation.now, job.started_at)})"
    holder = next((member for member in situation.members if member.id == job.member), None)
    yield f"Attempt {job.attempt} is run by {holder.name if holder else f'member {job.member}'} {since}."
    if holder is None or not holder.answers:
        yield (
            "That process does not answer any more. Its jobs are taken over as soon as another worker has made sure; if none "
            "is running, start one."
        )
    if job.progress is not None:
        yield f"It reports {job.progress:.0%}{f': {job.progress_note}' if job.progress_note else '.'}"
    if job.cancel_requested_at is not None:
        yield (
            f"Since {at(job.cancel_requested_at)} it is to be cancelled{f' ({job.reason})' if job.reason else ''}, and its body has "
            f"not ended yet. If it never does: rota jobs discard {job.id}."
        )


def _why_waiting(job: Job[Any], situation: _Situation, flow: Flow) -> Iterator[str]:
    if job.cancel_requested_at is not None:
        yield "It is to be cancelled, and will be as soon as a worker looks after such jobs, every few seconds."
    last = job.errors[-1] if job.errors else None
    if last is not None and last.kind == "failed" and last.attempt == job.attempt:
        yield f"Attempt {last.attempt} failed at {at(last.finished_at)}{_with_error(last)}."
    is_due = job.due_at <= situation.now
    if not is_due and job.state == "queued":
        yield (
            f"It is due at {at(job.due_at)}, in {span(job.due_at, situation.now)}. "
            f"To run it now: rota jobs retry {job.id}."
        )
    held_up = tuple(why_held_up(job, flow))
    yield from held_up
    missing = _who_is_missing(job, situation)
    if missing is not None:
        yield missing
    elif is_due and not held_up:
        yield from _why_not_taken(job, situation)


def _who_is_missing(job: Job[Any], situation: _Situation) -> str | None:
    """What keeps every worker there is from ever taking the job."""
    silent = [member for member in situation.members if not member.answers]
    workers = _answering(situation)
    if not workers:
        seen = f" ({silent[0].name} was last heard of at {at(max(m.renewed_at for m in silent))})" if silent else ""
        return f"No worker is running{seen}. Start one: rota worker APP."
    if not _able(job, situation) and (resting := [member for member in workers if member.rests and _can(member, job)]):
        told = ", ".join(f"{member.name} ({member.rests})" for member in resting[:5])
        return (
            f"The workers that could take it take on nothing new: {told}. `rota members resume NAME` has a quiet one go on; or start "
            "another: rota worker APP."
        )
    on_queue = [member for member in workers if _takes(member, job.queue)]
    if not on_queue:
        taken = ", ".join(sorted({queue for member in workers for queue in member.queues or ()}))
        return (
            f"No running worker takes jobs from queue {job.queue!r}: they take those from {taken}. Start one that does: "
            f"rota worker APP --queues {job.queue}."
        )
    knowing = [member for member in on_queue if job.task in member.tasks]
    if not knowing:
        return (
            f"No running worker on queue {job.queue!r} knows the task {job.task!r}. Deploy code that has it, or have the app "
            "import its module; if it was renamed, keep the old name with @task(name=...)."
        )
    if not _able(job, situation):
        newest = max(member.tasks[job.task] for member in knowing)
        return (
            f"It was enqueued for version {job.version} of its task, and the running workers know {job.task!r} up to version "
            f"{newest}. Deploy the newer code to the workers."
        )
    return None


def _why_not_taken(job: Job[Any], situation: _Situation) -> Iterator[str]:
    able = _able(job, situation)
    # the first of its line is taken from there, whatever is queued
    ahead = situation.ahead if job.state == "queued" else 0
    if job.losses:
        yield (
            f"It went down with its process (losses: {job.losses}), so it is taken on probation: a worker runs one such job at a "
            "time, and it waits for its turn among them."
        )
    elif ahead:
        count = f"{_COUNTED}+" if ahead > _COUNTED else str(ahead)
        yield f"Due jobs ahead of it in queue {job.queue!r}: {count}. They are taken first."
    if all(member.held >= member.concurrency for member in able):
        room = sum(member.concurrency for member in able)
        yield (
            f"Every worker that could take it is busy: all of their {room} slot(s) are taken. It "
            "starts when one of those ends; more workers, or a higher --concurrency, would start it sooner."
        )
    elif not job.losses and not ahead:
        yield (
            f"It has been due for {span(situation.now, job.due_at)}, and {able[0].name} has room for it: it is taken within moments. "
            "If it stays, look into that worker's log."
        )


def _answering(situation: _Situation) -> list[_Member]:
    return [member for member in situation.members if member.answers]


def _takes(member: _Member, queue: str) -> bool:
    return member.queues is None or queue in member.queues


def _able(job: Job[Any], situation: _Situation) -> list[_Member]:
    """The workers that may take the job, when they have room."""
    return [member for member in _answering(situation) if not member.rests and _can(member, job)]


def _can(member: _Member, job: Job[Any]) -> bool:
    return _takes(member, job.queue) and member.tasks.get(job.task, 0) >= job.version


def _with_error(error: AttemptError | None) -> str:
    return "" if error is None else f" with {error.type or error.kind}: {error.message or ''}".rstrip(": ")
