"""`rota trends`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rota.jobs.tally import keep_tallies
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Run = Callable[..., Any]


def test_what_was_done_is_shown_by_time_task_and_queue(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    task = rota_app.task(name="t", queue="q")(lambda: None)
    before = rota("trends", "show", "--dsn", dsn)
    task.enqueue_sync()
    rota_app.drain_sync()
    task.enqueue_sync()
    rota_app.advance("10m")
    while (told := rota_app.database.run_steps_sync(keep_tallies())) and told.unfinished:
        pass

    shown = rota("trends", "show", "--since", "1h", "--task", "t", "--dsn", dsn)
    series = json.loads(rota("trends", "show", "--since", "1h", "--width", "5m", "--json", "--dsn", dsn).out)
    heat = json.loads(rota("trends", "heat", "--since", "3h", "--json", "--dsn", dsn).out)
    depths = rota("trends", "depths", "--queue", "q", "--dsn", dsn)
    marks = rota("trends", "marks", "--since", "3h", "--dsn", dsn)
    wrong = rota("trends", "show", "--since", "soon", "--dsn", dsn)

    assert "a worker does, once a minute" in before.err
    assert "counted until" in shown.err
    assert len(shown.out.splitlines()) in (61, 62)
    assert sum(bucket["succeeded"] for bucket in series["buckets"]) == 1
    assert series["width"] == 300
    assert [cell["task"] for cell in heat] == ["t"]
    assert depths.out.splitlines()[1].split()[-5:] == ["q", "1", "0", "0", "0"]
    assert " started " in marks.out
    assert wrong.code == 2
