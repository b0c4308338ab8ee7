"""The command line that every queue speaks here, so that one runner can measure them all, each in processes of its own.

setup                                                             make its tables
enqueue --mode one|many|all (--jobs N | --seconds S)              print how many jobs were put, and in how many seconds
pickup --jobs N --gap S --out FILE                                one after the other, and the moments of each call
work --settings JSON --progress FILE [--starts FILE] [--go FILE]  work until it is terminated

The progress is 24 bytes, written anew every few milliseconds: bodies started, moment of the first, moment of the last. Who is
told a file to go by begins when it is there: two that work together have both loaded then what they are made of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

PROGRESS = struct.Struct("<qdd")
AT_ONCE = 1_000  # jobs in one call of `many`
TICK = 0.01  # seconds between two notes of the progress


class Client(Protocol):
    async def one(self, i: int) -> object: ...

    async def many(self, numbers: range) -> object: ...

    def all(self, numbers: range) -> Callable[[], Awaitable[object]]:
        """What puts all of them at once, ready to be called; not asked of peers."""

    async def close(self) -> object: ...


class Queue(Protocol):
    async def setup(self, dsn: str) -> None: ...

    async def client(self, dsn: str, lanes: int) -> Client: ...

    async def work(self, dsn: str, settings: dict[str, Any], progress: Progress) -> None: ...


class Progress:
    """What a worker has begun so far; called with its number at the start of each body."""

    def __init__(self, path: str, starts: str | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        self._starts_path = starts
        self._starts: dict[int, float] = {}
        self.count, self.first, self.last = 0, 0.0, 0.0

    def __call__(self, i: int) -> None:
        self.last = time.time()
        if not self.count:
            self.first = self.last
        self.count += 1
        if self._starts_path is not None:
            self._starts[i] = self.last

    def flush(self) -> None:
        os.pwrite(self._file, PROGRESS.pack(self.count, self.first, self.last), 0)

    def end(self) -> None:
        self.flush()
        if self._starts_path is not None:
            Path(self._starts_path).write_text(json.dumps(self._starts))
        os._exit(0)

    async def keep(self, tick: float) -> None:
        while True:
            self.flush()
            await asyncio.sleep(tick)


async def enqueue(queue: Queue, given: argparse.Namespace) -> None:
    client = await queue.client(given.dsn, given.lanes)
    done = 0
    limit = given.jobs if given.seconds is None else sys.maxsize
    until = time.perf_counter() + given.seconds if given.seconds is not None else float("inf")

    def room() -> bool:
        return done < limit and time.perf_counter() < until

    async def lane() -> None:
        nonlocal done
        while room():
            done += 1
            await client.one(done)

    began = time.perf_counter()
    if given.mode == "one":
        await asyncio.gather(*(lane() for _ in range(given.lanes)))
    elif given.mode == "many":
        while room():
            await client.many(range(done, done + min(AT_ONCE, limit - done)))
            done += min(AT_ONCE, limit - done)
    else:
        # what is put is made before: the two sides are compared in how they bring it to the server
        call, done = client.all(range(limit)), limit
        began = time.perf_counter()
        await call()
    print(json.dumps({"jobs": done, "seconds": time.perf_counter() - began}), flush=True)
    await client.close()


async def pickup(queue: Queue, given: argparse.Namespace) -> None:
    client = await queue.client(given.dsn, 1)
    for _ in range(3):
        await client.one(-1)
    await asyncio.sleep(0.5)
    moments = []
    for i in range(given.jobs):
        called = time.time()
        await client.one(i)
        moments.append((called, time.time()))
        await asyncio.sleep(max(0.0, called + given.gap - time.time()))
    Path(given.out).write_text(json.dumps(moments))
    await client.close()


async def work(queue: Queue, given: argparse.Namespace) -> None:
    progress = Progress(given.progress, given.starts)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, progress.end)
    keeping = asyncio.create_task(progress.keep(given.tick))
    while given.go is not None and not Path(given.go).exists():
        await asyncio.sleep(0.001)
    await queue.work(given.dsn, json.loads(given.settings), progress)
    keeping.cancel()


def main(queue: Queue) -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["setup", "enqueue", "pickup", "work"])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--mode", choices=["one", "many", "all"], default="many")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=AT_ONCE)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--out")
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--progress")
    parser.add_argument("--starts")
    parser.add_argument("--go")
    parser.add_argument("--tick", type=float, default=TICK)
    given = parser.parse_args()
    if given.command == "setup":
        asyncio.run(queue.setup(given.dsn))
    else:
        asyncio.run({"enqueue": enqueue, "pickup": pickup, "work": work}[given.command](queue, given))
