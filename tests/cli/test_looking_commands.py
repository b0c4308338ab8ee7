"""`rota audit` and `rota vitals`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rota.testing import TestRota

Run = Callable[..., Any]


def test_the_command_lists_what_was_done(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    job = rota_app.task(name="t")(lambda: None).using(delay="1h").enqueue_sync()
    rota_app.jobs.cancel_sync(job.id, by="ana")
    rota_app.queues.pause_sync("mail", reason="outage", by="bo")

    shown = rota("audit", "list", "--dsn", dsn)
    by_bo = json.loads(rota("audit", "list", "--actor", "bo", "--since", "1h", "--json", "--dsn", dsn).out)
    page = rota("audit", "list", "--limit", "1", "--dsn", dsn)
    none = rota("audit", "list", "--about", "nothing", "--dsn", dsn)

    assert [line.split()[3:5] for line in shown.out.splitlines()[1:]] == [["bo", "queue.pause"], ["ana", "cancel"]]
    assert [entry["action"] for entry in by_bo["entries"]] == ["queue.pause"]
    assert "there may be more: --after" in page.err
    assert "nothing fits" in none.err


def test_the_database_is_shown_as_it_is(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo

    shown = rota("vitals", "--dsn", dsn)
    as_json = json.loads(rota("vitals", "--json", "--dsn", dsn).out)

    assert (shown.code, "connections are in use" in shown.out) == (0, True)
    assert "history" in {line.split()[0] for line in shown.out.splitlines() if line}
    assert {"tables", "transactions", "horizon", "connections"} <= as_json.keys()
