"""Who is measured and where: a server of our own, and each queue in processes of its own on a fresh database.

A peer is known by the command line that peers/shape.py describes. Rota may be there more than once, with several Pythons.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg.abc import Query as Sql

from peers.shape import PROGRESS
from rota.embedded import EmbeddedServer, find_binaries

HERE = Path(__file__).parent
NODE_FOLDER = Path(sys.prefix) / "node"  # where install.py puts it
STARTS_WITHIN = 30.0
LOOK = 0.003  # seconds between looks at what a worker has done

# A figure without fsync says little about a production server. Statements are tracked where they are counted.
SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",  # one in the middle would fall on whoever works just then
    "max_connections": "300",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",
}


class Unavailable(Exception):
    """A peer that cannot run here; the text says why."""


@dataclass(frozen=True)
class Peer:
    name: str
    command: tuple[str, ...]
    #: true while something is still to be done or not yet settled
    pending: str
    settings: dict[str, Any] = field(default_factory=dict)


def raw() -> Peer:
    return Peer("raw", (sys.executable, str(HERE / "peers" / "raw.py")), "select from jobs where state in (0, 1)")


def rota(python: str = sys.executable, **settings: Any) -> Peer:
    return Peer("rota", (python, str(HERE / "peers" / "rota_peer.py")), "select from rota.jobs", settings)


def pgqueuer() -> Peer:
    return Peer("pgqueuer", (sys.executable, str(HERE / "peers" / "pgqueuer_peer.py")), "select from pgqueuer")


def graphile() -> Peer:
    command = (str(NODE_FOLDER / "node"), str(HERE / "peers" / "graphile_peer.mjs"))
    return Peer("graphile", command, "select from graphile_worker._private_jobs")


@dataclass(frozen=True)
class Drain:
    jobs: int
    seconds: float
    transactions: float  # per job, as is the next
    wal: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


class Field:
    """A running server, and a folder for what the processes write."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        # every driver looks for the password there
        os.environ["PGPASSFILE"] = parse_qs(parts.query)["passfile"][0]
        os.environ["BENCH_NODE_FOLDER"] = str(NODE_FOLDER)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._server = f"postgresql://{parts.netloc}"
        self.folder = folder
        self._made = 0

    @classmethod
    @contextlib.contextmanager
    def opened(cls, major: int | None) -> Iterator[Field]:
        binaries = find_binaries(major) if major else None
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rota-bench-")))
            server = EmbeddedServer(ephemeral=True, tcp=True, options=SERVER, binaries=binaries)
            yield cls(stack.enter_context(server).start(), folder)

    def dsn(self, database: str) -> str:
        return f"{self._server}/{database}?sslmode=disable"

    @contextlib.contextmanager
    def place(self, peer: Peer) -> Iterator[Place]:
        """A fresh database with the peer's tables in it, dropped afterwards."""
        self._made += 1
        name = f"bench_{peer.name}_{self._made}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as admin:
            admin.execute(cast(Sql, f"create database {name}"))
            try:
                with psycopg.connect(self.dsn(name), autocommit=True) as db:
                    place = Place(self, peer, self.dsn(name), db)
                    place.call("setup")
                    yield place
            finally:
                admin.execute(cast(Sql, f"drop database {name} with (force)"))

    def version(self) -> str:
        with psycopg.connect(self.dsn("postgres")) as db:
            row = db.execute("show server_version").fetchone()
        assert row is not None
        return str(row[0])


