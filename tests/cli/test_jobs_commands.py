"""`rota jobs` and `rota dead`: what an operator does to jobs, and what is left on record of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.jobs.job import Job
from rota.testing import TestRota

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
    assert "arguments  {'name': 'ana'}" in shown
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
    assert done.out.split() == ["live", "0", "dead", "1", "history", "0", "attempts", "1", "uniques", "0"]
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
    assert job.due_at.isoformat() == "2999-01-31T09:00:00+00:00"


def test_with_an_app_the_call_is_checked_and_the_tasks_options_count(
    rota: Run, rota_app: TestRota, dsn: str, app_file: str
) -> None:
    call = ("jobs", "enqueue", "greet", "--app", app_file, "--dsn", dsn)

    refused = rota(*call, '{"name": 1}')
    unknown = rota("jobs", "enqueue", "great", "--app", app_file, "--dsn", dsn)
    first = rota(*call, '{"name": "ana", "times": 2}')
    second = rota(*call, '{"name": "ana"}')

    assert refused.code == 1
    assert "name is 1" in refused.err
    assert unknown.code == 1
    assert "It knows: greet" in unknown.err
    assert first.out == second.out
    (job,) = rota_app.enqueued()
    assert (job.queue, job.priority, job.args) == ("mail", 4, {"name": "ana", "times": 2})


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
