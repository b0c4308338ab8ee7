"""The child's end of `supervisor`: receive what is private, and stop when the parent is gone."""

from __future__ import annotations

import json
import os
import signal
import threading

__all__ = ["hold_lifeline"]


def hold_lifeline() -> list[str]:
    """Take over standard input as the line to the parent, and return the private arguments that come first on it.

    From then on this process gets SIGTERM when the parent ends, also by kill -9. Its bodies find an empty standard input.
    """
    line = os.dup(0)  # not inherited by what a body starts
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    private = _first_line(line)
    threading.Thread(target=_stop_with_parent, args=(line,), name="rota-lifeline", daemon=True).start()
    return [str(argument) for argument in json.loads(private or b"[]")]


def _first_line(line: int) -> bytes:
    """Read byte by byte: a buffer would hold what comes after, and at exit a lock that the waiting thread has."""
    read = bytearray()
    while (byte := os.read(line, 1)) and byte != b"\n":
        read += byte
    return bytes(read)


def _stop_with_parent(line: int) -> None:
    while os.read(line, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
