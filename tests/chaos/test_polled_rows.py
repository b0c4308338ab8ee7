"""Pollers with processes that die, freeze and take their time: each row is with one at a time, and none is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

StartWorker = Callable[..., WorkerProcess]
Db = psycopg.Connection[Any]

TABLE = """
    create table sources (id bigint primary key, note text not null default 'as it was', last_at timestamptz);
    create table visits (
        source bigint, pid integer, attempt integer, began timestamptz default clock_timestamp(), ended timestamptz
    );
"""
# Each visit is on record from its beginning to its end, beside whatever the poller itself writes.
APP = """
import asyncio, os, time
from pathlib import Path
import psycopg
from rota import Rota, current_poll

app = Rota({lease})

@app.poller(table="sources", last="last_at", interval="{interval}", concurrency=10, idle="1s")
def visit(source: dict) -> None:
    with psycopg.connect(app.database.dsn.conninfo, autocommit=True) as db:
        visited = db.execute(
            "insert into visits (source, pid, attempt) values (%s, %s, %s) returning ctid",
            [source["id"], os.getpid(), current_poll().attempt],
        ).fetchone()
        {body}
        db.execute("update visits set ended = clock_timestamp() where ctid = %s", visited)
"""
OVERLAPS = """
    select a.source
    from visits as a
    join visits as b on a.source = b.source and a.ctid < b.ctid
        and a.began < coalesce(b.ended, 'infinity') and b.began < coalesce(a.ended, 'infinity')
    where not (a.pid = any (%(dead)s) or b.pid = any (%(dead)s))
"""


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


def written(folder: Path, *, interval: str = "1h", body: str = "time.sleep(0.02)", lease: str = "") -> Path:
    file = folder / "app.py"
    file.write_text(APP.format(interval=interval, body=body, lease=lease))
    return file


def fill(db: Db, rows: int) -> None:
    db.execute("insert into sources (id) select generate_series(1, %s)", [rows])


def due(db: Db) -> int:
    found = db.execute("select count(*) from sources where last_at is null").fetchone()
    assert found is not None
    return int(found[0])


def visits(db: Db) -> Counter[int]:
    return Counter(dict(db.execute("select source, count(*) from visits group by 1").fetchall()))


ROUND = """
import asyncio, sys
sys.path.insert(0, {folder!r})
from app import visit
print((stats := asyncio.run(visit.run_once(max_rows=10))).claimed, stats.completed, stats.errors)
"""


@pytest.mark.long
def test_five_processes_take_ten_of_a_hundred_each_and_fifty_distinct_ones_in_all(
    db: Db, rota_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    fill(db, 100)
    monkeypatch.setenv("ROTA_DATABASE_URL", rota_database)

    rounds = [
        subprocess.Popen([sys.executable, "-c", ROUND.format(folder=str(tmp_path))], stdout=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    said = [each.communicate(timeout=60)[0].strip() for each in rounds]

    assert said == ["10 10 []"] * 5
    assert visits(db) == Counter(dict.fromkeys(visits(db), 1))
    assert len(visits(db)) == 50
    assert due(db) == 50
    assert db.execute("select count(*) from rota.poll_claims").fetchone() == (0,)
    assert db.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.direct("a death is noticed when its lease runs out")
def test_rows_of_a_killed_process_are_polled_by_others_and_none_is_left(
    rota_app: TestRota, rota_worker: StartWorker, db: Db, tmp_path: Path
) -> None:
    file = written(tmp_path, body="time.sleep(0.2)")
    workers = [rota_worker(file) for _ in range(3)]
    victim = workers[0]
    fill(db, 300)
    until_sync(lambda: db.execute("select from visits where pid = %s", [victim.pid]).fetchall(), what="it polls some")

    victim.kill()
    until_sync(lambda: due(db) == 0, timeout=30, what="all rows are polled")

    begun_there = {source for (source,) in db.execute("select source from visits where pid = %s", [victim.pid])}
    twice = {source for source, count in visits(db).items() if count > 1}
    assert twice <= begun_there
    assert set(visits(db)) == set(range(1, 301))
    assert db.execute(OVERLAPS, {"dead": [victim.pid]}).fetchall() == []
    assert db.execute("select count(*) from sources where note <> 'as it was'").fetchone() == (0,)
    until_sync(lambda: not db.execute("select from rota.poll_claims").fetchall(), what="nothing is remembered of them")


@pytest.mark.long
def test_a_process_frozen_past_its_lease_is_followed_and_stamps_nothing_when_it_wakes(
    rota_app: TestRota, rota_worker: StartWorker, db: Db, tmp_path: Path
) -> None:
    body = f"while not Path({str(tmp_path)!r}, f'go-{{os.getpid()}}').exists(): time.sleep(0.01)"
    file = written(tmp_path, body=body, lease='lease="2s"')
    fill(db, 1)
    sleeper = rota_worker(file)
    until_sync(lambda: visits(db) == {1: 1}, what="it is polled")

    sleeper.pause()
    peer = rota_worker(file)
    until_sync(lambda: visits(db) == {1: 2}, timeout=20, what="another polls it")
    (tmp_path / f"go-{sleeper.pid}").touch()
    sleeper.resume()
    until_sync(
        lambda: db.execute("select from visits where pid = %s and ended is not null", [sleeper.pid]).fetchall(),
        timeout=20,
        what="the sleeper is through",
    )
    sleeper.terminate()
    assert sleeper.wait() == 0  # so its outcome has been tried

    assert due(db) == 1
    assert db.execute("select losses, member is not null from rota.poll_claims").fetchall() == [(1, True)]
    (tmp_path / f"go-{peer.pid}").touch()
    until_sync(lambda: due(db) == 0, what="the peer stamps it")


OLDEST = """
    select coalesce(max(clock_timestamp() - activity.xact_start), '0')
    from pg_stat_activity as activity
    where activity.datname = current_database()
      and activity.application_name like 'rota:%'
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(150)])])
def test_while_a_handler_takes_its_time_no_transaction_of_ours_is_open(
    rota_app: TestRota, rota_worker: StartWorker, db: Db, tmp_path: Path, seconds: int
) -> None:
    name = rota_app.database.dsn.parameters["dbname"]
    db.execute(f"alter database \"{name}\" set idle_in_transaction_session_timeout = '1s'")  # type: ignore[arg-type]
    fill(db, 20)
    worker = rota_worker(written(tmp_path, body=f"time.sleep({seconds})"))
    until_sync(lambda: len(visits(db)) == 10, what="ten are polled at once")

    oldest = []

    def sampled() -> bool:
        (age,) = db.execute(OLDEST).fetchone()  # type: ignore[misc]
        oldest.append(age.total_seconds())
        return due(db) == 0

    until_sync(sampled, timeout=seconds * 2 + 30, what="all are polled")

    assert max(oldest) < 2  # and not the three seconds of a handler
    assert len(oldest) > 10
    assert visits(db) == Counter(dict.fromkeys(range(1, 21), 1))
    assert "lost" not in worker.output()


