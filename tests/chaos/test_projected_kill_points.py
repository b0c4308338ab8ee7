"""kill -9, SIGSTOP and a lost connection at each named moment of a projection, with three processes and writers all the while:
what is taken in is what is committed, once each, ascending in each stream."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.projections.logs import Db
from tests.projections.writers import MAKE, Writers, check

from rota.service.points import PROJECTION_POINTS
from rota.testing import DatabaseServer, TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.chaos]

APP = """
import os, signal, time
import psycopg
from tests.projections.logs import Log
from tests.projections.writers import APPLY
from rota import Rota
from rota.service.points import set_hook

app = Rota(lease="2s")
left = {after}

def strike(point):
    global left
    if point != {point!r}:
        return
    left -= 1
    if left:
        return
    try:
        mark = os.open({mark!r}, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(mark, str(os.getpid()).encode())
    os.close(mark)
    if {fault!r} == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    elif {fault!r} == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        with psycopg.connect(app.database.dsn.conninfo, autocommit=True) as db:
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name like 'rota:project@%%'"
            )

set_hook(strike)

@app.projection("totals", source=Log(), batch=20)
{async_}def totals(event, connection):
    given = {{"stream": event.stream, "version": event.version, "sum": event.data["sum"], "position": event.position}}
    {await_}connection.execute(APPLY, given)
"""
BEHIND = """
    select (
        select count(*) from rota.events
    ) - (
        select count(*) from public.taken
    )
"""

# by default one of each fault, each at another step
OFTEN = [("project.handled", "kill", 1), ("project.moved", "freeze", 2), ("project.committed", "cut", 3)]
STRIKES = [
    pytest.param(point, fault, seed, marks=[] if (point, fault, seed) in OFTEN else [pytest.mark.long])
    for point in PROJECTION_POINTS
    for fault in ("kill", "freeze", "cut")
    for seed in range(1, 21)
]


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute(MAKE)
        yield connection


@pytest.mark.slow
@pytest.mark.parametrize(("point", "fault", "seed"), STRIKES)
def test_a_fault_at_this_point_of_a_projection_loses_no_event_and_repeats_none(
    rota_app: TestRota,
    direct_database: str,
    rota_worker: Callable[..., WorkerProcess],
    db: Db,
    tmp_path: Path,
    point: str,
    fault: str,
    seed: int,
) -> None:
    mark, is_async = tmp_path / "struck", seed % 2 == 1
    (file := tmp_path / "app.py").write_text(
        APP.format(
            point=point,
            fault=fault,
            after=random.Random(seed).randint(1, 6),
            mark=str(mark),
            async_="async " if is_async else "",
            await_="await " if is_async else "",
        )
    )
    workers = [rota_worker(file) for _ in range(3)]

    # not by the sessions that are cut, which a pooler would share
    writing = Writers(direct_database, seed, writers=4, transactions=40, prepared=False)
    with writing.running():
        until_sync(lambda: mark.exists() and mark.read_text(), timeout=30, what="the fault")
    struck = next(worker for worker in workers if worker.pid == int(mark.read_text()))
    until_sync(lambda: db.execute(BEHIND).fetchone() == (0,), timeout=40, what="others have taken over and caught up")
    if fault == "freeze":
        struck.resume()
    left = [worker for worker in workers if fault != "kill" or worker is not struck]
    for worker in left:
        worker.terminate()

    assert [worker.wait() for worker in left] == [0] * len(left)
    check(db)


PLAIN = """
from tests.projections.writers import APPLY
from rota import Rota

app = Rota()
orders = app.event_log("orders")

@app.projection("totals", source=orders, types=["Paid"])
async def totals(event, connection):
    given = {"stream": event.stream, "version": event.version, "sum": event.data["sum"], "position": event.position}
    await connection.execute(APPLY, given)
"""
OWNER = """
    select member.pid
    from rota.leases as lease join rota.members as member on member.id = lease.member
    where lease.name = 'rota.projection/totals/1'
"""


def test_when_its_owner_is_killed_another_goes_on_with_the_log_long_before_the_lease_is_over(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], db: Db, tmp_path: Path
) -> None:
    orders = rota_app.event_log("orders")
    (file := tmp_path / "app.py").write_text(PLAIN)
    workers = {worker.pid: worker for worker in (rota_worker(file), rota_worker(file))}
    (pid,) = until_sync(lambda: db.execute(OWNER).fetchone(), what="one of them reads")
    orders.append_many_sync([orders.bind(stream, "Paid", {"sum": 1}) for stream in ("a", "b", "a")])
    until_sync(lambda: db.execute(BEHIND).fetchone() == (0,), what="they are taken in")

    workers[pid].kill()
    orders.append_sync("a", "Paid", {"sum": 2}, expected_version=2)

    # the lease is 15 s; a death is noticed within a second, and a busy machine has many
    until_sync(lambda: db.execute(BEHIND).fetchone() == (0,), timeout=11, what="the other has gone on")
    check(db)


PARTITIONED = """
from tests.projections.logs import Log
from tests.projections.writers import APPLY
from rota import Rota

app = Rota()

@app.projection("totals", source=Log(), partition_by="stream", partitions=6)
async def totals(event, connection):
    given = {"stream": event.stream, "version": event.version, "sum": event.data["sum"], "position": event.position}
    await connection.execute(APPLY, given)
"""
LED = """
    select member.pid, array_agg(lease.name order by lease.name)
    from rota.leases as lease join rota.members as member on member.id = lease.member and member.ended_at is null
    where lease.name like 'rota.projection/totals/1#%'
    group by member.pid
"""


@pytest.mark.slow
def test_partitions_are_spread_over_three_processes_and_those_of_one_that_is_killed_move_long_before_its_lease_is_over(
    rota_app: TestRota,
    rota_database: str,
    rota_worker: Callable[..., WorkerProcess],
    db: Db,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    (file := tmp_path / "app.py").write_text(PARTITIONED)
    workers = {worker.pid: worker for worker in [rota_worker(file) for _ in range(3)]}
    led = until_sync(
        lambda: found if sorted(map(len, (found := dict(db.execute(LED).fetchall())).values())) == [2, 2, 2] else None,
        timeout=60,
        what="each leads two",
    )
    killed, moved = next(iter(led.items()))

    with Writers(rota_database, 7, writers=4, transactions=40, prepared=False).running():
        workers[killed].kill()
        began = time.monotonic()
        until_sync(
            lambda: (
                set(moved) <= {name for pid, names in db.execute(LED).fetchall() if pid != killed for name in names}
            ),
            timeout=6,  # the lease is 15 s; a death is noticed within a second, and a busy machine has a few
            what="others lead them",
        )
        record_property("seconds", round(time.monotonic() - began, 2))
    until_sync(lambda: db.execute(BEHIND).fetchone() == (0,), timeout=40, what="all is taken in")
    check(db)
