"""Arguments that someone gives beside a task's own signature: plain JSON, as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.conversion.plain import ANYTHING, Mismatch, Room, TooLarge
from rota.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from rota.jobs.arguments import LIMIT, path

__all__ = ["check_mapping", "plain_arguments"]


def check_mapping(args: Any, what: str = "args") -> Mapping[str, Any]:
    """A mapping from the names of arguments to their values; None is an empty one."""
    if args is None:
        return {}
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise ConfigurationError(
            f"{what} cannot be {args!r}: it is a mapping from the names of arguments to their values."
        )
    return args


def plain_arguments(args: Any, refused: str, *, what: str = "args", secret: bool = False) -> dict[str, Any]:
    """Arguments as plain JSON. Raises InvalidArguments for what is none, PayloadTooLarge."""
    try:
        plain: dict[str, Any] = ANYTHING.encode(dict(check_mapping(args, what)), Room(LIMIT))
    except Mismatch as mismatch:
        problem = f"one of {what} is no plain JSON" if secret else f"{path(what, mismatch)} {mismatch.problem}"
        raise InvalidArguments(f"{refused}: {problem}. Give values as they are stored: plain JSON.") from None
    except TooLarge:
        raise PayloadTooLarge(f"{refused}: {what} would be larger than {LIMIT:,} bytes.") from None
    return plain
