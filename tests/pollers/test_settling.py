"""What becomes of rows that were taken: only their holder decides, and of the user's row nothing changes but the stamp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.jobs.statements import ask, join
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, claims, make_feeds, rows_of, stamped, taken

from rota import PollStats, Retry, Rota, current_poll
from rota.errors import DatabaseUnavailable
from rota.facts import MemberJoined, RowClaimLost, RowFailed, RowLocked, RowPolled, RowsClaimed
from rota.failure import describe
from rota.leases.control import Reactions
from rota.pollers.claim import ClaimedRow, Claims
from rota.pollers.due import Plan, make_plan
from rota.pollers.poller import Poller
from rota.pollers.rescue import rescue_rows
from rota.pollers.settle import Failed, Finish, fail, hand_back, release_token
from rota.pollers.shape import find_shape
from rota.pollers.tidy import tidy
from rota.postgres.query import Query
from rota.testing import TcpProxy, TestRota, fact

Told = list[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def told(rota_app: TestRota) -> Iterator[Told]:
    with rota_app.facts.recorded(RowPolled, RowFailed, RowClaimLost, RowLocked) as told:
        yield told


def plan_of(app: TestRota, poller: Poller[..., Any]) -> Plan:
    definition = poller.definition
    return make_plan(definition, app.database.run_steps_sync(find_shape(definition.table, poller=definition.name)))


class Hands:
    """The statements of one poller, run one by one."""

    def __init__(self, app: TestRota, db: Db, **options: Any) -> None:
        @app.poller(**(EVERY_FIVE_MINUTES | options), name="fetch")
        def fetch(feed: dict[str, Any]) -> None: ...

        self.db = db
        self.plan = plan_of(app, fetch)
        self.claims = Claims(self.plan)
        self.finish = Finish(self.plan)
        db.execute("insert into rota.pollers (name) values ('fetch')")

    def take(self, token: int, limit: int = 10) -> list[ClaimedRow]:
        rows: list[ClaimedRow] = ask(self.db, self.claims.due(limit=limit, token=token, member=join(self.db))).rows
        return rows

    def stamp(self, *rows: ClaimedRow) -> list[str]:
        fates: list[str] = ask(self.db, self.finish.many(rows, [False] * len(rows)))
        return fates

    def fail(self, *rows: ClaimedRow, pause: float | None = 60.0) -> list[bool]:
        failed = [Failed(row, describe(ValueError("no")), pause) for row in rows]
        ours: list[bool] = ask(self.db, fail("fetch", failed))
        return ours


# the token decides


async def test_a_stamp_a_failure_and_a_hand_back_under_a_void_token_change_nothing(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    hands = Hands(rota_app, db)
    (zombie,) = hands.take(token=1)
    db.execute("delete from rota.poll_claims")
    (holder,) = hands.take(token=2)
    before = rows_of(db), claims(db)

    assert hands.stamp(zombie) == ["lost"]
    assert hands.fail(zombie) == [False]
    ask(db, hand_back("fetch", [zombie], "channel"))
    assert ask(db, release_token("fetch", zombie.member, zombie.token)) == 0
    assert (rows_of(db), claims(db)) == before

    assert hands.stamp(holder) == ["done"]
    assert (stamped(db), claims(db)) == ([1], {})


async def test_a_batch_may_hold_both_what_is_ours_and_what_is_not(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 4)
    hands = Hands(rota_app, db)
    rows = hands.take(token=1)
    db.execute("delete from rota.poll_claims where key = '[2]'")
    db.execute("delete from feeds where id = 3")

    assert hands.stamp(*rows) == ["done", "lost", "gone", "done"]
    assert (stamped(db), claims(db)) == ([1, 4], {})


async def test_a_failure_is_counted_and_a_hand_back_costs_nothing(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 2)
    hands = Hands(rota_app, db)
    first, second = hands.take(token=1)

    assert hands.fail(first, pause=0) == [True]
    ask(db, hand_back("fetch", [second], "channel"))
    assert (claims(db).keys(), claims(db)[1]["attempts"], claims(db)[1]["error_message"]) == ({1}, 1, "no")

    (again, fresh) = hands.take(token=2)
    assert (again.attempts, fresh.attempts) == (1, 0)
    ask(db, hand_back("fetch", [again, fresh], "channel"))
    # what is remembered of it stays, and it may be taken at once
    assert (claims(db).keys(), claims(db)[1]["attempts"]) == ({1}, 1)
    assert [row.attempts for row in hands.take(token=3)] == [1, 0]


async def test_all_that_was_taken_under_a_token_is_released_and_nothing_else(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 3)
    hands = Hands(rota_app, db)
    first, second = hands.take(token=1, limit=2)
    hands.take(token=2)

    assert ask(db, release_token("fetch", first.member, 1)) == 2

    assert (first.member == second.member, taken(db)) == (True, [3])


@pytest.mark.by_default("12345678901234567890.123456789", "1.10")
@pytest.mark.parametrize("value", ["12345678901234567890.123456789", "1.10", "0.1", "1e30", "-7"])
async def test_a_row_whose_key_is_a_long_number_is_the_same_row_when_it_is_settled(
    rota_app: TestRota, db: Db, value: str
) -> None:
    db.execute("create table sums (id numeric primary key, seen timestamptz)")
    db.execute("insert into sums values (%s::text::numeric)", [value])

    @rota_app.poller(table="sums", last="seen", interval="1h", retry=None)
    async def look(row: dict[str, Any]) -> None:
        if row["seen"] is not None:
            raise ValueError

    assert await look.run_once() == PollStats(claimed=1, completed=1)
    assert claims(db) == {}
    assert len((await look.poll(value)).errors) == 1
    (parked,) = await rota_app.pollers.parked("look")
    assert await rota_app.pollers.release("look", [parked.key]) == 1


# what the application does meanwhile


def poller_that(app: Rota, act: Callable[[int], Any], **options: Any) -> Poller[..., Any]:
    @app.poller(**(EVERY_FIVE_MINUTES | options), name="fetch")
    async def fetch(feed: dict[str, Any]) -> None:
        await asyncio.to_thread(act, feed["id"])

    return fetch


@pytest.mark.parametrize("hand", ["run_once", "work"])
async def test_a_poll_changes_no_column_but_the_stamp(rota_app: TestRota, db: Db, told: Told, hand: str) -> None:
    make_feeds(db, 3)
    before = rows_of(db)
    fetch = poller_that(rota_app, lambda n: None)

    await (fetch.run_once() if hand == "run_once" else rota_app.drain())

    after = rows_of(db)
    assert all(row["fetched_at"] for row in after)
    assert [row | {"fetched_at": None} for row in after] == before
    assert sorted((f.key, f.fate) for f in told) == [([n], "done") for n in (1, 2, 3)]


async def test_a_row_that_the_application_deletes_meanwhile_is_told_as_gone_and_not_resurrected(
    rota_app: TestRota, db: Db, told: Told
) -> None:
    make_feeds(db, 2)
    fetch = poller_that(rota_app, lambda n: db.execute("delete from feeds where id = 1") if n == 1 else None)

    stats = await fetch.run_once()

    assert stats == PollStats(claimed=2, completed=2)
    assert sorted((f.key, f.fate) for f in told) == [([1], "gone"), ([2], "done")]
    assert ([row["id"] for row in rows_of(db)], claims(db)) == ([2], {})


async def test_what_the_application_writes_meanwhile_stays(rota_app: TestRota, db: Db, told: Told) -> None:
    make_feeds(db, 1)
    fetch = poller_that(rota_app, lambda n: db.execute("update feeds set name = 'theirs', notes = '[]', minutes = 7"))

    await fetch.run_once()

    (row,) = rows_of(db)
    assert (row["name"], row["notes"], row["minutes"], bool(row["fetched_at"])) == ("theirs", [], 7, True)
    assert [f.fate for f in told] == ["done"]


async def test_a_row_that_no_longer_fits_is_stamped_and_told_as_changed(rota_app: TestRota, db: Db, told: Told) -> None:
    make_feeds(db, 1)
    fetch = poller_that(rota_app, lambda n: db.execute("update feeds set enabled = false"), where="enabled")

    await fetch.run_once()

    assert ([f.fate for f in told], stamped(db), claims(db)) == (["changed"], [1], {})


async def test_a_row_whose_key_changes_meanwhile_is_another_row(rota_app: TestRota, db: Db, told: Told) -> None:
    make_feeds(db, 1)
    fetch = poller_that(rota_app, lambda n: db.execute("update feeds set id = 9 where id = 1"))

    await fetch.run_once(max_rows=1)

    assert ([f.fate for f in told], stamped(db), claims(db)) == (["gone"], [], {})
    assert (await fetch.run_once(max_rows=1)).completed == 1
    assert stamped(db) == [9]


@pytest.mark.parametrize("hand", ["run_once", "work"])
async def test_a_row_that_the_application_has_locked_is_told_and_stamped_when_it_is_free_and_holds_up_no_other(
    rota_app: TestRota, rota_database: str, db: Db, told: Told, hand: str
) -> None:
    make_feeds(db, 2)
    running, go = asyncio.Event(), asyncio.Event()
    locked, polled = fact(rota_app.facts, RowLocked), fact(rota_app.facts, RowPolled)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        running.set()
        await go.wait()

    with psycopg.connect(rota_database) as application:
        working = asyncio.create_task(fetch.run_once() if hand == "run_once" else rota_app.drain())
        await running.wait()
        application.execute("update feeds set name = 'theirs' where id = 1")
        go.set()
        assert ((await locked).key, (await polled).key, stamped(db)) == ([1], [2], [2])
        application.commit()
        await working

    assert (stamped(db), claims(db), rows_of(db)[0]["name"]) == ([1, 2], {}, "theirs")
    assert [type(f).__name__ for f in told if f.key == [1]] == ["RowLocked", "RowPolled"]


async def test_a_row_that_its_handler_deletes_is_gone(rota_app: TestRota, db: Db, told: Told) -> None:
    make_feeds(db, 1)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        async with current_poll().transaction() as tx:
            await tx.execute("delete from feeds where id = %s", [feed["id"]])

    assert (await fetch.run_once()).completed == 1
    assert ([f.fate for f in told], rows_of(db), claims(db)) == (["gone"], [], {})


# what PostgreSQL refuses


async def test_what_done_may_not_write_fails_alone_and_says_so(rota_app: TestRota, db: Db, told: Told) -> None:
    make_feeds(db, 3)
    db.execute("alter table feeds add check (id <> 2 or status <> 'fetched')")

    @rota_app.poller(table="feeds", where="status = 'new'", done="status = 'fetched'", retry=Retry(attempts=2, base=60))
    async def fetch(feed: dict[str, Any]) -> None: ...

    await rota_app.drain()

    failures = [f for f in told if isinstance(f, RowFailed)]
    assert [(f.key, "done=... cannot be written" in str(f.error)) for f in failures] == [([2], True)]
    assert [row["status"] for row in rows_of(db)] == ["fetched", "new", "fetched"]
    assert claims(db).keys() == {2}


async def test_a_stamp_that_a_trigger_suppresses_is_a_failure_and_says_so(
    rota_app: TestRota, db: Db, told: Told
) -> None:
    make_feeds(db, 2)
    db.execute("create function keep() returns trigger language plpgsql as 'begin return null; end'")
    db.execute("create trigger keep before update on feeds for each row when (old.id = 1) execute function keep()")
    fetch = poller_that(rota_app, lambda n: None)

    stats = await fetch.run_once()

    assert (stats.claimed, stats.completed) == (2, 1)
    assert "did not write its stamp: a trigger" in stats.errors[0]
    assert (stamped(db), claims(db)[1]["attempts"]) == ([2], 1)


async def test_a_row_that_stays_in_the_state_it_was_polled_for_counts_as_failed(
    rota_app: TestRota, db: Db, told: Told
) -> None:
    make_feeds(db, 2)

    @rota_app.poller(table="feeds", where="status = 'new'", retry=Retry(attempts=2, base=60))
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 1:
            db.execute("update feeds set status = 'fetched' where id = 1")

    stats = await fetch.run_once()

    assert (stats.claimed, stats.completed) == (2, 1)
    assert "was polled for its state and is still in it" in stats.errors[0]
    # and is forgotten when someone has changed it
    db.execute("update feeds set status = 'fetched' where id = 2")
    ask(db, tidy(plan_of(rota_app, fetch)))
    assert claims(db) == {}


async def test_what_done_writes_must_take_the_row_out_of_its_state(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)

    @rota_app.poller(table="feeds", where="status = 'new'", done="name = 'polled'")
    async def fetch(feed: dict[str, Any]) -> None: ...

    stats = await fetch.run_once()

    assert (stats.claimed, stats.completed) == (1, 0)
    assert "is still in it" in stats.errors[0]


async def test_what_is_remembered_of_rows_that_are_gone_is_forgotten_and_nothing_else(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 3)
    hands = Hands(rota_app, db)
    first, second, third = hands.take(token=1)
    hands.fail(first, pause=None)
    hands.fail(second)
    db.execute("delete from feeds where id in (2, 3)")

    assert ask(db, tidy(hands.plan)) is False

    assert claims(db).keys() == {1, 3}
    assert hands.stamp(third) == ["gone"]


# replies that never come


@pytest.fixture
def proxy(rota_database: str) -> Iterator[TcpProxy]:
    with TcpProxy(rota_database) as proxy:
        yield proxy


def fetch_on(app: Rota, polled: list[int]) -> Poller[..., Any]:
    @app.poller(**EVERY_FIVE_MINUTES, retry=Retry(attempts=3, base=3600, cap=3600))
    async def fetch(feed: dict[str, Any]) -> None:
        polled.append(feed["id"])
        if feed["name"] == "fail":
            raise ValueError("it fails")

    return fetch


@pytest.mark.by_default("finish_rows-work", "fail_rows-run_once")
@pytest.mark.direct("a pooler answers by itself")
@pytest.mark.parametrize("hand", ["run_once", "work"])
@pytest.mark.parametrize("lost", ["finish_rows", "fail_rows"])
async def test_an_outcome_whose_reply_was_lost_is_written_once_and_told_once(
    rota_database: str, proxy: TcpProxy, db: Db, lost: str, hand: str
) -> None:
    make_feeds(db, 3)
    db.execute("update feeds set name = 'fail' where id = 2")
    app, polled = Rota(proxy.dsn(rota_database)), list[int]()
    fetch = fetch_on(app, polled)
    app.facts.subscribe(lambda _: proxy.cut_after(f"rota:{lost}".encode()), RowsClaimed)

    with app.facts.recorded(RowPolled, RowFailed, RowClaimLost) as told:
        if hand == "run_once":
            stats = await fetch.run_once()
            assert (stats.claimed, stats.completed, stats.errors) == (3, 2, ["2: ValueError: it fails"])
        else:
            await app.work(drain=True)

    assert proxy.cuts == 1
    assert sorted(polled) == [1, 2, 3]
    assert sorted((f.key, type(f).__name__) for f in told) == [
        ([1], "RowPolled"),
        ([2], "RowFailed"),
        ([3], "RowPolled"),
    ]
    assert (stamped(db), {key: row["attempts"] for key, row in claims(db).items()}) == ([1, 3], {2: 1})
    await app.close()


@pytest.mark.direct("a pooler answers by itself")
async def test_a_failure_that_shows_after_the_poll_is_told_once_when_its_reply_was_lost(
    rota_database: str, proxy: TcpProxy, db: Db
) -> None:
    make_feeds(db, 2)
    app = Rota(proxy.dsn(rota_database))

    @app.poller(table="feeds", where="status = 'new'", retry=Retry(attempts=3, base=3600, cap=3600))
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 1:
            await asyncio.to_thread(db.execute, "update feeds set status = 'done' where id = 1")

    app.facts.subscribe(lambda _: proxy.cut_after(b"rota:fail_rows"), RowsClaimed)

    with app.facts.recorded(RowPolled, RowFailed, RowClaimLost) as told:
        await app.work(drain=True)

    assert proxy.cuts == 1
    assert sorted((f.key, type(f).__name__) for f in told) == [([1], "RowPolled"), ([2], "RowFailed")]
    assert claims(db)[2]["attempts"] == 1
    await app.close()


@pytest.mark.direct("a pooler answers by itself")
async def test_a_claim_whose_reply_was_lost_is_given_back_and_polled(
    rota_database: str, proxy: TcpProxy, db: Db
) -> None:
    make_feeds(db, 3)
    app, polled = Rota(proxy.dsn(rota_database)), list[int]()
    fetch_on(app, polled)
    # by then PostgreSQL has read the statement once, to see whether it understands it
    app.facts.subscribe(lambda _: proxy.cut_after(b"rota:claim_rows"), MemberJoined)

    await app.work(drain=True)

    assert proxy.cuts == 1
    assert (sorted(polled), stamped(db), claims(db)) == ([1, 2, 3], [1, 2, 3], {})
    await app.close()


@pytest.mark.direct("a pooler answers by itself")
@pytest.mark.parametrize("lost", ["claim_rows", "claim_this_row"])
async def test_by_hand_a_claim_whose_reply_was_lost_is_given_back_though_the_process_lives_on(
    rota_database: str, proxy: TcpProxy, db: Db, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_feeds(db, 2)
    app, polled = Rota(proxy.dsn(rota_database)), list[int]()
    fetch = fetch_on(app, polled)

    def rescue_and_cut(channel: str) -> Query[Any]:
        proxy.cut_after(f"rota:{lost}".encode())
        return rescue_rows(channel)

    monkeypatch.setattr("rota.pollers.poller.rescue_rows", rescue_and_cut)
    place = await app._membership.enter(Reactions())

    with pytest.raises(DatabaseUnavailable):
        await (fetch.run_once() if lost == "claim_rows" else fetch.poll(1))

    assert (proxy.cuts, polled, claims(db)) == (1, [], {})
    await place.leave()
    await app.close()
