"""Arrays of numbers as text, for the hot path: the driver adapts a list item by item, in Python."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["numbers"]


def numbers(values: Iterable[int] | Iterable[float]) -> str:
    """An array literal for a parameter with a cast, such as `%(ids)s::bigint[]`."""
    return "{" + ",".join(map(repr, values)) + "}"
