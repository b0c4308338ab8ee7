"""Values of ours as JSON, and what JSON that is. What may have more digits than a JavaScript number is a string."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

__all__ = ["as_json", "schema_of"]

# whole numbers that are ids or places in a log, wherever they stand
_AS_TEXT = frozenset(
    ["id", "after", "origin", "successor", "last_job", "last_id", "job", "parent_job", "position", "order_xid", "epoch"]
)
_TEXT_NUMBER = {"type": "string", "pattern": "^-?[0-9]+$"}


def as_json(value: Any, name: str = "") -> Any:
    """Plain JSON; private fields stay private."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: as_json(getattr(value, each.name), each.name) for each in fields(value) if _is_public(each.name)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: as_json(held, key) for key, held in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [as_json(held) for held in value]
    if isinstance(value, dict):
        # names in payloads of others mean nothing to us
        return {str(key): as_json(held) for key, held in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and name in _AS_TEXT:
        return str(value)
    return value


def schema_of(kind: Any, known: dict[str, Any], name: str = "") -> dict[str, Any]:
    """The JSON schema of what `as_json` makes of a value of this type; classes are described in `known`, and referred to."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is not None and is_dataclass(origin):
        kind, origin = origin, None
    if origin in (typing.Union, types.UnionType):
        parts = [schema_of(each, known, name) for each in arguments if each is not type(None)]
        return parts[0] if len(parts) == 1 and type(None) not in arguments else {"anyOf": [*parts, {"type": "null"}]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], known)}
    if isinstance(kind, type) and is_dataclass(kind):
        return _described(kind, known)
    if kind is int and name in _AS_TEXT:
        return _TEXT_NUMBER
    return dict(_PLAIN.get(kind, {}))


_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    list: {"type": "array"},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "number", "description": "seconds"},
    UUID: {"type": "string", "format": "uuid"},
    type(None): {"type": "null"},
}


def _described(kind: type, known: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in known:
        known[name] = {}  # it may hold others of its kind
        hints = typing.get_type_hints(kind)
        public = [each.name for each in fields(kind) if _is_public(each.name)]
        known[name] = {
            "type": "object",
            "description": (kind.__doc__ or "").strip().split("\n")[0],
            "properties": {each: schema_of(hints[each], known, each) for each in public},
            "required": public,
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{name}"}


def _is_public(name: str) -> bool:
    return not name.startswith("_")
