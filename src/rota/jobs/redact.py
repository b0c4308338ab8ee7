"""Keeping redacted arguments from people: masked where arguments are shown. Where errors quote them, see `rota.blot`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from rota.blot import MASK
from rota.jobs.codec import readable
from rota.jobs.job import Owner

__all__ = ["masked", "shown_args", "texts_in"]


def masked(args: Any, redact: Collection[str] | None) -> Any:
    """Arguments as people may see them."""
    if not redact or not isinstance(args, dict):
        return args
    return {name: MASK if name in redact else value for name, value in args.items()}


def shown_args(app: Owner | None, task: str, stored: Any, redact: Sequence[str] | None) -> Any:
    """Stored arguments as people may see them: without what was redacted when they were enqueued, or is by now.

    A row that was enqueued by plain SQL says nothing about it; the task does, where the app has it.
    """
    if app is None:
        return masked(stored, redact)
    return masked(readable(app.codec, stored), {*(redact or ()), *app.redacted(task)})


def texts_in(value: Any) -> Iterator[str]:
    """The texts of a value and of all that it holds; names of fields and keys of dicts are not among them."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        yield str.__str__(value)
    elif isinstance(value, bytes):
        yield repr(value)[2:-1]
        yield value.decode(errors="replace")
    elif isinstance(value, Enum):
        yield from texts_in(value.value)
    elif (held := _held_by(value)) is not None:
        for each in held:
            yield from texts_in(each)
    else:
        yield str(value)


def _held_by(value: Any) -> Iterable[Any] | None:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if fields := getattr(value, "__struct_fields__", ()):
        return [getattr(value, name) for name in fields]
    return vars(value).values() if getattr(value, "__dict__", None) else None
