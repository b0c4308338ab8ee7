"""The child's end of `supervisor`: receive what is private, and stop when the parent is gone.

Two things tell that: the line is closed, at once; and this process has another parent, within half a second, should someone
else hold the other end of the line. A third, the kernel's parent-death signal, would come on top of the SIGTERM sent here, and
two of them hand back at once what one lets finish.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import sys
import threading
from typing import Any

__all__ = ["hold_lifeline", "is_watched", "private_line"]

_LOOK_SECONDS = 0.5
_held = threading.Event()


def is_watched() -> bool:
    """Whether another process started this one to watch over it, and tells it when to end.

    Whoever ends all processes of a service tells both of them, as systemd does, so this one hears it twice. The second SIGTERM
    is no second wish then: that comes as SIGINT.
    """
    return _held.is_set() or multiprocessing.parent_process() is not None


def private_line(arguments: list[str]) -> bytes:
    """What the parent sends first: what must not stand on a command line, which anyone on the machine may read."""
    return json.dumps({"parent": os.getpid(), "arguments": arguments}).encode() + b"\n"


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
        if select.select([line], [], [], _LOOK_SECONDS)[0] and not os.read(line, 1):
            break
    os.kill(os.getpid(), signal.SIGTERM)
