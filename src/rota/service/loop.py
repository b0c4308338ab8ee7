"""An event loop that can be closed, whatever runs on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["leave_refusing", "leave_stuck", "note_refusing", "off_the_loop"]

_PATIENCE_SECONDS = 0.5
_REFUSING = "rota-refusing"


async def leave_stuck() -> int:
    """Cancel all else on this loop, and let it be closed without what refuses to end; returns how many those are.

    The last thing to do on a loop: closing it waits for every task, and would wait for ever for one that ignores its
    cancellation.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return 0
    _, refusing = await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
    for task in refusing:
        asyncio.tasks._unregister_task(task)
    return len(refusing)


def note_refusing(task: asyncio.Task[Any]) -> None:
    """This is a body that was given up, and goes on."""
    task.set_name(_REFUSING)


def leave_refusing() -> int:
    """Let this loop be closed without bodies that were given up and still go on, where it is others' to end; returns how many."""
    refusing = [task for task in asyncio.all_tasks() if task.get_name() == _REFUSING]
    for task in refusing:
        asyncio.tasks._unregister_task(task)
    return len(refusing)


@contextlib.contextmanager
def off_the_loop() -> Iterator[None]:
    """Let a function that is called from a coroutine, and blocks it, run an event loop of its own if it pleases."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
