"""Resting in one thread until another rings, or there is something to read: no wake-up is lost, and none is polled for."""

from __future__ import annotations

import contextlib
import math
import select
import socket
from collections.abc import Callable

__all__ = ["Bell"]


class Bell:
    """`ring` is safe from any thread; `rest` belongs to one."""

    def __init__(self) -> None:
        self._rope, self._ear = socket.socketpair()
        self._rope.setblocking(False)
        self._watched: dict[int, Callable[[], None]] = {}

    def ring(self) -> None:
        """End the rest that is on, or the next one."""
        with contextlib.suppress(OSError):  # it is closed, or so full that it rings already
            self._rope.send(b"!")

    def watch(self, source: int, react: Callable[[], None]) -> None:
        """Let it ring by itself when there is something to read there, after this was called. For who rests."""
        self._watched[source] = react

    def unwatch(self, source: int) -> None:
        del self._watched[source]

    def rest(self, seconds: float, *also: int) -> bool:
        """Sleep until it rings or there is something to read there; tells whether there is. Knows no limit on file descriptors."""
        sources = select.poll()  # nothing to open, and nothing to close
        for source in (self._ear.fileno(), *self._watched, *also):
            sources.register(source, select.POLLIN)
        ready = {source for source, _ in sources.poll(math.ceil(max(0.0, seconds) * 1000))}
        if self._ear.fileno() in ready:
            self._ear.recv(4096)
        for source in ready & self._watched.keys():
            self._watched[source]()
        return bool(ready & set(also))

    def close(self) -> None:
        self._rope.close()
        self._ear.close()
