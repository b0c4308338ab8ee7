"""Filters of jobs as an address or a form has them: all of it text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from rota.clock import duration
from rota.dashboard.redaction import Redaction
from rota.errors import ConfigurationError
from rota.jobs.wanted import JobFilters

__all__ = ["NAMES", "TEXTS", "job_filters", "when"]

TEXTS = ("state", "queue", "task", "tag", "member", "error")
NAMES = (*TEXTS, "arg", "attempt", "since", "until")


def job_filters(params: Mapping[str, str], redaction: Redaction | None = None) -> JobFilters:
    """What it says. Raises ConfigurationError for what is no filter, or may not be one."""
    filters: dict[str, Any] = {name: params[name] for name in TEXTS if name in params}
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
    if redaction is not None:
        redaction.check_search(error=filters.get("error"), args=filters.get("args"))
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
