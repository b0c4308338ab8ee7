"""`rota batches`: what an operator sees of jobs that were started together, and does to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from rota.testing import TestRota

pytestmark = pytest.mark.one_server

Run = Callable[..., Any]


def test_a_batch_is_listed_shown_and_cancelled(rota: Run, rota_app: TestRota, rota_database: str) -> None:
    work = rota_app.task(name="work")(lambda n: None)
    batch = rota_app.batches.start_sync([work.bind(1), work.bind(2)], name="import")
    rota_app.drain_sync()
    rest = rota_app.batches.start_sync([work.bind(3)])

    listed = json.loads(rota("batches", "list", "--json", "--dsn", rota_database).out)
    table = rota("batches", "list", "--name", "import", "--dsn", rota_database)
    opened = json.loads(rota("batches", "list", "--open", "--json", "--dsn", rota_database).out)
    shown = rota("batches", "show", str(batch.id), "--dsn", rota_database)
    as_json = json.loads(rota("batches", "show", str(batch.id), "--json", "--dsn", rota_database).out)
    tried = rota("batches", "cancel", str(rest.id), "--dry-run", "--dsn", rota_database)
    left = rest.progress_sync()
    done = rota("batches", "cancel", str(rest.id), "--reason", "no", "--by", "ada", "--dsn", rota_database)
    unknown = rota("batches", "cancel", "999", "--dsn", rota_database)

    assert [each["id"] for each in listed] == [rest.id, batch.id]
    assert [each["id"] for each in opened] == [rest.id]
    assert "import" in table.out
    assert "succeeded  2" in shown.out
    assert as_json["progress"]["succeeded"] == 2
    assert f"would cancel 1 job(s) of batch {rest.id}" in tried.err
    assert left.waiting == 1
    assert f"cancelled 1 job(s) of batch {rest.id}" in done.err
    assert rest.progress_sync().cancelled == 1
    assert (unknown.code, "There is no batch 999" in unknown.err) == (1, True)
    with psycopg.connect(rota_database) as db:
        audit = db.execute("select actor, action, details from rota.audit").fetchall()
    assert audit == [("ada", "cancel", {"batch": rest.id, "jobs": 1})]
