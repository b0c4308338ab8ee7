"""Item 9: what a job costs the server, counted and not timed."""

from __future__ import annotations

import statistics
import time
from typing import Any

from field import wait_until
from speed_items.table import Row, Run

COUNTED = r"""
    select sum(calls)::bigint, left(regexp_replace(query, '\s+', ' ', 'g'), 90) as start
    from pg_stat_statements
    where dbid = (select oid from pg_database where datname = current_database())
      and query not like '%pg_stat_statements%'
    group by start
    order by 1 desc
"""


def cost(run: Run) -> list[Row]:
    jobs = run.size(50_000, 10_000)
    enqueued, drained, transactions = [], [], []
    for _ in range(3):
        with run.field.place(run.rota) as place:
            before = place.spent()[1]
            place.enqueue(mode="many", jobs=jobs)
            enqueued.append((place.spent()[1] - before) / jobs)
            place.sql("vacuum analyze")
            drain = place.drain(jobs)
            drained.append(drain.wal)
            transactions.append(drain.transactions)
    statements, by_kind = idle(run)
    for kind, rate in by_kind:
        run.say(f"idle worker: {rate:5.2f}/s {kind}")
    wal = statistics.median(drained)
    run.figures["9"] = {
        "wal_enqueued": enqueued, "wal_drained": drained, "transactions": transactions, "idle_statements": statements,
    }  # fmt: skip
    return [
        Row(9, "transactions per job drained", statistics.median(transactions), 0.02, at_most=True),
        Row(9, "WAL per job drained", wal, 650, 500, at_most=True, unit=" B"),
        Row(9, "WAL per job enqueued, 1,000 at once", statistics.median(enqueued), 400, at_most=True, unit=" B"),
        Row(9, "statements per second of an idle worker", statements, 3, at_most=True),
    ]


def idle(run: Run) -> tuple[float, list[tuple[str, float]]]:
    """Statements per second of a worker that has nothing to do, and which."""
    seconds = run.size(60, 20)
    with run.field.place(run.rota) as place:
        place.sql("create extension pg_stat_statements")
        # for sessions of this database from now on
        place.sql(f"alter database {place.db.info.dbname} set pg_stat_statements.track = 'top'")
        place.fill(100)
        with place.workers() as working:
            wait_until(working, 100, within=30)
            time.sleep(15)  # what follows the last job, and the first count of what was done
            place.sql("select pg_stat_statements_reset()")
            time.sleep(seconds)
            found = place.sql(COUNTED)
    return sum(calls for calls, _ in found) / seconds, [(name, calls / seconds) for calls, name in found]


ITEMS: dict[int, Any] = {9: cost}
