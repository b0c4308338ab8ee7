"""A worker from its start to its end: in order, patient with the database, and on the way back stopped to the last stage."""

from __future__ import annotations

import asyncio

import pytest

from rota import DatabaseUnavailable, Rota
from rota.facts import (
    DatabaseAwaited,
    Fact,
    Facts,
    LeadershipEnded,
    MemberLeft,
    StageFailed,
    StageStarted,
    StageStopped,
)
from rota.leases.singletons import Singletons
from rota.leases.term import Term
from rota.testing import TcpProxy, TestRota, fact, until

ORDER = [
    "database",
    "schema",
    "connections of pollers",
    "member",
    "limits",
    "schedules",
    "leaderships",
    "pollers",
    "jobs",
]


async def started(app: Rota) -> asyncio.Task[None]:
    begun = fact(app.facts, StageStarted, where=lambda stage: stage.name == "jobs", timeout=30)
    working = asyncio.create_task(app.work())
    await begun
    return working


async def test_it_starts_in_order_and_stops_on_the_way_back(rota_app: TestRota) -> None:
    with rota_app.facts.recorded(StageStarted, StageStopped, StageFailed) as told:
        working = await started(rota_app)
        assert [each.state for each in rota_app.workings] == ["running"]
        rota_app.stop()
        await working

    assert [each.name for each in told if isinstance(each, StageStarted)] == ORDER
    back = [each.name for each in told if isinstance(each, StageStopped)]
    # these three at the same time, as none of them may wait for another
    assert sorted(back[:3]) == ["jobs", "leaderships", "pollers"]
    assert back[3:] == ["connections of jobs", "schedules", "member", "connections of pollers"]
    assert not [each for each in told if isinstance(each, StageFailed)]
    assert rota_app.workings == ()


async def test_a_term_is_given_up_at_once_while_a_job_still_runs(rota_app: TestRota) -> None:
    running, leading, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @rota_app.task
    async def long() -> str:
        running.set()
        await go_on.wait()
        return "finished"

    @rota_app.singleton("indexer")
    async def indexer(term: Term) -> None:
        leading.set()
        await asyncio.Event().wait()

    job = await long.enqueue()
    working = await started(rota_app)
    await running.wait()
    await leading.wait()

    resigned = fact(rota_app.facts, LeadershipEnded, where=lambda ended: ended.name == "indexer")
    rota_app.stop()
    await resigned
    assert not working.done()
    assert [each.state for each in rota_app.workings] == ["stopping"]
    go_on.set()
    await working
    assert await job.wait(20) == "finished"


async def test_a_stage_that_cannot_be_stopped_keeps_nobody_from_leaving(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Singletons, deadline: object) -> None:
        raise ZeroDivisionError("no end")

    monkeypatch.setattr(Singletons, "drain", fail)
    with rota_app.facts.recorded(StageFailed, MemberLeft) as told:
        working = await started(rota_app)
        rota_app.stop()
        await working

    failed, left = told
    assert (failed.name, str(failed.error)) == ("leaderships", "no end")
    assert isinstance(left, MemberLeft)


async def test_it_waits_for_a_database_that_is_away_when_it_starts(rota_app: TestRota, direct_database: str) -> None:
    with TcpProxy(direct_database) as proxy:
        away = Rota(proxy.dsn(direct_database))
        away.task(name="double")(lambda n: 2 * n)
        rota_app.task(name="double")(lambda n: 2 * n)
        proxy.refuse()
        with away.facts.recorded(DatabaseAwaited, StageStarted) as told:
            awaited = fact(away.facts, DatabaseAwaited, timeout=30)
            working = asyncio.create_task(away.work())
            await awaited
            assert [each.state for each in away.workings] == ["starting"]
            assert not away.stop()  # there is nothing to drain: who wants it to end cancels it
            job = await rota_app.tasks["double"].enqueue(21)

            proxy.heal()
            assert await job.wait(30) == 42
        # each reason is told once, and nothing was started before the database was there
        assert len({each.error for each in told if isinstance(each, DatabaseAwaited)}) == sum(
            isinstance(each, DatabaseAwaited) for each in told
        )
        assert [each.name for each in told if isinstance(each, StageStarted)] == ORDER
        away.stop()
        await working
        await away.close()


async def test_a_drain_does_not_wait_for_it() -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")
    with pytest.raises(DatabaseUnavailable):
        await app.work(drain=True)
    assert app.workings == ()


async def test_who_waits_for_it_can_be_cancelled() -> None:
    app = Rota("postgresql://127.0.0.1:1/nowhere")
    awaited = fact(app.facts, DatabaseAwaited, timeout=30)
    working = asyncio.create_task(app.work())
    await awaited
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(working, 20)
    assert app.workings == ()


async def test_a_database_that_goes_away_half_way_is_waited_for_from_the_start(
    rota_app: TestRota, direct_database: str
) -> None:
    """Nothing of a start that was given up is left: neither a member nor a connection."""
    with TcpProxy(direct_database) as proxy:
        away = Rota(proxy.dsn(direct_database))
        facts: Facts = away.facts

        def cut(stage: Fact) -> None:
            if isinstance(stage, StageStarted) and stage.name == "schema" and not awaited:
                proxy.refuse()

        awaited: list[Fact] = []
        facts.subscribe(awaited.append, DatabaseAwaited)
        facts.subscribe(cut, StageStarted)
        working = asyncio.create_task(away.work())
        await until(lambda: awaited, timeout=30)
        proxy.heal()
        await until(lambda: [each.state for each in away.workings] == ["running"], timeout=30)
        members = [member for member in await rota_app.members() if member.ended_at is None]
        assert len(members) == 1
        away.stop()
        await working
        await away.close()
