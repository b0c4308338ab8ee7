"""The work: who is there to do it, and what waits for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.app import Rota
from rota.errors import ConfigurationError
from rota.jobs.lanes import find_lanes
from rota.pollers.check import PollerCheck, check_poller
from rota.pollers.sessions import Sessions
from rota.postgres.query import Query, many, scalar, statement
from rota.runtime.doctor.finding import Finding, note, ok, problem, warning
from rota.runtime.doctor.patient import Patient
from rota.schedules.declare import find_orphans
from rota.schedules.view import list_schedules

__all__ = ["app", "dead_letters", "members", "pollers", "queued_jobs", "schedules"]

_HEAD = 1000  # jobs looked at in each lane: those that nobody takes gather at its beginning
_LANES = 100
_COUNTED = 10_000
_POLLER_WITHIN = 3.0  # seconds


def app(patient: Patient) -> Finding:
    """Can the app be imported, and what does it have?"""
    if patient.broken is not None:
        return problem(
            patient.broken,
            "No worker can start with it. What follows is about the database that the options or the environment name.",
            f"mend what it says, then: {patient.app_command('doctor')}",
        )
    if patient.path is None:
        return ok(f"none was named: {patient.program} doctor APP looks at its tasks, schedules and pollers too")
    found = (
        f"{patient.path} has {len(patient.app.tasks)} task(s), {len(patient.app.declared.definitions())} schedule(s), "
        f"{len(patient.app.pollers)} poller(s), {len(patient.app.projections)} projection(s), "
        f"{len(patient.app.singletons)} singleton(s)"
    )
    if patient.app.tasks or patient.app.pollers or patient.app.projections or patient.app.singletons:
        return ok(found)
    return warning(
        found,
        "A worker of it has nothing to do. Modules with tasks must be imported by the module that holds the app.",
        "import them there, below the app",
    )


class _Member(NamedTuple):
    name: str
    release: str
    suspected: bool
    expired: bool
    renewed_seconds: float
    work: Mapping[str, Any]
    quiet_seconds: float | None
    asked_by: str | None

    @property
    def answers(self) -> bool:
        return not self.suspected and not self.expired


LOOK_AT_MEMBERS = statement(
    "look_at_members",
    """
    select
        member.name, member.release, member.suspected_at is not null, member.expires_at < statement_timestamp(),
        extract(epoch from statement_timestamp() - member.renewed_at)::float8, member.work - 'schedules',
        extract(epoch from statement_timestamp() - member.quiet_at)::float8, wanted.asked_by
    from {schema}.members as member
    left join {schema}.wishes as wanted on wanted.member = member.id
    where member.ended_at is null
    order by member.started_at
    limit 1000
    """,
)


def _members() -> Query[list[_Member]]:
    return LOOK_AT_MEMBERS.query(read=many(_Member))


def members(patient: Patient) -> Finding:
    """Do all processes that hold work answer?"""
    found = patient.ask(_members())
    silent = [member for member in found if not member.answers]
    if silent:
        alone = len(silent) == len(found)
        told = ", ".join(f"{member.name} (last heard {member.renewed_seconds:.0f} s ago)" for member in silent[:5])
        return (problem if alone else warning)(
            f"{len(silent)} of {len(found)} do not answer: {told}",
            "They died, froze or cannot reach the database, and what they held waits. "
            + (
                "Nobody else is there to take it over."
                if alone
                else "The others take it over by themselves within seconds."
            ),
            *([patient.app_command("worker")] if alone else [patient.command("members", "list", "--all")]),
        )
    releases = {member.release for member in found}
    if len(releases) > 1:
        return note(
            f"{len(found)} live, of releases {', '.join(sorted(releases))}",
            "Right in the middle of a deployment.",
            "finish the roll-out",
        )
    working = sum("tasks" in member.work for member in found)
    if quiet := [member for member in found if member.quiet_seconds is not None]:
        told = ", ".join(
            f"{member.name} ({member.asked_by or 'someone'}, {member.quiet_seconds or 0:.0f} s ago)"
            for member in quiet[:5]
        )
        return (warning if len(quiet) == working else note)(
            f"{len(quiet)} of {working} worker(s) are quiet: {told}",
            "They take on nothing until someone has them go on, or they are started anew."
            + (" There is no other." if len(quiet) == working else ""),
            patient.command("members", "resume", quiet[0].name),
        )
    return ok(f"{len(found)} live, {working} of them worker(s)")


class _Waiting(NamedTuple):
    queue: str
    task: str
    version: int
    jobs: int
    seconds: float


LOOK_AT_HEADS = statement(
    "look_at_heads",
    """
    select head.queue, head.task, max(head.version)::integer, count(*), max(head.seconds)::float8
    from (
        select
            lane.queue, job.task, job.version, extract(epoch from (select {schema}.now()) - job.due_at) as seconds
        from unnest(%(queues)s::text[], %(priorities)s::smallint[], %(of_lines)s::boolean[]) as lane(queue, priority, of_lines)
        cross join lateral (
            select job.task, job.version, job.due_at
            from {schema}.jobs as job
            where job.state = 'queued'
              and job.queue = lane.queue
              and job.priority = lane.priority
              and job.due_at <= (select {schema}.now())
            order by job.due_at, job.id
            limit %(head)s
        ) as job
        where not lane.of_lines
        union all
        -- of lines that may be taken from each counts as one, whatever stands in it
        select lane.queue, line.task, line.version, extract(epoch from (select {schema}.now()) - line.ready_at)
        from unnest(%(queues)s::text[], %(priorities)s::smallint[], %(of_lines)s::boolean[]) as lane(queue, priority, of_lines)
        cross join lateral (
            select line.task, line.version, line.ready_at
            from {schema}.lines as line
            where line.queue = lane.queue
              and line.priority = lane.priority
              and line.ready_at <= (select {schema}.now())
            order by line.ready_at, line.id
            limit %(head)s
        ) as line
        where lane.of_lines
        union all
        (
            -- a worker puts these into their lines when they are due
            select job.queue, job.task, job.version, extract(epoch from (select {schema}.now()) - job.due_at)
            from {schema}.jobs as job
            where job.state = 'blocked' and job.place is null and job.after is null and job.due_at <= (select {schema}.now())
            order by job.due_at, job.id
            limit %(head)s
        )
    ) as head
    group by head.queue, head.task
    order by head.queue, head.task
    """,
)


def _waiting(patient: Patient) -> list[_Waiting]:
    """What is due at the head of each lane, by queue and task; reads no more than that, however much waits."""
    lanes = [lane for lane in patient.ask(find_lanes(None)).lanes if lane.due_in <= 0][:_LANES]
    params = {
        "queues": [lane.queue for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "of_lines": [lane.lines for lane in lanes],
        "head": _HEAD,
    }
    return patient.ask(LOOK_AT_HEADS.query(params, read=many(_Waiting)))


def queued_jobs(patient: Patient) -> Finding:
    """Is there a worker for everything that is due?"""
    waiting = _waiting(patient)
    workers = [member.work for member in patient.ask(_members()) if member.answers and "tasks" in member.work]
    start = patient.app_command("worker")
    if not waiting:
        return ok("nothing is due" if workers else "nothing is due, and no worker is running")
    oldest = max(each.seconds for each in waiting)
    if not workers:
        return problem(
            f"{sum(each.jobs for each in waiting)} or more jobs are due, the oldest for {oldest:.0f} s, and no worker is running",
            "Nobody does them.",
            start,
        )
    nobody_there = sorted({each.queue for each in waiting if not any(_takes(work, each.queue) for work in workers)})
    if nobody_there:
        return problem(
            f"jobs are due in {', '.join(nobody_there)}, and no running worker takes from there",
            "Nobody does them.",
            patient.app_command("worker", "--queues", ",".join(nobody_there)),
        )
    unknown = [each for each in waiting if not any(_able(work, each) for work in workers)]
    if unknown:
        told = ", ".join(
            f"{each.task} (version {each.version}) in {each.queue}: {each.jobs} or more" for each in unknown[:5]
        )
        return problem(
            f"no running worker knows these tasks: {told}",
            "Their jobs stay until one does: the workers run older code, the app does not import the module, or it was renamed.",
            "deploy code that has them, or keep an old name with @task(name=...)",
            *(patient.command("jobs", "list", "--task", each.task) for each in unknown[:3]),
        )
    return ok(f"{len(workers)} worker(s) for all that is due, the oldest for {oldest:.1f} s")


def _takes(work: Mapping[str, Any], queue: str) -> bool:
    return work.get("queues") is None or queue in work["queues"]


def _able(work: Mapping[str, Any], waiting: _Waiting) -> bool:
    return _takes(work, waiting.queue) and work["tasks"].get(waiting.task, 0) >= waiting.version


COUNT_DEAD = statement(
    "count_open_letters",
    """
    select count(*)
    from (select from {schema}.dead where resolved_at is null limit %(counted)s + 1) as letter
    """,
)


def dead_letters(patient: Patient) -> Finding:
    """Have jobs died that nobody has looked at?"""
    count: int = patient.ask(COUNT_DEAD.query({"counted": _COUNTED}, read=scalar))
    if not count:
        return ok("none is open")
    return warning(
        f"{f'more than {_COUNTED}' if count > _COUNTED else count} open",
        "These jobs used up their attempts, or took processes with them. They stay until someone decides.",
        patient.command("dead", "list"),
        f"{patient.command('dead', 'retry', '--error', 'TEXT')}   # when what they needed is mended",
    )


def schedules(patient: Patient) -> Finding:
    """Will every schedule run?"""
    looking = list_schedules(None, prefix=None, state="broken", limit=100, after=None)
    broken = [schedule.name for schedule in patient.ask(looking)]
    if broken:
        return problem(
            f"{len(broken)} broken: {', '.join(broken[:5])}",
            "It gives out no runs until it is put anew or resumed.",
            *(patient.command("schedules", "show", name) for name in broken[:3]),
            *(patient.command("schedules", "resume", name) for name in broken[:3]),
        )
    orphans = patient.ask(find_orphans([schedule.name for schedule in patient.app.declared.definitions()]))
    if orphans:
        return note(
            f"declared by no live process{' nor by this app' if patient.path else ''}: {', '.join(orphans[:5])}",
            "It goes on as it was last declared. If its code is gone for good, delete it.",
            *(patient.command("schedules", "delete", name) for name in orphans[:3]),
        )
    return ok("none is broken or left behind")


async def _check_pollers(app: Rota) -> dict[str, PollerCheck | ConfigurationError]:
    sessions = Sessions(app.database, pollers=1, handlers=1)
    found: dict[str, PollerCheck | ConfigurationError] = {}
    try:
        for definition in app.pollers.definitions:
            try:
                async with asyncio.timeout(_POLLER_WITHIN):
                    found[definition.name] = await check_poller(sessions.looking, definition)
            except ConfigurationError as error:
                found[definition.name] = error
    finally:
        await sessions.close()
    return found


def pollers(patient: Patient) -> Finding:
    """Does every poller of the app fit its table, with an index that leads to what is due?"""
    if not patient.app.pollers:
        return ok("the app has none")
    bad: list[str] = []
    notes: list[str] = []
    mend: list[str] = []
    for name, check in asyncio.run(_check_pollers(patient.app)).items():
        if isinstance(check, ConfigurationError):
            bad.append(f"{name}: {check}")
            continue
        notes += [f"{name}: {warning}" for warning in check.warnings]
        if check.missing is not None:
            bad.append(f"no index leads to the due rows of {name} ({check.table})")
            mend.append(f"{check.missing.statement};")
        elif not check.is_fit:
            bad.append(f"{name} may not be polled by this role")
    again = patient.app_command("pollers", "check", option="--app")
    if bad:
        return problem(
            "; ".join(bad), "; ".join(notes) or "Each look for due rows reads the whole table.", *mend, again
        )
    if notes:
        return note("; ".join(notes), "They work, and could do with less.", again)
    return ok(f"{len(patient.app.pollers)} fit")
