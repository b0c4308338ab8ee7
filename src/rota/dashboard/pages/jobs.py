"""All jobs, the newest first: found by what they are, and counted by it."""

from __future__ import annotations

from typing import Any

from rota.dashboard.filters import NAMES, job_filters
from rota.dashboard.page import Look, Page, Region
from rota.dashboard.pages.bulk import offers

__all__ = ["PAGE"]

_SIZE = 50
_BULK = ("retry", "cancel", "discard", "move", "prioritise", "put_off")
# Rows of each table: what is counted is read anew for everyone who looks at something else.
_COUNTED = 10_000
_COUNT_SECONDS = 10.0


async def _list(look: Look) -> dict[str, Any]:
    filters, after = job_filters(look.params, look.redaction), look.whole_number("after")
    known = await look.read(
        ("jobs", *sorted(look.params.items())),
        lambda: look.looking.jobs.search(limit=_SIZE, after=after, **filters),
    )
    found = known.value
    return {
        "known": known,
        "jobs": [look.redaction.job(job) for job in found.jobs],
        "found": found,
        "full": _SIZE,
        "bulk": offers(look, _BULK),
        "given": {name: value for name, value in look.params.items() if name != "after"},
    }


async def _facets(look: Look) -> dict[str, Any]:
    filters = job_filters(look.params, look.redaction)
    if filters.pop("error", None) is not None:  # nothing is counted by that
        return {"facets": None}
    asked = sorted((name, value) for name, value in look.params.items() if name != "after")
    known = await look.read(
        ("facets", *asked), lambda: look.looking.jobs.count(reach=_COUNTED, **filters), fresh=_COUNT_SECONDS
    )
    told = look.redaction.facets(known.value)
    kinds = {"state": told.states, "queue": told.queues, "task": told.tasks, "tag": told.tags}
    return {"known": known, "facets": told, "kinds": {name: _largest(counts) for name, counts in kinds.items()}}


def _largest(counts: dict[str, int], most: int = 8) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:most]


PAGE = Page(
    "jobs",
    "/jobs",
    "Jobs",
    "jobs.html",
    (Region("facets", "jobs_facets.html", _facets), Region("list", "jobs_list.html", _list)),
    params=(*NAMES, "after"),
)
