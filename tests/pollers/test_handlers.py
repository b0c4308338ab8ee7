"""What may be a handler, what it may do, and what becomes of its row."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, add_feeds, claims, make_feeds, stamped, taken

from rota import PollStats, Retry, RotaError, current_poll
from rota.facts import RowFailed, RowPolled
from rota.testing import TestRota, until

pytestmark = pytest.mark.long


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        make_feeds(connection, 1)
        yield connection


@dataclass
class Feed:
    id: int
    name: str


class Fetcher:
    """An object that can be called."""

    def __init__(self) -> None:
        self.polled: list[str] = []

    def __call__(self, feed: Feed) -> None:
        self.polled.append(feed.name)


class AsyncFetcher(Fetcher):
    async def __call__(self, feed: Feed) -> None:  # type: ignore[override]
        self.polled.append(feed.name)


async def fetch_into(polled: list[str], feed: Feed) -> None:
    polled.append(feed.name)


def fetch_into_in_a_thread(polled: list[str], feed: Feed) -> None:
    polled.append(f"{feed.name} {threading.current_thread() is threading.main_thread()}")


@pytest.mark.parametrize("kind", [Fetcher, AsyncFetcher])
async def test_an_object_that_can_be_called_is_a_handler(rota_app: TestRota, db: Db, kind: type[Fetcher]) -> None:
    fetcher = kind()
    fetch = rota_app.poller(**EVERY_FIVE_MINUTES, name="fetch")(fetcher)

    assert await fetch.run_once() == PollStats(claimed=1, completed=1)
    assert fetcher.polled == ["feed 1"]


@pytest.mark.parametrize(
    ("function", "expected"), [(fetch_into, "feed 1"), (fetch_into_in_a_thread, "feed 1 False")], ids=["async", "sync"]
)
async def test_a_function_with_some_of_its_arguments_is_a_handler(
    rota_app: TestRota, db: Db, function: Any, expected: str
) -> None:
    polled: list[str] = []
    fetch = rota_app.poller(**EVERY_FIVE_MINUTES, name="fetch")(functools.partial(function, polled))

    assert (await fetch.run_once()).completed == 1
    assert polled == [expected]


async def test_a_coroutine_from_what_does_not_look_like_a_coroutine_function_is_awaited(
    rota_app: TestRota, db: Db
) -> None:
    polled: list[str] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: Feed) -> Any:
        return fetch_into(polled, feed)

    assert (await fetch.run_once()).completed == 1
    assert polled == ["feed 1"]


async def test_a_poller_is_still_the_function_that_it_was(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: Feed) -> str:
        """Fetch it."""
        return feed.name

    assert (fetch(Feed(1, "mine")), fetch.__doc__, fetch.name) == ("mine", "Fetch it.", "fetch")  # type: ignore[comparison-overlap]


async def test_sync_handlers_run_beside_each_other_as_many_as_are_allowed(rota_app: TestRota, db: Db) -> None:
    add_feeds(db, 2, 6)
    together = threading.Barrier(3)

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=3)
    def fetch(feed: Feed) -> None:
        together.wait(10)

    assert (await fetch.run_once()).completed == 6


# how a handler may end


@pytest.mark.parametrize("hand", ["run_once", "work"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "error", [SystemExit(3), asyncio.CancelledError("mine"), GeneratorExit(), StopIteration(), StopAsyncIteration()]
)
async def test_whatever_a_handler_raises_is_a_failure_of_its_row_alone(
    rota_app: TestRota, db: Db, error: BaseException, is_async: bool, hand: str
) -> None:
    add_feeds(db, 2, 2)

    def act(feed: Feed) -> None:
        if feed.id == 1:
            if isinstance(error, SystemExit):
                sys.exit(3)
            raise error

    async def act_async(feed: Feed) -> None:
        act(feed)

    fetch = rota_app.poller(**EVERY_FIVE_MINUTES, name="fetch")(act_async if is_async else act)

    with rota_app.facts.recorded(RowPolled, RowFailed) as told:
        async with asyncio.timeout(20):
            await (fetch.run_once() if hand == "run_once" else rota_app.drain())

    assert sorted((f.key[0], type(f)) for f in told) == [(1, RowFailed), (2, RowPolled)]
    assert (stamped(db), claims(db)[1]["attempts"]) == ([2], 1)


@pytest.mark.parametrize("hand", ["run_once", "work"])
async def test_a_handler_that_takes_too_long_is_cancelled_and_says_so(rota_app: TestRota, db: Db, hand: str) -> None:
    cancelled: list[int] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES, timeout=0.05)
    async def fetch(feed: Feed) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(feed.id)
            raise

    await (fetch.run_once() if hand == "run_once" else rota_app.drain())

    assert cancelled == [1]
    assert (claims(db)[1]["error_type"], claims(db)[1]["error_message"]) == (
        "TimeoutError",
        "the handler took longer than its timeout of 0.05 s",
    )


async def test_a_timeout_of_the_handlers_own_is_told_as_its_own(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES, timeout=60)
    async def fetch(feed: Feed) -> None:
        raise TimeoutError("the server of the feed")

    assert (await fetch.run_once()).errors == ["1: TimeoutError: the server of the feed"]


async def test_a_thread_that_outstays_its_timeout_keeps_nobody_waiting(rota_app: TestRota, db: Db) -> None:
    add_feeds(db, 2, 3)
    go = threading.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES, timeout=1, concurrency=1, order_by="id")
    def fetch(feed: Feed) -> None:
        if feed.id == 1:
            go.wait(30)

    try:
        stats = await fetch.run_once()
    finally:
        go.set()

    assert (stats.claimed, stats.completed) == (3, 2)
    assert "timeout of 1 s" in stats.errors[0]


async def test_a_round_that_is_cancelled_keeps_a_row_until_the_thread_that_polls_it_has_ended(
    rota_app: TestRota, db: Db
) -> None:
    add_feeds(db, 2, 5)
    running, go = threading.Event(), threading.Event()
    stopping: list[bool] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=1)
    def fetch(feed: Feed) -> None:
        running.set()
        go.wait(30)
        stopping.append(current_poll().stopping)

    polling = asyncio.create_task(fetch.run_once())
    await asyncio.to_thread(running.wait, 10)
    polling.cancel()
    await until(lambda: taken(db) == [1], what="what was not begun is given back, and what runs is kept")
    assert not polling.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await polling

    assert (stamped(db), claims(db), stopping) == ([1], {}, [True])


async def test_a_round_that_is_cancelled_twice_does_not_wait_for_its_threads(rota_app: TestRota, db: Db) -> None:
    add_feeds(db, 2, 2)
    running, go = threading.Event(), threading.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=1)
    def fetch(feed: Feed) -> None:
        running.set()
        go.wait(30)

    polling = asyncio.create_task(fetch.run_once())
    await asyncio.to_thread(running.wait, 10)
    try:
        polling.cancel()
        await until(lambda: taken(db) == [1], what="it is cancelled")
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(polling, 10)
    finally:
        go.set()

    assert (stamped(db), claims(db)) == ([], {})


async def test_a_thread_that_outstays_its_timeout_is_not_waited_for_though_its_round_is_cancelled(
    rota_app: TestRota, db: Db
) -> None:
    running, go = threading.Event(), threading.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES, timeout=2, retry=Retry(attempts=2, base=3600))
    def fetch(feed: Feed) -> None:
        running.set()
        go.wait(30)

    polling = asyncio.create_task(fetch.run_once())
    await asyncio.to_thread(running.wait, 10)
    try:
        polling.cancel()
        await asyncio.wait([polling], timeout=20)
    finally:
        go.set()

    assert polling.cancelled()
    assert "timeout of 2 s" in claims(db)[1]["error_message"]


async def test_in_a_worker_a_thread_that_outstays_its_timeout_keeps_its_place(rota_app: TestRota, db: Db) -> None:
    go, too_many = threading.Event(), threading.Event()
    running: set[int] = set()

    @rota_app.poller(**EVERY_FIVE_MINUTES, timeout=1, concurrency=2, retry=Retry(attempts=2, base=3600))
    def fetch(feed: Feed) -> None:
        running.add(feed.id)
        if feed.id == 1:
            go.wait(30)
        elif len(running) > 2:
            too_many.set()
        else:
            too_many.wait(0.1)  # time for a third to begin
        running.discard(feed.id)

    working = asyncio.create_task(rota_app.work())
    await until(lambda: 1 in claims(db) and claims(db)[1]["attempts"] == 1, what="it is given up")
    add_feeds(db, 2, 6)
    rota_app.advance("1s")
    await until(lambda: stamped(db) == [*range(2, 7)], what="the others are polled")
    go.set()
    rota_app.stop()
    await working

    assert not too_many.is_set()


# what a handler sees of its poll


def test_outside_of_a_handler_there_is_no_current_poll() -> None:
    with pytest.raises(RotaError, match="There is no current poll here"):
        current_poll()


async def test_the_idempotency_key_stays_over_attempts_and_changes_with_the_next_time(
    rota_app: TestRota, db: Db
) -> None:
    seen: list[tuple[str, int, int]] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=Retry(attempts=9, base=1))
    async def fetch(feed: Feed) -> None:
        poll = current_poll()
        seen.append((poll.idempotency_key, poll.attempt, poll.token))
        if len(seen) in (1, 2, 4):
            raise ValueError

    for _ in range(5):
        await fetch.run_once()
        rota_app.advance("6m")

    keys = [key for key, _, _ in seen]
    assert keys[0] == keys[1] == keys[2] == "rota:fetch:1@never"
    assert keys[3] == keys[4] != keys[0]
    assert [attempt for _, attempt, _ in seen] == [1, 2, 3, 1, 2]
    assert len({token for _, _, token in seen}) == 5


async def test_a_handler_knows_its_row_and_whether_the_worker_wants_to_end(rota_app: TestRota, db: Db) -> None:
    seen: list[Any] = []
    running = asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: Feed) -> None:
        poll = current_poll()
        seen.append((poll.poller, poll.key, poll.stopping))
        running.set()
        await until(lambda: poll.stopping, what="it is told")
        seen.append(poll.stopping)

    working = asyncio.create_task(rota_app.work(grace=30))
    await running.wait()
    rota_app.stop()
    await working

    assert seen == [("fetch", 1, False), True]
    assert stamped(db) == [1]


# an error of the database while the first is saved


async def test_a_database_error_while_saving_the_first_leaves_the_second_to_be_processed(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    class Base(DeclarativeBase):
        pass

    class Page(Base):
        __tablename__ = "pages"
        feed: Mapped[int] = mapped_column(primary_key=True)
        title: Mapped[str]

    add_feeds(db, 2, 2)
    db.execute("create table pages (feed bigint primary key, title text check (title <> 'feed 1'))")
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(rota_database))

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=1, order_by="id")
    def fetch(feed: Feed) -> None:
        with Session(engine) as session, current_poll().transaction(on=session):
            session.add(Page(feed=feed.id, title=feed.name))
            session.flush()

    stats = await fetch.run_once()

    assert (stats.claimed, stats.completed) == (2, 1)
    assert "IntegrityError" in stats.errors[0]
    with Session(engine) as session:
        assert [page.feed for page in session.scalars(sqlalchemy.select(Page))] == [2]
    engine.dispose()
