"""Server processes that outlived their keeper.

A killed keeper takes its server along (the kernel signals it), and a server's backends end when it does, but neither is
instant, and a backend deep in a computation does not notice at all. Until the last one is gone the data directory
cannot be opened again, so whoever starts next, with nobody else starting and no keeper alive, ends them first.

Without /proc (macOS) the kernel does not signal either: only the server a keeper recorded can be found, and is stopped.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from rota.embedded.home import Home, last_record
from rota.errors import DataDirectoryError

PROC = Path("/proc")
PATIENCE = 5.0  # seconds until we insist; what PostgreSQL itself gives its children in an immediate shutdown


def clear_the_way(home: Home) -> None:
    """End what a killed server left running, and remove the lock file that names a process that is gone.

    PostgreSQL keeps out of a directory whose lock file names any process, also a dead one whose parent has not looked
    after it, and a stranger that has since been given its number, as happens when a container is started again.
    Raises DataDirectoryError when a server someone else started works there.
    """
    record = last_record(home)
    serving = postmaster_pid(home)
    if serving in server_processes(home) and (record is None or record.postmaster != serving):
        raise DataDirectoryError(
            f"A PostgreSQL server that Rota did not start (pid {serving}) is using {home.data}. "
            f"Stop it with `pg_ctl stop -D {home.data}`, or connect to it instead of starting the embedded one."
        )
    end_strays(home)
    if PROC.is_dir():
        (home.data / "postmaster.pid").unlink(missing_ok=True)


def end_strays(home: Home) -> None:
    """Return when no server process works in this home any more."""
    insist_at = time.monotonic() + PATIENCE
    while strays := server_processes(home):
        late = time.monotonic() > insist_at
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGQUIT)
        if time.monotonic() > insist_at + PATIENCE:
            raise DataDirectoryError(f"Processes {strays} still work in {home.data} and cannot be ended.")
        time.sleep(0.01)


def server_processes(home: Home) -> list[int]:
    if not PROC.is_dir():
        record, serving = last_record(home), postmaster_pid(home)
        return [serving] if record is not None and serving == record.postmaster and is_alive(serving) else []
    return [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit() and is_server(Path(entry), home)]


def is_server(process: Path, home: Home) -> bool:
    """Whether a process is PostgreSQL, working in this home; the name keeps a shell that stands there out of it."""
    try:
        if (process / "comm").read_text().strip() not in ("postgres", "initdb"):
            return False
        # Each of its processes works inside the data directory; initdb stays where it was and names it.
        where = os.readlink(process / "cwd").removesuffix(" (deleted)")
        named = (process / "cmdline").read_text(errors="replace")
    except OSError:
        return False
    incomplete = f"{home.path}/data.incomplete-"
    return where == str(home.data) or where.startswith(incomplete) or incomplete in named


def postmaster_pid(home: Home) -> int:
    """The process the data directory's lock file names, alive or not; 0 when there is none."""
    try:
        return abs(int((home.data / "postmaster.pid").read_text().split("\n")[0]))
    except (OSError, ValueError):
        return 0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
