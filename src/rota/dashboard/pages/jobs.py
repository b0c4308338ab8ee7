"""All jobs, the newest first, by state, task, queue and tag."""

from __future__ import annotations

from typing import Any

from rota.dashboard.page import Look, Page, Region

__all__ = ["PAGE"]

_SIZE = 50


async def _list(look: Look) -> dict[str, Any]:
    filters = {name: look.param(name) for name in ("state", "queue", "task", "tag")}
    after = look.whole_number("after")
    known = await look.read(
        ("jobs", *filters.values(), after),
        lambda: look.looking.jobs.list(**filters, after=after, limit=_SIZE + 1),
    )
    jobs = [look.redaction.job(job) for job in known.value[:_SIZE]]
    return {"known": known, "jobs": jobs, "more": len(known.value) > _SIZE}


PAGE = Page(
    "jobs",
    "/jobs",
    "Jobs",
    "jobs.html",
    (Region("list", "jobs_list.html", _list),),
    params=("state", "task", "queue", "tag", "after"),
)
