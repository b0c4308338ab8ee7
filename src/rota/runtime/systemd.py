"""What systemd wants to know of a service of `Type=notify`: that it is ready, that it stops, and, if it asks, that it is live.

It is told so by datagrams to the socket that NOTIFY_SOCKET names. Where there is none, nothing is done.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator

from rota.runtime.health import Health

__all__ = ["notify", "systemd_notified"]

_LOOK_SECONDS = 1.0
# A start that waits for the database is not given up for that: each look asks for so much more time.
_MORE_TIME = "EXTEND_TIMEOUT_USEC=30000000"


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
def systemd_notified(health: Health) -> Generator[None]:
    """Keep systemd told for the length of a block, from a thread of its own."""
    if not os.environ.get("NOTIFY_SOCKET"):
        yield
        return
    over = threading.Event()
    threading.Thread(target=_tell, args=(health, over), name="rota-systemd", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        notify("STOPPING=1")


def _tell(health: Health, over: threading.Event) -> None:
    every, is_ready, told = _watchdog_seconds(), False, ""
    pause = min(_LOOK_SECONDS, every / 2) if every else _LOOK_SECONDS
    while not over.wait(pause if told else 0):
        live, ready = health.live().well, health.ready_sync()
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


def _watchdog_seconds() -> float | None:
    """How often systemd wants to hear of us at least; None if it does not, or means another process."""
    given, of = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not given.isdigit() or int(given) == 0 or (of and of != str(os.getpid())):
        return None
    return int(given) / 1e6