@pytest.mark.long
@pytest.mark.direct("rows are found by polling, later than this allows")
def test_rows_keep_their_pace_while_processes_come_and_go(
    rota_app: TestRota, rota_worker: StartWorker, db: Db, tmp_path: Path
) -> None:
    """No row is polled again before its interval is over, and none is forgotten, whoever is killed meanwhile."""
    file = written(tmp_path, interval="1s", body="time.sleep(0.005)")
    fill(db, 30)
    workers = [rota_worker(file) for _ in range(3)]
    killed = []
    for rounds in (3, 6):
        until_sync(lambda n=rounds: min(visits(db).values(), default=0) >= n, timeout=40)  # type: ignore[misc]
        victim = workers.pop(0)
        victim.kill()
        killed.append(victim.pid)
        workers.append(rota_worker(file))
    until_sync(lambda: min(visits(db).values()) >= 10, timeout=60, what="each row is polled ten times")
    for worker in workers:
        worker.terminate()
        assert worker.wait() == 0

    gaps = db.execute(
        """
        select next.began - visit.ended
        from visits as visit
        cross join lateral (
            select after.began from visits as after
            where after.source = visit.source and after.began > visit.began order by after.began limit 1
        ) as next
        where visit.ended is not null and visit.pid <> all (%s)
        """,
        [killed],
    ).fetchall()
    assert min(gap for (gap,) in gaps).total_seconds() >= 1
    assert len(gaps) > 100
    assert db.execute(OVERLAPS, {"dead": killed}).fetchall() == []


POLLING = "select from visits where pid = %s and ended is null"
SINCE = "select count(distinct source) from visits where began > %s"


@pytest.mark.long
@pytest.mark.parametrize("grace", ["25", "0"])
def test_workers_restarted_one_by_one_while_rows_are_due_lose_none_and_charge_no_attempt(
    rota_app: TestRota, rota_worker: StartWorker, db: Db, tmp_path: Path, grace: str
) -> None:
    """What runs ends within the grace, or is handed back and then polled by its first attempt as well."""
    file = written(tmp_path, interval="1s", body="time.sleep(0.3)")
    codes = {0} if grace == "25" else {0, 1}  # 1: it had to leave a thread behind

    def start() -> WorkerProcess:
        return rota_worker(file, args=["--grace", grace])

    workers = [start() for _ in range(2)]
    fill(db, 60)
    for old in [*workers]:
        until_sync(lambda pid=old.pid: db.execute(POLLING, [pid]).fetchall(), what="it polls")  # type: ignore[misc]
        old.terminate()
        assert old.wait() in codes
        workers.append(start())
    restarted = db.execute("select clock_timestamp()").fetchone()
    until_sync(lambda: db.execute(SINCE, restarted).fetchone() == (60,), timeout=30, what="each row is polled again")
    for new in workers[2:]:
        new.terminate()
        assert new.wait() in codes

    cut_off = {source for (source,) in db.execute("select source from visits where ended is null")}
    assert bool(cut_off) is (grace == "0")
    assert db.execute("select distinct attempt from visits").fetchall() == [(1,)]
    assert db.execute("select count(*) from rota.poll_claims").fetchone() == (0,)
    assert not any("lost" in worker.output() for worker in workers)
