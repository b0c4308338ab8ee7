"""A process that is to end waits for no reader: what is being read then has a moment, and is given up.

A server waits for what is open before it exits, and a database that does not answer would keep it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from rota.errors import DatabaseUnavailable
from rota.integrations.asgi.signals import HOOK, Unhooked
from rota.service.ending import ENDING

__all__ = ["before_the_end", "told_of_the_end"]

T = TypeVar("T")

# Almost everything is read within this time, and need not be told of anything.
_SOON_SECONDS = 0.2
# What is being read when the end begins has so long.
_MERCY_SECONDS = 0.3


async def before_the_end(reading: Awaitable[T]) -> T:
    """What is read. Raises DatabaseUnavailable when the process is to end and it is not there a moment later; then it is cancelled."""
    read = asyncio.ensure_future(reading)
    try:
        await asyncio.wait([read], timeout=_SOON_SECONDS)
        if not read.done():
            with told_of_the_end() as ending:
                await _first(read, ending)
                await asyncio.wait([read], timeout=_MERCY_SECONDS)
        if not read.done():
            raise DatabaseUnavailable(
                "This process is to end, and the database has not answered yet. Load the page again: another may serve it."
            )
        return read.result()
    finally:
        read.cancel()


async def _first(read: asyncio.Future[Any], ending: asyncio.Event) -> None:
    ended = asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait([read, ended], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()


@contextlib.contextmanager
def told_of_the_end() -> Iterator[asyncio.Event]:
    """Set when the process is to end. Where no lifespan of ours takes the signals, they are taken for the length of the block."""
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all is over
            loop.call_soon_threadsafe(begun.set)

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Unhooked):  # then it ends with its time
            stack.callback(HOOK.enter(lambda: 0.0))
        stack.callback(ENDING.on_begin(tell))
        yield begun
