"""From an annotation to a converter: how its values become JSON, and JSON becomes them again.

A converter is built once, when a task is declared, from closures over the converters of its parts. What a value comes
back as is what its annotation says, and it is equal to what went in:

    None, bool, int, float, str     as they are; an int is taken for a float it is equal to, nothing else is coerced
    bytes                           base64
    datetime                        ISO 8601 with its offset; a naive one is refused, for it names no instant
    date, time                      ISO 8601
    timedelta                       ISO 8601 duration in days and seconds, as "P1DT2.000003S", exact
    UUID, Decimal, Path             text
    Enum, Literal                   the value; a Flag as its number
    list, tuple, set, frozenset     array; sets in a fixed order, so that equal sets are equal JSON
    dict                            object; keys that are no text are written as JSON text, 7 as "7"
    Sequence, Mapping, Set          as list, dict and set, which is also what comes back
    dataclass, NamedTuple           object of its fields; one with a default may be missing, an unknown one is refused
    TypedDict                       likewise
    Pydantic model, msgspec struct  as the library writes and reads it; one that it would not read again is refused
    Any, object, none at all        plain JSON as it is

Unions. A value goes to the member whose class is exactly its own, else to the first that accepts it, in the order
written. JSON does not say which that was, so on the way back the members are tried from the most to the least
particular: text that is a UUID before text, an int before a float. A value that would come back as another member's is
refused when it is enqueued.

Floats. Where nothing says that a number is a float (Any, `int | float`), one from 1e16 on comes back as the equal int:
jsonb has no exponents to tell it by.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import inspect
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NewType, TypeVar
from uuid import UUID

from rota.conversion.choices import choice, flag, scalar, union
from rota.conversion.containers import array, fixed_tuple, mapping
from rota.conversion.plain import (
    ANY_KIND,
    ANYTHING,
    BOOLEAN,
    FLOAT,
    INTEGER,
    NONE,
    OBJECT,
    STRING,
    Converter,
    Unconvertible,
)
from rota.conversion.records import fields_of, fill_record, is_record, msgspec_struct, pydantic_model
from rota.conversion.simple import BYTES, DATE, DATETIME, DECIMAL, IDENTIFIER, TIME, TIMEDELTA, path_converter

SUPPORTED = (
    "None, bool, int, float, str, bytes, datetime, date, time, timedelta, UUID, Decimal, Path, Enum, Literal, list, "
    "tuple, set, frozenset, dict, Sequence, Mapping, unions, dataclasses, NamedTuple, TypedDict, "
    "Pydantic models, msgspec structs"
)


SIMPLE: dict[Any, Converter] = {
    None: NONE,
    type(None): NONE,
    bool: BOOLEAN,
    int: INTEGER,
    float: FLOAT,
    str: STRING,
    bytes: BYTES,
    datetime: DATETIME,
    date: DATE,
    time: TIME,
    timedelta: TIMEDELTA,
    UUID: IDENTIFIER,
    Decimal: DECIMAL,
    Any: ANYTHING,
    object: ANYTHING,
    inspect.Parameter.empty: ANYTHING,
}

ARRAYS: dict[Any, tuple[type, Callable[[list[Any]], Any]]] = {  # what is accepted, what comes back
    list: (list, list),
    set: (set, set),
    frozenset: (frozenset, frozenset),
    abc.Sequence: (abc.Sequence, list),
    abc.MutableSequence: (abc.MutableSequence, list),
    abc.Set: (abc.Set, set),
    abc.MutableSet: (abc.MutableSet, set),
}

MAPPINGS: frozenset[Any] = frozenset({dict, abc.Mapping, abc.MutableMapping})

WRAPPERS = [typing.Annotated, typing.Required, typing.NotRequired, typing.Final]
if hasattr(typing, "ReadOnly"):  # from Python 3.13 on
    WRAPPERS.append(typing.ReadOnly)

Given = Mapping[Any, Converter]


class Builder:
    """Builds the converters of one signature; a type that contains itself gets the one that is being built."""

    def __init__(self) -> None:
        self._known: dict[Any, Converter] = {}

    def build(self, annotation: Any, given: Given = types.MappingProxyType({})) -> Converter:
        """The converter of an annotation whose names are resolved; `given` holds those of its type variables.

        Raises Unconvertible.
        """
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        cls = annotation if origin is None else origin
        if origin in WRAPPERS:
            return self.build(args[0], given)
        if origin is typing.Union or origin is types.UnionType:
            return union([self.build(arg, given) for arg in args])
        if origin is typing.Literal:
            members = [(each, scalar(self.build(type(each)), each)) for each in args]
            return choice(f"one of {', '.join(map(repr, args))}", members)
        if isinstance(annotation, TypeVar):
            return self._type_variable(annotation, given)
        if isinstance(annotation, NewType):
            return self.build(annotation.__supertype__, given)
        if not isinstance(cls, abc.Hashable):
            raise UNSUPPORTED
        if cls in SIMPLE:
            return SIMPLE[cls]
        if cls is tuple:
            return self._tuple(annotation, args, given)
        if cls in ARRAYS:
            return array(cls, *ARRAYS[cls], self.build(args[0], given) if args else ANYTHING)
        if cls in MAPPINGS:
            return mapping(cls, *(self.build(arg, given) for arg in args or (str, Any)))
        if isinstance(cls, type):
            return self._class(cls, annotation, args, given)
        if hasattr(cls, "__value__"):  # `type Name = ...`
            return self._alias(cls, args, given)
        raise UNSUPPORTED

    def _type_variable(self, variable: TypeVar, given: Given) -> Converter:
        if variable in given:
            return given[variable]
        if variable.__constraints__:
            return union([self.build(each, given) for each in variable.__constraints__])
        return self.build(Any if variable.__bound__ is None else variable.__bound__, given)

    def _tuple(self, annotation: Any, args: tuple[Any, ...], given: Given) -> Converter:
        if annotation is tuple or annotation is typing.Tuple:  # noqa: UP006
            return array(tuple, tuple, tuple, ANYTHING)
        if len(args) == 2 and args[1] is Ellipsis:
            return array(tuple, tuple, tuple, self.build(args[0], given))
        return fixed_tuple([self.build(arg, given) for arg in args])

    def _class(self, cls: type, annotation: Any, args: tuple[Any, ...], given: Given) -> Converter:
        # a class of one of these libraries is only ever met after its library was imported
        pydantic, msgspec = sys.modules.get("pydantic"), sys.modules.get("msgspec")
        if issubclass(cls, enum.Flag):
            return flag(cls)
        if issubclass(cls, enum.Enum):
            members = [(each, scalar(self.build(type(each.value)), each.value)) for each in cls]
            return choice(cls.__name__, members, cls)
        if issubclass(cls, pathlib.PurePath):
            return path_converter(cls)
        if pydantic is not None and issubclass(cls, pydantic.BaseModel):
            return pydantic_model(cls)
        if msgspec is not None and issubclass(cls, msgspec.Struct):
            return msgspec_struct(cls, annotation, msgspec)
        if is_record(cls):
            return self._record(cls, args, given)
        raise UNSUPPORTED

    def _record(self, cls: type, args: tuple[Any, ...], given: Given) -> Converter:
        arguments = [self.build(arg, given) for arg in args]
        key = (cls, *arguments)
        if key not in self._known:
            unfilled = self._known[key] = Converter(cls.__name__, unready, unready, frozenset({OBJECT}), cls)
            variables = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
            hints, required = fields_of(cls)
            fields: dict[str, Converter] = {}
            for name, hint in hints.items():
                try:
                    fields[name] = self.build(hint, variables)
                except Unconvertible as error:
                    raise Unconvertible(f"and its field {cls.__name__}.{name} is {worded(hint)}, {error}") from error
            fill_record(unfilled, cls, fields, required)
        return self._known[key]

    def _alias(self, alias: Any, args: tuple[Any, ...], given: Given) -> Converter:
        arguments = [self.build(arg, given) for arg in args]
        key = (alias, *arguments)
        if key not in self._known:
            unfilled = self._known[key] = Converter(str(alias), unready, unready, ANY_KIND)
            built = self.build(alias.__value__, dict(zip(alias.__type_params__, arguments, strict=False)))
            for field in dataclasses.fields(Converter):
                setattr(unfilled, field.name, getattr(built, field.name))
        return self._known[key]


UNSUPPORTED = Unconvertible(f"which is none of the supported types: {SUPPORTED}")


def unready(*_: Any) -> Any:
    raise AssertionError("a converter was used before it was built")


def worded(annotation: Any) -> str:
    """The annotation as its author wrote it, or nearly."""
    return (
        annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
    )
