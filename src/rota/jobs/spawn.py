"""One child process as its worker has it: started, spoken with, ended.

It leads a session and a process group of its own, so that Ctrl-C reaches the worker alone, and so that what a body started and
left behind goes with it. What is said: see `errand`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

from rota.failure import Failure
from rota.jobs.claim import ClaimedJob
from rota.jobs.errand import LINE_LIMIT, Sought, line
from rota.jobs.outcome import Lost

__all__ = ["Child"]

# What closing its connections may take a child that has nothing to do.
_LEAVE_SECONDS = 2.0
# What a child said last may still be on its way when its end is known.
_LAST_WORDS_SECONDS = 0.5
# How soon one that was killed is looked at again.
_KILLED_SECONDS = 5.0


class Child:
    """One child process, from its start to its end."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.ready = False
        self._leaving = False
        self._logged: Callable[[dict[str, Any]], None] = _ignore
        self._exit = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(cls, sought: Sought) -> Self:
        """A new one, which has loaded this task: `ready`, unless it died over that. Raises OSError where none can be started.

        Cancelled, it raises that when the child is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_LIMIT)
            try:
                # From this thread: Linux counts the end of the thread that starts a child as the death of its parent.
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # a file in the current folder does not stand in for a module of ours
                    "-m",
                    "rota.jobs.child",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # a process group alone is more than uvloop can do
                )
            except BaseException:
                writer.close()
                raise
        child = cls(process, reader, writer)
        child.say({"path": sys.path, "argv": sys.argv})
        child.say(sought.to_message())
        try:
            child.ready = await child.hear() is not None
        except BaseException:
            await child.end(0)
            raise
        return child

    @property
    def gone(self) -> bool:
        return self._exit.done()

    def when_gone(self, call: Callable[[], None]) -> None:
        self._exit.add_done_callback(lambda _: call())

    def say(self, message: dict[str, Any]) -> None:
        """Tell it something, if it still listens."""
        if not self._leaving and not self._writer.is_closing():
            self._writer.write(line(message))

    @contextlib.contextmanager
    def logging(self, logged: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        """Hand over the lines that it sends, for the length of a block."""
        self._logged = logged
        try:
            yield
        finally:
            self._logged = _ignore

    async def hear(self, timeout: float | None = None) -> dict[str, Any] | None:
        """What it says next; None when it is gone. Raises TimeoutError."""
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait({reading, self._exit}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if self.gone:
                # not for ever: a process that it forked may hold the line
                await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
            elif not reading.done():
                raise TimeoutError
            said = reading.result() if reading.done() else None
        finally:
            reading.cancel()
        if said is None:
            # it hung up, and ends
            await asyncio.wait({self._exit}, timeout=_LAST_WORDS_SECONDS)
            await self.end(0)
        return said

    def lost(self, job: ClaimedJob, seconds: float = 0.0) -> Lost:
        code = self._exit.result()
        when = f"{seconds:.1f} s after the body began" if seconds else "before the body began"
        text = f"the process that ran it (pid {self._process.pid}) {_ending(code)}, {when}{_advice(code)}"
        return Lost(job, Failure("ProcessDied", text, ""), seconds)

    async def end(self, patience: float) -> None:
        """Interrupt its body, kill it if it does not end within `patience`, and return when it is gone.

        Cancelled meanwhile, it kills the child at once; it raises that when the child is gone.
        """
        if patience:
            self.say({"end": True})
        await self._gone_after(patience)

    async def leave(self) -> None:
        """Let it end by itself, as it has nothing to do."""
        self._leaving = True
        with contextlib.suppress(OSError):
            self._writer.write_eof()
        await self._gone_after(_LEAVE_SECONDS)

    def hang_up(self) -> None:
        self._writer.close()

    async def _gone_after(self, patience: float) -> None:
        cancelled: asyncio.CancelledError | None = None
        while not self.gone:
            try:
                await asyncio.wait({self._exit}, timeout=patience)
            except asyncio.CancelledError as error:
                cancelled = error
            if not self.gone:
                self._kill()
                patience = _KILLED_SECONDS
        self.hang_up()
        if cancelled is not None:
            raise cancelled

    async def _read(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError):
            while (said := await self._reader.readline()).endswith(b"\n"):
                message: dict[str, Any] = json.loads(said)
                if "lines" not in message:
                    return message
                self._logged(message)
        return None

    async def _watch(self) -> int:
        code = await self._process.wait()
        self._kill()  # what it started in its group and left behind
        return code

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _ignore(said: dict[str, Any]) -> None:
    pass


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _advice(code: int) -> str:
    if code >= 0:
        return ": something in it called os._exit(), or broke the interpreter"
    if -code == signal.SIGKILL:
        return ": out of memory? The kernel's log tells"
    if -code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        return ": native code crashed; where it was is on the worker's standard error"
    return ""
