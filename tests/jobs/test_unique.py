from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.interleave import at_once
from tests.jobs.test_retention import keep

from rota import ConfigurationError, InvalidArguments, JobExists, JobNotFound, Retry, Rota, Unique, current_job
from rota.jobs import enqueue as enqueue_room
from rota.jobs.cancel import cancel_jobs
from rota.jobs.enqueue import digest, put_jobs
from rota.testing import TcpProxy, TestRota, until_sync

pytestmark = pytest.mark.usefixtures("history_aside")

EVERYTHING = ("queued", "running", "succeeded", "dead", "cancelled")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def counted(app: Rota) -> int:
    return len(app.jobs.list_sync(limit=10_000))


async def test_the_job_that_waits_is_returned_in_place_of_a_second_one(rota_app: TestRota) -> None:
    @rota_app.task(unique=True)
    async def report(user: int, *, full: bool = False) -> None: ...

    first = await report.enqueue(7)
    again = await report.enqueue(user=7, full=False)
    other = await report.enqueue(7, full=True)

    assert (first.existing, again.existing, other.existing) == (False, True, False)
    assert again.id == first.id != other.id
    assert counted(rota_app) == 2


@pytest.mark.parametrize(
    "by",
    [lambda order: order, "order", lambda **arguments: arguments["order"], lambda order: (order, "x")],
    ids=["function", "parameter", "all arguments", "tuple"],
)
async def test_the_key_may_be_some_of_the_arguments(rota_app: TestRota, by: Any) -> None:
    @rota_app.task(unique=Unique(by=by))
    async def ship(order: int, when: str) -> None: ...

    first = await ship.enqueue(7, "now")

    assert (await ship.enqueue(7, "later")).id == first.id
    assert (await ship.enqueue(8, "now")).id != first.id


async def test_a_text_that_names_no_parameter_is_the_key_itself_and_belongs_to_its_task(rota_app: TestRota) -> None:
    @rota_app.task
    async def one(n: int) -> None: ...

    @rota_app.task
    async def other(n: int) -> None: ...

    first = await one.using(unique="nightly").enqueue(1)

    assert (await one.using(unique="nightly").enqueue(2)).id == first.id
    assert (await other.using(unique="nightly").enqueue(1)).id != first.id
    assert (await one.enqueue(1)).id != first.id


async def test_a_key_is_free_again_when_its_job_has_settled(rota_app: TestRota) -> None:
    @rota_app.task(unique=True)
    async def report() -> None: ...

    first = await report.enqueue()
    await rota_app.drain()
    second = await report.enqueue()

    assert not second.existing
    assert second.id != first.id


async def test_a_running_job_holds_its_key_unless_only_queued_ones_count(rota_app: TestRota) -> None:
    seen: list[tuple[bool, bool]] = []

    @rota_app.task
    async def report() -> None:
        same = await report.using(unique="k").enqueue()
        after = await report.using(unique=Unique(by="k", states=("queued",)), delay=60).enqueue()
        seen.append((same.existing, after.existing))

    await report.using(unique="k").enqueue()
    await rota_app.drain()

    assert seen == [(True, False)]


async def test_settled_jobs_count_within_a_period_if_asked_for(rota_app: TestRota) -> None:
    daily = Unique(within="1d", states=("queued", "running", "succeeded"))

    @rota_app.task(unique=daily)
    async def report() -> None: ...

    first = await report.enqueue()
    await rota_app.drain()
    again = await report.enqueue()
    rota_app.advance("25h")
    next_day = await report.enqueue()

    assert (again.id, again.state, again.existing) == (first.id, "succeeded", True)
    assert not next_day.existing


async def test_a_key_outlives_the_history_of_its_job(rota_app: TestRota, rota_database: str) -> None:
    monthly = Unique(within="30d", states=("succeeded",))

    @rota_app.task(unique=monthly)
    async def bill() -> None: ...

    first = await bill.enqueue()
    await rota_app.drain()
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("delete from rota.history")

    again = await bill.enqueue()

    assert (again.id, again.existing) == (first.id, True)


