"""Holding a conversation with the server from the event loop.

The driver describes one as a generator that yields what it waits for. Its own way to wait looks at the socket anew for each
piece of an answer, and wakes the caller for each: a claim of a thousand jobs comes in some twenty pieces, and reading them took
the worker as long as a quarter of the bodies. Here the socket is watched from the first word to the last, each piece is taken in
where it arrives, and the caller wakes once.

Where someone listens to what the server says unasked (see `listening`), the socket is watched for that from one conversation to
the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from psycopg import OperationalError
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

__all__ = ["held"]

T = TypeVar("T")

# Who closes a connection takes its socket from the loop, which then says nothing: so we look.
_LOOK_SECONDS = 1.0


async def held(conversation: PQGen[T], connection: PGconn, listen: Callable[[], None] | None = None) -> T:
    """What it comes to. When the caller is cancelled it is left where it is, and can be gone on with; until then nobody listens."""
    try:
        wanted = next(conversation)
    except StopIteration as end:
        return cast(T, end.value)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    socket, writes = connection.socket, False
    timer: asyncio.TimerHandle

    def go_on(ready: Ready) -> None:
        if ended.done():
            return
        try:
            watch(conversation.send(ready))
        except StopIteration as end:
            ended.set_result(end.value)
        except Exception as error:
            ended.set_exception(error)

    def watch(wanted: Wait) -> None:
        nonlocal writes
        if bool(wanted & Wait.W) is not writes:
            writes = not writes
            loop.add_writer(socket, go_on, Ready.W) if writes else loop.remove_writer(socket)

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(_LOOK_SECONDS, look)
        if ended.done():
            return
        if connection.status == ConnStatus.BAD:
            ended.set_exception(OperationalError("the connection was closed"))
        else:
            # who waited on a connection that was closed had a socket of this number, maybe, and has let go of ours
            loop.add_reader(socket, go_on, Ready.R)

    # always: while we still write, the server may have to get rid of something before it reads on
    loop.add_reader(socket, go_on, Ready.R)
    timer = loop.call_later(_LOOK_SECONDS, look)
    try:
        watch(wanted)
        return await ended
    except asyncio.CancelledError:
        listen = None  # the connection may be given up next, and another have a socket of this number
        raise
    finally:
        timer.cancel()
        if writes:
            loop.remove_writer(socket)
        if listen is not None and connection.status == ConnStatus.OK:
            loop.add_reader(socket, listen)
        else:
            loop.remove_reader(socket)
