"""Stamps that PostgreSQL refuses for what may pass: a trigger that is rolled back, that waits for a lock, or that takes too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, claims, make_feeds, one, stamped, taken

from rota import Retry
from rota.facts import (
    DatabaseLost,
    Drained,
    PollerHindered,
    RowClaimLost,
    RowFailed,
    RowHindered,
    RowPolled,
)
from rota.pollers import sessions
from rota.pollers.settler import Settler
from rota.testing import TestRota, fact, until

Told = list[Any]

ALL = list(range(1, 21))
OTHERS = [n for n in ALL if n != 7]
AFTER = Retry(attempts=5, base=3600, cap=3600)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        make_feeds(connection, 20)
        yield connection


@pytest.fixture
def told(rota_app: TestRota) -> Iterator[Told]:
    kinds = (RowPolled, RowFailed, RowClaimLost, RowHindered, DatabaseLost, PollerHindered)
    with rota_app.facts.recorded(*kinds) as told:
        yield told


def told_as(told: Told, kind: type[Any]) -> Told:
    return [each for each in told if isinstance(each, kind)]


def trigger(db: Db, body: str, when: str = "old.id = 7") -> None:
    """Have this happen whenever such a row is stamped."""
    db.execute(f"create function hinder() returns trigger language plpgsql as $$ begin {body}; return new; end $$")
    db.execute(f"create trigger hinder before update on feeds for each row when ({when}) execute function hinder()")


def fetch_all(app: TestRota, **options: Any) -> None:
    """A poller whose handlers end together, so that their rows are stamped together."""
    together = asyncio.Barrier(20)

    @app.poller(**EVERY_FIVE_MINUTES, name="fetch", concurrency=20, **({"retry": AFTER} | options))
    async def fetch(feed: dict[str, Any]) -> None:
        async with asyncio.timeout(20):
            await together.wait()


async def stop(app: TestRota, working: asyncio.Task[None]) -> None:
    app.stop()
    await asyncio.wait_for(working, 30)


@pytest.mark.by_default("serialization_failure")
@pytest.mark.parametrize("state", ["serialization_failure", "deadlock_detected"])
async def test_a_row_whose_trigger_rolls_back_is_told_then_failed_and_holds_up_no_other(
    rota_app: TestRota, db: Db, told: Told, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(db, f"raise exception 'not now' using errcode = '{state}'")
    fetch_all(rota_app)
    working = asyncio.create_task(rota_app.work())

    await until(lambda: stamped(db) == OTHERS, what="the others are stamped")
    await until(lambda: told_as(told, RowHindered), what="it is told")
    assert taken(db) == [7]
    monkeypatch.setattr("rota.pollers.settler._HINDERED_SECONDS", 0.5)
    await until(lambda: told_as(told, RowFailed), what="it has failed")
    await stop(rota_app, working)

    assert [(each.key, each.error) for each in told_as(told, RowHindered)] == [([7], "not now")]
    (failed,) = told_as(told, RowFailed)
    assert (failed.key, failed.attempt) == ([7], 1)
    assert "row 7 was polled, and its stamp could not be written: not now" in str(failed.error)
    assert (claims(db)[7]["attempts"], taken(db)) == (1, [])
    assert told_as(told, DatabaseLost) == []


async def test_a_row_whose_trigger_waits_for_a_lock_is_stamped_when_that_is_gone_and_holds_up_no_other(
    rota_app: TestRota, direct_database: str, db: Db, told: Told
) -> None:
    trigger(db, "perform pg_advisory_xact_lock(42)")
    fetch_all(rota_app)

    with psycopg.connect(direct_database) as application:
        application.execute("select pg_advisory_xact_lock(42)")
        working = asyncio.create_task(rota_app.work())
        await until(lambda: stamped(db) == OTHERS, what="the others are stamped")
        await until(lambda: told_as(told, RowHindered), what="it is told")
        assert taken(db) == [7]
        application.rollback()
        await until(lambda: stamped(db) == ALL, what="it is stamped as well")
    await stop(rota_app, working)

    assert claims(db) == {}
    assert [each.key for each in told_as(told, RowHindered)] == [[7]]
    assert sorted(each.key[0] for each in told_as(told, RowPolled)) == ALL
    assert told_as(told, DatabaseLost) == []


def hasty(monkeypatch: pytest.MonkeyPatch, *pools: str, limit: str) -> None:
    """Have statements of these pools given up after so long."""
    for name in pools:
        monkeypatch.setattr(sessions, name, getattr(sessions, name) | {"statement_timeout": limit})


@pytest.mark.slow
async def test_stamps_that_take_too_long_together_are_written_in_smaller_pieces_which_is_remembered(
    rota_app: TestRota, db: Db, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty(monkeypatch, "_STAMPING_LIMITS", limit="1500ms")
    trigger(db, "perform pg_sleep(0.1)", when="true")
    fetch_all(rota_app)
    sizes: list[int] = []
    stamp = Settler._stamp

    async def counted(self: Settler, polled: Any) -> Any:
        sizes.append(len(polled))
        return await stamp(self, polled)

    monkeypatch.setattr(Settler, "_stamp", counted)
    working = asyncio.create_task(rota_app.work())
    await until(lambda: stamped(db) == ALL, what="all are stamped")
    first_round = list(sizes)
    await until(lambda: len(told_as(told, RowPolled)) == 20, what="all are told")
    rota_app.advance("6m")
    await until(lambda: len(told_as(told, RowPolled)) == 40, what="and again")
    await stop(rota_app, working)

    assert max(first_round) == 20
    assert max(sizes[len(first_round) :]) < 20
    assert told_as(told, DatabaseLost) + told_as(told, RowFailed) == []


async def test_a_worker_with_a_stamp_that_is_refused_stops_in_time_and_leaves_only_that(
    rota_app: TestRota, db: Db, told: Told
) -> None:
    trigger(db, "raise exception 'not now' using errcode = 'serialization_failure'")
    fetch_all(rota_app)
    working = asyncio.create_task(rota_app.work(grace="1s"))
    await until(lambda: told_as(told, RowHindered), what="it is told")

    begun = time.monotonic()
    with rota_app.facts.recorded(Drained) as drained:
        await stop(rota_app, working)

    assert time.monotonic() - begun < 20
    assert (stamped(db), taken(db), sum(each.abandoned for each in drained)) == (OTHERS, [7], 1)


@pytest.mark.direct("a pooler has connections of its own")
@pytest.mark.slow
async def test_a_slow_stamp_keeps_nobody_from_handing_back_what_is_not_done(
    rota_app: TestRota, db: Db, told: Told
) -> None:
    trigger(db, "perform pg_sleep(20)")
    db.execute("delete from feeds where id > 8")

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=8)
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] != 7:
            await asyncio.Event().wait()

    working = asyncio.create_task(rota_app.work(grace="1s"))
    sleeping = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
    await until(lambda: one(db, sleeping), what="its stamp is under way")
    await stop(rota_app, working)

    assert taken(db) in ([], [7])


@pytest.mark.direct("a pooler has limits of its own")
async def test_a_look_that_takes_too_long_is_told_as_one_and_not_as_a_lost_database(
    rota_app: TestRota, db: Db, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("create function slow() returns bool language plpgsql as 'begin perform pg_sleep(5); return true; end'")
    fetch_all(rota_app, where="slow()")
    hasty(monkeypatch, "_LOOKING", "_SETTLING", limit="300ms")
    hindered = fact(rota_app.facts, PollerHindered)

    working = asyncio.create_task(rota_app.work())
    said = await hindered
    await stop(rota_app, working)

    assert (said.poller, said.error) == ("fetch", "canceling statement due to statement timeout")
    assert told_as(told, DatabaseLost) == []


async def test_a_trigger_that_calls_what_is_missing_is_told_in_the_words_of_postgresql(
    rota_app: TestRota, db: Db, told: Told
) -> None:
    trigger(db, "perform not_there()")
    fetch_all(rota_app)

    await rota_app.drain()

    (failed,) = told_as(told, RowFailed)
    assert "its stamp could not be written: function not_there() does not exist" in str(failed.error)
    assert "migrate" not in str(failed.error)
    assert stamped(db) == OTHERS


@pytest.mark.slow
async def test_a_failure_that_someone_locks_out_holds_up_no_other(
    rota_app: TestRota, direct_database: str, db: Db, told: Told
) -> None:
    together, go = asyncio.Barrier(20), asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=20, retry=AFTER)
    async def fetch(feed: dict[str, Any]) -> None:
        await together.wait()
        await go.wait()
        raise ValueError

    working = asyncio.create_task(rota_app.work())
    await until(lambda: taken(db) == ALL, what="all are taken")
    with psycopg.connect(direct_database) as operator:
        operator.execute("select from rota.poll_claims where key = '[7]' for update")
        go.set()
        await until(lambda: taken(db) == [7], what="the others have failed", timeout=30)
        operator.rollback()
    await until(lambda: taken(db) == [], what="it has failed too")
    await stop(rota_app, working)

    assert sorted(each.key[0] for each in told_as(told, RowFailed)) == ALL
