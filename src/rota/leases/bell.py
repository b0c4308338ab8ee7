"""Resting in one thread until another rings, or there is something to read: no wake-up is lost, and none is polled for."""

from __future__ import annotations

import contextlib
import selectors
import socket

__all__ = ["Bell"]


class Bell:
    """`ring` is safe from any thread; `rest` belongs to one."""

    def __init__(self) -> None:
        self._rope, self._ear = socket.socketpair()
        self._rope.setblocking(False)

    def ring(self) -> None:
        """End the rest that is on, or the next one."""
        with contextlib.suppress(OSError):  # it is closed, or so full that it rings already
            self._rope.send(b"!")

    def rest(self, seconds: float, *also: int) -> bool:
        """Sleep until it rings or there is something to read there; tells whether there is. Knows no limit on file descriptors."""
        with selectors.DefaultSelector() as selector:
            for source in (self._ear.fileno(), *also):
                selector.register(source, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds)}
        if self._ear.fileno() in ready:
            self._ear.recv(4096)
        return bool(ready & set(also))

    def close(self) -> None:
        self._rope.close()
        self._ear.close()