NEVER_AGAIN = Unique(states=("queued", "running", "succeeded"))
#: where the row is when it reaches its age
PLACES = {
    "a partition": "select",
    "the net of its class": "update rota.history set finished_at = finished_at - interval '30 days'",
    "the net of all classes": "update rota.history set retention = 'undeclared'",
}


def forget(db: psycopg.Connection[Any], what: str = "history") -> None:
    """Have upkeep drop what is old, all of it. Something may read there just then, and keep it till the next time."""

    def forgotten() -> bool:
        keep(db)
        return db.execute(f"select count(*) from rota.{what}").fetchone() == (0,)

    until_sync(forgotten, what=f"nothing is left of {what}")


async def test_never_again_is_longer_than_the_history(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task(unique=NEVER_AGAIN)
    async def charge(order: int) -> None: ...

    first = await charge.using(tags=["ada"]).enqueue(7)
    await rota_app.drain()
    rota_app.advance("400d")
    forget(db)

    again = await charge.using(tags=["ada"]).enqueue(7)

    with pytest.raises(JobNotFound):
        await first.refresh()
    assert (again.id, again.state, again.existing) == (first.id, "succeeded", True)
    assert (again.created_at, again.args, again.tags) == (first.created_at, None, ())


@pytest.mark.by_default("a partition", "the net of all classes")
@pytest.mark.parametrize("place", PLACES)
async def test_whether_a_job_was_cancelled_is_known_longer_than_the_history(
    rota_app: TestRota, db: psycopg.Connection[Any], place: str
) -> None:
    @rota_app.task(unique=NEVER_AGAIN)
    async def charge(order: int) -> None: ...

    _, unwanted = await rota_app.enqueue_many([charge.bind(1), charge.bind(2)])
    await unwanted.cancel()
    await rota_app.drain()
    db.execute(PLACES[place])
    rota_app.advance("9d")
    forget(db)

    minds = charge.using(unique=Unique(states=("cancelled",)))
    there = await minds.enqueue(2)
    assert (there.id, there.state, there.existing) == (unwanted.id, "cancelled", True)
    assert not (await minds.enqueue(1)).existing
    new = await charge.enqueue(2)
    assert not new.existing
    await rota_app.drain()
    rota_app.advance("9d")
    forget(db)
    assert (await charge.enqueue(2)).id == new.id


def test_a_key_in_use_keeps_the_history_until_it_can_be_noted(
    rota_app: TestRota, db: psycopg.Connection[Any], rota_database: str
) -> None:
    charge = rota_app.task(name="charge", unique=NEVER_AGAIN)(lambda order: None)
    charge.enqueue_sync(1).cancel_sync()
    rota_app.advance("9d")
    with psycopg.connect(rota_database) as user:
        user.execute("select from rota.uniques for update")

        hindered = keep(db)

    assert "noting keys of cancelled jobs" in hindered.hindered[0]
    assert db.execute("select count(*) from rota.history").fetchone() == (1,)
    assert keep(db).hindered == []
    assert db.execute("select count(*) from rota.history").fetchone() == (0,)
    assert not charge.enqueue_sync(1).existing


@pytest.mark.long
def test_very_many_cancelled_jobs_are_noted_in_several_rounds(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    charge = rota_app.task(name="charge", unique=NEVER_AGAIN)(lambda order: None)
    jobs = rota_app.enqueue_many_sync([charge.bind(n) for n in range(5001)])
    rota_app.database.run_sync(cancel_jobs([job.id for job in jobs], None, "channel"))
    rota_app.advance("9d")

    keep(db)

    assert db.execute("select count(*) from rota.history").fetchone() == (0,)
    assert db.execute("select count(*) from rota.uniques where ended = 'cancelled'").fetchone() == (5001,)


async def test_a_dead_letter_holds_its_key_until_it_is_acknowledged_and_then_never(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(unique=Unique(states=EVERYTHING), retry=None)
    async def charge(order: int) -> None:
        raise ValueError

    dead = await charge.enqueue(1)
    await rota_app.drain()
    rota_app.advance("400d")
    keep(db)
    held = await charge.enqueue(1)
    await rota_app.dead.acknowledge(dead.id)
    rota_app.advance("31d")
    forget(db, "dead")

    assert (held.id, held.state) == (dead.id, "dead")
    assert not (await charge.enqueue(1)).existing


async def test_the_period_of_a_letter_that_is_retried_late_begins_anew(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    fails = [True]

    @rota_app.task(unique=Unique(states=("queued", "running", "succeeded"), within="30d"), retry=None)
    async def charge() -> None:
        if fails:
            raise ValueError

    dead = await charge.enqueue()
    await rota_app.drain()
    rota_app.advance("60d")
    keep(db)
    fails.clear()
    again = await dead.retry()
    await rota_app.drain()
    rota_app.advance("20d")
    forget(db)

    assert (await charge.enqueue()).id == again.id
    rota_app.advance("11d")
    assert not (await charge.enqueue()).existing


async def test_what_is_erased_may_happen_again(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(by="order", states=EVERYTHING), retry=None)
    async def charge(order: int) -> float:
        return 1 / order

    jobs = await rota_app.enqueue_many([charge.using(tags=["ada"]).bind(n) for n in range(3)])
    await jobs[1].cancel()
    await rota_app.drain()

    erased = await rota_app.jobs.erase(tag="ada")

    assert erased.uniques == 3
    assert [job.existing for job in await rota_app.enqueue_many([charge.bind(n) for n in range(3)])] == [False] * 3


async def test_a_period_without_settled_states_bounds_how_long_a_waiting_job_counts(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(within="1h"))
    async def report() -> None: ...

    first = await report.using(delay="1d").enqueue()
    rota_app.advance("61m")

    assert (await report.enqueue()).id != first.id


async def test_a_conflict_can_be_an_error_that_names_the_job(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(conflict="raise"))
    async def report(n: int) -> None: ...

    first = await report.enqueue(1)

    with pytest.raises(JobExists, match=rf"job {first.id}, which is queued, has the same unique key") as raised:
        await report.enqueue(1)
    assert raised.value.job.id == first.id


@pytest.mark.by_default("queued", "dead")
@pytest.mark.parametrize("state", ["queued", "succeeded", "dead", "cancelled"])
async def test_the_job_that_is_there_is_told_as_it_is_stored(rota_app: TestRota, state: str) -> None:
    @rota_app.task(unique=Unique(by="n", states=EVERYTHING), retry=None, queue="slow", redact=["secret"], version=2)
    async def invert(n: int, secret: str, note: str = "") -> float:
        return 1 / n

    n = 0 if state == "dead" else 1
    first = await invert.using(priority=3, tags=["a"], key="k").enqueue(n, "sesame")
    if state == "cancelled":
        await first.cancel("changed my mind")
    if state != "queued":
        await rota_app.drain()
    (stored,) = await rota_app.jobs.list()

    new = invert.using(queue="fast", priority=9, tags=["b"], key="l", delay=60)
    again = await new.enqueue(n, "other", note="new")
    with pytest.raises(JobExists) as raised:
        await new.using(unique=Unique(by="n", states=EVERYTHING, conflict="raise")).enqueue(n, "other")

    assert stored.state == state
    assert stored.args == {"n": n, "secret": "•••"}
    assert again == raised.value.job == replace(stored, existing=True)


async def test_a_job_that_runs_is_told_as_it_is_stored(rota_app: TestRota) -> None:
    told: list[Any] = []

    @rota_app.task(unique=Unique(by="n"))
    async def report(n: int, text: str) -> None:
        await current_job().progress(0.5, "half")
        told.append(await report.using(queue="other").enqueue(1, "new"))
        told.extend(await rota_app.jobs.list())

    await report.enqueue(1, "old")
    await rota_app.drain()

    assert told[0] == replace(told[1], existing=True)
    assert (told[0].state, told[0].args, told[0].progress) == ("running", {"n": 1, "text": "old"}, 0.5)


async def test_where_one_of_many_conflicts_and_minds_none_is_added(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(conflict="raise"))
    async def report(n: int) -> None: ...

    await report.enqueue(2)

    with pytest.raises(JobExists):
        await rota_app.enqueue_many([report.bind(n) for n in range(5)])
    with pytest.raises(JobExists, match="items 0 and 1 are both"):
        await rota_app.enqueue_many([report.bind(9), report.bind(9)])
    assert counted(rota_app) == 1


async def test_a_waiting_job_can_be_replaced(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(by=lambda doc: doc, conflict="replace"))
    async def index(doc: int, text: str) -> str:
        return text

    first = await index.using(delay="1h", tags=["old"]).enqueue(1, "old")
    second = await index.using(delay="1m", priority=3, tags=["new"]).enqueue(1, "new")

    job = await first.refresh()
    assert second == replace(job, existing=True)
    assert job.id == first.id
    assert (job.args, job.priority, job.tags) == ({"doc": 1, "text": "new"}, 3, ("new",))
    rota_app.advance("1m")
    await rota_app.drain()
    assert await job.wait() == "new"


async def test_what_replaces_a_job_has_all_its_attempts_and_none_of_the_errors(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(unique=Unique(by="doc", conflict="replace"), retry=Retry(attempts=2, base="1h"))
    async def index(doc: int, text: str) -> None:
        raise ValueError(text)

    first = await index.enqueue(1, "old")
    await rota_app.drain()
    db.execute("update rota.jobs set losses = 2, attempt = 3")

    second = await index.enqueue(1, "new")

    waiting = await first.refresh()
    assert second == replace(waiting, existing=True)
    assert (waiting.attempt, waiting.losses, waiting.errors) == (0, 0, ())
    await rota_app.drain()
    failed = await first.refresh()
    assert (failed.state, failed.attempt) == ("queued", 1)
    assert [(error.attempt, error.message) for error in failed.errors] == [(1, "new")]


async def test_a_running_job_is_not_replaced_but_returned(rota_app: TestRota) -> None:
    replaced: list[Any] = []

    @rota_app.task(unique=Unique(by=lambda doc: doc, conflict="replace"))
    async def index(doc: int, text: str) -> str:
        replaced.append(await index.enqueue(1, "new"))
        return text

    job = await index.enqueue(1, "old")
    await rota_app.drain()

    assert [(each.id, each.state) for each in replaced] == [(job.id, "running")]
    assert await job.wait() == "old"


async def test_bulk_keeps_order_and_returns_twins_as_one(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(by=lambda n: n % 3))
    async def report(n: int) -> None: ...

    @rota_app.task
    async def plain(n: int) -> None: ...

    jobs = await rota_app.enqueue_many([*(report.bind(n) for n in (5, 4, 3, 2, 1)), plain.bind(9)])

    ids = [job.id for job in jobs]
    assert ids == [ids[0], ids[0] + 1, ids[0] + 2, ids[0], ids[0] + 1, ids[0] + 3]
    assert [job.existing for job in jobs] == [False, False, False, True, True, False]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with many jobs take a statement for each of them."""
    monkeypatch.setattr(enqueue_room, "BATCH_ROWS", 1)


async def test_a_bulk_in_several_parts_is_as_one(rota_app: TestRota, one_by_one: None) -> None:
    @rota_app.task(unique=Unique(by="n"))
    async def report(n: int) -> None: ...

    there = await report.enqueue(2)
    jobs = await rota_app.enqueue_many([report.bind(n) for n in (1, 2, 1, 3)])

    assert [job.id for job in jobs] == [there.id + 1, there.id, there.id + 1, there.id + 2]
    assert [job.existing for job in jobs] == [False, True, True, False]
    with pytest.raises(JobExists):
        await rota_app.enqueue_many([report.using(unique=Unique("n", conflict="raise")).bind(n) for n in (4, 2)])
    assert counted(rota_app) == 3


def test_bulks_in_several_parts_never_wait_for_each_others_keys_in_a_circle(
    rota_app: TestRota, db: psycopg.Connection[Any], one_by_one: None
) -> None:
    report = rota_app.task(name="report", unique=Unique(by="key"))(lambda key: None)
    middle = report.enqueue_sync("m")

    def put(keys: str) -> list[int]:
        # with a plain job among them, a call that PostgreSQL ends is not repeated
        plain = report.using(unique=None).bind("plain")
        return [job.id for job in rota_app.enqueue_many_sync([*(report.bind(key) for key in keys), plain])][:3]

    in_the_way = "select from rota.uniques for update"
    one, two = at_once(db, in_the_way, [lambda: put("amz"), lambda: put("zma")])

    assert one.result() == two.result()[::-1]
    assert one.result()[1] == middle.id
    assert counted(rota_app) == 3 + 2


def test_a_bulk_in_several_parts_takes_what_it_replaces_in_the_order_of_those_who_cancel(
    rota_app: TestRota, db: psycopg.Connection[Any], one_by_one: None
) -> None:
    report = rota_app.task(name="report", unique=Unique(by="n", conflict="replace"))(lambda n, text="": None)
    ids = [report.enqueue_sync(n).id for n in (1, 2, 3)]

    def replace_all() -> list[int]:
        return [job.id for job in rota_app.enqueue_many_sync([report.bind(n, "new") for n in (2, 3, 1)])]

    def cancel() -> list[Any]:
        return rota_app.database.run_sync(cancel_jobs(ids[:2], None, "channel"))

    in_the_way = f"select from rota.jobs where id = {ids[2]} for update"
    replaced, cancelled = at_once(db, in_the_way, [replace_all, cancel])

    assert replaced.result() == [ids[1], ids[2], ids[0]]
    assert [ended.id for ended in cancelled.result()] == ids[:2]


def test_sql_and_python_have_one_digest_of_a_key(db: psycopg.Connection[Any]) -> None:
    keys = ["", "a", "ü\x1f", "x" * 100_000]

    told = db.execute("select rota.unique_digest('täsk', key) from unnest(%s::text[]) as key", [keys]).fetchall()

    assert [key for (key,) in told] == [digest("täsk", key) for key in keys]


def test_many_at_once_add_one_job_per_key(rota_app: TestRota, rota_database: str) -> None:
    apps = [Rota(rota_database) for _ in range(6)]
    for app in apps:
        app.task(name="report", unique=True)(lambda n: None)

    def put(app: Rota) -> list[int]:
        report = app.tasks["report"]
        many = [job.id for job in app.enqueue_many_sync([report.bind(n) for n in range(19, -1, -1)])]
        return [report.enqueue_sync(n).id for n in range(20)] + many[::-1]

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(put, apps))

    assert {tuple(ids[:20]) for ids in found} == {tuple(ids[20:]) for ids in found}
    assert len({tuple(ids[:20]) for ids in found}) == 1
    assert counted(rota_app) == 20
    for app in apps:
        app.close_sync()


async def test_an_enqueue_whose_reply_was_lost_is_repeated_and_adds_one_job(
    rota_app: TestRota, rota_database: str
) -> None:
    with TcpProxy(rota_database) as proxy:
        through = Rota(proxy.dsn(rota_database))

        @through.task(name="pay", unique=True)
        async def pay(n: int) -> None: ...

        await pay.enqueue(0)
        proxy.cut_after(b"rota:put_jobs ")

        job = await pay.enqueue(1)

        assert proxy.cuts == 1
        assert counted(rota_app) == 2
        assert (await job.refresh()).args == {"n": 1}
        await through.close()


async def test_a_repeated_call_finds_its_job_even_if_that_has_settled_meanwhile(rota_app: TestRota) -> None:
    @rota_app.task(unique=True)
    async def pay() -> None: ...

    call = uuid4()
    (first,) = await rota_app.database.run(put_jobs([pay.bind()], rota_app.jobs, call=call))
    await rota_app.drain()

    (again,) = await rota_app.database.run(put_jobs([pay.bind()], rota_app.jobs, call=call))
    strict = pay.using(unique=Unique(conflict="raise")).bind()
    (third,) = await rota_app.database.run(put_jobs([strict], rota_app.jobs, call=call))
    assert (third.id, third.existing) == (first.id, False)
    (other,) = await rota_app.database.run(put_jobs([pay.bind()], rota_app.jobs, call=uuid4()))

    assert (again.id, again.state) == (first.id, "succeeded")
    assert other.id != first.id


async def test_a_repeated_replacement_finds_its_job_even_if_that_has_settled_meanwhile(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(unique=Unique(by="doc", conflict="replace"))
    async def index(doc: int, text: str) -> str:
        return text

    first = await index.using(delay="2h").enqueue(1, "old")
    rota_app.advance("2h")
    call = uuid4()
    await rota_app.database.run(put_jobs([index.bind(1, "new")], rota_app.jobs, call=call))
    await rota_app.drain()
    # the job is old, but not the call
    keep(db)

    (again,) = await rota_app.database.run(put_jobs([index.bind(1, "new")], rota_app.jobs, call=call))

    assert (again.id, again.state, again.result) == (first.id, "succeeded", "new")
    assert counted(rota_app) == 1


@pytest.mark.parametrize("conflict", ["return", "replace"])
async def test_a_repeated_call_with_twins_finds_its_job_for_both(rota_app: TestRota, conflict: Any) -> None:
    @rota_app.task(unique=Unique(by="doc", conflict=conflict))
    async def index(doc: int, text: str) -> None: ...

    call, twins = uuid4(), [index.bind(1, "a"), index.bind(1, "b")]
    first = await rota_app.database.run(put_jobs(twins, rota_app.jobs, call=call))
    waiting = await rota_app.database.run(put_jobs(twins, rota_app.jobs, call=call))
    await rota_app.drain()

    again = await rota_app.database.run(put_jobs(twins, rota_app.jobs, call=call))

    assert [job.existing for job in first] == [False, True]
    assert {job.id for job in (*first, *waiting, *again)} == {first[0].id}
    assert {job.args["text"] for job in (*waiting, *again)} == {"a" if conflict == "return" else "b"}
    assert counted(rota_app) == 1


async def test_a_repeated_replacement_does_not_begin_anew_what_has_begun(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(by="doc", conflict="replace"), retry=Retry(attempts=2, base="1h"))
    async def index(doc: int, text: str) -> None:
        await current_job().checkpoint(text)
        raise ValueError(text)

    await index.using(delay="2h").enqueue(1, "old")
    call = uuid4()
    await rota_app.database.run(put_jobs([index.bind(1, "new")], rota_app.jobs, call=call))
    await rota_app.drain()
    (failed,) = rota_app.enqueued()

    (again,) = await rota_app.database.run(put_jobs([index.bind(1, "new")], rota_app.jobs, call=call))

    assert (again.attempt, again.due_at) == (1, failed.due_at)


def test_plain_sql_can_ask_for_a_unique_job(rota_app: TestRota, rota_database: str) -> None:
    @rota_app.task
    async def pay() -> None: ...

    with psycopg.connect(rota_database, autocommit=True) as db:
        first = db.execute("select rota.enqueue('x', unique_key => 'a')").fetchone()
        assert db.execute("select rota.enqueue('x', unique_key => 'a')").fetchone() == first
        assert db.execute("select rota.enqueue('x', unique_key => 'b')").fetchone() != first


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"by": 7}, "by is 7"),
        ({"by": ""}, "by is ''"),
        ({"within": 0}, "within is 0"),
        ({"states": ()}, r"states is \(\)"),
        ({"states": ("waiting",)}, "states is"),
        ({"states": "queued"}, "states is 'queued'"),
        ({"conflict": "ignore"}, "conflict is 'ignore'"),
    ],
)
def test_a_unique_that_cannot_work_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Unique(**wrong)


def test_a_function_of_what_the_task_does_not_have_is_refused_at_declaration() -> None:
    app = Rota("dbname=nowhere")

    with pytest.raises(ConfigurationError, match="asks for order, and the task has only n"):
        app.task(unique=Unique(by=lambda order: order))(lambda n: None)
    with pytest.raises(ConfigurationError, match="unique cannot be 7"):
        app.task(unique=7)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Place:
    city: str
    streets: frozenset[str]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (9, "9"),
        ("9", "9"),
        (UUID(int=7), str(UUID(int=7))),
        (date(2025, 1, 31), "2025-01-31"),
        (datetime(2025, 1, 31, 12), "2025-01-31T12:00:00"),
        (Decimal("1.10"), "1.10"),
        ((1, UUID(int=7)), f'[1, "{UUID(int=7)}"]'),
        ({"b": 1, "a": None}, '{"a": null, "b": 1}'),
        ({"b", "a", 3}, r'["\"a\"", "\"b\"", "3"]'),
        (Place("Rome", frozenset({"b", "a"})), '{"city": "Rome", "streets": ["a", "b"]}'),
    ],
    ids=["number", "text", "uuid", "date", "datetime", "decimal", "tuple", "mapping", "set", "dataclass"],
)
def test_equal_keys_are_one_text_everywhere(key: object, text: str) -> None:
    task = Rota("dbname=nowhere").task(unique=Unique(by=lambda n: key))(lambda n: None)

    new = task.bind(1)

    assert new.unique is not None
    assert new.unique.key == text


@pytest.mark.parametrize(
    "key",
    [object(), lambda: None, {1: 2, "a": 3}, {(1, 2): 3}, float, [object()], {object()}],
    ids=["object", "function", "mixed names", "odd names", "class", "in a list", "in a set"],
)
def test_a_key_that_could_be_another_text_elsewhere_is_refused(key: object) -> None:
    task = Rota("dbname=nowhere").task(name="report", unique=Unique(by=lambda n: key))(lambda n: None)

    with pytest.raises(
        InvalidArguments, match=r"Task 'report' was not enqueued: its unique key, a function of n, is .*text everywhere"
    ):
        task.bind(1)


async def test_a_key_may_be_as_large_as_the_arguments_and_hold_any_text(rota_app: TestRota) -> None:
    @rota_app.task(unique=Unique(by=lambda text: text + "\0\ud800"))
    async def report(text: str) -> None: ...

    first = await report.enqueue("x" * 1_000_000)

    assert (await report.enqueue("x" * 1_000_000)).id == first.id
    assert (await report.enqueue("x" * 999_999)).id != first.id


def test_a_key_whose_function_fails_names_the_task_and_the_argument() -> None:
    task = Rota("dbname=nowhere").task(name="report", unique=Unique(by=lambda order: order["id"]))(lambda order: None)

    with pytest.raises(
        InvalidArguments,
        match=r"Task 'report' was not enqueued: its unique key, a function of order, failed with KeyError: 'id'\.",
    ) as raised:
        task.bind({"name": "x"})

    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("by", [lambda n: None, "n"], ids=["function", "parameter"])
def test_a_key_of_none_is_refused(by: Any) -> None:
    task = Rota("dbname=nowhere").task(name="report", unique=Unique(by=by))(lambda n=None: None)

    with pytest.raises(InvalidArguments, match=r"Task 'report' was not enqueued: its unique key, .*n, is None"):
        task.bind()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_caller_at_a_stricter_isolation_never_adds_a_twin(
    rota_app: TestRota, rota_database: str, isolation: str
) -> None:
    """Its snapshot cannot show the other's job, so PostgreSQL refuses, as it does there for every conflict."""

    @rota_app.task(unique=True)
    async def report() -> None: ...

    async with await psycopg.AsyncConnection.connect(rota_database) as mine:
        await mine.set_isolation_level(
            psycopg.IsolationLevel.REPEATABLE_READ
            if isolation == "repeatable read"
            else psycopg.IsolationLevel.SERIALIZABLE
        )
        await mine.execute("select 1 from rota.jobs")
        await report.enqueue()

        with pytest.raises(psycopg.errors.SerializationFailure):
            await report.on(mine).enqueue()
        await mine.rollback()
        again = await report.on(mine).enqueue()
        await mine.commit()

    assert again.existing
    assert counted(rota_app) == 1


async def test_a_transaction_that_waits_for_a_key_learns_what_became_of_it(
    rota_app: TestRota, rota_database: str
) -> None:
    @rota_app.task(unique=True)
    async def report() -> None: ...

    await report.enqueue()
    await rota_app.drain()  # a key that was in use before is locked like a new one
    async with (
        await psycopg.AsyncConnection.connect(rota_database) as one,
        await psycopg.AsyncConnection.connect(rota_database) as two,
    ):
        first = await report.on(one).enqueue()
        waiting = asyncio.create_task(report.on(two).enqueue())
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        await one.commit()

        assert (await waiting).id == first.id

        await two.commit()
        third = await report.using(unique="other").on(one).enqueue()
        waiting = asyncio.create_task(report.using(unique="other").on(two).enqueue())
        await asyncio.wait([waiting], timeout=0.1)
        await one.rollback()
        assert (await waiting).id != third.id
        assert not (await waiting).existing
        await two.commit()
    assert len(rota_app.enqueued()) == 2
