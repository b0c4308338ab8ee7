"""What a rate remembers: of a line that is idle, and when the rate is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.limits.test_lines import lines

from rota import Limit
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def tasked(app: TestRota, limit: Limit) -> Any:
    @app.task(name="work", limit=limit)
    async def work(k: int) -> None: ...

    return work


@pytest.fixture
def release(rota_database: str) -> Iterator[Callable[[str], TestRota]]:
    """Another release of the app, whose task has another rate."""
    apps = []

    def make(rate: str) -> TestRota:
        apps.append(TestRota(rota_database))
        tasked(apps[-1], Limit(rate=rate, by="k"))
        return apps[-1]

    yield make
    for app in apps:
        app.close_everywhere()


async def test_what_began_counts_though_the_line_was_empty_since(rota_app: TestRota) -> None:
    work = tasked(rota_app, Limit(rate="5/1h", by="k"))
    await rota_app.enqueue_many([work.bind(1) for _ in range(3)])
    assert await rota_app.drain() == 3

    await rota_app.enqueue_many([work.bind(1) for _ in range(5)])
    assert await rota_app.drain() == 2
    rota_app.advance("62m")
    assert await rota_app.drain() == 3


async def test_lines_that_a_rate_no_longer_remembers_are_taken_away(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    work = tasked(rota_app, Limit(rate="5/1h", by="k"))
    await rota_app.enqueue_many([work.bind(k) for k in range(6)])
    await rota_app.drain()
    assert len(lines(db)) == 6

    rota_app.advance("62m")
    await rota_app.enqueue_many([work.bind(k) for k in range(10, 13)])
    await rota_app.drain()

    assert [key for _, key, _ in lines(db)] == ["10", "11", "12"]


async def test_a_rate_that_is_raised_counts_at_once(rota_app: TestRota, release: Callable[[str], TestRota]) -> None:
    work = tasked(rota_app, Limit(rate="1/1h", by="k"))
    await rota_app.enqueue_many([work.bind(1) for _ in range(5)])
    assert await rota_app.drain() == 1
    assert await release("3/1h").drain() == 2


@pytest.mark.parametrize("rate", ["1/1h", "1/20s"])
async def test_a_rate_of_another_period_begins_to_count_anew(
    rota_app: TestRota, release: Callable[[str], TestRota], rate: str
) -> None:
    work = tasked(rota_app, Limit(rate="1/1m", by="k"))
    await rota_app.enqueue_many([work.bind(1) for _ in range(5)])
    assert await rota_app.drain() == 1
    other = release(rate)
    assert await other.drain() == 1
    rota_app.advance("62m")
    assert await other.drain() == 1


def test_what_began_counts_for_the_whole_period_and_a_slot_at_most_beyond(db: psycopg.Connection[Any]) -> None:
    def room(at: float) -> Any:
        """At this second after a start at the very end of a slot; a slot is a second here."""
        db.execute(
            "create or replace function rota.now() returns timestamptz language sql stable "
            f"return to_timestamp({1_800_000_000.999 + at})"
        )
        return db.execute(
            "select rate.room, extract(epoch from rate.not_before)::float8 from "
            "rota.rate_after(1, 40, 0, rota.now(), (select array_fill(0, array[40]) || 1), 1800000000) as rate"
        ).fetchone()

    assert room(0) == (0, 1_800_000_041.0)
    assert room(39.999) == (0, 1_800_000_041.0)
    assert room(40.002) == (1, None)


def test_a_rate_that_was_lowered_has_room_when_enough_has_left(db: psycopg.Connection[Any]) -> None:
    db.execute(
        "create or replace function rota.now() returns timestamptz language sql stable return to_timestamp(1800000040)"
    )
    spent = "array_fill(0, array[9]) || 2 || array_fill(0, array[9]) || 1 || 1 || array_fill(0, array[20])"
    rows = [
        db.execute(
            "select extract(epoch from rate.not_before)::float8 - 1800000040, extract(epoch from rate.over_at)::float8 - 1800000040 "
            f"from rota.rate_after(%s, 40, 0, rota.now(), (select {spent}), 1800000040) as rate",
            [count],
        ).fetchone()
        for count in (4, 2, 1)
    ]
    assert rows == [(10.0, 21.0), (20.0, 21.0), (21.0, 21.0)]
