"""The folder of one embedded server.

<home>/data                 PostgreSQL's own data directory; `data.incomplete-…` while initdb works
<home>/server.json          what runs there now (Record); only true while keeper.lock is held
<home>/server.log           what the server and its keeper said
<home>/pgpass               the password of TCP connections, readable by the owner only
<home>/keeper.lock          held by the keeper for its life
<home>/users.lock           held, shared, by everyone who uses the server
<home>/start.lock           held for the moment in which someone starts, stops or leaves
<home>/request-…            something asked of the keeper; gone once it is done
<home>/ephemeral            there if the folder is thrown away with its last user
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rota.embedded.locks import is_held
from rota.errors import DataDirectoryError

PORT = 5432  # of a Unix socket: only a part of its name
NEEDED_SPACE = 20 * 2**20  # bytes; the server must be able to begin a write-ahead log segment of 16 MB


@dataclass(frozen=True)
class Record:
    """What a keeper says of its server. `socket` is the folder of the Unix socket, None where TCP is used."""

    state: str  # starting, ready, stopping
    keeper: int
    postmaster: int
    version: str
    binaries: str
    origin: str
    socket: str | None
    port: int
    started_at: str
    pinned: bool
    ephemeral: bool


@dataclass(frozen=True)
class Home:
    path: Path

    @classmethod
    def at(cls, path: Path | str | None = None) -> Home:
        """The home at a path; without one `ROTA_POSTGRES_DATA`, else `.rota/postgres` here."""
        return cls(Path(path or os.environ.get("ROTA_POSTGRES_DATA") or Path(".rota", "postgres")).absolute().resolve())

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def record(self) -> Path:
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def passfile(self) -> Path:
        return self.path / "pgpass"

    @property
    def keeper_lock(self) -> Path:
        return self.path / "keeper.lock"

    @property
    def users_lock(self) -> Path:
        return self.path / "users.lock"

    @property
    def start_lock(self) -> Path:
        return self.path / "start.lock"

    @property
    def ephemeral_mark(self) -> Path:
        return self.path / "ephemeral"

    def request(self, verb: str) -> Path:
        return self.path / f"request-{verb}"

    @property
    def files(self) -> list[Path]:
        """The files that are ours to hand to the user the server runs as."""
        known = [self.record, self.log, self.passfile, self.keeper_lock, self.users_lock, self.start_lock]
        return [path for path in [*known, self.ephemeral_mark] if path.exists()]

    @property
    def major(self) -> int | None:
        """The PostgreSQL version that wrote the data, None when there is no data yet."""
        try:
            return int((self.data / "PG_VERSION").read_text().split(".")[0])
        except FileNotFoundError:
            return None
        except ValueError:
            raise DataDirectoryError(f"{self.data / 'PG_VERSION'} does not hold a version; restore a backup.") from None

    @property
    def is_kept(self) -> bool:
        """Whether a keeper is alive there; then, and only then, the record is true."""
        return is_held(self.keeper_lock)


def prepare(home: Home) -> None:
    """Make the folder if it is not there. Raises DataDirectoryError when it cannot hold our data as it is."""
    folder = home.path.parent
    if folder.name == ".rota" and not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    folder.mkdir(parents=True, exist_ok=True)
    home.path.mkdir(mode=0o700, exist_ok=True)
    if (home.path / "PG_VERSION").exists():
        raise DataDirectoryError(
            f"{home.path} is itself a PostgreSQL data directory, and Rota keeps its data in a folder `data` inside the "
            f"one it is given. Nothing was changed. Name another folder, or stop that server and move the "
            f"directory to {home.path / 'data'} inside a folder of its own."
        )
    if home.data.exists() and home.major is None and any(home.data.iterdir()):
        raise DataDirectoryError(
            f"{home.data} exists, is not empty and is not a PostgreSQL data directory (no PG_VERSION). "
            f"Nothing was changed. Move it away or name another folder."
        )


@contextmanager
def explained(home: Home) -> Iterator[None]:
    """Turn what the operating system refuses inside into an error that says what to do."""
    try:
        yield
    except TimeoutError as error:
        raise DataDirectoryError(
            f"Another process has been starting or stopping the server in {home.path} for too long. "
            f"Look at its processes and at {home.log}, then try again."
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "The disk is full: free some space, or name a folder on another disk."
        elif isinstance(error, PermissionError):
            advice = "It belongs to another user: run as that user, or name a folder of your own."
        else:
            advice = "Name another folder."
        raise DataDirectoryError(f"{home.path} cannot hold the embedded PostgreSQL: {error}. {advice}") from error


def space_advice(home: Home) -> str:
    """Words for an error message when the disk is nearly full; the server cannot even log it then."""
    free = shutil.disk_usage(home.path).free
    return f" The disk is full: {free // 2**20} MB are free at {home.path}." if free < NEEDED_SPACE else ""


def read_record(home: Home) -> Record | None:
    """What runs there, None when nothing does."""
    if not home.is_kept:
        return None
    return last_record(home)


def last_record(home: Home) -> Record | None:
    """What a keeper last wrote, whether or not it is still alive."""
    try:
        values: dict[str, Any] = json.loads(home.record.read_text())
        return Record(**values)
    except (OSError, ValueError, TypeError):
        return None


def write_record(home: Home, record: Record) -> None:
    draft = home.record.with_suffix(".json.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(record), file)
    draft.replace(home.record)


def url(home: Home, record: Record) -> str:
    """Where to connect. Never holds the password: libpq reads it from a file only the owner can open."""
    if record.socket is not None:
        return f"postgresql://postgres@/postgres?host={quote(record.socket, safe='')}&port={record.port}"
    passfile = quote(str(home.passfile), safe="")
    return f"postgresql://postgres@127.0.0.1:{record.port}/postgres?sslmode=disable&passfile={passfile}"
