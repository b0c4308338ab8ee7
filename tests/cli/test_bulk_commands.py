"""`rota bulk`: what an operator sees before many jobs are changed, and of it afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rota.testing import TestRota

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("history_aside")]

Run = Callable[..., Any]


def test_a_bulk_is_shown_first_then_begun_shown_stopped_and_undone(
    rota: Run, rota_app: TestRota, rota_database: str
) -> None:
    work = rota_app.task(name="work")(lambda n: None)
    jobs = rota_app.enqueue_many_sync([work.using(delay="1h", tags=["blue"]).bind(n) for n in range(7)])
    db = ("--dsn", rota_database)

    tried = rota("bulk", "start", "cancel", "--tag", "blue", "--dry-run", *db)
    told = json.loads(rota("bulk", "start", "cancel", "--tag", "blue", "--dry-run", "--json", *db).out)
    unasked = rota("bulk", "start", "cancel", "--tag", "blue", *db)
    begun = rota("bulk", "start", "cancel", "--tag", "blue", "--reason", "no", "--by", "ana", "--yes", *db)
    rota_app.drain_sync()
    listed = json.loads(rota("bulk", "list", "--json", *db).out)
    table = rota("bulk", "list", *db)
    shown = rota("bulk", "show", begun.out.strip(), "--wait", *db)
    none_open = rota("bulk", "list", "--open", *db)
    would_undo = rota("bulk", "undo", begun.out.strip(), "--dry-run", *db)
    undoing = rota("bulk", "undo", begun.out.strip(), *db)
    stopped = rota("bulk", "stop", begun.out.strip(), *db)
    too_late = rota("bulk", "stop", begun.out.strip(), *db)

    assert "would cancel 7 job(s), such as:" in tried.err
    assert "no worker is running that would do it" in tried.err
    assert (told["count"], told["exact"], len(told["samples"])) == (7, True, 5)
    assert (unasked.code, "say --yes" in unasked.err) == (2, True)
    assert (begun.code, begun.out) == (0, "1\n")
    assert [(each["state"], each["done"], each["actor"]) for each in listed] == [("finished", 7, "ana")]
    assert "finished" in table.out
    assert "progress   100%" in shown.out
    assert '{"tag": "blue"}' in shown.out
    assert "no bulks fit" in none_open.err
    assert "would put back up to 7 job(s)" in would_undo.err
    assert "bulk 1 is undoing" in undoing.err
    assert "stopped bulk 1" in stopped.err
    assert (too_late.code, "is stopped already" in too_late.err) == (1, True)
    assert rota_app.jobs.get_sync(jobs[0].id).reason == "no"


def test_jobs_are_named_or_chosen_and_all_only_where_that_is_said(
    rota: Run, rota_app: TestRota, rota_database: str
) -> None:
    work = rota_app.task(name="work")(lambda n: None)
    jobs = rota_app.enqueue_many_sync([work.using(delay="1h").bind(n) for n in range(3)])
    db = ("--dsn", rota_database)

    unsaid = rota("bulk", "start", "cancel", "--yes", *db)
    both = rota("bulk", "start", "cancel", "1", "--tag", "blue", "--yes", *db)
    needs = rota("bulk", "start", "move", "--all", "--yes", *db)
    named = rota("bulk", "start", "move", str(jobs[1].id), "--to", "slow", "--yes", "--json", *db)
    by_argument = rota("bulk", "start", "put_off", "--arg", "n=2", "--delay", "5h", "--yes", *db)
    everything = rota("bulk", "start", "prioritise", "--all", "--priority", "3", "--yes", *db)
    nothing = rota("bulk", "start", "cancel", "--queue", "none", "--yes", *db)
    rota_app.drain_sync()

    assert [each.code for each in (unsaid, both)] == [2, 2]
    assert "say --all" in unsaid.err
    assert (needs.code, "move needs to" in needs.err) == (2, True)
    assert json.loads(named.out)["total"] == 1
    assert (by_argument.code, everything.code) == (0, 0)
    assert (nothing.code, "There is no job to cancel" in nothing.err) == (1, True)
    now = [rota_app.jobs.get_sync(job.id) for job in jobs]
    assert [job.queue for job in now] == ["default", "slow", "default"]
    assert [job.priority for job in now] == [3, 3, 3]
    assert [job.due_at > before.due_at for job, before in zip(now, jobs, strict=True)] == [False, False, True]
