"""`poll.transaction()`: what a handler writes, the stamp, and the end of the claim commit together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.drivers import (
    User,
    asyncpg_connection,
    psycopg_async,
    psycopg_connection,
    sqlalchemy_async_session,
    sqlalchemy_connection,
    sqlalchemy_session,
)
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, claims, make_feeds, one, stamped, taken

from rota import Adaptive, Changed, ClaimLost, PollStats, Rota, RotaError, current_poll
from rota.facts import RowClaimLost, RowFailed, RowPolled, RowRaisedAfterSuccess
from rota.testing import TcpProxy, TestRota

pytestmark = pytest.mark.long


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table ledger (entry text)")
        make_feeds(connection, 1)
        yield connection


@pytest.fixture
def told(rota_app: TestRota) -> Iterator[list[Any]]:
    with rota_app.facts.recorded(RowPolled, RowFailed, RowClaimLost, RowRaisedAfterSuccess) as told:
        yield told


def entries(db: Db) -> list[str]:
    return [entry for (entry,) in db.execute("select entry from ledger")]


INSERT = "insert into ledger values ('new')"


async def test_writes_stamp_and_release_show_at_the_same_moment(rota_app: TestRota, db: Db, told: list[Any]) -> None:
    seen: list[Any] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute(INSERT)
            seen.append((entries(db), stamped(db), taken(db)))
        seen.append((entries(db), stamped(db), taken(db)))

    assert await fetch.run_once() == PollStats(claimed=1, completed=1)
    assert seen == [([], [], [1]), (["new"], [1], [])]
    assert [(type(f), f.fate) for f in told] == [(RowPolled, "done")]


def test_the_same_in_a_sync_handler(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: dict[str, Any]) -> None:
        with current_poll().transaction() as tx:
            tx.execute(INSERT)

    assert fetch.run_once_sync() == PollStats(claimed=1, completed=1)
    assert (entries(db), stamped(db), claims(db)) == (["new"], [1], {})


async def test_a_block_that_raises_leaves_nothing_behind(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute(INSERT)
            raise ValueError("no")

    assert (await fetch.run_once()).errors == ["1: ValueError: no"]
    assert (entries(db), stamped(db), claims(db)[1]["attempts"]) == ([], [], 1)


async def test_a_handler_that_caught_the_error_of_its_block_is_stamped_as_any_other(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        try:
            async with current_poll().transaction() as tx:
                await tx.execute(INSERT)
                raise ValueError
        except ValueError:
            pass

    assert (await fetch.run_once()).completed == 1
    assert (entries(db), stamped(db)) == ([], [1])


SYNC: dict[str, Callable[[str], Any]] = {
    "psycopg": psycopg_connection,
    "sqlalchemy_connection": sqlalchemy_connection,
    "sqlalchemy_session": sqlalchemy_session,
}
ASYNC: dict[str, Callable[[str], Any]] = {
    "psycopg_async": psycopg_async,
    "asyncpg": asyncpg_connection,
    "sqlalchemy_async_session": sqlalchemy_async_session,
    "sqlalchemy_async_session_on_asyncpg": lambda dsn: sqlalchemy_async_session(dsn, "asyncpg"),
}


@pytest.mark.parametrize("driver", SYNC)
@pytest.mark.parametrize("well", [True, False])
def test_a_connection_of_the_users_commits_with_the_stamp(
    rota_app: TestRota, rota_database: str, db: Db, driver: str, well: bool
) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    def fetch(feed: dict[str, Any]) -> None:
        user: User
        with SYNC[driver](rota_database) as user, current_poll().transaction(on=user.native):
            user.execute(INSERT)
            assert well, "not so"

    stats = fetch.run_once_sync()

    assert (stats.completed, entries(db), stamped(db)) == ((1, ["new"], [1]) if well else (0, [], []))


@pytest.mark.parametrize("driver", ASYNC)
@pytest.mark.parametrize("well", [True, False])
async def test_an_async_connection_of_the_users_commits_with_the_stamp(
    rota_app: TestRota, rota_database: str, db: Db, driver: str, well: bool
) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES, adaptive=Adaptive(min="1m", max="1h"))
    async def fetch(feed: dict[str, Any]) -> None:
        user: User
        async with ASYNC[driver](rota_database) as user, current_poll().transaction(on=user.native):
            await user.execute(INSERT)
            assert well, "not so"

    stats = await fetch.run_once()

    assert not [error for error in stats.errors if "not so" not in error]
    assert (stats.completed, entries(db), stamped(db)) == ((1, ["new"], [1]) if well else (0, [], []))


async def test_a_claim_that_was_released_meanwhile_commits_nothing(rota_app: TestRota, db: Db, told: list[Any]) -> None:
    raised: list[BaseException] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        try:
            async with current_poll().transaction() as tx:
                await tx.execute(INSERT)
                await rota_app.pollers.release("fetch", [1], held=True)
        except ClaimLost as error:
            with db.transaction():  # it was undone at once, whatever the handler does next
                db.execute("lock table ledger in access exclusive mode nowait")
            raised.append(error)
            raise

    await fetch.poll(1)

    assert "no longer holds its claim" in str(raised[0])
    assert (entries(db), stamped(db), claims(db)) == ([], [], {})
    assert [type(f) for f in told] == [RowClaimLost]


async def test_what_is_raised_after_the_commit_is_reported_and_changes_nothing(
    rota_app: TestRota, db: Db, told: list[Any]
) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute(INSERT)
        raise ValueError("too late")

    assert await fetch.run_once() == PollStats(claimed=1, completed=1)
    assert [type(f) for f in told] == [RowRaisedAfterSuccess, RowPolled]
    assert (entries(db), stamped(db)) == (["new"], [1])


async def test_one_transaction_settles_and_a_second_is_refused(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction():
            pass
        with pytest.raises(RotaError, match="settled already"):
            current_poll().transaction()

    assert (await fetch.run_once()).completed == 1


@pytest.mark.parametrize("changed", [True, False])
async def test_the_pace_follows_what_the_transaction_says(rota_app: TestRota, db: Db, changed: bool) -> None:
    @rota_app.poller(
        table="feeds",
        last="fetched_at",
        interval="10m",
        adaptive=Adaptive(min="1m", max="1h", faster=0.5, slower=2.0),
    )
    async def fetch(feed: dict[str, Any]) -> Changed:
        async with current_poll().transaction() as tx:
            tx.changed = changed
        return Changed()  # too late: the transaction has said it

    with rota_app.facts.recorded(RowPolled) as told:
        await fetch.run_once()

    assert one(db, "select extract(epoch from pace)::int / 60 from rota.poll_intervals") == (5 if changed else 20)
    assert [f.changed for f in told] == [changed]


async def test_a_state_that_the_transaction_leaves_as_it_is_is_not_committed(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(table="feeds", where="status = 'new'")
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute(INSERT)

    stats = await fetch.run_once()

    assert "is still in it" in stats.errors[0]
    assert entries(db) == []


async def test_a_state_that_the_transaction_changes_is_committed_with_the_claims_end(
    rota_app: TestRota, db: Db
) -> None:
    @rota_app.poller(table="feeds", where="status = 'new'")
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute("update feeds set status = 'done'")

    assert (await fetch.run_once()).completed == 1
    assert (one(db, "select status from feeds"), claims(db)) == ("done", {})


async def test_jobs_are_enqueued_in_the_transaction(rota_app: TestRota, db: Db) -> None:
    @rota_app.task
    async def tell(id: int) -> None: ...

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tell.on(tx).enqueue(feed["id"])
            if current_poll().attempt == 1:
                raise ValueError

    await fetch.run_once()
    assert rota_app.enqueued() == []
    await fetch.poll(1)
    assert len(rota_app.enqueued()) == 1


@pytest.mark.direct("a pooler answers by itself")
async def test_a_commit_whose_reply_was_lost_is_no_lost_claim(rota_database: str, db: Db) -> None:
    with TcpProxy(rota_database) as proxy:
        app = Rota(proxy.dsn(rota_database))

        @app.poller(**EVERY_FIVE_MINUTES)
        async def fetch(feed: dict[str, Any]) -> None:
            async with current_poll().transaction() as tx:
                await tx.execute(INSERT)
                proxy.cut_after(b"COMMIT")

        with app.facts.recorded(RowPolled, RowFailed, RowClaimLost) as told:
            stats = await fetch.run_once()

        assert proxy.cuts == 1
        assert (entries(db), stamped(db), claims(db)) == (["new"], [1], {})
        assert ([type(f) for f in told], stats) == ([RowPolled], PollStats(claimed=1, completed=1))
        await app.close()


async def test_cancelled_after_its_commit_the_poll_is_done(rota_app: TestRota, db: Db, told: list[Any]) -> None:
    committed = asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute(INSERT)
        committed.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(rota_app.work(grace=0))
    await committed.wait()
    rota_app.stop()
    await working

    assert [(type(f), f.fate) for f in told] == [(RowPolled, "done")]
    assert (entries(db), stamped(db), claims(db)) == (["new"], [1], {})
