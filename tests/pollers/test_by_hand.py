"""Polling by hand: a round, one row, or nothing but a look; beside workers, and never against them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.jobs.statements import join
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, claims, make_feeds, one, rows_of, stamped, taken

from rota import ConfigurationError, NotPossible, PollStats, RotaError, current_poll
from rota.facts import RowLost, RowPolled
from rota.testing import TestRota, WorkerProcess, until

pytestmark = pytest.mark.long


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


class Gate:
    """A poller whose handler waits until it is let through."""

    def __init__(self, app: TestRota, **options: Any) -> None:
        self.polled: list[int] = []
        self.running, self.go = asyncio.Event(), asyncio.Event()

        @app.poller(**EVERY_FIVE_MINUTES, name="fetch", **options)
        async def fetch(feed: dict[str, Any]) -> None:
            self.polled.append(feed["id"])
            self.running.set()
            await self.go.wait()

        self.fetch = fetch


async def test_a_row_that_the_loop_has_is_not_polled_by_hand_as_well(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    make_feeds(db, 1)
    gate = Gate(rota_app)
    other = Gate(TestRota(rota_database))
    working = asyncio.create_task(rota_app.work())
    await gate.running.wait()

    for fetch in (gate.fetch, other.fetch):
        stats = await fetch.poll(1)
        assert (stats.claimed, stats.completed, stats.errors) == (0, 0, [])
        assert stats.held_by == one(db, "select name from rota.members where ended_at is null and work <> '{}'")
        assert await fetch.run_once() == PollStats()
    gate.go.set()
    await until(lambda: stamped(db) == [1], what="the loop's poll ends")
    rota_app.stop()
    await working

    assert (gate.polled, other.polled) == ([1], [])
    await other.fetch._home.close()  # type: ignore[attr-defined]


async def test_a_row_that_is_polled_by_hand_is_left_alone_by_the_loop(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)
    gate = Gate(rota_app)
    by_hand = asyncio.create_task(gate.fetch.poll(1))
    await gate.running.wait()
    working = asyncio.create_task(rota_app.work())
    await until(lambda: taken(db) == [1, 2], what="the loop has the other")
    gate.go.set()

    assert await by_hand == PollStats(claimed=1, completed=1)
    await until(lambda: stamped(db) == [1, 2], what="both are polled")
    rota_app.stop()
    await working
    assert sorted(gate.polled) == [1, 2]


async def test_many_who_poll_the_same_row_at_once_poll_it_once(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    polled: list[int] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        polled.append(feed["id"])
        await asyncio.wait_for(others_are_told.wait(), 10)

    others_are_told = asyncio.Event()
    polling = [asyncio.create_task(fetch.poll(1)) for _ in range(4)]
    await until(lambda: sum(each.done() for each in polling) == 3, what="the others are told")
    others_are_told.set()

    stats = await asyncio.gather(*polling)
    assert sorted(each.completed for each in stats) == [0, 0, 0, 1]
    assert polled == [1]


async def test_one_row_is_polled_due_or_not(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)
    gate = Gate(rota_app)
    gate.go.set()
    assert (await gate.fetch.run_once()).completed == 2
    first = rows_of(db)

    assert await gate.fetch.poll(1) == PollStats(claimed=1, completed=1)

    assert rows_of(db)[0]["fetched_at"] > first[0]["fetched_at"]
    assert rows_of(db)[1] == first[1]


async def test_a_row_that_is_not_there_or_does_not_fit_cannot_be_polled(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    gate = Gate(rota_app, where="enabled")
    db.execute("update feeds set enabled = false")

    for key in (1, 9):
        with pytest.raises(
            NotPossible, match=f"cannot poll row {key}: there is none in public.feeds that fits 'enabled'"
        ):
            await gate.fetch.poll(key)
    with pytest.raises(ConfigurationError, match="names no row: the key of 'fetch' is id"):
        await gate.fetch.poll(1, 2)
    assert claims(db) == {}


async def test_rows_with_keys_of_several_columns_and_of_any_type_are_polled_by_hand(rota_app: TestRota, db: Db) -> None:
    key = uuid4()
    db.execute("create table parts (id uuid, at date, n int, seen timestamptz, primary key (id, at, n))")
    db.execute("insert into parts values (%s, '2030-01-02', 7)", [key])
    seen: list[Any] = []

    @rota_app.poller(table="parts", key=["id", "at", "n"], last="seen", interval="1h")
    async def look(part: dict[str, Any]) -> None:
        seen.append(current_poll().key)

    (day,) = db.execute("select at from parts").fetchone() or (None,)
    assert (await look.poll(key, day, 7)).completed == 1
    assert (await look.poll((str(key), "2030-01-02", 7))).completed == 1
    assert seen == [(str(key), "2030-01-02", 7)] * 2


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "ten"])
async def test_how_many_is_a_whole_number(rota_app: TestRota, db: Db, most: Any) -> None:
    gate = Gate(rota_app)

    with pytest.raises(ConfigurationError, match="max_rows cannot be"):
        await gate.fetch.run_once(max_rows=most)


async def test_a_round_ends_when_ten_times_as_many_have_failed(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 30)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        raise ValueError

    stats = await fetch.run_once(max_rows=2)

    assert (stats.claimed, stats.completed, len(stats.errors)) == (20, 0, 20)


async def test_a_dry_run_takes_nothing_and_says_how_many_it_would(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 3)
    gate = Gate(rota_app)
    before = rows_of(db)

    assert await gate.fetch.run_once(max_rows=2, dry_run=True) == PollStats(claimed=2)
    assert [row.key for row in await gate.fetch.preview()] == [[1], [2], [3]]
    assert (gate.polled, rows_of(db), claims(db)) == ([], before, {})


async def test_a_round_that_is_cancelled_gives_its_rows_back_free_of_charge(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 5)
    gate = Gate(rota_app, concurrency=2)
    polling = asyncio.create_task(gate.fetch.run_once())
    await gate.running.wait()
    assert taken(db) == [1, 2, 3, 4, 5]

    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling

    assert (claims(db), stamped(db)) == ({}, [])
    gate.go.set()
    assert (await gate.fetch.run_once()).completed == 5


async def test_what_a_round_has_settled_before_it_is_cancelled_stays_settled(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)
    waiting = asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 2:
            waiting.set()
            await asyncio.Event().wait()

    polling = asyncio.create_task(fetch.run_once())
    await waiting.wait()
    await until(lambda: stamped(db) == [1], what="the first is settled while the second runs")
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)

    assert (stamped(db), claims(db)) == ([1], {})


def test_all_of_it_is_there_for_sync_callers(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 3)
    threads: set[str] = set()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: dict[str, Any]) -> None:
        threads.add(threading.current_thread().name)

    assert [row.key for row in fetch.preview_sync(2)] == [[1], [2]]
    assert fetch.run_once_sync(2, dry_run=True) == PollStats(claimed=2)
    assert fetch.run_once_sync(2) == PollStats(claimed=2, completed=2)
    assert fetch.poll_sync(3) == PollStats(claimed=1, completed=1)
    assert stamped(db) == [1, 2, 3]
    assert threading.main_thread().name not in threads


def test_sync_callers_in_several_threads_poll_each_row_once(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 20)
    polled: list[int] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: dict[str, Any]) -> None:
        polled.append(feed["id"])

    with ThreadPoolExecutor(3) as threads:
        rounds = [threads.submit(fetch.run_once_sync, 20) for _ in range(3)]
        assert sum(each.result(60).completed for each in rounds) == 20
    assert sorted(polled) == [*range(1, 21)]


async def test_inside_an_event_loop_the_sync_calls_say_what_to_write(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    gate = Gate(rota_app)

    with pytest.raises(RotaError, match=r"cannot run inside an event loop. Write: await poller.run_once"):
        gate.fetch.run_once_sync()


WORKER = """
import asyncio
from rota import Rota

