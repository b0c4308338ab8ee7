"""A session that hears a channel while it is asked other things, and while it is not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.pgbouncer import transaction_pooler

from rota.errors import DatabaseUnavailable, RotaError
from rota.jobs.source import JobSource
from rota.jobs.worker import Worker, WorkerSettings
from rota.postgres.connection import Connector, OwnConnection
from rota.postgres.dsn import Dsn
from rota.postgres.listening import Listener
from rota.postgres.query import Query, scalar, statement
from rota.postgres.session import Session
from rota.testing import TestRota, until, until_sync

PID = statement("test_pid", "select pg_backend_pid()")
NUMBER = statement("test_number", "select 10 / %(number)s::integer")
SAY = statement("test_say", "select pg_notify('news', %(word)s)")
CHANNELS = statement("test_channels", "select count(*) from pg_listening_channels()")
READY = b"Z\x00\x00\x00\x05I"  # how every answer ends
SLEEP = statement("test_sleep", "select pg_sleep(600)")


def pid() -> Query[int]:
    return PID.query(read=scalar)


class Ear:
    """A session that listens, what it has heard, and how often it was told of its end."""

    def __init__(self, dsn: str) -> None:
        self.heard: list[str] = []
        self.ended = asyncio.Event()
        listener = Listener("news", self.heard.append, self.ended.set)
        self.session = Session(Connector(Dsn(dsn), "ear"), "rota", listener=listener)

    @property
    def connection(self) -> OwnConnection:
        connection = self.session._connection
        assert connection is not None
        return connection

    async def hears(self, *words: str) -> None:
        await until(lambda: self.heard == list(words), what=f"{words} heard, and no more")


@pytest.fixture
async def ear(rota_database: str) -> AsyncIterator[Ear]:
    ear = Ear(rota_database)
    await ear.session.run(pid())
    yield ear
    await ear.session.close()


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


Db = psycopg.Connection[tuple[object, ...]]
pytestmark = pytest.mark.direct("nobody hears anything there")


def say(db: Db, word: str) -> None:
    db.execute("select pg_notify('news', %s)", [word])


def end(db: Db, pid: int) -> None:
    db.execute("select pg_terminate_backend(%s)", [pid])


async def test_what_is_said_while_nothing_is_asked_is_heard(ear: Ear, db: Db) -> None:
    say(db, "one")
    await ear.hears("one")
    db.execute("select pg_notify('other', '')")
    say(db, "two")

    await ear.hears("one", "two")


async def test_what_is_said_while_it_is_asked_is_heard_once(ear: Ear) -> None:
    await ear.session.run(SAY.query({"word": "mine"}, read=scalar))

    assert ear.heard == ["mine"]


async def test_what_was_read_behind_an_answer_is_heard_although_nothing_more_comes(ear: Ear, db: Db) -> None:
    asked = asyncio.create_task(ear.session.run(pid()))
    await asyncio.sleep(0)  # it is sent in the first turn of the task
    say(db, "late")
    arrives(ear, b"late")
    await asked

    assert ear.heard == ["late"]


async def test_who_was_refused_something_hears_on(ear: Ear, db: Db) -> None:
    with pytest.raises(RotaError):
        await ear.session.run(NUMBER.query({"number": 0}, read=scalar))
    say(db, "one")

    await ear.hears("one")


async def test_the_end_of_an_idle_session_is_told_and_the_next_one_hears(ear: Ear, db: Db) -> None:
    number = ear.connection.pgconn.socket
    end(db, await ear.session.run(pid()))

    await asyncio.wait_for(ear.ended.wait(), 20)

    assert asyncio.get_running_loop().remove_reader(number) is False
    await ear.session.run(pid())
    say(db, "again")
    await ear.hears("again")


async def test_the_end_of_a_session_that_is_asked_something_is_told_to_who_asks_and_the_next_one_hears(
    ear: Ear, db: Db
) -> None:
    backend = await ear.session.run(pid())
    asked = asyncio.create_task(ear.session.run(SLEEP.query(read=scalar)))
    await until(lambda: sleeps(db, backend), what="the statement runs")

    end(db, backend)

    with pytest.raises(DatabaseUnavailable):
        await asyncio.wait_for(asked, 20)
    assert await ear.session.run(pid()) != backend
    say(db, "again")
    await ear.hears("again")


async def test_a_session_that_was_given_up_half_way_leaves_nothing_behind_that_keeps_the_next_from_hearing(
    ear: Ear, db: Db
) -> None:
    backend, number = await ear.session.run(pid()), ear.connection.pgconn.socket
    asked = asyncio.create_task(ear.session.run(SLEEP.query(read=scalar)))
    await until(lambda: sleeps(db, backend), what="the statement runs")

    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked

    assert asyncio.get_running_loop().remove_reader(number) is False
    assert await ear.session.run(pid()) != backend
    say(db, "again")
    await ear.hears("again")


async def test_one_whose_answer_came_at_the_moment_it_was_given_up_leaves_nothing_behind_either(ear: Ear) -> None:
    number = ear.connection.pgconn.socket
    asked = asyncio.create_task(ear.session.run(pid()))
    await asyncio.sleep(0)
    arrives(ear, READY)
    for _ in range(2):  # in one turn the loop looks, in the next it reads and would wake the caller behind us
        await asyncio.sleep(0)

    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked

    assert asyncio.get_running_loop().remove_reader(number) is False


async def test_a_session_that_is_closed_leaves_nothing_behind(ear: Ear) -> None:
    number = ear.connection.pgconn.socket

    await ear.session.close()

    assert asyncio.get_running_loop().remove_reader(number) is False


async def test_no_session_of_a_pooler_is_made_to_listen(rota_database: str, tmp_path: Path) -> None:
    with transaction_pooler(rota_database, tmp_path) as dsn:
        ear = Ear(dsn)
        channels = await ear.session.run(CHANNELS.query(read=scalar))
        await ear.session.close()

    assert channels == 0


async def test_an_idle_worker_looks_at_once_when_the_session_it_claims_on_ends(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = asyncio.Event()
    monkeypatch.setattr(JobSource, "wake", lambda source: woken.set())
    worker = Worker(rota_app.database, {}, WorkerSettings(), rota_app.facts)
    end(db, await worker._claiming.run(pid()))

    await asyncio.wait_for(woken.wait(), 20)

    await worker._claiming.close()


def arrives(ear: Ear, what: bytes) -> None:
    """Hold up the loop until there is this to read, and nothing of it is read yet."""
    with socket.socket(fileno=os.dup(ear.connection.pgconn.socket)) as line:
        until_sync(lambda: what in _waiting(line), what=f"{what!r} has arrived")


def _waiting(line: socket.socket) -> bytes:
    try:
        return line.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def sleeps(db: Db, pid: int) -> bool:
    found = db.execute(
        "select state = 'active' and query like '%%pg_sleep%%' from pg_stat_activity where pid = %s", [pid]
    )
    return found.fetchall() == [(True,)]


async def test_one_in_the_place_of_another_tells_so_however_that_ended(ear: Ear, db: Db) -> None:
    number = await ear.session.run(pid())
    asleep = asyncio.create_task(ear.session.run(SLEEP.query(read=scalar)))
    running = "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    await until(lambda: db.execute(running, [number]).fetchone() is not None, timeout=60, what="it is asked something")
    end(db, number)
    with pytest.raises(DatabaseUnavailable):
        await asleep
    ear.ended.clear()

    await ear.session.run(pid())

    assert ear.ended.is_set()
