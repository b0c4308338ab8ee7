"""The `rota` command as a process of its own, as a user starts it in a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rota.testing import until_sync

_ELSEWHERE = ("ROTA_", "DATABASE_URL", "PG")  # what would point the command at another database


class Command:
    """Runs from construction until it ends by itself or the block does. All its files are in the folder."""

    def __init__(
        self, *arguments: str, folder: Path, terminal: int | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._out = folder / "stdout"
        self._err = folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rota", *arguments],
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=out if terminal is None else terminal,
                stderr=err,
                cwd=folder,
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith(_ELSEWHERE)},
                    "TERM": "xterm",
                    "TMPDIR": str(folder),
                    **(env or {}),
                },
                process_group=0 if terminal is None else None,
                start_new_session=terminal is not None,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, text: str, times: int = 1, timeout: float = 60) -> None:
        """Return when it has said this so many times; fails when it ends before."""

        def said() -> bool:
            ended = self.process.poll() is not None
            if self.err.count(text) >= times:
                return True
            assert not ended, f"it ended with {self.process.returncode}, saying:\n{self.err}"
            return False

        try:
            until_sync(said, timeout)
        except AssertionError as error:
            raise AssertionError(f"Waited {timeout:g} s for {text!r}. It said:\n{self.err}") from error

    def wait(self, timeout: float = 90) -> int:
        return self.process.wait(timeout)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def children(self) -> list[int]:
        """The processes it has started itself and that still run."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in listed.read_text().split()]

    def servers(self) -> list[int]:
        """The processes that were told of its folder: its own PostgreSQL and that one's keeper."""
        return [
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if str(self._folder).encode() in _command_line(entry) and is_running(int(entry.name))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
