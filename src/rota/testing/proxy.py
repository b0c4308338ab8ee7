"""A network that misbehaves on demand, between a client and PostgreSQL.

The proxy runs in a thread of its own, so it serves sync and async tests alike, and each of its verbs has taken effect when
it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from rota.testing.wire import Conversation

__all__ = ["TcpProxy"]

_RESET = struct.pack("ii", 1, 0)  # linger for no time: the peer gets a reset instead of an orderly end


class TcpProxy:
    """Stands in front of a server: an address (DSN), a (host, port), or the path of a Unix socket.

    `delay` is how many seconds every piece is held back, each way; it may be set at any time. `cuts` counts the connections
    that `cut_after` has ended.
    """

    def __init__(self, target: str | Path | tuple[str, int]) -> None:
        self.delay = 0.0
        self.cuts = 0
        self.port = 0
        self._target = _read_address(target) if isinstance(target, str) else target
        self._patterns: list[bytes] = []
        self._refusing = False
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rota-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def dsn(self, dsn: str) -> str:
        """The same address through this proxy, without encryption, which could not be looked into."""
        plain = make_conninfo(dsn, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable")
        return make_conninfo(
            "", **{name: value for name, value in conninfo_to_dict(plain).items() if name != "hostaddr"}
        )

    @property
    def connections(self) -> int:
        """How many connections are open through it."""
        return len(self._links)

    def blackhole(self) -> None:
        """Keep all connections open and let nothing through; new ones are not answered. What is sent waits for `heal`."""
        self._in_loop(self._flowing.clear)

    def heal(self) -> None:
        """Behave again: what was held back flows, nothing is delayed or refused, and no further answer is swallowed."""

        def heal() -> None:
            self.delay = 0.0
            self._refusing = False
            self._patterns.clear()
            self._flowing.set()

        self._in_loop(heal)

    def cut(self) -> None:
        """Reset all connections. New ones are served."""
        self._in_loop(self._cut)

    def refuse(self) -> None:
        """Reset all connections, and new ones as they come, until `heal`: a server that is down."""

        def refuse() -> None:
            self._refusing = True
            self._cut()

        self._in_loop(refuse)

    def cut_after(self, pattern: bytes, times: int = 1) -> None:
        """Lose the reply to a statement: let it be executed and answered, swallow the answer, reset the connection.

        Meant are the next `times` executions whose text or parameters contain the pattern, on any connection: b"COMMIT", or the
        name in a statement's comment, b"rota:succeed ".
        """
        self._in_loop(lambda: self._patterns.extend([pattern] * times))

    def _in_loop(self, act: Callable[[], object]) -> None:
        async def acted() -> None:
            act()

        asyncio.run_coroutine_threadsafe(acted(), self._loop).result()

    def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _listen(self) -> asyncio.Server:
        self._flowing.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _end(self) -> None:
        self._server.close()
        self._cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await self._flowing.wait()
            if self._refusing:
                return
            if isinstance(self._target, Path):
                server = await asyncio.open_unix_connection(self._target)
            else:
                server = await asyncio.open_connection(*self._target)
            with contextlib.closing(server[1]), self._linked(_Link(self, writer, server[1])) as link:
                ways = {
                    self._loop.create_task(self._carry(reader, link.to_server)),
                    self._loop.create_task(self._carry(server[0], link.to_client)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    @contextlib.contextmanager
    def _linked(self, link: _Link) -> Iterator[_Link]:
        self._links.add(link)
        try:
            yield link
        finally:
            self._links.discard(link)

    async def _carry(self, reader: asyncio.StreamReader, deliver: Callable[[bytes], None]) -> None:
        while data := await reader.read(65536):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._flowing.wait()
            deliver(data)

    def _wants(self, text: bytes, parameters: bytes) -> bool:
        for pattern in self._patterns:
            if pattern in text or pattern in parameters:
                self._patterns.remove(pattern)
                return True
        return False


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: TcpProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._conversation = Conversation(proxy._wants)

    def to_server(self, data: bytes) -> None:
        self._conversation.sent(data)
        self._server.write(data)

    def to_client(self, data: bytes) -> None:
        self._conversation.received(data)
        if not self._conversation.watched:
            self._client.write(data)
        elif self._conversation.answered:
            self._proxy.cuts += 1
            self.reset()

    def reset(self) -> None:
        for side in (self._client, self._server):
            connection: socket.socket = side.get_extra_info("socket")
            if connection.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            side.transport.abort()


def _read_address(dsn: str) -> Path | tuple[str, int]:
    parameters = conninfo_to_dict(dsn)
    host, port = str(parameters.get("host") or "localhost"), int(parameters.get("port") or 5432)
    return Path(host, f".s.PGSQL.{port}") if host.startswith("/") else (host, port)
