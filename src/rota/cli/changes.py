"""What commands that change something by hand have in common: who it was, a try without effect, several at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeVar

import click

from rota.cli.output import say
from rota.errors import BatchNotFound, BulkNotFound, InvalidArguments, JobNotFound, NotPossible, ScheduleNotFound
from rota.jobs.checks import LATEST_YEAR

__all__ = ["change_options", "for_each", "json_object", "moment"]

F = TypeVar("F", bound=Callable[..., Any])
Named = TypeVar("Named", int, str)


def change_options(command: F) -> F:
    """`--by` and `--dry-run`."""
    for option in (
        click.option("--by", metavar="NAME", help="Who is on record for it. [default: user@host:pid]"),
        click.option("--dry-run", is_flag=True, help="Change nothing; say what would be, or why it is refused."),
    ):
        command = option(command)
    return command


def for_each(ids: Iterable[Named], change: Callable[[Named], None]) -> None:
    """Do it to one after the other. What cannot be done is told, and once all were tried the command ends with 1."""
    failed = False
    for each in ids:
        try:
            change(each)
        except (BatchNotFound, BulkNotFound, InvalidArguments, JobNotFound, NotPossible, ScheduleNotFound) as error:
            say(f"rota: {error}")
            failed = True
    if failed:
        sys.exit(1)


def json_object(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, Any] | None:
    """Arguments by name, written as a JSON object."""
    if value is None:
        return None
    try:
        read = json.loads(value, parse_constant=_refuse)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no JSON ({error}). {_ADVICE}") from error
    if not isinstance(read, dict):
        raise click.BadParameter(f"{value!r} is no JSON object. {_ADVICE}")
    return read


_ADVICE = "Write the arguments by name, such as '{\"user_id\": 7}'."


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")


def moment(text: str | None, zone: tzinfo | None = None) -> datetime | None:
    """A point in time; one that names no zone is in this one, or in the machine's, as that is how times are shown."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
        if not 1 < read.year < LATEST_YEAR:
            raise ValueError(f"the years are 2 to {LATEST_YEAR - 1}")
        at = read.replace(tzinfo=zone) if zone is not None and read.tzinfo is None else read.astimezone()
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is no time ({error}). Write it as 2030-01-31T09:00:00Z.") from error
    shown = at.astimezone(UTC).astimezone(zone)
    if read.tzinfo is None and shown.replace(tzinfo=None) != read:
        say(f"{text} does not exist, as clocks go forward over it: it is taken for {shown:%Y-%m-%d %H:%M:%S %Z}")
    return at
