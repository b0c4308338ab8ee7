"""One child process as its worker has it: started, spoken with, ended.

It leads a session and a process group of its own, so that Ctrl-C reaches the worker alone, and so that what a body started and
left behind goes with it. What is said: see `errand`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Self

from rota.failure import Failure
from rota.jobs.claim import ClaimedJob
from rota.jobs.errand import END, Standing, line_of
from rota.jobs.line import Line, ignore
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

    def __init__(self, process: asyncio.subprocess.Process, line: Line, orders: socket.socket) -> None:
        self.ready = False
        self.line = line
        self._process = process
        self._orders = orders
        self._told: dict[int, Standing] = {}
        self._exit = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(cls, standing: Standing) -> Self:
        """A new one, which has loaded this task: `ready`, unless it died over that. Raises OSError where none can be started.

        Cancelled, it raises that when the child is gone.
        """
        with contextlib.ExitStack() as until_started:
            ours, theirs = socket.socketpair()
            until_started.enter_context(theirs)
            _, line = await asyncio.get_running_loop().create_unix_connection(Line, sock=ours)
            failed = until_started.enter_context(contextlib.ExitStack())
            failed.callback(line.close)
            orders, their_orders = socket.socketpair()
            failed.callback(orders.close)
            until_started.enter_context(their_orders)
            orders.setblocking(False)
            fds = (theirs.fileno(), their_orders.fileno())
            # From this thread: Linux counts the end of the thread that starts a child as the death of its parent.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a file in the current folder does not stand in for a module of ours
                "-m",
                "rota.jobs.child",
                *map(str, fds),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,  # a process group alone is more than uvloop can do
            )
            failed.pop_all()
        child = cls(process, line, orders)
        try:
            child.line.say(line_of({"path": sys.path, "argv": sys.argv}))
            child.ready = await child.errand(standing, line_of({"load": standing.number})) is not None
        except BaseException:
            await child.end(0)
            raise
        return child

    @property
    def gone(self) -> bool:
        return self._exit.done()

    def when_gone(self, call: Callable[[], None]) -> None:
        self._exit.add_done_callback(lambda _: call())

    def order(self, order: bytes) -> None:
        """Tell it something while its body runs, if it still listens."""
        with contextlib.suppress(OSError):
            self._orders.send(order)

    async def errand(
        self,
        standing: Standing,
        errand: bytes,
        timeout: float | None = None,
        logged: Callable[[dict[str, Any]], None] = ignore,
    ) -> bytes | None:
        """Send it on an errand, and return its answer; None when it is gone. See `Line.ask`."""
        if self._told.get(standing.number) is not standing:
            self._told[standing.number] = standing
            errand = standing.to_line() + errand
        return await self._ask(errand, timeout, logged)

    async def _ask(
        self, question: bytes, timeout: float | None = None, logged: Callable[[dict[str, Any]], None] = ignore
    ) -> bytes | None:
        try:
            said = await self.line.ask(question, timeout, logged)
        except TimeoutError:
            if not self.gone:
                raise
            said = None
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
            self.order(END)
        await self._gone_after(patience)

    async def leave(self) -> None:
        """Let it end by itself, as it has nothing to do."""
        self.line.end()
        await self._gone_after(_LEAVE_SECONDS)

    def hang_up(self) -> None:
        self.line.close()
        self._orders.close()

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

    async def _watch(self) -> int:
        code = await self._process.wait()
        self._kill()  # what it started in its group and left behind
        # not waited for for ever: a process that it forked may hold the line
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self.line.give_up)
        return code

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


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