app = Rota()


@app.poller(table="feeds", last="fetched_at", interval="5m", name="fetch", idle=0.2)
async def fetch(feed: dict) -> None:
    await asyncio.sleep(0.005)
"""


async def test_rounds_in_a_web_process_beside_a_worker_process_poll_each_row_once(
    rota_app: TestRota, db: Db, rota_worker: Callable[..., WorkerProcess]
) -> None:
    make_feeds(db, 0)
    db.execute("create table polls (feed bigint)")
    db.execute(
        "create function note() returns trigger language plpgsql as "
        "'begin insert into polls values (new.id); return new; end'"
    )
    db.execute("create trigger note after update on feeds for each row execute function note()")
    rota_worker(WORKER)
    gate = Gate(rota_app)
    gate.go.set()
    db.execute("insert into feeds (id) select generate_series(1, 300)")

    async def serve() -> int:
        return sum([(await gate.fetch.run_once(max_rows=10)).completed for _ in range(5)])

    await asyncio.gather(*(serve() for _ in range(3)))
    await until(lambda: len(stamped(db)) == 300, what="all are polled", timeout=30)

    assert one(db, "select count(*) from polls") == 300
    assert claims(db) == {}


async def test_where_rows_are_polled_by_hand_only_a_round_takes_over_what_was_lost(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    gate = Gate(rota_app)
    gate.go.set()
    gone = join(db)
    db.execute(
        "insert into rota.poll_claims (poller, key, member, token, claimed_at) values ('fetch', '[1]', %s, 1, now())",
        [gone],
    )
    assert await gate.fetch.run_once() == PollStats()

    db.execute("update rota.members set ended_at = now(), end_reason = 'left' where id = %s", [gone])
    with rota_app.facts.recorded(RowLost, RowPolled) as told:
        assert await gate.fetch.run_once() == PollStats(claimed=1, completed=1)

    assert [type(f) for f in told] == [RowLost, RowPolled]
    assert claims(db) == {}
