"""Names that people give: what PostgreSQL and NOTIFY can carry."""

from __future__ import annotations

import re
from typing import Any

from rota.errors import ConfigurationError

__all__ = ["check_name"]

# what a terminal would obey, and what UTF-8 cannot hold
_FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")


def check_name(what: str, name: Any, longest: int) -> str:
    """A name of a queue, a task, a tag, a leader, a person; raises ConfigurationError."""
    if not isinstance(name, str) or not 1 <= len(name) <= longest or _FORBIDDEN.search(name):
        raise ConfigurationError(
            f"{what} cannot be {name!r}: it is text of 1 to {longest} characters without control characters or lone surrogates."
        )
    return name
