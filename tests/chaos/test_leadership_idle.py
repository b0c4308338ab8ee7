"""Waiting is cheap: one connection per process, and hardly more than its beat, however much it waits for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.chaos.faults import Admin

from rota.clock import boottime
from rota.embedded.home import Home
from rota.testing import until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

# the whole size with `make chaos`
PROCESSES, WATCHED_SECONDS = (10, 30.0) if "ROTA_CHAOS_FAULTS" in os.environ else (2, 3.0)
STANDBYS = 100

WAIT = """
import asyncio, json, sys
from rota import Rota

async def stand_by(app, name):
    async with app.leadership(name).wait():
        await asyncio.sleep(3600)

async def main(dsn, names):
    async with Rota(dsn) as app:
        await asyncio.gather(*(stand_by(app, name) for name in names))

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


@pytest.fixture
def admin(own_server: Any) -> Iterator[Admin]:
    with psycopg.connect(own_server.databases.url, autocommit=True) as connection:
        connection.execute("alter system set log_min_duration_statement = 0")
        connection.execute("select pg_reload_conf()")
        yield connection


@pytest.mark.long
def test_a_hundred_idle_standbys_cost_a_beat_and_a_connection_per_process(own_server: Any, admin: Admin) -> None:
    share = STANDBYS // PROCESSES
    names = [f"indexer-{number}" for number in range(share)]
    started = []
    try:
        for _ in range(PROCESSES + 1):  # the first of them leads all
            command = [sys.executable, "-c", WAIT, own_server.dsn, json.dumps(names)]
            started.append(subprocess.Popen(command, start_new_session=True))
        with psycopg.connect(own_server.dsn, autocommit=True) as rota:
            standing = "select from rota.standbys"
            until_sync(lambda: rota.execute(standing).rowcount == STANDBYS, 60, "all stand by")
        log = Home(own_server.server.home).log
        before, since = statements(log), boottime()
        until_sync(lambda: boottime() > since + WATCHED_SECONDS, WATCHED_SECONDS + 5)
        spent = (statements(log) - before) / (boottime() - since) / (PROCESSES + 1)
        held = sessions(admin)
    finally:
        for process in started:
            process.kill()
            process.wait()

    print(f"{spent:.2f} statements per second and process; connections of {PROCESSES + 1} processes: {held}")
    assert 1 < spent <= 3
    assert [name.partition("@")[0] for name in held] == ["rota:control"] * (PROCESSES + 1)


def sessions(admin: Admin) -> list[str]:
    """Those to the database of the test."""
    here = "select application_name from pg_stat_activity where datname like 'rota_test_%'"
    return [name for (name,) in admin.execute(here).fetchall()]


def statements(log: Path) -> int:
    """How many this server has executed; one with parameters is bound first, and that is logged too."""
    return len(re.findall(r"ms  (?:execute|statement)\b", log.read_text(errors="replace")))
