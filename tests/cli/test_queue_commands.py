"""`rota queues`: what an operator sees of queues and says about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.jobs.test_explain import add, join

from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Run = Callable[..., Any]
Db = psycopg.Connection[Any]


@pytest.fixture
def dsn(rota_app: TestRota) -> str:
    assert rota_app.settings.dsn is not None
    return rota_app.settings.dsn.conninfo


@pytest.fixture
def db(dsn: str) -> Iterator[Db]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def rows(db: Db, columns: str) -> list[Any]:
    return db.execute(f"select {columns} from rota.queues order by name").fetchall()


def test_queues_are_listed_and_shown_as_tables_and_as_json(rota: Run, dsn: str, db: Db, tmp_path: Path) -> None:
    assert "no queue has jobs" in rota("queues", "list", "--dsn", dsn).err
    file = tmp_path / "queued_app.py"
    file.write_text("from rota import Rota\napp = Rota()\napp.task(name='t', queue='declared')(print)\n")
    add(db, 2, queue="mail", due_at="2024-01-01 UTC")
    add(db, 1, queue="mail", state="blocked")
    join(db, queues=["mail"])
    rota("queues", "pause", "mail", "--reason", "provider is down", "--by", "ana", "--dsn", dsn)
    rota("queues", "limit", "mail", "--running", "3", "--rate", "100/1m", "--by", "bob", "--dsn", dsn)
    rota("queues", "weight", "mail", "2.5", "--dsn", dsn)

    listed = rota("queues", "list", "--dsn", dsn)
    as_json = json.loads(rota("queues", "list", "--json", "--app", str(file), "--dsn", dsn).out)
    shown = rota("queues", "show", "mail", "--dsn", dsn)
    one = json.loads(rota("queues", "show", "mail", "--json", "--dsn", dsn).out)

    assert listed.out.splitlines()[0].split() == [
        *["name", "state", "due", "queued", "blocked", "running", "oldest", "workers", "limits", "weight"]
    ]
    mail = " ".join(listed.out.splitlines()[1].split())
    assert mail.startswith("mail paused by ana (provider is down) 2 2 1 0 ")
    assert mail.endswith("d 1 3 running, 100/1m 2.5")
    assert [each["name"] for each in as_json] == ["declared", "mail"]
    assert (one["due"], one["rate"], one["paused_by"], one["paused_until"]) == (2, "100/1m", "ana", None)
    assert "limits     3 running, 100/1m" in shown.out
    assert "state      paused by ana (provider is down)" in shown.out
    assert "nobody has used" not in shown.err


def test_queues_are_relaxed_and_tightened(rota: Run, dsn: str, db: Db) -> None:
    add(db, queue="metrics")
    tried = rota("queues", "relax", "metrics", "--dry-run", "--dsn", dsn)
    relaxed = rota("queues", "relax", "metrics", "traces", "--by", "ana", "--dsn", dsn)
    shown = rota("queues", "show", "metrics", "--dsn", dsn)
    tightened = rota("queues", "tighten", "metrics", "--dsn", dsn)

    assert tried.err == "would relax queue metrics\n"
    assert relaxed.err.splitlines()[:2] == ["queue metrics: relaxed", "queue traces: relaxed"]
    assert "nobody has used queue traces so far" in relaxed.err
    assert "on disk    a moment later (relaxed)" in shown.out
    assert tightened.err == "queue metrics: on disk before it counts\n"
    assert rows(db, "name, relaxed") == [("metrics", False), ("traces", True)]


def test_a_pause_ends_by_itself_or_is_ended(rota: Run, dsn: str, db: Db) -> None:
    add(db, queue="mail")
    tried = rota("queues", "pause", "mail", "--for", "1h", "--dry-run", "--dsn", dsn)
    assert (tried.code, tried.err.startswith("would pause queue mail until "), rows(db, "*")) == (0, True, [])

    paused = rota("queues", "pause", "mail", "--for", "1h", "--dsn", dsn)
    assert paused.err.startswith("queue mail: paused until ")
    assert "nobody has used" not in paused.err
    assert rows(db, "paused_until - paused_at = interval '1 hour'") == [(True,)]
    rota("queues", "pause", "mail", "--until", "2999-01-01T00:00:00Z", "--dsn", dsn)
    assert rows(db, "paused_until = '2999-01-01 UTC'") == [(True,)]

    assert "would resume queue mail" in rota("queues", "resume", "mail", "--dry-run", "--dsn", dsn).err
    assert rows(db, "paused_at is null") == [(False,)]
    assert rota("queues", "resume", "mail", "--dsn", dsn).err == "queue mail: active\n"
    assert rows(db, "paused_at is null") == [(True,)]
    assert rota("queues", "resume", "mail", "--dsn", dsn).err == "nothing to do: queue mail is not paused\n"


def test_whoever_names_a_queue_that_nobody_has_used_is_told_so(rota: Run, dsn: str, db: Db) -> None:
    told = "nobody has used queue mial so far: it has no jobs, and no worker names it"

    assert told in rota("queues", "pause", "mial", "--dsn", dsn).err
    assert told in rota("queues", "limit", "mial", "--running", "1", "--dsn", dsn).err
    assert told in rota("queues", "weight", "mial", "2", "--dsn", dsn).err
    assert told in rota("queues", "show", "mial", "--dsn", dsn).err
    assert rows(db, "name, paused_at is null, running_limit, weight") == [("mial", False, 1, 2)]


def test_all_queues_are_paused_and_limited_together(rota: Run, dsn: str, db: Db) -> None:
    assert rota("queues", "pause", "--all", "--by", "ana", "--dsn", dsn).err == "all queues: paused\n"
    assert "all queues: limits 5 running" in rota("queues", "limit", "--all", "--running", "5", "--dsn", dsn).err
    rota("queues", "pause", "mail", "--dsn", dsn)

    listed = rota("queues", "list", "--dsn", dsn)
    one = rota("queues", "resume", "mail", "--dsn", dsn)
    rota("queues", "pause", "mail", "--dsn", dsn)
    every = rota("queues", "resume", "--all", "--dsn", dsn)

    assert listed.out.splitlines()[1].startswith("(all)")
    assert "all queues are paused by ana: rota queues resume --all" in listed.err
    assert "all queues are paused by ana: rota queues resume --all" in one.err
    assert every.err == "all queues: active\npaused by themselves: rota queues resume mail\n"
    assert rows(db, "name, paused_at is null, running_limit") == [("", True, 5), ("mail", False, None)]
    assert json.loads(rota("queues", "show", "--all", "--json", "--dsn", dsn).out)["name"] is None


def test_limits_are_kept_unless_they_are_given_and_removed_by_none(rota: Run, dsn: str, db: Db) -> None:
    limits = "running_limit, rate_count, rate_seconds"
    rota("queues", "limit", "mail", "images", "--running", "3", "--rate", "5/s", "--dsn", dsn)
    assert rows(db, limits) == [(3, 5, 1), (3, 5, 1)]
    assert (
        "would limit queue mail: none"
        in rota("queues", "limit", "mail", "--running", "none", "--rate", "none", "--dry-run", "--dsn", dsn).err
    )

    rota("queues", "limit", "mail", "--running", "none", "--dsn", dsn)
    rota("queues", "limit", "images", "--rate", "none", "--dsn", dsn)

    assert rows(db, limits) == [(3, None, None), (None, 5, 1)]


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["pause"], "Name queues, or say --all"),
        (["pause", "mail", "--all"], "Name queues, or say --all"),
        (["pause", ""], "cannot be empty"),
        (["pause", "mail", "--for", "soon"], "--for cannot be 'soon'"),
        (["pause", "mail", "--for", "0s"], "for_ cannot be"),
        (["pause", "mail", "--for", "1h", "--until", "2999-01-01"], "give one of them"),
        (["pause", "mail", "--until", "someday"], "is no time"),
        (["pause", "mail", "--until", "2001-01-01T00:00:00Z"], "Queue mail cannot be paused until 2001-01-01 "),
        (["resume"], "Name queues, or say --all"),
        (["limit", "mail"], "Say --running N, --rate N/TIME, or both"),
        (["limit", "mail", "--running", "few"], "'few' is neither a number nor 'none'"),
        (["limit", "mail", "--running", "0"], "running cannot be 0"),
        (["limit", "mail", "--rate", "fast"], "rate cannot be 'fast'"),
        (["weight", "mail", "0"], "weight cannot be 0.0"),
        (["weight", "mail", "nan"], "weight cannot be nan"),
        (["weight", "", "2"], "queue cannot be ''"),
        (["relax", ""], "queue cannot be ''"),
        (["show"], "Name queues, or say --all"),
    ],
)
def test_what_cannot_hold_is_refused_before_anything_is_written(
    rota: Run, dsn: str, db: Db, arguments: list[str], why: str
) -> None:
    ended = rota("queues", *arguments, "--dsn", dsn)

    assert (ended.code, why in ended.err) == (2, True), ended.err
    assert rows(db, "*") == []
