"""Pollers in workers: when they look, how they stop, and what becomes of rows whose process is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from tests.jobs.statements import join
from tests.pollers.feeds import EVERY_FIVE_MINUTES, Db, add_feeds, claims, make_feeds, one, stamped, taken

from rota import ConfigurationError, Retry, current_poll
from rota.facts import PollerHindered, RowClaimLost, RowLost, RowPolled
from rota.leases.prune import prune_leases
from rota.pollers.claim import OWN_BITS, new_token
from rota.postgres.notify import poll_channel
from rota.testing import TestRota, WorkerProcess, fact, until

LATE = 3600.0


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def sleepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look only when there is a reason to."""
    monkeypatch.setattr("rota.pollers.source._FIRST_PAUSE", LATE)


async def stop(app: TestRota, working: asyncio.Task[None]) -> None:
    app.stop()
    await asyncio.wait_for(working, 30)


# when it looks, and when it forgets


@pytest.mark.usefixtures("sleepy")
async def test_a_backlog_is_drained_without_waiting(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 300)

    @rota_app.poller(**EVERY_FIVE_MINUTES, batch=10, idle=LATE)
    async def fetch(feed: dict[str, Any]) -> None: ...

    working = asyncio.create_task(rota_app.work())
    await until(lambda: len(stamped(db)) == 300, what="all are polled")
    await stop(rota_app, working)


@pytest.mark.parametrize("table", ["poll_claims", "poll_intervals"])
async def test_after_many_deletes_forgetting_goes_on_until_all_is_forgotten(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    make_feeds(db, 1)
    columns, values = {
        "poll_claims": ("attempts, retry_at", "1, now() + interval '1 day'"),
        "poll_intervals": ("pace, due_at", "interval '1 hour', now() - interval '1 day'"),
    }[table]
    db.execute(
        f"insert into rota.{table} (poller, key, {columns}) "  # type: ignore[arg-type]
        f"select 'fetch', jsonb_build_array(n), {values} from generate_series(1, 2501) as n"
    )
    first = iter([0.0])

    class Random:
        @staticmethod
        def uniform(low: float, high: float) -> float:
            return next(first, high) if low == 0.5 else high

    monkeypatch.setattr("rota.pollers.polling.random", Random)
    monkeypatch.setattr("rota.pollers.polling._TIDY_MORE_SECONDS", 0.01)

    @rota_app.poller(**EVERY_FIVE_MINUTES, idle=LATE)
    async def fetch(feed: dict[str, Any]) -> None: ...

    working = asyncio.create_task(rota_app.work())
    # of the row that is there, a claim is left that waits, or a pace
    await until(lambda: one(db, f"select array_agg(key) from rota.{table}") == [[1]], what="the others are forgotten")
    await stop(rota_app, working)


@pytest.mark.by_default("None-polled0", "pollers1-polled1")
@pytest.mark.parametrize(
    ("pollers", "polled"),
    [(None, ["fetch", "thumb"]), (["thumb"], ["thumb"]), (["thumb", "thumb"], ["thumb"]), ([], [])],
)
async def test_a_worker_polls_for_the_pollers_that_are_named(
    rota_app: TestRota, db: Db, pollers: list[str] | None, polled: list[str]
) -> None:
    make_feeds(db, 1)
    db.execute("create table pictures (id int primary key, fetched_at timestamptz); insert into pictures values (1)")
    seen: list[str] = []
    shown: list[Any] = []
    for name, table in (("fetch", "feeds"), ("thumb", "pictures")):

        async def handle(row: dict[str, Any], name: str = name) -> None:
            seen.append(name)

        rota_app.poller(table=table, last="fetched_at", interval="5m", name=name)(handle)

    @rota_app.task
    async def look() -> None:
        shown.extend(member.work["pollers"] for member in await rota_app.members())

    await look.enqueue()
    await rota_app.work(drain=True, pollers=pollers)

    assert sorted(seen) == polled
    assert shown == [polled]  # and tells nobody that it does more


async def test_a_worker_is_told_of_pollers_that_it_cannot_poll_for(rota_app: TestRota, db: Db) -> None:
    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="This app has no poller 'fetsch', 'b'; it has fetch"):
        await rota_app.work(pollers=["fetch", "fetsch", "b"])
    with pytest.raises(ConfigurationError, match="a list of names, not text: write pollers=\\['fetch'\\]"):
        await rota_app.work(pollers="fetch")


