"""What polling by hand keeps between calls: how much it opens, what a call costs, when it sees another table, and its end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, claims, make_feeds, one, rows_of, stamped

from rota import PollStats, Rota, current_poll
from rota.errors import DatabaseUnavailable
from rota.pollers import by_hand
from rota.pollers.poller import Poller
from rota.postgres.connection import Connector
from rota.testing import TestRota, until, until_sync

OPENED = "from pg_stat_activity where datname = current_database() and starts_with(application_name, 'rota')"
OPEN = f"select count(*) {OPENED}"
MEMBERS = "select count(*) from rota.members where ended_at is null"


@pytest.fixture
def db(direct_database: str) -> Iterator[Db]:
    with psycopg.connect(direct_database, autocommit=True) as connection:
        make_feeds(connection, 50)
        yield connection


def fetching(app: Rota) -> Poller[..., Any]:
    @app.poller(**EVERY_FIVE_MINUTES, name="fetch")
    async def fetch(feed: dict[str, Any]) -> None: ...

    return fetch


async def test_however_many_poll_at_once_connections_are_few(direct_database: str, db: Db) -> None:
    async with Rota(direct_database) as app:
        running, go = [], asyncio.Event()

        @app.poller(**EVERY_FIVE_MINUTES)
        async def fetch(feed: dict[str, Any]) -> None:
            running.append(feed["id"])
            await go.wait()

        polling = [asyncio.create_task(fetch.poll(id)) for id in range(1, 41)]
        await until(lambda: len(running) == 40, what="all are polled")
        assert one(db, MEMBERS) == 1
        go.set()
        stats = await asyncio.gather(*polling)

        assert [each.completed for each in stats] == [1] * 40
        # to look, for claims, for stamps, and the control's; one of the first three is just being opened, at most
        assert one(db, OPEN) <= 6


async def test_ten_polls_cost_forty_statements(direct_database: str, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    execute, begin = psycopg.AsyncCursor.execute, psycopg.AsyncTransaction.__aenter__

    async def executing(self: Any, *args: Any, **named: Any) -> Any:
        asked.append(args[0])
        return await execute(self, *args, **named)

    async def beginning(self: Any) -> Any:
        asked.extend(["begin", "commit"])
        return await begin(self)

    async with Rota(direct_database) as app:
        fetch = fetching(app)
        await fetch.poll(50)
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.AsyncCursor, "execute", executing)
            patch.setattr(psycopg.AsyncTransaction, "__aenter__", beginning)
            for id in range(1, 11):
                assert (await fetch.poll(id)).completed == 1
            by_key = len(asked)
            assert (await fetch.run_once(max_rows=10)).completed == 10
            by_round = len(asked) - by_key

    assert 20 < by_key <= 40
    assert 10 < by_round <= 40


async def test_what_is_kept_is_closed_with_the_app_and_opened_again_by_the_next_call(
    direct_database: str, db: Db
) -> None:
    app = Rota(direct_database)
    fetch = fetching(app)
    for id in (1, 2):
        await fetch.poll(id)
        assert one(db, MEMBERS) == 1

        await app.close()

        assert one(db, MEMBERS) == 0
        await until(lambda: one(db, OPEN) == 0, what="all is closed")
    assert stamped(db) == [1, 2]


async def test_closing_lets_what_is_being_polled_come_to_its_end(direct_database: str, db: Db) -> None:
    app = Rota(direct_database)
    running, go = asyncio.Event(), asyncio.Event()

    @app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        running.set()
        await go.wait()

    polling = asyncio.create_task(fetch.poll(1))
    await running.wait()
    await app.close()
    go.set()

    assert await polling == PollStats(1, 1)
    await until(lambda: (one(db, MEMBERS), one(db, OPEN)) == (0, 0), what="all is closed")


def test_what_sync_callers_opened_is_closed_with_the_app(direct_database: str, db: Db) -> None:
    with Rota(direct_database) as app:
        fetch = fetching(app)
        assert fetch.poll_sync(1).completed == 1
        opened = one(db, OPEN)
        assert fetch.poll_sync(2).completed == 1
        assert (one(db, OPEN), one(db, MEMBERS)) == (opened, 1)

    assert one(db, MEMBERS) == 0
    until_sync(lambda: one(db, OPEN) == 0, what="all is closed")
    assert not [thread for thread in threading.enumerate() if thread.name == "rota-aside"]
    assert fetch.poll_sync(3).completed == 1
    app.close_sync()


def test_what_handlers_in_threads_opened_is_closed_with_the_app(direct_database: str, db: Db) -> None:
    app = Rota(direct_database)

    @app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: dict[str, Any]) -> None:
        with current_poll().transaction():
            pass

    gc.disable()  # which would close it too, at some time
    try:
        fetch.run_once_sync(1)
        app.close_sync()
        until_sync(lambda: one(db, OPEN) == 0, what="all is closed")
    finally:
        gc.enable()


async def test_closing_what_could_not_be_opened_is_no_error() -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")
    fetch = fetching(app)

    with pytest.raises(DatabaseUnavailable):
        await fetch.run_once()
    await app.close()


async def test_an_app_that_is_closed_in_a_loop_closes_what_sync_callers_opened(direct_database: str, db: Db) -> None:
    async with Rota(direct_database) as app:
        await asyncio.to_thread(fetching(app).poll_sync, 1)
        assert one(db, MEMBERS) == 1

    assert one(db, MEMBERS) == 0
    await until(lambda: one(db, OPEN) == 0, what="all is closed")


@pytest.mark.filterwarnings("error")
def test_an_app_that_nobody_opens_or_closes_leaves_nothing_open_behind_its_loop(direct_database: str, db: Db) -> None:
    app = Rota(direct_database)
    fetch = fetching(app)

    for id in (1, 2):
        assert asyncio.run(fetch.poll(id)).completed == 1
        assert one(db, MEMBERS) == 0
        until_sync(lambda: one(db, OPEN) == 0, what="all is closed")


def test_a_loop_that_has_ended_is_not_kept(direct_database: str, db: Db) -> None:
    app = Rota(direct_database)
    fetch = fetching(app)

    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        await fetch.poll(1)
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(main())
    gc.collect()

    assert ended() is None


def test_a_loop_may_end_while_it_connects(
    direct_database: str, db: Db, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Rota(direct_database)
    fetch = fetching(app)
    connecting = asyncio.Event()

    async def connect(connector: Connector) -> Any:
        connecting.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # a statement that is cancelled waits for PostgreSQL to say so

    async def main() -> asyncio.Task[PollStats]:
        polling = asyncio.create_task(fetch.poll(1))
        await connecting.wait()
        return polling

    monkeypatch.setattr(Connector, "connect", connect)

    assert asyncio.run(main()).cancelled()
    assert caplog.records == []


def test_a_loop_ends_at_once_though_the_server_has_closed_some_of_its_connections(
    direct_database: str, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    app = Rota(direct_database)
    fetch = fetching(app)

    async def main() -> None:
        await fetch.run_once(1)
        db.execute(f"select pg_terminate_backend(pid, 5000) {OPENED} and starts_with(application_name, 'rota:poll')")

    began = time.monotonic()
    asyncio.run(main())

    assert time.monotonic() - began < 25  # a pool waits for thirty
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    until_sync(lambda: one(db, OPEN) == 0, what="all is closed")


def test_a_poll_that_its_loop_ends_first_gives_its_row_back(direct_database: str, db: Db) -> None:
    app = Rota(direct_database)

    @app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)  # time for who would close what it needs
            members.append(one(db, MEMBERS))

    async def main() -> None:
        nonlocal running, polling
        running = asyncio.Event()
        polling = asyncio.create_task(fetch.poll(1))
        await running.wait()
        assert list(claims(db)) == [1]

    members: list[int] = []
    running, polling = asyncio.Event(), None
    asyncio.run(main())

    assert (claims(db), members, one(db, MEMBERS)) == ({}, [1], 0)
    until_sync(lambda: one(db, OPEN) == 0, what="all is closed")


async def test_a_handler_that_is_cancelled_along_with_its_caller_costs_no_attempt(rota_app: TestRota, db: Db) -> None:
    running: asyncio.Future[asyncio.Task[Any] | None] = asyncio.get_running_loop().create_future()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        running.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    polling = asyncio.create_task(fetch.poll(1))
    handling = await running
    assert handling is not None
    for task in (handling, polling):  # as the runner of a loop may do it
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling

    assert claims(db) == {}


SCRIPT = """
from rota import Rota
app = Rota()
@app.poller(table="feeds", last="fetched_at", interval="5m")
def fetch(feed: dict) -> None: ...
print(fetch.poll_sync(1).completed, fetch.poll_sync(2).completed)
"""


def test_a_script_that_closes_nothing_leaves_the_members_when_it_ends(
    direct_database: str, db: Db, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "ROTA_DATABASE_URL": direct_database}
    command = [sys.executable, str(tmp_path / "script.py")]

    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=30)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1 1\n", "")
    assert db.execute("select end_reason from rota.members").fetchall() == [("left",)]


async def test_what_is_not_used_for_a_while_is_closed(
    direct_database: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_hand, "_IDLE_SECONDS", 0.1)
    async with Rota(direct_database) as app:
        fetch = fetching(app)
        await fetch.poll(1)
        await until(lambda: (one(db, MEMBERS), one(db, OPEN)) == (0, 0), what="all is closed")

        assert (await fetch.poll(2)).completed == 1


async def test_a_table_that_was_altered_between_two_calls_is_polled_as_it_is(rota_app: TestRota, db: Db) -> None:
    seen: list[dict[str, Any]] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES, name="fetch")
    async def fetch(feed: dict[str, Any]) -> None:
        seen.append(feed)

    await fetch.poll(1)
    for change in (
        "alter table feeds add extra int not null default 7",
        "alter table feeds drop column notes",
        "alter table feeds rename column name to title",
        "alter table feeds alter fetched_at type timestamp using fetched_at at time zone 'Asia/Tokyo'",
        "alter table feeds alter id type text",
    ):
        db.execute(change)  # type: ignore[call-overload]
        assert (await fetch.poll(1)).completed == 1

    assert [len(each) for each in seen] == [7, 8, 7, 7, 7, 7]
    assert (seen[1]["extra"], seen[3]["title"], seen[5]["id"]) == (7, "feed 1", "1")
    # the stamp of a time without a zone is in UTC
    assert one(
        db, "select abs(extract(epoch from fetched_at - now() at time zone 'UTC')) < 60 from feeds where id = '1'"
    )

    db.execute("drop table feeds")
    make_feeds(db, 1)
    assert (await fetch.poll(1)).completed == 1
    assert rows_of(db)[0]["fetched_at"] is not None


async def test_a_worker_that_has_ended_is_not_shown_by_what_polls_by_hand_in_its_process(
    rota_app: TestRota, db: Db
) -> None:
    fetch = fetching(rota_app)
    await fetch.poll(1)
    await rota_app.drain()

    await until(lambda: [member.work for member in rota_app.members_sync()] == [{}], what="nobody works")
    members: list[int] = []

    @rota_app.task
    async def look() -> None:
        members.append(len(await rota_app.members()))

    await look.enqueue()
    await rota_app.drain()
    assert members == [1]  # the next is a worker in the same place


CLOSED_BY_HAND = """
import asyncio, sys
from rota import Rota

app = Rota(sys.argv[1])

@app.poller(table="feeds", last="fetched_at", interval="5m")
async def fetch(feed): ...

for line in sys.stdin:
    if line == "close\\n":
        app.close_sync()
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(fetch.poll(int(line)))
        loop.close()
    print("done", flush=True)
"""


def test_a_loop_that_was_closed_by_hand_is_tidied_up_after_by_the_next_and_with_the_app(
    direct_database: str, db: Db
) -> None:
    """`asyncio.run` cancels what is left before it closes a loop. Who closes one by hand hears of it from Python, in a process of
    its own here."""
    with subprocess.Popen(
        [sys.executable, "-c", CLOSED_BY_HAND, direct_database],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:

        def does(what: str) -> None:
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        does("1")
        opened = one(db, OPEN)
        assert (opened > 1, one(db, MEMBERS)) == (True, 1)
        for id in ("2", "3"):
            does(id)
            assert one(db, MEMBERS) == 1
            until_sync(lambda: one(db, OPEN) <= opened, what="those of the loop before are closed")

        does("close")

        assert one(db, MEMBERS) == 0
        until_sync(lambda: one(db, OPEN) == 0, what="all is closed")
        process.communicate()
