"""The values that are stored as one piece of text: how each is written, and what is read back."""

from __future__ import annotations

import base64
import pathlib
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rota.conversion.plain import TEXT, Converter, Mismatch, Room, TooLarge


def textual(
    cls: type,
    write: Callable[[Any], str],
    read: Callable[[str], Any],
    form: str,
    *,
    unlike: type | None = None,
    rank: int = 0,
) -> Converter:
    """A converter for a class whose values are stored as text. Values of the subclass `unlike` are refused."""

    def encode(value: Any, room: Room) -> str:
        if not isinstance(value, cls) or (unlike is not None and isinstance(value, unlike)):
            raise Mismatch(cls.__name__, value)
        return room.text(write(value))

    def decode(value: Any) -> Any:
        if type(value) is not str:
            raise Mismatch(form, value)
        try:
            return read(value)
        except (ValueError, ArithmeticError):
            raise Mismatch(form, value) from None

    return Converter(cls.__name__, encode, decode, frozenset({TEXT}), cls, rank)


def write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def write_datetime(value: datetime) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise Mismatch(
            "an aware datetime",
            problem=f"is {value}, a naive datetime, which names no instant",
            advice="Give it a time zone: datetime.now(UTC), or value.replace(tzinfo=...).",
        )
    # Python misreads offsets with a fraction of a second, so those are written as the same instant in UTC
    return datetime.isoformat(value.astimezone(UTC) if offset.microseconds else value)


def read_datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError("no offset")
    return value


def write_time(value: time) -> str:
    offset = value.utcoffset()
    if value.tzinfo is not None and (offset is None or offset.microseconds):
        raise Mismatch(
            "time",
            problem=f"is {value!r}, whose zone has no offset in whole seconds without a date",
            advice="Pass a naive time, or a datetime.",
        )
    return time.isoformat(value)


def write_timedelta(value: timedelta) -> str:
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"P{value.days}DT{value.seconds}{fraction}S"


DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?!$)(?:(?P<weeks>[-+]?\d+)W)?(?:(?P<days>[-+]?\d+)D)?"
    r"(?:T(?!$)(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?"
    r"(?:(?P<seconds>[-+]?\d+)(?:\.(?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)


def read_timedelta(text: str) -> timedelta:
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError("not a duration of weeks, days, hours, minutes and seconds")
    part = found.groupdict(default="")
    fraction = part["fraction"].ljust(6, "0")
    value = timedelta(
        weeks=int(part["weeks"] or 0),
        days=int(part["days"] or 0),
        hours=int(part["hours"] or 0),
        minutes=int(part["minutes"] or 0),
        seconds=int(part["seconds"] or 0),
        microseconds=-int(fraction) if part["seconds"].startswith("-") else int(fraction),
    )
    return -value if part["sign"] == "-" else value


def read_uuid(text: str) -> UUID:
    value = UUID(text)
    if str(value) != text.lower():  # UUID() also takes braces, a urn and hyphens anywhere
        raise ValueError("not in canonical form")
    return value


def write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Mismatch("a finite Decimal", value, advice="Pass None instead.")
    return Decimal.__str__(value)


def read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError("not finite")
    return value


def bytes_converter() -> Converter:
    converter = textual(bytes, write_bytes, read_bytes, "base64 text", rank=2)
    encode_text = converter.encode

    def encode(value: Any, room: Room) -> Any:
        if isinstance(value, bytes) and len(value) > room.left:
            raise TooLarge(len(value) - room.left)  # before the copy that base64 makes
        return encode_text(value, room)

    converter.encode = encode
    return converter


def path_converter(cls: type[pathlib.PurePath]) -> Converter:
    return textual(cls, str, cls, "path as text", rank=2)


BYTES = bytes_converter()
DATETIME = textual(datetime, write_datetime, read_datetime, "ISO 8601 date and time with an offset")
DATE = textual(date, date.isoformat, date.fromisoformat, "ISO 8601 date", unlike=datetime)
TIME = textual(time, write_time, time.fromisoformat, "ISO 8601 time")
TIMEDELTA = textual(timedelta, write_timedelta, read_timedelta, "ISO 8601 duration, as P1DT2.5S")
IDENTIFIER = textual(UUID, str, read_uuid, "UUID as text")
DECIMAL = textual(Decimal, write_decimal, read_decimal, "decimal number as text")
