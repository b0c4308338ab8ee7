"""The death of a leader on the same machine is looked into at once."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

from rota.leases.bell import Bell
from rota.leases.neighbours import Neighbours
from rota.testing import until
from rota.testing.app import TestRota

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system does not tell of the end of another process"),
]

LEADER = """
import asyncio, sys
from rota import Rota

async def lead():
    async with Rota(sys.argv[1]) as app, app.leadership("indexer"):
        print("leads", flush=True)
        await asyncio.sleep(600)

asyncio.run(lead())
"""


async def lead(app: TestRota) -> bool:
    async with app.leadership("indexer").wait(timeout=30) as term:
        return term.valid


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.timeout(20)
def test_a_death_ends_the_rest_and_is_told_once(bell: Bell, sleeper: subprocess.Popen[bytes]) -> None:
    deaths: list[None] = []
    neighbours = Neighbours(bell, lambda: deaths.append(None))
    neighbours.watch([sleeper.pid])

    os.kill(sleeper.pid, signal.SIGKILL)  # and nobody has asked after it yet
    bell.rest(600)
    neighbours.watch([sleeper.pid])
    bell.rest(0.05)

    assert len(deaths) == 1


def test_who_is_no_longer_asked_for_is_forgotten(bell: Bell, sleeper: subprocess.Popen[bytes]) -> None:
    deaths: list[None] = []
    neighbours = Neighbours(bell, lambda: deaths.append(None))
    neighbours.watch([sleeper.pid])
    before = len(os.listdir("/proc/self/fd"))

    neighbours.watch([])
    sleeper.kill()
    sleeper.wait()
    bell.rest(0.05)

    assert deaths == []
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_number_that_nobody_has_here_is_nobody(bell: Bell) -> None:
    neighbours = Neighbours(bell, lambda: pytest.fail("nobody died"))

    neighbours.watch([2**22 + 1])
    bell.rest(0.05)

    neighbours.close()


async def test_a_leader_that_is_killed_here_is_not_waited_for_until_the_next_beat(
    rota_app: TestRota, rota_database: str
) -> None:
    # after the look that finds out who leads, the next beat would come in ten seconds
    lease = dataclasses.replace(rota_app.settings.lease, interval=timedelta(seconds=10))
    rota_app.settings = dataclasses.replace(rota_app.settings, lease=lease)
    leader = subprocess.Popen([sys.executable, "-c", LEADER, rota_database], stdout=subprocess.PIPE)
    try:
        assert leader.stdout is not None
        assert await asyncio.to_thread(leader.stdout.readline) == b"leads\n"
        waiting = asyncio.create_task(lead(rota_app))
        await until(
            lambda: any(each.joined.done() and each.joined.result()._seeking for each in rota_app._membership._members)
        )
        (control,) = [each.joined.result() for each in rota_app._membership._members]
        control._beat()
        await until(lambda: control._neighbours._watched, what="it knows its neighbour")

        leader.kill()

        async with asyncio.timeout(8):
            assert await waiting
    finally:
        leader.kill()
        leader.wait()
        leader.stdout.close()
