"""Finding jobs by what they are, wherever they are, and never reading more than was said."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.jobs.test_codec import Plain

from rota import ConfigurationError, DatabaseUnavailable, Job, Rota
from rota.jobs import search
from rota.postgres.look import alone, look
from rota.postgres.query import scalar, statement
from rota.testing import TestRota

LIMIT = statement("tell_limit", "select current_setting('statement_timeout')")
SLEEP = statement("sleep", "select pg_sleep(30)")


def ids(jobs: Sequence[Job[Any]]) -> list[int]:
    return [job.id for job in jobs]


async def test_jobs_are_found_by_what_they_are_wherever_they_are(rota_app: TestRota) -> None:
    good = rota_app.task(name="good")(lambda user: None)
    bad = rota_app.task(name="bad", queue="slow", retry=None)(lambda: 1 / 0)
    settled = await good.using(tags=["blue"]).enqueue({"id": 1, "name": "ann"})
    dead = await bad.enqueue()
    await rota_app.drain()
    later = await good.using(delay="1h").enqueue({"id": 2, "name": "1"})

    async def found(**filters: Any) -> list[int]:
        page = await rota_app.jobs.search(**filters)
        assert page == rota_app.jobs.search_sync(**filters)
        assert (page.after, page.searched_to) == (None, None)
        return ids(page.jobs)

    assert await found() == [later.id, dead.id, settled.id]
    assert await found(state="succeeded") == [settled.id]
    assert await found(state="queued") == [later.id]
    assert await found(state="dead") == [dead.id]
    assert await found(state="running") == []
    assert await found(queue="slow") == [dead.id]
    assert await found(task=good) == [later.id, settled.id]
    assert await found(tag="blue") == [settled.id]
    assert await found(attempt=1) == [dead.id, settled.id]
    assert await found(args={"user.id": 1}) == [settled.id]
    assert await found(args={"user.name": "ann", "user.id": "1"}) == [settled.id]
    assert await found(args={"user.name": 1}) == [later.id]
    assert await found(args={"user.id": None}) == [dead.id]
    assert await found(error="zerodivision") == [dead.id]
    assert await found(error="division by zero", queue="default") == []
    assert await found(member=UUID(int=7)) == []
    (done,) = (await rota_app.jobs.search(state="succeeded")).jobs
    assert settled.id in await found(member=str(done.member))


async def test_an_error_of_any_attempt_on_record_finds_its_job(rota_app: TestRota) -> None:
    tried = []

    @rota_app.task(retry=3)
    def shaky() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("only once")

    job = await shaky.enqueue()
    await rota_app.drain()
    waiting = await rota_app.jobs.search(error="valueerror: only")
    rota_app.advance("1d")
    await rota_app.drain()

    settled = await rota_app.jobs.search(error="only ONCE", state="succeeded")

    assert [(each.id, each.state) for each in waiting.jobs] == [(job.id, "queued")]
    assert [(each.id, each.state) for each in settled.jobs] == [(job.id, "succeeded")]


async def test_a_walk_ends_at_its_reach_and_goes_on_where_it_was(rota_app: TestRota) -> None:
    common, rare = rota_app.task(name="common")(lambda: None), rota_app.task(name="rare")(lambda: None)
    oldest = await rare.enqueue()
    await rota_app.enqueue_many([common.bind() for _ in range(30)])

    first = await rota_app.jobs.search(task="rare", reach=20)
    assert first.after is not None
    second = await rota_app.jobs.search(task="rare", reach=20, after=first.after)

    assert first.jobs == ()
    assert first.searched_to is not None
    assert oldest.id < first.after
    assert ids(second.jobs) == [oldest.id]
    assert (second.after, second.searched_to) == (None, None)


async def test_pages_hold_every_job_once_in_one_order(rota_app: TestRota) -> None:
    rota_app.task(name="t", retry=None)(lambda fails: 1 / 0 if fails else None)
    task = rota_app.tasks["t"]
    for n in range(20):
        await task.enqueue(n % 3 == 0)
    await rota_app.drain()
    await rota_app.enqueue_many([task.bind(False) for _ in range(5)])

    pages, after = [], None
    while not pages or after is not None:
        page = await rota_app.jobs.search(limit=4, after=after, reach=7)
        pages.append(ids(page.jobs))
        after = page.after

    told = [id for page in pages for id in page]
    assert told == sorted(told, reverse=True)
    assert len(told) == len(set(told)) == 25


async def test_a_walk_goes_on_in_parts_without_a_gap(rota_app: TestRota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_FIRST", 2)
    task = rota_app.task(name="t")(lambda: None)
    jobs = await rota_app.enqueue_many([task.bind() for _ in range(30)])

    page = await rota_app.jobs.search(reach=100)

    assert ids(page.jobs) == ids(jobs)[::-1]


async def test_what_runs_is_found_behind_all_that_waits(rota_app: TestRota) -> None:
    task = rota_app.task(name="t")(lambda: None)
    old = await task.enqueue()
    await rota_app.enqueue_many([task.bind() for _ in range(30)])
    member = UUID(int=7)
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as db:
        db.execute(
            "update rota.jobs set state = 'running', token = 1, attempt = 1, member = %s, claimed_at = now() where id = %s",
            [member, old.id],
        )

    assert ids((await rota_app.jobs.search(state="running", reach=5)).jobs) == [old.id]
    assert ids((await rota_app.jobs.search(state="running", member=member, reach=5)).jobs) == [old.id]
    assert (await rota_app.jobs.count(reach=5)).states == {"queued": 5, "running": 1}


async def test_a_time_finds_what_settled_then_and_what_was_enqueued_then(rota_app: TestRota) -> None:
    task = rota_app.task(name="t")(lambda: None)
    first = await task.enqueue()
    late = await task.using(delay="2h").enqueue()
    await rota_app.drain()
    rota_app.advance("3h")
    await rota_app.drain()
    rota_app.advance("3h")
    waiting = await task.using(delay="1h").enqueue()

    assert ids((await rota_app.jobs.search(since="1h")).jobs) == [waiting.id]
    assert ids((await rota_app.jobs.search(since="4h", until="2h")).jobs) == [late.id]
    assert ids((await rota_app.jobs.search(until="5h")).jobs) == [first.id]
    assert ids((await rota_app.jobs.search(since=datetime(2020, 1, 1, tzinfo=UTC))).jobs) == [
        waiting.id,
        late.id,
        first.id,
    ]


async def test_a_search_that_ends_long_ago_begins_there(rota_app: TestRota) -> None:
    task = rota_app.task(name="t")(lambda: None)
    old = await task.using(delay="1d").enqueue()
    rota_app.advance("6h")
    await rota_app.enqueue_many([task.using(delay="1d").bind() for _ in range(30)])

    page = await rota_app.jobs.search(until="5h", reach=3)

    assert ids(page.jobs) == [old.id]


async def test_a_secret_cannot_be_found_out_by_asking_for_it(rota_app: TestRota) -> None:
    task = rota_app.task(name="login", redact=["password"])(lambda user, password: None)
    hidden = await task.enqueue("ann", "hunter2")
    with psycopg.connect(rota_app.database.dsn.conninfo, autocommit=True) as db:
        db.execute("""select rota.enqueue('login', '{"user": "ann", "password": "hunter2"}')""")

    assert len((await rota_app.jobs.search(args={"user": "ann"})).jobs) == 2
    assert (await rota_app.jobs.search(args={"password": "hunter2"})).jobs == ()
    assert (await rota_app.jobs.count(args={"password": "hunter2"})).total == 0
    # one who does not know the task is told what the row itself does not hide
    async with Rota(rota_app.database.dsn.conninfo) as stranger:
        (by_sql,) = (await stranger.jobs.search(args={"password": "hunter2"})).jobs
    assert by_sql.id != hidden.id


async def test_what_is_counted_is_exact_until_the_reach_and_says_so(rota_app: TestRota) -> None:
    task = rota_app.task(name="t")(lambda: None)
    bad = rota_app.task(name="bad", retry=None, queue="slow")(lambda: 1 / 0)
    await rota_app.enqueue_many([task.using(tags=["a", "b"]).bind() for _ in range(12)] + [bad.bind()])
    await rota_app.drain()
    await rota_app.enqueue_many([task.using(delay="1h").bind() for _ in range(3)])

    all_of_them = await rota_app.jobs.count()
    newest = rota_app.jobs.count_sync(reach=5)

    assert (all_of_them.total, all_of_them.exact, all_of_them.searched_to) == (16, True, None)
    assert all_of_them.states == {"succeeded": 12, "queued": 3, "dead": 1}
    assert all_of_them.tasks == {"t": 15, "bad": 1}
    assert all_of_them.queues == {"default": 15, "slow": 1}
    assert all_of_them.tags == {"a": 12, "b": 12}
    assert sum(all_of_them.members.values()) == 13
    assert newest.total <= 15
    assert not newest.exact
    assert newest.searched_to is not None
    assert (await rota_app.jobs.count(task="bad")).total == 1


async def test_a_look_that_takes_too_long_is_given_up(rota_app: TestRota) -> None:
    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        await rota_app.database.run_steps(look(alone(SLEEP.query(read=scalar)), "50ms"))
    assert await rota_app.database.run_steps(look(alone(LIMIT.query(read=scalar)), "70ms")) == "70ms"
    assert await rota_app.database.run(LIMIT.query(read=scalar)) != "70ms"
    assert (await rota_app.jobs.search(deadline="10s")).jobs == ()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"state": "failed"}, "No job is ever 'failed'"),
        ({"colour": "red"}, "Jobs cannot be chosen by colour: the filters are state"),
        ({"member": "bob"}, "member cannot be 'bob': it is the id of a process"),
        ({"attempt": "2"}, "attempt cannot be '2'"),
        ({"args": "user.id"}, "args cannot be 'user.id': it is values by path"),
        ({"args": {"user": {1, 2}}}, "No argument can be {1, 2}"),
        ({"since": datetime(2020, 1, 1)}, "since cannot be .*: a time says in which time zone it is"),
        ({"until": "soon"}, "until cannot be 'soon'"),
        ({"error": 7}, "error cannot be 7"),
        ({"reach": 0}, "reach cannot be 0"),
        ({"deadline": 0}, "deadline cannot be 0"),
        ({"deadline": timedelta(days=2)}, "deadline cannot be"),
    ],
)
def test_what_nothing_can_be_found_by_is_refused(wrong: dict[str, Any], says: str) -> None:
    app = Rota("dbname=nowhere")

    with pytest.raises(ConfigurationError, match=says):
        app.jobs.search_sync(**wrong)
    with pytest.raises(ConfigurationError):
        app.jobs.count_sync(**wrong)


def test_what_the_database_cannot_read_is_not_searched_for() -> None:
    app = Rota("dbname=nowhere", codec=Plain())

    with pytest.raises(ConfigurationError, match="this app has a codec, so the database cannot read them"):
        app.jobs.search_sync(args={"user": 1})
