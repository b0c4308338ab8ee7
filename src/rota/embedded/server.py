"""The front of the embedded server: start it or join it, use it, leave it."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rota.embedded.binaries import Binaries
from rota.embedded.home import Home, Record, explained, prepare, read_record, url
from rota.embedded.launch import binaries_for, launch, wait_for_server
from rota.embedded.locks import EXCLUSIVE, SHARED, locked, open_lock, try_lock, wait_lock
from rota.embedded.operate import ask, wait_until_left
from rota.embedded.plan import Plan
from rota.embedded.strays import clear_the_way
from rota.errors import ConfigurationError, EmbeddedError

START_WITHIN = 120.0  # seconds; recovery of a killed server may have a gigabyte of log to read
OURS = {"data_directory", "listen_addresses", "port", "unix_socket_directories", "external_pid_file"}
EPHEMERAL_PREFIX = "rota-postgres-"
ABANDONED = 60.0  # seconds after which an ephemeral home without keeper and users is nobody's


class EmbeddedServer:
    """A PostgreSQL of our own, shared with every process that names the same home.

    The first to `start` it launches the server, the last to `close` it, or to end in whatever way, stops it.
    `tcp`, `options` and `binaries` are those of whoever launched it. Safe to use from several threads.
    """

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        ephemeral: bool = False,
        tcp: bool = False,
        options: Mapping[str, str] | None = None,
        binaries: Binaries | None = None,
    ) -> None:
        if ephemeral and home is not None:
            raise ConfigurationError(f"An ephemeral server chooses its own folder; leave out ephemeral or {home}.")
        self._ephemeral = ephemeral
        self._home = None if ephemeral else Home.at(home)
        self._tcp = tcp or os.environ.get("ROTA_POSTGRES_TCP", "") not in ("", "0") or not hasattr(socket, "AF_UNIX")
        self._options = checked(options or {})
        self._binaries = binaries
        self._users_fd: int | None = None
        self._lock = threading.RLock()

    @property
    def home(self) -> Path | None:
        """Its folder; None for an ephemeral server that is not started. Another process may join by this path."""
        return self._home.path if self._home else None

    def start(self) -> str:
        """Be a user of the running server, starting it if need be, and return its URL, which holds no password.

        Called again it returns at once, or brings a server back that was stopped or killed meanwhile.
        Raises PostgresNotFound, DataDirectoryError or PostgresStartFailed; nobody's data are changed then.
        """
        with self._lock:
            if self._home is None:
                self._home = ephemeral_home()
            home = self._home
            try:
                with explained(home):
                    record = self._running(home) or self._join_or_launch(home)
            except BaseException:
                self._leave()
                if self._ephemeral:
                    shutil.rmtree(home.path, ignore_errors=True)
                    self._home = None
                raise
            if self._tcp and record.socket is not None:
                self.close()
                raise EmbeddedError(
                    f"The server in {home.path} was started without TCP. Stop it with `rota postgres stop`, "
                    f"then start it again."
                )
            return url(home, record)

    def close(self) -> None:
        """Leave. The last one to leave returns when the server is down; does nothing when not started."""
        with self._lock:
            if self._home is None or self._users_fd is None:
                return
            home = self._home
            try:
                with explained(home):
                    wait_until_left(home, self._leave)
            finally:
                self._leave()
                if self._ephemeral:
                    self._home = None

    def restart(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """Stop PostgreSQL and start it again at the same address, for tests; `immediate` is a crash with recovery."""
        with self._lock:
            if self._home is None or self._users_fd is None:
                raise EmbeddedError("Only a server that was started can be restarted.")
            ask(self._home, f"restart-{mode}")

    def outlive_exec(self) -> None:
        """Let the program that replaces this process through exec stay a user of the server."""
        if self._users_fd is not None:
            os.set_inheritable(self._users_fd, True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _running(self, home: Home) -> Record | None:
        record = read_record(home) if self._users_fd is not None else None
        return record if record is not None and record.state == "ready" else None

    def _join_or_launch(self, home: Home) -> Record:
        deadline = time.monotonic() + START_WITHIN
        prepare(home)
        with locked(home.start_lock, deadline):
            # Waits for a keeper that is stopping its server; from here on none will.
            joined = wait_lock(home.users_lock, SHARED, deadline)
            self._leave()
            self._users_fd = joined
            record = wait_for_server(home, deadline)
            if record is not None:
                return record
            binaries = binaries_for(home, self._binaries)
            clear_the_way(home)
            ephemeral = home.ephemeral_mark.exists()
            launch(Plan.of(home, binaries, tcp=self._tcp, ephemeral=ephemeral, options=self._options), deadline)
            record = wait_for_server(home, deadline)
        if record is None:
            raise EmbeddedError(f"The server in {home.path} ended as soon as it was ready; {home.log} tells why.")
        return record

    def _leave(self) -> None:
        if self._users_fd is not None:
            os.close(self._users_fd)
            self._users_fd = None


def checked(options: Mapping[str, str]) -> dict[str, str]:
    wrong = [name for name in options if name in OURS or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name)]
    if wrong:
        raise ConfigurationError(
            f"The embedded server cannot take the settings {', '.join(wrong)}: its folder and address are chosen "
            f"for it, and other names must be those of PostgreSQL's settings."
        )
    return {name: str(value) for name, value in options.items()}


def ephemeral_home() -> Home:
    folder = Path(tempfile.gettempdir())
    for abandoned in folder.glob(f"{EPHEMERAL_PREFIX}*"):
        with suppress(OSError):
            remove_abandoned(Home(abandoned))
    home = Home(Path(tempfile.mkdtemp(prefix=EPHEMERAL_PREFIX, dir=folder)).resolve())
    home.ephemeral_mark.touch()
    return home


def remove_abandoned(home: Home) -> None:
    """Remove what an ephemeral server left whose keeper was killed too."""
    if time.time() - home.ephemeral_mark.stat().st_mtime < ABANDONED or home.is_kept:
        return
    users = open_lock(home.users_lock)
    try:
        if try_lock(users, EXCLUSIVE):
            shutil.rmtree(home.path, ignore_errors=True)
    finally:
        os.close(users)


_shared: dict[Path, EmbeddedServer] = {}
_shared_lock = threading.Lock()


def shared_server(home: Path | str | None = None) -> EmbeddedServer:
    """This process's server for a home: the same object each time, closed when the process ends."""
    path = Home.at(home).path
    with _shared_lock:
        if path not in _shared:
            _shared[path] = EmbeddedServer(path)
            atexit.register(_shared[path].close)
        return _shared[path]
