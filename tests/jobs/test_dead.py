"""Trying jobs again: what waits becomes due, what is dead or settled becomes a new job, and a letter is resolved once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from tests.interleave import at_once

from rota import (
    ConfigurationError,
    Discard,
    InvalidArguments,
    JobFailed,
    JobNotFound,
    NotPossible,
    PayloadTooLarge,
    Retry,
    Rota,
    Unique,
    current_job,
)
from rota.jobs import resolve as resolve_room
from rota.jobs.job import Job
from rota.postgres.notify import wake_channel
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def put_letters(db: psycopg.Connection[Any], count: int = 1, **columns: Any) -> list[int]:
    """Letters as they come to lie there, without the deaths."""
    row = {
        "task": "t",
        "queue": "default",
        "args": "{}",
        "attempt": 1,
        "losses": 0,
        "priority": 0,
        "version": 1,
        "reason": "failed",
        **columns,
    }
    names = ", ".join(row)
    values = ", ".join(f"%({name})s" for name in row)
    made = db.execute(
        f"insert into rota.dead (id, created_at, due_at, {names}) "
        f"select nextval('rota.jobs_id_seq'), rota.now(), rota.now(), {values} from generate_series(1, {count}) "
        "returning id",
        row,
    ).fetchall()
    return [id for (id,) in made]


def audit(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("select actor, action, details from rota.audit order by id").fetchall()


@pytest.fixture
async def dead(rota_app: TestRota) -> Job[Any]:
    """A job of the task `halve` that died of its argument."""

    @rota_app.task(name="halve", queue="mail", priority=3, retry=Retry(2, base=0, jitter=False))
    async def halve(n: int, by: int = 2) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n // by

    job = await halve.using(tags=["user:1"], key="k").enqueue(7)
    await rota_app.drain()
    return await job.refresh()


async def test_a_job_that_waits_for_a_later_time_becomes_due(rota_app: TestRota) -> None:
    @rota_app.task
    async def do() -> str:
        return "done"

    job = await do.using(delay="1h").enqueue()

    assert (await job.retry()).id == job.id
    await rota_app.drain()
    assert await job.wait() == "done"


async def test_a_job_that_waits_for_its_next_attempt_is_tried_now_and_goes_on_counting(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(3, base="1h", jitter=False))
    async def flaky() -> int:
        if current_job().attempt == 1:
            raise ValueError("not yet")
        return current_job().attempt

    job = await flaky.enqueue()
    await rota_app.drain()
    again = await rota_app.jobs.retry(job.id)
    await rota_app.drain()

    assert (again.id, again.state, again.attempt) == (job.id, "queued", 1)
    assert await job.wait() == 2


@pytest.mark.direct("it listens")
async def test_workers_of_the_queue_are_woken(rota_app: TestRota, dead: Job[Any], db: psycopg.Connection[Any]) -> None:
    waiting = await rota_app.tasks["halve"].using(queue="later", delay="1h").enqueue(8)
    settled = await rota_app.tasks["halve"].using(queue="again").enqueue(8)
    await rota_app.drain(queues=["again"])
    db.execute(f"listen {wake_channel('rota')}")

    await waiting.retry()
    await dead.retry()
    await settled.retry()

    assert [heard.payload for heard in db.notifies(timeout=5, stop_after=3)] == ["later", "mail", "again"]


async def test_running_and_blocked_jobs_are_refused_with_what_to_do(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    refused: list[NotPossible] = []

    @rota_app.task(retry=None)
    async def retry_itself() -> None:
        with pytest.raises(NotPossible) as error:
            await rota_app.jobs.retry(current_job().id)
        refused.append(error.value)

    running = await retry_itself.enqueue()
    await rota_app.drain()
    db.execute("insert into rota.jobs (id, task, state) values (77, 't', 'blocked')")

    assert f"rota jobs discard {running.id}" in str(refused[0])
    with pytest.raises(NotPossible, match="blocked"):
        await rota_app.jobs.retry(77)
    with pytest.raises(JobNotFound):
        await rota_app.jobs.retry(999_999)
    assert audit(db) == []


async def test_a_dead_job_is_retried_as_a_new_one_and_both_know_it(
    rota_app: TestRota, dead: Job[Any], db: psycopg.Connection[Any]
) -> None:
    db.execute("update rota.dead set saved = '[1]', retention = 'long', redact = '{n}', version = 4")

    again = await dead.retry()

    assert again.id != dead.id
    assert (again.state, again.attempt, again.losses, again.origin) == ("queued", 0, 0, dead.id)
    assert db.execute(
        "select task, queue, priority, args, key, tags, saved, retention, redact, version from rota.jobs"
    ).fetchall() == [("halve", "mail", 3, {"n": 7}, "k", ["user:1"], [1], "long", ["n"], 4)]
    letter = await rota_app.dead.get(dead.id)
    assert (letter.resolution, letter.successor, letter.note) == ("retried", again.id, None)
    assert letter.resolved_at is not None
    assert (await rota_app.jobs.get(dead.id)).state == "dead"
    assert [job.id for job in await rota_app.jobs.list()] == [again.id]
    assert [entry[1:] for entry in audit(db)] == [("retry", {"job": dead.id, "successor": again.id, "edited": False})]


async def test_failures_are_counted_from_the_resolution_on(rota_app: TestRota, dead: Job[Any]) -> None:
    again = await dead.retry()
    await rota_app.drain()

    buried = await rota_app.dead.get(again.id)
    assert (buried.attempt, buried.origin) == (2, dead.id)
    assert [error.attempt for error in (await again.refresh()).errors] == [1, 2]
    with pytest.raises(JobFailed, match="dead after 2 attempt"):
        await again.wait()


async def test_a_letter_that_was_retried_leads_to_its_successor(rota_app: TestRota, dead: Job[Any]) -> None:
    first = await rota_app.jobs.retry(dead.id)

    assert (await rota_app.jobs.retry(dead.id)).id == first.id
    await rota_app.drain()
    assert (await rota_app.jobs.retry(dead.id)).state == "dead"
    with pytest.raises(NotPossible, match=f"retried as job {first.id} by .*rota jobs retry {first.id}"):
        await rota_app.dead.retry(dead.id)
    with pytest.raises(NotPossible, match="retried as job"):
        await rota_app.dead.acknowledge(dead.id)


async def test_two_retries_at_once_make_one_job(
    rota_app: TestRota, dead: Job[Any], db: psycopg.Connection[Any]
) -> None:
    lock = f"select from rota.dead where id = {dead.id} for update"
    calls: list[Callable[[], Any]] = [lambda: rota_app.jobs.retry_sync(dead.id).id] * 4
    futures = at_once(db, lock, calls)

    (live,) = await rota_app.jobs.list(state="queued")
    assert {future.result() for future in futures} == {live.id}


async def test_of_two_resolutions_at_once_one_is_refused(
    rota_app: TestRota, dead: Job[Any], db: psycopg.Connection[Any]
) -> None:
    lock = f"select from rota.dead where id = {dead.id} for update"
    futures = at_once(
        db, lock, [lambda: rota_app.dead.retry_sync(dead.id), lambda: rota_app.dead.acknowledge_sync(dead.id)]
    )

    refused = [error for error in (future.exception() for future in futures) if error is not None]
    assert [type(error) for error in refused] == [NotPossible]
    resolved = await rota_app.dead.get(dead.id)
    assert len(await rota_app.jobs.list(state="queued")) == (resolved.resolution == "retried")
    assert len(audit(db)) == 1


@pytest.mark.by_default("succeeded")
@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
async def test_the_call_of_a_settled_job_is_made_again(
    rota_app: TestRota, db: psycopg.Connection[Any], state: str
) -> None:
    @rota_app.task(queue="mail", priority=2)
    async def double(n: int) -> int:
        return 2 * n

    job = await double.using(tags=["a"], key="k").enqueue(4)
    if state == "cancelled":
        await job.cancel()
    await rota_app.drain()

    again = await job.retry()
    same = await job.retry()
    await rota_app.drain()
    later = await job.retry()

    assert (again.origin, again.queue, again.priority, again.tags, again.key) == (job.id, "mail", 2, ("a",), "k")
    assert same.id == again.id
    assert await again.wait() == 8
    assert later.id not in (job.id, again.id)
    assert (await job.refresh()).state == state


async def test_a_settled_job_retried_at_once_is_repeated_once(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task
    async def do() -> None: ...

    job = await do.enqueue()
    await rota_app.drain()
    lock = f"select from rota.history where id = {job.id} for update"
    futures = at_once(db, lock, [lambda: rota_app.jobs.retry_sync(job.id).id] * 4)

    (live,) = await rota_app.jobs.list(state="queued")
    assert {future.result() for future in futures} == {live.id}


@pytest.mark.by_default("succeeded", "cancelled by its worker")
@pytest.mark.parametrize("state", ["succeeded", "cancelled at once", "cancelled by its worker", "discarded when dead"])
async def test_a_settled_job_takes_its_unique_key_back_unless_a_live_one_has_it(
    rota_app: TestRota, db: psycopg.Connection[Any], state: str
) -> None:
    @rota_app.task(unique=Unique(by="n", within="1h", states=("queued", "running", "succeeded")), retry=None)
    async def once(n: int) -> None:
        if state == "discarded when dead":
            raise ValueError(n)
        if state == "cancelled by its worker":
            raise Discard("no")

    job = await once.using(key="k").enqueue(1)
    if state == "cancelled at once":
        await job.cancel()
    await rota_app.drain()
    if state == "discarded when dead":
        await rota_app.jobs.discard(job.id)
    rota_app.advance("2h")
    live = await once.enqueue(1)

    with pytest.raises(
        NotPossible, match=rf"job {live.id}, which is queued, has its unique key.*rota jobs cancel {live.id}"
    ):
        await job.retry()
    await live.cancel()
    db.execute("update rota.uniques set ended = 'cancelled'")  # as upkeep does when history forgets it
    again = await job.retry()
    assert (again.origin, again.existing) == (job.id, False)
    assert (await once.enqueue(1)).id == again.id
    assert (await job.retry()).id == again.id
    kept = db.execute("select job_id, keep_until - created_at = interval '1 hour', ended from rota.uniques")
    assert kept.fetchall() == [(again.id, True, None)]


@pytest.mark.parametrize("first", ["retry", "enqueue"])
def test_a_retry_of_a_settled_job_and_an_enqueue_of_its_key_at_once_leave_one_job(
    rota_app: TestRota, db: psycopg.Connection[Any], first: str
) -> None:
    once = rota_app.task(name="once", unique="key")(lambda: None)
    job = once.enqueue_sync()
    rota_app.drain_sync()
    calls: list[Callable[[], Any]] = [lambda: rota_app.jobs.retry_sync(job.id), once.enqueue_sync]
    at_once(db, "select from rota.uniques for update", calls if first == "retry" else calls[::-1])

    (live,) = rota_app.enqueued()
    assert live.origin == (job.id if first == "retry" else None)


@pytest.mark.by_default("dead-async", "history-sync")
@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("place", ["history", "dead"])
def test_retries_at_once_through_a_pool_at_a_stricter_isolation_make_one_job(
    rota_app: TestRota, db: psycopg.Connection[Any], direct_database: str, place: str, colour: str
) -> None:
    @rota_app.task(name="do", retry=None)
    def do() -> None:
        if place == "dead":
            raise ValueError

    job = do.enqueue_sync()
    rota_app.drain_sync()
    strict = {"options": "-c default_transaction_isolation=serializable"}

    def retry() -> int:
        with ConnectionPool(direct_database, kwargs=strict, min_size=1, open=True) as pool:
            return Rota(direct_database, pool=pool).jobs.retry_sync(job.id).id

    async def retry_async() -> int:
        async with AsyncConnectionPool(direct_database, kwargs=strict, min_size=1, open=False) as pool:
            return (await Rota(direct_database, pool=pool).jobs.retry(job.id)).id

    call = retry if colour == "sync" else lambda: asyncio.run(retry_async())
    futures = at_once(db, f"select from rota.{place} where id = {job.id} for update", [call] * 2)

    (live,) = rota_app.enqueued()
    assert {future.result() for future in futures} == {live.id}


async def test_a_unique_key_that_a_live_job_has_keeps_the_letter(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(unique=Unique(by="n", within="1h", states=("queued", "running", "succeeded")), retry=None)
    async def once(n: int) -> None:
        raise ValueError(n)

    dead = await once.enqueue(1)
    await rota_app.drain()
    live = await once.enqueue(1)

    with pytest.raises(NotPossible, match=f"job {live.id}, which is queued, has its unique key"):
        await rota_app.dead.retry(dead.id)
    with pytest.raises(NotPossible, match=f"rota jobs cancel {live.id}"):
        await dead.retry()
    assert await rota_app.dead.retry_many() == 0
    assert (await rota_app.dead.get(dead.id)).resolution is None

    await live.cancel()
    db.execute("update rota.uniques set ended = 'cancelled'")  # as upkeep does when history forgets it
    again = await dead.retry()
    assert (await once.enqueue(1)).id == again.id
    kept = db.execute("select job_id, keep_until - created_at = interval '1 hour', ended from rota.uniques")
    assert kept.fetchall() == [(again.id, True, None)]


@pytest.mark.by_default("enqueue-one", "retry-many")
@pytest.mark.parametrize("how", ["one", "many"])
@pytest.mark.parametrize("first", ["retry", "enqueue"])
def test_a_retry_and_an_enqueue_of_one_key_at_once_leave_one_job(
    rota_app: TestRota, db: psycopg.Connection[Any], how: str, first: str
) -> None:
    once = rota_app.task(name="once", unique="key")(lambda: None)
    (letter,) = put_letters(db, task="once")
    db.execute("update rota.dead set unique_key = rota.unique_digest('once', 'key')")
    db.execute("insert into rota.uniques (key, job_id) select unique_key, id from rota.dead")
    calls: list[Callable[[], Any]] = [
        (lambda: rota_app.dead.retry_sync(letter)) if how == "one" else rota_app.dead.retry_many_sync,
        once.enqueue_sync,
    ]
    at_once(db, "select from rota.uniques for update", calls if first == "retry" else calls[::-1])

    (live,) = rota_app.enqueued()
    assert live.origin == (letter if first == "retry" else None)


async def test_arguments_can_be_edited_and_the_checkpoint_is_dropped(
    rota_app: TestRota, dead: Job[Any], db: psycopg.Connection[Any]
) -> None:
    db.execute("update rota.dead set saved = '[1]'")

    again = await rota_app.dead.retry(dead.id, {"n": 8}, by="ana")
    await rota_app.drain()

    assert again.args == {"n": 8}
    assert await again.wait() == 4
    assert db.execute("select saved from rota.jobs").fetchall() == []
    assert (await rota_app.dead.get(dead.id)).resolved_by == "ana"
    assert audit(db) == [("ana", "retry", {"job": dead.id, "successor": again.id, "edited": True})]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"n": "eight"}, "n is 'eight'"),
        ({"m": 8}, "m is not a parameter"),
        ({"n": {1, 2}}, r"args\['n'\] is "),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_and_the_letter_stays(
    rota_app: TestRota, dead: Job[Any], args: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidArguments, match=f"Letter {dead.id} was not retried, and stays: .*{what}"):
        await rota_app.dead.retry(dead.id, args)

    assert (await rota_app.dead.get(dead.id)).resolution is None
    assert await rota_app.jobs.list(state="queued") == []


async def test_what_cannot_be_arguments_at_all_is_refused(rota_app: TestRota, dead: Job[Any]) -> None:
    with pytest.raises(ConfigurationError, match="a mapping"):
        await rota_app.dead.retry(dead.id, [8])  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        await rota_app.dead.retry(dead.id, {"n": "x" * 2_000_000})
    with pytest.raises(JobNotFound, match="no dead letter 999"):
        await rota_app.dead.retry(999)


async def test_edited_arguments_of_an_older_version_are_upgraded_to_be_checked(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    @rota_app.task(name="greet", version=2)
    async def greet(name: str) -> str:
        return f"hello {name}"

    @greet.upgrade
    def upgrade(args: dict[str, Any], version: int) -> dict[str, Any]:
        return {"name": args.pop("user")}

    old, newer = put_letters(db, 2, task="greet", args=json.dumps({"user": 1}))
    db.execute("update rota.dead set version = 3 where id = %s", [newer])

    with pytest.raises(InvalidArguments, match="name is 2"):
        await rota_app.dead.retry(old, {"user": 2})
    again = await rota_app.dead.retry(old, {"user": "ana"})
    await rota_app.drain()

    assert await again.wait() == "hello ana"
    assert (await rota_app.dead.retry(newer, {"anything": 1})).args == {"user": 1, "anything": 1}


class Backwards:
    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


async def test_coded_arguments_are_decoded_edited_and_coded_again(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    app = TestRota(rota_app.database.dsn.conninfo)
    app.codec = Backwards()
    app._use(app.settings)

    @app.task(name="add", retry=None)
    async def add(a: int, b: int) -> int:
        if a < 0:
            raise ValueError("negative")
        return a + b

    dead = await add.enqueue(-1, 5)
    await app.drain()
    again = await app.dead.retry(dead.id, {"a": 1})
    await app.drain()

    assert await again.wait() == 6
    assert db.execute("select count(*) from rota.history where args ? 'rota:coded'").fetchone() == (1,)
    with pytest.raises(InvalidArguments, match="codec"):
        await rota_app.dead.retry((await _buried(app, add)).id, {"a": 1})


async def _buried(app: TestRota, task: Any) -> Job[Any]:
    job: Job[Any] = await task.enqueue(-1, 5)
    await app.drain()
    return job


async def test_a_letter_tells_what_happened_and_hides_what_is_secret(rota_app: TestRota) -> None:
    @rota_app.task(retry=None, redact=["password"])
    def log_in(user: str, password: str) -> None:
        raise PermissionError(f"{user} may not")

    job = await log_in.using(tags=["user:1"]).enqueue("ana", "hunter2")
    await rota_app.drain()

    (letter,) = await rota_app.dead.list()
    assert letter == rota_app.dead.get_sync(job.id)
    assert (letter.id, letter.task, letter.queue, letter.attempt, letter.losses) == (
        job.id,
        log_in.name,
        "default",
        1,
        0,
    )
    assert (letter.reason, letter.error_type, letter.error_message) == ("failed", "PermissionError", "ana may not")
    assert letter.error_trace is not None
    assert "raise PermissionError" in letter.error_trace
    assert letter.args == {"user": "ana", "password": "•••"}
    assert (letter.tags, letter.version, letter.key, letter.origin, letter.resolved_at) == (
        ("user:1",),
        1,
        None,
        None,
        None,
    )
    assert "hunter2" not in repr(letter)


async def test_an_acknowledged_letter_keeps_its_note_and_is_out_of_the_way(
    rota_app: TestRota, dead: Job[Any], db: psycopg.Connection[Any]
) -> None:
    letter = await rota_app.dead.acknowledge(dead.id, "odd by nature", by="ana")

    assert (letter.resolution, letter.resolved_by, letter.note, letter.successor) == (
        "acknowledged",
        "ana",
        "odd by nature",
        None,
    )
    assert await rota_app.dead.list() == []
    assert [each.id for each in await rota_app.dead.list(resolved=True)] == [dead.id]
    assert (await rota_app.jobs.get(dead.id)).state == "dead"
    assert audit(db) == [("ana", "acknowledge", {"job": dead.id})]
    with pytest.raises(NotPossible, match="acknowledged by ana at .* UTC \\(odd by nature\\)"):
        await rota_app.dead.retry(dead.id)
    with pytest.raises(NotPossible, match="acknowledged by ana"):
        await rota_app.jobs.retry(dead.id)
    with pytest.raises(JobNotFound):
        await rota_app.dead.acknowledge(999)


def test_letters_are_found_by_all_filters(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    (plain,) = put_letters(db, error_type="ValueError", error_message="no such 100% user")
    (mail,) = put_letters(db, task="send", queue="mail", tags=["user:1"])
    (lost,) = put_letters(db, reason="lost", error_message="the process that ran it was lost")
    everything = [lost, mail, plain]

    def found(**filters: Any) -> list[int]:
        return [letter.id for letter in rota_app.dead.list_sync(**filters)]

    assert found() == everything
    assert found(task="send") == found(queue="mail") == found(tag="user:1") == [mail]
    assert found(reason="lost") == [lost]
    assert found(error="valueerror: NO such 100%") == [plain]
    assert found(error="100_") == []
    assert found(task="send", reason="lost") == []
    assert found(limit=2) == everything[:2]
    assert found(limit=2, after=mail) == [plain]
    with pytest.raises(ConfigurationError, match="cannot be chosen by tasks"):
        found(tasks="send")
    with pytest.raises(ConfigurationError, match="failed, lost"):
        found(reason="bored")


async def test_many_are_retried_in_batches_the_oldest_first(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve_room, "_BATCH", 4)
    chosen = put_letters(db, 10, task="send", error_type="Timeout")
    others = put_letters(db, 3, task="other")

    assert await rota_app.dead.retry_many(task="send", error="timeout", dry_run=True) == 10
    assert rota_app.enqueued() == []
    assert await rota_app.dead.retry_many(task="send", error="timeout", by="ana") == 10
    assert await rota_app.dead.retry_many(task="send") == 0

    jobs = list(reversed(await rota_app.jobs.list(state="queued")))
    assert [job.origin for job in jobs] == chosen
    assert [letter.id for letter in await rota_app.dead.list()] == list(reversed(others))
    assert audit(db) == [
        ("ana", "retry", {"letters": count, "filters": {"task": "send", "error": True}}) for count in (4, 4, 2)
    ]


async def test_of_letters_under_one_key_one_is_retried(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    first, second = put_letters(db, 2)
    db.execute("update rota.dead set unique_key = rota.unique_digest('t', 'k')")

    assert rota_app.dead.retry_many_sync() == 1
    assert [letter.id for letter in rota_app.dead.list_sync()] == [second]
    assert [job.origin for job in rota_app.enqueued()] == [first]


def test_many_are_acknowledged_in_batches(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve_room, "_BATCH", 4)
    put_letters(db, 9, queue="mail")
    put_letters(db, 1)

    assert rota_app.dead.acknowledge_many_sync("outage", queue="mail", dry_run=True) == 9
    assert rota_app.dead.acknowledge_many_sync("outage", queue="mail", by="ana") == 9
    assert rota_app.dead.acknowledge_many_sync() == 1

    assert {letter.note for letter in rota_app.dead.list_sync(resolved=True)} == {"outage", None}
    assert rota_app.jobs.list_sync() == []
    assert audit(db)[0] == ("ana", "acknowledge", {"letters": 4, "filters": {"queue": "mail"}})


def test_several_who_retry_all_at_once_make_one_job_of_each(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve_room, "_BATCH", 7)
    put_letters(db, 100)
    db.execute("update rota.dead set unique_key = rota.unique_digest('t', (id %% 60)::text) where id %% 2 = 0", [])

    with ThreadPoolExecutor(6) as threads:
        made = list(threads.map(lambda _: rota_app.dead.retry_many_sync(), range(6)))

    origins = [job.origin for job in rota_app.enqueued()]
    assert sum(made) == len(origins) == len(set(origins))
    doubled = db.execute(
        "select unique_key from rota.jobs where unique_key is not null group by unique_key having count(*) > 1"
    ).fetchall()
    assert doubled == []
    assert len(rota_app.dead.list_sync(resolved=True)) == len(origins)
