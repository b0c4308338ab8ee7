"""The arguments of a schedule's runs: as they are written, and as others give them for one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rota.conversion.plain import dumps, read_json
from rota.errors import InvalidArguments
from rota.jobs.codec import Codec, decoded, encoded
from rota.jobs.definition import Task
from rota.jobs.given import check_mapping, plain_arguments

__all__ = ["check_arguments", "laid_over", "written_arguments"]


def written_arguments(
    task: Task[..., Any] | None, args: Mapping[str, Any] | None, refused: str, *, whole: bool = True
) -> str:
    """The call as JSON text. Values are as the task takes them, or plain JSON as it stores them.

    Raises InvalidArguments where they do not fit the task, which takes all that is plain JSON if it is not known here. What
    is not `whole` may lack arguments that each run is given later.
    """
    given = check_mapping(args)
    if task is None:
        return dumps(plain_arguments(given, refused))
    try:
        return task.signature.encode((), given, whole=whole)
    except InvalidArguments as error:
        try:
            task.signature.read(plain := plain_arguments(given, refused), whole=whole)
        except InvalidArguments:
            # in the words for Python's values, which are what is commonly passed
            reason = str(error).removeprefix(f"Task {task.name!r} was not enqueued: ")
            raise type(error)(f"{refused}: {reason}") from error.__cause__
        return dumps(plain)


def laid_over(
    stored: str,
    version: int,
    args: Mapping[str, Any] | None,
    *,
    task: Task[..., Any] | None,
    codec: Codec | None,
    refused: str,
    said: Iterable[str] = (),
) -> str:
    """The arguments of a schedule with these over them, name by name, as they are stored for one run.

    Where one of `said` comes to the same it is that. Raises InvalidArguments where they do not fit a task that is known here.
    """
    secret = task is not None and bool(task.options.redact)
    # what was written for another version is for whoever runs it to judge
    known = task if task is not None and task.version == version else None
    given = read_json(written_arguments(known, args, refused, whole=False))
    merged = plain_arguments({**decoded(codec, stored), **given}, refused, secret=secret)
    if known is not None:
        known.signature.read(merged, refused)
    # a codec may make something else of the same each time: what is stored of the same call already is taken as it is
    for each in said:
        if _plain(codec, each) == merged:
            return each
    return encoded(codec, dumps(merged), refused, secret=secret)


def _plain(codec: Codec | None, stored: str) -> Any:
    try:
        return decoded(codec, stored)
    except InvalidArguments:  # by a key that is gone
        return None


def check_arguments(
    stored: str, version: int, *, task: Task[..., Any] | None, codec: Codec | None, secret: bool
) -> None:
    """Raise InvalidArguments where stored arguments do not fit a task that is known here in that version."""
    if task is None or task.version != version:
        return
    try:
        task.signature.read(decoded(codec, stored), f"Its arguments do not fit task {task.name!r}")
    except InvalidArguments:
        if not secret and not task.options.redact:
            raise
        # nor is the error it comes from shown: it would tell what they are
        raise InvalidArguments(f"Its arguments, which are redacted, do not fit task {task.name!r}.") from None
