"""`rota jobs search` and `rota jobs count`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rota.testing import TestRota

Run = Callable[..., Any]


def test_jobs_are_found_counted_and_more_is_told_of(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    send = rota_app.task(name="send", queue="mail", retry=None)(lambda to: 1 / 0)
    send.enqueue_sync({"name": "ada"})
    rota_app.drain_sync()
    rota_app.enqueue_many_sync([send.using(delay="1h").bind({"name": "bo"}) for _ in range(5)])

    found = rota("jobs", "search", "--arg", "to.name=ada", "--error", "zero", "--since", "2h", "--dsn", dsn)
    short = rota("jobs", "search", "--state", "queued", "--arg", "to.name=ada", "--reach", "3", "--dsn", dsn)
    page = json.loads(rota("jobs", "search", "--limit", "2", "--json", "--dsn", dsn).out)
    rest = json.loads(rota("jobs", "search", "--after", str(page["after"]), "--json", "--dsn", dsn).out)
    counted = rota("jobs", "count", "--queue", "mail", "--dsn", dsn)
    newest = rota("jobs", "count", "--reach", "2", "--dsn", dsn)
    none = rota("jobs", "search", "--until", "2020-01-01T00:00:00Z", "--dsn", dsn)
    wrong = rota("jobs", "search", "--arg", "to.name", "--dsn", dsn)

    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines()[1].split()[1:4] == ["dead", "mail", "send"]
    assert "no jobs fit" in short.err
    assert "looked back to" in short.err
    assert "there may be more: --after" in short.err
    assert len(page["jobs"]) + len(rest["jobs"]) == 6
    assert rest["after"] is None
    assert ["state", "queued", "5"] in [line.split() for line in counted.out.splitlines()]
    assert "6 job(s) in all" in counted.err
    assert "2 or more: only what was enqueued since" in newest.err
    assert "no jobs fit" in none.err
    assert (wrong.code, "user.id=1" in wrong.err) == (2, True)
