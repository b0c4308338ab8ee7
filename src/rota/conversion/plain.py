"""The JSON a jsonb column can hold, and the room one payload has in it.

jsonb is narrower than what Python's json module writes: no NaN or infinity, no NUL character, no lone surrogate. A row
also has a size beyond which it slows every statement that touches it. All of that is checked in the one pass that turns
a value into JSON, so that a payload far too large is refused before a copy of it exists.
"""

from __future__ import annotations

import json
import json.encoder
import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Encode = Callable[[Any, "Room"], Any]
Decode = Callable[[Any], Any]

DEPTH = 100  # far beyond any payload written on purpose, far within Python's recursion limit and jsonb's stack
LARGEST_INT = 10**4300 - 1  # Python refuses to read a longer number back from text

_encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))
# `encode` makes one of these for each call, which takes longer than a small payload; without circles to look for it keeps nothing
_make: Any = getattr(json.encoder, "c_make_encoder", None)
_chunks = _make and _make(None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)


def dumps(value: Any) -> str:
    """JSON text without spaces. Raises ValueError for NaN and infinity."""
    return "".join(_chunks(value, 0)) if _chunks else _encoder.encode(value)


TEXT, NUMBER, BOOL, NULL, LIST, OBJECT = "text", "number", "bool", "null", "list", "object"
KINDS = {str: TEXT, int: NUMBER, float: NUMBER, bool: BOOL, type(None): NULL, list: LIST, dict: OBJECT}
ANY_KIND = frozenset(KINDS.values())


class Mismatch(Exception):
    """A value that is not what its annotation says. Containers add their step to the path as it passes through them."""

    def __init__(self, expected: str, value: Any = None, *, problem: str = "", advice: str = "") -> None:
        super().__init__()
        self.expected = expected
        self.advice = advice
        self.path = ""
        self._value = value
        self._problem = problem

    def at(self, step: str) -> Mismatch:
        self.path = step + self.path
        return self

    @property
    def problem(self) -> str:
        """What is wrong, as a clause that follows the name of the value."""
        # worded only when someone reads it: trying the members of a union raises many that nobody does
        return self._problem or f"is {shown(self._value)}, expected {self.expected}"


class Unconvertible(Exception):
    """An annotation whose values have no JSON; the message is a clause that follows the annotation."""


class TooLarge(Exception):
    """The payload needs more room than it has, by at least this many bytes."""

    def __init__(self, excess: int) -> None:
        super().__init__()
        self.excess = excess


class Room:
    """The bytes one payload may still take, and the containers the conversion is inside of."""

    __slots__ = ("inside", "left")

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.inside: list[Any] = []

    def text(self, value: str) -> str:
        """Take room for the text and return it, if jsonb can hold it."""
        size = len(value)
        if size <= self.left and not value.isascii():
            try:
                size = len(value.encode())
            except UnicodeEncodeError:
                raise Mismatch(
                    "text",
                    problem=f"is {shown(value)}, which has a lone surrogate: it is not valid text",
                    advice=AS_BYTES,
                ) from None
        self.left -= size
        if self.left < 0:
            raise TooLarge(-self.left)
        if "\0" in value:
            raise Mismatch(
                "text", problem=f"is {shown(value)}, which has a NUL character: jsonb cannot hold it", advice=AS_BYTES
            )
        return value

    def enter(self, container: Any, entries: int) -> None:
        """Go one level deeper, into a container of that many entries."""
        self.left -= 2 * entries  # no entry is shorter than one character and its comma
        if self.left < 0:
            raise TooLarge(-self.left)
        self.inside.append(container)
        if len(self.inside) > DEPTH:
            if len({id(each) for each in self.inside}) < len(self.inside):
                raise Mismatch("", problem="contains itself, so it has no end as JSON", advice="Pass a tree.")
            raise Mismatch("", problem=f"is nested more than {DEPTH} levels deep", advice="Pass a flatter value.")

    def leave(self) -> None:
        self.inside.pop()


AS_BYTES = "Remove the character, or pass bytes to a parameter annotated so."


@dataclass(slots=True, eq=False)
class Converter:
    """How the values of one annotation become JSON, and JSON becomes them. Both refuse with Mismatch."""

    expected: str
    encode: Encode
    decode: Decode
    kinds: frozenset[str]
    """The kinds of JSON it writes."""
    python: type | None = None
    """A value of exactly this class is meant for it."""
    rank: int = 0
    """In a union, JSON is offered to lower ranks first: the more a type accepts, the later its turn."""


def shown(value: Any) -> str:
    """The value and its type, short enough for a message, whatever its repr does."""
    try:
        text = BRIEF.repr(value)
    except Exception:
        text = "a value"
    return "None" if value is None else f"{text} ({type(value).__qualname__})"


def brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:300] + '…'}"


BRIEF = reprlib.Repr()
BRIEF.maxstring = BRIEF.maxother = 80
BRIEF.maxlevel = 2


