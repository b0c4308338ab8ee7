"""A thread that sees when an event loop does not turn, and who keeps it from turning.

Now and then it hands the loop a call and looks when that was run. A loop that is late has a lag; one that is late by a second
is blocked, which is told together with what its thread is doing at that moment, since afterwards nobody can tell. One that is
seen to wait for something to do is not blocked, and mostly left in peace: a machine may have many idle processes.

The thread also looks at its own lateness. When it was late itself the whole process stood still, as after SIGSTOP or on a
laptop that slept, and nothing on the loop is to blame for that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
import threading
import traceback
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rota.clock import boottime
from rota.facts import Facts, LoopBlocked, LoopFree

__all__ = ["Lag", "Watchdog", "watchdogs", "watched"]

_LOOK_SECONDS = 0.5
# A loop that waits is handed a call at every so many looks only, as each wakes it: for its lag, since it may also be late to
# have its turn when there is something to do.
_ASK_IDLE_EVERY = 8
# While a call has not been run yet it is looked at sooner, so that a second is not told as one and a half.
_WAIT_SECONDS = 0.25
# What a busy machine may cost this thread before it counts as having stood still.
_LATE_SECONDS = 0.5
# One that stays blocked is told again when it has been so for this many times as long.
_AGAIN = 4
# For how long the longest lag is remembered: more than the time between two looks at the metrics.
_WINDOW_SECONDS = 60.0

_OUTER_FRAMES, _INNER_FRAMES = 5, 20
_STACK_LENGTH = 8000
_ASYNCIO = str(Path(asyncio.__file__).parent)
_TURNING = ("_run", "_run_once", "run_forever", "run_until_complete", "run")
_ONE_TURN = getattr(getattr(asyncio.BaseEventLoop, "_run_once", None), "__code__", None)


@dataclass(frozen=True, slots=True)
class Lag:
    """How late the loop was, in seconds: the last time, and at most within the last minute."""

    last: float
    longest: float


class Watchdog:
    """Watches one loop, from `start` until `stop`. What it sees goes to all of `facts`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *facts: Facts, warn_after: float = 1.0) -> None:
        self.loop = loop
        self.facts = list(facts)
        self._warn_after = warn_after
        self._posted_at: float | None = None
        self._ran_at: float | None = None
        # the last time this thread had its turn: until then the loop is known to be blocked
        self._seen_at = 0.0
        self._tell_at = warn_after
        self._lags: deque[tuple[float, float]] = deque()
        self._left_in_peace = 0
        self._of_loop: int | None = None
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                self._of_loop = threading.get_ident()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rota-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Harmless the second time. It does not wait: nothing follows from the thread's last look."""
        self._stopping.set()

    @property
    def blocked_for(self) -> float:
        """For how long the loop has not turned now, 0 while it does. A process that stood still itself was not blocked."""
        posted_at = self._posted_at
        if posted_at is None or self._ran_at is not None or not self._runs:
            return 0.0
        return max(0.0, self._seen_at - posted_at)

    @property
    def lag(self) -> Lag:
        now, lags = boottime(), list(self._lags)
        recent = [lag for at, lag in lags if now - at < _WINDOW_SECONDS]
        return Lag(max(self.blocked_for, lags[-1][1] if lags else 0.0), max(self.blocked_for, *recent, 0.0))

    @property
    def _runs(self) -> bool:
        """Whether anybody turns it: one that is between two runs is not blocked."""
        return self.loop.is_running()

    @property
    def _waits(self) -> bool:
        """Whether its thread is seen to wait for something to do on this very loop; False of a kind of loop where that does not show.

        Who waits elsewhere, within a body or on a loop of its own in there, blocks this one.
        """
        frame = sys._current_frames().get(self._of_loop) if self._of_loop is not None else None
        if frame is None or frame.f_code.co_name != "select" or frame.f_code.co_filename != selectors.__file__:
            return False
        turn = frame.f_back
        return turn is not None and turn.f_code is _ONE_TURN and turn.f_locals.get("self") is self.loop

    def _run(self) -> None:
        looked_at = boottime()
        while True:
            pause = _LOOK_SECONDS if self._posted_at is None else _WAIT_SECONDS
            stopped = self._stopping.wait(pause)
            now = boottime()
            late = now - looked_at - pause
            looked_at = now
            if stopped or self.loop.is_closed():
                return
            self._look(now, stood_still=late if late > _LATE_SECONDS else 0.0)

    def _look(self, now: float, *, stood_still: float) -> None:
        if self._posted_at is not None:
            self._posted_at = min(now, self._posted_at + stood_still)
            self._seen_at = now
            if self._ran_at is not None:
                self._turned(max(0.0, self._ran_at - self._posted_at), now)
                return
            if not self._runs:
                self._posted_at = now  # nobody turns it; that is not its fault
            elif now - self._posted_at >= self._tell_at:
                self._tell(now - self._posted_at)
        if self._posted_at is None:
            if self._left_in_peace < _ASK_IDLE_EVERY - 1 and self._waits:
                self._left_in_peace += 1
                self._turned(0.0, now)
                return
            self._left_in_peace = 0
            self._ran_at, self._posted_at, self._seen_at = None, now, now
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self.loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        """Runs in the loop."""
        self._of_loop = threading.get_ident()
        self._ran_at = boottime()

    def _turned(self, lag: float, now: float) -> None:
        self._posted_at = None
        self._lags.append((now, lag))
        while now - self._lags[0][0] > _WINDOW_SECONDS:
            self._lags.popleft()
        if self._tell_at > self._warn_after:
            self._tell_at = self._warn_after
            self._emit(LoopFree(lag))

    def _tell(self, seconds: float) -> None:
        self._tell_at = seconds * _AGAIN
        frame = sys._current_frames().get(self._of_loop) if self._of_loop is not None else None
        stack = "" if frame is None else _in_words(frame)
        self._emit(LoopBlocked(seconds, stack))

    def _emit(self, fact: LoopBlocked | LoopFree) -> None:
        for facts in {id(each): each for each in tuple(self.facts)}.values():  # of an app that has two workers, once
            facts.emit(fact)


