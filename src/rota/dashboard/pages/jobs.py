"""All jobs, the newest first: found by what they are, and counted by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from rota.clock import duration
from rota.dashboard.page import Look, Page, Region
from rota.dashboard.redaction import Redaction
from rota.errors import ConfigurationError
from rota.jobs.wanted import JobFilters

__all__ = ["PAGE", "job_filters", "when"]

_SIZE = 50
_TEXTS = ("state", "queue", "task", "tag", "member", "error")
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
    return {"known": known, "jobs": [look.redaction.job(job) for job in found.jobs], "found": found, "full": _SIZE}


async def _facets(look: Look) -> dict[str, Any]:
    filters = job_filters(look.params, look.redaction)
    if filters.pop("error", None) is not None:  # nothing is counted by that
        return {"facets": None}
    asked = sorted((name, value) for name, value in look.params.items() if name != "after")
    known = await look.read(
        ("facets", *asked), lambda: look.looking.jobs.count(reach=_COUNTED, **filters), fresh=_COUNT_SECONDS
    )
    told = known.value
    kinds = {"state": told.states, "queue": told.queues, "task": told.tasks, "tag": told.tags}
    return {"known": known, "facets": told, "kinds": {name: _largest(counts) for name, counts in kinds.items()}}


def job_filters(params: Mapping[str, str], redaction: Redaction) -> JobFilters:
    """What an address says. Raises ConfigurationError for what is no filter, or may not be one."""
    filters: dict[str, Any] = {name: params[name] for name in _TEXTS if name in params}
    if (attempt := params.get("attempt")) is not None:
        if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
            raise ConfigurationError(f"attempt cannot be {attempt[:50]!r}: it is a whole number.")
        filters["attempt"] = int(attempt)
    for name in ("since", "until"):
        if (text := params.get(name)) is not None:
            filters[name] = when(name, text)
    if (text := params.get("arg")) is not None:
        path, equals, value = text.partition("=")
        if not path or not equals:
            raise ConfigurationError(f"arg cannot be {text!r}: it is a path and what is there, such as user.id=1.")
        filters["args"] = {path: value}
    redaction.check_search(error=filters.get("error"), paths=filters.get("args", ()))
    return cast(JobFilters, filters)


def when(name: str, text: str) -> datetime | timedelta:
    """How long ago, or a time. Raises ConfigurationError."""
    try:
        return duration(text)
    except ConfigurationError:
        pass
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        read = None
    if read is None or read.tzinfo is None or not 1 < read.year < 9000:
        raise ConfigurationError(
            f"{name} cannot be {text!r}: it is how long ago, such as 2h, or a time with its zone, such as 2030-01-31T09:00:00Z."
        )
    return read


def _largest(counts: dict[str, int], most: int = 8) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:most]


PAGE = Page(
    "jobs",
    "/jobs",
    "Jobs",
    "jobs.html",
    (Region("facets", "jobs_facets.html", _facets), Region("list", "jobs_list.html", _list)),
    params=(*_TEXTS, "arg", "attempt", "since", "until", "after"),
)
