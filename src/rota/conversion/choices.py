"""Values that are one of several: an Enum, a Literal, a union."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rota.conversion.plain import KINDS, NONE, NUMBER, TEXT, Converter, Mismatch, Room, Unconvertible, dumps, shown


def scalar(converter: Converter, value: Any) -> Any:
    """The JSON of a value that an Enum or a Literal names, which must be no array or object."""
    try:
        written = converter.encode(value, Room(sys.maxsize))
    except Mismatch as mismatch:
        raise Unconvertible(f"and its value {mismatch.problem}") from mismatch
    if isinstance(written, (list, dict)):
        raise Unconvertible(f"and its value {shown(value)} is not a simple one")
    return written


def choice(expected: str, members: Sequence[tuple[Any, Any]], python: type | None = None) -> Converter:
    """A converter for a closed set of values, given with the JSON of each."""
    classes = {type(value) for value, _ in members}
    # True is 1 to a dict, and must not be here
    written = {(type(value), value): form for value, form in members}
    read = {(type(form) is bool, form): value for value, form in members}
    if len(read) < len(written):
        raise Unconvertible("and two of its values are the same as JSON")

    def encode(value: Any, _: Room) -> Any:
        if type(value) not in classes or (type(value), value) not in written:
            raise Mismatch(expected, value)
        return written[type(value), value]

    def decode(value: Any) -> Any:
        if type(value) in (list, dict) or (type(value) is bool, value) not in read:
            raise Mismatch(f"one of {', '.join(dumps(form) for _, form in members)}", value)
        return read[type(value) is bool, value]

    return Converter(expected, encode, decode, frozenset(KINDS[type(form)] for _, form in members), python)


def flag(cls: Any) -> Converter:
    def encode(value: Any, _: Room) -> int:
        if type(value) is not cls:
            raise Mismatch(cls.__name__, value)
        return int(value.value)

    def decode(value: Any) -> Any:
        if type(value) is not int:
            raise Mismatch(f"{cls.__name__} as a number", value)
        try:
            read = cls(value)
        except ValueError:
            raise Mismatch(f"{cls.__name__} as a number", value) from None
        if read.value != value:  # early releases of Python 3.11 drop bits that have no name instead of refusing them
            raise Mismatch(f"{cls.__name__} as a number", value)
        return read

    return Converter(cls.__name__, encode, decode, frozenset({NUMBER}), cls)


def union(members: Sequence[Converter]) -> Converter:
    unique = list({id(member): member for member in members}.values())
    expected = " | ".join(member.expected for member in unique)
    if len(unique) == 1:
        return unique[0]
    if len(unique) == 2 and any(member is NONE for member in unique):
        return optional(next(member for member in unique if member is not NONE), expected)
    vague = [member.expected for member in unique if member.rank == 2 and TEXT in member.kinds]
    if len(vague) > 1:
        raise Unconvertible(f"and as JSON {' and '.join(vague)} are both text that nothing tells apart: choose one")

    reading = sorted(unique, key=lambda member: member.rank)
    kinds = frozenset[str]().union(*(member.kinds for member in unique))
    overlapping = sum(len(member.kinds) for member in unique) > len(kinds)
    orders: dict[type, list[Converter]] = {
        member.python: sorted(unique, key=lambda each: each.python is not member.python)
        for member in unique
        if member.python is not None
    }

    def encode(value: Any, room: Room) -> Any:
        left, depth = room.left, len(room.inside)
        exact: list[Mismatch] = []
        for member in orders.get(type(value), unique):
            try:
                written = member.encode(value, room)
            except Mismatch as mismatch:
                room.left = left
                del room.inside[depth:]
                if member.python is type(value):
                    exact.append(mismatch)
                continue
            if overlapping:
                reader, back = read(written)
                # a float from 1e16 on is written in full, and so read as the int that it is equal to
                alike = type(back) is type(value) or isinstance(value, float)
                if reader is not member and not (alike and back == value):
                    raise Mismatch(
                        expected,
                        problem=f"is {shown(value)}, whose JSON would be read back as {reader.expected} in {expected}",
                        advice="Tell them apart, by a Literal field in each for example, or annotate a single type.",
                    )
            return written
        raise exact[0] if len(exact) == 1 else Mismatch(expected, value)

    def read(value: Any) -> tuple[Converter, Any]:
        kind = KINDS.get(type(value))
        able = [member for member in reading if kind in member.kinds]
        for member in able:
            try:
                return member, member.decode(value)
            except Mismatch:
                if len(able) == 1:
                    raise
        raise Mismatch(expected, value)

    def decode(value: Any) -> Any:
        return read(value)[1]

    return Converter(expected, encode, decode, kinds, rank=max(member.rank for member in unique))


def optional(member: Converter, expected: str) -> Converter:
    def encode(value: Any, room: Room) -> Any:
        if value is None:
            return None
        written = member.encode(value, room)
        if written is None:
            raise Mismatch(expected, problem=f"is {shown(value)}, which is null as JSON and would be read back as None")
        return written

    def decode(value: Any) -> Any:
        return None if value is None else member.decode(value)

    return Converter(expected, encode, decode, member.kinds | NONE.kinds, member.python, member.rank)
