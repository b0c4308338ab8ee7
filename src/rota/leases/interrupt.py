"""Ending the body of an `async with` from outside, at a time that may move, the way asyncio.timeout() ends one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["Interrupt"]


class Interrupt:
    """Cancels the task that made it once `left`, asked again whenever its time is up or `look` is called, is no more than 0."""

    def __init__(self, left: Callable[[], float]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._state = "open"
        self._look()

    def look(self) -> None:
        """Ask again now. Safe from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: there is nothing to end
            self._loop.call_soon_threadsafe(self._look)

    def close(self, error: BaseException | None) -> bool:
        """Watch no longer; tells whether the block ended because of us, and not of what someone else wanted."""
        if self._timer is not None:
            self._timer.cancel()
        interrupted, self._state = self._state == "interrupted", "closed"
        return (
            interrupted
            and self._task.uncancel() <= self._cancelling
            and (error is None or isinstance(error, asyncio.CancelledError))
        )

    def _look(self) -> None:
        if self._state != "open":
            return
        if self._timer is not None:
            self._timer.cancel()
        left = self._left()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._state = "interrupted"
            self._task.cancel()
