"""That this process is to end: asked once it drains, asked again it hurries.

One object for the whole process, `ENDING`, as a signal is for all of it: readiness, claiming, open streams and every app in the
process go by it. Who begins it is a signal, a supervisor that is gone, or an endpoint; what follows is up to those who asked
to be told. The endpoint has the process drained, and leaves its exit to a signal that comes later.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from rota.clock import boottime

__all__ = ["ENDING", "Ending"]


class Ending:
    """Safe from any thread, and from a signal handler, which may interrupt its own thread anywhere in here."""

    def __init__(self) -> None:
        # a handler that comes while its thread is inside must not wait for itself
        self._lock = threading.RLock()
        self._on_begin: list[Callable[[], None]] = []
        self._on_exit: list[Callable[[], None]] = []
        self._on_hurry: list[Callable[[], None]] = []
        self._forget()

    def _forget(self) -> None:
        self.begun = False
        #: whether it is to exit as well, which who only has it drained leaves to others
        self.exits = False
        self.hurried = False
        #: what it began with, such as "SIGTERM"
        self.reason: str | None = None
        #: when, on the clock of `boottime`
        self.began_at: float | None = None

    def begin(self, reason: str, *, exits: bool = True) -> bool:
        """The process is to end. Harmless the second time; returns whether it was the first."""
        calls: list[Callable[[], None]] = []
        with self._lock:
            first = not self.begun
            if first:
                self.begun, self.reason, self.began_at = True, reason, boottime()
                calls += self._on_begin
            if exits and not self.exits:
                self.exits = True
                calls += self._on_exit
        for call in calls:
            call()
        return first

    def hurry(self, reason: str = "asked again") -> None:
        """Stop waiting for what has not ended by itself."""
        self.begin(reason)
        with self._lock:
            if self.hurried:
                return
            self.hurried = True
            calls = list(self._on_hurry)
        for call in calls:
            call()

    def on_begin(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have this called once, in the thread that begins, or at once if it has begun; returns how to take it back.

        It may be called from within a signal handler: hand over to a loop or thread, do not work.
        """
        return self._told(self._on_begin, call, lambda: self.begun)

    def on_exit(self, call: Callable[[], None]) -> Callable[[], None]:
        """The same for when it is to exit, not only to be drained."""
        return self._told(self._on_exit, call, lambda: self.exits)

    def on_hurry(self, call: Callable[[], None]) -> Callable[[], None]:
        """The same for when it is asked again."""
        return self._told(self._on_hurry, call, lambda: self.hurried)

    def reset(self) -> None:
        """For tests: as if nobody had asked. Those who wait to be told still do."""
        with self._lock:
            self._forget()

    def _told(
        self, calls: list[Callable[[], None]], call: Callable[[], None], over: Callable[[], bool]
    ) -> Callable[[], None]:
        with self._lock:
            calls.append(call)
            late = over()
        if late:
            call()

        def take_back() -> None:
            with self._lock, contextlib.suppress(ValueError):
                calls.remove(call)

        return take_back


ENDING = Ending()
