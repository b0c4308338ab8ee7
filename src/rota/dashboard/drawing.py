"""From what was read to HTML. Everything is escaped, whatever it is; times and numbers are drawn alike on all pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

__all__ = ["Drawing", "digest", "seconds_in_words"]

_NONE = Markup('<span class="none">\u2013</span>')


class Drawing:
    """The templates."""

    def __init__(self, folder: Path = Path(__file__).parent / "templates") -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(folder),
            autoescape=True,  # also of what has no .html in its name
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            moment=moment,
            as_json=as_json,
            seconds=seconds_in_words,
            number=number,
            short_json=short_json,
            plain_json=plain_json,
        )
        # its quotes are those of attributes, and it is not escaped again
        del self._environment.filters["tojson"]

    def draw(self, template: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(values)


def digest(html: str) -> str:
    """Changes with what there is to see."""
    return hashlib.sha256(html.encode()).hexdigest()[:16]


def moment(at: datetime | None) -> Markup:
    """A point in time, in UTC; the page shows it in the zone that its reader has chosen, and how long ago it is."""
    if at is None:
        return _NONE
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds"), utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def as_json(value: Any) -> str:
    """A payload as one would type it, on several lines; with all digits of large numbers, as it is text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def plain_json(value: Any) -> str:
    """As a field of a form has it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def short_json(value: Any, most: int = 80) -> str:
    text = plain_json(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def seconds_in_words(length: float | timedelta | None) -> str:
    """A duration, as precise as one cares for."""
    if length is None:
        return "\u2013"
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{hours:.0f} h" if hours < 47.5 else f"{days:.0f} days"


def number(value: int | None, at_least: bool = False) -> Markup:
    """With spaces between thousands; `at_least` says that there may be more."""
    if value is None:
        return _NONE
    return escape(f"{value:,}".replace(",", "\u202f") + ("+" if at_least else ""))
