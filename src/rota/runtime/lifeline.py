"""The child's end of `supervisor`: receive what is private, tell how it is, and stop when the parent is gone.

Two things tell that: the line is closed, at once; and this process has another parent, within half a second, should someone
else hold the other end of the line. A third, the kernel's parent-death signal, would come on top of the SIGTERM sent here, and
two of them hand back at once what one lets finish.

The parent may say one more thing on the line: that another process has taken the place of this one. That ends it as SIGTERM
does; but those who ask whether there is anyone to serve them are not sent away, as there is.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import sys
import threading
from typing import Any

__all__ = ["REPLACED", "hold_lifeline", "is_replaced", "is_watched", "private_line", "tell_parent", "tells_parent"]

#: what the parent says when another process is ready in the place of this one
REPLACED = b"replaced\n"

_LOOK_SECONDS = 0.5
_held = threading.Event()
_replaced = threading.Event()
# The other line, on which this process tells how it is.
_telling: list[int] = []


def is_watched() -> bool:
    """Whether another process started this one to watch over it, and tells it when to end.

    Whoever ends all processes of a service tells both of them, as systemd does, so this one hears it twice. The second SIGTERM
    is no second wish then: that comes as SIGINT.
    """
    return _held.is_set() or multiprocessing.parent_process() is not None


def is_replaced() -> bool:
    """Whether this process ends because another is there in its place."""
    return _replaced.is_set()


def tells_parent() -> bool:
    """Whether the process that watches this one wants to be told how it is."""
    return bool(_telling)


def tell_parent(state: str) -> None:
    """In the words of systemd. It waits for nobody: a parent that does not read has other troubles."""
    for line in _telling:
        with contextlib.suppress(OSError):
            os.write(line, state.encode() + b"\n")


def private_line(arguments: list[str], tells: int | None = None) -> bytes:
    """What the parent sends first: what must not stand on a command line, which anyone on the machine may read. `tells` is the
    descriptor by which it wants to be told."""
    return json.dumps({"parent": os.getpid(), "arguments": arguments, "tells": tells}).encode() + b"\n"


def hold_lifeline() -> list[str]:
    """Take over standard input as the line to the parent, and return the private arguments that come first on it.

    From then on this process gets one SIGTERM when the parent ends, also by kill -9. Its bodies find an empty standard input.
    If the parent is gone before it has said anything, this process ends: without its settings it must not work on anything.
    """
    line = os.dup(0)  # not inherited by what a body starts
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    said = _first_line(line)
    if not said.endswith(b"\n"):
        sys.exit("rota: the process that started this one is gone, and had not said what to do.")
    private: dict[str, Any] = json.loads(said)
    if private["tells"] is not None:
        os.set_inheritable(private["tells"], False)  # nor this one
        os.set_blocking(private["tells"], False)
        _telling.append(private["tells"])
    _held.set()
    stopping = (line, int(private["parent"]))
    threading.Thread(target=_stop_with_parent, args=stopping, name="rota-lifeline", daemon=True).start()
    return [str(argument) for argument in private["arguments"]]


def _first_line(line: int) -> bytes:
    """Read byte by byte: a buffer would hold what comes after, and at exit a lock that the waiting thread has."""
    read = bytearray()
    while not read.endswith(b"\n") and (byte := os.read(line, 1)):
        read += byte
    return bytes(read)


def _stop_with_parent(line: int, parent: int) -> None:
    while os.getppid() == parent:
        if select.select([line], [], [], _LOOK_SECONDS)[0]:
            if not os.read(line, len(REPLACED)):
                break
            _replaced.set()
            os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
