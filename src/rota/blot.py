"""Blotting texts out of errors that quote them.

A body, or a library it calls, puts into an error whatever it likes: the value as it is, its repr, a part of it, or its first
and last characters with dots between. So what is looked for is each text in the forms in which text is commonly quoted, and
pieces of them beside an ellipsis.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

__all__ = ["MASK", "blotted", "forms"]

MASK = "•••"

# Shorter texts show up by chance: blotting them out would only make an error unreadable.
_SHORTEST = 4

_ELLIPSES = ("...", "…")


def forms(texts: Iterable[str]) -> list[str]:
    """The forms in which these texts may be quoted, the longest first, as a shorter one may be a part of it."""
    found: set[str] = set()
    for text in texts:
        # a margin, as in the trace of an exception group, comes between the lines
        for part in {text, *text.splitlines()}:
            found |= {part, repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}
    return sorted((each for each in found if len(each.strip()) >= _SHORTEST), key=len, reverse=True)


def blotted(text: str, secrets: Sequence[str]) -> str:
    """The text without these, nor what is left of one that was shortened."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    for secret in secrets:
        for dots in _ELLIPSES:
            text = _without_pieces(text, secret, dots)
    return text


def _without_pieces(text: str, secret: str, dots: str) -> str:
    """The text without beginnings of the secret before the dots, and ends of it after them."""
    head, *rest = text.split(dots)
    parts = [head]
    for part in rest:
        parts[-1] = _without_beginning(parts[-1], secret)
        parts.append(_without_end(part, secret))
    return dots.join(parts)


def _without_beginning(text: str, secret: str) -> str:
    seed, at = secret[:_SHORTEST], -1
    while (at := text.find(seed, at + 1)) >= 0:
        if secret.startswith(text[at:]):
            return text[:at] + MASK
    return text


def _without_end(text: str, secret: str) -> str:
    seed, end = secret[-_SHORTEST:], len(text)
    while (at := text.rfind(seed, 0, end)) >= 0:
        end = at + _SHORTEST
        if secret.endswith(text[:end]):
            return MASK + text[end:]
        end -= 1
    return text
