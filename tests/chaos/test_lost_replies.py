"""Statements whose reply never comes: what they did is found out, and done once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota import Retry, Rota
from rota.facts import DatabaseBack, DatabaseLost, JobClaimLost
from rota.testing import TcpProxy, TestRota

pytestmark = pytest.mark.chaos


@pytest.fixture
def proxy(rota_database: str) -> Iterator[TcpProxy]:
    with TcpProxy(rota_database) as proxy:
        yield proxy


@pytest.fixture
def through(rota_database: str, proxy: TcpProxy) -> Rota:
    app = Rota(proxy.dsn(rota_database))

    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    @app.task(name="fail", retry=Retry(attempts=2, base=3600))
    async def fail() -> None:
        raise ValueError

    @app.task(name="die", retry=None)
    async def die() -> None:
        raise ValueError

    return app


@pytest.mark.parametrize("lost", ["succeed", "retry", "bury"])
async def test_an_outcome_whose_reply_was_lost_is_settled_once_and_not_mistaken_for_a_lost_claim(
    rota_app: TestRota, through: Rota, proxy: TcpProxy, lost: str
) -> None:
    name, state, attempts = {
        "succeed": ("double", "succeeded", 0),
        "retry": ("fail", "queued", 1),
        "bury": ("die", "dead", 1),
    }[lost]
    job = await through.tasks[name].enqueue(*([21] if name == "double" else []))
    proxy.cut_after(b"rota:succeed " if lost == "succeed" else b"rota:settle ")

    with through.facts.recorded(JobClaimLost, DatabaseLost, DatabaseBack) as heard:
        await through.work(drain=True)

    assert proxy.cuts == 1
    assert [type(f) for f in heard if "settle" in getattr(f, "part", "settle")] == [DatabaseLost, DatabaseBack]
    settled = await rota_app.jobs.get(job.id)
    assert (settled.state, settled.attempt, len(settled.errors)) == (state, 1, attempts)
    await through.close()


async def test_a_claim_whose_reply_was_lost_is_given_back_and_runs(
    rota_app: TestRota, through: Rota, proxy: TcpProxy
) -> None:
    jobs = await through.enqueue_many([through.tasks["double"].bind(n) for n in range(50)])
    proxy.cut_after(b"rota:claim ")

    await through.work(drain=True)

    assert proxy.cuts == 1
    assert [await job.wait() for job in jobs] == [2 * n for n in range(50)]
    assert {(await job.refresh()).attempt for job in jobs} == {1}
    await through.close()
