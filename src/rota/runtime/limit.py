"""The end of a process that does not end by itself: whatever its bodies do, it is gone a little after its grace.

A coroutine may ignore its cancellation, a thread cannot be stopped, an exit waits for threads, and C code may let nobody else
run. So a thread counts from the moment the process was asked to end, and ends it; behind that thread stands one in C, which
needs not even the interpreter. What nothing in a process can do is to act on a signal while C code holds the interpreter: that
is acted upon when the code returns, and until then only another process, such as a supervisor, can help.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import threading
from queue import Empty, SimpleQueue

from rota.clock import boottime
from rota.service.ending import ENDING

__all__ = ["GONE_SECONDS", "HARD_LIMIT", "HardLimit"]

#: Seconds beyond the grace in which everything is gone, in whatever way: one process, or several and the one that watches them.
#: This is what whoever kills in the end has to wait, and what guides and `rota doctor` say.
GONE_SECONDS = 5.0
#: In which a process ends itself: enough to give up a database that does not answer, which takes four; and the rest is for who
#: watches it, to kill it if need be and end its membership.
HARD_LIMIT = 4.25
# What the thread in C leaves to the one in Python, which can say more.
_BEHIND_SECONDS = 0.1


class HardLimit:
    """In force from its making until `lift`; counts once the process is asked to exit."""

    def __init__(self, grace: float) -> None:
        self.exit_code = 1
        self._until = math.inf
        # of all queues the one into which a signal handler may put: it may interrupt itself
        self._moments: SimpleQueue[float | None] = SimpleQueue()
        threading.Thread(target=self._watch, name="rota-limit", daemon=True).start()
        self._take_back = [
            ENDING.on_exit(lambda: self.within(grace + HARD_LIMIT)),
            ENDING.on_hurry(lambda: self.within(HARD_LIMIT)),
        ]

    def within(self, seconds: float) -> None:
        """Be gone within so many seconds from now, if it is not to be sooner anyway."""
        moment = boottime() + seconds
        if moment < self._until:
            self._until = moment
            # at once: the other thread would need the interpreter's lock for it, which someone may be about to take for good
            with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):  # nowhere to write to
                faulthandler.dump_traceback_later(seconds + _BEHIND_SECONDS, exit=True)
        self._moments.put(moment)

    def lift(self) -> None:
        """The process goes on after all: for those who work in one of their own."""
        for take_back in self._take_back:
            take_back()
        faulthandler.cancel_dump_traceback_later()
        self._moments.put(None)

    def _watch(self) -> None:
        until = math.inf
        while (left := until - boottime()) > 0:
            try:
                moment = self._moments.get(timeout=None if left == math.inf else left)
            except Empty:
                continue
            if moment is None:
                return
            until = min(until, moment)
        _say_where()
        os._exit(self.exit_code)


def _say_where() -> None:
    since = (
        ""
        if ENDING.began_at is None
        else f" {boottime() - ENDING.began_at:.1f} s after it was asked to ({ENDING.reason})"
    )
    with contextlib.suppress(Exception):
        # past the loggers, whose locks the one who hangs may hold
        os.write(
            2,
            f"rota: process {os.getpid()} has not ended by itself{since}, and is ended now. What it still held is taken over by "
            "others. This is where its threads are:\n".encode(),
        )
        faulthandler.dump_traceback(file=2, all_threads=True)
