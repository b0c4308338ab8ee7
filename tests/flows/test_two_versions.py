"""A rolling deploy, forwards and back, under load: two versions of an app side by side, and no job pays for it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.chaos.faults import count

from rota.testing import TestRota, WorkerProcess, until_sync

StartWorker = Callable[..., WorkerProcess]
pytestmark = pytest.mark.one_server

OLD = """
import asyncio, os
from rota import Rota

app = Rota()

@app.task(name="greet", retry=None)
async def greet(name: str) -> str:
    await asyncio.sleep(0.3)
    return f"old {name}"

@app.task(name="going", retry=None)
async def going() -> str:
    await asyncio.sleep(0.3)
    return "old"
"""

NEW = """
import asyncio, os
from rota import Rota

app = Rota()

@app.task(name="greet", version=2, retry=None)
async def greet(first: str, last: str) -> str:
    await asyncio.sleep(0.3)
    return f"new {first} {last}"

@greet.upgrade
def upgrade(arguments, version):
    first, _, last = arguments["name"].partition(" ")
    return {"first": first, "last": last}

@app.task(name="coming", retry=None)
async def coming() -> str:
    await asyncio.sleep(0.3)
    return "new"
"""

# What each release calls: the web processes of both are up during a deploy, as the workers are.
CALLS = {
    "old": ("""select rota.enqueue('greet', '{"name": "Ada L"}')""", "select rota.enqueue('going')"),
    "new": (
        """select rota.enqueue('greet', '{"first": "Alan", "last": "T"}', version => 2)""",
        "select rota.enqueue('coming')",
    ),
}


class Callers:
    """Call the tasks of some releases, over and over, from a thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.releases: tuple[str, ...] = ()
        self.called = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._call)

    def __enter__(self) -> Callers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _call(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as db:
            for turn in itertools.count():
                if self._end.wait(0.01):
                    return
                for release in self.releases:
                    db.execute(CALLS[release][turn % 2])
                    self.called += 1

    def go_on(self, calls: int) -> None:
        """Return after so many more of them."""
        until = self.called + calls
        until_sync(lambda: self.called >= until, what=f"{calls} calls")


@pytest.fixture
def admin(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def has_run(admin: psycopg.Connection[Any], task: str, version: int, result: str) -> bool:
    return bool(
        admin.execute(
            "select 1 from rota.history where task = %s and version = %s and result #>> '{}' = %s limit 1",
            [task, version, result],
        ).fetchone()
    )


@pytest.mark.parametrize(
    "releases",
    [pytest.param([NEW], marks=pytest.mark.long), pytest.param([NEW, OLD, NEW], marks=pytest.mark.long)],
    ids=["forwards", "and back and forth"],
)
def test_no_attempt_is_burned_and_nothing_lost_while_workers_are_replaced(
    rota_app: TestRota,
    rota_worker: StartWorker,
    rota_database: str,
    admin: psycopg.Connection[Any],
    releases: list[str],
) -> None:
    handed_back = 0

    def replaced(before: list[WorkerProcess], module: str) -> list[WorkerProcess]:
        """One by one: the next is up before the last is asked to go, which has too little time for what it runs."""
        nonlocal handed_back
        after = []
        for worker in before:
            after.append(rota_worker(module, args=["--grace", "0.1"]))
            callers.go_on(20)
            until_sync(lambda: rota_app.jobs.list_sync(state="running"), what="something runs")
            worker.terminate()
            assert worker.wait(20) == 0
            handed_back += int(worker.output().split("finished, ")[1].split()[0])
        return after

    with Callers(rota_database) as callers:
        callers.releases = ("old", "new")
        workers = [rota_worker(OLD, args=["--grace", "0.1"]) for _ in range(2)]
        for module in releases:
            callers.go_on(20)
            workers = replaced(workers, module)
        until_sync(lambda: has_run(admin, "greet", 1, "new Ada L"), what="new code has run a call of the old one")
        callers.releases = ("new",)
        callers.go_on(20)
    rota_worker(OLD)  # someone is left who knows what nobody calls any more
    until_sync(lambda: count(admin, "jobs") == 0, timeout=40, what="all have run")

    ran = admin.execute(
        "select task || ' ' || version, array_agg(distinct result #>> '{}' order by result #>> '{}'), "
        "count(*), max(attempt), max(losses) from rota.history group by 1 order by 1"
    ).fetchall()
    assert [row[:2] for row in ran] == [
        ("coming 1", ["new"]),
        ("going 1", ["old"]),
        ("greet 1", ["new Ada L", "old Ada L"]),
        ("greet 2", ["new Alan T"]),
    ]
    assert sum(row[2] for row in ran) == callers.called
    assert {(row[3], row[4]) for row in ran} == {(1, 0)}
    assert (count(admin, "attempts"), count(admin, "dead")) == (0, 0)
    assert handed_back > 0  # so it was under load
