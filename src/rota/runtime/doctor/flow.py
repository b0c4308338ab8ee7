"""The flow: queues that were paused and forgotten, and lines that stand still."""

from __future__ import annotations

from typing import NamedTuple

from rota.postgres.query import identifier, many, statement
from rota.runtime.doctor.finding import Finding, ok, problem, warning
from rota.runtime.doctor.patient import Patient

__all__ = ["lines", "paused_queues"]

_FORGOTTEN = 86400.0  # seconds: whoever paused it yesterday may not be here today
_STUCK = 60.0  # far longer than a worker takes to look
_LINES = 10_000
_SOME = 3


class _Paused(NamedTuple):
    name: str
    by: str
    reason: str | None
    seconds: float
    ends: bool


LOOK_AT_PAUSES = statement(
    "look_at_pauses",
    """
    select
        queue.name, coalesce(queue.paused_by, 'someone'), queue.pause_reason,
        extract(epoch from {schema}.now() - queue.paused_at)::float8, queue.paused_until is not null
    from {schema}.queues as queue
    where queue.paused_at is not null
      and (queue.paused_until is null or queue.paused_until > {schema}.now())
    order by queue.paused_at
    """,
)


def paused_queues(patient: Patient) -> Finding:
    """Has someone forgotten to resume a queue?"""
    paused = patient.ask(LOOK_AT_PAUSES.query(read=many(_Paused)))
    forgotten = [each for each in paused if not each.ends and each.seconds > _FORGOTTEN]
    if forgotten:
        told = ", ".join(
            f"{each.name or 'all of them'} for {each.seconds / 86400:.0f} day(s) by {each.by}"
            f"{f' ({each.reason})' if each.reason else ''}"
            for each in forgotten[:_SOME]
        )
        return warning(
            f"{len(forgotten)} paused for long: {told}",
            "None of their jobs begins, and the pause does not end by itself.",
            *(patient.command("queues", "resume", each.name or "--all") for each in forgotten[:_SOME]),
        )
    return ok(f"{len(paused)} paused" if paused else "none is paused")


class _Line(NamedTuple):
    task: str
    key: str | None
    first: int
    seconds: float


# A line with someone in it has a time from which on it may be taken from, unless as many run as may.
LOOK_AT_LINES = statement(
    "look_at_lines",
    """
    select waiting.task, waiting.key, first.id, extract(epoch from {schema}.now() - first.due_at)::float8
    from (
        select line.id, line.task, line.key, line.ready_at from {schema}.lines as line limit %(lines)s
    ) as waiting
    cross join lateral (
        select job.id, job.due_at
        from {schema}.jobs as job
        where job.line = waiting.id
          and job.state = 'blocked'
          and job.place > 0
        order by job.place
        limit 1
    ) as first
    where waiting.ready_at is null
      and first.due_at < {schema}.now() - %(stuck)s * interval '1 second'
      and not exists (select from {schema}.jobs as job where job.line = waiting.id and job.state = 'running')
    order by first.due_at
    limit 100
    """,
)


def lines(patient: Patient) -> Finding:
    """Does every line with jobs in it move on?"""
    stuck = patient.ask(LOOK_AT_LINES.query({"lines": _LINES, "stuck": _STUCK}, read=many(_Line)))
    if not stuck:
        return ok("none stands still")
    told = ", ".join(
        f"{each.task}{f' with the key {each.key!r}' if each.key is not None else ''} for {each.seconds:.0f} s"
        for each in stuck[:_SOME]
    )
    schema = identifier(patient.schema)
    refresh = f"select {schema}.refresh_lines(array(select id from {schema}.lines where ready_at is null));"  # noqa: S608 - shown, not run
    return problem(
        f"{len(stuck)} with jobs that wait though none of theirs runs: {told}",
        "This should never be. The statement has them looked at anew; please report it.",
        refresh,
        *(patient.command("jobs", "explain", str(each.first)) for each in stuck[:_SOME]),
    )
