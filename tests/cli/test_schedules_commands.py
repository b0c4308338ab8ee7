"""`rota schedules`: what an operator sees of schedules and does to them, and what is left on record of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.commands import Command
from tests.schedules.rounds import give_out

from rota.testing import TestRota, until_sync

pytestmark = pytest.mark.usefixtures("history_aside")

Run = Callable[..., Any]

APP = """
from datetime import date

from rota import Rota

app = Rota()

@app.task(name="report", queue="reports", priority=3)
def report(day: date, copies: int = 1) -> str:
    return f"{copies} of {day}"
"""


@pytest.fixture
def dsn(rota_app: TestRota) -> str:
    assert rota_app.settings.dsn is not None
    return rota_app.settings.dsn.conninfo


@pytest.fixture
def sched(rota: Run, dsn: str) -> Run:
    """`rota schedules`, on the database of the test."""
    return lambda verb, *arguments: rota("schedules", verb, *arguments, "--dsn", dsn)


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app_file(tmp_path: Path) -> str:
    file = tmp_path / "reporting_app.py"
    file.write_text(APP)
    return str(file)


def audit(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("select actor, action from rota.audit order by id").fetchall()


def test_a_schedule_is_put_with_all_its_rules(sched: Run, rota_app: TestRota, app_file: str) -> None:
    rules = [
        *("--cron", "0 9 * * mon-fri", "--tz", "Europe/Berlin", "--dst-gap", "skip", "--dst-overlap", "twice"),
        *("--start-at", "2030-06-01T00:00", "--end-at", "2031-01-01T00:00Z", "--max-runs", "9", "--jitter", "30"),
        *(
            "--exclude",
            '{"dates": ["2030-12-25"]}',
            "--misfire",
            "all",
            "--misfire-grace",
            "5m",
            "--misfire-limit",
            "7",
        ),
        *("--overlap", "queue", "--queue", "nightly", "--key", "k", "--tag", "a", "--tag", "b", "--note", "for Ana"),
    ]

    done = sched("put", "r", "--task", "report", "--args", '{"day": "2030-01-31"}', *rules, "--app", app_file)

    assert (done.code, done.out) == (0, "")
    assert "schedule r is added\nAt 09:00 on Monday through Friday, Europe/Berlin time, except 2030-12-25" in done.err
    put = rota_app.schedules.get_sync("r")
    assert (put.cron, put.tz, put.dst_gap, put.dst_overlap) == ("0 9 * * mon-fri", "Europe/Berlin", "skip", "twice")
    # without an offset it is the time of --tz
    assert put.start_at == datetime(2030, 5, 31, 22, tzinfo=UTC)
    assert (put.end_at, put.max_runs) == (datetime(2031, 1, 1, tzinfo=UTC), 9)
    assert (put.jitter, put.exclude) == (timedelta(seconds=30), {"dates": ["2030-12-25"]})
    assert (put.misfire, put.misfire_grace, put.misfire_limit) == ("all", timedelta(minutes=5), 7)
    assert (put.overlap, put.queue, put.priority, put.key) == ("queue", "nightly", 3, "k")
    assert (put.tags, put.note, put.args) == (("a", "b"), "for Ana", {"day": "2030-01-31"})


@pytest.mark.parametrize(
    ("when", "kind", "words"),
    [
        (["--every", "90"], "every", "Every 1 minute 30 seconds"),
        (["--every", "1m", "--counted-from", "end"], "delay", "1 minute after the last run has ended"),
        (["--at", "2040-01-31T09:00:00Z"], "once", "Once, at 2040-01-31 09:00:00 UTC"),
        (["--after", "a", "--after", "b"], "after", "After each of 'a', 'b' succeeded"),
        (["--after", "a", "--dormant"], "after", "When a run of 'a' activates it"),
        (["--on", "order.paid"], "event", "On event 'order.paid'"),
        ([], "manual", "When it is triggered"),
    ],
)
def test_every_kind_can_be_put(
    sched: Run, rota_app: TestRota, when: list[str], kind: str, words: str
) -> None:  # fmt: skip
    rota_app.schedules.put_many_sync([{"name": name, "task": "t"} for name in ("a", "b")])

    done = sched("put", "s", "--task", "t", *when)

    assert (done.code, words in done.err, "were not checked" in done.err) == (0, True, True)
    assert rota_app.schedules.get_sync("s").kind == kind


def test_putting_says_whether_anything_changed(sched: Run, rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    put = ("put", "s", "--task", "t", "--every", "1h")

    tried = sched(*put, "--dry-run")
    assert (tried.code, "schedule s would be added" in tried.err, audit(db)) == (0, True, [])
    assert rota_app.schedules.list_sync() == []
    assert "schedule s is added" in sched(*put, "--by", "ana").err
    assert "schedule s says this already: nothing is changed" in sched(*put).err
    assert "schedule s would be changed" in sched(*put, "--priority", "2", "--dry-run").err
    changed = sched(*put, "--priority", "2", "--tag", "x", "--by", "bo").err
    assert "schedule s is changed\n  priority: 0 -> 2\n  tags: nothing -> x\nEvery hour" in changed

    assert [actor for actor, _ in audit(db)] == ["ana", "bo"]


def test_changing_leaves_what_is_not_given_as_it_is_and_tells_old_and_new(
    sched: Run, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    words = ("--cron", "0 9 * * *", "--tz", "Asia/Tokyo", "--max-runs", "9", "--tag", "a")
    sched("put", "s", "--task", "t", "--args", '{"a": 1, "b": 2}', *words)

    tried = sched("change", "s", "--cron", "0 8 * * *", "--dry-run")
    changes = ("--cron", "0 8 * * *", "--args", '{"b": 3}', "--end-at", "2040-01-01", "--reset", "max-runs")
    done = sched("change", "s", *changes, "--by", "ana")

    assert (tried.code, "schedule s would be changed\n  cron: 0 9 * * * -> 0 8 * * *\n" in tried.err) == (0, True)
    for line in ('args: {"a": 1, "b": 2} -> {"a": 1, "b": 3}', "max_runs: 9 -> nothing", "end_at: nothing -> 20"):
        assert f"  {line}" in done.err
    after = rota_app.schedules.get_sync("s")
    assert (after.cron, after.tz, after.tags, after.max_runs) == ("0 8 * * *", "Asia/Tokyo", ("a",), None)
    # without an offset it is the time of the schedule's zone
    assert after.end_at == datetime(2039, 12, 31, 15, tzinfo=UTC)
    assert audit(db)[-1] == ("ana", "schedule.change")
    assert "says this already" in sched("change", "s", "--cron", "0 8 * * *").err
    assert sched("change", "s", "--every", "soon").code == 2
    assert sched("change", "s", "--reset", "colour").code == 2
    assert sched("change", "x", "--every", "1h").code == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--cron", "61 * * * *"], "the minute cannot be '61'"),
        (["--cron", "* * * * *", "--every", "1m"], "cannot go together"),
        (["--every", "1 fortnight"], "'fortnight' is no unit"),
        (["--cron", "* * * * *", "--tz", "Europe/Berln"], "Europe/Berlin"),
        (["--at", "tomorrow"], "is no time"),
        (["--every", "1m", "--exclude", "{"], "is no JSON"),
        (["--every", "1m", "--exclude", '{"weekdays": ["someday"]}'], "a weekday is one of"),
        (["--every", "1m", "--args", "[]"], "is no JSON object"),
        (["--after", "nobody"], "nobody"),
    ],
)
def test_what_is_wrong_is_refused_with_field_and_reason(
    sched: Run, rota_app: TestRota, wrong: list[str], told: str
) -> None:
    refused = sched("put", "s", "--task", "t", *wrong)

    assert (refused.code, refused.out, told in refused.err) == (2, "", True), refused.err
    assert rota_app.schedules.list_sync() == []


def test_a_time_that_does_not_exist_is_told(sched: Run, rota_app: TestRota) -> None:
    put = ("put", "s", "--task", "t", "--tz", "Europe/Berlin", "--at")

    gap, other = sched(*put, "2030-03-31T02:30"), sched(*put, "2030-03-31T03:30")

    told = "2030-03-31T02:30 does not exist, as clocks go forward over it: it is taken for 2030-03-31 03:30:00 CEST\n"
    assert (gap.code, told in gap.err, "does not exist" in other.err) == (0, True, False)
    assert "says this already" in other.err
    # one with an offset is what it says
    assert "does not exist" not in sched(*put, "2030-03-31T02:30+01:00").err


def test_a_zero_is_something_said(sched: Run, rota_app: TestRota, app_file: str) -> None:
    put = ("put", "s", "--task", "report", "--args", '{"day": "2030-01-31"}', "--every", "1h", "--app", app_file)

    assert sched(*put, "--priority", "0").code == 0
    assert rota_app.schedules.get_sync("s").priority == 0
    assert sched(*put, "--max-runs", "0").code == 2


def test_with_the_app_tasks_and_arguments_are_checked(sched: Run, app_file: str) -> None:
    unknown = sched("put", "s", "--task", "nothing", "--app", app_file)
    unfit = sched("put", "s", "--task", "report", "--args", '{"day": "soon"}', "--app", app_file)

    assert (unknown.code, "It knows: report" in unknown.err) == (1, True)
    assert (unfit.code, "day" in unfit.err) == (1, True)


def test_the_list_tells_what_runs_when_what_came_of_it_and_what_is_idle_why(
    sched: Run, rota_app: TestRota
) -> None:  # fmt: skip
    @rota_app.task(name="good")
    def good() -> None: ...

    @rota_app.task(name="bad", retry=None)
    def bad() -> None:
        raise ConnectionError("no way")

    assert "no schedules fit" in sched("list").err
    rota_app.schedules.put_sync("a-good", task=good, every="1h")
    rota_app.schedules.put_sync("b-bad", task=bad, every="1h", misfire="all")
    rota_app.schedules.put_sync("c-child", task=good, after="b-bad")
    rota_app.schedules.put_sync("d-paused", task=good, cron="0 2 * * *")
    rota_app.schedules.pause_sync("d-paused", by="ana")
    rota_app.advance("2h")
    rota_app.drain_sync()
    give_out(rota_app)

    listed = sched("list").out
    lines = {line.split()[0]: line for line in listed.splitlines()}
    page = sched("list", "--limit", "2", "--after", "a-good")
    (paused,) = json.loads(sched("list", "--state", "paused", "--json").out)

    assert "Every hour, counted from" in lines["a-good"]
    assert "succeeded 20" in lines["a-good"]
    assert "active" in lines["a-good"]
    assert "no running worker knows its task 'good'" in lines["a-good"]
    assert "failed 20" in lines["b-bad"]
    assert "(2 in a row)" in lines["b-bad"]
    assert "its parent 'b-bad' is failing: 2 dead run(s) since its last success" in lines["c-child"]
    assert "paused by ana since" in lines["d-paused"]
    assert [line.split()[0] for line in page.out.splitlines()[1:]] == ["b-bad", "c-child"]
    assert "there may be more: --after c-child" in page.err
    assert (paused["name"], paused["state"], paused["when"]) == ("d-paused", "paused", "At 02:00 every day, UTC time")
    assert [line.split()[0] for line in sched("list", "--prefix", "b").out.splitlines()] == ["name", "b-bad"]


def test_times_are_this_machines_and_say_so(sched: Run, rota_app: TestRota, monkeypatch: pytest.MonkeyPatch) -> None:
    rota_app.schedules.put_sync("s", task="t", at=datetime(2040, 1, 31, 9, tzinfo=UTC))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()

    try:
        listed, shown = sched("list").out, sched("show", "s").out
    finally:
        monkeypatch.undo()
        time.tzset()

    assert "Once, at 2040-01-31 09:00:00 UTC  2040-01-31 10:00:00 CET" in listed
    assert "next       2040-01-31 10:00:00 CET\n" in shown


@pytest.mark.long
def test_a_task_is_known_while_a_worker_that_has_it_runs(
    sched: Run, rota_app: TestRota, app_file: str, dsn: str, tmp_path: Path
) -> None:
    rota_app.schedules.put_sync("r", task="report", args={"day": "2030-01-31"}, every="1h")

    with Command("worker", app_file, "--dsn", dsn, folder=tmp_path) as worker:
        worker.wait_for("working on all queues")
        while_it_runs = sched("list").out
        worker.interrupt()
        worker.wait()

    assert "no running worker" not in while_it_runs
    assert "no running worker knows its task 'report'" in sched("list").out


def test_a_schedule_and_its_runs_are_shown(sched: Run, rota_app: TestRota) -> None:
    @rota_app.task(name="flaky", retry=None)
    def flaky(n: int) -> None:
        if n:
            raise ConnectionError("no way")

    rota_app.schedules.put_sync("s", task=flaky, args={"n": 0}, cron="0 * * * *", jitter="1s", note="hourly")
    rota_app.schedules.trigger_sync("s")
    rota_app.schedules.trigger_sync("s", {"n": 1})
    rota_app.drain_sync()

    shown = sched("show", "s").out
    runs = [re.split("  +", line) for line in sched("history", "s").out.splitlines()[1:]]
    page = json.loads(sched("history", "s", "--limit", "1", "--json").out)

    for line in ("task       flaky", "state      active", 'arguments  {"n": 0}', "note       hourly"):
        assert f"{line}\n" in shown
    assert "misfire    once, grace 0:01:00, at most 100" in shown
    assert json.loads(sched("show", "s", "--json").out)["jitter"] == 1.0
    assert [run[2] for run in runs] == ["trigger", "trigger"]
    assert [run[3] for run in runs] == ["dead", "succeeded"]
    assert page[0]["error"] == "ConnectionError: no way"
    assert "no runs of t are on record" in sched("history", "t").err
    assert sched("show", "t").code == 1


def test_schedules_are_paused_resumed_and_deleted_by_name_of_who_did_it(
    sched: Run, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    for name in ("a", "b"):
        rota_app.schedules.put_sync(name, task="t", every="1h", by="code")

    assert "would pause schedule a, which is active" in sched("pause", "a", "--dry-run").err
    assert rota_app.schedules.get_sync("a").state == "active"
    paused = sched("pause", "a", "nobody", "b", "--by", "ana")
    assert (paused.code, "There is no schedule 'nobody'" in paused.err) == (1, True)
    assert "schedule a is paused by ana since" in sched("pause", "a", "--by", "bo").err
    assert "would resume schedule a, next at" in sched("resume", "a", "--dry-run").err
    resumed = sched("resume", "a", "--by", "bo")
    assert (resumed.code, "schedule a is active, next at" in resumed.err) == (0, True)
    assert "schedule a is not paused: it is active" in sched("resume", "a").err
    assert sched("delete", "a", "b", "--dry-run").code == 0
    assert sched("put", "c", "--task", "t", "--after", "b", "--by", "cy").code == 0
    deleted = sched("delete", "a", "c", "b", "--by", "cy", "--dry-run")
    assert "those that follow it are idle until it is back, or they are put anew: c" in deleted.err
    assert sched("delete", "c", "--by", "cy").code == 0
    assert sched("delete", "a", "b", "--by", "cy").code == 0

    assert rota_app.schedules.list_sync() == []
    assert audit(db)[2:] == [
        ("ana", "schedule.pause"),
        ("ana", "schedule.pause"),
        ("bo", "schedule.resume"),
        ("cy", "schedule.put"),
        ("cy", "schedule.delete"),
        ("cy", "schedule.delete"),
        ("cy", "schedule.delete"),
    ]


def test_what_is_broken_is_resumed_once_it_is_right(
    sched: Run, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    rota_app.schedules.put_sync("s", task="t", every="1h")
    db.execute("update rota.schedules set problem = 'odd', every = 'soon', next_at = null, next_slot = null")

    tried, still = sched("resume", "s", "--dry-run"), sched("resume", "s")
    db.execute("update rota.schedules set every = '1h'")
    mended = sched("resume", "s")

    assert (tried.code, "'s' would be broken still: every='soon'" in tried.err) == (1, True)
    assert (still.code, "'s' is broken still: every='soon'" in still.err) == (1, True)
    assert (mended.code, "schedule s is active, next at" in mended.err) == (0, True)


def test_a_run_by_hand_prints_its_job_and_is_not_doubled(sched: Run, rota_app: TestRota, app_file: str) -> None:
    rota_app.schedules.put_sync("r", task="report", args={"day": "2030-01-31"})

    tried = sched("trigger", "r", "--dry-run")
    first = sched("trigger", "r")
    again = sched("trigger", "r")
    other = sched("trigger", "r", '{"copies": 2}', "--delay", "1h", "--app", app_file)
    unfit = sched("trigger", "r", '{"copies": "many"}', "--app", app_file)

    assert (tried.code, tried.out, "would run report for schedule r" in tried.err) == (0, "", True)
    assert first.code == 0
    assert again.out == first.out
    assert "does this already: nothing was added" in again.err
    job = rota_app.jobs.get_sync(int(other.out))
    assert (job.args, job.due_at > job.created_at) == ({"day": "2030-01-31", "copies": 2}, True)
    assert unfit.code == 1
    assert len(rota_app.enqueued()) == 2
    assert sched("trigger", "r", "--delay", "1h", "--at", "2040-01-01").code == 2


def test_what_is_done_to_one_can_be_done_to_all_that_fit(sched: Run, rota_app: TestRota) -> None:
    put = rota_app.schedules.put_sync
    for name, tags in (("a-1", ["x"]), ("a-2", []), ("b-1", ["x", "y"])):
        put(name, task="t", every="1h", tags=tags)

    def named(state: str) -> list[str]:
        return [each.name for each in rota_app.schedules.list_sync(state=state)]

    tried = sched("pause", "--prefix", "a-", "--dry-run")
    assert (tried.code, named("paused")) == (0, [])
    assert "would pause schedule a-1, which is active\nwould pause schedule a-2, which is active\n" in tried.err
    assert sched("pause", "--tag", "x").code == 0
    assert named("paused") == ["a-1", "b-1"]
    assert sched("resume", "--tag", "x", "--prefix", "b", "--state", "paused").code == 0
    assert named("paused") == ["a-1"]
    ids = [int(line) for line in sched("trigger", "--tag", "x", '{"n": 7}').out.split()]
    assert [(job.schedule, job.args) for job in map(rota_app.jobs.get_sync, ids)] == [
        ("a-1", {"n": 7}),
        ("b-1", {"n": 7}),
    ]
    assert sched("trigger", "--prefix", "a", "--dry-run").err.count("would run t for schedule a-") == 2
    assert sched("delete", "--state", "paused").code == 0
    assert [each.name for each in rota_app.schedules.list_sync()] == ["a-2", "b-1"]


def test_which_schedules_are_meant_must_be_said(sched: Run, rota_app: TestRota) -> None:
    rota_app.schedules.put_sync("a", task="t", every="1h")

    for verb in ("pause", "resume", "trigger", "delete"):
        assert sched(verb).code == 2
        assert sched(verb, "--prefix", "").code == 2
        nothing = sched(verb, "--prefix", "z")
        assert (nothing.code, "no schedules fit: nothing is changed" in nothing.err) == (0, True)
    assert sched("pause", "a", "--prefix", "a").code == 2
    assert sched("trigger", "a", "{}", "--prefix", "a").code == 2
    assert sched("trigger", "--prefix", "a", "[]").code == 2
    assert (rota_app.schedules.get_sync("a").state, len(rota_app.enqueued())) == ("active", 0)


def test_one_of_many_that_cannot_be_run_keeps_no_other_from_it(sched: Run, rota_app: TestRota, app_file: str) -> None:
    rota_app.schedules.put_sync("a", task="report", args={"day": "soon"})
    rota_app.schedules.put_sync("b", task="report", args={"day": "2030-01-31"})

    done = sched("trigger", "--state", "waiting", '{"copies": 2}', "--app", app_file)

    assert (done.code, "Schedule 'a' was not triggered" in done.err) == (1, True)
    assert [job.args for job in rota_app.enqueued()] == [{"day": "2030-01-31", "copies": 2}]


def test_the_next_slots_are_shown_and_one_is_left_out(sched: Run, rota_app: TestRota) -> None:
    rota_app.schedules.put_sync("s", task="t", cron="0 9 * * *", tz="Europe/Berlin")
    rota_app.schedules.put_sync("m", task="t")

    first, second, third = json.loads(sched("preview", "s", "-n", "3", "--json").out)
    shown = sched("preview", "s", "-n", "3").out.splitlines()
    assert "would leave out the slot at" in sched("skip", "s", "--dry-run").err
    assert sched("skip", "s").code == 0

    assert shown[0].split() == ["Europe/Berlin", "UTC"]
    assert all(" 09:00:00 CE" in line for line in shown[1:])
    assert f"{datetime.fromisoformat(second):%Y-%m-%d %H:%M:%S}" in shown[2]
    assert json.loads(sched("preview", "s", "-n", "2", "--json").out) == [second, third]
    assert first < second
    nothing = sched("preview", "m")
    assert (nothing.code, "no slot is to come" in nothing.err, "it runs when it is triggered" in nothing.err) == (
        0,
        True,
        True,
    )
    assert sched("skip", "m").code == 1


def test_a_range_is_backfilled_in_the_zone_of_the_schedule(
    sched: Run, rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    rota_app.schedules.put_sync("s", task="t", cron="0 12 * * *", tz="Asia/Tokyo", overlap="allow")

    fill = ("backfill", "s", "2020-01-01", "2020-01-04T12:00")
    tried = sched(*fill, "--dry-run")
    done = sched(*fill, "--by", "ana")

    assert (tried.code, "would run: 3 slot(s) of schedule s" in tried.err) == (0, True)
    assert (done.code, "to run: 3 slot(s) of schedule s" in done.err) == (0, True)
    slots = db.execute("select slot_at at time zone 'UTC' from rota.slots order by 1").fetchall()
    assert slots == [(datetime(2020, 1, day, 3),) for day in (1, 2, 3)]
    assert "to run: 0 slot(s)" in sched(*fill).err
    turned = sched("backfill", "s", "2020-01-04", "2020-01-01")
    assert (turned.code, "nothing from 2020-01-03T15:00:00+00:00 to before 2019-12" in turned.err) == (2, True)
    many = sched("backfill", "s", "2000-01-01", "2020-01-01", "--limit", "10")
    assert (many.code, "Give a shorter range, or a higher limit." in many.err) == (2, True)
    assert sched("backfill", "s", "once upon", "a time").code == 2
    assert sched("backfill", "s", "0001-01-01", "2020-01-01").code == 2


def test_what_a_backfill_left_waiting_is_told_and_cleared(sched: Run, rota_app: TestRota) -> None:
    rota_app.schedules.put_sync("s", task="t", cron="0 12 * * *")
    rota_app.schedules.pause_sync("s")

    filled = sched("backfill", "s", "2020-01-01", "2020-01-04")
    tried = sched("clear", "s", "--dry-run")

    assert "to run: 3 slot(s) of schedule s\nit is paused: they wait until it is resumed" in filled.err
    assert "would clear: 3 waiting run(s) of schedule s" in tried.err
    assert "cleared: 3 waiting run(s) of schedule s" in sched("clear", "s", "--by", "ana").err
    assert rota_app.schedules.get_sync("s").waiting == 0
    assert sched("clear", "nobody").code == 1


def test_check_explains_lists_and_warns_without_a_database(tmp_path: Path) -> None:
    nowhere = {"ROTA_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    arguments = ("schedules", "check", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-10-23")

    with Command(*arguments, folder=tmp_path, env=nowhere) as checking:
        code = checking.wait()

    assert (code, checking.err) == (0, "")
    explained, _, header, *slots = checking.out.splitlines()
    assert explained == "At 02:30 every day, Europe/Berlin time"
    assert header.split() == ["Europe/Berlin", "UTC"]
    assert slots[2].rstrip() == "Sun 2026-10-25 02:30:00 CEST  2026-10-25 00:30:00"
    assert slots[3].rstrip() == "Mon 2026-10-26 02:30:00 CET   2026-10-26 01:30:00"
    assert slots[11] == "When the clocks change:"
    assert slots[12].startswith("- 2026-10-25: the clock goes back from 03:00 to 02:00. 02:30 comes twice: it runs at")
    assert slots[13].startswith("- 2027-03-28: the clock goes forward from 02:00 to 03:00. 02:30 does not exist:")
    assert slots[14].startswith("- 2027-10-31: ")


def test_check_takes_a_pace_names_for_h_and_what_is_excluded(rota: Run) -> None:
    pace = rota("schedules", "check", "--every", "12h", "--tz", "Europe/Berlin", "--from", "2026-10-20T06:00")
    spread = rota("schedules", "check", "H 2 * * *", "--name", "nightly", "-n", "3")
    weekdays = ("schedules", "check", "0 2 * * *", "--exclude", '{"weekdays": ["sat", "sun"]}')
    as_json = json.loads(rota(*weekdays, "--from", "2026-10-23T12:00Z", "-n", "1", "--json").out)

    assert "From then on it comes 1 h earlier by the wall clock" in pace.out
    assert len(spread.out.splitlines()) == 6
    assert as_json == {
        "when": "At 02:00 every day, UTC time, except sat, sun",
        "tz": "UTC",
        "slots": ["2026-10-26T02:00:00+00:00"],
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["0 25 * * *"], "the hour cannot be '25'"),
        (["0 2 * *"], "it has 4 fields"),
        (["0 2 30 2 *"], "it never comes"),
        (["0 2 * * *", "--tz", "Berlin"], "no such zone"),
        (["H 2 * * *"], "H is chosen by the schedule's name"),
        (["0", "2", "*", "*", "*"], "unexpected extra arguments"),
        (["0 2 * * *", "--every", "1m"], "one of them"),
        ([], "one of them"),
        (["--every", "1 fortnight"], "'fortnight' is no unit"),
        (["--every", "1m", "--dst-gap", "run"], "a pace has no choice there"),
        (["0 2 * * *", "--from", "9999-12-31"], "the years are 2 to 8999"),
        (["0 2 * * *", "--from", "0001-01-01", "--tz", "Asia/Tokyo"], "the years are 2 to 8999"),
    ],
)
def test_check_refuses_what_is_wrong_with_two_and_the_reason(rota: Run, wrong: list[str], told: str) -> None:
    refused = rota("schedules", "check", *wrong)

    assert (refused.code, refused.out, told in refused.err) == (2, "", True), refused.err


@pytest.mark.long
@pytest.mark.direct("a change is found by polling there, and not at once")
def test_a_change_reaches_a_running_worker_at_once(rota_app: TestRota, sched: Run, tmp_path: Path, dsn: str) -> None:
    file = tmp_path / "app.py"
    file.write_text("from rota import Rota\napp = Rota()\n\n@app.task(name='tick')\ndef tick() -> None: ...\n")
    with Command("worker", str(file), "--dsn", dsn, folder=tmp_path) as worker:
        worker.wait_for("working on all queues")
        sched("put", "s", "--task", "tick", "--every", "100ms")
        until_sync(lambda: rota_app.schedules.get_sync("s").succeeded_at is not None, what="it has run")

        sched("pause", "s")
        until_sync(lambda: rota_app.schedules.get_sync("s").live == 0, what="what was given out is done")
        runs = rota_app.schedules.get_sync("s").runs
        job = rota_app.jobs.get_sync(int(sched("trigger", "s").out))
        until_sync(lambda: job.refresh_sync().state == "succeeded", what="it has run by hand")

        assert rota_app.schedules.get_sync("s").runs == runs
        worker.interrupt()
        worker.wait()
