"""A worker as a process: signals in, exit code out.

The first SIGTERM or SIGINT begins the ending of this process, the second hurries it; SIGQUIT shows where all threads are, and
everything goes on. The handlers only say so to `ENDING`, as they may interrupt anything; the loop does the rest, and while the
loop is blocked the hard limit already counts. The pool is closed last.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, NoReturn

from rota.app import Rota
from rota.clock import boottime
from rota.errors import RotaError
from rota.facts import Drained, Ended, EndingBegan, EndingHurried, Fact, Facts, StageFailed
from rota.runtime.lifeline import is_watched
from rota.runtime.limit import HARD_LIMIT, HardLimit
from rota.service.ending import ENDING
from rota.service.loop import leave_stuck
from rota.service.stages import stopped

__all__ = [
    "bodies_in_threads",
    "ending_by_signals",
    "leave",
    "leaving_by_signals",
    "left_behind",
    "on_ending",
    "run_worker",
]

logger = logging.getLogger("rota")

# What closing connections may take; those in use by a body that goes on are not waited for any longer.
_POOL_SECONDS = 2.0
# How long an idle thread has to end, once its pool is closed.
_THREAD_SECONDS = 0.05
# Whose bodies nobody waits for: they have lost their claims.
_OURS = ("rota-task", "rota-poll", "rota-project")


def run_worker(
    app: Rota,
    *,
    queues: Sequence[str] | None,
    pollers: Sequence[str] | None,
    concurrency: int | None,
    drain: bool,
    grace: float,
) -> None:
    """Work until a signal, or with `drain` until there is nothing left. The second signal stops waiting for bodies.

    Exits with 1 when something had to be left behind, or could not be written down.
    """
    limit, known = HardLimit(grace), set(threading.enumerate())
    app.exits = ENDING.begin
    # What is there by now stays: a collector that walks through all of it for every few thousand jobs takes a tenth of their time.
    gc.collect()
    gc.freeze()
    with ending_by_signals():
        try:
            left = asyncio.run(_work(app, app.work(queues, concurrency, drain, pollers=pollers, grace=grace)))
        except RotaError as error:
            limit.exit_code = error.exit_code
            raise
        finally:
            stuck = bodies_in_threads(known)
            if ENDING.begun or stuck:
                limit.within(HARD_LIMIT)  # the interpreter waits for threads, ours and others
            else:
                limit.lift()
    if left := [*left, *stuck]:
        leave("; ".join(left))
    if ENDING.began_at is not None:
        app.facts.emit(Ended(boottime() - ENDING.began_at))


@contextlib.contextmanager
def leaving_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGINT end this process at once and in order, as long as it has nothing in hand.

    The first process of a container would not be ended by them otherwise.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    with _handling(leave):
        yield


@contextlib.contextmanager
def ending_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGINT begin the ending of this process, and the second of them hurry it."""

    def ask(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not ENDING.begin(name) and not (name == ENDING.reason == "SIGTERM" and is_watched()):
            ENDING.hurry()

    with _handling(ask):
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):  # no such signal, or no stderr
            faulthandler.register(signal.SIGQUIT, all_threads=True)
        yield


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if not ENDING.begun:  # else this process is about to go, and one more signal must not change how
            for number, handled in before.items():
                signal.signal(number, handled)


@contextlib.contextmanager
def on_ending(began: Callable[[], None], hurried: Callable[[], None]) -> Iterator[None]:
    """Have these called on this event loop when the process is asked to end, and asked again, during the block."""
    loop = asyncio.get_running_loop()

    def on_loop(call: Callable[[], None]) -> Callable[[], None]:
        def tell() -> None:
            loop.call_soon_threadsafe(call)

        return tell

    take_back = [ENDING.on_begin(on_loop(began)), ENDING.on_hurry(on_loop(hurried))]
    try:
        yield
    finally:
        for each in take_back:
            each()


async def _work(app: Rota, work: Coroutine[Any, Any, None]) -> list[str]:
    """Returns what was left behind, in words."""
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(thread_name_prefix="rota-task-beside")  # of asyncio.to_thread()
    loop.set_default_executor(threads)
    working = loop.create_task(work)

    def stop() -> None:
        if not app.stop():
            working.cancel()  # still starting: there is nothing to drain yet

    def began() -> None:
        app.facts.emit(EndingBegan(str(ENDING.reason)))
        stop()

    def hurried() -> None:
        app.facts.emit(EndingHurried())
        stop()

    left, unsubscribe = left_behind(app.facts)
    try:
        with on_ending(began, hurried), contextlib.suppress(asyncio.CancelledError):
            await working
    finally:
        await stopped(app.facts, "pool", app.close(), within=_POOL_SECONDS)
        unsubscribe()
        if refusing := await leave_stuck():
            left.append(f"{refusing} coroutine(s) refuse to be cancelled")
        # the loop would wait for what runs in its threads when it is closed: let it have others
        threads.shutdown(wait=False, cancel_futures=True)
        loop.set_default_executor(ThreadPoolExecutor())
    return left


def left_behind(facts: Facts) -> tuple[list[str], Callable[[], None]]:
    """What could not be ended in order, in words, from now on; and how to stop noting it."""
    left: list[str] = []

    def note(fact: Fact) -> None:
        if isinstance(fact, StageFailed):
            left.append(f"{fact.name} could not be stopped")
        elif isinstance(fact, Drained) and fact.abandoned:
            left.append(f"the end of {fact.abandoned} job(s) or row(s) could not be written down")

    return left, facts.subscribe(note, StageFailed, Drained)


def bodies_in_threads(known: Collection[threading.Thread] = ()) -> list[str]:
    """A body in a thread cannot be stopped, and its job or row was handed back: do not wait for it at exit. Not those `known` before:
    they are somebody else's."""
    # also daemons, which they are when made in a daemon: their pool waits for them at exit
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(_OURS) and thread not in known]
    busy = [thread for thread in ours if _in_a_body(thread)]
    return (
        [f"{len(busy)} thread(s) are still in the body of a task or the handler of a poller or projection"]
        if busy
        else []
    )


def _in_a_body(thread: threading.Thread) -> bool:
    """Idle pool threads end by themselves once their pool is shut down; one in a body does not."""
    thread.join(timeout=_THREAD_SECONDS)
    return thread.is_alive()


def leave(left: str, code: int = 1) -> NoReturn:
    """End this process now. Whatever goes on in it has lost its claim, and is nobody's work any more."""
    logger.warning("%s; leaving without them", left)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
