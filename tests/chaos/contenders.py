"""Real processes that contend for a leadership, and the history they write together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.leases.history import Begun, Look, Span, Write, spans, violations

from rota.clock import boottime
from rota.testing import until_sync

# `make chaos`: all of it, in its whole size
LONG = "ROTA_CHAOS_FAULTS" in os.environ
PROGRAM = Path(__file__).with_name("contender.py")
TABLE = "create table if not exists public.writes (number bigserial, epoch bigint, at timestamptz default clock_timestamp())"


@dataclass
class Contender:
    """One process with one contender in it, or more."""

    who: str
    process: subprocess.Popen[bytes]
    frozen: bool = False

    def signal(self, number: int) -> float:
        """Returns when that was, on the clock of the diaries."""
        at = boottime()
        self.process.send_signal(number)
        return at

    def kill(self) -> float:
        at = self.signal(signal.SIGKILL)
        self.process.wait()
        return at

    def freeze(self) -> float:
        at = self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        self.frozen = True
        return at

    def thaw(self) -> float:
        self.frozen = False
        return self.signal(signal.SIGCONT)

    def resign(self) -> float:
        return self.signal(signal.SIGUSR1)

    def cut_link(self) -> float:
        """Take the only link of its network down: nothing arrives any more, and nobody says so. The second time it comes up."""
        return self.signal(signal.SIGUSR2)

    def terminate(self) -> float:
        return self.signal(signal.SIGTERM)


class Arena:
    """Where contenders meet: a database, and a diary that all of them write."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.diary = folder / "diary"
        self.diary.touch()
        self.contenders: dict[str, Contender] = {}
        self._read = 0
        self._notes: list[dict[str, Any]] = []
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE)

    def start(
        self,
        who: str,
        *,
        dsn: str | None = None,
        lease: str | None = None,
        apps: int = 1,
        broken: str = "",
        shift: float = 0.0,
        linger: float = 0.0,
        foreign: bool = False,
        link: bool = False,
        sleep: str = "",
        ahead: float = 0.0,
        env: dict[str, str] | None = None,
    ) -> Contender:
        """`link`: in a network of its own, see `cut_link`. `ahead`: so much do the clocks of durations show more than here."""
        options = {"dsn": dsn or self.dsn, "diary": str(self.diary), "who": who, "lease": lease, "apps": apps}
        options |= {"broken": broken, "shift": shift, "linger": linger, "foreign": foreign, "link": link}
        options |= {"sleep": sleep, "ahead": ahead}
        apart = ["unshare", "--net"] if link else []
        if ahead:
            apart = ["unshare", "--time", f"--monotonic={ahead:.0f}", f"--boottime={ahead:.0f}", "--"]
        command = [*apart, sys.executable, str(PROGRAM), json.dumps(options)]
        process = subprocess.Popen(command, env={**os.environ, **(env or {})}, start_new_session=True)
        self.contenders[who] = Contender(who, process)
        return self.contenders[who]

    def notes(self, what: str | None = None, after: float = 0.0) -> list[dict[str, Any]]:
        """What has been written down, in the order of its writing."""
        with self.diary.open("rb") as diary:
            diary.seek(self._read)
            for line in diary:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._notes.append(json.loads(line))
        return [note for note in self._notes if (what is None or note["what"] == what) and note["at"] > after]

    def forget(self) -> None:
        """Begin anew, with what is noted from now on."""
        self.notes()
        self._notes.clear()

    def looks(self) -> list[Look]:
        return [Look(n["who"], n["epoch"], n["before"], n["after"]) for n in self.notes("valid")]

    def spans(self) -> list[Span]:
        return spans(self.looks())

    def leader(self, after: float = 0.0) -> dict[str, Any] | None:
        """The latest look that found itself leading, if there was one after that moment."""
        looks = self.notes("valid", after)
        return looks[-1] if looks else None

    def wait_for_leader(
        self, after: float = 0.0, than: int = 0, timeout: float = 20.0, who: str | None = None
    ) -> dict[str, Any]:
        """The first look of a term with a greater epoch than that."""

        def leads() -> dict[str, Any] | None:
            fits = (n for n in self.notes("valid", after) if n["epoch"] > than and (who is None or of(n) == who))
            return next(fits, None)

        return until_sync(leads, timeout, f"a leader with an epoch above {than}")  # type: ignore[return-value]

    def wait_for(self, what: str, after: float = 0.0, who: str | None = None, timeout: float = 20.0) -> dict[str, Any]:
        def noted() -> dict[str, Any] | None:
            return next((n for n in self.notes(what, after) if who is None or of(n) == who), None)

        return until_sync(noted, timeout, f"{what!r} in the diary")  # type: ignore[return-value]

    def wait_for_standbys(self, count: int, timeout: float = 30.0) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            standing = (
                "select from rota.standbys as standby join rota.members as member on member.id = standby.member "
                "where standby.name = 'indexer' and member.ended_at is null"
            )
            until_sync(lambda: connection.execute(standing).rowcount >= count, timeout, f"{count} stand by")

    def writes(self) -> list[Write]:
        with psycopg.connect(self.dsn) as connection:
            return [Write(*row) for row in connection.execute("select number, epoch, at from public.writes").fetchall()]

    def terms(self) -> list[Begun]:
        with psycopg.connect(self.dsn) as connection:
            terms = "select epoch, acquired_at from rota.terms where name = 'indexer'"
            return [Begun(*row) for row in connection.execute(terms).fetchall()]

    def violations(self) -> list[str]:
        return violations(self.looks(), self.writes(), self.terms())

    def close(self) -> None:
        for contender in self.contenders.values():
            with contextlib.suppress(ProcessLookupError):
                contender.process.kill()
            contender.process.wait()


def of(note: dict[str, Any]) -> str:
    """The process that a note is from."""
    return str(note["who"].partition("/")[0])


StartArena = Callable[[str], Arena]


@contextlib.contextmanager
def arena_at(dsn: str, folder: Path) -> Iterator[Arena]:
    arena = Arena(dsn, folder)
    try:
        yield arena
    finally:
        arena.close()
