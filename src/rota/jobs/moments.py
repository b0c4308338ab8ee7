"""Points in time and how far they are apart, in words."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["at", "span"]


def at(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(later: datetime, earlier: datetime | None) -> str:
    """How long it is from one to the other, in the two units that matter."""
    seconds = 0.0 if earlier is None else max(0.0, (later - earlier).total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {smaller}"
    return f"{seconds:.0f} s"
