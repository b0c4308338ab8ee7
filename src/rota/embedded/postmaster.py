"""Child processes of the keeper: one life of `postgres` from spawn to exit, and `initdb`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rota.embedded.home import Home, space_advice
from rota.embedded.strays import end_strays
from rota.errors import PostgresStartFailed

PR_SET_PDEATHSIG = 1
STOP_WITHIN = {"fast": 60.0, "immediate": 10.0}  # seconds; the checkpoint of a fast stop may have much to write
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

libc = ctypes.CDLL(None, use_errno=True)


def child_setup(death_signal: int) -> Callable[[], None]:
    """What a child does before it runs its program: take its keeper's death as its own, and hear all signals."""
    keeper = os.getpid()

    def setup() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != keeper:  # it died before we could ask to be told
                os._exit(1)

    return setup


def run_initdb(command: Sequence[str | Path], password: str) -> str | None:
    """Run it to its end; what it said if it failed, else None."""
    process = subprocess.Popen(
        [*command, "--pwfile=/dev/stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=child_setup(signal.SIGKILL),  # noqa: PLW1509 - the keeper has one thread by now
    )
    said = process.communicate(f"{password}\n")[0]
    return said if process.returncode else None


class Postmaster:
    """The server process. A keeper has one at a time."""

    def __init__(self, home: Home, command: Sequence[str | Path]) -> None:
        self._home = home
        self._log_starts_at = home.log.stat().st_size if home.log.exists() else 0
        self.spawned_at = time.monotonic()
        # Immediate: a shutdown that has to write may not come to its end, and recovery is certain.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=child_setup(signal.SIGQUIT),  # noqa: PLW1509 - the only other thread waits in a system call
        )
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        """Return once it takes connections, however long recovery lasts. Raises PostgresStartFailed if it ends."""
        while not self._says_ready():
            if self.has_ended:
                raise PostgresStartFailed(
                    f"PostgreSQL did not start in {self._home.data}.{space_advice(self._home)} It said:\n{self.said()}"
                )
            time.sleep(0.005)

    def stop(self, mode: str) -> None:
        """End it and everything it started: as asked, harder when that takes too long."""
        for harder in (mode, "immediate"):
            if self.has_ended:
                break
            self._process.send_signal(STOP_SIGNALS[harder])
            try:
                self._process.wait(STOP_WITHIN[harder])
            except subprocess.TimeoutExpired:
                continue
        if not self.has_ended:
            self._process.kill()
            self._process.wait()
        end_strays(self._home)

    def said(self) -> str:
        """The end of what it logged in this life."""
        with self._home.log.open(errors="replace") as log:
            log.seek(self._log_starts_at)
            return "".join(log.readlines()[-15:]).strip() or "(nothing)"

    def _says_ready(self) -> bool:
        try:
            lines = (self._home.data / "postmaster.pid").read_text(errors="replace").splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[-1].strip() == "ready"
