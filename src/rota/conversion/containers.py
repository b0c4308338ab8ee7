"""Arrays and objects of values that each have a converter."""

from __future__ import annotations

import collections.abc as abc
import json
from collections.abc import Callable, Sequence
from typing import Any

from rota.conversion.plain import (
    ANYTHING,
    BRIEF,
    LIST,
    OBJECT,
    STRING,
    TEXT,
    Converter,
    Mismatch,
    Room,
    Unconvertible,
    dumps,
    shown,
)


def array(cls: Any, accepted: Any, make: Callable[[list[Any]], Any], item: Converter) -> Converter:
    expected = f"{cls.__name__}[{item.expected}]"
    is_set = issubclass(accepted, abc.Set)

    def encode(value: Any, room: Room) -> list[Any]:
        if not isinstance(value, accepted) or isinstance(value, (str, bytes, bytearray)):
            raise Mismatch(expected, value)
        room.enter(value, len(value))
        encode_item, encoded = item.encode, []
        try:
            for entry in value:
                encoded.append(encode_item(entry, room))
        except Mismatch as mismatch:
            raise mismatch.at(f"[{len(encoded)}]") from mismatch.__cause__
        room.leave()
        if is_set:
            encoded.sort(key=repr)
        return encoded

    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch("an array", value)
        decode_item, decoded = item.decode, []
        try:
            for entry in value:
                decoded.append(decode_item(entry))
        except Mismatch as mismatch:
            raise mismatch.at(f"[{len(decoded)}]") from mismatch.__cause__
        return make(decoded)

    return Converter(expected, encode, decode, frozenset({LIST}), accepted, rank=1)


def fixed_tuple(items: Sequence[Converter]) -> Converter:
    expected = f"tuple[{', '.join(item.expected for item in items) or '()'}]"

    def convert(values: Any, how: Callable[[Converter, Any], Any]) -> list[Any]:
        converted: list[Any] = []
        try:
            for item, entry in zip(items, values, strict=True):
                converted.append(how(item, entry))
        except Mismatch as mismatch:
            raise mismatch.at(f"[{len(converted)}]") from mismatch.__cause__
        return converted

    def encode(value: Any, room: Room) -> list[Any]:
        if not isinstance(value, tuple) or len(value) != len(items):
            raise Mismatch(expected, value)
        room.enter(value, len(value))
        encoded = convert(value, lambda item, entry: item.encode(entry, room))
        room.leave()
        return encoded

    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            raise Mismatch(f"an array of {len(items)}", value)
        return tuple(convert(value, lambda item, entry: item.decode(entry)))

    return Converter(expected, encode, decode, frozenset({LIST}), tuple, rank=1)


def mapping(cls: Any, key: Converter, entry: Converter) -> Converter:
    key = STRING if key is ANYTHING else key
    expected = f"{cls.__name__}[{key.expected}, {entry.expected}]"
    textual_keys = key.kinds == {TEXT}
    if not textual_keys and key.kinds & {TEXT, LIST, OBJECT}:
        raise Unconvertible(f"and {key.expected} cannot be the key of a JSON object: use keys of one simple type")

    def encode(value: Any, room: Room) -> dict[str, Any]:
        if not isinstance(value, cls):
            raise Mismatch(expected, value)
        room.enter(value, len(value))
        encode_key, encode_entry = key.encode, entry.encode
        encoded: dict[str, Any] = {}
        name: Any = None
        try:
            for name, each in value.items():
                written = encode_key(name, room)
                encoded[written if textual_keys else dumps(written)] = encode_entry(each, room)
        except Mismatch as mismatch:
            raise mismatch.at(f"[{BRIEF.repr(name)}]") from mismatch.__cause__
        if len(encoded) != len(value):
            raise Mismatch(expected, problem=f"is {shown(value)}, in which two keys are written the same")
        room.leave()
        return encoded

    def decode(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise Mismatch("an object", value)
        decode_entry = entry.decode
        decoded: dict[Any, Any] = {}
        name: Any = None
        try:
            for name, each in value.items():
                decoded[read_key(name)] = decode_entry(each)
        except Mismatch as mismatch:
            raise mismatch.at(f"[{BRIEF.repr(name)}]") from mismatch.__cause__
        if len(decoded) != len(value):
            raise Mismatch(expected, problem=f"is {shown(value)}, in which two keys are read the same")
        return decoded

    def read_key(name: str) -> Any:
        if textual_keys:
            return key.decode(name)
        try:
            return key.decode(json.loads(name))
        except ValueError:
            raise Mismatch(f"a key that is {key.expected}", name) from None

    return Converter(expected, encode, decode, frozenset({OBJECT}), cls, rank=1)
