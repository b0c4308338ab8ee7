"""Debounce and throttle: calls that come within a period become one job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.interleave import at_once
from tests.jobs.statements import CHANNEL, ask
from tests.jobs.test_unique import forget

from rota import ConfigurationError, Debounce, Discard, Job, Retry, Rota, Throttle, Unique
from rota.jobs.cancel import cancel_jobs
from rota.jobs.enqueue import put_jobs
from rota.testing import TcpProxy, TestRota, until_sync

pytestmark = pytest.mark.usefixtures("history_aside")

KINDS = [Debounce("10m", by="key"), Throttle("10m", by="key")]
KEEPS: list[Any] = ["first", "last"]
EVERY_WAY = [replace(kind, keep=kept) for kind in KINDS for kept in KEEPS]


def named(way: Any) -> str:
    return f"{type(way).__name__}-{way.keep}"


every_way = pytest.mark.parametrize("way", EVERY_WAY, ids=named)


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def jobs_of(app: Rota) -> list[Job[Any]]:
    return app.jobs.list_sync(limit=10_000)[::-1]


def texts(jobs: list[Job[Any]]) -> list[str]:
    return [job.args["text"] for job in jobs]


def minutes_after(job: Job[Any], first: Job[Any]) -> float:
    """How long after the first call this job is due, to the minute: seconds of real time go by between the calls."""
    return round((job.due_at - first.created_at) / timedelta(minutes=1))


# Debounce


@pytest.mark.parametrize(("kept", "runs"), [("last", "c"), ("first", "a")])
async def test_calls_within_the_period_are_one_job_that_runs_a_period_after_the_last(
    rota_app: TestRota, kept: Any, runs: str
) -> None:
    @rota_app.task(unique=Debounce("10m", by="key", keep=kept))
    async def index(key: int, text: str) -> str:
        return text

    first = await index.enqueue(1, "a")
    rota_app.advance("6m")
    await index.enqueue(1, "b")
    rota_app.advance("6m")
    assert await rota_app.drain() == 0
    last = await index.enqueue(1, "c")
    other = await index.enqueue(2, "d")
    rota_app.advance("9m")
    assert await rota_app.drain() == 0
    rota_app.advance("2m")
    await rota_app.drain()

    assert (first.existing, last.existing, other.existing) == (False, True, False)
    assert (last.id, minutes_after(first, first), minutes_after(last, first)) == (first.id, 10, 22)
    assert [job.result for job in jobs_of(rota_app)] == [runs, "d"]


@pytest.mark.parametrize("kept", KEEPS)
async def test_what_a_call_returns_is_what_is_stored(rota_app: TestRota, kept: Any) -> None:
    @rota_app.task(unique=Debounce("10m", by="key", keep=kept), redact=["text"])
    async def index(key: int, text: str) -> None: ...

    await index.using(queue="a", priority=1, tags=["a"]).enqueue(1, "a")
    rota_app.advance("3m")
    second = await index.using(queue="b", priority=2, tags=["b"]).enqueue(1, "b")

    (stored,) = jobs_of(rota_app)
    assert second == replace(stored, existing=True)
    assert (stored.queue, stored.priority, stored.tags) == (("a", 1, ("a",)) if kept == "first" else ("b", 2, ("b",)))


async def test_calls_put_a_job_off_no_further_than_the_longest_after_the_first(rota_app: TestRota) -> None:
    @rota_app.task(unique=Debounce("10m", by="key", longest="25m"))
    async def index(key: int, text: str) -> str:
        return text

    first = await index.enqueue(1, "0")
    for n in range(1, 5):
        rota_app.advance("6m")
        last = await index.enqueue(1, str(n))
    assert minutes_after(last, first) == 25
    rota_app.advance("1m")
    assert await rota_app.drain() == 1
    after = await index.enqueue(1, "5")

    assert not after.existing
    assert minutes_after(after, after) == 10


async def test_a_call_while_the_job_runs_begins_a_new_one(rota_app: TestRota) -> None:
    called: list[Job[Any]] = []

    @rota_app.task(unique=Debounce("10m", by="key"))
    async def index(key: int, text: str) -> str:
        if text == "a":
            called.append(await index.enqueue(1, "b"))
            called.append(await index.enqueue(1, "c"))
        return text

    first = await index.enqueue(1, "a")
    rota_app.advance("10m")
    await rota_app.drain()
    rota_app.advance("10m")
    await rota_app.drain()

    assert [job.existing for job in called] == [False, True]
    assert called[0].id == called[1].id != first.id
    assert [job.result for job in jobs_of(rota_app)] == ["a", "c"]


@pytest.mark.parametrize("kept", KEEPS)
async def test_a_call_takes_the_place_of_a_job_that_waits_for_another_attempt(rota_app: TestRota, kept: Any) -> None:
    @rota_app.task(
        unique=Debounce("10m", by="key", keep=kept, longest="15m"), retry=Retry(attempts=2, base="1h", jitter=False)
    )
    async def index(key: int, text: str) -> None:
        raise ValueError(text)

    first = await index.enqueue(1, "a")
    rota_app.advance("10m")
    await rota_app.drain()
    rota_app.advance("10m")

    second = await index.enqueue(1, "b")
    rota_app.advance("8m")
    third = await index.enqueue(1, "c")

    assert first.id == second.id == third.id
    assert (second.attempt, second.args["text"]) == (0, "b")
    assert round((third.due_at - second.due_at) / timedelta(minutes=1)) == 5  # the longest counts from the second call
    rota_app.advance("10m")
    await rota_app.drain()
    assert [error.message for error in (await first.refresh()).errors] == ["b" if kept == "first" else "c"]


async def test_the_longest_of_a_letter_that_is_retried_counts_from_then(rota_app: TestRota) -> None:
    @rota_app.task(unique=Debounce("10m", by="key", longest="15m"), retry=None)
    async def index(key: int, text: str) -> None:
        raise ValueError(text)

    dead = await index.enqueue(1, "a")
    rota_app.advance("10m")
    await rota_app.drain()
    rota_app.advance("1h")
    again = await dead.retry()

    call = await index.enqueue(1, "b")

    assert call.id == again.id
    assert minutes_after(call, again) == 10


def test_a_call_that_waited_for_the_key_does_not_bring_a_job_forward(
    rota_app: TestRota, db: psycopg.Connection[Any], rota_database: str
) -> None:
    index = rota_app.task(name="index", unique=Debounce("10m", by="key"))(lambda key, text: None)
    first = index.enqueue_sync(1, "a")
    with psycopg.connect(rota_database) as other:
        # its clock stood still when it began to wait; the one in the way is later
        lock = "select from rota.uniques for update"
        waited, pushed = at_once(
            db, lock, [lambda: index.enqueue_sync(1, "b")] * 2, then=lambda: _put_off(other, first, 60)
        )

    assert {waited.result().id, pushed.result().id} == {first.id}
    assert minutes_after(jobs_of(rota_app)[0], first) == 60


def _put_off(db: psycopg.Connection[Any], job: Job[Any], minutes: int) -> None:
    db.execute("update rota.jobs set due_at = %s", [job.created_at + timedelta(minutes=minutes)])
    db.commit()


CLAIM = "update rota.jobs set state = 'running', token = 1, member = gen_random_uuid(), attempt = 1 where id = %s"
FAIL = "update rota.jobs set state = 'queued', token = null, member = null where id = %s"
HAND_BACK = "update rota.jobs set state = 'queued', token = null, member = null, attempt = 0 where id = %s"


@pytest.mark.parametrize(
    ("way", "meanwhile", "left"),
    [
        (Debounce("10m", by="key"), [CLAIM], ["c", "b"]),
        (Debounce("10m", by="key", keep="first"), [CLAIM, FAIL], ["a", "c"]),
        (Throttle("10m", by="key", keep="last"), [CLAIM, FAIL], ["a", "b", "c"]),
    ],
    ids=["takes the next", "takes its place", "comes after it"],
)
def test_a_call_whose_job_begins_while_it_waits_for_its_row_looks_again(
    rota_app: TestRota,
    db: psycopg.Connection[Any],
    direct_database: str,
    way: Any,
    meanwhile: list[str],
    left: list[str],
) -> None:
    """Two of a key wait when one failed while another was put. The call is held up at each of them in turn."""
    index = rota_app.task(name="index", unique=way)(lambda key, text: None)
    failed = index.enqueue_sync(1, "a")
    db.execute(CLAIM, [failed.id])
    second = index.enqueue_sync(1, "b")
    db.execute(FAIL, [failed.id])
    db.execute(CLAIM, [second.id])
    with (
        psycopg.connect(direct_database) as one,
        psycopg.connect(direct_database) as two,
        ThreadPoolExecutor(1) as thread,
    ):
        one.execute("select from rota.jobs where id = %s for update", [failed.id])
        call = thread.submit(index.enqueue_sync, 1, "c")
        until_sync(lambda: blocks(db, one), what="the call waits for the one that failed")
        db.execute(HAND_BACK, [second.id])
        for step in meanwhile:
            two.execute(step, [second.id])
        one.commit()
        until_sync(lambda: blocks(db, two), what="the call waits for the one that begins")
        two.commit()

    jobs = jobs_of(rota_app)
    assert texts(jobs) == left
    assert (call.result().id, call.result().attempt) == (jobs[left.index("c")].id, 0)


def blocks(db: psycopg.Connection[Any], session: psycopg.Connection[Any]) -> bool:
    """Whether anyone waits for what this session has locked."""
    asked = "select from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
    return db.execute(asked, [session.info.backend_pid]).rowcount > 0


# Throttle


async def test_the_first_call_runs_at_once_and_others_within_the_period_return_it(rota_app: TestRota) -> None:
    @rota_app.task(unique=Throttle("10m", by="key"))
    async def notify(key: int, text: str) -> str:
        return text

    first = await notify.enqueue(1, "a")
    joined = await notify.enqueue(1, "b")
    await rota_app.drain()
    rota_app.advance("8m")
    again = await notify.enqueue(1, "c")
    other = await notify.enqueue(2, "d")
    rota_app.advance("3m")
    after = await notify.enqueue(1, "e")
    await rota_app.drain()

    assert [job.existing for job in (first, joined, again, other, after)] == [False, True, True, False, False]
    assert first.id == joined.id == again.id
    assert (again.state, again.result) == ("succeeded", "a")
    assert [job.result for job in jobs_of(rota_app)] == ["a", "d", "e"]


async def test_if_the_last_is_kept_one_more_job_is_due_when_the_period_ends(rota_app: TestRota) -> None:
    @rota_app.task(unique=Throttle("10m", by="key", keep="last"))
    async def notify(key: int, text: str) -> str:
        return text

    first = await notify.enqueue(1, "a")
    await rota_app.drain()
    rota_app.advance("2m")
    second = await notify.enqueue(1, "b")
    rota_app.advance("5m")
    third = await notify.enqueue(1, "c")
    assert await rota_app.drain() == 0
    rota_app.advance("4m")
    await rota_app.drain()
    fourth = await notify.enqueue(1, "d")

    assert [job.existing for job in (second, third, fourth)] == [False, True, False]
    assert second.id == third.id
    assert second.due_at == third.due_at
    assert [minutes_after(job, first) for job in (third, fourth)] == [10, 21]
    assert [job.result for job in jobs_of(rota_app)] == ["a", "c", None]


@pytest.mark.parametrize("kept", KEEPS)
async def test_calls_before_the_first_has_begun_are_one_with_it_however_late_it_is(
    rota_app: TestRota, kept: Any
) -> None:
    @rota_app.task(unique=Throttle("10m", by="key", keep=kept))
    async def notify(key: int, text: str) -> str:
        return text

    first = await notify.enqueue(1, "a")
    rota_app.advance("1h")
    second = await notify.enqueue(1, "b")

    assert (second.id, second.due_at, second.existing) == (first.id, first.due_at, True)
    assert texts(jobs_of(rota_app)) == ["a" if kept == "first" else "b"]


@pytest.mark.by_default("first-True", "last-False")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kept", KEEPS)
async def test_the_period_of_a_job_that_began_late_counts_from_then(rota_app: TestRota, kept: Any, fails: bool) -> None:
    @rota_app.task(unique=Throttle("10m", by="key", keep=kept), retry=None)
    async def notify(key: int, text: str) -> float:
        return 1 / (not fails)

    first = await notify.enqueue(1, "a")
    rota_app.advance("30m")
    await rota_app.drain()
    rota_app.advance("5m")
    second = await notify.enqueue(1, "b")

    assert second.existing == (kept == "first")
    assert minutes_after(second, first) == (0 if kept == "first" else 40)
    rota_app.advance("6m")
    assert (await notify.enqueue(1, "c")).id == second.id + (kept == "first")


async def test_a_job_that_waits_for_another_attempt_has_begun(rota_app: TestRota) -> None:
    @rota_app.task(unique=Throttle("10m", by="key", keep="last"), retry=Retry(attempts=5, base="1h", jitter=False))
    async def notify(key: int, text: str) -> None:
        raise ValueError

    first = await notify.enqueue(1, "a")
    await rota_app.drain()

    second = await notify.enqueue(1, "b")
    rota_app.advance("11m")
    await rota_app.drain()
    third = await notify.enqueue(1, "c")

    assert len({first.id, second.id, third.id}) == 3
    assert [minutes_after(job, first) for job in (second, third)] == [10, 21]
    assert texts(jobs_of(rota_app)) == ["a", "b", "c"]


@pytest.mark.parametrize("kept", KEEPS)
async def test_a_job_that_is_cancelled_before_it_began_leaves_its_turn_to_the_next(
    rota_app: TestRota, kept: Any
) -> None:
    @rota_app.task(unique=Throttle("10m", by="key", keep=kept))
    async def notify(key: int, text: str) -> None: ...

    await (await notify.enqueue(1, "a")).cancel()
    first = await notify.enqueue(1, "b")
    await rota_app.drain()
    await (await notify.using(unique=Throttle("10m", by="key", keep="last")).enqueue(1, "c")).cancel()
    second = await notify.enqueue(1, "d")

    assert (first.existing, second.existing) == (False, False)
    assert [minutes_after(job, first) for job in (first, second)] == [0, 10]


async def test_a_job_that_discards_itself_has_begun(rota_app: TestRota) -> None:
    @rota_app.task(unique=Throttle("10m", by="key"))
    async def notify(key: int) -> None:
        raise Discard("nothing to do")

    first = await notify.enqueue(1)
    await rota_app.drain()

    again = await notify.enqueue(1)

    assert (again.id, again.state, again.existing) == (first.id, "cancelled", True)


async def test_a_throttle_is_longer_than_the_history(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task(unique=Throttle("60d", by="key"))
    async def notify(key: int, text: str) -> None: ...

    first = await notify.enqueue(1, "a")
    await rota_app.drain()
    rota_app.advance("40d")
    forget(db)

    again = await notify.enqueue(1, "b")
    last = await notify.using(unique=Throttle("60d", by="key", keep="last")).enqueue(1, "c")

    assert (again.id, again.state, again.existing) == (first.id, "succeeded", True)
    assert not last.existing
    # when it began is not known any more
    assert last.due_at == first.due_at + timedelta(days=60)


# Both


@every_way
async def test_several_of_one_key_in_one_call_are_one_job(rota_app: TestRota, way: Any) -> None:
    @rota_app.task(unique=way)
    async def index(key: int, text: str) -> str:
        return text

    @rota_app.task
    async def plain(text: str) -> None: ...

    jobs = await rota_app.enqueue_many(
        [index.bind(1, "a"), plain.bind("p"), index.bind(2, "b"), index.bind(1, "c"), index.bind(1, "d")]
    )

    assert [job.existing for job in jobs] == [False, False, False, True, True]
    assert jobs[0].id == jobs[3].id == jobs[4].id
    assert texts(jobs_of(rota_app)) == ["a" if way.keep == "first" else "d", "p", "b"]
    # a plain job beside them is due when it says so itself
    assert jobs[1].due_at == jobs[1].created_at


@pytest.mark.by_default("Debounce-first", "Throttle-last")
@every_way
async def test_a_repeated_call_adds_nothing_and_changes_nothing_whatever_became_of_its_job(
    rota_app: TestRota, way: Any
) -> None:
    @rota_app.task(unique=way)
    async def index(key: int, text: str) -> str:
        return text

    await index.enqueue(1, "a")
    call, new = uuid4(), [index.bind(1, "b"), index.bind(2, "c"), index.bind(2, "d")]
    first = await rota_app.database.run(put_jobs(new, rota_app.jobs, call=call))
    rota_app.advance("1m")
    waiting = await rota_app.database.run(put_jobs(new, rota_app.jobs, call=call))
    rota_app.advance("20m")
    await rota_app.drain()

    again = await rota_app.database.run(put_jobs(new, rota_app.jobs, call=call))

    assert [job.id for job in first] == [job.id for job in waiting] == [job.id for job in again]
    assert [job.due_at for job in first] == [job.due_at for job in waiting]
    assert [job.state for job in again] == ["succeeded"] * 3
    assert len(jobs_of(rota_app)) == 2


@pytest.mark.by_default("Debounce-last", "Throttle-first")
@every_way
async def test_a_call_whose_reply_was_lost_is_repeated_and_adds_one_job(
    rota_app: TestRota, rota_database: str, way: Any
) -> None:
    with TcpProxy(rota_database) as proxy:
        through = Rota(proxy.dsn(rota_database))
        index = through.task(name="index", unique=way)(lambda key, text: None)
        await index.enqueue(0, "")
        proxy.cut_after(b"rota:put_jobs ")

        job = await index.enqueue(1, "a")

        assert (proxy.cuts, job.existing) == (1, False)
        assert len(jobs_of(rota_app)) == 2
        await through.close()


@pytest.mark.by_default("Debounce-last", "Throttle-first")
@every_way
def test_many_at_once_are_one_job_per_key_and_none_is_lost(rota_app: TestRota, rota_database: str, way: Any) -> None:
    apps = [Rota(rota_database) for _ in range(6)]
    for app in apps:
        app.task(name="index", unique=way)(lambda key, text: None)

    def put(place: int) -> list[int]:
        index = apps[place].tasks["index"]
        many = apps[place].enqueue_many_sync([index.bind(key, f"{place} many") for key in range(9, -1, -1)])
        return [index.enqueue_sync(key, f"{place} one").id for key in range(10)] + [job.id for job in many[::-1]]

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(put, range(6)))

    stored = jobs_of(rota_app)
    assert {tuple(ids[:10]) for ids in found} == {tuple(ids[10:]) for ids in found}
    assert len({tuple(ids) for ids in found}) == 1
    assert len(stored) == 10
    # each put its single calls after its bulk
    assert all(text.endswith("one" if way.keep == "last" else "many") for text in texts(stored))
    for app in apps:
        app.close_sync()


@pytest.mark.by_default(
    "commit-Debounce-first", "commit-Throttle-last", "rollback-Debounce-last", "rollback-Throttle-first"
)
@every_way
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_transaction_that_waits_for_a_key_learns_what_became_of_it(
    rota_app: TestRota, rota_database: str, way: Any, ends: str
) -> None:
    @rota_app.task(unique=way)
    async def index(key: int, text: str) -> None: ...

    async with (
        await psycopg.AsyncConnection.connect(rota_database) as one,
        await psycopg.AsyncConnection.connect(rota_database) as two,
    ):
        await (await index.enqueue(1, "before")).cancel()  # a key that was in use is locked like a new one
        first = await index.on(one).enqueue(1, "a")
        waiting = asyncio.create_task(index.on(two).enqueue(1, "b"))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        await (one.commit() if ends == "commit" else one.rollback())
        second = await waiting
        await two.commit()

    assert second.existing == (ends == "commit") == (second.id == first.id)
    assert texts(rota_app.enqueued()) == ["a" if (way.keep, ends) == ("first", "commit") else "b"]


@pytest.mark.parametrize("way", [way for way in EVERY_WAY if way != KINDS[1]], ids=named)
def test_calls_whose_job_is_cancelled_under_them_are_one_job(
    rota_app: TestRota, db: psycopg.Connection[Any], way: Any
) -> None:
    index = rota_app.task(name="index", unique=way)(lambda key, text: None)
    first = index.enqueue_sync(1, "a")

    in_the_way = f"select from rota.jobs where id = {first.id} for update"
    calls: list[Any] = [lambda: index.enqueue_sync(1, "b"), lambda: index.enqueue_sync(1, "c")]
    futures = at_once(db, in_the_way, calls, then=lambda: ask(db, cancel_jobs([first.id], None, CHANNEL)))

    assert [future.result().existing for future in futures] == [False, True]
    assert texts(rota_app.enqueued()) == ["b" if way.keep == "first" else "c"]


@pytest.mark.by_default("Debounce-first", "Throttle-last")
@every_way
async def test_a_caller_at_a_stricter_isolation_never_adds_a_twin(
    rota_app: TestRota, rota_database: str, way: Any
) -> None:
    @rota_app.task(unique=way)
    async def index(key: int, text: str) -> None: ...

    async with await psycopg.AsyncConnection.connect(rota_database) as mine:
        await mine.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await mine.execute("select 1 from rota.jobs")
        first = await index.enqueue(1, "a")

        with pytest.raises(psycopg.errors.SerializationFailure):
            await index.on(mine).enqueue(1, "b")
        await mine.rollback()
        again = await index.on(mine).enqueue(1, "b")
        await mine.commit()

    assert again.id == first.id
    assert len(jobs_of(rota_app)) == 1


@every_way
def test_inline_every_call_runs_at_once(way: Any) -> None:
    app = Rota("dbname=nowhere")
    index = app.task(name="index", unique=way)(lambda key, text: text)

    with app.inline():
        jobs = [index.enqueue_sync(1, text) for text in "ab"]

    assert [(job.state, job.result) for job in jobs] == [("succeeded", "a"), ("succeeded", "b")]


@pytest.mark.by_default("Debounce-last", "Throttle-first")
@every_way
async def test_given_for_one_job_it_counts_for_that_one(rota_app: TestRota, way: Any) -> None:
    @rota_app.task(unique="all")
    async def index(key: int, text: str) -> None: ...

    first = await index.using(unique=way).enqueue(1, "a")
    plain = await index.using(unique=None, delay="1h").enqueue(1, "b")

    assert minutes_after(first, first) == (10 if isinstance(way, Debounce) else 0)
    assert not plain.existing


@pytest.mark.parametrize("kind", [Debounce, Throttle])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"period": 0}, "period is 0"),
        ({"period": "-5m"}, r"\(period=...\) cannot be '-5m'"),
        ({"period": -5}, "period is -5"),
        ({"period": "101000d"}, "period is '101000d'"),
        ({"period": None}, r"\(period=...\) cannot be None"),
        ({"by": 7}, "by is 7"),
        ({"by": ""}, "by is ''"),
        ({"keep": "both"}, "keep is 'both'"),
        ({"keep": None}, "keep is None"),
    ],
)
def test_what_cannot_work_is_refused(kind: Any, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        kind(**{"period": "10m", **wrong})


@pytest.mark.parametrize(("longest", "says"), [("9m", "longest is '9m'"), (1e10, "longest is"), ("x", "longest=")])
def test_a_longest_that_cannot_work_is_refused(longest: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Debounce("10m", longest=longest)
    assert Debounce("10m", longest="10m").longest == "10m"


@pytest.mark.parametrize("kind", [Debounce, Throttle])
def test_the_last_of_calls_with_the_same_arguments_is_refused_at_declaration(kind: Any) -> None:
    app = Rota("dbname=nowhere")

    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\(by=None\) cannot keep the last.*by='n'"):
        app.task(unique=kind("10m", keep="last"))(lambda n: None)
    index = app.task(name="index")(lambda n: None)
    with pytest.raises(ConfigurationError, match="cannot keep the last"):
        index.using(unique=kind("10m", keep="last"))

    same = app.task(name="same", unique=kind("10m", keep="first"))(lambda n: None)
    bare = app.task(name="bare", unique=kind("10m", keep="last"))(lambda: None)
    every = app.task(name="every", unique=kind("10m", by="all", keep="last"))(lambda n: None)
    keys = [new.unique.key for new in (same.bind(1), bare.bind(), every.bind(1)) if new.unique is not None]
    assert keys == ['{"n": 1}', "{}", "all"]


@pytest.mark.parametrize("kind", [Debounce, Throttle])
def test_a_function_of_what_the_task_does_not_have_is_refused_at_declaration(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\(by=...\) asks for order, and the task has only n"):
        Rota("dbname=nowhere").task(unique=kind("10m", by=lambda order: order))(lambda n: None)


@pytest.mark.parametrize("kind", [Debounce, Throttle])
def test_a_job_of_which_a_period_says_when_it_is_due_takes_no_other_time(kind: Any) -> None:
    index = Rota("dbname=nowhere").task(name="index")(lambda: None)
    period = kind("10m")

    with pytest.raises(ConfigurationError, match=f"'index' cannot be enqueued .*: its {kind.__name__} says when"):
        index.using(unique=period).using(delay=5)
    with pytest.raises(ConfigurationError, match=f"its {kind.__name__} says when"):
        index.using(delay=5).using(unique=period)
    assert index.using(unique=period).using(unique=None, delay=5).bind().delay == 5


def test_two_kinds_at_once_are_refused() -> None:
    both: Any = [Unique(), Debounce("10m")]
    with pytest.raises(ConfigurationError, match="it is one rota.Unique, rota.Debounce or rota.Throttle"):
        Rota("dbname=nowhere").task(unique=both)
