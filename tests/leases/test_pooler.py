"""Behind a pooler in transaction mode: found out, said once, and correct without sessions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.pgbouncer import transaction_pooler

from rota import LeadershipHeld, LeadershipLost, Rota
from rota.facts import ListenerDeaf, PoolerDetected, StandingBy
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.testing import TestRota, until

HOLD = """
import asyncio
from rota import Rota

app = Rota(lease="1.5s")

@app.task(name="hold")
async def hold() -> None:
    await asyncio.sleep(60)
"""


@pytest.fixture
def pooled(rota_database: str, tmp_path: Path) -> Iterator[str]:
    with transaction_pooler(rota_database, tmp_path) as dsn:
        yield dsn


async def test_jobs_run_through_a_transaction_pooler_with_one_clear_warning(rota_app: TestRota, pooled: str) -> None:
    app = Rota(pooled)
    app.task(name="double")(lambda n: 2 * n)
    with app.facts.recorded(PoolerDetected, ListenerDeaf) as heard:
        working = asyncio.create_task(app.work())
        jobs = await app.enqueue_many([app.tasks["double"].bind(n) for n in range(300)])
        singles = [await app.tasks["double"].enqueue(n) for n in range(20)]
        results = [await job.wait(20) for job in [*jobs, *singles]]
        app.stop()
        await working

    assert results == [2 * n for n in [*range(300), *range(20)]]
    assert [type(fact) for fact in heard] == [PoolerDetected]
    (member,) = _members(rota_app)
    assert member == (None, "left")
    await app.close()


async def test_settings_of_ours_do_not_leak_to_other_clients_of_the_pooler(rota_app: TestRota, pooled: str) -> None:
    Connector(Dsn(pooled), "control").connect_sync().close()
    await (await Connector(Dsn(pooled), "claim").connect()).close()

    def settings(dsn: str) -> Any:
        with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
            # both transactions are open at once, so they have both server connections of the pooler
            return [
                connection.execute(
                    "select current_setting('statement_timeout'), current_setting('search_path')"
                ).fetchone()
                for connection in (one, other)
            ]

    assert settings(pooled) == settings(rota_app.database.dsn.conninfo)


@pytest.mark.long
async def test_a_dead_member_behind_a_pooler_is_noticed_by_its_lease(
    rota_app: TestRota, pooled: str, rota_worker: Any
) -> None:
    rota_app.task(name="hold")(lambda: None)
    victim = rota_worker(HOLD, dsn=pooled)
    job = await rota_app.tasks["hold"].enqueue()
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "running", what="the job runs")
    holder = rota_app.jobs.get_sync(job.id).member
    rota_worker(HOLD, dsn=pooled)

    victim.kill()

    await until(lambda: rota_app.jobs.get_sync(job.id).member not in (holder, None), timeout=15, what="a peer has it")
    assert (await job.refresh()).losses == 1


LEAD = """
import sys, time
from rota import Rota

with Rota(sys.argv[1], lease="1.5s").leadership("indexer"):
    print("leads", flush=True)
    time.sleep(60)
"""


@pytest.mark.one_server
async def test_leadership_through_a_pooler_is_decided_by_the_lease_alone_with_one_warning(
    rota_app: TestRota, pooled: str
) -> None:
    async with Rota(pooled, lease="1.5s") as app, Rota(pooled, lease="1.5s") as other:
        with app.facts.recorded(PoolerDetected) as warned, other.facts.recorded(StandingBy) as standing:
            async with app.leadership("indexer") as first, app.leadership("another"):
                with pytest.raises(LeadershipHeld):
                    async with other.leadership("indexer"):
                        pass
                async with first.transaction() as connection:
                    await connection.execute("create table public.fenced as select 1 as one")
                waiting = asyncio.create_task(_lead_once(other))
                await until(lambda: standing, what="the other stands by")
                await first.confirm()
                await first.resign()
                assert await waiting > first.epoch
                with pytest.raises(LeadershipLost):
                    async with first.transaction():
                        pass
        assert len(warned) == 1
    assert _members(rota_app) == [(None, "left")] * len(_members(rota_app))


@pytest.mark.one_server
async def test_a_leader_that_died_behind_a_pooler_is_followed_after_its_lease_and_not_before(pooled: str) -> None:
    with subprocess.Popen([sys.executable, "-c", LEAD, pooled], stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "leads\n"
        leader.kill()
    async with Rota(pooled, lease="1.5s") as app:
        async with app.leadership("indexer").wait("20s"):
            pass
        ended = [member for member in await app.members(ended=True) if member.end_reason == "expired"]
        assert [each.ended_at >= each.renewed_at + timedelta(seconds=1.5) for each in ended if each.ended_at] == [True]


async def _lead_once(app: Rota) -> int:
    async with app.leadership("indexer").wait("10s") as term:
        return term.epoch


def _members(app: TestRota) -> list[Any]:
    with psycopg.connect(app.database.dsn.conninfo) as connection:
        return connection.execute("select lock_key, end_reason from rota.members").fetchall()
