"""What may be said of a job when it is enqueued, scheduled or changed: checked where it is said, and refused with words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, InvalidArguments
from rota.postgres.names import check_name

__all__ = ["LATEST_YEAR", "LONGEST_DELAY", "check_at", "check_delay", "check_priority", "check_redact", "check_tags"]

LATEST_YEAR = 9000  # Python's calendar ends soon after, and a row it cannot read would fail every list it is in
LONGEST_DELAY = 100 * 365 * 86400.0


def check_priority(priority: Any) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not -32768 <= priority <= 32767:
        raise ConfigurationError(
            f"priority cannot be {priority!r}: it is a whole number from -32768 to 32767, and the higher runs first."
        )
    return priority


def check_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence | set | frozenset):
        raise ConfigurationError(f"tags cannot be {tags!r}: it is a list of short texts, such as ['user:42'].")
    return tuple(check_name("a tag", tag, 200) for tag in tags)


def check_redact(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence | set | frozenset):
        raise ConfigurationError(f"redact cannot be {names!r}: it is a list of parameter names, such as ['password'].")
    return tuple(check_name("a name in redact", name, 200) for name in names)


def check_delay(delay: Duration) -> float:
    wait = seconds(delay, "delay")
    if wait > LONGEST_DELAY:
        raise ConfigurationError(f"delay cannot be {delay!r}: no job waits longer than a hundred years.")
    return max(0.0, wait)


def check_at(at: datetime) -> datetime:
    if not isinstance(at, datetime) or at.tzinfo is None or not 1 < at.year < LATEST_YEAR:
        raise InvalidArguments(
            f"at={at!r} is no point in time for a job: give a datetime with a time zone, such as datetime.now(timezone.utc), before "
            f"the year {LATEST_YEAR}."
        )
    return at
