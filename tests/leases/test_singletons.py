"""Singletons: one instance at a time, started again when they fail, moved when they must, spread over the instances."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import psycopg
import pytest

from rota import ConfigurationError, DatabaseUnavailable, LeadershipHeld, Rota, RotaError, Term
from rota.clock import Deadline
from rota.facts import LeadershipEnded, LeadershipGained, SingletonFailed, StandingBy
from rota.leases import leadership, singletons
from rota.leases.leads import Leads
from rota.postgres.query import Statement, nothing
from rota.testing import WorkerProcess, fact, until

Instances = Callable[..., Rota]


@pytest.fixture
async def instance(rota_database: str) -> AsyncIterator[Instances]:
    """Makes apps on one database: processes of their own, as far as that knows."""
    async with contextlib.AsyncExitStack() as stack:
        apps: list[Rota] = []

        def make() -> Rota:
            apps.append(Rota(rota_database))
            stack.push_async_callback(apps[-1].close)
            return apps[-1]

        yield make


@contextlib.asynccontextmanager
async def working(*apps: Rota, grace: float = 5) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(app.work(grace=grace)) for app in apps]
    try:
        yield tasks
    finally:
        for app in apps:
            app.stop()
        await asyncio.gather(*tasks)


async def forever(term: Term) -> None:
    await asyncio.Event().wait()


async def test_it_runs_on_exactly_one_of_several_workers_and_the_others_stand_by(instance: Instances) -> None:
    apps = [instance() for _ in range(3)]
    running: list[Term] = []
    for app in apps:

        @app.singleton("indexer")
        async def indexer(term: Term) -> None:
            running.append(term)
            await asyncio.Event().wait()

    async with working(*apps):
        await until(lambda: running, what="one leads")
        await until(lambda: len(apps[0].leaders.list_sync()[0].standbys) == 2, what="the others stand by")
        assert [term.valid for term in running] == [True]

    (view,) = await apps[0].leaders.list()
    assert (view.holder, view.standbys) == (None, [])


@pytest.mark.one_server
async def test_one_that_fails_or_returns_is_started_again_under_its_term_after_a_growing_pause(
    instance: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singletons, "_FIRST_PAUSE", 0.02)
    app = instance()
    epochs: list[int] = []

    @app.singleton("indexer")
    async def indexer(term: Term) -> None:
        epochs.append(term.epoch)
        if len(epochs) == 1:
            raise ValueError("no such index")
        if len(epochs) == 2:
            raise asyncio.CancelledError  # of something of its own: nobody has cancelled the singleton
        if len(epochs) > 3:
            await asyncio.Event().wait()

    with app.facts.recorded(SingletonFailed) as failed:
        async with working(app):
            await until(lambda: len(epochs) == 4, what="it was started again")

    assert len(set(epochs)) == 1
    assert [type(each.error) for each in failed] == [ValueError, asyncio.CancelledError, RuntimeError]
    assert "returned" in str(failed[2].error)
    assert all(0.01 * 2**n <= each.pause <= 0.02 * 2**n for n, each in enumerate(failed))


@pytest.mark.one_server
async def test_one_that_was_well_for_long_begins_with_a_short_pause(
    instance: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singletons, "_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(singletons, "_WELL_SECONDS", 0.0)
    app = instance()

    @app.singleton("indexer")
    async def indexer(term: Term) -> None:
        raise ValueError("no")

    with app.facts.recorded(SingletonFailed) as failed:
        async with working(app):
            await until(lambda: len(failed) >= 6, what="it failed a few times")

    assert all(each.pause <= 0.02 for each in failed)


MOVING = """
import asyncio, os, psycopg
from rota import Rota

app = Rota()

@app.singleton("indexer")
async def indexer(term):
    async with await psycopg.AsyncConnection.connect(os.environ["RUNS"], autocommit=True) as runs:
        await runs.execute("insert into public.runs values (%s, 'begun')", [os.getpid()])
        try:
            await asyncio.Event().wait()
        finally:
            await runs.execute("insert into public.runs values (%s, 'ended')", [os.getpid()])
"""


@pytest.mark.one_server
async def test_it_moves_when_its_process_drains_and_when_it_dies(rota_database: str, rota_worker: Any) -> None:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table public.runs (pid int, what text, at timestamptz default clock_timestamp())")

        def runs() -> list[tuple[int, str]]:
            return db.execute("select pid, what from public.runs order by at").fetchall()

        workers: list[WorkerProcess] = [rota_worker(MOVING, env={"RUNS": rota_database}) for _ in range(2)]
        await until(lambda: len(runs()) == 1, what="one of them leads")
        workers.sort(key=lambda worker: worker.pid != runs()[0][0])
        first, second = workers

        first.kill()
        await until(lambda: (second.pid, "begun") in runs(), what="the other leads")
        second.terminate()
        async with Rota(rota_database) as app, app.leadership("indexer").wait("10s"):
            assert runs() == [(first.pid, "begun"), (second.pid, "begun"), (second.pid, "ended")]
        assert second.wait() == 0
        ends = db.execute("select end_reason from rota.terms order by epoch").fetchall()
        assert ends == [("lost",), ("resigned",), ("resigned",)]


EXITING = """
from rota import Rota

