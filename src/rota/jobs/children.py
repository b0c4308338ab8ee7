"""The worker's side of `executor="process"`: bodies run in child processes, one at a time in each, and can always be ended.

A child is started when it is needed and kept for the next job, since starting Python and importing the app costs more than
most bodies. It is ended, and replaced by the next need, when its body outstays its timeout or is cancelled: asked first,
which interrupts the body so that it can clean up, and killed when that does not help. One that dies by itself, by a crash or
for want of memory, takes down its own job and nothing else; that attempt is lost.

No child outlives its worker: see `child`. It leads a session and a process group of its own, so that Ctrl-C reaches the
worker alone, and so that what a body started and left behind goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from rota.errors import ConfigurationError, RotaError
from rota.facts import Facts, JobRaisedAfterSuccess, ResourceAwaited
from rota.failure import Failure
from rota.jobs.claim import ClaimedJob
from rota.jobs.definition import Task
from rota.jobs.errand import LINE_LIMIT, Errand, failure_from, line, outcome_from
from rota.jobs.execute import outcome_of, timed_out
from rota.jobs.logs.level import OFF
from rota.jobs.logs.notes import Notes
from rota.jobs.logs.send import lines_from
from rota.jobs.outcome import HandedBack, Lost, Outcome, Snoozed
from rota.jobs.places import Place, loading, place_of
from rota.jobs.running import Desk, Held
from rota.postgres.dsn import Dsn

__all__ = ["Children"]

# How long a body may clean up when its time is up or someone cancels it.
_PATIENCE_SECONDS = 5.0
# And when it is handed back: another worker has the job in a moment, and by then it must be gone.
_HURRY_SECONDS = 0.3
# Idle for so long, a child is not worth its memory.
_IDLE_SECONDS = 60.0
# What closing its connections may take a child that has nothing to do.
_LEAVE_SECONDS = 2.0
# When a job is tried again whose child could not open a resource.
_UNOPENED_SECONDS = 5.0
# What a child said last may still be on its way when its end is known.
_LAST_WORDS_SECONDS = 0.5


class Children:
    """The children of one worker, at most `limit`. Belongs to the event loop of that worker."""

    def __init__(
        self, limit: int, desk: Desk, address: Callable[[], Dsn], facts: Facts, notes: Notes | None = None
    ) -> None:
        if loading.get():
            raise RotaError(
                "A worker was started by a module that is being loaded to find a task in it. Put what starts it behind "
                '`if __name__ == "__main__":`, so that the module can be imported.'
            )
        self._desk = desk
        self._address = address
        self._facts = facts
        self._notes = notes
        self._free = asyncio.Semaphore(limit)
        self._children: set[_Child] = set()
        self._idle: dict[_Child, asyncio.TimerHandle] = {}  # with their retirement, the last used one last
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._places: dict[str, tuple[Place, ...]] = {}

    async def run(self, task: Task[..., Any], job: ClaimedJob, attempt: Held, trace: str | None = None) -> Outcome:
        """Run the body in a child, to its end, as part of this trace. When this returns or raises, nothing of it runs any more.

        Cancelled, it ends the child before it raises; cancelled once more, it does not wait for the body to clean up.
        """
        async with self._free:
            errand = self._errand(task, job, trace)
            while True:
                known = self._take()
                child = known or await self._start()
                try:
                    with child.logging(lambda said: self._note(attempt, said)):
                        outcome = await self._answer(child, task, errand)
                except BaseException:
                    await child.end(_PATIENCE_SECONDS if attempt.told == "cancelled" else _HURRY_SECONDS)
                    raise
                self._keep(child)
                if outcome is not None:
                    return outcome
                if self._stopping:
                    return HandedBack(job)  # whoever stops this worker may have meant its children too
                if known is None:
                    return child.lost(job)
                # one that died while it had nothing to do: the body has not begun, and another child may run it

    def stopping(self) -> None:
        """Tell the bodies that the worker drains: `job.stopping` is true, and the next checkpoint ends the attempt."""
        self._stopping = True
        for child in self._children:
            child.say({"stopping": True})

    async def close(self) -> None:
        """End all children. Those with nothing to do close what they opened; a body that still runs is not waited for."""
        for retirement in self._idle.values():
            retirement.cancel()
        ending = [child.leave() if child in self._idle else child.end(0) for child in self._children]
        self._idle.clear()
        await asyncio.gather(*ending, *self._leaving)

    def _errand(self, task: Task[..., Any], job: ClaimedJob, trace: str | None) -> Errand:
        if task.name not in self._places:
            self._places[task.name] = _places(task)
        path = getattr(task.function, "__qualname__", "")
        level = OFF if self._notes is None else self._notes.level_of(task.name)
        return Errand(
            job,
            self._places[task.name],
            path,
            self._desk.database.schema,
            self._address().conninfo,
            trace,
            None if level == OFF else level,
        )

    def _note(self, attempt: Held, said: dict[str, Any]) -> None:
        # something that an earlier body left behind in the child may still log
        if self._notes is not None and said["token"] == attempt.claim.token:
            self._notes.add(attempt, lines_from(said))

    def _take(self) -> _Child | None:
        if not self._idle:
            return None
        child, retirement = self._idle.popitem()
        retirement.cancel()
        return child

    async def _start(self) -> _Child:
        child = await _Child.start()
        self._children.add(child)
        child.when_gone(lambda: self._forget(child))
        if self._stopping:
            child.say({"stopping": True})
        return child

    async def _answer(self, child: _Child, task: Task[..., Any], errand: Errand) -> Outcome | None:
        """What became of the job; None if the child died before the body began."""
        job, timeout = errand.job, task.options.timeout
        child.say(errand.to_message())
        said = await child.hear()
        if said is None:
            return None
        if "begun" in said:
            since = time.perf_counter()
            try:
                said = await child.hear(timeout)
            except TimeoutError:
                assert timeout is not None
                await child.end(_PATIENCE_SECONDS)
                return outcome_of(task, job, timed_out(timeout), time.perf_counter() - since, self._desk.codec)
            if said is None:
                return child.lost(job, time.perf_counter() - since)
        if "unopened" in said:
            # no fault of the job's, and nothing of it has run
            self._facts.emit(ResourceAwaited(said["unopened"]))
            return Snoozed(job, 0.0, _UNOPENED_SECONDS * random.uniform(0.8, 1.2))
        if "missing" in said:
            return outcome_of(task, job, _not_found(task, **said), 0.0, self._desk.codec)
        if "raised" in said:
            error = failure_from(said.pop("raised")).error
            assert error is not None
            self._facts.emit(JobRaisedAfterSuccess(job.id, job.task, job.attempt, error))
        return outcome_from(said, job)

    def _keep(self, child: _Child) -> None:
        """Keep a child for the next job, if it is still there, and not for ever."""
        if child.gone:
            child.hang_up()
        else:
            self._idle[child] = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._retire, child)

    def _forget(self, child: _Child) -> None:
        self._children.discard(child)
        if (retirement := self._idle.pop(child, None)) is not None:
            retirement.cancel()
            child.hang_up()

    def _retire(self, child: _Child) -> None:
        del self._idle[child]
        leaving = asyncio.ensure_future(child.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


class _Child:
    """One child process, from its start to its end."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._leaving = False
        self._logged: Callable[[dict[str, Any]], None] = _ignore
        self._exit = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(cls) -> Self:
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
                patience = _PATIENCE_SECONDS
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


def _places(task: Task[..., Any]) -> tuple[Place, ...]:
    """Where a child may find a task: where its function is, or else where its app is, which may be what brings it about."""
    home = task.home
    holders = [
        name
        for name, module in list(sys.modules.items())
        if any(value is home for value in list(getattr(module, "__dict__", {}).values()))
    ]
    return tuple(place_of(name) for name in dict.fromkeys([task.function.__module__, *holders]))


def _not_found(task: Task[..., Any], missing: str, trace: str) -> ConfigurationError:
    error = ConfigurationError(
        f"Task {task.name!r} runs in a process of its own, and was not found there: {missing}. Define it at the top level of "
        "a module that can be imported, on an app which that module makes or imports."
    )
    if trace:
        error.add_note(trace)
    return error


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
