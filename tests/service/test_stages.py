"""Stages: started in order, stopped on the way back, whatever one of them does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from rota.facts import Facts, StageFailed, StageStarted, StageStopped
from rota.service.stages import Stages, stopped


async def _nothing() -> None: ...


@contextlib.asynccontextmanager
async def stage(said: list[str], name: str, end: Callable[[], Awaitable[None]] = _nothing) -> AsyncIterator[str]:
    said.append(f"+{name}")
    yield name
    await end()
    said.append(f"-{name}")


async def test_they_stop_in_reverse_order_and_each_step_is_a_fact() -> None:
    facts, said = Facts(), list[str]()
    with facts.recorded() as told:
        stages = Stages(facts)
        assert await stages.enter("database", stage(said, "database")) == "database"
        await stages.run("schema", lambda: said.append("schema"))
        await stages.run("grants", lambda: asyncio.sleep(0))
        await stages.enter("member", stage(said, "member"))
        await stages.stop()
        await stages.stop()  # there is nothing left

    assert said == ["+database", "schema", "+member", "-member", "-database"]
    assert [(type(fact), fact.name) for fact in told] == [
        *((StageStarted, name) for name in ("database", "schema", "grants", "member")),
        *((StageStopped, name) for name in ("member", "database")),
    ]


async def test_one_that_fails_is_told_and_the_next_is_stopped() -> None:
    facts, said = Facts(), list[str]()

    async def fail() -> None:
        raise ZeroDivisionError("no end")

    with facts.recorded(StageFailed) as told:
        stages = Stages(facts)
        await stages.enter("member", stage(said, "member"))
        await stages.enter("worker", stage(said, "worker", fail))
        await stages.stop()

    assert said[-1] == "-member"
    assert [(fact.name, str(fact.error)) for fact in told] == [("worker", "no end")]


async def test_one_that_does_not_end_is_left_behind_at_its_deadline() -> None:
    facts, said = Facts(), list[str]()
    with facts.recorded(StageFailed) as told:
        stages = Stages(facts)
        await stages.enter("member", stage(said, "member"))
        await stages.enter("worker", stage(said, "worker", asyncio.Event().wait), within=0.05)  # type: ignore[arg-type]
        await stages.stop()

    assert said[-1] == "-member"
    assert [(fact.name, str(fact.error)) for fact in told] == [("worker", "it was not done within 0.05 s")]


async def test_one_that_runs_out_of_a_time_of_its_own_is_told_with_its_own_words() -> None:
    facts = Facts()

    async def end() -> None:
        raise TimeoutError("the server did not answer")

    with facts.recorded(StageFailed) as told:
        await stopped(facts, "pool", end(), within=5)

    assert [str(fact.error) for fact in told] == ["the server did not answer"]


async def test_who_is_cancelled_while_stopping_stops_all_of_them_first() -> None:
    facts, said = Facts(), list[str]()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        reached.set()
        await go_on.wait()

    async def run() -> None:
        stages = Stages(facts)
        await stages.enter("member", stage(said, "member"))
        await stages.enter("worker", stage(said, "worker", end))
        await stages.stop()

    running = asyncio.create_task(run())
    await reached.wait()
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert said == ["+member", "+worker", "-worker", "-member"]


async def test_one_that_cannot_be_started_is_not_stopped() -> None:
    facts, said = Facts(), list[str]()

    @contextlib.asynccontextmanager
    async def refuse() -> AsyncIterator[None]:
        raise ConnectionError("nobody answers")
        yield

    stages = Stages(facts)
    await stages.enter("database", stage(said, "database"))
    with pytest.raises(ConnectionError, match="nobody answers"):
        await stages.enter("member", refuse())
    await stages.stop()

    assert said == ["+database", "-database"]