@pytest.mark.usefixtures("sleepy")
async def test_what_becomes_due_later_is_polled_then(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    polled: list[float] = []

    @rota_app.poller(table="feeds", last="fetched_at", interval=0.5, idle=LATE)
    async def fetch(feed: dict[str, Any]) -> None:
        polled.append(time.monotonic())

    working = asyncio.create_task(rota_app.work())
    await until(lambda: len(polled) == 4, what="it is polled again and again")
    await stop(rota_app, working)

    assert all(after - before >= 0.49 for before, after in pairwise(polled))


@pytest.mark.usefixtures("sleepy")
async def test_a_row_that_failed_is_tried_again_when_its_pause_is_over(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)

    @rota_app.poller(**EVERY_FIVE_MINUTES, idle=LATE, retry=Retry(attempts=3, backoff="constant", base=0.3))
    async def fetch(feed: dict[str, Any]) -> None:
        if current_poll().attempt < 3:
            raise ValueError

    working = asyncio.create_task(rota_app.work())
    await until(lambda: stamped(db) == [1], what="the third attempt is well")
    await stop(rota_app, working)


@pytest.mark.direct("a pooler takes no part in notifications")
@pytest.mark.usefixtures("sleepy")
async def test_a_trigger_wakes_the_poller_at_once(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    db.execute(
        "create trigger wake after insert on feeds for each statement execute function rota.wake_poller('fetch')"
    )

    @rota_app.poller(**EVERY_FIVE_MINUTES, idle=LATE)
    async def fetch(feed: dict[str, Any]) -> None: ...

    working = asyncio.create_task(rota_app.work())
    await until(lambda: stamped(db) == [1], what="the first is polled")
    add_feeds(db, 2, 2)
    await until(lambda: stamped(db) == [1, 2], what="the next is polled")
    await stop(rota_app, working)


TWO_POLLERS = """
from rota import Rota

app = Rota()
OFTEN = dict(table="feeds", idle=3600, interval="5m")


@app.poller(name="fetch", last="fetched_at", **OFTEN)
async def fetch(feed: dict) -> None: ...


@app.poller(name="look", last="seen_at", **OFTEN)
async def look(feed: dict) -> None: ...
"""


@pytest.mark.direct("a pooler takes no part in notifications")
async def test_a_poller_that_is_paused_in_one_process_rests_in_another_and_goes_on_at_once(
    rota_app: TestRota, db: Db, rota_worker: Callable[..., WorkerProcess]
) -> None:
    make_feeds(db, 1)
    db.execute("alter table feeds add seen_at timestamptz")
    rota_worker(TWO_POLLERS)
    await until(lambda: stamped(db) == [1], what="it polls")

    view = await rota_app.pollers.pause("fetch", by="me")
    assert (view.paused_by, view.paused_at is not None) == ("me", True)
    add_feeds(db, 2, 5)
    db.execute("select pg_notify(%s, '')", [poll_channel("rota")])
    await until(lambda: one(db, "select count(seen_at) from feeds") == 5, what="the other goes on")
    assert stamped(db) == [1]

    began = time.monotonic()
    await rota_app.pollers.resume("fetch")
    await until(lambda: len(stamped(db)) == 5, what="it goes on")
    assert time.monotonic() - began < 5


async def test_several_pollers_on_one_table_do_not_know_of_each_other(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 3)
    db.execute("alter table feeds add seen_at timestamptz")
    failing = Retry(attempts=2, base=LATE, cap=LATE)

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=failing)
    async def fetch(feed: dict[str, Any]) -> None:
        raise ValueError

    @rota_app.poller(table="feeds", last="seen_at", interval="5m")
    async def look(feed: dict[str, Any]) -> None: ...

    await rota_app.drain()

    assert (stamped(db), one(db, "select count(seen_at) from feeds")) == ([], 3)
    assert {claim["poller"] for claim in claims(db).values()} == {"fetch"}


# how it stops


async def test_at_a_stop_what_was_not_begun_is_released_at_once_and_what_runs_has_its_grace(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.service.consume._AHEAD_SECONDS", 1.0)
    monkeypatch.setattr("rota.service.consume._STALE_SECONDS", LATE)
    make_feeds(db, 1000)
    running, go = asyncio.Event(), asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES, concurrency=1, batch=50, order_by="id")
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 200:
            running.set()
            await go.wait()

    working = asyncio.create_task(rota_app.work(grace=LATE))
    await running.wait()
    await until(lambda: len(taken(db)) > 1 and 199 in stamped(db), what="rows are claimed ahead")
    rota_app.stop()
    await until(lambda: taken(db) == [200], what="what was not begun is free")
    assert not working.done()
    go.set()
    await asyncio.wait_for(working, 30)

    assert claims(db) == {}
    assert stamped(db) == [*range(1, 201)]


STUCK = """
import time
from rota import Rota

app = Rota()


@app.poller(table="feeds", last="fetched_at", interval="5m", name="fetch")
def fetch(feed: dict) -> None:
    time.sleep(60)
"""


@pytest.mark.long
async def test_a_thread_that_outstays_the_grace_does_not_keep_the_worker_from_ending(
    db: Db, rota_worker: Callable[..., WorkerProcess]
) -> None:
    make_feeds(db, 1)
    worker = rota_worker(STUCK, args=["--grace", "0.2"])
    await until(lambda: taken(db) == [1], what="it is being polled")

    worker.terminate()

    assert await asyncio.to_thread(worker.wait, 15) == 1
    assert (
        "1 thread(s) are still in the body of a task or the handler of a poller or projection; leaving without them"
        in worker.output()
    )
    assert claims(db) == {}


SLOW = """
import asyncio
from rota import Rota

app = Rota()


@app.poller(table="feeds", last="fetched_at", interval="5m", concurrency=2)
async def fetch(feed: dict) -> None:
    if feed["name"] != "never":
        await asyncio.sleep(0.5)
    else:
        await asyncio.sleep(3600)
"""


@pytest.mark.long
async def test_at_sigterm_what_runs_finishes_within_the_grace_and_the_rest_is_free(
    db: Db, rota_worker: Callable[..., WorkerProcess]
) -> None:
    make_feeds(db, 20)
    db.execute("update feeds set name = 'never', fetched_at = now() - interval '1 day' where id = 1")
    db.execute("update feeds set fetched_at = now() - interval '2 days' where id = 2")
    db.execute("update feeds set fetched_at = now() where id > 2")
    worker = rota_worker(SLOW, args=["--grace", "2"])
    await until(lambda: taken(db) == [1, 2], what="both are being polled")

    began = time.monotonic()
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, 20) == 0

    assert time.monotonic() - began < 20
    assert claims(db) == {}
    recent = "select array_agg(id order by id) from feeds where id < 3 and fetched_at > now() - interval '1 hour'"
    assert one(db, recent) == [2]


