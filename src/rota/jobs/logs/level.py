"""From which level on log records are kept with their job, as users say it: by app, by environment, by task."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from rota.errors import ConfigurationError

__all__ = ["OFF", "Level", "level_name", "read_app_level", "read_level"]

#: As users say it: "debug", "info", "warning", "error", "critical", a number, or "off", which is also False.
Level = str | int

#: Beyond every level there is.
OFF = sys.maxsize

# Warnings and worse, as Python's own logging: they are rare, so they cost next to nothing, and they tell no more about people than
# the errors that are stored anyway. What is below may be a line for each job, and whatever libraries tell of addresses they call.
_DEFAULT = logging.WARNING

_NAMES = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": OFF,
}


def read_app_level(said: Level | None, variables: Mapping[str, str] | None = None) -> int:
    """The level of an app: what its author says, else ROTA_JOB_LOGS, else warnings."""
    env = os.environ if variables is None else variables
    if said is not None:
        return read_level(said, "job_logs")
    named = env.get("ROTA_JOB_LOGS")
    return read_level(int(named) if named.isdecimal() else named, "ROTA_JOB_LOGS") if named else _DEFAULT


def read_level(said: Level, what: str) -> int:
    """The number of a level. Raises ConfigurationError for what is none."""
    if said is False:
        return OFF
    if isinstance(said, str) and said.lower() in _NAMES:
        return _NAMES[said.lower()]
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return said
    raise ConfigurationError(
        f"{what} cannot be {said!r}: it is the level from which on log records are kept with their job, {', '.join(_NAMES)} or a "
        "number."
    )


def level_name(level: int) -> str:
    """A level as people read it."""
    return logging.getLevelName(level).lower()
