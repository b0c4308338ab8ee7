"""Keeping redacted arguments from people: masked where arguments are shown, blotted out where errors quote them.

A body, or a library it calls, puts into an error whatever it likes: the value as it is, its repr, a part of it, or its first
and last characters with dots between. So what is looked for is each text within the value, in the forms in which text is
commonly quoted, and pieces of them beside an ellipsis.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from rota.jobs.codec import readable
from rota.jobs.job import Owner

__all__ = ["MASK", "blotted", "forms", "masked", "shown_args", "texts_in"]

MASK = "•••"

# Shorter texts show up by chance: blotting them out would only make an error unreadable.
_SHORTEST = 4

_ELLIPSES = ("...", "…")


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


def forms(texts: Iterable[str]) -> list[str]:
    """The forms in which these texts may be quoted, the longest first, as a shorter one may be a part of it."""
    found: set[str] = set()
    for text in texts:
        # a margin, as in the trace of an exception group, comes between the lines
        for part in {text, *text.splitlines()}:
            found |= {part, repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
    return sorted((each for each in found if len(each.strip()) >= _SHORTEST), key=len, reverse=True)


def blotted(text: str, secrets: Sequence[str]) -> str:
    """The text without these, nor what is left of one that was shortened."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    for secret in secrets:
        for dots in _ELLIPSES:
            text = _without_pieces(text, secret, dots)
    return text


def _without_pieces(text: str, secret: str, dots: str) -> str:
    """The text without beginnings of the secret before the dots, and ends of it after them."""
    head, *rest = text.split(dots)
    parts = [head]
    for part in rest:
        parts[-1] = _without_beginning(parts[-1], secret)
        parts.append(_without_end(part, secret))
    return dots.join(parts)


def _without_beginning(text: str, secret: str) -> str:
    seed, at = secret[:_SHORTEST], -1
    while (at := text.find(seed, at + 1)) >= 0:
        if secret.startswith(text[at:]):
            return text[:at] + MASK
    return text


def _without_end(text: str, secret: str) -> str:
    seed, end = secret[-_SHORTEST:], len(text)
    while (at := text.rfind(seed, 0, end)) >= 0:
        end = at + _SHORTEST
        if secret.endswith(text[:end]):
            return MASK + text[end:]
        end -= 1
    return text
