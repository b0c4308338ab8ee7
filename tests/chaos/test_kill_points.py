"""kill -9 at each named moment of a job's life, for each way of running bodies: nothing is lost, nothing is settled twice, and
what a body does through job.transaction() happens exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.service.points import POINTS
from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.one_server]

APP = """
import os, signal, time
from rota import Rota, current_job
from rota.service.points import set_hook

app = Rota(lease="2s")
MARK = {mark!r}

def strike(point):
    if point != {point!r}:
        return
    try:
        os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(VICTIM(), signal.SIGKILL)
    time.sleep(30)

VICTIM = {victim}
set_hook(strike)

@app.task(name="plain", executor={executor!r})
{async_}def plain(n: int) -> int:
    with open({effects!r}, "a") as file:
        file.write(f"{{n}}\\n")
    return n

@app.task(name="exact", executor={executor!r})
{async_}def exact(n: int) -> None:
    {async_}with current_job().transaction() as tx:
        {await_}tx.execute("insert into public.ledger values (%s)", [n])
"""

COUNT = 4


@pytest.fixture
def ledger(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table public.ledger (n int)")
        yield db


def written(folder: Path, *, executor: str, point: str, victim: str) -> Path:
    file = folder / "app.py"
    file.write_text(
        APP.format(
            mark=str(folder / "struck"),
            point=point,
            victim=victim,
            executor="process" if executor == "process" else None,
            effects=str(folder / "effects"),
            async_="async " if executor == "loop" else "",
            await_="await " if executor == "loop" else "",
        )
    )
    return file


def enqueued(app: TestRota) -> list[Any]:
    plain, exact = (app.task(name=name)(lambda n: None) for name in ("plain", "exact"))
    return app.enqueue_many_sync([task.bind(n) for n in range(COUNT) for task in (plain, exact)])


def check(app: TestRota, ledger: psycopg.Connection[Any], jobs: list[Any], folder: Path) -> None:
    until_sync(lambda: all(app.jobs.get_sync(job.id).state == "succeeded" for job in jobs), timeout=40)

    settled = ledger.execute("select id, count(*) from rota.history group by id order by id").fetchall()
    assert settled == [(job.id, 1) for job in sorted(jobs, key=lambda job: job.id)]
    assert sorted(n for (n,) in ledger.execute("select n from public.ledger")) == list(range(COUNT))
    assert {int(line) for line in (folder / "effects").read_text().split()} == set(range(COUNT))
    assert ledger.execute("select count(*) from rota.jobs").fetchone() == (0,)
    assert ledger.execute("select count(*) from rota.attempts where outcome <> 'lost'").fetchone() == (0,)
    assert ledger.execute("select count(*) from rota.dead").fetchone() == (0,)


# a point of each kind with one executor by default, all with all in the long form
EXECUTORS = ["loop", "thread", "process"]
SHORT = [("claim.after", "thread"), ("transaction.before_commit", "loop"), ("settle.after", "process")]
STRIKES = [
    pytest.param(point, executor, marks=[] if (point, executor) in SHORT else [pytest.mark.long])
    for point in POINTS
    for executor in EXECUTORS
]


@pytest.mark.parametrize(("point", "executor"), STRIKES)
def test_a_worker_killed_at_this_point_loses_nothing(
    rota_app: TestRota,
    rota_worker: Callable[..., WorkerProcess],
    ledger: psycopg.Connection[Any],
    tmp_path: Path,
    point: str,
    executor: str,
) -> None:
    in_child = executor == "process" and point.startswith(("run.", "transaction."))
    file = written(tmp_path, executor=executor, point=point, victim="os.getppid" if in_child else "os.getpid")
    jobs = enqueued(rota_app)

    victim = rota_worker(file, wait=False, concurrency=2)
    assert victim.wait(30) == -9
    rota_worker(file)

    check(rota_app, ledger, jobs, tmp_path)


@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith(("run.", "transaction."))])
@pytest.mark.long
def test_a_child_killed_at_this_point_loses_nothing_and_its_worker_goes_on(
    rota_app: TestRota,
    rota_worker: Callable[..., WorkerProcess],
    ledger: psycopg.Connection[Any],
    tmp_path: Path,
    point: str,
) -> None:
    jobs = enqueued(rota_app)
    worker = rota_worker(written(tmp_path, executor="process", point=point, victim="os.getpid"), concurrency=2)

    check(rota_app, ledger, jobs, tmp_path)
    assert (tmp_path / "struck").exists()
    assert worker.returncode is None


@pytest.mark.long
def test_a_claim_that_commits_after_its_worker_died_is_rescued(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], ledger: psycopg.Connection[Any], tmp_path: Path
) -> None:
    ledger.execute(
        "create function public.slow() returns trigger language plpgsql as "
        "$$ begin if new.state = 'running' then perform pg_sleep(0.3); end if; return new; end $$"
    )
    ledger.execute("create trigger slow after update on rota.jobs for each row execute function public.slow()")
    jobs = enqueued(rota_app)
    file = written(tmp_path, executor="loop", point="never", victim="os.getpid")

    victim = rota_worker(file, wait=False)
    claiming = (
        "select count(*) from pg_stat_activity where query like '%rota:claim %' and state = 'active' "
        "and datname = current_database() and pid <> pg_backend_pid()"
    )
    until_sync(lambda: ledger.execute(claiming).fetchone() != (0,))
    victim.kill()
    until_sync(lambda: ledger.execute("select count(*) from rota.jobs where state = 'running'").fetchone() != (0,))
    ledger.execute("drop trigger slow on rota.jobs")
    rota_worker(file)

    check(rota_app, ledger, jobs, tmp_path)
