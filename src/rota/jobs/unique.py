"""Unique jobs: what makes two jobs the same, while which of them exists, and what happens to the second."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Literal, get_args

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.arguments import LIMIT, Signature
from rota.jobs.conversion.build import Builder
from rota.jobs.conversion.plain import Room, brief, shown
from rota.jobs.job import NewUnique

__all__ = ["Unique", "read_unique"]

Conflict = Literal["return", "raise", "replace"]
_STATES = ("queued", "blocked", "running", "succeeded", "dead", "cancelled")


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one job of a task with the same key.

    The key is all arguments (`by=None`), what a function of some of them returns (`by=lambda order_id: order_id`), the
    argument of this name (`by="order_id"`), or, if no parameter is called so, this very text. A new job conflicts with one
    that is in one of `states` and was enqueued `within` this time, if that is given; otherwise for ever, also when the
    history has dropped that one. A dead job counts until its letter is resolved. On a conflict the one there is is returned,
    or JobExists is raised, or the one there is takes the arguments, due time and options of the new one if it still waits.
    """

    by: Callable[..., object] | str | None = None
    within: Duration | None = None
    states: tuple[str, ...] | list[str] = ("queued", "running")
    conflict: Conflict = "return"

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.states, list):
            object.__setattr__(self, "states", tuple(self.states))
        if self.by is not None and not callable(self.by) and not (isinstance(self.by, str) and self.by):
            problems.append(f"by is {self.by!r}; it is text, a function of arguments, or None for all arguments")
        if self.within is not None and seconds(self.within, "Unique(within=...)") <= 0:
            problems.append(f"within is {self.within!r}; it is a duration longer than nothing")
        if not isinstance(self.states, tuple) or not self.states or not set(self.states) <= set(_STATES):
            problems.append(f"states is {self.states!r}; it is a tuple of some of {', '.join(_STATES)}")
        if self.conflict not in get_args(Conflict):
            problems.append(f"conflict is {self.conflict!r}; it is one of {', '.join(get_args(Conflict))}")
        if problems:
            raise ConfigurationError(f"This Unique cannot work: {'; '.join(problems)}.")

    def check(self, signature: Signature) -> None:
        """Refuse a function of what the task does not have, where it is declared rather than at the first enqueue."""
        if callable(self.by):
            asked = set(_asked(self.by) or ())
            if not asked <= set(signature.names):
                raise ConfigurationError(
                    f"Unique(by=...) asks for {', '.join(sorted(asked - set(signature.names)))}, and the task has only "
                    f"{', '.join(signature.names) or 'no parameters'}. Name the function's parameters after the task's."
                )

    def of(self, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewUnique:
        """What a call with these arguments, which fit, says about others. Raises InvalidArguments."""
        return self.under(self._key(task, signature, args, kwargs))

    def under(self, key: str) -> NewUnique:
        """What a job with this key says about others."""
        states = dict.fromkeys([*self.states, *(["blocked"] if "queued" in self.states else [])])
        within = None if self.within is None else seconds(self.within)
        return NewUnique(key, tuple(states), within, self.conflict)

    def _key(self, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if self.by is None:
            return json.dumps(json.loads(signature.encode_whole(args, kwargs)), sort_keys=True)
        if isinstance(self.by, str) and self.by not in signature.names:
            return self.by
        refused = f"Task {task!r} was not enqueued:"
        values = signature.values(args, kwargs)
        if isinstance(self.by, str):
            asked, key = self.by, values[self.by]
        else:
            names = _asked(self.by)
            given = values if names is None else {name: values[name] for name in names}
            asked = f"a function of {', '.join(given) or 'nothing'}"
            try:
                key = self.by(**given)
            except Exception as error:
                raise InvalidArguments(
                    f"{refused} its unique key, {asked}, failed with {brief(error)}. Let Unique(by=...) return a key for every "
                    "call that fits, or enqueue without unique."
                ) from error
        if key is None:
            raise InvalidArguments(
                f"{refused} its unique key, {asked}, is None, which would make it the same as every other such call. Return a "
                "key, or enqueue without unique."
            )
        try:
            return _text(key)
        except Exception as error:
            raise InvalidArguments(
                f"{refused} its unique key, {asked}, is {shown(key)}, and nothing says how to write that so that equal keys are "
                "the same text everywhere. Use text, numbers, or lists of these."
            ) from error


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
    """The names of the arguments that a function wants; None for all of them."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def read_unique(unique: Unique | str | bool | None) -> Unique | None:
    """`unique=` as people write it: a Unique, its key, or True for all arguments."""
    if unique is None or unique is False:
        return None
    if unique is True:
        return Unique()
    if isinstance(unique, str):
        return Unique(by=unique)
    if not isinstance(unique, Unique):
        raise ConfigurationError(f"unique cannot be {unique!r}: it is a rota.Unique, a key as text, True or None.")
    return unique
