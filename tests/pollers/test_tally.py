"""`app.pollers.tally()` and `poller.backlog()`: what was done by this process, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from rota.facts import Facts, RowClaimLost, RowFailed, RowLost, RowPolled, RowsClaimed
from rota.pollers.tally import DURATIONS, Tally
from rota.testing import TestRota

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table feeds (id bigint primary key, polled_at timestamptz)")
        yield connection


def test_five_claimed_three_polled_two_failed(rota_app: TestRota, db: Db) -> None:
    db.execute("insert into feeds select n from generate_series(1, 5) as n")

    @rota_app.poller(table="feeds", last="polled_at", interval="1h", name="fetch")
    async def fetch(row: dict[str, Any]) -> None:
        if row["id"] % 2 == 0:
            raise ValueError("no")

    rota_app.poller(table="feeds", last="polled_at", interval="1h", name="other")(fetch.definition.handler)

    fetch.run_once_sync(5)

    tally = rota_app.pollers.tally()
    assert list(tally) == ["fetch", "other"]
    assert (tally["fetch"].claimed, tally["fetch"].completed, tally["fetch"].errors) == (5, 3, 2)
    assert (tally["fetch"].durations.count, tally["other"].claimed, tally["other"].durations.count) == (5, 0, 0)
    with pytest.raises(FrozenInstanceError):
        tally["fetch"].claimed = 0  # type: ignore[misc]


def test_each_duration_counts_in_the_first_bound_it_is_within() -> None:
    facts = Facts()
    tally = Tally(facts)

    for seconds in (0.0, DURATIONS[0], DURATIONS[0] + 0.001, 301.0):
        facts.emit(RowPolled("p", [1], seconds, "done", False))
    facts.emit(RowFailed("p", [1], 1, DURATIONS[1], "no", None))

    durations = tally.told(())["p"].durations
    assert durations.bounds == DURATIONS
    assert durations.counts == (2, 2, *[0] * (len(DURATIONS) - 2), 1)
    assert durations.seconds == pytest.approx(301.0 + sum(DURATIONS[:1]) * 2 + 0.001 + DURATIONS[1])


def test_a_poll_without_a_claim_is_an_error_and_what_others_lost_is_none_of_ours() -> None:
    facts = Facts()
    tally = Tally(facts)

    facts.emit(RowsClaimed("p", 3))
    facts.emit(RowClaimLost("p", [1], 7))
    facts.emit(RowLost("p", [2], uuid4(), 1, False))

    told = tally.told(["p"])["p"]
    assert (told.claimed, told.completed, told.errors, told.durations.count) == (3, 0, 1, 0)


def test_an_app_that_stands_in_for_another_counts_nothing_twice(rota_app: TestRota, rota_database: str) -> None:
    stand_in = TestRota(rota_database, of=rota_app)

    rota_app.facts.emit(RowsClaimed("p", 2))

    assert (rota_app.pollers.tally()["p"].claimed, stand_in.pollers.tally()["p"].claimed) == (2, 2)
    assert len(rota_app.facts._subscribers[RowsClaimed]) == 1


def test_the_backlog_is_what_is_due_and_nobody_has(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="feeds", last="polled_at", interval="1h", name="fetch")
    async def fetch(row: dict[str, Any]) -> None: ...

    empty = fetch.backlog_sync()
    db.execute("insert into feeds values (1, null), (2, now() - interval '2 hours'), (3, now()), (4, null)")
    db.execute("insert into rota.poll_claims (poller, key, parked_at) values ('fetch', '[4]', now())")
    full = fetch.backlog_sync()

    assert (empty.rows, empty.oldest_due_at) == (0, None)
    assert (full.rows, full.never_polled) == (2, 1)
    assert full.oldest_seconds == pytest.approx(3600, abs=60)
    assert full.oldest_due_at is not None
    assert (datetime.now(UTC) - full.oldest_due_at).total_seconds() == pytest.approx(3600, abs=60)
