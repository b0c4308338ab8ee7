"""Rows that fail: tried again later, by anyone, ever more seldom, and parked when their attempts are used up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, add_feeds, claims, make_feeds, one, stamped, taken

from rota import NotPossible, PollStats, Retry, current_poll
from rota.facts import RowClaimLost, RowFailed, RowPolled
from rota.pollers.poller import Poller
from rota.testing import TestRota, until


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


class Feeds:
    """A poller whose rows fail while they are in `failing`."""

    def __init__(self, app: TestRota, **options: Any) -> None:
        self.failing: set[int] = set()
        self.attempts: list[tuple[int, int]] = []

        @app.poller(**EVERY_FIVE_MINUTES, name="fetch", **options)
        async def fetch(feed: dict[str, Any]) -> None:
            self.attempts.append((feed["id"], current_poll().attempt))
            if feed["id"] in self.failing:
                raise ValueError(f"attempt {current_poll().attempt}")

        self.fetch: Poller[..., Any] = fetch


STEADY = Retry(attempts=3, backoff="exponential", base=60, jitter=False)


async def test_a_row_that_fails_waits_for_its_pause_whoever_asks_and_is_parked_when_its_attempts_are_used_up(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    make_feeds(db, 2)
    here, there = Feeds(rota_app, retry=STEADY), Feeds(TestRota(rota_database), retry=STEADY)
    here.failing = there.failing = {1}

    assert (await here.fetch.run_once()).errors == ["1: ValueError: attempt 1"]
    assert await there.fetch.run_once() == PollStats()
    rota_app.advance("59s")
    assert await there.fetch.run_once() == PollStats()
    rota_app.advance("2s")
    assert (await there.fetch.run_once()).errors == ["1: ValueError: attempt 2"]
    rota_app.advance("119s")
    assert await here.fetch.run_once() == PollStats()
    rota_app.advance("2s")
    assert (await here.fetch.run_once()).errors == ["1: ValueError: attempt 3"]
    rota_app.advance("1d")
    assert (await here.fetch.run_once()).claimed == 1  # the other row

    (parked,) = await rota_app.pollers.parked("fetch")
    assert (parked.key, parked.attempts, parked.error_message) == ([1], 3, "attempt 3")
    assert "raise ValueError" in str(parked.error_trace)
    await there.fetch._home.close()  # type: ignore[attr-defined]


async def test_attempts_are_spaced_and_capped_in_all_with_two_workers_that_poll_at_once(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    make_feeds(db, 3)
    other_app = TestRota(rota_database)
    here, there = Feeds(rota_app, retry=STEADY, idle=0.1), Feeds(other_app, retry=STEADY, idle=0.1)
    here.failing = there.failing = {1, 2, 3}
    workers = [asyncio.create_task(app.work()) for app in (rota_app, other_app)]

    def made() -> list[tuple[int, int]]:
        return sorted(here.attempts + there.attempts)

    def waiting() -> bool:
        return all(claim["member"] is None for claim in claims(db).values()) and len(claims(db)) == 3

    await until(lambda: len(made()) == 3 and waiting(), what="each failed once")
    # both look again and again, and neither takes one before its time
    for more in range(10, 20):
        add_feeds(db, more, more)
        rota_app.advance("5s")
        await until(lambda more=more: more in stamped(db), what="another is polled")  # type: ignore[misc]
    assert made() == [(1, 1), (2, 1), (3, 1), *((id, 1) for id in range(10, 20))]
    here.attempts, there.attempts = [], []
    rota_app.advance("11s")
    await until(lambda: len(made()) == 3 and waiting(), what="each failed twice")
    rota_app.advance("121s")
    await until(lambda: one(db, "select count(*) from rota.poll_claims where parked_at is not null") == 3)
    rota_app.advance("1d")
    add_feeds(db, 4, 4)
    await until(lambda: 4 in stamped(db), what="another is polled")
    for app in (rota_app, other_app):
        app.stop()
    await asyncio.gather(*workers)

    assert [each for each in made() if each[0] < 4] == [(id, attempt) for id in (1, 2, 3) for attempt in (2, 3)]
    await other_app.close()


async def test_a_poll_that_is_well_begins_a_new_count(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    feeds = Feeds(rota_app, retry=STEADY)
    feeds.failing = {1}
    await feeds.fetch.run_once()
    rota_app.advance("61s")

    feeds.failing = set()
    await feeds.fetch.run_once()
    assert claims(db) == {}
    rota_app.advance("6m")
    await feeds.fetch.run_once()

    assert feeds.attempts == [(1, 1), (1, 2), (1, 1)]


async def test_only_errors_that_are_named_are_tried_again(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=Retry(attempts=5, on=ConnectionError, base=60))
    async def fetch(feed: dict[str, Any]) -> None:
        raise ConnectionError if feed["id"] == 1 else ValueError

    await fetch.run_once()

    assert [row.key for row in await rota_app.pollers.parked("fetch")] == [[2]]
    assert claims(db)[1]["parked_at"] is None


async def test_a_backoff_that_raises_parks_the_row_and_tells_of_both_errors(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)

    def backoff(failures: int) -> float:
        raise KeyError("no such pause")

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=Retry(attempts=5, backoff=backoff))
    async def fetch(feed: dict[str, Any]) -> None:
        raise ValueError("what went wrong at first")

    await fetch.run_once()

    (parked,) = await rota_app.pollers.parked("fetch")
    assert parked.error_type == "KeyError"
    assert "what went wrong at first" in str(parked.error_trace)


async def test_a_pause_longer_than_postgresql_can_count_is_very_long(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=Retry(attempts=5, backoff=lambda n: timedelta.max))
    async def fetch(feed: dict[str, Any]) -> None:
        raise ValueError

    await fetch.run_once()

    assert one(db, "select retry_at > now() + interval '50 years' from rota.poll_claims")


async def test_without_retry_the_first_failure_parks(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    feeds = Feeds(rota_app, retry=None)
    feeds.failing = {1}

    with rota_app.facts.recorded(RowFailed) as told:
        await feeds.fetch.run_once()

    assert [(f.key, f.attempt, f.retry_in) for f in told] == [([1], 1, None)]
    assert [row.key for row in await rota_app.pollers.parked("fetch")] == [[1]]


# parked rows


async def test_parked_rows_are_released_with_all_their_attempts(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 3)
    feeds = Feeds(rota_app, retry=Retry(attempts=1))
    feeds.failing = {1, 2, 3}
    await feeds.fetch.run_once()
    rota_app.advance("1d")
    assert await feeds.fetch.run_once() == PollStats()

    assert await rota_app.pollers.release("fetch", [2], dry_run=True) == 1
    assert len(await rota_app.pollers.parked("fetch")) == 3
    assert await rota_app.pollers.release("fetch", [2], by="me") == 1
    assert [row.key for row in await rota_app.pollers.parked("fetch")] == [[1], [3]]
    assert [row.key for row in await rota_app.pollers.parked("fetch", after=[1])] == [[3]]
    assert (await feeds.fetch.run_once()).claimed == 1
    assert await rota_app.pollers.release("fetch") == 3
    feeds.failing = set()
    assert await feeds.fetch.run_once() == PollStats(claimed=3, completed=3)
    assert feeds.attempts[-1][1] == 1


async def test_unless_it_is_named_a_row_that_waits_is_not_released(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=Retry(attempts=5, on=ConnectionError, base=60))
    async def fetch(feed: dict[str, Any]) -> None:
        raise ConnectionError if feed["id"] == 1 else ValueError

    await fetch.run_once()

    assert await rota_app.pollers.release("fetch") == 1
    assert claims(db).keys() == {1}
    assert await rota_app.pollers.release("fetch", [1]) == 1
    assert claims(db) == {}


async def test_parked_rows_take_the_place_of_none_that_is_well(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 12)
    feeds = Feeds(rota_app, retry=Retry(attempts=1))
    feeds.failing = set(range(1, 13))
    await feeds.fetch.run_once(max_rows=12)
    add_feeds(db, 13, 17)

    assert await feeds.fetch.run_once(max_rows=5) == PollStats(claimed=5, completed=5)
    assert stamped(db) == [*range(13, 18)]


async def test_a_row_that_waits_may_be_released_and_one_that_is_held_only_if_that_is_said(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 1)
    running, go = asyncio.Event(), asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        running.set()
        await go.wait()

    with rota_app.facts.recorded(RowPolled, RowFailed, RowClaimLost) as told:
        polling = asyncio.create_task(fetch.poll(1))
        await running.wait()
        assert await rota_app.pollers.release("fetch", [1]) == 0
        assert taken(db) == [1]
        assert await rota_app.pollers.release("fetch", [1], held=True) == 1
        go.set()
        stats = await polling

    assert (stats.claimed, stats.completed) == (1, 0)
    assert stats.errors == ["1: ClaimLost: it was taken over meanwhile, and what this poll did changed nothing"]
    assert [type(f) for f in told] == [RowClaimLost]
    assert (stamped(db), claims(db)) == ([], {})


async def test_a_key_that_is_no_json_is_released_as_it_was_polled(rota_app: TestRota, db: Db) -> None:
    key = UUID(int=7)
    db.execute("create table things (id uuid primary key, seen timestamptz)")
    db.execute("insert into things values (%s)", [key])

    @rota_app.poller(table="things", last="seen", interval="1h", retry=None)
    async def look(thing: dict[str, Any]) -> None:
        raise ValueError

    await look.run_once()

    assert await rota_app.pollers.release("look", [key]) == 1


async def test_a_parked_row_can_be_polled_by_its_key_and_is_parked_again_when_that_fails(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 1)
    feeds = Feeds(rota_app, retry=Retry(attempts=1))
    feeds.failing = {1}
    await feeds.fetch.run_once()

    assert (await feeds.fetch.poll(1)).errors == ["1: ValueError: attempt 2"]
    assert [(row.key, row.attempts) for row in await rota_app.pollers.parked("fetch")] == [([1], 2)]
    feeds.failing = set()
    assert await feeds.fetch.poll(1) == PollStats(claimed=1, completed=1)
    assert (stamped(db), claims(db)) == ([1], {})


async def test_a_poller_that_nobody_has_declared_cannot_be_operated(rota_app: TestRota) -> None:
    for verb in (rota_app.pollers.pause, rota_app.pollers.resume, rota_app.pollers.release):
        with pytest.raises(NotPossible, match="There is no poller 'nobody'"):
            await verb("nobody")
