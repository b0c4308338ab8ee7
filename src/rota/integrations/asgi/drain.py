"""Requests while the process is to end: all are served, and nobody is kept.

From the first signal on every HTTP/1.1 response says `Connection: close`, so that clients with a connection of their own go
elsewhere instead of finding it closed under them. What would never end by itself is ended in the second half of the drain
window: a stream of events gets its last chunk, a WebSocket is closed with 1012, "service restart". What is still under way when
the grace is over, or at the second signal, is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

from rota.app import Rota
from rota.integrations.asgi.lifespan import Life, life_of
from rota.service.ending import ENDING

__all__ = [
    "Asgi",
    "DrainMiddleware",
    "Draining",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "closing",
    "drained",
    "draining",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_RESTART = 1012
# To take the last words of a stream, and to end when told that its client is gone.
_MOMENT_SECONDS = 1.0


class DrainMiddleware:
    """Pure ASGI, for any framework: `api.add_middleware(rota.DrainMiddleware, app=app)`. It belongs outermost.

    `app.attach` has it already. Streams are ended by the clock of `app.lifespan`; without one there is only `Connection: close`.
    """

    def __init__(self, inner: Asgi, /, *, app: Rota) -> None:
        self._inner = inner
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await drained(life_of(self._app), self._inner, scope, receive, send)


class Draining:
    """Whether this process is to end: true or false when asked, and to be awaited by who has nothing else to wait for."""

    def __bool__(self) -> bool:
        return ENDING.begun

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(begun.set)

        take_back = ENDING.on_begin(tell)
        try:
            await begun.wait()
        finally:
            take_back()


def draining() -> Draining:
    """For a body that streams: `while not rota.draining(): yield ...`, or `await rota.draining()` beside what it waits for."""
    return Draining()


async def drained(life: Life | None, inner: Asgi, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the application answer; and if the process is to end meanwhile, have the answer end in time."""
    if scope["type"] == "http":
        exchange: _Http | _Socket = _Http(life, scope, send)
    elif scope["type"] == "websocket":
        exchange = _Socket(life, scope, send)
    else:
        await inner(scope, receive, send)
        return
    if life is not None:
        life.take(exchange)
    try:
        await inner(scope, receive, exchange.send)
    except (Exception, asyncio.CancelledError):
        if not exchange.over:
            raise
        await exchange.last_words()
    finally:
        if life is not None:
            life.drop(exchange)


class _Exchange:
    """One scope under way. `over` when we have ended it: what the application still says goes nowhere."""

    def __init__(self, life: Life | None, scope: Scope, send: Send) -> None:
        self._life = life
        self._scope = scope
        self._send = send
        self._task = asyncio.current_task()
        self._begun = False
        self.over = False

    async def say(self, *messages: Message) -> None:
        with contextlib.suppress(Exception):  # the client may be gone, or not take it
            async with asyncio.timeout(_MOMENT_SECONDS):
                for message in messages:
                    await self._send(message)

    def leave(self) -> None:
        """Have the application's coroutine end; `drained` sees that it was us."""
        self.over = True
        if self._task is not None:
            self._task.cancel()

    def gone(self) -> OSError:
        return ConnectionResetError("The process is to end, and this connection was ended with it.")


class _Http(_Exchange):
    endless = False

    async def send(self, message: Message) -> None:
        if self.over:
            raise self.gone()
        if message["type"] == "http.response.start":
            self._begun = True
            if _is_event_stream(message) and self._life is not None:
                self.endless = True
                self._life.take(self)
            if ENDING.begun and self._scope.get("http_version", "1.1").startswith("1"):
                message = closing(message)
        await self._send(message)

    async def end(self) -> None:
        if not self.over:
            self.over = True
            await self.say({"type": "http.response.body", "body": b"", "more_body": False})
            self.leave()

    def cut(self) -> None:
        self.leave()

    async def last_words(self) -> None:
        _forget_cancelling(self._task)
        if not self._begun:
            headers = [(b"content-length", b"0"), (b"retry-after", b"1"), (b"connection", b"close")]
            await self.say(
                {"type": "http.response.start", "status": 503, "headers": headers},
                {"type": "http.response.body", "body": b""},
            )
        elif not self.endless:
            # half an answer must not look like a whole one: a server closes the connection of who raises
            raise self.gone()


class _Socket(_Exchange):
    endless = True

    async def send(self, message: Message) -> None:
        if self.over:
            raise self.gone()
        self._begun = self._begun or message["type"] == "websocket.accept"
        await self._send(message)

    async def end(self) -> None:
        if self.over or not self._begun:
            self.leave()
            return
        self.over = True
        await self.say({"type": "websocket.close", "code": _RESTART, "reason": "the server is restarted"})
        # the server tells the application that its client is gone, which is more natural than to be cancelled
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_MOMENT_SECONDS)
            if not self._task.done():
                self.leave()

    def cut(self) -> None:
        self.leave()

    async def last_words(self) -> None:
        _forget_cancelling(self._task)


def closing(message: Message) -> Message:
    """The same start of a response, with `Connection: close`."""
    headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"connection"]
    return {**message, "headers": [*headers, (b"connection", b"close")]}


def _is_event_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.lower().startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )


def _forget_cancelling(task: asyncio.Task[Any] | None) -> None:
    """It was us who cancelled it, and that has done its work."""
    if task is not None:
        while task.cancelling():
            task.uncancel()
