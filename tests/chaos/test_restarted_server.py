"""PostgreSQL crashes and comes back under load: nothing is lost, nothing is settled twice, workers go on by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest

from rota import Rota, RotaError
from rota.testing import WorkerProcess, until

pytestmark = pytest.mark.chaos

APP = """
import asyncio
from rota import Rota

app = Rota()

@app.task(name="work")
async def work(n: int) -> int:
    await asyncio.sleep(0.01)
    return n
"""


@pytest.mark.slow
@pytest.mark.parametrize("crashes", [2, pytest.param(5, marks=pytest.mark.long)])
async def test_crashes_of_the_server_under_load(own_server: Any, crashes: int) -> None:
    app = Rota(own_server.dsn)
    app.task(name="work")(lambda n: n)
    acknowledged: list[int] = []
    feeding = True

    async def feed() -> None:
        n = 0
        while feeding:
            n += 1
            with contextlib.suppress(RotaError):
                acknowledged.append((await app.tasks["work"].enqueue(n)).id)
            await asyncio.sleep(0.001)

    with WorkerProcess(APP, dsn=own_server.dsn) as one, WorkerProcess(APP, dsn=own_server.dsn) as other:
        workers = (one, other)
        for worker in workers:
            worker.wait_until_working()
        feeder = asyncio.create_task(feed())

        for _ in range(crashes):
            before = len(acknowledged)
            await until(lambda before=before: len(acknowledged) > before + 100, timeout=30, what="the load goes on")  # type: ignore[misc]
            await asyncio.to_thread(own_server.restart, "immediate")
        feeding = False
        await feeder

        async def nothing_left() -> bool:
            with contextlib.suppress(RotaError):
                return not await app.jobs.list(state="queued") and not await app.jobs.list(state="running")
            return False

        await until(nothing_left, timeout=30, what="all jobs are settled")
        for worker in workers:
            assert worker.returncode is None, worker.report()
            worker.terminate()
        assert [worker.wait() for worker in workers] == [0, 0]

    await app.close()
    with psycopg.connect(own_server.dsn) as connection:
        history = [id for (id,) in connection.execute("select id from rota.history").fetchall()]
        assert len(history) == len(set(history))
        assert set(acknowledged) <= set(history)
        # an enqueue whose reply was lost may have been committed all the same: it ran once, like any other
        assert connection.execute("select count(*) from rota.dead").fetchone() == (0,)
        # the outage itself took nothing from anybody
        assert connection.execute("select count(*) from rota.attempts").fetchone() == (0,)
        assert connection.execute("select array_agg(distinct end_reason) from rota.members").fetchone() == (["left"],)
