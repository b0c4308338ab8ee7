"""Unique jobs: what makes two jobs the same, while which of them exists, and what happens to the second.

A Unique says all of it. A Debounce and a Throttle are the two ways to collapse the calls that come within a period.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError
from rota.jobs.arguments import Signature
from rota.jobs.by import Key, check_by, key_by
from rota.jobs.job import NewUnique

__all__ = ["AnyUnique", "Debounce", "Throttle", "Unique", "read_unique"]

Conflict = Literal["return", "raise", "replace"]
Keep = Literal["first", "last"]
_STATES = ("queued", "blocked", "running", "succeeded", "dead", "cancelled")
_WAITING = ("queued", "blocked")
LONGEST_PERIOD = 100 * 365 * 86400.0  # as for delays: the calendar goes on a while after it


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one job of a task with the same key.

    The key is all arguments (`by=None`), what a function of some of them returns (`by=lambda order_id: order_id`), the
    argument of this name (`by="order_id"`), or, if no parameter is called so, this very text. A new job conflicts with one
    that is in one of `states` and was enqueued `within` this time, if that is given; otherwise for ever, also when the
    history has dropped that one. A dead job counts until its letter is resolved. On a conflict the one there is is returned,
    or JobExists is raised, or the one there is takes the arguments, due time and options of the new one if it still waits.
    """

    by: Key | None = None
    within: Duration | None = None
    states: tuple[str, ...] | list[str] = ("queued", "running")
    conflict: Conflict = "return"

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.states, list):
            object.__setattr__(self, "states", tuple(self.states))
        problems += _wrong_by(self.by)
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
        check_by(self.by, type(self).__name__, signature)

    def of(self, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewUnique:
        """What a call with these arguments, which fit, says about others. Raises InvalidArguments."""
        return self.under(_key(self, task, signature, args, kwargs))

    def under(self, key: str) -> NewUnique:
        """What a job with this key says about others."""
        states = dict.fromkeys([*self.states, *(["blocked"] if "queued" in self.states else [])])
        within = None if self.within is None else seconds(self.within)
        return NewUnique(key, tuple(states), within, self.conflict)


@dataclass(frozen=True, slots=True)
class Debounce:
    """One job for all calls with the same key that come within `period` of each other; it is due `period` after the last.

    Each call puts it off until it has begun, but no further than `longest` after the first, if that is given. It runs with the
    arguments and options of the last call, or with those of the first. A call that comes while it runs begins a new one; one
    that comes while it waits for another attempt takes its place. `by` is as in Unique, but a task with parameters must say it,
    or keep the first: all arguments are the same in all calls that have them as their key.
    """

    period: Duration
    by: Key | None = None
    keep: Keep = "last"
    longest: Duration | None = None

    def __post_init__(self) -> None:
        problems = _wrong_period(self)
        if self.longest is not None and not (
            seconds(self.period) <= seconds(self.longest, "Debounce(longest=...)") <= LONGEST_PERIOD
        ):
            problems.append(
                f"longest is {self.longest!r}; it is no shorter than the period, no longer than a hundred years, or None for no limit"
            )
        if problems:
            raise ConfigurationError(f"This Debounce cannot work: {'; '.join(problems)}.")

    def check(self, signature: Signature) -> None:
        """Refuse what cannot work for this task, where it is declared rather than at the first enqueue."""
        check_by(self.by, type(self).__name__, signature)
        _check_kept(self, signature)

    def of(self, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewUnique:
        """What a call with these arguments, which fit, says about others. Raises InvalidArguments."""
        longest = None if self.longest is None else seconds(self.longest)
        key = _key(self, task, signature, args, kwargs)
        return NewUnique(key, _WAITING, None, "replace", self.keep, longest=longest)


@dataclass(frozen=True, slots=True)
class Throttle:
    """At most one job with the same key begins per `period`.

    The first call is due at once. Calls that come before it has begun are one with it. Those that come later within the period
    return that job, whatever became of it, if the first is kept; if the last is kept, one more job is due when the period ends,
    for all of them. What is kept are arguments and options. `by` is as in Debounce.
    """

    period: Duration
    by: Key | None = None
    keep: Keep = "first"

    def __post_init__(self) -> None:
        if problems := _wrong_period(self):
            raise ConfigurationError(f"This Throttle cannot work: {'; '.join(problems)}.")

    def check(self, signature: Signature) -> None:
        """Refuse what cannot work for this task, where it is declared rather than at the first enqueue."""
        check_by(self.by, type(self).__name__, signature)
        _check_kept(self, signature)

    def of(self, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewUnique:
        """What a call with these arguments, which fit, says about others. Raises InvalidArguments."""
        conflict = "replace" if self.keep == "last" else "return"
        key = _key(self, task, signature, args, kwargs)
        return NewUnique(key, _WAITING, None, conflict, self.keep, hold=seconds(self.period))


AnyUnique = Unique | Debounce | Throttle


def _wrong_period(collapse: Debounce | Throttle) -> list[str]:
    problems = []
    if not 0 < seconds(collapse.period, f"{type(collapse).__name__}(period=...)") <= LONGEST_PERIOD:
        problems.append(
            f"period is {collapse.period!r}; it is a duration longer than nothing, and no longer than a hundred years"
        )
    if collapse.keep not in get_args(Keep):
        problems.append(f"keep is {collapse.keep!r}; it is one of {', '.join(get_args(Keep))}")
    return problems + _wrong_by(collapse.by)


def _check_kept(collapse: Debounce | Throttle, signature: Signature) -> None:
    """Refuse to keep the last of what is the same in all calls: whoever writes that means calls of something narrower."""
    if collapse.by is None and collapse.keep == "last" and signature.names:
        kind = type(collapse).__name__
        raise ConfigurationError(
            f"{kind}(by=None) cannot keep the last: calls are one only if all their arguments are the same. Say what makes calls one "
            f"with by=..., such as by={signature.names[0]!r}; for all calls of the task by='all'; or use keep='first'."
        )


def _wrong_by(by: object) -> list[str]:
    if by is None or callable(by) or (isinstance(by, str) and by):
        return []
    return [f"by is {by!r}; it is text, a function of arguments, or None for all arguments"]


def _key(unique: AnyUnique, task: str, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    by = unique.by
    if by is None:
        return json.dumps(json.loads(signature.encode_whole(args, kwargs)), sort_keys=True)
    if isinstance(by, str) and by not in signature.names:
        return by
    return key_by(by, type(unique).__name__, "unique", task, signature, args, kwargs)


def read_unique(unique: AnyUnique | str | bool | None) -> AnyUnique | None:
    """`unique=` as people write it: a Unique, Debounce or Throttle, a key, or True for all arguments."""
    if unique is None or unique is False:
        return None
    if unique is True:
        return Unique()
    if isinstance(unique, str):
        return Unique(by=unique)
    if not isinstance(unique, AnyUnique):
        raise ConfigurationError(
            f"unique cannot be {unique!r}: it is one rota.Unique, rota.Debounce or rota.Throttle, a key as text, True or None."
        )
    return unique