# processes that are lost


async def test_who_has_lost_its_identity_drops_what_it_held_and_the_row_is_polled_again(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 1)
    cancelled: list[int] = []
    running = asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        if current_poll().attempt > 1:
            return
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(feed["id"])
            raise

    with rota_app.facts.recorded(RowLost, RowPolled, RowClaimLost) as told:
        working = asyncio.create_task(rota_app.work())
        await running.wait()
        db.execute("update rota.members set ended_at = now(), end_reason = 'expired' where ended_at is null")
        await until(lambda: cancelled == [1], what="it is dropped")
        await until(lambda: stamped(db) == [1] and not claims(db), what="it is polled again")
        await stop(rota_app, working)

    # who rescues may be ourselves, before we know that it was us
    assert {type(f) for f in told} >= {RowLost, RowPolled}


@pytest.mark.slow
async def test_a_suspect_that_was_running_when_the_identity_was_lost_keeps_no_other_out(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 2)
    db.execute("insert into rota.poll_claims (poller, key, losses, retry_at) values ('fetch', '[1]', 2, now())")
    running = asyncio.Event()

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        if feed["id"] == 1:
            running.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(rota_app.work())
    await running.wait()
    await until(lambda: stamped(db) == [2], what="the other is polled meanwhile")
    add_feeds(db, 3, 3)
    db.execute("insert into rota.poll_claims (poller, key, losses, retry_at) values ('fetch', '[3]', 1, now())")
    db.execute("update rota.members set ended_at = now(), end_reason = 'expired' where ended_at is null")
    await until(lambda: 3 in stamped(db), what="the other suspect is polled")
    await until(lambda: claims(db)[1]["parked_at"], what="that was its third loss")
    await stop(rota_app, working)


