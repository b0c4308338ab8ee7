"""The seed's tests of polling, by their names, and the promise that what fails takes the place of nothing that is well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, add_feeds, claims, make_feeds, stamped

from rota import PollStats, Retry
from rota.facts import RowFailed, RowPolled
from rota.testing import TestRota, until


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


async def test_due_filtering_null_old_recent_disabled(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 4)
    db.execute("update feeds set fetched_at = now() - interval '6 minutes' where id = 2")
    db.execute("update feeds set fetched_at = now() - interval '4 minutes' where id = 3")
    db.execute("update feeds set enabled = false where id = 4")
    polled: list[int] = []

    @rota_app.poller(table="feeds", last="fetched_at", interval="minutes", unit="minute", where="enabled")
    async def fetch(feed: dict[str, Any]) -> None:
        polled.append(feed["id"])

    stats = await fetch.run_once()

    assert polled == [1, 2]
    assert stats == PollStats(claimed=2, completed=2, errors=[])
    assert stamped(db) == [1, 2, 3]


async def test_limit_two_of_three(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 3)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None: ...

    assert await fetch.run_once(max_rows=2) == PollStats(claimed=2, completed=2)
    assert stamped(db) == [1, 2]
    assert await fetch.run_once(max_rows=2) == PollStats(claimed=1, completed=1)
    assert await fetch.run_once(max_rows=2) == PollStats()


async def test_two_workers_two_sources_with_a_delay_do_not_overlap(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    make_feeds(db, 2)
    both = asyncio.Barrier(2)
    polled: list[tuple[str, int]] = []

    def fetch_on(app: TestRota, who: str) -> Any:
        @app.poller(**EVERY_FIVE_MINUTES)
        async def fetch(feed: dict[str, Any]) -> None:
            polled.append((who, feed["id"]))
            async with asyncio.timeout(10):
                await both.wait()  # each holds one row while the other polls the other

        return fetch

    other_app = TestRota(rota_database)
    first, second = await asyncio.gather(
        fetch_on(rota_app, "a").run_once(max_rows=1), fetch_on(other_app, "b").run_once(max_rows=1)
    )

    assert first == second == PollStats(claimed=1, completed=1)
    assert sorted(id for _, id in polled) == [1, 2]
    assert {who for who, _ in polled} == {"a", "b"}
    await other_app.close()


async def test_first_fails_second_is_still_processed_and_the_lock_is_freed(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 1:
            raise ConnectionError("no route")

    stats = await fetch.run_once()

    assert stats == PollStats(claimed=2, completed=1, errors=["1: ConnectionError: no route"])
    assert stamped(db) == [2]
    assert (claims(db)[1]["member"], claims(db)[1]["token"]) == (None, None)
    db.execute("select from feeds where id = 1 for update nowait")


async def test_five_claimed_three_fetched_two_errors(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 5)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] in (2, 4):
            raise ValueError(feed["name"])

    stats = await fetch.run_once()

    assert (stats.claimed, stats.completed) == (5, 3)
    assert sorted(stats.errors) == ["2: ValueError: feed 2", "4: ValueError: feed 4"]


def failing_and_healthy(db: Db) -> None:
    """Twelve feeds that fail, which come first, and five that are well."""
    make_feeds(db, 12)
    db.execute("update feeds set fetched_at = now() - interval '1 day'")
    add_feeds(db, 101, 105)
    db.execute("update feeds set fetched_at = now() - interval '1 hour' where id > 100")


async def test_twelve_failing_and_five_healthy_with_a_limit_of_ten_all_five_are_served_by_the_first_run(
    rota_app: TestRota, db: Db
) -> None:
    failing_and_healthy(db)
    polled: list[int] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        polled.append(feed["id"])
        if feed["id"] <= 12:
            raise ValueError

    stats = await fetch.run_once(max_rows=10)

    assert (stats.claimed, stats.completed, len(stats.errors)) == (17, 5, 12)
    assert sorted(polled) == [*range(1, 13), *range(101, 106)]
    # and none of those that failed is tried again before its time
    assert await fetch.run_once(max_rows=10) == PollStats()


async def test_twelve_failing_and_five_healthy_with_a_limit_of_ten_all_five_are_served_by_a_worker_at_once(
    rota_app: TestRota, db: Db
) -> None:
    failing_and_healthy(db)

    @rota_app.poller(**EVERY_FIVE_MINUTES, batch=10, retry=Retry(attempts=10, base=3600, cap=3600))
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] <= 12:
            raise ValueError

    with rota_app.facts.recorded(RowPolled, RowFailed) as told:
        await rota_app.drain()

    assert sorted(fact.key[0] for fact in told if isinstance(fact, RowPolled)) == [*range(101, 106)]
    assert sorted(fact.key[0] for fact in told if isinstance(fact, RowFailed)) == [*range(1, 13)]
    await until(lambda: set(claims(db)) == set(range(1, 13)), what="only what failed is remembered")
