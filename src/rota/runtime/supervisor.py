"""Worker processes of ours: started, watched, stopped, and none of them outlives us.

Each is a command of ours, mostly `rota worker`, in a process of its own. Its standard input is a pipe that only we hold the
other end of: what must not stand on a command line, which anyone on the machine may read, is sent through it first; after
that the pipe stays silent, unless it is replaced, until we end, in whatever way, and the one that sees it close stops as it
would on SIGTERM. See `lifeline`. On another pipe it tells us how it is, if we want to know.

Each is also in a process group of its own, so that Ctrl-C reaches us alone. The worker gets one SIGTERM from us and no
SIGINT before it, which it would take for the first of two and hand its jobs back instead of finishing them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence

from rota.clock import boottime
from rota.leases.members import end_marked
from rota.postgres.pool import Database
from rota.runtime.lifeline import REPLACED, private_line
from rota.runtime.limit import HARD_LIMIT

__all__ = ["LEAVE_SECONDS", "SupervisedWorker", "describe_exit", "stop_all"]

#: Beyond its grace: it ends itself by its hard limit, unless something in it lets nothing of it run.
LEAVE_SECONDS = HARD_LIMIT + 0.15


# What systemd wants to hear of a service, its main process says or nobody: a child that ends is not the service's end.
_OURS_ALONE = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}


class SupervisedWorker:
    """One worker process, from its start to its exit code. Belongs to the event loop that started it."""

    def __init__(self, process: asyncio.subprocess.Process, grace: float, mark: str) -> None:
        self._process = process
        self._mark = mark
        self._grace = grace
        #: it is ready; it has done as much as it was to do, and wants to be replaced; it was asked to end
        self.ready, self.enough, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        #: when it last told that it is live; None before it has
        self.live_at: float | None = None

    @classmethod
    async def start(
        cls,
        app: str,
        *arguments: str,
        dsn: str | None = None,
        schema: str | None = None,
        grace: float = 25.0,
        capture: bool = False,
        tells: bool = False,
    ) -> SupervisedWorker:
        """Start `rota worker APP`. With `capture` what it says is read through `lines`, else it goes where ours goes."""
        private = [
            *(["--dsn", dsn] if dsn is not None else []),
            *(["--schema", schema] if schema is not None else []),
        ]
        command = ["worker", app, "--grace", f"{grace:g}", *arguments]
        return await cls.launch(command, private, grace=grace, capture=capture, tells=tells)

    @classmethod
    async def launch(
        cls,
        command: Sequence[str],
        private: Sequence[str] = (),
        *,
        grace: float,
        capture: bool = False,
        pass_fds: Sequence[int] = (),
        tells: bool = False,
    ) -> SupervisedWorker:
        """Start a command of `rota` that takes `--mark`. The `private` part of it stands in no list of processes.

        It inherits `pass_fds` and no other descriptor of ours: one that held the end of another's line would keep that one
        from seeing us go. With `tells` it says when it is ready, and that it is live.
        """
        mark = secrets.token_hex(16)
        heard, told = os.pipe() if tells else (None, None)
        try:
            process = await cls._started(command, capture, [*pass_fds, *([] if told is None else [told])])
        except BaseException:
            if heard is not None:
                os.close(heard)
            raise
        finally:
            if told is not None:
                os.close(told)  # the only one is that of the child, so that its end is the end of this
        assert process.stdin is not None
        process.stdin.write(private_line([*private, "--mark", mark], told))
        child = cls(process, grace, mark)
        if heard is not None:
            child._hear(heard)
        return child

    @staticmethod
    async def _started(command: Sequence[str], capture: bool, pass_fds: Sequence[int]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a file in the current folder does not stand in for a module of ours
            "-m",
            "rota.cli.child",
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if capture else None,
            stderr=asyncio.subprocess.STDOUT if capture else None,
            process_group=0,
            pass_fds=pass_fds,
            env={name: value for name, value in os.environ.items() if name not in _OURS_ALONE},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number when one ended it."""
        return self._process.returncode

    @property
    def running(self) -> bool:
        return self.exit_code is None

    async def lines(self) -> AsyncIterator[str]:
        """What it says, line by line, until it ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            yield line.decode(errors="replace").rstrip()

    async def wait(self) -> int:
        return await self._process.wait()

    async def end_membership(self, database: Database) -> None:
        """Once it has exited: let others take over what it held at once, instead of after they have suspected it for a while."""
        assert not self.running
        await database.run(end_marked(self._mark))

    def terminate(self) -> None:
        """Ask it to stop: running jobs finish within its grace."""
        self.asked.set()
        self._send(signal.SIGTERM)

    def replace(self) -> None:
        """The same, since another one is ready in its place."""
        self.asked.set()
        assert self._process.stdin is not None
        self._process.stdin.write(REPLACED)

    def hurry(self) -> None:
        """Ask again: it hands them back at once. By another signal, since two of one kind may arrive as one."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """kill -9: nothing is finished, handed back or said. Peers take over what it ran."""
        self._send(signal.SIGKILL)

    async def stop(self) -> int:
        """Ask it to stop, give it its grace and a little to leave, then kill it. Returns its exit code."""
        self.terminate()
        return await self.gone_within(self._grace + LEAVE_SECONDS)

    async def gone_within(self, seconds: float) -> int:
        """Wait for its end for so long, then kill it. Returns its exit code."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def _hear(self, line: int) -> None:
        """Note what it tells, until it ends."""
        loop, rest = asyncio.get_running_loop(), b""
        os.set_blocking(line, False)

        def read() -> None:
            nonlocal rest
            said = os.read(line, 65536)
            *whole, rest = (rest + said).split(b"\n")
            for each in whole:
                self._note(each.decode(errors="replace"))
            if not said:
                loop.remove_reader(line)
                os.close(line)

        loop.add_reader(line, read)

    def _note(self, state: str) -> None:
        match state.partition("=")[0]:
            case "READY":
                self.ready.set()
            case "WATCHDOG":
                self.live_at = boottime()
            case "ENOUGH":
                self.enough.set()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


async def stop_all(processes: Sequence[SupervisedWorker]) -> list[int]:
    """Stop all of them at the same time."""
    return await asyncio.gather(*(process.stop() for process in processes))
