"""A process that contends for a leadership and writes down what it believes. Run as a program, by `contenders.Contender`.

Whoever leads looks at `term.valid` without pause, and beside it a thread makes fenced writes, and goes on with them for a while
when its term is over: a leader that does not know, or does not care. SIGUSR1 makes it resign, SIGTERM stop. In a network of its
own, SIGUSR2 takes the link to the database down, and up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from itertools import cycle
from typing import Any

import psycopg

from rota import LeadershipLost, Rota, RotaError
from rota.leases.control import Control
from rota.leases.term import Term
from rota.testing import TcpProxy

WRITE = "insert into public.writes (epoch) values (%s)"
pause = threading.Event().wait  # libfaketime breaks time.sleep
LATE_WRITES = 20  # that a leader tries to make whose term is over
gettime = time.clock_gettime  # the true one


def now() -> float:
    """On the clock that all diaries are written by, whatever this process is made to believe."""
    return gettime(time.CLOCK_BOOTTIME) - AHEAD


AHEAD = 0.0


class Diary:
    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._who = who

    def note(self, what: str, epoch: int, **more: Any) -> None:
        line = {"what": what, "who": self._who, "epoch": epoch, "at": now(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


async def contend(app: Rota, diary: Diary, stop: asyncio.Event, resign: asyncio.Event, options: dict[str, Any]) -> None:
    while not stop.is_set():
        resign.clear()
        try:
            async with app.leadership("indexer").wait() as term:
                writing = threading.Thread(target=write, args=(app, term, diary, options), daemon=True)
                writing.start()
                try:
                    await look(term, diary, stop, resign)
                except asyncio.CancelledError:
                    diary.note("interrupted", term.epoch)
                    raise
                diary.note("resigning", term.epoch)
                await term.resign()
                diary.note("resigned", term.epoch)
        except LeadershipLost as lost:
            diary.note("lost", lost.epoch, reason=lost.reason)
        except RotaError as error:
            diary.note("failed", 0, reason=str(error))
            await asyncio.sleep(0.1)


async def look(term: Term, diary: Diary, stop: asyncio.Event, resign: asyncio.Event) -> None:
    while not stop.is_set() and not resign.is_set():
        before = now()
        if term.valid:
            diary.note("valid", term.epoch, before=before, after=now())
        await asyncio.sleep(0.005)


def write(app: Rota, term: Term, diary: Diary, options: dict[str, Any]) -> None:
    late = 0
    while late < LATE_WRITES:
        late = 0 if term.valid else late + 1
        try:
            if options["foreign"]:
                # a connection of the user's, of whose sessions nothing is known
                with psycopg.connect(app.settings.dsn.conninfo) as mine, term.transaction(on=mine):
                    write_once(mine, term, diary, options)
            else:
                with term.transaction() as connection:
                    write_once(connection, term, diary, options)
        except (RotaError, psycopg.Error) as error:
            diary.note("refused", term.epoch, reason=str(error))
        pause(0.01)


def write_once(connection: psycopg.Connection[Any], term: Term, diary: Diary, options: dict[str, Any]) -> None:
    connection.execute(WRITE, [term.epoch])
    if options["linger"]:
        diary.note("inside", term.epoch)
        pause(options["linger"])


def break_it(guard: str) -> None:
    """Leave out a guard: what is checked must then be found wrong."""
    if guard == "deadline":
        Control.trusted_for = lambda self, member: 60.0 if member == self.member else 0.0  # type: ignore[method-assign]
        Control.trusts = lambda self, member: self.trusted_for(member) > 0  # type: ignore[method-assign]
    elif guard == "boottime":
        time.clock_gettime = lambda clock: time.monotonic()  # type: ignore[assignment]
    elif guard:
        raise ValueError(guard)


def shift_clock(seconds: float) -> None:
    """What a wrong clock looks like, where libfaketime is not there to make one."""
    for name in ("time", "time_ns"):
        true = getattr(time, name)
        setattr(time, name, lambda true=true, by=seconds * (1e9 if name == "time_ns" else 1): type(true())(true() + by))


def follow_sleep(path: str) -> None:
    """Have the monotonic clock stand still for as long as the file says that the machine was asleep, as it does on Linux."""
    with open(path, "rb") as file:
        slept = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    monotonic = time.monotonic
    time.monotonic = lambda: monotonic() - struct.unpack("d", slept[:8])[0]


def set_link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


async def main(options: dict[str, Any]) -> None:
    global AHEAD
    AHEAD = options["ahead"]
    if options["sleep"]:
        follow_sleep(options["sleep"])
    break_it(options["broken"])
    shift_clock(options["shift"])
    with contextlib.ExitStack() as stack:
        if options["link"]:
            set_link("up")
            network = stack.enter_context(TcpProxy(options["dsn"]))
            options = {**options, "dsn": network.dsn(options["dsn"])}
        await contend_all(options)


async def contend_all(options: dict[str, Any]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    resigns = [asyncio.Event() for _ in range(options["apps"])]

    def resign() -> None:
        for event in resigns:
            event.set()

    links = cycle(["down", "up"])
    loop.add_signal_handler(signal.SIGUSR1, resign)
    loop.add_signal_handler(signal.SIGUSR2, lambda: set_link(next(links)))
    contending = []
    async with contextlib.AsyncExitStack() as stack:
        for number, event in enumerate(resigns):
            app = await stack.enter_async_context(Rota(options["dsn"], lease=options["lease"], pool_size=2))
            diary = Diary(options["diary"], f"{options['who']}/{number}")
            diary.note("started", 0, realtime=time.time())
            contending.append(loop.create_task(contend(app, diary, stop, event, options)))

        def end() -> None:
            stop.set()
            for app_contending in contending:
                app_contending.cancel()

        loop.add_signal_handler(signal.SIGTERM, end)
        await asyncio.gather(*contending, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
