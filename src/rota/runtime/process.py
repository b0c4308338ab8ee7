"""A worker as a process: signals in, exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn

from rota.app import Rota
from rota.service.loop import leave_stuck

__all__ = ["leave_stuck_threads", "run_worker"]

logger = logging.getLogger("rota")


def run_worker(
    app: Rota,
    *,
    queues: Sequence[str] | None,
    pollers: Sequence[str] | None,
    concurrency: int | None,
    drain: bool,
    grace: float,
) -> None:
    """Work until a signal, or with `drain` until there is nothing left. The second signal stops waiting for bodies."""
    refusing = asyncio.run(_work(app, app.work(queues, concurrency, drain, pollers=pollers, grace=grace)))
    if refusing:
        _leave(f"{refusing} coroutine(s) refuse to be cancelled")
    leave_stuck_threads()


async def _work(app: Rota, work: Coroutine[Any, Any, None]) -> int:
    """Returns how many bodies have been left behind."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)

    def stop() -> None:
        logger.info("stopping")
        if not app.stop():
            working.cancel()  # still starting: there is nothing to drain yet

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await working
    finally:
        await app.close()
        refusing = await leave_stuck()
    return refusing


def leave_stuck_threads(code: int = 0) -> None:
    """A body in a thread cannot be stopped, and its job or row was handed back: do not wait for it at exit, but leave with `code`."""
    # also daemons, which they are when made in a daemon: their pool waits for them at exit
    bodies = [each for each in threading.enumerate() if each.name.startswith(("rota-task", "rota-poll"))]
    stuck = [thread for thread in bodies if _in_a_body(thread)]
    if stuck:
        _leave(f"{len(stuck)} thread(s) are still in the body of a task or the handler of a poller", code)


def _leave(why: str, code: int = 0) -> NoReturn:
    """End this process now. Whatever goes on in it has lost its claim, and is nobody's work any more."""
    logger.warning("%s; leaving without them", why)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _in_a_body(thread: threading.Thread) -> bool:
    """Idle pool threads end by themselves once their pool is shut down; one in a body does not."""
    thread.join(timeout=0.05)
    return thread.is_alive()
