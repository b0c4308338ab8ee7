"""A client-side balancer and its clients, in a process of their own: `python -m tests.web.balanced`.

It probes /health/ready of each backend, and keeps a list of those that answer 200. Of the clients, the closed-loop ones take a
backend from the list for every request, each on a connection of its own; the pinned ones stay on theirs until the server says
that it closes it. A request fails when it gets no whole answer with 200; nobody tries again, and nobody waits for one.

What to do comes as lines of JSON on standard input: {"backends": [ports]} says which there are, {"begin": true} lets the clients
loose, {"end": true} asks for the result. What it sees is said as lines of JSON on standard output.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any


class Balancer:
    def __init__(self, probe_every: float) -> None:
        self._probe_every = probe_every
        self._ports: list[int] = []
        self._ready: set[int] = set()
        self._probing: dict[int, asyncio.Task[None]] = {}
        self.changed = asyncio.Event()
        self.result: dict[str, Any] = {"requests": 0, "failed": [], "unready": {}, "pinned": 0, "moved": 0}

    def use(self, ports: list[int]) -> None:
        """These are the backends from now on; one that is left out is not probed any more."""
        for port in set(ports) - set(self._ports):
            self._probing[port] = asyncio.create_task(self._probe(port))
        for port in set(self._ports) - set(ports):
            self._probing.pop(port).cancel()
            self._ready.discard(port)
        self._ports = ports

    async def backend(self) -> int:
        while not self._ready:
            self.changed.clear()
            await self.changed.wait()
        return random.choice(sorted(self._ready))

    async def _probe(self, port: int) -> None:
        while True:
            status = await self._ask_ready(port)
            before = port in self._ready
            if status == 200:
                self._ready.add(port)
            else:
                self._ready.discard(port)
            if status == 503 and before:  # it was ready before: this is the word that saves requests
                self.result["unready"][str(port)] = self.result["unready"].get(str(port), 0) + 1
            if before != (status == 200):
                self.changed.set()
                say({"port": port, "ready": status == 200, "status": status})
            await asyncio.sleep(self._probe_every)

    async def _ask_ready(self, port: int) -> int | None:
        try:
            connection = await Connection.open(port)
            async with asyncio.timeout(2):
                status, _ = await connection.get("/health/ready")
            connection.close()
            return status
        except (OSError, EOFError, TimeoutError, ValueError):
            return None

    async def closed_loop(self) -> None:
        while True:
            port = await self.backend()
            await self._request(port, None)
            await asyncio.sleep(0.02)  # there are others on this machine

    async def pinned(self, pause: float) -> None:
        connection: Connection | None = None
        port = 0
        while True:
            if connection is None:
                port = await self.backend()
                self.result["pinned"] += 1
            connection = await self._request(port, connection, keep=True)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))

    async def _request(self, port: int, connection: Connection | None, keep: bool = False) -> Connection | None:
        """Ask once; the connection is returned if it is to be kept and the server keeps it."""
        self.result["requests"] += 1
        had = connection is not None
        try:
            async with asyncio.timeout(5):
                connection = connection or await Connection.open(port)
                status, closes = await connection.get("/", close=not keep)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self._failed(f"{'pinned' if had else 'new'} connection to {port}: {error!r}")
            if connection is not None:
                connection.close()
            return None
        if status != 200:
            self._failed(f"{port}: {status}")
        if keep and not closes:
            return connection
        connection.close()
        self.result["moved"] += keep
        return None

    def _failed(self, why: str) -> None:
        self.result["failed"].append(why)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def get(self, path: str, close: bool = False) -> tuple[int, bool]:
        """The status, and whether the server closes the connection."""
        last = "Connection: close\r\n" if close else ""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: site\r\n{last}\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next((int(line.partition(":")[2]) for line in head if line.startswith("content-length:")), 0)
        await self._reader.readexactly(length)
        return int(head[0].split()[1]), "connection: close" in head

    def close(self) -> None:
        self._writer.close()


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


async def main(probe_every: float, clients: int, pinned: int, pause: float) -> None:
    balancer = Balancer(probe_every)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: list[asyncio.Task[None]] = []
    while line := await reader.readline():
        said = json.loads(line)
        if "backends" in said:
            balancer.use(said["backends"])
        if "begin" in said:
            tasks += [asyncio.create_task(balancer.closed_loop()) for _ in range(clients)]
            tasks += [asyncio.create_task(balancer.pinned(pause)) for _ in range(pinned)]
        if "end" in said:
            say({"result": balancer.result})
            break
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