app = Rota()

@app.singleton("indexer", on_held="exit")
async def indexer(term):
    raise AssertionError("someone else leads")
"""


@pytest.mark.one_server
async def test_a_worker_that_is_to_exit_when_another_leads_ends_with_3_and_says_who_does(
    instance: Instances, rota_worker: Any
) -> None:
    async with instance().leadership("indexer") as term:
        refused = rota_worker(EXITING, wait=False)
        assert refused.wait() == 3
        assert f"epoch {term.epoch}" in refused.output()
        assert "Traceback" not in refused.output()


async def test_a_worker_that_is_to_exit_does_so_when_its_term_is_lost_too(instance: Instances) -> None:
    app, other = instance(), instance()
    app.singleton("indexer", on_held="exit")(forever)
    gained = fact(app.facts, LeadershipGained)
    work = asyncio.create_task(app.work())
    await gained

    await other.leaders.resign("indexer")

    with pytest.raises(RotaError, match="asked to step down"):
        await work
    assert await app.members() == []


async def test_one_that_is_to_be_skipped_is_not_waited_for(instance: Instances) -> None:
    app, other = instance(), instance()
    app.singleton("skipped", on_held="skip")(forever)
    app.singleton("marker")(forever)
    standing = fact(app.facts, StandingBy)
    gained = fact(app.facts, LeadershipGained)
    async with other.leadership("skipped") as skipped, other.leadership("marker") as marker, working(app):
        # asked for later, so the answer to the other question is known by now
        await standing
        assert [(view.name, len(view.standbys)) for view in await app.leaders.list()] == [("marker", 1), ("skipped", 0)]
        await skipped.resign()
        await marker.resign()
        assert (await gained).name == "marker"
        assert [view.name for view in await app.leaders.list() if view.holder] == ["marker"]


@pytest.mark.one_server
@pytest.mark.parametrize("on_held", ["wait", "exit", "skip"])
async def test_a_worker_outlives_a_moment_in_which_nobody_can_tell_who_leads(
    instance: Instances, monkeypatch: pytest.MonkeyPatch, on_held: Any
) -> None:
    app, answers = instance(), iter([DatabaseUnavailable("away for a moment")])
    app.singleton("indexer", on_held=on_held)(forever)
    asked = leadership.answered

    async def answered(*question: Any) -> Any:
        for error in answers:
            raise error
        return await asked(*question)

    monkeypatch.setattr(leadership, "answered", answered)
    monkeypatch.setattr(singletons, "_ASIDE_SECONDS", 0.01)
    gained = fact(app.facts, LeadershipGained)
    async with working(app):
        await gained


async def test_several_spread_over_the_workers_and_then_stay_where_they_are(
    instance: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singletons, "_SHARE_SECONDS", 0.1)
    monkeypatch.setattr(singletons, "_ASIDE_SECONDS", 0.3)
    looks: list[object] = []
    find = singletons.find_burden
    monkeypatch.setattr(singletons, "find_burden", lambda member: (looks.append(member), find(member))[1])
    first, second = instance(), instance()
    for app in (first, second):
        for name in ("a", "b", "c", "d", "e"):
            app.singleton(name)(forever)

    def share(app: Rota) -> int:
        return app._leads.burden

    async with working(first):
        await until(lambda: share(first) == 5, what="the first leads all")
        moved: list[str] = []
        first.facts.subscribe(lambda fact: moved.append(fact.kind), LeadershipEnded)
        async with working(second):
            await until(lambda: (share(first), share(second)) == (3, 2), what="they share")
            assert set(moved) == {"handed over"}
            with first.facts.recorded(LeadershipEnded) as lost, second.facts.recorded(LeadershipEnded) as lost_too:
                looked = len(looks)
                await until(lambda: len(looks) > looked + 10, what="they looked again and again")
            assert lost == lost_too == []


async def test_a_worker_outlives_that_it_may_not_ask_who_leads_too_much(
    instance: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singletons, "_SHARE_SECONDS", 0.01)
    refused: list[object] = []
    statement = Statement("find_burden", "select 1/0")
    monkeypatch.setattr(
        singletons, "find_burden", lambda member: (refused.append(member), statement.query(read=nothing))[1]
    )
    app = instance()
    for name in ("a", "b"):
        app.singleton(name)(forever)
    async with working(app) as (work,):
        await until(lambda: len(refused) > 2, what="it asks again and again")

        assert not work.done()


@pytest.mark.one_server
async def test_nobody_else_begins_before_a_body_that_was_told_to_stop_has_ended(instance: Instances) -> None:
    first, second = instance(), instance()
    told, may_end = asyncio.Event(), asyncio.Event()

    @first.singleton("indexer")
    async def tidying(term: Term) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.set()
            await may_end.wait()

    second.singleton("indexer")(forever)
    gained = fact(first.facts, LeadershipGained)
    async with working(first):
        await gained
        standing = fact(second.facts, StandingBy)
        async with working(second):
            await standing
            next_gained = fact(second.facts, LeadershipGained, timeout=20)
            await second.leaders.resign("indexer")
            await told.wait()
            await next_beats(second, 3)
            assert len(await second.leaders.terms("indexer")) == 1
            may_end.set()
            await next_gained


async def next_beats(app: Rota, count: int) -> None:
    """Return when every member has renewed its lease so many times."""

    async def renewals() -> tuple[Any, ...]:
        return tuple(member.renewed_at for member in sorted(await app.members(), key=lambda member: member.id))

    for _ in range(count):
        before = await renewals()

        async def all_renewed(before: tuple[Any, ...] = before) -> bool:
            return all(new > old for new, old in zip(await renewals(), before, strict=True))

        await until(all_renewed, what="every member has renewed")


async def test_who_was_asked_to_step_down_lets_another_lead(instance: Instances) -> None:
    first, second = instance(), instance()
    for app in (first, second):
        app.singleton("indexer")(forever)
    gained = fact(first.facts, LeadershipGained)
    async with working(first):
        await gained
        standing, next_gained = fact(second.facts, StandingBy), fact(second.facts, LeadershipGained)
        async with working(second):
            await standing
            await second.leaders.resign("indexer")
            await next_gained
            assert len(await second.leaders.terms("indexer")) == 2


@pytest.mark.one_server
async def test_one_that_ignores_its_cancellation_does_not_hang_the_stop_and_keeps_its_term(instance: Instances) -> None:
    app, other = instance(), instance()
    may_end = asyncio.Event()

    @app.singleton("indexer")
    async def stubborn(term: Term) -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    gained = fact(app.facts, LeadershipGained)
    ended = fact(app.facts, LeadershipEnded)
    work = asyncio.create_task(app.work(grace=60))
    await gained
    began = time.monotonic()
    app.stop()
    app.stop()  # the second time nobody is waited for
    await work

    assert time.monotonic() - began < 30
    with pytest.raises(LeadershipHeld):
        async with other.leadership("indexer"):
            pass
    may_end.set()
    await ended
    async with other.leadership("indexer").wait("10s"):
        pass


@pytest.mark.one_server
async def test_one_that_swallows_its_cancellation_and_returns_is_not_started_again_at_a_stop(
    instance: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(singletons, "_FIRST_PAUSE", 0.001)
    app = instance()
    runs: list[Term] = []

    @app.singleton("indexer")
    async def quiet(term: Term) -> None:
        runs.append(term)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with app.facts.recorded(SingletonFailed) as failed:
        async with working(app):
            await until(lambda: runs, what="it runs")

    assert (len(runs), failed) == (1, [])


async def test_one_that_may_go_on_and_is_to_rest_at_once_leaves_nothing_behind() -> None:
    kept = singletons.Singletons(cast(Leads, None), [singletons.Singleton("indexer", forever)])

    kept.start()
    kept.pause()
    kept.resume()
    kept.pause()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await kept.drain(Deadline.after(5))
        del kept
        gc.collect()

    assert [str(each.message) for each in warned] == []


@pytest.mark.one_server
async def test_a_worker_that_drains_runs_none(instance: Instances) -> None:
    app = instance()
    app.singleton("indexer")(forever)
    with app.facts.recorded(LeadershipGained) as gained:
        await app.work(drain=True)
    assert gained == []


@pytest.mark.one_server
async def test_what_cannot_be_a_singleton_is_refused(instance: Instances) -> None:
    app = instance()
    app.singleton("indexer")(forever)

    with pytest.raises(ConfigurationError, match="already"):
        app.singleton("indexer")(forever)
    with pytest.raises(ConfigurationError, match="async def"):
        app.singleton("blocking")(lambda term: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="wait, exit, skip"):
        app.singleton("odd", on_held="fight")(forever)  # type: ignore[arg-type]
    with pytest.raises(RotaError):
        app.singleton("")(forever)
    assert list(app.singletons) == ["indexer"]
