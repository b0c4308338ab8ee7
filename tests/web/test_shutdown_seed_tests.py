"""The seed's five tests of shutdown, by their names. Its flag was set where nobody could see it any more, and its tests set it by
hand; here the same is shown of what really happens, in the order in which it really does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from tests.web.asgi import served

from rota.facts import (
    Drained,
    Ended,
    EndingBegan,
    Fact,
    LeadershipEnded,
    LeadershipGained,
    MemberLeft,
    StageStopped,
)
from rota.leases.term import Term
from rota.service.ending import ENDING
from rota.testing import TestRota, fact, until

pytestmark = [pytest.mark.one_server]


@pytest.fixture
def api(rota_app: TestRota) -> FastAPI:
    api = FastAPI()
    rota_app.attach(api)
    return api


async def readiness(client: Any) -> tuple[int, Any]:
    response = await client.get("/health/ready")
    return response.status_code, response.json()


async def wait_until_ready(client: Any) -> None:
    async def ready() -> bool:
        return await readiness(client) == (200, {"ready": True})

    await until(ready)


async def test_ready_200(api: FastAPI) -> None:
    async with served(api) as client:
        await wait_until_ready(client)

        assert [await readiness(client) for _ in range(20)] == [(200, {"ready": True})] * 20


async def test_ready_503(api: FastAPI) -> None:
    async with served(api) as client:
        await wait_until_ready(client)

        ENDING.begin("SIGTERM")

        assert await readiness(client) == (503, {"ready": False, "reason": "shutting_down"})


async def test_exact_teardown_order(api: FastAPI, rota_app: TestRota) -> None:
    """The seed's order was flag, pause, scheduler, pause, executor, pool. Nothing pauses here: leaderships (the scheduler is one)
    are resigned while jobs finish, the member leaves when nothing of it is left, and the pool is last."""
    leading, release = fact(rota_app.facts, LeadershipGained, timeout=20), asyncio.Event()

    @rota_app.singleton("boss")
    async def boss(term: Term) -> None:
        await asyncio.Event().wait()

    @rota_app.task
    async def held() -> str:
        await release.wait()
        return "finished"

    order: list[str] = []

    def note(told: Fact) -> None:
        match told:
            case EndingBegan():
                order.append("flag")
            case LeadershipEnded("boss"):
                order.append("leadership")
                release.set()
            case Drained(finished=1):
                order.append("jobs")
            case MemberLeft():
                order.append("member")
            case StageStopped("pool"):
                order.append("pool")
            case Ended():
                order.append("ended")

    async with served(api) as client:
        await leading
        job = await held.enqueue()

        async def running() -> bool:
            return (await job.refresh()).state == "running"

        await until(running)
        rota_app.facts.subscribe(note)
        ENDING.begin("SIGTERM")
        assert (await readiness(client))[0] == 503
        assert (await client.get("/docs")).status_code == 200  # served all the while

    assert order == ["flag", "leadership", "jobs", "member", "pool", "ended"]
    assert await job.wait() == "finished"
    await rota_app.close()


async def test_idempotent_flag(api: FastAPI) -> None:
    async with served(api) as client:
        await wait_until_ready(client)
        assert ENDING.begin("SIGTERM") is True
        began_at = ENDING.began_at

        assert ENDING.begin("SIGTERM") is False
        assert (ENDING.began_at, ENDING.hurried) == (began_at, False)
        assert await readiness(client) == (503, {"ready": False, "reason": "shutting_down"})


async def test_reset(api: FastAPI, rota_app: TestRota) -> None:
    async with served(api) as client:
        await wait_until_ready(client)
        ENDING.begin("SIGTERM")

    ENDING.reset()

    other = FastAPI()
    rota_app.attach(other, worker=False)
    async with served(other) as client:
        assert await readiness(client) == (200, {"ready": True})
