"""What systemd wants to know of a service of `Type=notify`: that it is ready, that it stops, and, if it asks, that it is live.

It is told so by datagrams to the socket that NOTIFY_SOCKET names. Where there is none, nothing is done.

systemd listens to the process that it started. Of several processes under one, each tells that one in the same words, by the
line of `lifeline`; and it tells systemd of all of them (`FleetNotice`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator
from typing import Protocol

from rota.runtime.health import Report
from rota.runtime.lifeline import tell_parent, tells_parent

__all__ = ["LOOK_SECONDS", "FleetNotice", "notify", "systemd_notified", "watchdog_seconds"]

LOOK_SECONDS = 1.0
# A start that waits for the database is not given up for that: each look asks for so much more time.
_MORE_TIME = "EXTEND_TIMEOUT_USEC=30000000"


class Asked(Protocol):
    """Whose state is told, as `runtime/health` has it."""

    def live(self) -> Report: ...

    def ready_sync(self) -> Report: ...


def notify(state: str) -> bool:
    """Tell systemd, if it listens. It waits for nobody, and nothing follows if it is not heard."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
        line.setblocking(False)
        line.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
        return True
    return False


@contextlib.contextmanager
def systemd_notified(process: Asked) -> Generator[None]:
    """Keep systemd told for the length of a block, or the process that watches this one, from a thread of its own."""
    if not os.environ.get("NOTIFY_SOCKET") and not tells_parent():
        yield
        return
    over = threading.Event()
    tell = _tell_parent if tells_parent() else _tell
    threading.Thread(target=tell, args=(process, over), name="rota-systemd", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        notify("STOPPING=1")


def _tell_parent(process: Asked, over: threading.Event) -> None:
    is_ready, pause = False, 0.0
    while not over.wait(pause):
        pause = LOOK_SECONDS
        if process.live().well:
            tell_parent("WATCHDOG=1")
        # once only: to be told of each change, the database would have to be asked each second
        if not is_ready and process.ready_sync().well:
            is_ready = True
            tell_parent("READY=1")


def _tell(process: Asked, over: threading.Event) -> None:
    every, is_ready, told = watchdog_seconds(), False, ""
    pause = min(LOOK_SECONDS, every / 2) if every else LOOK_SECONDS
    while not over.wait(pause if told else 0):
        live, ready = process.live().well, process.ready_sync()
        reason = ready.body.get("reason")
        if every and live:
            notify("WATCHDOG=1")  # one that is not live is not said to be: systemd then ends it
        if not is_ready and not ready.well and live:
            notify(_MORE_TIME)
        is_ready = is_ready or ready.well
        state = "READY=1\nSTATUS=ready" if ready.well else f"STATUS=not ready: {reason}"
        state = "STOPPING=1\nSTATUS=stopping" if reason == "shutting_down" else state
        if state != told:
            notify(state)
            told = state


class FleetNotice:
    """What the one that watches several processes tells of them: ready when all are, and that it is live itself.

    One of them that is not live is replaced by it, so that the others need not end for that.
    """

    def __init__(self) -> None:
        self._is_ready = False
        self._status = ""

    def look(self, ready: int, size: int, *, waits: bool) -> None:
        """So many of them are ready. `waits`: the others are live, and what they wait for may take its time."""
        if not self._is_ready and waits and ready < size:
            notify(_MORE_TIME)
        state = f"STATUS={ready} of {size} processes are ready"
        if not self._is_ready and ready >= size:
            self._is_ready = True
            notify("READY=1")
        self._tell(state)

    def stopping(self) -> None:
        self._tell("STOPPING=1\nSTATUS=stopping")

    def _tell(self, state: str) -> None:
        if watchdog_seconds():
            notify("WATCHDOG=1")
        if state != self._status:
            notify(state)
            self._status = state


def watchdog_seconds() -> float | None:
    """How often systemd wants to hear of us at least; None if it does not, or means another process."""
    given, of = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not given.isdigit() or int(given) == 0 or (of and of != str(os.getpid())):
        return None
    return int(given) / 1e6
