"""The control session is cut, blocked or behind a pooler; the member and its work come through."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest

from rota import Rota
from rota.facts import ControlLost, ControlRestored, MemberEnded
from rota.testing import TcpProxy, TestRota, fact, until

pytestmark = pytest.mark.chaos


def cut_control_session(dsn: str, member: Any) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        cut = admin.execute(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' "
            "and (classid::bigint << 32 | objid::bigint) = (select lock_key from rota.members where id = %s)",
            [member],
        ).fetchall()
    assert cut == [(True,)]


@pytest.mark.direct("there is no session lock to find it by")
async def test_a_healthy_member_whose_control_session_is_terminated_loses_nothing(rota_app: TestRota) -> None:
    """Ten times in a row, with a peer watching: it re-attaches under the same identity before anyone may end it."""
    dsn = rota_app.database.dsn.conninfo
    finish = asyncio.Event()

    @rota_app.task
    async def hold() -> str:
        await finish.wait()
        return "held"

    job = await hold.enqueue()
    working = [asyncio.create_task(rota_app.work())]
    await until(lambda: rota_app.jobs.get_sync(job.id).state == "running", what="the job runs")
    holder = rota_app.jobs.get_sync(job.id).member
    async with Rota(dsn) as peer:
        peer.task(name=hold.name)(lambda: "stolen")
        working.append(asyncio.create_task(peer.work()))
        await until(lambda: len(rota_app.members_sync()) == 2, what="a peer watches")

        for _ in range(10):
            back = fact(rota_app.facts, ControlRestored)
            cut_control_session(dsn, holder)
            await back

        assert rota_app.jobs.get_sync(job.id).member == holder
        assert [member.state for member in await rota_app.members(ended=True)] == ["live", "live"]
        finish.set()
        assert await job.wait(10) == "held"
        assert (await job.refresh()).attempt == 1
        rota_app.stop()
        peer.stop()
        await asyncio.gather(*working)


async def test_a_blocked_event_loop_does_not_cost_the_lease(rota_app: TestRota) -> None:
    @rota_app.task
    async def block() -> str:
        time.sleep(3)
        return "done"

    job = await block.enqueue()
    peer = Rota(rota_app.database.dsn.conninfo, lease="2s")
    watching = asyncio.to_thread(lambda: asyncio.run(_watch_for(peer, seconds=4)))
    short = TestRota(rota_app.database.dsn.conninfo, of=rota_app, lease="2s")

    ended, _ = await asyncio.gather(watching, short.work(drain=True))

    assert ended == []
    assert await job.wait(20) == "done"
    assert (await job.refresh()).attempt == 1


async def _watch_for(peer: Rota, seconds: float) -> list[Any]:
    with peer.facts.recorded(MemberEnded) as ended:
        working = asyncio.create_task(peer.work())
        await asyncio.wait([working], timeout=seconds)
        peer.stop()
        await working
        await peer.close()
    return ended


async def test_a_member_that_is_cut_off_starts_nothing_new_and_goes_on_when_the_network_heals(
    rota_app: TestRota,
) -> None:
    dsn = rota_app.database.dsn.conninfo
    with TcpProxy(dsn) as proxy:
        cut_off = Rota(proxy.dsn(dsn))
        cut_off.task(name="double")(_double)
        rota_app.task(name="double")(_double)
        working = asyncio.create_task(cut_off.work())
        first = await rota_app.tasks["double"].enqueue(1)
        assert await first.wait(10) == 2
        lost = fact(cut_off.facts, ControlLost, timeout=15)

        proxy.blackhole()
        await lost
        second = await rota_app.tasks["double"].enqueue(2)
        control = cut_off.workings[0].control
        await until(lambda: not control.may_act, timeout=15, what="it knows that it is cut off")
        assert (await second.refresh()).state == "queued"

        proxy.heal()
        assert await second.wait(20) == 4
        cut_off.stop()
        await working
        await cut_off.close()


def _double(n: int) -> int:
    return 2 * n
