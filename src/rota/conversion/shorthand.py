"""Numbers, flags and short texts, as the arguments of most jobs and the data of most events are: JSON text without a detour.

It writes the very text that the long way writes, and leaves to that whatever it does not know to fit: also to say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from json.encoder import encode_basestring
from typing import Any

from rota.conversion.plain import ANYTHING, BOOLEAN, INTEGER, STRING, Converter, dumps

__all__ = ["flat_json", "shorthand"]

LARGE = 2**63
LONG = 1_000  # characters of a text: what takes more is for the long way, which counts its bytes
LARGEST = 10 * LONG  # bytes of one parameter, its name included


_FLAT = frozenset({bool, str, type(None)})


def flat_json(value: Any) -> str | None:
    """The JSON text of a short dict of such values by their names, else None."""
    if type(value) is not dict or len(value) > LONG:
        return None
    for key, entry in value.items():
        kind = type(entry)
        if type(key) is not str or (
            kind not in _FLAT and ((kind is not int and kind is not float) or not -1e16 < entry < 1e16)
        ):
            return None
    text = dumps(value)
    # no lone surrogate is printable, and a NUL character was escaped
    return text if len(text) <= LONG and text.isprintable() and "\\u0000" not in text else None


class _Long(Exception):
    """To be written the long way."""


def _int(value: int) -> str:
    if -LARGE < value < LARGE:
        return str(value)
    raise _Long


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _str(value: str) -> str:
    if len(value) <= LONG and value.isprintable():  # neither NUL nor a lone surrogate is
        return encode_basestring(value)
    raise _Long


# by the very class of a value: one derived from it may be written otherwise
Writers = dict[type, Callable[[Any], str]]
_WRITERS: dict[Converter, Writers] = {
    INTEGER: {int: _int},
    BOOLEAN: {bool: _bool},
    STRING: {str: _str},
    ANYTHING: {int: _int, bool: _bool, str: _str},
}


def shorthand(
    parameters: Sequence[Parameter], converters: Mapping[str, Converter], limit: int
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], str | None]:
    """A function of the arguments of a call: the JSON text of one object, if the call is whole and short, else None.

    `limit` is what a payload may take, in bytes.
    """
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    if not parameters or len(parameters) * LARGEST > limit or any(each.kind in variadic for each in parameters):
        return lambda args, kwargs: None
    required = {each.name for each in parameters if each.default is Parameter.empty}
    entries = {each.name: (f"{dumps(each.name)}:", _WRITERS.get(converters[each.name], {})) for each in parameters}
    by_name = {each.name: entries[each.name] for each in parameters if each.kind is not Parameter.POSITIONAL_ONLY}
    names = [each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY]
    places = [entries[name] for name in names]
    whole = len(places) if required <= set(names) else -1  # so many by position are all that is needed

    def written(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        given = len(args)
        if (kwargs or given != whole) and not _fits(given, kwargs):
            return None
        try:
            text = ""
            if given:  # most calls have one, and a loop takes longer than that
                lead, writers = places[0]
                text = f"{lead}{writers[type(args[0])](args[0])}"
            if given > 1:
                for (lead, writers), value in zip(places[1:], args[1:], strict=False):
                    text += f",{lead}{writers[type(value)](value)}"
            if kwargs:
                for name, value in kwargs.items():
                    lead, writers = by_name[name]
                    text += f"{',' if text else ''}{lead}{writers[type(value)](value)}"
        except (KeyError, _Long):
            return None
        return f"{{{text}}}"

    def _fits(given: int, kwargs: Mapping[str, Any]) -> bool:
        by_place = names[:given]
        return given <= len(names) and kwargs.keys().isdisjoint(by_place) and required <= {*by_place, *kwargs}

    return written
