"""A database whose sessions end, that is slow, turns read-only, or fails over: nothing is lost that it has, nobody is taken for
dead, and work goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier
from tests.chaos.faults import (
    APP,
    Admin,
    StartWorker,
    count,
    end_sessions,
    identities,
    known_tasks,
    now,
    outlived,
    sessions,
)

from rota import DatabaseUnavailable, JobNotFound, Rota, RotaError
from rota.embedded import EmbeddedServer
from rota.facts import MemberEnded
from rota.testing import TcpProxy, TestRota, WorkerProcess, until, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]


@pytest.fixture
def admin(direct_database: str) -> Iterator[Admin]:
    with psycopg.connect(direct_database, autocommit=True) as connection:
        yield connection


async def test_every_kind_of_session_is_ended_under_load_and_comes_back(
    rota_app: TestRota, rota_worker: StartWorker, admin: Admin, pytestconfig: pytest.Config
) -> None:
    # behind a pooler one has the name of who used it last, and hardly ever that of who uses it once a second
    control = [] if pytestconfig.getoption("--pooled") else ["control"]
    double = known_tasks(rota_app).tasks["double"]
    worker = rota_worker(APP)
    acknowledged: list[int] = []
    feeding = True

    async def feed() -> None:
        while feeding:
            with contextlib.suppress(RotaError):
                acknowledged.append((await double.enqueue(len(acknowledged))).id)
            await asyncio.sleep(0.001)

    feeder = asyncio.create_task(feed())
    for role in ["claim", "settle", *control, "app", "%"]:
        await until(lambda role=role: sessions(admin, role), timeout=30, what=f"a session to {role}")  # type: ignore[misc]
        ended = end_sessions(admin, role)
        before = count(admin, "history")
        await until(lambda ended=ended: not ended & sessions(admin), what="they are gone")  # type: ignore[misc]
        await until(lambda before=before: count(admin, "history") > before + 20, timeout=30, what="work goes on")  # type: ignore[misc]
    feeding = False
    await feeder
    await until(lambda: count(admin, "jobs") == 0, timeout=30, what="all is settled")
    worker.terminate()

    assert worker.wait() == 0
    history = [id for (id,) in admin.execute("select id from rota.history").fetchall()]
    assert len(history) == len(set(history))
    assert set(acknowledged) <= set(history)
    assert (count(admin, "attempts"), count(admin, "dead")) == (0, 0)
    assert identities(admin) == ["left"]


@pytest.mark.long
async def test_a_slow_database_costs_no_lease_and_jobs_run(
    rota_app: TestRota, rota_worker: StartWorker, admin: Admin, tmp_path: Path
) -> None:
    """Half a second per round trip, with a lease of three."""
    dsn = rota_app.database.dsn.conninfo
    tasks = known_tasks(rota_app).tasks
    with TcpProxy(dsn) as proxy:
        rota_worker(APP, dsn=proxy.dsn(dsn))
        held = await tasks["hold"].enqueue(str(tmp_path / "gate"))
        await until(lambda: rota_app.jobs.get_sync(held.id).state == "running", what="a job runs")
        holder = rota_app.jobs.get_sync(held.id).member
        async with Rota(dsn, lease="1.5s") as peer:
            with peer.facts.recorded(MemberEnded) as ended:
                watching = asyncio.create_task(peer.work())

                proxy.delay = 0.25
                since = now(admin)
                jobs = await rota_app.enqueue_many([tasks["double"].bind(n) for n in range(50)])
                results = [await job.wait(60) for job in jobs]
                await until(
                    lambda: outlived(admin, holder, since),
                    timeout=30,
                    what="a renewal when the lease would be long over",
                )
                (tmp_path / "gate").touch()
                await held.wait(60)

                peer.stop()
                await watching

    assert results == [2 * n for n in range(50)]
    assert ended == []
    assert {(await job.refresh()).attempt for job in [held, *jobs]} == {1}


@pytest.mark.long
async def test_a_database_that_turns_read_only_is_waited_for(
    rota_app: TestRota, rota_worker: StartWorker, admin: Admin
) -> None:
    dsn = rota_app.database.dsn.conninfo
    database = SQL("alter database {} ").format(Identifier(rota_app.database.dsn.database))
    tasks = known_tasks(rota_app).tasks
    worker = rota_worker(APP)
    assert await (await tasks["double"].enqueue(1)).wait(20) == 2
    waiting = await tasks["double"].using(delay="1h").enqueue(2)
    await rota_app.close()

    admin.execute(database + SQL("set default_transaction_read_only = on"))
    ended = end_sessions(admin)
    await until(lambda: not ended & sessions(admin), what="they are gone")
    with known_tasks(Rota(dsn)) as other, pytest.raises(DatabaseUnavailable, match="read-only"):
        other.tasks["double"].enqueue_sync(3)
    worker.wait_for_output("read-only")  # and not only that its sessions were ended
    admin.execute(database + SQL("reset default_transaction_read_only"))
    ended = end_sessions(admin)  # those that a pooler has kept
    await until(lambda: not ended & sessions(admin), what="they are gone")

    await rota_app.jobs.retry(waiting.id)
    assert await waiting.wait(20) == 4
    assert worker.returncode is None
    assert identities(admin) == [None]


@pytest.fixture
def standby(own_server: Any, tmp_path: Path) -> Iterator[str]:
    """The address of a replica that follows `own_server`."""
    primary = conninfo_to_dict(own_server.dsn)
    at = ["-h", str(primary["host"]), "-p", str(primary["port"]), "-U", str(primary["user"])]
    copying = [
        own_server.binaries.directory / "pg_basebackup",
        *at,
        "-D",
        tmp_path / "standby" / "data",
        "-R",
        "-c",
        "fast",
        "--no-sync",
    ]
    (tmp_path / "standby").mkdir()
    subprocess.run(copying, check=True)
    options = {"max_connections": "300"}  # no fewer than where it comes from
    with EmbeddedServer(tmp_path / "standby", options=options, binaries=own_server.binaries) as server:
        yield make_conninfo(server.start(), dbname=primary["dbname"])


@pytest.mark.long
def test_a_failover_forgets_the_last_commits_and_what_rests_on_them_is_void(
    own_server: Any, standby: str, tmp_path: Path
) -> None:
    """The replica has not seen the last commits. A claim it knows is still good; one it does not know changes nothing."""
    both = [conninfo_to_dict(address) for address in (standby, own_server.dsn)]
    dsn = make_conninfo(own_server.dsn, **{part: ",".join(str(one[part]) for one in both) for part in ("host", "port")})
    with contextlib.ExitStack() as stack:
        replica = stack.enter_context(psycopg.connect(standby, autocommit=True))
        app = stack.enter_context(known_tasks(Rota(dsn)))
        worker = stack.enter_context(WorkerProcess(APP, dsn=dsn)).wait_until_working()
        hold = app.tasks["hold"]
        kept = hold.enqueue_sync(str(tmp_path / "gate"))
        until_sync(lambda: app.jobs.get_sync(kept.id).state == "running", what="a job runs")
        forgotten, finished = (
            hold.using(delay="1h").enqueue_sync(str(tmp_path / gate)) for gate in ("gate", "standby")
        )
        until_sync(lambda: count(replica, "jobs") == 3, what="the replica knows of all this")
        replica.execute("alter system set primary_conninfo = ''")
        replica.execute("select pg_reload_conf()")
        until_sync(lambda: not replica.execute("select from pg_stat_wal_receiver").rowcount, what="it follows no more")
        app.jobs.retry_sync(forgotten.id)
        until_sync(lambda: app.jobs.get_sync(forgotten.id).state == "running", what="one job is claimed meanwhile")
        app.jobs.retry_sync(finished.id)
        finished.wait_sync(20)
        lost = hold.using(delay="1h").enqueue_sync("/")

        own_server.server.close()
        replica.execute("select pg_promote()")
        (tmp_path / "gate").touch()
        worker.wait_for_output(
            f"job {forgotten.id} (hold): attempt 1 ended after its claim did; its outcome changed nothing"
        )

        after = stack.enter_context(known_tasks(Rota(dsn)))
        until_sync(lambda: after.jobs.get_sync(kept.id).state == "succeeded", what="the claim it knows is settled")
        with pytest.raises(JobNotFound):
            after.jobs.get_sync(lost.id)
        for job in (forgotten, finished):
            assert (after.jobs.get_sync(job.id).state, after.jobs.get_sync(job.id).attempt) == ("queued", 0)
            after.jobs.retry_sync(job.id).wait_sync(20)
        assert {after.jobs.get_sync(job.id).attempt for job in (kept, forgotten, finished)} == {1}
        assert (count(replica, "history"), count(replica, "attempts")) == (3, 0)
        assert identities(replica) == [None]


# In a network of its own, whose only link is then taken down: nothing arrives any more, and nobody says so.
CUT_OFF = """
import subprocess, sys, threading, time
from rota.leases.connect import _CONTROL_NETWORK
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.testing import TcpProxy

