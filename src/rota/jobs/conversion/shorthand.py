"""Calls whose arguments are numbers, flags and short texts, as those of most jobs are: turned to JSON text without a detour.

It writes the very text that the long way writes, and leaves to that whatever it does not know to fit: also to say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from json.encoder import encode_basestring
from typing import Any

from rota.jobs.conversion.plain import ANYTHING, BOOLEAN, INTEGER, STRING, Converter, dumps

__all__ = ["Shorthand"]

Write = Callable[[Any], str | None]
LARGE = 2**63
LONG = 1_000  # characters: to look at each of more of them takes longer than the long way


def _int(value: int) -> str | None:
    return str(value) if -LARGE < value < LARGE else None


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _str(value: str) -> str | None:
    # neither NUL nor a lone surrogate is printable
    return encode_basestring(value) if len(value) <= LONG and value.isprintable() else None


# by the very class of a value: one derived from it may be written otherwise
_WRITERS: dict[Converter, dict[type, Write]] = {
    INTEGER: {int: _int},
    BOOLEAN: {bool: _bool},
    STRING: {str: _str},
    ANYTHING: {int: _int, bool: _bool, str: _str},
}


class Shorthand:
    """For the calls of one signature. `limit` is what one may take, in bytes."""

    def __init__(self, parameters: Sequence[Parameter], converters: Mapping[str, Converter], limit: int) -> None:
        self._limit = limit // 4  # bytes, if no character takes more of them
        self._required = sum(each.default is Parameter.empty for each in parameters)
        #: the name as it stands before the value, how to write it, and whether it must be there
        self._by_place: list[tuple[str, dict[type, Write], bool]] = []
        self._by_name: dict[str, tuple[int, str, dict[type, Write], bool]] = {}
        for place, each in enumerate(parameters):
            if each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                self._limit = -1  # its values are many: nothing is short enough
                break
            lead = f"{dumps(each.name)}:"
            writers, required = _WRITERS.get(converters[each.name], {}), each.default is Parameter.empty
            if each.kind is not Parameter.KEYWORD_ONLY:
                self._by_place.append((lead, writers, required))
            if each.kind is not Parameter.POSITIONAL_ONLY:
                self._by_name[each.name] = (place, lead, writers, required)

    def written(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The call as the JSON text of one object, if it is whole and short."""
        text, missing = "", self._required
        given = len(args)
        if given > len(self._by_place):
            return None
        for (lead, writers, required), value in zip(self._by_place, args, strict=False):
            write = writers.get(type(value))
            said = None if write is None else write(value)
            if said is None:
                return None
            text += f",{lead}{said}" if text else lead + said
            missing -= required
        for name, value in kwargs.items():
            place, lead, writers, required = self._by_name.get(name, _UNKNOWN)
            write = writers.get(type(value)) if place >= given else None
            said = None if write is None else write(value)
            if said is None:
                return None
            text += f",{lead}{said}" if text else lead + said
            missing -= required
        return f"{{{text}}}" if not missing and len(text) < self._limit else None


_UNKNOWN: tuple[int, str, dict[type, Write], bool] = (-1, "", {}, False)
