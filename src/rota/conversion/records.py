"""Values with named fields: dataclasses, named tuples and typed dicts, and the models of validation libraries."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rota.conversion.plain import (
    ANY_KIND,
    Converter,
    Encode,
    Mismatch,
    Room,
    Unconvertible,
    brief,
    dumps,
    plain_encoder,
    shown,
)


def is_record(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or is_named_tuple(cls) or is_typed_dict(cls)


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_typed_dict(cls: type) -> bool:
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def fields_of(cls: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The fields that make an instance, with their annotations, and the names of those that must be there."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise Unconvertible(f"and an annotation in {cls.__name__} cannot be resolved: {error}") from error
    if is_typed_dict(cls):
        # under `from __future__ import annotations` the class itself does not see Required and NotRequired
        marks = {name: typing.get_origin(hint) for name, hint in hints.items()}
        stated = {name for name, mark in marks.items() if mark is typing.Required}
        waived = {name for name, mark in marks.items() if mark is typing.NotRequired}
        return hints, frozenset((cls.__required_keys__ | stated) - waived)
    if is_named_tuple(cls):
        return {name: hints.get(name, Any) for name in cls._fields}, frozenset(cls._fields) - cls._field_defaults.keys()
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise Unconvertible(f"and {cls.__name__} has an InitVar, which cannot be read back from an instance")
    fields = [field for field in dataclasses.fields(cls) if field.init]
    missing = dataclasses.MISSING
    required = (field.name for field in fields if field.default is missing and field.default_factory is missing)
    return {field.name: hints[field.name] for field in fields}, frozenset(required)


def fill_record(converter: Converter, cls: Any, fields: Mapping[str, Converter], required: frozenset[str]) -> None:
    """Give the converter its two functions, for a dataclass, NamedTuple or TypedDict of these fields."""
    expected = converter.expected

    def encode_instance(value: Any, room: Room) -> dict[str, Any]:
        if type(value) is not cls:
            raise Mismatch(expected, value, advice=subclass_advice(cls, value))
        room.enter(value, len(fields))
        encoded: dict[str, Any] = {}
        name = ""
        try:
            for name, field in fields.items():
                encoded[name] = field.encode(getattr(value, name), room)
        except Mismatch as mismatch:
            raise mismatch.at(f".{name}") from mismatch.__cause__
        room.leave()
        return encoded

    def encode_typed_dict(value: Any, room: Room) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch(f"{expected}, a dict", value)
        room.enter(value, len(value))
        encoded = convert(value, lambda field, entry: field.encode(entry, room))
        room.leave()
        return encoded

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"an object with the fields of {expected}", value)
        decoded = convert(value, lambda field, entry: field.decode(entry))
        try:
            return cls(**decoded)
        except Exception as error:  # whatever the class checks when it is made
            raise Mismatch(expected, problem=f"is no valid {expected}: {brief(error)}") from error

    def convert(value: dict[Any, Any], how: Callable[[Converter, Any], Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        name: Any = None
        try:
            for name, entry in value.items():
                if name not in fields:
                    raise Mismatch("", problem=f"is unknown: {expected} has {', '.join(fields) or 'no fields'}")
                converted[name] = how(fields[name], entry)
        except Mismatch as mismatch:
            raise mismatch.at(f".{name}") from mismatch.__cause__
        if not required <= converted.keys():
            missing = ", ".join(name for name in fields if name in required - converted.keys())
            raise Mismatch("", problem=f"lacks {missing}: {expected} has {', '.join(fields)}")
        return converted

    converter.decode = decode
    converter.encode = encode_instance
    if is_typed_dict(cls):
        converter.python = dict
        converter.encode = encode_typed_dict


def pydantic_model(cls: Any) -> Converter:
    """As Pydantic writes and reads it: the model's own configuration decides about aliases, strictness and extras."""
    return model(
        cls,
        lambda value: value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error"),
        lambda value: cls.model_validate_json(dumps(value)),
    )


def msgspec_struct(cls: Any, annotation: Any, msgspec: Any) -> Converter:
    return model(
        cls,
        lambda value: msgspec.to_builtins(value, str_keys=True),
        lambda value: msgspec.convert(value, annotation, str_keys=True),
        comparable=cls.__struct_config__.eq,
    )


def model(cls: type, dump: Callable[[Any], Any], load: Callable[[Any], Any], *, comparable: bool = False) -> Converter:
    """A converter for a class of a validation library, whose dump is JSON but for tuples.

    What is written is read once at once: an instance may hold what its class would refuse (a struct never looks at its
    fields, a model not at `model_construct` or at what is assigned later), and the worker would be the first to find out.
    Pydantic minds by itself when a field is of another type than it says; `comparable` does it for others.
    """
    name = cls.__name__

    def encode(value: Any, room: Room) -> Any:
        if type(value) is not cls:
            raise Mismatch(name, value, advice=subclass_advice(cls, value))
        try:
            dumped = dump(value)
        except Exception as error:  # the library's own errors, and whatever the model's serializers raise
            raise Mismatch(name, problem=f"is a {name} that cannot be written as JSON: {brief(error)}") from error
        encoded = encode_dumped(dumped, room)
        back = decode(encoded)
        if comparable and back != value:
            raise Mismatch(
                name,
                problem=f"is {shown(value)}, which would be read back as {shown(back)}",
                advice="Give its fields what their annotations say.",
            )
        return encoded

    def decode(value: Any) -> Any:
        try:
            return load(value)
        except Exception as error:
            raise Mismatch(name, problem=f"is no valid {name}: {brief(error)}") from error

    return Converter(name, encode, decode, ANY_KIND, cls)


encode_dumped: Encode = plain_encoder(list, tuple)


def subclass_advice(cls: type, value: Any) -> str:
    if not isinstance(value, cls):
        return ""
    return f"It would come back as {cls.__name__} without what {type(value).__name__} adds: annotate the subclass."
