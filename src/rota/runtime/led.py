"""Any program under a term: started when this process leads, ended before anyone else can."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rota.app import Rota
from rota.clock import boottime
from rota.errors import ConfigurationError, RotaError
from rota.leases.leadership import Leadership
from rota.leases.term import Term

__all__ = ["run_led"]

_KEEPER = Path(__file__).with_name("keeper.py")
_TELL_SECONDS = 0.5
# What ends a process that does not heed it, and can be heeded.
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


def run_led(app: Rota, name: str, command: Sequence[str], *, limit: float | None, grace: float) -> int:
    """Run the program as leader and return its exit code. Raises LeadershipHeld, or LeadershipLost when it was ended for that.

    A signal that would end this process is passed on to the program, whose end is waited for.
    """

    async def run() -> int:
        async with app:
            leadership = app.leadership(name)
            # between the loss of a term and the first moment at which another may begin there is the margin of the lease
            lost = app.settings.lease.margin.total_seconds() / 3
            return await _run(leadership if limit == 0 else leadership.wait(limit), command, grace, lost)

    return asyncio.run(run())


async def _run(leadership: Leadership, command: Sequence[str], grace: float, lost: float) -> int:
    loop = asyncio.get_running_loop()
    started: asyncio.Future[None] = loop.create_future()
    stop: asyncio.Future[int] = loop.create_future()
    leading = loop.create_task(_lead(leadership, command, started, stop, grace, lost))

    def stopped(number: int) -> None:
        if not stop.done():
            stop.set_result(number)
        if not started.done():
            leading.cancel()  # it still waits for its turn

    # under nohup it is ignored, and the program is to outlive its terminal
    left_alone = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    for number in _STOPS - left_alone:
        loop.add_signal_handler(number, stopped, number)
    try:
        return await leading
    except asyncio.CancelledError:
        return 128 + stop.result()


async def _lead(
    leadership: Leadership,
    command: Sequence[str],
    started: asyncio.Future[None],
    stop: asyncio.Future[int],
    grace: float,
    lost: float,
) -> int:
    async with leadership as term:
        started.set_result(None)
        async with _kept(term, lost) as keeper:
            program = await _start(command, term, keeper)
            ended, unkept = asyncio.ensure_future(program.wait()), asyncio.ensure_future(keeper.wait())
            try:
                await asyncio.wait([ended, stop, unkept], return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await _end(ended, keeper, signal.SIGTERM, lost)
                raise
            if unkept.done() and not ended.done() and not stop.done():
                await _end(ended, keeper, signal.SIGTERM, lost)
                term.check()  # it may have done what it is for
                raise RotaError(
                    f"The keeper of {command[0]!r}, process {keeper.pid}, has died, so the program was ended: nobody would end it in "
                    "time if this process froze. Find out who kills processes here, and start it again."
                )
            if not ended.done():
                await _end(ended, keeper, stop.result(), grace)
            code = ended.result()
            return code if code >= 0 else 128 - code  # as a shell tells of a signal


async def _start(command: Sequence[str], term: Term, keeper: Process) -> Process:
    told = {"ROTA_EPOCH": str(term.epoch), "ROTA_LEADERSHIP": term.name}
    # in a group of its own it cannot read from the terminal, and would be stopped for trying
    stdin = DEVNULL if sys.stdin is not None and sys.stdin.isatty() else None
    try:
        return await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **told}, stdin=stdin, process_group=keeper.pid
        )
    except OSError as error:
        raise ConfigurationError(
            f"{command[0]!r} cannot be started: {error.strerror}. Give a program that can be found and run."
        ) from error


@contextlib.asynccontextmanager
async def _kept(term: Term, lost: float) -> AsyncIterator[Process]:
    """A process whose group the program is to join: it ends that group when we no longer can. At the end all of it is gone."""
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(_KEEPER), _may_run_until(term, lost), stdin=PIPE, stdout=PIPE, process_group=0
    )
    assert keeper.stdout is not None
    telling = asyncio.create_task(_tell(keeper, term, lost))
    try:
        await keeper.stdout.readexactly(1)
        yield keeper
    finally:
        telling.cancel()
        _signal(keeper, signal.SIGKILL)
        await keeper.wait()


async def _tell(keeper: Process, term: Term, lost: float) -> None:
    assert keeper.stdin is not None
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        keeper.stdin.write(f"{_may_run_until(term, lost)}\n".encode())


def _may_run_until(term: Term, lost: float) -> str:
    return str(boottime() + term.control.trusted_for(term.member) + lost)


async def _end(ended: asyncio.Future[int], keeper: Process, number: int, grace: float) -> None:
    """Pass the signal on to the program and all it has started, and end it after that time."""
    _signal(keeper, number)
    await asyncio.wait([ended], timeout=grace)
    _signal(keeper, signal.SIGKILL)
    await ended


def _signal(keeper: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(keeper.pid, number)
