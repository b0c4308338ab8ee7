"""`rota jobs` and `rota dead`: what an operator does to jobs, and what is left on record of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota import Retry, current_job
from rota.cli.target import find_app
from rota.jobs.job import Job
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Run = Callable[..., Any]

APP = """
from rota import Rota, Unique

app = Rota()

@app.task(name="greet", queue="mail", priority=4, retry=None, unique=Unique(by="name"))
def greet(name: str, times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)
"""


@pytest.fixture
def dsn(rota_app: TestRota) -> str:
    assert rota_app.settings.dsn is not None
    return rota_app.settings.dsn.conninfo


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app_file(tmp_path: Path) -> str:
    file = tmp_path / "greeting_app.py"
    file.write_text(APP)
    return str(file)


@pytest.fixture
def dead(rota_app: TestRota) -> list[Job[Any]]:
    """Three letters of the task `greet`."""

    @rota_app.task(name="greet", queue="mail", retry=None)
    def greet(name: str, times: int = 1) -> str:
        raise ConnectionError(f"no way to {name}")

    jobs = [greet.using(tags=[f"user:{name}"]).enqueue_sync(name) for name in ("ana", "bo", "cy")]
    rota_app.drain_sync()
    return jobs


def audit(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("select actor, action, details from rota.audit order by id").fetchall()


def test_a_waiting_job_is_shown_explained_and_retried(rota: Run, rota_app: TestRota, dsn: str) -> None:
    job = rota_app.task(name="t")(lambda: None).using(delay="1h", tags=["a"], key="k").enqueue_sync()

    shown = rota("jobs", "show", str(job.id), "--dsn", dsn).out
    explained = rota("jobs", "explain", str(job.id), "--dsn", dsn).out
    as_json = json.loads(rota("jobs", "explain", str(job.id), "--json", "--dsn", dsn).out)
    dry = rota("jobs", "retry", str(job.id), "--dry-run", "--dsn", dsn)
    assert (dry.code, dry.out, f"would retry job {job.id} (t), which is queued" in dry.err) == (0, "", True)
    retried = rota("jobs", "retry", str(job.id), "--dsn", dsn)

    assert [line.split()[0] for line in shown.splitlines()][:6] == [
        "id",
        "task",
        "version",
        "queue",
        "state",
        "priority",
    ]
    assert "key        k\n" in shown
    assert "No worker is running" in explained
    assert as_json["state"] == "queued"
    assert as_json["job"]["id"] == job.id
    assert len(as_json["reasons"]) == 2
    assert (retried.code, retried.out) == (0, f"{job.id}\n")
    rota_app.drain_sync()
    assert job.refresh_sync().state == "succeeded"


@pytest.mark.usefixtures("patient_logs")
def test_what_a_job_logged_is_shown_page_by_page_and_followed(rota: Run, rota_app: TestRota, dsn: str) -> None:
    @rota_app.task(name="t", retry=Retry(2, base=0.0))
    def chat() -> None:
        logging.getLogger("shop").warning("attempt %s, über → alles", current_job().attempt)
        if current_job().attempt == 1:
            raise ConnectionError

    job = str(chat.enqueue_sync().id)
    nothing = rota("jobs", "logs", job, "--dsn", dsn)
    rota_app.drain_sync()
    rota_app.drain_sync()

    assert (nothing.out, "nothing was kept" in nothing.err) == ("", True)
    shown = rota("jobs", "logs", job, "--dsn", dsn).out.splitlines()
    assert [line.partition("warning")[2].split(":", 1) for line in shown] == [
        ["  attempt 1 shop", " attempt 1, über → alles"],
        ["  attempt 2 shop", " attempt 2, über → alles"],
    ]
    first = rota("jobs", "logs", job, "--limit", "1", "--json", "--dsn", dsn)
    (line,) = json.loads(first.out)
    assert (line["attempt"], line["level"], line["logger"], line["number"]) == (1, "warning", "shop", 1)
    assert rota("jobs", "logs", job, "--after", str(line["id"]), "--dsn", dsn).out.splitlines() == shown[1:]
    followed = rota("jobs", "logs", job, "--follow", "--attempt", "2", "--json", "--dsn", dsn).out
    assert json.loads(followed)["message"] == "attempt 2, über → alles"
    assert "There is no job 404" in rota("jobs", "logs", "404", "--dsn", dsn).err


def test_jobs_are_cancelled_and_discarded_by_name_of_who_did_it(
    rota: Run, rota_app: TestRota, dsn: str, db: psycopg.Connection[Any]
) -> None:
    task = rota_app.task(name="t")(lambda: None)
    jobs = [task.enqueue_sync() for _ in range(3)]
    first, second, third = (str(job.id) for job in jobs)

    assert rota("jobs", "cancel", first, second, "--dry-run", "--dsn", dsn).code == 0
    assert [job.refresh_sync().state for job in jobs] == ["queued"] * 3
    assert audit(db) == []

    cancelled = rota("jobs", "cancel", first, "999", second, "--reason", "a mistake", "--by", "ana", "--dsn", dsn)
    discarded = rota("jobs", "discard", third, "--reason", "stuck", "--dsn", dsn)

    assert cancelled.code == 1
    assert "There is no job 999" in cancelled.err
    assert discarded.code == 0
    assert [job.refresh_sync().state for job in jobs] == ["cancelled"] * 3
    assert "reason     a mistake" in rota("jobs", "show", first, "--dsn", dsn).out
    (one, two, three) = audit(db)
    assert [one, two] == [("ana", "cancel", {"job": jobs[0].id}), ("ana", "cancel", {"job": jobs[1].id})]
    assert three[1:] == ("discard", {"job": jobs[2].id})
    assert "@" in three[0]
    assert rota("jobs", "cancel", "--dsn", dsn).code == 2


def test_letters_are_listed_and_shown(rota: Run, dsn: str, dead: list[Job[Any]]) -> None:
    ids = [job.id for job in reversed(dead)]

    listed = json.loads(rota("dead", "list", "--json", "--dsn", dsn).out)
    assert [letter["id"] for letter in listed] == ids
    table = rota("dead", "list", "--error", "way to ANA", "--dsn", dsn).out
    assert "ConnectionError: no way to ana" in table
    assert "bo" not in table
    assert "no letters fit" in rota("dead", "list", "--reason", "lost", "--dsn", dsn).err

    shown = rota("dead", "show", str(ids[-1]), "--dsn", dsn).out
    assert 'arguments  {"name": "ana"}\n' in shown
    assert "raise ConnectionError" in shown
    assert json.loads(rota("dead", "show", str(ids[-1]), "--json", "--dsn", dsn).out)["tags"] == ["user:ana"]
    assert rota("dead", "show", "999", "--dsn", dsn).code == 1


def test_a_letter_is_retried_with_other_arguments_and_both_are_shown(
    rota: Run, dsn: str, dead: list[Job[Any]], app_file: str
) -> None:
    id = str(dead[0].id)

    refused = rota("dead", "retry", id, "--args", '{"times": "two"}', "--app", app_file, "--dsn", dsn)
    retried = rota("dead", "retry", id, "--args", '{"name": "eve"}', "--app", app_file, "--dsn", dsn)
    again = rota("dead", "retry", id, "--dsn", dsn)
    followed = rota("jobs", "retry", id, "--dsn", dsn)

    assert refused.code == 1
    assert "times is 'two'" in refused.err
    assert retried.code == 0
    successor = retried.out.strip()
    assert again.code == 1
    assert f"retried as job {successor}" in again.err
    assert followed.out.strip() == successor
    shown = json.loads(rota("jobs", "show", successor, "--json", "--dsn", dsn).out)
    assert (shown["args"], shown["origin"], shown["successor"]) == ({"name": "eve"}, dead[0].id, None)
    assert f"repeats    {id}" in rota("jobs", "show", successor, "--dsn", dsn).out
    assert json.loads(rota("jobs", "show", id, "--json", "--dsn", dsn).out)["successor"] == int(successor)
    assert f"successor  {successor}" in rota("jobs", "show", id, "--dsn", dsn).out
    assert f"successor  {successor}" in rota("dead", "show", id, "--dsn", dsn).out


def test_letters_are_resolved_in_bulk_only_when_that_is_said(
    rota: Run, rota_app: TestRota, dsn: str, dead: list[Job[Any]], db: psycopg.Connection[Any]
) -> None:
    for verb in ("retry", "acknowledge"):
        assert rota("dead", verb, "--dsn", dsn).code == 2
        assert rota("dead", verb, str(dead[0].id), "--all", "--dsn", dsn).code == 2
    assert rota("dead", "retry", "--all", "--args", "{}", "--dsn", dsn).code == 2

    dry = rota("dead", "retry", "--tag", "user:ana", "--dry-run", "--dsn", dsn)
    assert "would retry 1 letter(s)" in dry.err
    assert "no way to ana" in dry.out
    assert len(rota_app.dead.list_sync()) == 3

    retried = rota("dead", "retry", "--all", "--task", "greet", "--error", "to ana", "--by", "bo", "--dsn", dsn)
    assert "would acknowledge 2 letter(s)" in rota("dead", "acknowledge", "--all", "--dry-run", "--dsn", dsn).err
    acknowledged = rota("dead", "acknowledge", "--all", "--note", "outage", "--dsn", dsn)

    assert "retried 1 letter(s)" in retried.err
    assert "acknowledged 2 letter(s)" in acknowledged.err
    assert rota_app.dead.list_sync() == []
    assert [letter.note for letter in rota_app.dead.list_sync(resolved=True)] == ["outage", "outage", None]
    assert [entry[1] for entry in audit(db)] == ["retry", "acknowledge"]
    assert audit(db)[0][0] == "bo"


def test_single_letters_are_acknowledged(rota: Run, rota_app: TestRota, dsn: str, dead: list[Job[Any]]) -> None:
    id = str(dead[0].id)

    assert "would acknowledge letter" in rota("dead", "acknowledge", id, "--dry-run", "--dsn", dsn).err
    assert rota("dead", "acknowledge", id, "--note", "known", "--by", "ana", "--dsn", dsn).code == 0
    assert rota("dead", "acknowledge", id, "--dsn", dsn).code == 1

    letter = rota_app.dead.get_sync(dead[0].id)
    assert (letter.resolution, letter.note, letter.resolved_by) == ("acknowledged", "known", "ana")
    assert "known" in rota("dead", "show", id, "--dsn", dsn).out
    assert len(json.loads(rota("dead", "list", "--resolved", "--json", "--dsn", dsn).out)) == 1


def test_everything_of_a_tag_is_erased(rota: Run, rota_app: TestRota, dsn: str, dead: list[Job[Any]]) -> None:
    dry = rota("jobs", "erase", "--tag", "user:ana", "--dry-run", "--dsn", dsn)
    done = rota("jobs", "erase", "--tag", "user:ana", "--by", "ana", "--dsn", dsn)

    assert "would erase" in dry.err
    assert dry.out == done.out
    assert done.out.split() == [
        "live",
        "0",
        "dead",
        "1",
        "history",
        "0",
        "attempts",
        "1",
        "uniques",
        "0",
        "schedules",
        "0",
        "logs",
        "0",
    ]
    assert [letter.id for letter in rota_app.dead.list_sync()] == [dead[2].id, dead[1].id]
    assert rota("jobs", "erase", "--dsn", dsn).code == 2


def test_a_call_is_enqueued_as_it_is_given(rota: Run, rota_app: TestRota, dsn: str) -> None:
    options = ["--queue", "q", "--priority", "7", "--delay", "1h", "--tag", "a", "--tag", "b", "--key", "k"]

    dry = rota("jobs", "enqueue", "anything", '{"a": 1}', *options, "--dry-run", "--dsn", dsn)
    enqueued = rota("jobs", "enqueue", "anything", '{"a": 1}', *options, "--dsn", dsn)

    assert (dry.code, dry.out) == (0, "")
    (job,) = rota_app.enqueued()
    assert enqueued.out == f"{job.id}\n"
    assert (job.task, job.args, job.queue, job.priority, job.tags, job.key) == (
        "anything",
        {"a": 1},
        "q",
        7,
        ("a", "b"),
        "k",
    )
    assert 3500 < (job.due_at - job.created_at).total_seconds() <= 3600


def test_a_unique_call_is_enqueued_once(rota: Run, rota_app: TestRota, dsn: str) -> None:
    first = rota("jobs", "enqueue", "t", "--unique", "k", "--at", "2999-01-31T09:00:00Z", "--dsn", dsn)
    second = rota("jobs", "enqueue", "t", "--unique", "k", "--dsn", dsn)

    assert first.out == second.out
    assert "nothing was added" in second.err
    (job,) = rota_app.enqueued()
    assert job.due_at == datetime(2999, 1, 31, 9, tzinfo=UTC)


def test_with_an_app_the_call_is_checked_and_the_tasks_options_count(
    rota: Run, rota_app: TestRota, dsn: str, app_file: str
) -> None:
    call = ("jobs", "enqueue", "greet", "--app", app_file, "--dsn", dsn)

    refused = rota(*call, '{"name": 1}')
    unknown = rota("jobs", "enqueue", "great", "--app", app_file, "--dsn", dsn)
    first = rota(*call, '{"name": "ana", "times": 2}')
    second = rota(*call, '{"name": "ana"}')

    assert refused.code == 1
    assert refused.err.startswith(
        "rota: Task 'greet' was not enqueued: name is 1 (int), expected text. The call is greet("
    )
    assert unknown.code == 1
    assert "It knows: greet" in unknown.err
    assert first.out == second.out
    (job,) = rota_app.enqueued()
    assert (job.queue, job.priority, job.args) == ("mail", 4, {"name": "ana", "times": 2})


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    "wrong",
    [
        ["t", "[1]"],
        ["t", "{"],
        ["t", '{"a": NaN}'],
        ["t", "--at", "tomorrow"],
        ["t", "--delay", "soon"],
        ["t", "--delay", "1h", "--at", "2999-01-31T09:00:00Z"],
        ["t", "--priority", "99999"],
        ["t", "--queue", ""],
    ],
)
def test_a_call_that_cannot_be_is_refused(rota: Run, rota_app: TestRota, dsn: str, wrong: list[str]) -> None:
    assert rota("jobs", "enqueue", *wrong, "--dsn", dsn).code == 2
    assert rota_app.enqueued() == []


def test_payloads_are_shown_as_the_json_they_are(rota: Run, rota_app: TestRota, dsn: str) -> None:
    echo = rota_app.task(name="echo")(lambda value: value)
    job = echo.enqueue_sync({"a": [None, True, "ä"]})
    text = echo.enqueue_sync("7")
    rota_app.drain_sync()

    shown = rota("jobs", "show", str(job.id), "--dsn", dsn).out
    assert 'arguments  {"value": {"a": [null, true, "ä"]}}\n' in shown
    assert 'result     {"a": [null, true, "ä"]}\n' in shown
    assert 'result     "7"\n' in rota("jobs", "show", str(text.id), "--dsn", dsn).out


@pytest.fixture
def ended(rota_app: TestRota) -> dict[str, str]:
    """The ids of jobs that have ended, by how."""
    rota_app.task(name="well", retry=None)(lambda: None).enqueue_sync()

    @rota_app.task(name="badly", retry=None)
    def badly() -> None:
        raise ValueError

    badly.enqueue_sync()
    badly.enqueue_sync()
    rota_app.drain_sync()
    acknowledged, dead, succeeded = (job.id for job in rota_app.jobs.list_sync())
    rota_app.dead.acknowledge_sync(acknowledged)
    cancelled = rota_app.task(name="never")(lambda: None).enqueue_sync().cancel_sync()
    ids = {"succeeded": succeeded, "dead": dead, "acknowledged": acknowledged, "cancelled": cancelled.id}
    return {name: str(id) for name, id in ids.items()}


@pytest.mark.by_default(
    "cancel-succeeded-1-(well) has succeeded: nothing is left to cancel.-dry0",
    "discard-acknowledged-1-(badly) is dead, and its letter is resolved: nothing is left to discard.-dry0",
)
@pytest.mark.parametrize("dry", [[], pytest.param(["--dry-run"], marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("verb", "how", "code", "says"),
    [
        ("cancel", "succeeded", 1, "(well) has succeeded: nothing is left to cancel."),
        ("discard", "succeeded", 1, "(well) has succeeded: nothing is left to discard."),
        ("cancel", "dead", 1, "(badly) is dead: nothing is left to cancel. To put its letter away: rota jobs discard"),
        ("discard", "acknowledged", 1, "(badly) is dead, and its letter is resolved: nothing is left to discard."),
        ("cancel", "cancelled", 0, "(never) was cancelled already, at"),
        ("discard", "cancelled", 0, "(never) was cancelled already, at"),
    ],
)
def test_who_ends_a_job_that_has_ended_is_told(
    rota: Run, dsn: str, ended: dict[str, str], verb: str, how: str, code: int, says: str, dry: list[str]
) -> None:
    told = rota("jobs", verb, ended[how], *dry, "--dsn", dsn)

    assert told.code == code
    assert says in told.err
    assert "would" not in told.err


def test_a_dry_run_refuses_what_would_be_refused_and_changes_nothing(
    rota: Run, rota_app: TestRota, dsn: str, db: psycopg.Connection[Any], ended: dict[str, str]
) -> None:
    once = rota_app.task(name="once", unique="k", retry=None)(lambda: 1 / 0)
    letter = once.enqueue_sync()
    rota_app.drain_sync()
    live = once.enqueue_sync()
    running = rota_app.task(name="t")(lambda: None).enqueue_sync()
    db.execute(
        "update rota.jobs set state = 'running', token = 1, member = gen_random_uuid(), claimed_at = now() where id = %s",
        [running.id],
    )
    before = everything(db)

    for call, says in [
        (("jobs", "retry", "999"), "There is no job 999"),
        (("jobs", "retry", str(running.id)), "is running, so there is nothing to retry yet"),
        (("jobs", "retry", str(letter.id)), f"job {live.id}, which is queued, has its unique key"),
        (("jobs", "retry", ended["acknowledged"]), "is resolved: acknowledged by"),
        (("jobs", "retry", ended["succeeded"], "--by", ""), "by cannot be ''"),
        (("dead", "retry", "999"), "There is no dead letter 999"),
        (("dead", "retry", str(letter.id)), f"job {live.id}, which is queued, has its unique key"),
        (("dead", "retry", ended["acknowledged"]), "is resolved: acknowledged by"),
        (("dead", "acknowledge", ended["acknowledged"]), "is resolved: acknowledged by"),
        (("dead", "acknowledge", "999"), "There is no dead letter 999"),
    ]:
        dry = rota(*call, "--dry-run", "--dsn", dsn)
        assert (dry.code > 0, says in dry.err) == (True, True), (call, dry)
        assert rota(*call, "--dsn", dsn) == dry
    for call, says in [
        (("jobs", "retry", ended["dead"]), "(badly), which is dead, as another job"),
        (("jobs", "retry", ended["succeeded"]), "(well), which is succeeded, as another job"),
        (("jobs", "retry", str(live.id)), "(once), which is queued\n"),
        (("jobs", "cancel", str(running.id)), "(t), which is running"),
        (("jobs", "discard", ended["dead"]), "(badly), which is dead"),
        (("dead", "retry", ended["dead"]), "would retry letter"),
        (("dead", "acknowledge", ended["dead"]), "would acknowledge letter"),
    ]:
        dry = rota(*call, "--dry-run", "--dsn", dsn)
        assert (dry.code, dry.out, says in dry.err) == (0, "", True), (call, dry)
    assert everything(db) == before


def everything(db: psycopg.Connection[Any]) -> list[Any]:
    tables = ("jobs", "dead", "history", "attempts", "uniques", "audit")
    return [db.execute(f"select * from rota.{table} order by 1, 2").fetchall() for table in tables]


def test_a_dry_run_checks_edited_arguments(rota: Run, dsn: str, dead: list[Job[Any]], app_file: str) -> None:
    call = ("dead", "retry", str(dead[0].id), "--app", app_file, "--dry-run", "--dsn", dsn)

    assert "would retry letter" in rota(*call, "--args", '{"times": 2}').err
    refused = rota(*call, "--args", '{"times": "two"}')
    assert refused.code == 1
    assert f"Letter {dead[0].id} was not retried, and stays: times is 'two' (str), expected an integer." in refused.err


def test_a_dry_run_counts_only_letters_whose_unique_key_is_free(rota: Run, rota_app: TestRota, dsn: str) -> None:
    once = rota_app.task(name="once", retry=None)(lambda: 1 / 0)
    for key in ("held", "free", "free", None):
        once.using(unique=key).enqueue_sync()
        rota_app.drain_sync()
    once.using(unique="held").enqueue_sync()

    dry = rota("dead", "retry", "--all", "--dry-run", "--dsn", dsn)
    real = rota("dead", "retry", "--all", "--dsn", dsn)

    assert "would retry 2 letter(s), such as:\n" in dry.err
    assert "2 that fit stay open: a live job has their unique key, or another letter with it comes first" in dry.err
    assert real.err == dry.err.replace("would retry 2 letter(s), such as:", "retried 2 letter(s)")


def test_a_dry_run_of_an_enqueue_tells_what_it_would_do(
    rota: Run, rota_app: TestRota, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "once_app.py").write_text(
        "from rota import Rota, Unique\n"
        "app = Rota()\n"
        "@app.task(name='once', unique=Unique(conflict='raise'), redact=['password'])\n"
        "def once(user: str, password: str) -> None: ...\n"
    )
    call = ("jobs", "enqueue", "once", '{"user": "ana", "password": "hunter2"}', "--dsn", dsn)
    checked = (*call, "--app", str(tmp_path / "once_app.py"))

    dry = rota(*checked, "--dry-run")
    assert (dry.code, dry.out) == (0, "")
    assert dry.err == 'would enqueue once on queue default with {"user": "ana", "password": "•••"}\n'
    assert rota_app.enqueued() == []
    assert rota(*checked).code == 0
    refused = rota(*checked, "--dry-run")
    assert refused.code == 1
    assert "'once' was not enqueued: job 2, which is queued, has the same unique key." in refused.err
    assert "hunter2" not in refused.err

    rota("jobs", "enqueue", "other", "--unique", "k", "--dsn", dsn)
    there = rota("jobs", "enqueue", "other", "--unique", "k", "--dry-run", "--dsn", dsn)
    assert (there.code, there.out) == (0, "")
    assert "which is queued, has this unique key: nothing would be added" in there.err
    assert len(rota_app.enqueued()) == 2


def test_a_call_that_nobody_checked_says_so_and_what_to_do(
    rota: Run, rota_app: TestRota, dsn: str, app_file: str
) -> None:
    unchecked = rota("jobs", "enqueue", "gret", "--dsn", dsn)
    checked = rota("jobs", "enqueue", "greet", '{"name": "ana"}', "--app", app_file, "--dsn", dsn)

    id = unchecked.out.strip()
    assert unchecked.err == (
        "The call was not checked, and no options of its task count: name the app with --app for that. "
        f"Whether a worker takes it: rota jobs explain {id}\n"
    )
    assert checked.err == ""


def test_a_key_alone_means_the_same_with_and_without_an_app(
    rota: Run, rota_app: TestRota, dsn: str, db: psycopg.Connection[Any], app_file: str
) -> None:
    first = rota("jobs", "enqueue", "greet", '{"name": "ana"}', "--unique", "k", "--dsn", dsn)
    second = rota("jobs", "enqueue", "greet", '{"name": "bo"}', "--unique", "k", "--app", app_file, "--dsn", dsn)

    assert first.out == second.out
    assert rota("jobs", "enqueue", "greet", "--unique", "", "--dsn", dsn).code == 2


def test_a_bare_number_is_a_delay_in_seconds(rota: Run, rota_app: TestRota, dsn: str) -> None:
    rota("jobs", "enqueue", "t", "--delay", "90", "--dsn", dsn)

    (job,) = rota_app.enqueued()
    assert 89 < (job.due_at - job.created_at).total_seconds() <= 90


def test_a_full_page_says_how_to_go_on(rota: Run, rota_app: TestRota, dsn: str, dead: list[Job[Any]]) -> None:
    for group in ("jobs", "dead"):
        page = rota(group, "list", "--limit", "2", "--dsn", dsn)
        assert page.err == f"there may be more: --after {dead[1].id}\n"
        assert rota(group, "list", "--limit", "2", "--after", str(dead[1].id), "--dsn", dsn).err == ""
        assert rota(group, "list", "--after", "0", "--dsn", dsn).code == 2


def test_with_an_app_payloads_are_read_by_its_codec_and_masked_by_its_tasks(
    rota: Run, rota_database: str, dsn: str, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    file = tmp_path / "coded_app.py"
    file.write_text(
        "from rota import Rota\n"
        "class Backwards:\n"
        "    def encode(self, text): return text[::-1]\n"
        "    def decode(self, text): return text[::-1]\n"
        "app = Rota(codec=Backwards())\n"
        "@app.task(name='log_in', retry=None, redact=['password'])\n"
        "def log_in(user: str, password: str) -> None: raise PermissionError(password)\n"
    )
    app = find_app(str(file), rota_database)
    app.tasks["log_in"].enqueue_sync("ana", "hunter2")
    db.execute("""select rota.enqueue('log_in', '{"user": "bo", "password": "hunter2"}')""")
    app.work_sync(drain=True)

    for command in ("jobs", "dead"):
        listed = rota(command, "list", "--json", "--app", str(file), "--dsn", dsn).out
        assert [each["args"] for each in json.loads(listed)] == [
            {"user": "bo", "password": "•••"},
            {"user": "ana", "password": "•••"},
        ]
        shown = rota(command, "show", "1", "--app", str(file), "--dsn", dsn).out
        assert 'arguments  {"user": "ana", "password": "•••"}\n' in shown
        assert "hunter2" not in shown
        assert "rota:coded" in rota(command, "show", "1", "--dsn", dsn).out
    assert "hunter2" not in rota("jobs", "explain", "2", "--json", "--app", str(file), "--dsn", dsn).out


def test_the_way_to_the_missing_tables_names_their_schema(rota: Run, rota_app: TestRota, dsn: str) -> None:
    for schema, command in [("other", "rota migrate --schema other"), ("my own", "rota migrate --schema 'my own'")]:
        missing = rota("jobs", "list", "--schema", schema, "--dsn", dsn)
        assert missing.code == 5
        assert f"Run `{command}` on it." in missing.err


def test_a_database_that_is_away_is_said_in_one_line(rota: Run) -> None:
    for call in (["jobs", "list"], ["jobs", "cancel", "1", "2"], ["dead", "retry", "--all"], ["jobs", "enqueue", "t"]):
        away = rota(*call, "--dsn", "host=127.0.0.1 port=1 connect_timeout=2")
        assert (away.code, away.out, away.err.count("\n")) == (4, "", 1)
        assert "Nothing is wrong with the call; check that the server is up" in away.err


@pytest.mark.parametrize("group", ["jobs", "dead"])
def test_help_says_what_each_command_and_option_does(rota: Run, group: str) -> None:
    commands = re.findall(r"^  (\w+) +(.+)$", rota(group, "--help").out.partition("Commands:")[2], re.MULTILINE)
    assert commands
    assert [text for _, text in commands if text.endswith("...")] == []
    for command, _ in commands:
        shown = rota(group, command, "--help").out.partition("Options:")[2]
        assert re.findall(r"^  --[a-z-]+(?: (?:[A-Z ]+|\[[^\]]+\]))?$(?!\n {8})", shown, re.MULTILINE) == []
