"""Making a data directory, and the command line that serves it."""

from __future__ import annotations

import hashlib
import locale
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from pathlib import Path

from rota.embedded.binaries import Binaries
from rota.embedded.home import PORT, Home, space_advice
from rota.embedded.plan import Plan
from rota.embedded.postmaster import run_initdb
from rota.errors import DataDirectoryError, PostgresStartFailed

SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103  # bytes, of the kernel's sockaddr_un

SETTINGS = {
    "cluster_name": "rota",
    "max_connections": "200",  # some ten processes with their pools, and a margin for psql
    "unix_socket_permissions": "0700",  # the home may be a folder of the user's that others can enter
    "logging_collector": "off",
    "log_checkpoints": "off",
    # in files of the data directory: were everything killed at once, a segment in /dev/shm would be nobody's to remove
    "dynamic_shared_memory_type": "mmap",
}

# Nobody will want these data after a crash, so nothing is done to survive one.
EPHEMERAL_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def create_cluster(plan: Plan) -> None:
    """Run initdb if there is no data yet. A kill leaves only a `data.incomplete-…`, which the next call removes."""
    home = plan.to_home()
    for leftover in home.path.glob("data.incomplete-*"):
        shutil.rmtree(leftover)
    if home.major is not None:
        return
    incomplete = home.path / f"data.incomplete-{os.getpid()}"
    password = secrets.token_hex(24)
    with open(os.open(home.passfile, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"*:*:*:postgres:{password}\n")
    said = run_initdb(initdb_command(plan.to_binaries(), incomplete, ephemeral=plan.ephemeral), password)
    if said is not None:
        raise PostgresStartFailed(
            f"initdb could not make a data directory in {home.path}.{space_advice(home)} It said:\n{said.strip()}"
        )
    incomplete.rename(home.data)
    if not plan.ephemeral:
        sync_folder(home.path)


def initdb_command(binaries: Binaries, directory: Path, *, ephemeral: bool) -> list[str | Path]:
    command: list[str | Path] = [binaries.initdb, "-D", directory, "--username=postgres", "--encoding=UTF8"]
    command += ["--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions"]
    # Sorting by bytes, letters of all alphabets: the same everywhere, whatever locales the machine has.
    if binaries.major >= 17:
        command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    else:
        command += ["--locale=C", f"--lc-ctype={'C.UTF-8' if has_utf8_locale() else 'C'}"]
    return [*command, "--no-sync"] if ephemeral else command


def has_utf8_locale() -> bool:
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        return False
    return True


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def server_command(plan: Plan, address: dict[str, str]) -> list[str | Path]:
    settings = SETTINGS | (EPHEMERAL_SETTINGS if plan.ephemeral else {}) | plan.options | address
    command: list[str | Path] = [plan.to_binaries().postgres, "-D", plan.to_home().data]
    return command + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]


def socket_address(folder: Path) -> dict[str, str]:
    """The settings for a socket in a folder of ours, freed of the lock of a killed server; see `strays`."""
    (folder / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
    quoted = '"' + str(folder).replace('"', '""') + '"'  # the setting is a list, and a path may hold a comma
    return {"listen_addresses": "", "unix_socket_directories": quoted, "port": str(PORT)}


def tcp_address(home: Home) -> dict[str, str]:
    if not home.passfile.exists():
        raise DataDirectoryError(
            f"{home.passfile}, which holds the password of TCP connections, is gone. Start once without TCP, set a new "
            f"one with `alter role postgres password`, and write it there as *:*:*:postgres:PASSWORD with mode 0600."
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": port}


def socket_folder(home: Home) -> Path:
    """Where the Unix socket goes: the home, or a private folder with a short name when its path is too long.

    libpq reads a comma in a host as the start of another host, so such a path takes the private folder too.
    """
    if fits(home.path):
        return home.path
    name = "rota-" + hashlib.sha256(os.fsencode(home.path)).hexdigest()[:16]
    folder = next(path for base in (tempfile.gettempdir(), "/tmp") if fits(path := Path(base, name)))  # noqa: S108
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise DataDirectoryError(
            f"The path {home.path} is too long for a Unix socket, and {folder}, which would be used instead, is not a "
            f"private folder of ours. Remove it, name a folder with a shorter path, or set ROTA_POSTGRES_TCP=1."
        )
    return folder


def fits(folder: Path) -> bool:
    return len(os.fsencode(folder / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_LIMIT and "," not in str(folder)
