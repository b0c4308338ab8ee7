"""What a running attempt writes about itself. Each write carries its token; False means that the claim has ended."""

from __future__ import annotations

from rota.jobs.job import JobId
from rota.postgres.query import Query, statement

__all__ = ["report_progress", "save_checkpoint"]

PROGRESS = statement(
    "report_progress",
    """
    update {schema}.jobs as job
    set progress = %(fraction)s, progress_note = %(note)s
    where job.id = %(id)s
      and job.token = %(token)s
    returning job.id
    """,
)


def report_progress(id: JobId, token: int, fraction: float, note: str | None) -> Query[bool]:
    """Tell whoever looks how far the attempt is."""
    return PROGRESS.query({"id": id, "token": token, "fraction": fraction, "note": note}, read=_held)


CHECKPOINT = statement(
    "save_checkpoint",
    """
    update {schema}.jobs as job
    set saved = %(value)s::jsonb
    where job.id = %(id)s
      and job.token = %(token)s
    returning job.id
    """,
)


def save_checkpoint(id: JobId, token: int, value: str | None) -> Query[bool]:
    """Keep what the next attempt should begin from; None forgets it."""
    return CHECKPOINT.query({"id": id, "token": token, "value": value}, read=_held)


def _held(rows: object) -> bool:
    return bool(rows)
