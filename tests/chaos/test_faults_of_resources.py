"""A server that runs out of something: connections, disk, room for notifications. Callers are told, workers wait and go on."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests.chaos.faults import APP, SHORT, count, end_sessions, identities, known_tasks

from rota import DatabaseUnavailable, Rota
from rota.testing import WorkerProcess, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]


@pytest.mark.long
def test_a_server_out_of_connections_costs_no_lease_and_is_named(own_server: Any, tmp_path: Path) -> None:
    gate, dsn = tmp_path / "gate", own_server.dsn
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        app = stack.enter_context(known_tasks(Rota(dsn, pool_size=1)))
        worker = stack.enter_context(WorkerProcess(SHORT, dsn=dsn)).wait_until_working()
        job = app.tasks["hold"].enqueue_sync(str(gate))
        until_sync(lambda: app.jobs.get_sync(job.id).state == "running", what="the job runs")
        hogs = stack.enter_context(contextlib.ExitStack())

        def hogged() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    hogs.enter_context(psycopg.connect(dsn))
            return not end_sessions(admin, "claim") | end_sessions(admin, "settle")

        until_sync(hogged, timeout=30, what="only the lease has its connection")
        gate.touch()
        worker.wait_for_output("jobs: settle: ")
        worker.wait_for_output("too many clients")
        with known_tasks(Rota(dsn)) as late, pytest.raises(DatabaseUnavailable, match="too many clients"):
            late.tasks["double"].enqueue_sync(1)
        renewed = "select renewed_at > %s + interval '3 seconds' from rota.members"
        began = admin.execute("select statement_timestamp()").fetchone()[0]  # type: ignore[index]
        until_sync(
            lambda: admin.execute(renewed, [began]).fetchone() == (True,), what="the lease is kept beyond itself"
        )
        hogs.close()

        job.wait_sync(20)
        assert job.refresh_sync().attempt == 1
        assert identities(admin) == [None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a disk of its own needs the right to mount one: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.long
def test_a_full_disk_is_told_to_callers_and_waited_for_by_workers(
    own_server: Any, small_disk: Path, tmp_path: Path
) -> None:
    table_space = small_disk / "tables"
    table_space.mkdir(mode=0o700)
    filler = small_disk / "filler"
    dsn = own_server.dsn
    with psycopg.connect(own_server.server.start(), autocommit=True) as server:
        server.execute(SQL("create tablespace small location {}").format(str(table_space)))
        server.execute(
            SQL("alter database {} set tablespace small").format(Identifier(Rota(dsn).database.dsn.database))
        )
    with (
        psycopg.connect(dsn, autocommit=True) as admin,
        known_tasks(Rota(dsn)) as app,
        WorkerProcess(APP, dsn=dsn).start().wait_until_working() as worker,
    ):
        hold = app.tasks["hold"]
        jobs = app.enqueue_many_sync([hold.bind(str(tmp_path / "gate"), 100_000) for _ in range(10)])
        until_sync(lambda: {app.jobs.get_sync(job.id).state for job in jobs} == {"running"}, what="all of them run")

        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free)
        with pytest.raises(DatabaseUnavailable, match="No space left on device"):
            app.enqueue_many_sync([hold.bind(secrets.token_hex(100_000)) for _ in range(100)])
        (tmp_path / "gate").touch()
        worker.wait_for_output("jobs: settle: ")
        worker.wait_for_output("No space left on device")
        assert count(admin, "history") == 0
        filler.unlink()

        assert {len(job.wait_sync(30)) for job in jobs} == {200_000}
        assert {job.refresh_sync().attempt for job in jobs} == {1}
        assert worker.returncode is None
        assert identities(admin) == [None]


@pytest.mark.long
def test_a_full_queue_of_notifications_stops_neither_callers_nor_workers(own_server: Any, tmp_path: Path) -> None:
    """Some session listens and sleeps in a transaction. From then on PostgreSQL refuses every commit that notifies."""
    if own_server.binaries.major < 17:
        pytest.skip("before PostgreSQL 17 the queue always has 8 GB, which take minutes to fill")
    gate, dsn = tmp_path / "gate", own_server.dsn
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("alter system set max_notify_queue_pages = 64")
    own_server.restart("fast")
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        app = stack.enter_context(known_tasks(Rota(dsn)))
        double = app.tasks["double"]
        first = stack.enter_context(WorkerProcess(APP, dsn=dsn)).wait_until_working()
        stumbling = app.tasks["stumble"].enqueue_sync(str(gate))
        held = app.tasks["hold"].enqueue_sync(str(tmp_path / "never"))
        until_sync(lambda: app.jobs.get_sync(held.id).state == "running", what="both jobs run")
        second = stack.enter_context(WorkerProcess(APP, dsn=dsn)).wait_until_working()
        listener = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        listener.execute("listen something")
        listener.execute("begin")
        listener.execute("select 1")
        with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
            while True:
                admin.execute("select pg_notify('something', repeat('x', 4000) || n) from generate_series(1, 5) as n")

        gate.touch()
        jobs = [
            double.enqueue_sync(0),
            *app.enqueue_many_sync([double.bind(1)]),
            double.using(unique="once").enqueue_sync(2),
            app.jobs.get_sync(admin.execute("""select rota.enqueue('double', '{"n": 3}')""").fetchone()[0]),  # type: ignore[index]
        ]
        assert double.using(delay="1h").enqueue_sync(4).cancel_sync().state == "cancelled"
        assert [job.wait_sync(20) for job in jobs] == [0, 2, 4, 6]
        until_sync(lambda: app.jobs.get_sync(stumbling.id).state == "dead", what="the other was tried a second time")
        assert app.jobs.get_sync(stumbling.id).attempt == 2

        first.kill()
        until_sync(lambda: app.jobs.get_sync(held.id).attempt == 2, timeout=20, what="the lost job is taken over")
        second.terminate()
        second.wait_for_output("stopping")
        second.terminate()
        assert second.wait() == 0
        assert [(job.state, job.attempt) for job in [app.jobs.get_sync(held.id)]] == [("queued", 1)]
        assert identities(admin) == ["suspected", "left"]
        listener.execute("rollback")
