"""What still runs when a worker must go is saved, handed back free of charge, and taken up by a peer where it was left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from rota.testing import TestRota, WorkerProcess, until_sync

StartWorker = Callable[..., WorkerProcess]
pytestmark = pytest.mark.one_server

APP = """
import asyncio, os
from dataclasses import dataclass
from rota import Rota, Term, current_job, current_poll

app = Rota()

@app.task(name="pages")
async def pages(kind: str) -> list[int]:
    job = current_job()
    begun_at = job.saved or 0
    if kind == "saved before":
        if job.saved is None:
            await job.checkpoint(7)
            await asyncio.sleep(3600)  # a step that outlasts the grace
    elif kind == "saves when cancelled" and job.saved is None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await job.checkpoint(8)
    elif kind == "saves when told" and job.saved is None:
        while not job.stopping:
            await asyncio.sleep(0.01)
        await job.checkpoint(9)
    return [begun_at, os.getpid()]

@dataclass
class Feed:
    id: int

async def note(connection, what: str) -> None:
    await connection.execute("insert into notes (what, pid) values (%s, %s)", [what, os.getpid()])

@app.poller(table="feeds", key="id", last="polled_at", interval="1h", name="until told")
async def until_told(feed: Feed) -> None:
    poll = current_poll()
    async with app.lock("note") as connection:
        await note(connection, "poll begun")
        first = (await (await connection.execute("select count(*) from notes where what = 'poll begun'")).fetchone())[0] == 1
    while first and not poll.stopping:
        await asyncio.sleep(0.01)
    if first:
        async with app.lock("note") as connection:
            await note(connection, "poll told")
        await asyncio.sleep(3600)

@app.singleton("indexer")
async def indexer(term: Term) -> None:
    async with term.transaction() as connection:
        found = await (await connection.execute("select coalesce(max(n), 0) from progress")).fetchone()
        await note(connection, f"indexing from {found[0]}")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(1)  # it takes a moment to find out how far it got, and it has the grace for that
        async with term.transaction() as connection:
            await connection.execute("insert into progress values (%s)", [found[0] + 100])
        raise
"""


@pytest.fixture
def admin(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table notes (what text, pid int)")
        connection.execute("create table progress (n int)")
        connection.execute("create table feeds (id int primary key, polled_at timestamptz)")
        yield connection


def noted(admin: psycopg.Connection[Any], what: str) -> list[int]:
    return [pid for (pid,) in admin.execute("select pid from notes where what = %s", [what]).fetchall()]


@pytest.mark.parametrize(
    ("kind", "begins_at"),
    [
        pytest.param("saved before", 7, marks=pytest.mark.long),
        ("saves when cancelled", 8),
        pytest.param("saves when told", 9, marks=pytest.mark.long),
    ],
)
def test_a_job_resumes_on_a_peer_from_what_it_saved_at_once_and_free_of_charge(
    rota_app: TestRota, rota_worker: StartWorker, admin: psycopg.Connection[Any], kind: str, begins_at: int
) -> None:
    first = rota_worker(APP, args=["--grace", "0.3"])
    pages = rota_app.task(name="pages")(lambda kind: [0])
    job = pages.enqueue_sync(kind)
    until_sync(lambda: rota_app.jobs.get_sync(job.id).state == "running", what="it runs")
    peer = rota_worker(APP)

    first.terminate()
    assert first.wait(10) == 0
    gone_at = time.monotonic()

    assert job.wait_sync(10) == [begins_at, peer.pid]
    assert time.monotonic() - gone_at < 2  # a peer was woken, and looked for nothing
    settled = job.refresh_sync()
    assert (settled.attempt, settled.losses, settled.errors) == (1, 0, ())


@pytest.mark.long
def test_a_row_is_polled_by_a_peer_at_once_and_its_handler_was_told(
    rota_worker: StartWorker, admin: psycopg.Connection[Any]
) -> None:
    admin.execute("insert into feeds values (1, null)")
    first = rota_worker(APP, args=["--grace", "0.5"])
    until_sync(lambda: noted(admin, "poll begun") == [first.pid], what="it is polled")
    peer = rota_worker(APP)

    first.terminate()
    assert first.wait(10) == 0

    until_sync(lambda: admin.execute("select from feeds where polled_at is not null").rowcount, what="it is polled")
    assert noted(admin, "poll told") == [first.pid]
    assert noted(admin, "poll begun") == [first.pid, peer.pid]
    assert admin.execute("select from rota.poll_claims where attempts > 0 or losses > 0").rowcount == 0


@pytest.mark.long
def test_a_singleton_saves_under_its_term_within_the_grace_and_its_successor_goes_on_from_there(
    rota_worker: StartWorker, admin: psycopg.Connection[Any]
) -> None:
    first = rota_worker(APP, args=["--grace", "10"])
    until_sync(lambda: noted(admin, "indexing from 0") == [first.pid], what="it leads")
    peer = rota_worker(APP)

    first.terminate()
    assert first.wait(10) == 0

    until_sync(lambda: noted(admin, "indexing from 100") == [peer.pid], what="the successor knows")
    assert "it was resigned" in first.output()
