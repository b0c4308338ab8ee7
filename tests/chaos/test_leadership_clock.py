"""The clock of the database is set back, and forward: terms only grow, and never are two of them valid."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.chaos.contenders import LONG, Arena, arena_at, of
from tests.conftest import OwnServer, installed
from tests.faketime import libfaketime
from tests.leases.history import violations

from rota.clock import boottime
from rota.embedded import read_binaries
from rota.testing import until_sync
from rota.testing.servers import throwaway_server

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

LEASE = 1.5
HOUR = 3600


class Clock:
    """That of one server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0)

    def set(self, ahead: int) -> None:
        (new := self._path.with_suffix(".new")).write_text(f"{ahead:+d}")
        os.replace(new, self._path)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def arena(clock: Clock, postgres_version: str, tmp_path: Path) -> Iterator[Arena]:
    """Three that contend, on a server that asks libfaketime for the time."""
    if (faking := libfaketime()) is None:
        pytest.skip("the clock of a server is set by libfaketime: apt-get install faketime")
    real = installed()[postgres_version].directory
    (programs := tmp_path / "bin").mkdir()
    for program in real.iterdir():
        (programs / program.name).symlink_to(program)
    (programs / "postgres").unlink()
    (programs / "postgres").write_text(
        f"#!/bin/sh\nexport LD_PRELOAD={faking} FAKETIME_TIMESTAMP_FILE={tmp_path}/clock FAKETIME_NO_CACHE=1 "
        f'FAKETIME_DONT_FAKE_MONOTONIC=1\nexec {real}/postgres "$@"\n'
    )
    (programs / "postgres").chmod(0o755)
    server = throwaway_server(read_binaries(programs, "clock"))
    try:
        with arena_at(OwnServer(server, read_binaries(programs, "clock")).dsn, tmp_path) as arena:
            for who in "abc":
                arena.start(who, lease=f"{LEASE:g}s")
            arena.wait_for_leader()
            arena.wait_for_standbys(2)
            yield arena
    finally:
        server.close()


@pytest.mark.long
def test_a_clock_that_is_set_back_and_forward_makes_terms_only_grow_and_no_two_valid(
    clock: Clock, arena: Arena
) -> None:
    with psycopg.connect(arena.dsn, autocommit=True) as admin:
        settled = "select from rota.members where attached_at < statement_timestamp() - %s * interval '1 second'"
        until_sync(lambda: admin.execute(settled, [LEASE + 0.2]).rowcount == 3, what="all are settled")
        for ahead in (HOUR, 0, -HOUR, 0) if LONG else (HOUR, 0):
            last = arena.leader()
            assert last is not None
            clock.set(ahead)
            off = "select abs(extract(epoch from clock_timestamp()) - %s) < 60"
            (moved,) = admin.execute(off, [time.time() + ahead]).fetchone()  # type: ignore[misc]
            at = boottime()
            # everyone has looked at everyone, twice: the leader is none the worse for it
            found = arena.wait_for_leader(at + 1.1)
            resigned_at = arena.contenders[of(found)].resign()
            after = arena.wait_for_leader(resigned_at, last["epoch"])
            arena.wait_for_standbys(2)

            assert moved
            assert found["epoch"] == last["epoch"]
            assert after["epoch"] > last["epoch"]
    written = [write.epoch for write in sorted(arena.writes(), key=lambda write: write.number)]
    assert violations(arena.looks()) == []
    assert written == sorted(written)
