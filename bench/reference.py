"""The reference: what a plain psycopg loop does with the same number of rows.

One connection claims rows in batches of 500 and deletes them again; no framework, no body, no history. Rota's drain is
given as a share of this rate, measured right beside it, since the machine drifts by half from minute to minute.
"""

from __future__ import annotations

import time

import psycopg

BATCH = 500

SET_UP = """
    drop table if exists reference_jobs;
    create table reference_jobs (
        id bigint generated always as identity primary key,
        queue text not null default 'default',
        priority smallint not null default 0,
        due_at timestamptz not null default now(),
        state text not null default 'queued',
        args jsonb not null
    ) with (fillfactor = 70);
    create index on reference_jobs (queue, priority desc, due_at, id) where state = 'queued'
"""

CLAIM = """
    update reference_jobs set state = 'running'
    where id = any (array(
        select id from reference_jobs
        where state = 'queued' and queue = 'default' and due_at <= now()
        order by priority desc, due_at, id
        limit %s
        for update skip locked
    ))
    returning id, args
"""


def drain_rate(dsn: str, jobs: int) -> float:
    """Rows claimed and deleted per second."""
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute(SET_UP, prepare=False)
        connection.execute(
            "insert into reference_jobs (args) select jsonb_build_object('i', i) from generate_series(1, %s) as i",
            [jobs],
        )
        began = time.perf_counter()
        done = 0
        while rows := connection.execute(CLAIM, [BATCH]).fetchall():
            connection.execute("delete from reference_jobs where id = any (%s)", [[row[0] for row in rows]])
            done += len(rows)
        took = time.perf_counter() - began
        connection.execute("drop table reference_jobs")
    assert done == jobs
    return jobs / took
