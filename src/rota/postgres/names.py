"""Names that people give: what PostgreSQL and NOTIFY can carry, and how a table is named."""

from __future__ import annotations

import re
from typing import Any

from rota.errors import ConfigurationError
from rota.postgres.query import identifier

__all__ = ["check_name", "read_table_name"]

# what a terminal would obey, and what UTF-8 cannot hold
_FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


def check_name(what: str, name: Any, longest: int) -> str:
    """A name of a queue, a task, a tag, a leader, a person; raises ConfigurationError."""
    if not isinstance(name, str) or not 1 <= len(name) <= longest or _FORBIDDEN.search(name):
        raise ConfigurationError(
            f"{what} cannot be {name!r}: it is text of 1 to {longest} characters without control characters or lone surrogates."
        )
    return name


def read_table_name(table: Any) -> tuple[str | None, str]:
    """Schema and table from "table", "schema.table" or a pair, which is for names that hold a dot."""
    parts = (
        tuple(table)
        if isinstance(table, list | tuple)
        else tuple(table.split(".", 1))
        if isinstance(table, str)
        else ()
    )
    if len(parts) not in (1, 2):
        raise ConfigurationError(
            f"table cannot be {table!r}: it is the name of a table, 'schema.table', or a pair (schema, table)."
        )
    for part in parts:
        identifier(part)
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])
