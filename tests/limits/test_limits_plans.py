"""What the statements of lines read, with two thousand lines, a hundred thousand jobs in one of them, and as many to join.

None may read more than its batch is worth, whatever the statistics say of the tables; see `tests/jobs/test_plans.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from tests.jobs.statements import CHANNEL, Db, ask, join, put
from tests.jobs.test_plans import Session

from rota.jobs.cancel import cancel_jobs
from rota.jobs.claim import ClaimedJob, claim_flow, join_lines
from rota.jobs.enqueue import digest
from rota.jobs.job import NewJob
from rota.jobs.lanes import Lane, find_lanes
from rota.jobs.limit import REFRESH
from rota.jobs.outcome import Succeeded
from rota.jobs.settle import succeed
from rota.jobs.worker import _PLANNING
from rota.postgres.query import nothing, statement
from rota.testing import DatabaseServer

pytestmark = [pytest.mark.one_server, pytest.mark.long, pytest.mark.timeout(180)]

LINES = 2_000
CROWD = 100_000
BATCH = 100
MINE = UUID(int=7)
TABLES = ("jobs", "lines")
BY = {
    "jobs_pkey",
    "jobs_waiting",
    "jobs_in_line",
    "jobs_arriving",
    "lines_pkey",
    "lines_ready",
    "lines_over",
    "limits_pkey",
}

# Of each line ten wait; of one a hundred thousand, of which the first runs; and as many are due and not in line.
FILL = """
    insert into rota.limits (task, running, by_key, argument) values ('t', 1, true, 'k');
    insert into rota.jobs (task, key, line, state, place)
    select 't', key, rota.line_of('t', key), 'blocked', nextval('rota.jobs_id_seq')
    from generate_series(1, 20000) as n, lateral (select (n % 2000)::text as key) as named;
    insert into rota.jobs (task, key, line, state, place, token, member, claimed_at)
    select 't', 'crowd', rota.line_of('t', 'crowd'), case when n = 1 then 'running' else 'blocked' end,
           nextval('rota.jobs_id_seq'), case when n = 1 then 1 end, case when n = 1 then lpad('7', 32, '0')::uuid end, now()
    from generate_series(1, 100000) as n;
    insert into rota.jobs (task, key, line, state, due_at)
    select 't', 'later', rota.line_of('t', (n % 2000)::text), 'blocked', now() - interval '1 hour'
    from generate_series(1, 100000) as n;
    insert into rota.lines (id, task, key, queue, priority, version, losses, ready_at)
    select distinct on (line) line, 't', key, 'default', 0, 1, 0, case when key <> 'crowd' then now() end
    from rota.jobs where place > 0