async def test_suspects_are_polled_one_at_a_time(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 6)
    for id in (1, 2, 3):
        db.execute(
            "insert into rota.poll_claims (poller, key, losses, retry_at) values ('fetch', %s::text::jsonb, 2, now())",
            [f"[{id}]"],
        )
    running: set[int] = set()
    seen: list[set[int]] = []

    # fewer than there are suspects, which come first and must not take the places of the others
    @rota_app.poller(**EVERY_FIVE_MINUTES, batch=2, order_by="id")
    async def fetch(feed: dict[str, Any]) -> None:
        running.add(feed["id"])
        seen.append(running & {1, 2, 3})
        await asyncio.sleep(0)
        await until(lambda: len(stamped(db)) >= 3 or feed["id"] > 3, what="those that are well go first")
        running.discard(feed["id"])

    working = asyncio.create_task(rota_app.work())
    await until(lambda: len(stamped(db)) == 6, what="all are polled", timeout=30)
    await stop(rota_app, working)

    assert max(map(len, seen)) == 1
    assert claims(db) == {}


@pytest.mark.usefixtures("sleepy")
async def test_a_suspect_that_failed_is_tried_again_when_its_pause_is_over(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    db.execute("insert into rota.poll_claims (poller, key, losses, retry_at) values ('fetch', '[1]', 1, now())")

    @rota_app.poller(**EVERY_FIVE_MINUTES, idle=LATE, retry=Retry(attempts=3, backoff="constant", base=0.1))
    async def fetch(feed: dict[str, Any]) -> None:
        if current_poll().attempt < 4:
            raise ValueError

    working = asyncio.create_task(rota_app.work())
    await until(lambda: stamped(db) == [1], what="its third attempt after the loss is well")
    await stop(rota_app, working)


POISON = """
import os
from rota import Rota

app = Rota(lease="2s")


@app.poller(table="feeds", last="fetched_at", interval="5m", concurrency=10)
async def fetch(feed: dict) -> None:
    if feed["name"] == "poison":
        os._exit(9)
"""


@pytest.mark.long
async def test_a_row_that_kills_its_process_is_parked_after_three_and_its_neighbours_survive(
    rota_app: TestRota, db: Db, rota_worker: Callable[..., WorkerProcess]
) -> None:
    make_feeds(db, 8)
    db.execute("update feeds set name = 'poison' where id = 3")

    for _ in range(3):
        worker = rota_worker(POISON, wait=False)
        assert await asyncio.to_thread(worker.wait, 60) == 9
    rota_worker(POISON)
    await until(lambda: stamped(db) == [1, 2, 4, 5, 6, 7, 8], what="the neighbours are polled", timeout=30)

    parked = await until(lambda: rota_app.pollers.parked("fetch"), what="the poison is parked", timeout=30)
    assert [(row.key, row.losses, row.error_type) for row in parked] == [([3], 3, "Lost")]
    assert claims(db).keys() == {3}


async def test_rows_of_a_member_that_ended_long_ago_are_found_by_any_worker(rota_app: TestRota, db: Db) -> None:
    make_feeds(db, 1)
    gone = join(db)
    db.execute(
        "insert into rota.poll_claims (poller, key, member, token, claimed_at) values ('fetch', '[1]', %s, 1, now())",
        [gone],
    )
    db.execute(
        "update rota.members set ended_at = now() - interval '30 days', end_reason = 'left' where id = %s", [gone]
    )

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None: ...

    rota_app.database.run_sync(prune_leases())
    lost = fact(rota_app.facts, RowLost)
    working = asyncio.create_task(rota_app.work())
    assert ((await lost).key, (await lost).losses) == ([1], 1)
    await until(lambda: stamped(db) == [1], what="it is polled")
    await stop(rota_app, working)


async def test_a_worker_gives_back_what_it_holds_and_knows_nothing_of(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.pollers.polling._RESCUE_SECONDS", 0.1)
    make_feeds(db, 1)
    marks: list[int] = []

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        marks.append(current_poll().token >> OWN_BITS)

    working = asyncio.create_task(rota_app.work())
    await until(lambda: stamped(db) == [1], what="it polls")
    add_feeds(db, 2, 2)
    db.execute(
        "insert into rota.poll_claims (poller, key, member, token, claimed_at) "
        "select 'fetch', '[2]', id, %s, now() from rota.members where ended_at is null",
        [new_token(marks[0])],
    )
    await until(lambda: stamped(db) == [1, 2], what="the row that nobody knew of is free, and polled", timeout=20)
    await stop(rota_app, working)


# limits, and tables that go


@pytest.mark.by_default("2")
@pytest.mark.parametrize("limit", [1, 2])
async def test_a_limit_is_kept_by_two_workers_together_also_for_suspects(
    rota_app: TestRota, rota_database: str, db: Db, limit: int
) -> None:
    make_feeds(db, 40)
    for id in (1, 2, 3):
        db.execute(
            "insert into rota.poll_claims (poller, key, losses, retry_at) values ('fetch', %s::text::jsonb, 1, now())",
            [f"[{id}]"],
        )
    apps = [rota_app, TestRota(rota_database)]
    now, most = [0], [0]

    async def fetch(feed: dict[str, Any]) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0], one(db, "select count(*) from rota.poll_claims where member is not null"))
        await asyncio.sleep(0.01)
        now[0] -= 1

    for app in apps:
        app.poller(**EVERY_FIVE_MINUTES, limit=limit, concurrency=5, idle=0.1)(fetch)
    workers = [asyncio.create_task(app.work()) for app in apps]
    await until(lambda: len(stamped(db)) == 40, what="all are polled", timeout=30)
    for app, working in zip(apps, workers, strict=True):
        await stop(app, working)

    assert most == [limit]
    await apps[1].close()


