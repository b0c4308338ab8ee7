"""Payloads as they are stored: plain JSON, or what the user's codec makes of it (encryption, a key into other storage)."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any, Protocol, cast

from rota.conversion.plain import brief, dumps, read_json
from rota.errors import ConfigurationError, InvalidArguments

__all__ = ["Codec", "check_codec", "decoded", "encoded", "is_coded", "readable"]

# An object, as arguments are; no parameter has such a name.
_MARK = "rota:coded"
_BEGINS = f'{{"{_MARK}"'

_FORBIDDEN = re.compile("[\0\ud800-\udfff]")


class Codec(Protocol):
    """Two functions that undo each other, from text to text. Called in the thread that enqueues, or runs the body."""

    def encode(self, text: str) -> str: ...

    def decode(self, text: str) -> str: ...


def check_codec(codec: Any) -> Codec | None:
    """The codec, if it is one. It is not tried: it may write elsewhere, or ask a key service. Raises ConfigurationError."""
    if codec is None:
        return None
    if isinstance(codec, type):
        raise ConfigurationError(f"codec cannot be {codec!r}: it is a class: pass one of its instances. {_CONTRACT}")
    for verb in ("encode", "decode"):
        function = getattr(codec, verb, None)
        if not callable(function):
            raise ConfigurationError(f"codec cannot be {codec!r}: it has no {verb}(text). {_CONTRACT}")
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"codec cannot be {codec!r}: its {verb} is async. {_CONTRACT}")
    return cast(Codec, codec)


_CONTRACT = "A codec is an object with encode(text) and decode(text), which return text and undo each other."


def encoded(codec: Codec | None, text: str, refused: str, *, secret: bool = False) -> str:
    """JSON text as it is stored.

    Raises InvalidArguments when the codec fails. `refused` says what did not happen then; the codec's own words may quote the
    text, and are left out where that is `secret`.
    """
    if codec is None:
        return text
    try:
        coded = codec.encode(text)
    except Exception as error:
        said = type(error).__name__ if secret else brief(error)
        raise InvalidArguments(
            f"{refused}: the codec {_name(codec)} could not encode it ({said}). Nothing was stored."
        ) from (None if secret else error)
    if problem := _unstorable(coded):
        raise InvalidArguments(f"{refused}: the codec {_name(codec)} returned {problem}. Nothing was stored.")
    return dumps({_MARK: coded})


def readable(codec: Codec | None, value: Any) -> Any:
    """A stored value as its owner may read it; as it is stored, if that takes a codec that is not at hand or fails."""
    if codec is None or not isinstance(value, dict) or _MARK not in value:
        return value
    try:
        return _undone(codec, value[_MARK])
    except InvalidArguments:
        return value


def is_coded(text: str) -> bool:
    """Whether JSON text, as the database returns it, is what a codec made of something."""
    return text.startswith(_BEGINS)


def decoded(codec: Codec | None, text: str) -> Any:
    """What was stored, whether or not a codec was in use then. Raises InvalidArguments."""
    if not text.startswith(_BEGINS):
        try:
            return read_json(text)
        except (ValueError, RecursionError) as error:  # written by SQL
            raise InvalidArguments(
                f"A stored payload cannot be read ({brief(error)}): it is nested too deeply, or has too long a number. "
                "Whoever wrote it there must mend it."
            ) from error
    if codec is None:
        raise InvalidArguments(
            "This payload was stored by a codec, and this app has none: give it the same one with Rota(codec=...)."
        )
    return _undone(codec, read_json(text)[_MARK])


def _undone(codec: Codec, coded: Any) -> Any:
    try:
        text = codec.decode(coded)
    except Exception as error:
        raise InvalidArguments(
            f"The codec {_name(codec)} could not read a stored payload ({brief(error)}). Was it stored by another codec, or "
            "under another key?"
        ) from error
    try:
        return json.loads(text)
    except Exception:  # nor is what it says shown: it may be half of a secret
        raise InvalidArguments(
            f"The codec {_name(codec)} made of a stored payload what is no JSON text but {_kind(text)}. Was it stored by another "
            "codec, or under another key?"
        ) from None


def _unstorable(coded: Any) -> str | None:
    """What is wrong with a codec's text, as PostgreSQL sees it."""
    if not isinstance(coded, str):
        return f"{_kind(coded)}, and text is what can be stored"
    if _FORBIDDEN.search(coded):
        return "text with NUL or a lone surrogate, which PostgreSQL cannot hold: write bytes as base64, for example"
    return None


def _kind(value: Any) -> str:
    return (
        "other text"
        if isinstance(value, str)
        else "None"
        if value is None
        else f"something of type {type(value).__name__}"
    )


def _name(codec: Any) -> str:
    return codec.__name__ if isinstance(codec, type) else type(codec).__name__
