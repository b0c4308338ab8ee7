"""One job: why it is as it is, its attempts side by side, and what can be done about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from rota.blot import MASK
from rota.dashboard.charts import Lane, Span, lanes
from rota.dashboard.page import Look, Page, Region
from rota.jobs.job import Job

__all__ = ["PAGE", "attempt_lanes"]

_LINES = 1000


async def _job(look: Look) -> dict[str, Any]:
    job_id: int = look.request.path_params["id"]
    known = await look.read(("explain", job_id), lambda: look.looking.jobs.explain(job_id))
    explained = known.value
    return {
        "known": known,
        "job": look.redaction.job(explained.job),
        "reasons": look.redaction.sentences(explained.job, explained.reasons),
        "chart": _chart(explained.job),
        "again": _again(look.redaction.job(explained.job)),
    }


def _again(job: Job[Any]) -> str | None:
    """The call that makes another one like it; None where something of its arguments is not to be seen."""
    written = json.dumps(job.args, ensure_ascii=False, default=str)
    if not isinstance(job.args, dict) or MASK in written:
        return None
    return f"await app.tasks[{job.task!r}].enqueue(**{job.args!r})"


async def _logs(look: Look) -> dict[str, Any]:
    """What its body logged, without what is redacted of its arguments."""
    job_id: int = look.request.path_params["id"]
    known = await look.read(("logs", job_id), lambda: look.looking.jobs.logs(job_id, limit=_LINES))
    lines = known.value
    messages: Sequence[str] = [line.message for line in lines]
    if look.redaction.is_active:
        explained = await look.read(("explain", job_id), lambda: look.looking.jobs.explain(job_id))
        messages = look.redaction.sentences(explained.value.job, messages)
    return {"known": known, "lines": list(zip(lines, messages, strict=True)), "most": _LINES}


def _chart(job: Job[Any]) -> Markup:
    data = attempt_lanes(job)
    spans = [span for lane in data for span in lane.spans]
    now = datetime.now(UTC)
    ends = [span.end or max(now, span.start) for span in spans]
    return lanes(
        "Waited and ran",
        data,
        start=min((span.start for span in spans), default=job.created_at),
        end=max(ends, default=job.created_at),
        now=now if job.finished_at is None else None,
        names=90,
    )


def attempt_lanes(job: Job[Any]) -> list[Lane]:
    """A lane for each attempt, with what it waited before it ran; and one for the wait of a job that has not begun."""
    ran = list(_attempts(job))
    found: list[Lane] = []
    free_at = job.created_at
    for number, kind, start, end in ran:
        waited = [Span(free_at, start, "wait", "waited")] if start > free_at else []
        found.append(Lane(f"attempt {number}", [*waited, Span(start, end, kind, kind)]))
        free_at = end or start
    if job.finished_at is None and job.state != "running":
        found.append(Lane("waiting", [Span(free_at, None, "wait", "waiting")]))
    return found


def _attempts(job: Job[Any]) -> Iterator[tuple[int, str, datetime, datetime | None]]:
    for error in job.errors:
        yield error.attempt, error.kind, error.started_at or error.finished_at, error.finished_at
    if job.started_at is not None and job.state in ("running", "succeeded", "cancelled"):
        yield job.attempt, job.state, job.started_at, job.finished_at


PAGE = Page(
    "job",
    "/jobs/{id:int}",
    "Job",
    "job.html",
    (Region("job", "job_facts.html", _job), Region("logs", "job_logs.html", _logs)),
    actions=("jobs.retry", "jobs.cancel", "jobs.discard", "dead.retry", "dead.acknowledge"),
    within="jobs",
)
