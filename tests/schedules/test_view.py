"""Looking at very many schedules beside many processes, each of which has much to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from tests.jobs.statements import ask
from tests.schedules.rows import Db, pages

from rota.schedules.declare import find_orphans
from rota.schedules.due import find_unknown_tasks
from rota.schedules.view import list_schedules


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def test_what_live_processes_know_is_read_once_for_all_schedules(db: Db) -> None:
    work = {
        "tasks": {f"task-{number}": 1 for number in range(500)},
        "schedules": {f"s-{number:03}": str(uuid4()) for number in range(480)},
    }
    for number in range(30):
        db.execute(
            "insert into rota.members (id, name, host, pid, release, expires_at, work, ended_at, end_reason) values "
            "(gen_random_uuid(), 'm', 'h', 1, 'r', rota.now() + interval '1 hour', %s, %s, %s)",
            [
                json.dumps(work if number else {"tasks": {"task-777": 1}}),
                *((None, None) if number else ("now", "left")),
            ],
        )
    db.execute(
        "insert into rota.schedules (name, task, kind, digest) "
        "select 's-' || to_char(i, 'fm000'), 'task-' || case i when 7 then 777 else i end, 'manual', gen_random_uuid() "
        "from generate_series(0, 499) as i"
    )
    db.execute("analyze rota.schedules; analyze rota.members")

    listing = list_schedules(None, prefix=None, state=None, limit=1000, after=None)
    found = ask(db, listing)
    assert [each.name for each in found if not each.declared] == [f"s-{number}" for number in range(480, 500)]
    assert [each.name for each in found if not each.known] == ["s-007"]
    assert ask(db, find_orphans(["s-481"])) == ["s-480", *(f"s-{number}" for number in range(482, 500))]
    assert ask(db, find_unknown_tasks(["task-1", "task-777"])) == {"task-777"}
    # each of them is some pages long
    assert pages(db, listing) < 6000
    assert pages(db, find_orphans([])) < 1000
    assert pages(db, find_unknown_tasks([f"task-{number}" for number in range(100)])) < 1000