class Place:
    """One peer on its own database."""

    def __init__(self, field: Field, peer: Peer, dsn: str, db: psycopg.Connection[Any]) -> None:
        self.field, self.peer, self.dsn, self.db = field, peer, dsn, db

    def call(self, *words: object) -> Any:
        """Run one of the peer's commands to its end and return what it printed last, if that is JSON."""
        command = [*self.peer.command, *map(str, words), "--dsn", self.dsn]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        except OSError as error:
            raise Unavailable(str(error)) from error
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"{words[0]}: {error.stderr.strip()[-2000:]}") from error
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None

    def sql(self, text: str) -> list[Any]:
        cursor = self.db.execute(cast(Sql, text))
        return cursor.fetchall() if cursor.description else []

    def value(self, text: str) -> Any:
        return self.sql(text)[0][0]

    def enqueue(self, **options: object) -> float:
        """Jobs per second."""
        said = self.call("enqueue", *(word for name, value in options.items() for word in (f"--{name}", value)))
        return float(said["jobs"] / said["seconds"])

    def fill(self, jobs: int) -> None:
        self.enqueue(mode="many", jobs=jobs)
        self.sql("vacuum analyze")

    @contextlib.contextmanager
    def workers(self, count: int = 1, *, starts: Path | None = None, idle: bool = False) -> Iterator[list[Worker]]:
        """So many processes. Idle ones, of whom nobody asks for progress, tell it rarely: that must cost nothing."""
        begun: list[Worker] = []
        go = self.field.folder / ("go-idle" if idle else "go")
        go.unlink(missing_ok=True)
        try:
            for number in range(count):
                begun.append(Worker(self, f"{self.peer.name}{'-idle' if idle else ''}-{number}", starts, go, idle))
            deadline = time.monotonic() + STARTS_WITHIN + count
            while not all(worker.path.exists() for worker in begun) and time.monotonic() < deadline:
                time.sleep(LOOK)
            go.touch()
            yield begun
        finally:
            for worker in begun:
                worker.process.send_signal(signal.SIGTERM)
            for worker in begun:
                worker.wait()

    def spent(self) -> tuple[int, int]:
        """Transactions of this database, and bytes of write-ahead log of the server."""
        row = self.db.execute(
            "select xact_commit, (pg_current_wal_insert_lsn() - '0/0')::bigint "
            "from pg_stat_database where datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def drain(self, jobs: int, *, workers: int = 1, within: float = 120.0) -> Drain:
        """From the start of the first body until nothing is pending; the jobs are there already."""
        before = self.spent()
        with self.workers(workers) as running:
            _, first, _ = wait_until(running, jobs, within)
            ended = self._wait_until_settled(LOOK, within)
            time.sleep(0.1)
            if (began := progress(running)[0]) != jobs:
                raise RuntimeError(f"{self.peer.name} ran {began} bodies for {jobs} jobs")
        time.sleep(0.3)  # backends whose client is gone tell what they counted a moment later
        after = self.spent()
        return Drain(jobs, ended - first, (after[0] - before[0]) / jobs, (after[1] - before[1]) / jobs)

    def drain_by_history(self, jobs: int, *, within: float = 120.0) -> float:
        """Rota's jobs per second, from the start of the first body as its history tells: for bodies in other processes."""
        with self.workers():
            ended = self._wait_until_settled(0.02, within)
        count, first = self.sql("select count(*), extract(epoch from min(started_at))::float8 from rota.history")[0]
        if count != jobs:
            raise RuntimeError(f"{count} of {jobs} jobs are in history")
        return jobs / (ended - first)

    def _wait_until_settled(self, every: float, within: float) -> float:
        deadline = time.monotonic() + within
        while True:
            now = time.time()
            if not self.value(f"select exists ({self.peer.pending})"):
                return now
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.peer.name} did not settle all within {within:g} s")
            time.sleep(every)


class Worker:
    def __init__(self, place: Place, name: str, starts: Path | None, go: Path, idle: bool) -> None:
        self.name = name
        self.path = place.field.folder / name
        self.path.unlink(missing_ok=True)
        self._said = place.field.folder / f"{name}.txt"
        command = [*place.peer.command, "work", "--dsn", place.dsn, "--progress", str(self.path), "--go", str(go)]
        command += ["--settings", json.dumps(place.peer.settings)]
        command += ["--tick", "60"] if idle else []
        if starts is not None:
            command += ["--starts", str(starts)]
        with self._said.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def progress(self) -> tuple[int, float, float]:
        """Bodies begun, and the moments of the first and the last of them."""
        try:
            told = self.path.read_bytes()
        except FileNotFoundError:
            told = b""
        return PROGRESS.unpack(told) if len(told) == PROGRESS.size else (0, 0.0, 0.0)

    def check(self) -> None:
        if self.process.poll() is not None:
            said = self._said.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"A worker of {self.name} ended with {self.process.returncode}: {said}")

    def wait(self) -> None:
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def progress(workers: Sequence[Worker]) -> tuple[int, float, float]:
    told = [worker.progress() for worker in workers]
    firsts = [first for _, first, _ in told if first]
    return sum(count for count, _, _ in told), min(firsts, default=0.0), max(last for _, _, last in told)


def wait_until(workers: Sequence[Worker], jobs: int, within: float) -> tuple[int, float, float]:
    """Wait until so many bodies have begun."""
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        told = progress(workers)
        if told[0] >= jobs:
            return told
        if time.monotonic() > (deadline if not told[0] else deadline + within):
            raise RuntimeError(f"{workers[0].name} began {told[0]} of {jobs} jobs within {within:g} s")
        for worker in workers:
            worker.check()
        time.sleep(LOOK)
