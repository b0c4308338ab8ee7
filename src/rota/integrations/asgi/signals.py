"""Taking SIGTERM and SIGINT before the server does, and handing them on when the drain window is over.

A server that is told to stop closes its listener first and runs the application's shutdown last, so there it is too late to
say 503: nobody can ask any more. So the application is told first. The hook is set inside the lifespan's startup, when the
server has set its own handlers, and chains to them; there is one for the process, however many applications are in it.

    first signal     the process is to end (`ENDING`); the server hears of it when the window is over
    second signal    it hurries, and the server hears of it at once

No window where nobody waits for one: while the application still starts, at a terminal's Ctrl-C, and under a reloader, where
also nothing is waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rota.clock import boottime
from rota.runtime.lifeline import is_watched
from rota.service.ending import ENDING, Ending

__all__ = ["HOOK", "SignalHook", "Unhooked", "server_config"]

_NUMBERS = (signal.SIGTERM, signal.SIGINT)

PassOn = Callable[[int, FrameType | None], object]


class Unhooked(Exception):
    """The signals cannot be taken here; the text says why, and what to do instead. `expected` where nobody would mind."""

    def __init__(self, why: str, *, expected: bool = False) -> None:
        super().__init__(why)
        self.expected = expected


class SignalHook:
    """From the first `enter` until the last `leave`. Belongs to the main thread."""

    def __init__(self, ending: Ending = ENDING) -> None:
        self._ending = ending
        self._windows: list[Callable[[], float]] = []
        self._server: dict[int, PassOn] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received: list[int] = []

    def enter(self, window: Callable[[], float]) -> Callable[[], None]:
        """Take the signals, with the longest of all windows; returns how to leave. Raises Unhooked."""
        if not self._windows:
            self._install()
        self._windows.append(window)

        def leave() -> None:
            if window in self._windows:
                self._windows.remove(window)
                if not self._windows:
                    self._restore()

        return leave

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise Unhooked("this is not the main thread, and signals are told to that one alone", expected=True)
        self._loop = loop = asyncio.get_running_loop()
        self._received.clear()
        found = {number: _handler(loop, number) for number in _NUMBERS}
        if found[signal.SIGTERM] is None:
            raise Unhooked(
                "no handler of a server for SIGTERM is found in this process, so there is nothing to hand it on to "
                "(hypercorn: start it with --workers 0; granian: with --loop asyncio)"
            )
        for number, handler in found.items():
            if handler is not None:
                self._server[number] = handler
                if number in _loop_handlers(loop):
                    loop.add_signal_handler(number, self._receive, number, None)
                else:
                    signal.signal(number, self._receive)

    def _restore(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop, self._loop, self._timer = self._loop, None, None
        for number, handler in self._server.items():
            handle = _loop_handlers(loop).get(number)
            if handle is not None and handle._callback == self._receive and loop is not None:
                loop.add_signal_handler(number, handler, number, None)
            # someone else's that came later stays: it hands on to us, and we to the server
            elif signal.getsignal(number) == self._receive:
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between any two steps of it: say so, and leave the rest to the loop."""
        if self._windows and number == signal.SIGTERM and self._received == [signal.SIGTERM] and is_watched():
            return
        self._received.append(number)
        name = signal.Signals(number).name
        wait = 0.0
        if not self._windows:
            pass  # all have left: it is the server's alone
        elif len(self._received) > 1 or _reloads(self._server[number]):
            self._ending.hurry(name)
        else:
            self._ending.begin(name)
            # it may have begun before, by the endpoint: then a part of the window is over
            passed = boottime() - (self._ending.began_at or 0.0)
            wait = 0.0 if _typed(number) else max(window() for window in self._windows) - passed
        if wait > 0 and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_on_later, wait, number)
        else:
            self._hand_on(number, frame)

    def _hand_on_later(self, wait: float, number: int) -> None:
        assert self._loop is not None
        if len(self._received) == 1:  # else it is handed on already
            self._timer = self._loop.call_later(wait, self._hand_on, number, None)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server[number](number, frame)


#: The one of this process.
HOOK = SignalHook()


def server_config(handler: object = None) -> Any:
    """The configuration of the uvicorn that runs this process, where that can be seen: by whose signal handler it is."""
    taken = handler or HOOK._server.get(signal.SIGTERM)
    return getattr(getattr(taken, "__self__", None), "config", None)


def _handler(loop: asyncio.AbstractEventLoop, number: int) -> PassOn | None:
    """What handles this signal now, as something to call; None if nothing does, or nothing that can be called."""
    handle = _loop_handlers(loop).get(number)
    if handle is not None:
        callback, arguments = handle._callback, handle._args
        return lambda *_: callback(*arguments)
    handler = signal.getsignal(number)
    # what uvloop leaves as the handler of a signal that it handles itself cannot be called
    return handler if callable(handler) and not getattr(handler, "__module__", "").startswith("uvloop") else None


def _loop_handlers(loop: asyncio.AbstractEventLoop | None) -> dict[int, Any]:
    """The handlers that were set by `loop.add_signal_handler`. The loop has no way to ask; this name is as old as asyncio."""
    return getattr(loop, "_signal_handlers", None) or {}


def _reloads(handler: object) -> bool:
    return bool(getattr(server_config(handler), "reload", False))


def _typed(number: int) -> bool:
    """Whether it is somebody's Ctrl-C at a terminal: they wait for the prompt, and no balancer asks."""
    return number == signal.SIGINT and any(os.isatty(stream) for stream in (0, 1, 2))
