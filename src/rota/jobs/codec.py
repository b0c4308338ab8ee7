"""Payloads as they are stored: plain JSON, or what the user's codec makes of it (encryption, a key into other storage)."""

from __future__ import annotations

from typing import Any, Protocol

from rota.errors import InvalidArguments
from rota.jobs.conversion.plain import dumps, read_json

__all__ = ["Codec", "decoded", "encoded", "readable"]

# An object, as arguments are; no parameter has such a name.
_MARK = "rota:coded"


class Codec(Protocol):
    """Two functions that undo each other, from text to text. Called in the thread that enqueues, or runs the body."""

    def encode(self, text: str) -> str: ...

    def decode(self, text: str) -> str: ...


def encoded(codec: Codec | None, text: str) -> str:
    """JSON text as it is stored. What the codec raises is raised: nothing was stored."""
    return text if codec is None else dumps({_MARK: codec.encode(text)})


def readable(codec: Codec | None, value: Any) -> Any:
    """A stored value as its owner may read it; as it is stored, if that takes a codec that is not at hand or fails."""
    if codec is None or not isinstance(value, dict) or _MARK not in value:
        return value
    try:
        return read_json(decoded(codec, dumps(value)))
    except InvalidArguments:
        return value


def decoded(codec: Codec | None, text: str) -> str:
    """The JSON text that was stored, whether or not a codec was in use then. Raises InvalidArguments."""
    if not text.startswith(f'{{"{_MARK}"'):
        return text
    if codec is None:
        raise InvalidArguments(
            "This payload was stored by a codec, and this app has none: give it the same one with Rota(codec=...)."
        )
    try:
        return codec.decode(read_json(text)[_MARK])
    except Exception as error:
        raise InvalidArguments(
            f"The codec {type(codec).__name__} could not read a stored payload ({type(error).__name__}: {error}). Was it stored "
            "by another codec, or under another key?"
        ) from error
