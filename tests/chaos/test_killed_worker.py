"""kill -9 of a worker in the middle of its jobs, on the default settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from rota.testing import TestRota, WorkerProcess, until

pytestmark = pytest.mark.chaos

StartWorker = Callable[..., WorkerProcess]

APP = """
import asyncio
from rota import Rota

app = Rota()

@app.task(name="work")
async def work(n: int) -> int:
    await asyncio.sleep(0.05)
    return n

@app.task(name="hold")
async def hold() -> None:
    await asyncio.sleep(3600)
"""


def rows(app: TestRota, sql: str) -> list[Any]:
    with psycopg.connect(app.database.dsn.conninfo, autocommit=True) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.direct("a death is noticed when its lease runs out")
async def test_a_killed_workers_jobs_are_taken_over_within_two_seconds_and_none_is_lost(
    rota_app: TestRota, rota_worker: StartWorker, record_property: Callable[[str, object], None]
) -> None:
    rota_app.task(name="work")(lambda n: n)
    workers = [rota_worker(APP, concurrency=4) for _ in range(3)]
    victim = workers[0]
    jobs = await rota_app.enqueue_many([rota_app.tasks["work"].bind(n) for n in range(200)])

    async def victim_runs_some() -> Any:
        return rows(
            rota_app,
            "select job.id from rota.jobs as job join rota.members as member on member.id = job.member "
            f"where member.pid = {victim.pid} and job.attempt = 1",
        )

    await until(victim_runs_some, what="the victim runs jobs")
    victim.kill()
    ((killed_at,),) = rows(rota_app, "select statement_timestamp()")

    async def all_done() -> bool:
        return rows(rota_app, "select count(*) from rota.history") == [(200,)]

    await until(all_done, timeout=30, what="200 jobs in history")

    assert [await job.wait() for job in jobs] == list(range(200))
    assert rows(rota_app, "select count(*) from rota.jobs union all select count(*) from rota.dead") == [(0,), (0,)]
    assert rows(rota_app, "select count(distinct id) from rota.history") == [(200,)]
    lost = rows(rota_app, "select job_id, outcome from rota.attempts")
    assert lost != []
    assert Counter(outcome for _, outcome in lost) == {"lost": len(lost)}
    delays = sorted(
        (claimed_at - killed_at).total_seconds()
        for (claimed_at,) in rows(rota_app, "select claimed_at from rota.history where losses = 1")
    )
    record_property("takeover_seconds", [delays[len(delays) // 2], delays[-1]])
    assert len(delays) == len(lost)
    assert delays[-1] < 2, delays
    assert delays[len(delays) // 2] < 1.5, delays


@pytest.mark.long
async def test_a_new_worker_takes_over_from_one_that_died_with_nobody_watching(
    rota_app: TestRota, rota_worker: StartWorker
) -> None:
    rota_app.task(name="hold")(lambda: None)
    victim = rota_worker(APP)
    job = await rota_app.tasks["hold"].enqueue()
    await until(lambda: _state(rota_app, job.id) == "running", what="the job runs")
    victim.kill()

    heir = rota_worker(APP)

    await until(lambda: _state(rota_app, job.id) == "running" and _losses(rota_app) == 1, what="it runs again")
    assert heir.returncode is None


@pytest.mark.long
async def test_a_starting_worker_never_touches_what_a_live_one_holds(
    rota_app: TestRota, rota_worker: StartWorker
) -> None:
    rota_app.task(name="hold")(lambda: None)
    rota_worker(APP)
    job = await rota_app.tasks["hold"].enqueue()
    await until(lambda: _state(rota_app, job.id) == "running", what="the job runs")
    before = rows(rota_app, "select token, member, attempt from rota.jobs")

    newcomer = rota_worker(APP, args=["--drain"], wait=False)
    assert newcomer.wait(20) == 0

    assert rows(rota_app, "select token, member, attempt from rota.jobs") == before


def _state(app: TestRota, id: int) -> str:
    return app.jobs.get_sync(id).state


def _losses(app: TestRota) -> int:
    return int(rows(app, "select sum(losses) from rota.jobs")[0][0])
