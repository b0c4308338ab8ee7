"""An event in hand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Event"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `data` is the typed value where the log knows the type, else plain JSON."""

    position: int
    order_xid: int
    stream: str | None
    version: int | None
    type: str | None
    data: Any
    metadata: dict[str, Any] | None
    created_at: datetime | None