"""


@pytest.fixture(scope="module")
def crowded(rota_server: DatabaseServer) -> Iterator[str]:
    with rota_server.database() as dsn, psycopg.connect(dsn, autocommit=True) as db:
        if db.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() != (True,):
            pytest.skip("only a superuser may load auto_explain")
        for table in ("jobs", "lines"):
            db.execute(f"alter table rota.{table} set (autovacuum_enabled = off)")
        join(db, MINE)
        db.execute("analyze rota.jobs; analyze rota.lines; analyze rota.limits")
        db.execute(FILL)
        yield dsn


@pytest.fixture(scope="module", params=["when nothing waited", "true"])
def statistics(crowded: str, request: pytest.FixtureRequest) -> str:
    """In this order: they begin with the first."""
    if request.param == "true":
        with psycopg.connect(crowded, autocommit=True) as db:
            db.execute("vacuum analyze rota.jobs, rota.lines, rota.limits")
    return str(request.param)


@pytest.fixture(scope="module")
def worker(crowded: str, statistics: str) -> Iterator[Session]:
    session = Session(crowded, _PLANNING, TABLES)
    yield session
    session.db.close()


@pytest.fixture(scope="module")
def app(crowded: str, statistics: str) -> Iterator[Session]:
    session = Session(crowded, {}, TABLES)
    yield session
    session.db.close()


def first_of(db: Db, state: str) -> Any:
    row = db.execute(
        "select id from rota.jobs where line = rota.line_of('t', 'crowd') and state = %s order by place limit 1",
        [state],
    ).fetchone()
    assert row is not None
    return row[0]


def test_a_claim_from_lines_reads_what_it_takes(worker: Session) -> None:
    read = worker.settled_reading(
        claim_flow(
            lanes=[(Lane("default", 0, 0.0, lines=True), None)],
            tasks={"t": 1},
            limited=["t"],
            limit=BATCH,
            most_losses=0,
            token=1,
            member=MINE,
        )
    )

    assert len(read.told) == BATCH
    assert read.ways <= BY
    # of each: its line when it is found, read and full, and itself when it is chosen, locked and taken
    assert read.rows <= 8 * BATCH
    assert read.pages <= 20 * BATCH


def test_a_look_finds_the_lanes_of_lines_without_reading_them(worker: Session) -> None:
    read = worker.settled_reading(find_lanes(None))

    assert [(lane.queue, lane.lines) for lane in read.told.lanes] == [("default", True)]
    assert read.rows <= 20
    assert read.pages <= 200


def test_the_next_of_a_crowd_is_first_at_once(worker: Session) -> None:
    running = ClaimedJob(first_of(worker.db, "running"), "default", "t", 0, 1, 0, 0.0, "{}", 1)

    read = worker.settled_reading(succeed([Succeeded(running, None, 0.0)]))

    assert len(read.told) == 1
    assert read.ways <= BY
    assert read.rows <= 20
    assert read.pages <= 200


def test_joining_reads_what_joins(worker: Session) -> None:
    read = worker.settled_reading(join_lines(BATCH))

    assert read.told == BATCH
    assert read.ways <= {*BY, "jobs_joining"}
    assert read.rows <= 20 * BATCH
    assert read.pages <= 100 * BATCH


def test_who_enqueues_into_a_crowd_reads_none_of_it(app: Session) -> None:
    new = NewJob("t", "{}", key="crowd", line=digest("t", "crowd"))
    at_the_commit = statement("arrive", "set constraints all immediate").query(read=nothing)

    put_there = app.settled_reading(put(new))
    with app.db.transaction(force_rollback=True):
        ask(app.db, put(new))
        arrived = app.reading(at_the_commit)

    assert put_there.rows == 0
    assert "jobs_arriving" in arrived.ways <= {*BY, "jobs_arriving"}
    assert arrived.rows <= 50
    assert arrived.pages <= 200


def test_lines_are_refreshed_and_jobs_of_them_cancelled_by_their_names(app: Session) -> None:
    (lines,) = (
        app.db.execute("select array_agg(id) from (select id from rota.lines limit 100) as line").fetchone() or ()
    )

    refreshed = app.settled_reading(REFRESH.query({"lines": lines}, read=nothing))
    cancelled = app.settled_reading(cancel_jobs([first_of(app.db, "blocked")], None, CHANNEL))

    for read, most in ((refreshed, len(lines)), (cancelled, 1)):
        assert read.ways <= BY
        assert read.rows <= 20 * most
        assert read.pages <= 200 * most


def test_a_long_line_is_not_walked_from_its_start_again(crowded: str) -> None:
    """While an old transaction is open, what has gone from a line is still in its index."""
    session = Session(crowded, _PLANNING, TABLES)
    with session.db as db, psycopg.connect(crowded) as old:
        db.execute(
            """
            insert into rota.jobs (task, key, queue, line, state, place)
            select 'u', 'long', 'turns', rota.line_of('u', 'long'), 'blocked', nextval('rota.jobs_id_seq')
            from generate_series(1, 20000)
            """
        )
        db.execute("insert into rota.limits (task, running, by_key) values ('u', 10, true)")
        db.execute("insert into rota.lines (id, task, key) values (rota.line_of('u', 'long'), 'u', 'long')")
        db.execute("select rota.refresh_lines(array[rota.line_of('u', 'long')])")
        old.execute("set transaction isolation level repeatable read")
        old.execute("select 1")
        db.execute(
            "delete from rota.jobs where id in (select id from rota.jobs where task = 'u' order by id limit 15000)"
        )

        claims = claim_flow(
            lanes=[(Lane("turns", 0, 0.0, lines=True), None)],
            tasks={"u": 1},
            limit=10,
            most_losses=0,
            token=1,
            member=MINE,
        )
        claimed = session.settled_reading(claims)
        first, *_ = ask(db, claims)
        ended = session.settled_reading(succeed([Succeeded(first, None, 0.0)]))

        assert (len(claimed.told), len(ended.told)) == (10, 1)
        assert max(claimed.pages, ended.pages) <= 200
        db.execute("delete from rota.jobs where task = 'u'")
        db.execute("delete from rota.limits where task = 'u'")
