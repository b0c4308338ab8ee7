"""Telling an open page what has changed: one stream per tab, which says what each region looks like now, by its digest.

The page fetches those that it shows differently. A stream knows nothing of what was sent before, so it may end at any time and the
next one go on: it does so by itself after a while, and at once when the process is to end, as a server waits for what is open before
it exits. That the process is to end is known from `ENDING`; where no lifespan of ours takes the signals, the stream does, for as
long as it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from rota.dashboard.last_words import told_of_the_end
from rota.service.ending import ENDING

__all__ = ["live_stream"]

_BEAT_SECONDS = 1.0
_LIFE_SECONDS = 20.0
_SILENCE_SECONDS = 8.0  # proxies cut off who says nothing for long


Digests = Callable[[], Awaitable[Mapping[str, str]]]


def live_stream(digests: Digests, until_paid: Callable[[], float]) -> Response:
    """The stream, whose every message is all digests as they are. `until_paid` tells how long to rest after what was just read."""
    if ENDING.begun:
        return PlainTextResponse("This process is to end.", 503, {"retry-after": "1"})
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(_events(digests, until_paid), media_type="text/event-stream", headers=headers)


async def _events(digests: Digests, until_paid: Callable[[], float]) -> AsyncIterator[str]:
    until = time.monotonic() + _LIFE_SECONDS
    said_at, said = time.monotonic(), None
    with told_of_the_end() as ending:
        yield "retry: 1000\n\n"
        while time.monotonic() < until:
            now = await _unless(ending, digests())
            if now is None:
                return
            if now != said:
                said_at, said = time.monotonic(), now
                yield f"data: {json.dumps(now)}\n\n"
            elif time.monotonic() - said_at > _SILENCE_SECONDS:
                said_at = time.monotonic()
                yield ": still here\n\n"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(_BEAT_SECONDS, until_paid())):
                    await ending.wait()


async def _unless(ending: asyncio.Event, reading: Awaitable[Mapping[str, str]]) -> Mapping[str, str] | None:
    """What is read, or None as soon as the process is to end: a database that does not answer must not keep it."""
    read, ended = asyncio.ensure_future(reading), asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait([read, ended], return_when=asyncio.FIRST_COMPLETED)
        return None if ended.done() else read.result()
    finally:
        read.cancel()
        ended.cancel()
