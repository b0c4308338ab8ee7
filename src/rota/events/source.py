"""What a projection reads from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EventSource"]


@dataclass(frozen=True)
class EventSource:
    """A table of events as a projection reads it: names quoted by `identifier`, ready to be composed in."""

    name: str  # what people call it: the log's name, or the table's
    table: str  # qualified and quoted
    position: str  # quoted column, bigint
    order_xid: str  # quoted column, xid8; null in rows that are older than the column: history, read first, by position
    stream: str | None  # quoted column or None
    type: str | None
    data: str  # quoted column, jsonb (or json/text holding JSON)
    metadata: str | None
    version: str | None
    created_at: str | None
    shape: str | None
    log: str | None = None  # the value of column "log", for a log of ours; None for a user's table