def notice(connection, statement):
    began = time.monotonic()
    try:
        connection.execute(statement)
    except Exception as error:
        print(time.monotonic() - began, error.sqlstate, flush=True)

def link(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)

link("up")
with TcpProxy(sys.argv[1]) as network:
    connections = [
        Connector(Dsn(network.dsn(sys.argv[1])), role, network=settings).connect_sync()
        for role, settings in [("claim", {}), ("claim", {}), ("control", _CONTROL_NETWORK), ("control", _CONTROL_NETWORK)]
    ]
    waiting = [threading.Thread(target=notice, args=[each, "select pg_sleep(60)"]) for each in connections[::2]]
    for thread in waiting:
        thread.start()
    time.sleep(0.5)  # what was sent is acknowledged, and only the answer is outstanding
    link("down")
    sending = [threading.Thread(target=notice, args=[each, "select 1"]) for each in connections[1::2]]
    for thread in sending:
        thread.start()
    for thread in waiting + sending:
        thread.join()
    link("up")
"""


@pytest.mark.direct("nothing but the socket of a server reaches into a network of its own")
@pytest.mark.long
def test_a_connection_whose_other_end_is_out_of_reach_is_given_up_within_ten_seconds(rota_database: str) -> None:
    apart = ["unshare", "--net", sys.executable, "-c", CUT_OFF, rota_database]
    try:
        subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a network of its own needs the right to make one, and `ip`: {error}")

    cut_off = subprocess.run(apart, capture_output=True, text=True, timeout=60, check=True)

    noticed = [float(line.split()[0]) for line in cut_off.stdout.splitlines()]
    assert len(noticed) == 4, cut_off.stderr
    assert max(noticed) < 10
