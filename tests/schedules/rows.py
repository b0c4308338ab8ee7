"""Schedules as rows, put there by plain SQL: what the scheduler makes of them is no matter of how they came to be."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import psycopg

from rota.postgres.notify import schedule_channel
from rota.postgres.query import Query

Db = psycopg.Connection[Any]


def now(db: Db) -> datetime:
    (clock,) = db.execute("select rota.now()").fetchone() or (None,)
    assert isinstance(clock, datetime)
    return clock


def add(db: Db, name: str, *, due_in: float | None = None, after: tuple[str, ...] = (), **columns: Any) -> None:
    """A schedule, `every` minute unless said otherwise, whose next slot is that many seconds away."""
    if not columns.keys() & {"kind", "cron", "at"}:
        columns |= {"kind": "every", "every": columns.get("every", "1m")}
    if due_in is not None:
        slot = now(db) + timedelta(seconds=due_in)
        columns = {"anchor": slot, "next_slot": slot, "next_at": slot, **columns}
    columns = {"name": name, "task": "noop", **columns}
    values = [json.dumps(value) if isinstance(value, dict) else value for value in columns.values()]
    db.execute(
        f"insert into rota.schedules ({', '.join(columns)}) values ({', '.join(['%s'] * len(columns))})",  # type: ignore[arg-type]
        values,
    )
    for parent in after:
        db.execute("insert into rota.schedule_parents (child, parent) values (%s, %s)", [name, parent])
    db.execute("select rota.notify(%s, '')", [schedule_channel("rota")])


def runs(db: Db, name: str) -> list[datetime]:
    """The slots of its runs that were given a job, in the order of their jobs."""
    found = db.execute(
        "select slot_at from rota.slots where schedule = %s and job_id is not null order by job_id", [name]
    )
    return [slot for (slot,) in found.fetchall()]


def waiting(db: Db, name: str) -> int:
    (count,) = db.execute(
        "select count(*) from rota.slots where schedule = %s and job_id is null", [name]
    ).fetchone() or (0,)
    return int(count)


def row(db: Db, name: str, columns: str) -> tuple[Any, ...]:
    found = db.execute(f"select {columns} from rota.schedules where name = %s", [name]).fetchone()  # type: ignore[arg-type]
    assert found is not None
    return found


def pages(db: Db, query: Query[Any]) -> int:
    """How many pages it reads, those inside of functions too."""
    plan = db.execute(f"explain (analyze, buffers, format json) {query.statement.sql('rota')}", query.params)  # type: ignore[arg-type]
    (told,) = plan.fetchone() or ([],)
    return int(told[0]["Plan"]["Shared Hit Blocks"] + told[0]["Plan"]["Shared Read Blocks"])
