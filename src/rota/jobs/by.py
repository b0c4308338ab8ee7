"""What two jobs of a task have in common: a key, made of the arguments of a call as `by=...` says."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Set
from datetime import date, time
from typing import Any

from rota.conversion.build import Builder
from rota.conversion.plain import Room, brief, shown
from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.arguments import LIMIT, Signature
from rota.postgres.names import check_name

__all__ = ["Key", "check_by", "check_key", "key_by"]

Key = Callable[..., object] | str


def check_by(by: Key | None, kind: str, signature: Signature) -> None:
    """Refuse a function of what the task does not have, where it is declared rather than at the first enqueue."""
    if callable(by):
        try:
            asked = set(_asked(by) or ())
        except (TypeError, ValueError) as error:
            name = signature.names[0] if signature.names else "argument"
            raise ConfigurationError(
                f"{kind}(by={by!r}) cannot be called with arguments by their names: {error}. Write by=lambda {name}: ..., with "
                "parameters named after the task's."
            ) from error
        if not asked <= set(signature.names):
            raise ConfigurationError(
                f"{kind}(by=...) asks for {', '.join(sorted(asked - set(signature.names)))}, and the task has only "
                f"{', '.join(signature.names) or 'no parameters'}. Name the function's parameters after the task's."
            )


def key_by(
    by: Key, kind: str, option: str, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The key of a call with these arguments, which fit: of a function of some of them, or the argument of this name.

    `kind` is the class and `option` the option that wants it. Raises InvalidArguments.
    """
    refused = f"Task {task!r} was not enqueued:"
    values = signature.values(args, kwargs)
    if isinstance(by, str):
        asked, key = by, values[by]
    else:
        names = _asked(by)
        given = values if names is None else {name: values[name] for name in names}
        asked = f"a function of {', '.join(given) or 'nothing'}"
        try:
            key = by(**given)
        except Exception as error:
            raise InvalidArguments(
                f"{refused} its {option} key, {asked}, failed with {brief(error)}. Let {kind}(by=...) return a key for "
                f"every call that fits, or enqueue without {option}."
            ) from error
    if key is None:
        raise InvalidArguments(
            f"{refused} its {option} key, {asked}, is None, which would make it the same as every other such call. Return a "
            f"key, or enqueue without {option}."
        )
    try:
        return _text(key)
    except Exception as error:
        raise InvalidArguments(
            f"{refused} its {option} key, {asked}, is {shown(key)}, and nothing says how to write that so that equal keys are "
            "the same text everywhere. Use text, numbers, or lists of these."
        ) from error


def check_key(key: object) -> str:
    """A key that was given by itself, as text. Raises ConfigurationError."""
    try:
        text = key if isinstance(key, str) else _text(key)
    except Exception as error:
        raise ConfigurationError(
            f"key cannot be {shown(key)}: nothing says how to write that so that equal keys are the same text everywhere. Use text "
            "or a number."
        ) from error
    return check_name("key", text, 500)


def _text(key: object) -> str:
    """A key as text that is the same in every process."""
    text = _written(key)
    # what is text as JSON is its own key, as someone would write it in SQL
    return str(json.loads(text)) if text.startswith('"') else text


def _written(key: object) -> str:
    return json.dumps(key, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    """What JSON has no form for, as it is stored as an argument. Raises Unconvertible or Mismatch."""
    if isinstance(value, date | time):  # datetimes too, which need no time zone to be told apart
        return value.isoformat()
    if isinstance(value, Set):
        return sorted(_written(each) for each in value)
    return Builder().build(type(value)).encode(value, Room(LIMIT))


def _asked(function: Callable[..., object]) -> list[str] | None:
    """The names of the arguments that a function wants; None for all of them. Raises ValueError where it takes none by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    if nameless := [str(each) for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL)]:
        raise ValueError(f"it takes {', '.join(nameless)} by position only")
    return [each.name for each in parameters]
