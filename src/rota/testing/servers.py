"""Throw-away servers: one shared by all processes of a test run, or one of one's own.

Cloning a database makes three hundred files, which on many disks takes a quarter of a second and in memory a fiftieth, so
their folders are in memory where the machine has plenty of it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rota.embedded import Binaries, EmbeddedServer
from rota.embedded.home import Home
from rota.embedded.locks import locked
from rota.embedded.server import EPHEMERAL_PREFIX, remove_abandoned

__all__ = ["shared_server", "throwaway_server"]

_MEMORY = Path("/dev/shm")
_ENOUGH_MEMORY = 4 * 2**30  # bytes; a large suite leaves a gigabyte of write-ahead log, and containers often give 64 MB
_START_WITHIN = 180.0  # seconds; several workers of a run queue up for the first start on a busy machine
# The largest of suites keeps a few connections per worker process, and kills many before the server has noticed.
_OPTIONS = {"max_connections": "300", "max_wal_size": "256MB"}


@contextlib.contextmanager
def shared_server(folder: Path, name: str, binaries: Binaries | None = None) -> Iterator[str]:
    """The address of a server that all processes share which name the same folder; the last to leave ends it."""
    lock, note = folder / f"rota-{name}.lock", folder / f"rota-{name}.home"
    with locked(lock, time.monotonic() + _START_WITHIN):
        server = EmbeddedServer(_noted_home(note), options=_OPTIONS, binaries=binaries)
        url = server.start()
    try:
        yield url
    finally:
        # one at a time, so that nobody joins a server whose folder is about to be removed
        with locked(lock, time.monotonic() + _START_WITHIN):
            server.close()


def throwaway_server(binaries: Binaries | None = None) -> EmbeddedServer:
    """A server of one's own, to be started, broken and closed; nothing is left of it.

    What was committed survives `restart("immediate")`, though not the end of the machine.
    """
    return EmbeddedServer(_new_home(), options={**_OPTIONS, "synchronous_commit": "on"}, binaries=binaries)


def _noted_home(note: Path) -> Path:
    if note.exists() and Home(Path(note.read_text())).ephemeral_mark.exists():
        return Path(note.read_text())
    home = _new_home()
    note.write_text(str(home))
    return home


def _new_home() -> Path:
    folder = _roomy_folder()
    for abandoned in folder.glob(f"{EPHEMERAL_PREFIX}*"):
        with contextlib.suppress(OSError):
            remove_abandoned(Home(abandoned))
    home = Home(Path(tempfile.mkdtemp(prefix=EPHEMERAL_PREFIX, dir=folder)).resolve())
    home.ephemeral_mark.touch()
    return home.path


def _roomy_folder() -> Path:
    with contextlib.suppress(OSError):
        if shutil.disk_usage(_MEMORY).free >= _ENOUGH_MEMORY:
            with tempfile.TemporaryFile(dir=_MEMORY):
                return _MEMORY
    return Path(tempfile.gettempdir())
