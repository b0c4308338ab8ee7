"""The fields of a change: as a form sends them, in which all is text, and as JSON has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rota.errors import ConfigurationError, InvalidArguments

__all__ = ["Field", "Fields", "Kind", "field_at_fault", "read_form", "read_object"]

Kind = Literal["id", "text", "queue", "number", "share", "flag", "moment", "object", "list", "texts"]

_LONGEST_TEXT = 2000
_MOST_TEXTS = 100


@dataclass(frozen=True)
class Field:
    """`required`: it must be there. One that is not given is left out, which may mean something else than null."""

    kind: Kind
    about: str
    required: bool = False
    #: whether null means something, such as no limit
    nullable: bool = False
    #: whether it says what the action is about, which a form says by where it stands
    fixed: bool = False
    #: what a text may be, if it is one of few
    choices: Sequence[str] = ()


Fields = Mapping[str, Field]


def read_form(what: str, fields: Fields, form: Mapping[str, str]) -> dict[str, Any]:
    """What a form says, in which an empty field is none; `what` is asked for with it. Raises ConfigurationError."""
    told: dict[str, Any] = {}
    for name, field in fields.items():
        text = form.get(name, "").strip()
        if name in form and (text or field.nullable):
            told[name] = _from_text(name, field, text) if text else None
    return read_object(what, fields, told)


def read_object(what: str, fields: Fields, given: Any) -> dict[str, Any]:
    """The same from JSON, in which a field has its own type. Raises ConfigurationError."""
    if not isinstance(given, dict):
        raise ConfigurationError("What is sent is no JSON object: give the fields by name.")
    if unknown := given.keys() - fields.keys():
        raise ConfigurationError(
            f"{what} takes no {', '.join(sorted(map(repr, unknown)))}: its fields are {', '.join(fields) or 'none'}."
        )
    missing = [name for name, field in fields.items() if field.required and name not in given]
    if missing:
        raise ConfigurationError(f"{', '.join(missing)} is missing: {what} needs it.")
    return {
        name: _checked(name, fields[name], value)
        for name, value in given.items()
        if value is not None or fields[name].nullable
    }


def _from_text(name: str, field: Field, text: str) -> Any:
    try:
        match field.kind:
            case "number":
                return int(text)
            case "share":
                return float(text)
            case "flag":
                return text in ("on", "true", "1")
            case "object" | "list":
                return json.loads(text)
            case "texts":
                return [part for each in text.split(",") if (part := each.strip())]
    except ValueError as error:
        raise ConfigurationError(f"{name} cannot be {text[:100]!r}: {error}.") from error
    return text


def field_at_fault(fields: Fields, error: Exception) -> str | None:
    """The field that an error is about, by the name that its words give; None if it is about none of them, or about all."""
    if isinstance(error, InvalidArguments) and "args" in fields:
        return "args"
    found = {
        name: place.start()
        for name in fields
        if (place := re.search(rf"(?<![\w.]){re.escape(name)}_?(?:=| cannot be| is missing|, )", str(error)))
    }
    return min(found, key=lambda name: found[name]) if found else None


def _checked(name: str, field: Field, value: Any) -> Any:
    """The value as the function takes it."""
    if value is None and field.nullable:
        return None
    wrong = ConfigurationError(f"{name} cannot be {str(value)[:100]!r}: it is {_KINDS[field.kind]}.")
    match field.kind:
        case "id":
            if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 19:
                raise wrong
            return int(value)
        case "text" | "queue":
            if not isinstance(value, str) or len(value) > _LONGEST_TEXT or "\0" in value or _is_torn(value):
                raise wrong
            if field.choices and value not in field.choices:
                raise ConfigurationError(f"{name} cannot be {value[:100]!r}: it is one of {', '.join(field.choices)}.")
            return value
        case "number":
            if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**31:
                raise wrong
            return value
        case "share":
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise wrong
            return float(value) if abs(value) < 1e9 else _raise(wrong)
        case "flag":
            return value if isinstance(value, bool) else _raise(wrong)
        case "moment":
            return _moment(value, wrong)
        case "object":
            return value if isinstance(value, dict) else _raise(wrong)
        case "list":
            return value if isinstance(value, list) else _raise(wrong)
        case "texts":
            if not isinstance(value, list) or len(value) > _MOST_TEXTS:
                raise wrong
            return [_checked(name, Field("text", field.about), each) for each in value]


def _moment(value: Any, wrong: Exception) -> datetime:
    try:
        read = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise wrong from None
    if read.tzinfo is None or not 1 < read.year < 9000:
        raise wrong
    return read


def _raise(error: Exception) -> Any:
    raise error


def _is_torn(text: str) -> bool:
    """Whether it holds half a character, which nothing can store."""
    return any("\ud800" <= each <= "\udfff" for each in text)


_KINDS: Mapping[Kind, str] = {
    "id": "a job's id, digits in a string",
    "text": f"a text of up to {_LONGEST_TEXT} characters",
    "queue": "the name of a queue, or null for all of them together",
    "number": "a whole number",
    "share": "a number",
    "flag": "true or false",
    "moment": "a point in time with its zone, such as 2030-01-31T09:00:00Z",
    "object": "a JSON object",
    "list": "a JSON list",
    "texts": f"a list of up to {_MOST_TEXTS} texts",
}
