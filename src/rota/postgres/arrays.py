"""Arrays as text, for the hot path: the driver adapts a list item by item, in Python."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["numbers", "texts"]


def numbers(values: Iterable[int] | Iterable[float]) -> str:
    """An array literal for a parameter with a cast, such as `%(ids)s::bigint[]`."""
    return "{" + ",".join(map(repr, values)) + "}"


def texts(values: Iterable[str]) -> str:
    """The same of texts."""
    return "{" + ",".join(map(_quoted, values)) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
