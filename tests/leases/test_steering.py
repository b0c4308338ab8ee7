"""Someone wants a process to rest, to go on, or to end: it does, says so, and its peers take over."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from rota import ConfigurationError, NotPossible, Rota, Term
from rota.facts import JobSucceeded, WishHeard
from rota.leases import control as control_module
from rota.leases.member_view import MemberView
from rota.leases.members import Saying, Watched, Wish, join_member, watch_members
from rota.postgres.ask import ask_sync
from rota.postgres.notify import poll_channel
from rota.postgres.query import Query
from rota.testing import fact, until

pytestmark = pytest.mark.one_server

Instances = Callable[..., Rota]


@pytest.fixture
async def instance(rota_database: str) -> AsyncIterator[Instances]:
    """Makes apps on one database: processes of their own, as far as that knows."""
    async with contextlib.AsyncExitStack() as stack:

        def make(**given: str) -> Rota:
            app = Rota(rota_database, **given)  # type: ignore[arg-type]
            stack.push_async_callback(app.close)
            return app

        yield make


@contextlib.asynccontextmanager
async def working(app: Rota, **given: int) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(app.work(grace=5, **given))
    await until(lambda: any(each.state == "running" for each in app.workings), what="it works")
    try:
        yield task
    finally:
        app.stop()
        await task


def identity(app: Rota) -> UUID:
    (running,) = app.workings
    assert running.control is not None
    return running.control.member


async def seen(app: Rota, member: UUID) -> MemberView:
    (view,) = [each for each in await app.members(ended=True) if each.id == member]
    return view


async def until_seen(app: Rota, member: UUID, state: str) -> MemberView:
    async def there() -> bool:
        # who comes back has its name before it is on the list
        return any(each.id == member and each.state == state for each in await app.members(ended=True))

    await until(there, what=f"it shows as {state}")
    return await seen(app, member)


async def test_a_quiet_process_begins_nothing_finishes_what_runs_and_goes_on_when_it_may(instance: Instances) -> None:
    app = instance()
    began, free = asyncio.Event(), asyncio.Event()

    @app.task(name="hold")
    async def hold() -> str:
        began.set()
        await free.wait()
        return "finished"

    @app.task(name="quick")
    async def quick() -> str:
        return "done"

    async with working(app, concurrency=1):
        member = identity(app)
        running = await hold.enqueue()
        await began.wait()
        waiting = [await quick.enqueue() for _ in range(3)]
        asked = await app.members.quiet(member, by="ana")
        quiet = await until_seen(app, member, "quiet")
        free.set()
        finished = await running.wait(timeout=30)
        await until(lambda: app.workings[0].running == 0)
        later = [(await app.jobs.get(job.id)).state for job in waiting]
        more = await quick.enqueue()
        explained = (await app.jobs.explain(more.id)).reasons
        await app.members.resume(member, by="ana")
        done = [await job.wait(timeout=30) for job in (*waiting, more)]
        live = await until_seen(app, member, "live")

    assert (asked.wish, asked.asked_by) == ("quiet", "ana")
    assert (quiet.quiet_at is not None, quiet.draining_at, quiet.ended_at) == (True, None, None)
    assert finished == "finished"
    assert later == ["queued"] * 3
    assert explained[0].startswith("The workers that could take it take on nothing new: ")
    assert f"{quiet.name} (it is quiet)" in explained[0]
    assert done == ["done"] * 4
    assert (live.wish, live.quiet_at) == (None, None)
    entries = (await app.audit.list()).entries
    assert [(each.actor, each.action) for each in entries] == [("ana", "member.resume"), ("ana", "member.quiet")]
    assert {each.details["member"] for each in entries} == {str(member)}


async def test_one_that_works_until_nothing_is_left_finishes_what_runs_and_ends_when_it_is_to_be_quiet(
    instance: Instances,
) -> None:
    app, other = instance(), instance()
    began, free = asyncio.Event(), asyncio.Event()

    @app.task(name="hold")
    async def hold() -> str:
        began.set()
        await free.wait()
        return "finished"

    running, waiting = await hold.enqueue(), await hold.enqueue()
    work = asyncio.create_task(app.work(drain=True, concurrency=1, grace=30))
    await began.wait()
    member = identity(app)
    await other.members.quiet(member)
    await until_seen(other, member, "draining")
    free.set()
    await asyncio.wait_for(work, 30)

    assert await running.wait(timeout=5) == "finished"
    assert (await other.jobs.get(waiting.id)).state == "queued"
    assert (await seen(other, member)).end_reason == "left"


@pytest.mark.parametrize(("drains", "verb"), [("exits", "quiet"), ("quiet", "quiet"), ("quiet", "drain")])
async def test_who_was_asked_to_be_quiet_is_not_asked_twice(
    instance: Instances, rota_database: str, drains: str, verb: str
) -> None:
    app = instance()
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "insert into rota.members (id, name, host, pid, release, expires_at, work) "
            "values (%s, 'some:1', 'h', 1, '0.1', now() + interval '1 day', %s)",
            [uuid4(), json.dumps({"tasks": {}, "drains": drains})],
        )

    await app.members.quiet("some:1", by="ana")
    with pytest.raises(NotPossible, match="some:1 was asked to be quiet already, by ana"):
        await getattr(app.members, verb)("some:1", by="ben")

    assert [(each.actor, each.action) for each in (await app.audit.list()).entries] == [("ana", "member.quiet")]
    assert [each.asked_by for each in await app.members()] == ["ana"]


async def test_who_is_quiet_can_still_be_drained(instance: Instances) -> None:
    app = instance()
    work = asyncio.create_task(app.work(grace=5))
    await until(lambda: any(each.state == "running" for each in app.workings), what="it works")
    member = identity(app)
    await app.members.quiet(member)
    await until_seen(app, member, "quiet")
    await app.members.drain(member)

    await asyncio.wait_for(work, 30)


async def test_jobs_that_a_process_has_taken_and_not_begun_are_handed_back_when_it_is_quiet(
    instance: Instances,
) -> None:
    """As many are claimed ahead as would start within moments, and the one that is slow then holds them."""
    app, other = instance(), instance()
    free = asyncio.Event()

    async def run(slow: bool) -> str:
        if slow:
            await free.wait()
        return "here"

    async def elsewhere(slow: bool) -> str:
        return "elsewhere"

    task = app.task(name="run")(run)
    other.task(name="run")(elsewhere)
    for _ in range(40):
        await task.enqueue(False)
    slow = await task.enqueue(True)
    jobs = [await task.enqueue(False) for _ in range(10)]

    async with working(app, concurrency=1):
        member = identity(app)
        await until(lambda: app.workings[0].running == 1 and app.jobs.get_sync(slow.id).state == "running")
        await app.members.quiet(member)
        await until_seen(app, member, "quiet")
        async with working(other):
            results = [await job.wait(timeout=30) for job in jobs]
        still = (await app.jobs.get(slow.id)).state
        free.set()
        assert await slow.wait(timeout=30) == "here"

    assert results == ["elsewhere"] * 10
    assert still == "running"
    assert [job.attempt for job in [await app.jobs.get(each.id) for each in jobs]] == [1] * 10


async def test_what_a_quiet_process_leads_is_led_by_another_and_it_stands_by_again_when_it_may(
    instance: Instances,
) -> None:
    apps = {name: instance() for name in ("first", "second")}
    leading: list[str] = []

    def singleton(name: str) -> None:
        @apps[name].singleton("indexer")
        async def indexer(term: Term) -> None:
            leading.append(name)
            await asyncio.Event().wait()

        @apps[name].every("1h", name="hourly")
        async def hourly() -> None: ...

    singleton("first")
    singleton("second")
    async with working(apps["first"]):
        await until(lambda: leading == ["first"])
        first = identity(apps["first"])
        async with working(apps["second"]):
            second = identity(apps["second"])
            await apps["first"].members.quiet(first)
            await until(lambda: leading == ["first", "second"], what="the second leads")
            await until(
                lambda: {each.member for each in apps["first"].leaders.list_sync()} == {second},
                what="all that is led is led by the second",
            )
            standbys = [each.standbys for each in await apps["first"].leaders.list()]
            await apps["first"].members.resume(first)
            await until(
                lambda: all(len(each.standbys) == 1 for each in apps["first"].leaders.list_sync()),
                what="the first stands by again",
            )
        await until(lambda: leading == ["first", "second", "first"], what="the first leads again")

    assert standbys == [[], []]


@dataclass
class Source:
    id: int


async def test_rows_are_not_polled_for_by_a_quiet_process(instance: Instances, rota_database: str) -> None:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table public.sources (id int primary key, asked_at timestamptz)")
    app, polled = instance(), list[int]()

    @app.poller(table="public.sources", key="id", last="asked_at", interval=timedelta(days=1))
    async def fetch(source: Source) -> None:
        polled.append(source.id)

    async with working(app):
        member = identity(app)
        await app.members.quiet(member)
        await until_seen(app, member, "quiet")
        with psycopg.connect(rota_database, autocommit=True) as db:
            db.execute("insert into public.sources values (1)")
            db.execute("select rota.notify(%s, '')", [poll_channel("rota")])
        await look_round(app)
        before = list(polled)
        await app.members.resume(member)
        await until(lambda: polled == [1], what="it polls again")

    assert before == []


async def look_round(app: Rota) -> bool:
    """Return after some beats, in which a process that polls would have."""
    (running,) = app.workings
    control = running.control
    assert control is not None
    renewed = {control._trust.renewed_at}
    await until(lambda: renewed.add(control._trust.renewed_at) or len(renewed) > 3, what="three beats")  # type: ignore[func-returns-value]
    return True


async def test_a_process_that_is_asked_to_drain_finishes_shows_it_and_leaves(instance: Instances) -> None:
    app, other = instance(), instance()
    began, free = asyncio.Event(), asyncio.Event()

    @app.task(name="hold")
    async def hold() -> str:
        began.set()
        await free.wait()
        return "finished"

    work = asyncio.create_task(app.work(grace=30))
    job = await hold.enqueue()
    await began.wait()
    member = identity(app)
    heard = fact(app.facts, WishHeard)
    asked = await other.members.drain(member, by="ana")
    draining = await until_seen(other, member, "draining")
    with pytest.raises(NotPossible, match="ends already"):
        await other.members.resume(member)
    with pytest.raises(NotPossible, match="ends already"):
        await other.members.quiet(member)
    free.set()
    await asyncio.wait_for(work, 30)

    told = await heard
    assert (told.wish, told.by) == ("drain", "ana")
    assert (asked.wish, asked.work["drains"]) == ("drain", "returns")
    assert draining.draining_at is not None
    assert await job.wait(timeout=5) == "finished"
    ended = await seen(other, member)
    assert (ended.state, ended.end_reason) == ("ended", "left")


async def test_a_stop_is_shown_at_once_and_waits_for_nothing(instance: Instances) -> None:
    app = instance()
    began, free = asyncio.Event(), asyncio.Event()

    @app.task(name="hold")
    async def hold() -> None:
        began.set()
        await free.wait()

    async with working(app):
        member = identity(app)
        await hold.enqueue()
        await began.wait()
        app.stop()
        await until_seen(app, member, "draining")
        free.set()


async def test_a_drain_goes_its_way_while_the_database_refuses_to_hear_of_it(
    instance: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = instance()
    done = fact(app.facts, JobSucceeded)

    @app.task(name="quick")
    async def quick() -> None: ...

    async with working(app) as work:
        await quick.enqueue()
        await done

        def refuse(*_: object, **__: object) -> None:
            raise psycopg.OperationalError("away")

        monkeypatch.setattr(control_module, "watch_members", refuse)
        app.stop()
        await asyncio.wait_for(work, 20)


@pytest.mark.parametrize(
    ("work", "which", "said"),
    [
        ("{}", "some:1", "runs no worker"),
        ('{"tasks": {}}', "some:1", "cannot be asked from outside"),
        ('{"tasks": {}, "drains": "exits"}', "other:1", "No live process is called 'other:1'"),
        ('{"tasks": {}, "drains": "exits"}', "twice:1", "Give the id of the one that is meant"),
    ],
)
async def test_what_cannot_be_asked_for_is_said(
    instance: Instances, rota_database: str, work: str, which: str, said: str
) -> None:
    app = instance()
    with psycopg.connect(rota_database, autocommit=True) as db:
        for name in ("some:1", "twice:1", "twice:1"):
            db.execute(
                "insert into rota.members (id, name, host, pid, release, expires_at, work) "
                "values (%s, %s, 'h', 1, '0.1', now() + interval '1 day', %s)",
                [uuid4(), name, work],
            )

    for ask in (app.members.quiet, app.members.drain, app.members.resume):
        with pytest.raises(NotPossible, match=said):
            await ask(which)
    with pytest.raises(ConfigurationError, match="member cannot be"):
        await app.members.quiet("\0")
    assert (await app.audit.list()).entries == ()


async def test_a_dry_run_asks_for_nothing(instance: Instances, rota_database: str) -> None:
    app = instance()
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "insert into rota.members (id, name, host, pid, release, expires_at, work) "
            "values (%s, 'some:1', 'h', 1, '0.1', now() + interval '1 day', %s)",
            [uuid4(), '{"tasks": {}, "drains": "quiet"}'],
        )

    would = await app.members.drain("some:1", dry_run=True)
    with pytest.raises(NotPossible, match="Nobody wanted some:1 to be quiet"):
        await app.members.resume("some:1")
    web = await app.members.drain("some:1")
    (after,) = await app.members()

    assert would.wish == "quiet"
    assert (web.wish, after.wish, after.state) == ("quiet", "quiet", "live")


async def test_who_was_ended_by_its_peers_and_comes_back_is_still_quiet(
    instance: Instances, rota_database: str
) -> None:
    app = instance()

    @app.task(name="quick")
    async def quick() -> None: ...

    async with working(app):
        member = identity(app)
        await app.members.quiet(member, by="ana")
        await until_seen(app, member, "quiet")
        with psycopg.connect(rota_database, autocommit=True) as db:
            db.execute("update rota.members set ended_at = now(), end_reason = 'expired' where id = %s", [member])
        await until(lambda: identity(app) != member, what="it comes back under a new name")
        again = await until_seen(app, identity(app), "quiet")
        job = await quick.enqueue()
        await look_round(app)
        state = (await app.jobs.get(job.id)).state

    assert (again.wish, again.asked_by) == ("quiet", "ana")
    assert state == "queued"


async def test_an_operator_who_takes_their_time_holds_up_no_beat(instance: Instances, rota_database: str) -> None:
    app = instance()
    async with working(app):
        member = identity(app)
        with psycopg.connect(rota_database) as operator:
            operator.execute("insert into rota.wishes (member, wish, asked_by) values (%s, 'quiet', 'ana')", [member])
            beaten = await look_round(app)
            operator.rollback()

    assert beaten


def test_a_wish_is_read_with_the_beat_and_what_is_said_is_kept_until_it_is_said_no_more(rota_database: str) -> None:
    member, lease = uuid4(), timedelta(seconds=15)
    with psycopg.connect(rota_database, autocommit=True) as db:

        def ask(query: Query[Any]) -> Any:
            return ask_sync(db, "rota", query)

        def beat(saying: Saying) -> Watched:
            return ask(
                watch_members(member, lease, grace=timedelta(seconds=1), settled=True, let_in_at=None, saying=saying)
            )

        def shown() -> tuple[object, ...] | None:
            return db.execute(
                "select draining_at is not null, quiet_at is not null, condition, condition_at is not null from rota.members"
            ).fetchone()

        ask(
            join_member(
                member, name="m", host="h", pid=1, release="0", lease=lease, key=None, work={}, app_release="2024.1"
            )
        )
        before = beat(Saying())
        db.execute("insert into rota.wishes (member, wish, asked_by) values (%s, 'drain', 'ana')", [member])
        after = beat(Saying(draining=True, quiet=True, condition='{"rss": 1}'))
        since = db.execute("select draining_at, quiet_at from rota.members").fetchone()
        beat(Saying(draining=True, quiet=True))
        assert db.execute("select draining_at, quiet_at from rota.members").fetchone() == since
        assert shown() == (True, True, {"rss": 1}, True)
        beat(Saying())
        assert shown() == (False, False, {"rss": 1}, True)
        release = db.execute("select app_release from rota.members").fetchone()

    assert (before.wish, after.wish) == (None, Wish("drain", "ana"))
    assert release == ("2024.1",)
