"""An exception as it is stored: its type, its text and its trace, cut to size, without our own frames and without secrets."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from rota.blot import blotted
from rota.errors import RotaError

__all__ = ["Failure", "StandIn", "describe", "storable"]

# An error is for a person to read; a megabyte of it helps nobody and bloats the table.
_MESSAGE_LIMIT = 2_000
_TRACE_LIMIT = 8_000

_HERE = Path(__file__).parent
_OUR_FILES = (
    str(_HERE / "jobs" / "execute.py"),
    str(_HERE / "jobs" / "child.py"),
    str(_HERE / "jobs" / "middleware.py"),
    str(_HERE / "jobs" / "threads.py"),
    str(_HERE / "pollers" / "execute.py"),
    str(_HERE / "projections" / "apply.py"),
    str(_HERE / "service" / "filling.py"),
    str(_HERE / "integrations" / "django" / "bodies.py"),
    str(_HERE / "integrations" / "django" / "attempt.py"),
    concurrent.futures.thread.__file__,
    asyncio.timeouts.__file__,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is stored."""

    type: str
    message: str
    trace: str
    error: BaseException | None = field(default=None, repr=False, compare=False)


def describe(error: BaseException, secrets: Sequence[str] | None = None) -> Failure:
    """The error in text that PostgreSQL can hold; these texts are blotted out in it. None: there is nothing to hide."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "rota.errors")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    trace = "".join(traceback.format_exception(kind, error, _own_frames(error.__traceback__), chain=True))
    stored = (
        storable(name, 500),
        storable(blotted(_text(error), secrets or ()), _MESSAGE_LIMIT),
        storable(blotted(trace, secrets or ())[-_TRACE_LIMIT:], _TRACE_LIMIT),
    )
    # whoever logs the error must not show what the database does not
    return Failure(*stored, error if secrets is None else StandIn.of(*stored))


class StandIn(RotaError):
    """Takes the place of an error that cannot be handed on, being of another process or holding a secret: its name, its text,
    its trace as a note."""

    @classmethod
    def of(cls, type: str, message: str, trace: str) -> StandIn:
        module, _, name = type.rpartition(".")
        kind = _subclass(name, module or "builtins")
        error = kind(message)
        error.add_note(trace)
        return error


def _subclass(name: str, module: str) -> type[StandIn]:
    return type(name, (StandIn,), {"__module__": module})


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the body on: how we came to call it helps nobody who reads it."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename in _OUR_FILES:
        own = own.tb_next
    return own or trace


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # an error whose own text fails must not take the worker down
        return f"<{type(error).__name__} whose text could not be made: {type(broken).__name__}>"


def storable(text: str, limit: int) -> str:
    """Text that PostgreSQL can hold: no NUL, no lone surrogates, not endless."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