def _in_words(frame: FrameType) -> str:
    """Where this frame is, the innermost call last, without what turns the loop."""
    frames = list(traceback.extract_stack(frame))
    turning = [
        place for place, each in enumerate(frames) if each.filename.startswith(_ASYNCIO) and each.name in _TURNING
    ]
    frames = frames[turning[-1] + 1 :] if turning else frames
    left_out = len(frames) - _OUTER_FRAMES - _INNER_FRAMES
    if left_out > 0:
        lines = [
            *traceback.format_list(frames[:_OUTER_FRAMES]),
            f"  ... {left_out} calls in between ...\n",
            *traceback.format_list(frames[-_INNER_FRAMES:]),
        ]
    else:
        lines = traceback.format_list(frames)
    return "".join(lines)[-_STACK_LENGTH:].rstrip()


_lock = threading.Lock()
_watched: dict[asyncio.AbstractEventLoop, Watchdog] = {}


@contextlib.contextmanager
def watched(facts: Facts, loop: asyncio.AbstractEventLoop | None = None) -> Generator[Watchdog]:
    """Have this loop, or the running one, watched for the length of a block: by one watchdog, however many ask for it."""
    loop = loop or asyncio.get_running_loop()
    with _lock:
        watchdog = _watched.get(loop)
        if watchdog is None:
            watchdog = _watched[loop] = Watchdog(loop)
            watchdog.start()
        watchdog.facts.append(facts)
    try:
        yield watchdog
    finally:
        with _lock:
            watchdog.facts.remove(facts)
            if not watchdog.facts:
                watchdog.stop()
                del _watched[loop]


def watchdogs(facts: Facts) -> list[Watchdog]:
    """Those that watch a loop for the app whose facts these are."""
    with _lock:
        return [watchdog for watchdog in _watched.values() if any(each is facts for each in watchdog.facts)]
