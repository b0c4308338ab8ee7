"""What a check has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Grade", "note", "ok", "problem", "unknown", "warning"]

#: ok; note: worth knowing; warning: it will hurt one day; problem: it hurts now; unknown: it could not be looked at
Grade = Literal["ok", "note", "warning", "problem", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, why it matters, and what mends it: commands to type, SQL to run or settings to make, in this order."""

    grade: Grade
    found: str
    why: str = ""
    mend: tuple[str, ...] = ()
    check: str = ""


def ok(found: str, why: str = "") -> Finding:
    return Finding("ok", found, why)


def note(found: str, why: str, *mend: str) -> Finding:
    return Finding("note", found, why, mend)


def warning(found: str, why: str, *mend: str) -> Finding:
    return Finding("warning", found, why, mend)


def problem(found: str, why: str, *mend: str) -> Finding:
    return Finding("problem", found, why, mend)


def unknown(found: str, why: str = "", *mend: str) -> Finding:
    return Finding("unknown", found, why, mend)