async def test_a_poller_whose_table_is_dropped_hinders_no_other_and_goes_on_when_it_is_back(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 1)
    db.execute("create table others (id int primary key, seen_at timestamptz)")

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None: ...

    @rota_app.poller(table="others", last="seen_at", interval="5m")
    async def look(other: dict[str, Any]) -> None: ...

    @rota_app.task
    async def double(n: int) -> int:
        return 2 * n

    hindered = fact(rota_app.facts, PollerHindered)
    working = asyncio.create_task(rota_app.work())
    await until(lambda: stamped(db) == [1], what="it polls")
    db.execute("drop table feeds")
    rota_app.advance("1s")
    told = await hindered
    db.execute("insert into others values (1)")
    rota_app.advance("1s")

    assert await (await double.enqueue(21)).wait(10) == 42
    await until(lambda: one(db, "select count(seen_at) from others"), what="the other poller goes on")
    make_feeds(db, 2)
    rota_app.advance("1s")
    await until(lambda: stamped(db) == [1, 2], what="it goes on")
    await stop(rota_app, working)
    assert (told.poller, told.error) == ("fetch", 'relation "public.feeds" does not exist')


async def test_a_table_that_goes_while_a_row_is_polled_fails_that_row_and_not_the_worker(
    rota_app: TestRota, db: Db
) -> None:
    make_feeds(db, 1)

    @rota_app.poller(**EVERY_FIVE_MINUTES)
    async def fetch(feed: dict[str, Any]) -> None:
        await asyncio.to_thread(db.execute, "drop table feeds")

    working = asyncio.create_task(rota_app.work())
    await until(lambda: 1 in claims(db) and claims(db)[1]["attempts"] == 1, what="it failed")
    assert "its stamp could not be written" in claims(db)[1]["error_message"]
    assert not working.done()
    await stop(rota_app, working)


async def test_a_worker_forgets_rows_that_are_gone(rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.pollers.polling._TIDY_SECONDS", 0.1)
    make_feeds(db, 2)

    @rota_app.poller(**EVERY_FIVE_MINUTES, retry=None)
    async def fetch(feed: dict[str, Any]) -> None:
        raise ValueError

    working = asyncio.create_task(rota_app.work())
    await until(lambda: claims(db).keys() == {1, 2} and not taken(db), what="both are parked")
    db.execute("delete from feeds where id = 1")
    await until(lambda: claims(db).keys() == {2}, what="it is forgotten")
    await stop(rota_app, working)
