"""kill -9 at each named moment of a poll: what was held is polled again as the second attempt under the same idempotency key,
what was not is polled for the first time, and what was stamped is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.service.points import POINTS
from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.chaos]

Db = psycopg.Connection[Any]
Row = tuple[str, int]

APP = """
import os, signal, time
import psycopg
from rota import Rota, current_poll
from rota.service.points import set_hook

app = Rota(lease="2s")
looks = {{"table": "sources", "interval": "1h", "concurrency": 2, "idle": "0.5s"}}

def took_rows():
    with psycopg.connect(app.database.dsn.conninfo) as db:
        return db.execute("select from rota.poll_claims").fetchall()

def strike(point):
    if point != {point!r} or (point == "claim.after" and not took_rows()):
        return
    try:
        os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(30)

set_hook(strike)

def visit(source):
    poll = current_poll()
    with open({visits!r}, "a") as file:
        file.write(f"{{os.getpid()}} {{poll.poller}} {{poll.key}} {{poll.attempt}} {{poll.idempotency_key}}\\n")

@app.poller(name="plain", last="plain_at", **looks)
{async_}def plain(source: dict) -> None:
    visit(source)

@app.poller(name="exact", last="exact_at", **looks)
{async_}def exact(source: dict) -> None:
    visit(source)
    {async_}with current_poll().transaction() as tx:
        {await_}tx.execute("insert into public.ledger values (%s)", [source["id"]])
"""

COUNT = 6
DUE = """
    select 'plain', id from sources where plain_at is null
    union all
    select 'exact', id from sources where exact_at is null
"""
UNDER_WAY = """
    select from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle' and query like '%rota:%'
"""


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table sources (id int primary key, plain_at timestamptz, exact_at timestamptz)")
        connection.execute("insert into sources select generate_series(1, %s)", [COUNT])
        connection.execute("create table ledger (n int)")
        yield connection


def rows(db: Db, sql: str) -> set[Row]:
    return {(poller, key) for poller, key in db.execute(sql)}


def visits(folder: Path) -> list[tuple[int, Row, int, str]]:
    """Each with the process, the row, the attempt and the idempotency key."""
    lines = (folder / "visits").read_text().splitlines() if (folder / "visits").exists() else []
    told = [line.split() for line in lines]
    return [(int(pid), (poller, int(key)), int(attempt), once) for pid, poller, key, attempt, once in told]


# by default the windows between claim and start, and between the handler's end and its stamp
OFTEN = [("claim.after", "loop"), ("run.after", "thread")]
STRIKES = [
    pytest.param(point, kind, marks=[] if (point, kind) in OFTEN else [pytest.mark.long])
    for point in POINTS
    for kind in ("loop", "thread")
]


@pytest.mark.long
@pytest.mark.parametrize(("point", "kind"), STRIKES)
def test_a_worker_killed_at_this_point_of_a_poll_loses_no_row_and_repeats_none_that_is_stamped(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], db: Db, tmp_path: Path, point: str, kind: str
) -> None:
    (file := tmp_path / "app.py").write_text(
        APP.format(
            point=point,
            mark=str(tmp_path / "struck"),
            visits=str(tmp_path / "visits"),
            async_="async " if kind == "loop" else "",
            await_="await " if kind == "loop" else "",
        )
    )

    victim = rota_worker(file, wait=False)
    assert victim.wait(30) == -9
    until_sync(lambda: not db.execute(UNDER_WAY).fetchall(), what="its last statements have ended")
    due = rows(db, DUE)
    held = rows(db, "select poller, (key ->> 0)::int from rota.poll_claims where member is not null")
    successor = rota_worker(file)
    until_sync(lambda: not rows(db, DUE), timeout=40, what="all rows are polled")
    until_sync(lambda: not db.execute("select from rota.poll_claims").fetchall(), what="nothing is remembered of them")
    successor.terminate()
    assert successor.wait() == 0

    begun = {row: once for pid, row, _, once in visits(tmp_path) if pid == victim.pid}
    again = {row: (attempt, once) for pid, row, attempt, once in visits(tmp_path) if pid == successor.pid}
    assert {row: attempt for row, (attempt, _) in again.items()} == {row: 2 if row in held else 1 for row in due}
    assert all(again[row][1] == once for row, once in begun.items() if row in again)
    assert successor.output().count("was lost with its process (loss 1)") == len(held)
    assert held or point in ("claim.before", "settle.after", "transaction.after_commit")
    assert sorted(n for (n,) in db.execute("select n from ledger")) == [*range(1, COUNT + 1)]