def encode_none(value: Any, _: Room) -> None:
    if value is not None:
        raise Mismatch("None", value)


def decode_none(value: Any) -> None:
    if value is not None:
        raise Mismatch("null", value)


def encode_bool(value: Any, _: Room) -> bool:
    if value is True or value is False:
        return value
    raise Mismatch("bool", value)


def decode_bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise Mismatch("true or false", value)


def encode_int(value: Any, _: Room) -> int:
    if type(value) is not int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Mismatch("int", value)
        value = int.__int__(value)
    number: int = value
    if -LARGEST_INT <= number <= LARGEST_INT:
        return number
    raise Mismatch("int", problem="is an integer of more than 4300 digits", advice="Pass it as text or bytes.")


def decode_int(value: Any) -> int:
    if type(value) is int:
        return value
    raise Mismatch("an integer", value)


def encode_float(value: Any, _: Room) -> float:
    number: float
    if type(value) is float:
        number = value
    elif isinstance(value, float):
        number = float.__float__(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = float_of(value)
        if number != value:
            raise Mismatch(
                "float", problem=f"is {shown(value)}, which no float is equal to", advice="Annotate it as int."
            )
    else:
        raise Mismatch("float", value)
    if -1e16 < number < 1e16:
        return number
    if math.isfinite(number):
        return int(number)  # Python would write 1.4e+17, and jsonb the digits of that, which are not quite this float's
    raise Mismatch("a finite float", value, advice="JSON has no NaN and no infinity: pass None or text instead.")


def decode_float(value: Any) -> float:
    if type(value) is int:
        return float_of(value)
    if type(value) is float and math.isfinite(value):
        return value
    raise Mismatch("a number", value)


def float_of(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Mismatch("a number within the range of float", value) from None


def encode_str(value: Any, room: Room) -> str:
    if type(value) is not str:
        if not isinstance(value, str):
            raise Mismatch("str", value)
        value = str.__str__(value)
    return room.text(value)


def decode_str(value: Any) -> str:
    if type(value) is str:
        return value
    raise Mismatch("text", value)


def plain_encoder(*lists: type) -> Encode:
    """An encoder for values that are JSON already. Instances of `lists` are taken as JSON arrays."""

    def encode_list(value: list[Any], room: Room) -> list[Any]:
        room.enter(value, len(value))
        array: list[Any] = []
        try:
            for entry in value:
                array.append(encode(entry, room))
        except Mismatch as mismatch:
            raise mismatch.at(f"[{len(array)}]") from mismatch.__cause__
        room.leave()
        return array

    def encode_dict(value: dict[Any, Any], room: Room) -> dict[str, Any]:
        room.enter(value, len(value))
        json_object: dict[str, Any] = {}
        key: Any = None
        try:
            for key, entry in value.items():
                json_object[encode_key(key, room)] = encode(entry, room)
        except Mismatch as mismatch:
            raise mismatch.at(f"[{BRIEF.repr(key)}]") from mismatch.__cause__
        room.leave()
        return json_object

    def encode(value: Any, room: Room) -> Any:
        by_class = encoders.get(type(value))
        if by_class is None:
            by_class = next((encoders[base] for base in subclassed if isinstance(value, base)), None)
        if by_class is None:
            raise Mismatch("None, bool, int, float, str, list or dict", value, advice=ANNOTATE)
        return by_class(value, room)

    subclassed = (str, int, float, *lists, dict)
    encoders: dict[type, Encode] = {
        type(None): encode_none,
        bool: encode_bool,
        int: encode_int,
        float: encode_float,
        str: encode_str,
        dict: encode_dict,
    }
    for each in lists:
        encoders[each] = encode_list
    return encode


ANNOTATE = "Without an annotation only plain JSON is stored: annotate it with its type, or convert it first."


def encode_key(key: Any, room: Room) -> str:
    if not isinstance(key, str):
        raise Mismatch("str", problem=f"has the key {shown(key)}, and a JSON key is text", advice=ANNOTATE)
    return room.text(str.__str__(key))


NONE = Converter("None", encode_none, decode_none, frozenset({NULL}), type(None))
BOOLEAN = Converter("bool", encode_bool, decode_bool, frozenset({BOOL}), bool)
INTEGER = Converter("int", encode_int, decode_int, frozenset({NUMBER}), int, rank=1)
FLOAT = Converter("float", encode_float, decode_float, frozenset({NUMBER}), float, rank=2)
STRING = Converter("str", encode_str, decode_str, frozenset({TEXT}), str, rank=2)
ANYTHING = Converter("a JSON value", plain_encoder(list), lambda value: value, ANY_KIND, rank=3)


_decode = json.JSONDecoder().raw_decode  # what `json.loads` comes down to, without its detours


def read_json(text: str) -> Any:
    """What JSON text of ours says, as the database returns it: valid, and without space before it."""
    return _decode(text)[0]
