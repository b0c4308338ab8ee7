"""What makes two failures the same: the type of the error, its message without what differs each time, and where it came from.

The place is the innermost frame of the user's own code, by file and function. Line numbers are left out, so that a group lives on
when its file is edited.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Fingerprint", "fingerprint", "normalised", "own_frame"]

_LONGEST = 200  # characters of a message that tell it from others
_DIFFERS = (
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<uuid>"),
    (re.compile(r"\b0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{12,}\b"), "<hex>"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<address>"),
    # what is quoted is mostly a value; an apostrophe within a word is no quote
    (re.compile(r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\""), "'…'"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "N"),
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.M)
_NOT_OWN = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python[\d.]+[/\\]|^<")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`id` is short, and the same in every process and release."""

    id: str
    error_type: str
    message: str
    frame: str


def fingerprint(reason: str, error_type: str | None, message: str | None, trace: str | None) -> Fingerprint:
    """Of a letter: why it died, and its last error. A job that was lost with its processes has none."""
    kind, said, frame = error_type or reason, normalised(message or ""), own_frame(trace or "")
    digest = hashlib.sha256("\x1f".join((kind, said, frame)).encode("utf-8", "surrogatepass"))
    return Fingerprint(digest.hexdigest()[:12], kind, said, frame)


@lru_cache(maxsize=10_000)
def normalised(message: str) -> str:
    """The first line of a message, without what differs each time."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")[: 5 * _LONGEST]
    for pattern, stands in _DIFFERS:
        line = pattern.sub(stands, line)
    return line[:_LONGEST]


def own_frame(trace: str) -> str:
    """The innermost frame that is no library's, as `folder/file.py in function`; else the innermost."""
    frames = [(found["file"], found["function"]) for found in _FRAME.finditer(trace)]
    if not frames:
        return ""
    file, function = next((frame for frame in reversed(frames) if not _NOT_OWN.search(frame[0])), frames[-1])
    place = "/".join(file.replace("\\", "/").split("/")[-2:])
    return f"{place} in {function}"
