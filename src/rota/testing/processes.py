"""Real worker processes for tests: started like a user would, sent every kind of signal, and always reaped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rota.testing.waiting import until_sync

__all__ = ["WorkerProcess"]

_STARTED = "working on "  # what a worker logs once it has joined and begins to claim


class WorkerProcess:
    """`rota worker APP` in a process and a session of its own.

    `app` is what the command takes (`module:attribute`, a .py file), or the text of a module, recognised by its line
    breaks, which is written to a file. As a context manager it starts at entry and is gone at exit, also when it is
    stopped or has children; if the block failed, what the worker said is printed.
    """

    def __init__(
        self,
        app: str | Path,
        *,
        dsn: str | None = None,
        schema: str | None = None,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rota-worker-"))
        self._output = self._folder / "output"
        self._cwd = cwd
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        options = {
            "--dsn": dsn,
            "--schema": schema,
            "--concurrency": concurrency,
            "--queues": None if queues is None else ",".join(queues),
        }
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        self._command = [sys.executable, "-m", "rota", "worker", self._path(str(app)), *given, *args]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process and return at once; `wait_until_working` waits until it claims jobs."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,  # a Ctrl-C of the test run is not meant for it
            )
        return self

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._started.poll()

    def signal(self, number: int) -> None:
        self._started.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM: stop cleanly."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and return when the process is gone."""
        self.signal(signal.SIGKILL)
        self._started.wait()

    def pause(self) -> None:
        """SIGSTOP, and return when it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def wait(self, timeout: float = 30) -> int:
        """The exit code, once there is one. Raises AssertionError with the output when it does not end in time."""
        try:
            return self._started.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The worker {self.pid} did not end within {timeout:g} s. {self.report()}") from None

    def output(self) -> str:
        """What it has written so far, both streams in the order they came."""
        return self._output.read_text(errors="replace")

    def wait_for_output(self, text: str, timeout: float = 20) -> None:
        """Return when it has written this; raises AssertionError when it ends without, or not in time."""

        def written() -> bool:
            ended = self.returncode is not None  # asked first: what it wrote last is then in the file
            if text in self.output():
                return True
            assert not ended, f"The worker ended with {self.returncode} before it wrote {text!r}. {self.report()}"
            return False

        try:
            until_sync(written, timeout)
        except AssertionError as error:
            if self.returncode is not None:
                raise
            raise AssertionError(f"The worker did not write {text!r} within {timeout:g} s. {self.report()}") from error

    def wait_until_working(self, timeout: float = 20) -> Self:
        """Return when it has joined and begins to claim."""
        self.wait_for_output(_STARTED, timeout)
        return self

    def report(self) -> str:
        """Who it is and what it has said, for the message of a failure."""
        state = "never started" if self._process is None else f"pid {self.pid}, exit code {self.returncode}"
        said = self.output() if self._output.exists() else ""
        return f"Output of the worker ({state}):\n{said}"

    def reap(self) -> None:
        """Kill it and all it started, wait for its end, and remove its files. Does nothing the second time."""
        if self._process is not None:
            # also when it has ended by itself: its children would live on
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(self.report() + "\n")
        self.reap()

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start() the worker first"
        return self._process

    def _path(self, app: str) -> str:
        if "\n" not in app:
            return app
        file = self._folder / "worker_app.py"
        file.write_text(app)
        return str(file)
