"""`rota pollers`: what an operator sees of pollers and does to them, and what is left on record of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.jobs.test_explain import join

from rota import Rota
from rota.cli.target import find_app
from rota.pollers.declare import declare_pollers
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Run = Callable[..., Any]
Db = psycopg.Connection[Any]

APP = """
from typing import Any

from rota import Retry, Rota

app = Rota()

@app.poller(name="fetch", table="feeds", last="polled_at", interval="1h", retry=Retry(attempts=1), idle=30)
def fetch(row: dict[str, Any]) -> None:
    if row["url"] == "bad":
        raise ValueError("no such\\nfeed")

@app.poller(name="pairs", table="pairs", key=["name", "day"], last="polled_at", interval="1h")
def pairs(row: dict[str, Any]) -> None: ...
"""


@pytest.fixture
def dsn(rota_app: TestRota) -> str:
    assert rota_app.settings.dsn is not None
    return rota_app.settings.dsn.conninfo


@pytest.fixture
def db(dsn: str) -> Iterator[Db]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table feeds (id bigint primary key, url text, polled_at timestamptz)")
        connection.execute("create table pairs (name text, day date, polled_at timestamptz, primary key (name, day))")
        yield connection


@pytest.fixture
def app_file(tmp_path: Path) -> str:
    file = tmp_path / "polling_app.py"
    file.write_text(APP)
    return str(file)


@pytest.fixture
def declared(db: Db, app_file: str, dsn: str) -> Rota:
    """The pollers, as a process of that app has declared them."""
    app = find_app(app_file, dsn)
    app.database.run_sync(declare_pollers(app.pollers.definitions))
    app.close_sync()
    return app


@pytest.fixture
def poll(rota: Run, dsn: str) -> Run:
    """`rota pollers`, on the database of the test."""
    return lambda verb, *arguments: rota("pollers", verb, *arguments, "--dsn", dsn)


def feeds(db: Db, *urls: str) -> None:
    for id, url in enumerate(urls, 1):
        db.execute("insert into feeds values (%s, %s)", [id, url])


def claim(db: Db, poller: str, key: list[Any], *, member: UUID | None = None, parked: bool = True) -> None:
    db.execute(
        """
        insert into rota.poll_claims (poller, key, member, token, parked_at, attempts, error_type, error_message)
        values (%s, %s::jsonb, %s, %s, case when %s then now() end, 3, 'ValueError', 'no such feed')
        """,
        [poller, json.dumps(key), member, member and 1, parked],
    )


def claims(db: Db) -> list[Any]:
    return db.execute("select key from rota.poll_claims order by key").fetchall()


def audit(db: Db) -> list[Any]:
    return db.execute("select actor, action from rota.audit order by id").fetchall()


def test_the_list_needs_no_app_and_shows_what_pollers_hold(poll: Run, db: Db, declared: Rota) -> None:
    claim(db, "fetch", [1])
    claim(db, "fetch", [2], parked=False)
    claim(db, "fetch", [3], member=uuid4(), parked=False)

    shown = poll("list")

    header, first, second = shown.out.splitlines()
    assert header.split() == ["name", "table", "state", "workers", "held", "waiting", "parked"]
    assert first.split() == ["fetch", "feeds", "active", "none", "1", "1", "1"]
    assert second.split() == ["pairs", "pairs", "active", "none", "0", "0", "0"]


def test_with_an_app_the_list_counts_what_is_due(poll: Run, db: Db, app_file: str, declared: Rota) -> None:
    feeds(db, "a", "b")
    db.execute("insert into feeds values (3, 'c', '2020-01-31 08:00Z')")

    lines = poll("list", "--app", app_file).out.splitlines()
    found = json.loads(poll("list", "--app", app_file, "--json").out)

    assert lines[0].split()[-2:] == ["due", "oldest"]
    assert lines[1].split()[6:8] == ["0", "3"]
    assert [view["backlog"]["rows"] for view in found] == [3, 0]
    assert found[0]["backlog"]["oldest_due_at"] == "2020-01-31T09:00:00+00:00"
    assert found[0]["definition"]["key"] == ["id"]


def test_where_nothing_is_declared_the_list_says_so(poll: Run, db: Db, app_file: str) -> None:
    assert poll("list").err == "no process has declared a poller\n"
    assert "run by no process yet: fetch, pairs" in poll("list", "--app", app_file).err


def test_check_ends_with_one_until_its_statement_was_run(poll: Run, db: Db, app_file: str) -> None:
    feeds(db, "a", "b")
    db.execute("analyze feeds, pairs")

    missing = poll("check", "fetch", "--app", app_file)
    statement = missing.out.strip().splitlines()[-1]
    db.execute(statement.encode())
    fine = poll("check", "fetch", "--app", app_file)
    both = poll("check", "--app", app_file, "--json")

    assert missing.code == 1
    assert statement == 'create index concurrently "feeds_fetch_due" on "public"."feeds" ("polled_at");'
    assert "CTE rota_due" in missing.out
    assert "table      public.feeds\nrows       about 2\n" in missing.out
    assert (fine.code, fine.err, "index      feeds_fetch_due" in fine.out) == (0, "", True)
    assert both.code == 1
    assert [(each["poller"], each["index"]) for each in json.loads(both.out)] == [
        ("fetch", "feeds_fetch_due"),
        ("pairs", None),
    ]


def test_a_poller_that_does_not_fit_its_table_keeps_no_other_from_being_looked_at(
    poll: Run, db: Db, app_file: str, declared: Rota
) -> None:
    feeds(db, "a")
    db.execute("drop table pairs")

    checked = poll("check", "--app", app_file)
    listed = poll("list", "--app", app_file)

    assert (checked.code, "there is no such table" in checked.err, "poller     fetch" in checked.out) == (2, True, True)
    assert (listed.code, "there is no such table" in listed.err) == (0, True)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["name", "fetch", "pairs"]


def test_check_tells_its_warnings(poll: Run, db: Db, app_file: str) -> None:
    claim(db, "fetch", [1])

    assert "note: 1 row(s) are parked" in poll("check", "fetch", "--app", app_file).err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "other", "--app", "APP"], "no poller 'other'; it has fetch, pairs"),
        (["run", "other", "--app", "APP"], "no poller 'other'"),
        (["check"], "Missing option '--app'"),
        (["run", "fetch"], "Missing option '--app'"),
        (["ddl", "fetch"], "Missing option '--app'"),
        (["run", "fetch", "--app", "APP", "--key", "1", "--dry-run"], "--dry-run cannot be given"),
        (["run", "fetch", "--app", "APP", "--key", "1", "--max-rows", "2"], "--max-rows and"),
        (["run", "fetch", "--app", "APP", "--key", "one"], "'one' is no key of poller 'fetch', which is id (bigint)"),
        (
            ["run", "pairs", "--app", "APP", "--key", "a"],
            "is no key of poller 'pairs', which is name (text), day (date)",
        ),
        (["run", "pairs", "--app", "APP", "--key", '["a"]'], "write a JSON array of 2 values"),
        (["release", "fetch"], "--all"),
        (["release", "fetch", "1", "--all"], "--all"),
    ],
)
def test_what_cannot_be_meant_is_refused(poll: Run, db: Db, app_file: str, arguments: list[str], words: str) -> None:
    done = poll(*(app_file if each == "APP" else each for each in arguments))

    assert (done.code, words in " ".join(done.err.split())) == (2, True)


def test_a_run_tells_what_came_of_it_and_ends_with_one_after_errors(poll: Run, db: Db, app_file: str) -> None:
    feeds(db, "a", "bad", "c")

    first = poll("run", "fetch", "--app", app_file)
    second = poll("run", "fetch", "--app", app_file, "--json")

    assert (first.code, first.out) == (1, "claimed    3\ncompleted  2\nerrors     1\n")
    assert "error: 2: ValueError: no such" in first.err
    assert (second.code, json.loads(second.out)["claimed"]) == (0, 0)


def test_a_run_takes_no_more_than_it_is_told(poll: Run, db: Db, app_file: str) -> None:
    feeds(db, "a", "b", "c")

    done = poll("run", "fetch", "--app", app_file, "--max-rows", "2")

    assert (done.code, done.out.split()[:4]) == (0, ["claimed", "2", "completed", "2"])


def test_a_dry_run_shows_the_rows_and_takes_none(poll: Run, db: Db, app_file: str) -> None:
    feeds(db, "a", "b")

    tried = poll("run", "fetch", "--app", app_file, "--dry-run")
    as_json = poll("run", "fetch", "--app", app_file, "--dry-run", "--max-rows", "1", "--json")

    assert (tried.code, [line.split()[0] for line in tried.out.splitlines()]) == (0, ["key", "1", "2"])
    assert json.loads(as_json.out) == [{"key": [1], "due_at": None}]
    assert db.execute("select count(*) from feeds where polled_at is not null").fetchone() == (0,)


def test_one_row_is_polled_by_its_key_due_or_not(poll: Run, db: Db, app_file: str) -> None:
    db.execute("insert into feeds values (7, 'a', now())")
    db.execute("insert into pairs values ('it''s', '2030-01-31')")

    one = poll("run", "fetch", "--app", app_file, "--key", "7")
    two = poll("run", "pairs", "--app", app_file, "--key", '["it\'s", "2030-01-31"]')
    none = poll("run", "fetch", "--app", app_file, "--key", "8")

    assert (one.code, one.out.split()[3]) == (0, "1")
    assert (two.code, two.out.split()[3]) == (0, "1")
    assert (none.code, "cannot poll row 8: there is none" in none.err) == (1, True)


def test_a_row_that_someone_polls_is_left_to_them(poll: Run, db: Db, app_file: str) -> None:
    feeds(db, "a")
    holder = join(db, "web-1:7")
    claim(db, "fetch", [1], member=holder, parked=False)

    done = poll("run", "fetch", "--app", app_file, "--key", "1")

    assert (done.code, "row 1 is being polled by web-1:7" in done.err) == (1, True)


def test_ddl_prints_what_can_be_run_as_it_is(poll: Run, db: Db, app_file: str) -> None:
    text = poll("ddl", "fetch", "--app", app_file, "--notify").out

    for each in text.split(";\n"):
        db.execute(each.encode())

    assert poll("check", "fetch", "--app", app_file).code == 0
    assert db.execute("select count(*) from pg_trigger where tgname = 'rota_wake_fetch'").fetchone() == (1,)
    assert "trigger" not in poll("ddl", "pairs", "--app", app_file).out


def test_pollers_are_paused_and_resumed(poll: Run, db: Db, app_file: str, declared: Rota) -> None:
    feeds(db, "a")

    tried = poll("pause", "fetch", "--dry-run")
    paused = poll("pause", "fetch", "pairs", "--by", "ana")
    again = poll("pause", "fetch")
    listed = poll("list").out
    idle = poll("run", "fetch", "--app", app_file)
    trying = poll("resume", "fetch", "--dry-run")
    resumed = poll("resume", "fetch", "pairs", "--by", "ana")
    twice = poll("resume", "fetch")
    busy = poll("run", "fetch", "--app", app_file)

    assert tried.err == "would pause poller fetch\n"
    assert paused.err == "poller fetch is paused\npoller pairs is paused\n"
    assert "nothing to do: poller fetch is paused" in again.err
    assert listed.count("by ana") == 2
    assert (idle.out.split()[1], busy.out.split()[1]) == ("0", "1")
    assert "poller fetch is paused by ana: nothing is taken until `rota pollers resume fetch`" in idle.err
    assert (trying.err, twice.err) == ("would resume poller fetch\n", "nothing to do: poller fetch is not paused\n")
    assert resumed.err == "poller fetch is active\npoller pairs is active\n"
    assert audit(db) == [("ana", "poller.pause")] * 2 + [("ana", "poller.resume")] * 2


@pytest.mark.parametrize("verb", [["pause"], ["resume"], ["release", "--all"], ["parked"], ["forget"]])
def test_a_poller_that_nobody_has_declared_is_told_of(poll: Run, db: Db, verb: list[str]) -> None:
    done = poll(verb[0], "nope", *verb[1:])

    assert (done.code, "There is no poller 'nope'" in done.err) == (1, True)


def test_parked_rows_are_listed_page_by_page(poll: Run, db: Db, declared: Rota) -> None:
    for id in (9, 10, 11):
        claim(db, "fetch", [id])

    page = poll("parked", "fetch", "--limit", "2")
    rest = poll("parked", "fetch", "--after", "10")
    none = poll("parked", "pairs")

    assert [line.split()[0] for line in page.out.splitlines()] == ["key", "9", "10"]
    assert "ValueError: no such feed" in page.out
    assert page.err == "there may be more: --after 10\n"
    assert [line.split()[0] for line in rest.out.splitlines()] == ["key", "11"]
    assert [row["key"] for row in json.loads(poll("parked", "fetch", "--json").out)] == [[9], [10], [11]]
    assert none.err == "no rows of pairs are parked\n"


def test_rows_are_released_by_their_keys(poll: Run, db: Db, declared: Rota) -> None:
    for id in (1, 2, 3):
        claim(db, "fetch", [id])
    claim(db, "pairs", ["a", "2030-01-31"])

    tried = poll("release", "fetch", "1", "2", "--dry-run")
    done = poll("release", "fetch", "1", "2", "7", "--by", "ana")
    pair = poll("release", "pairs", '["a", "2030-1-31"]')

    assert tried.err == "would release: 2 row(s) of poller fetch\n"
    assert done.err.startswith("released: 2 row(s) of poller fetch\nthe others are neither")
    assert pair.err == "released: 1 row(s) of poller pairs\n"  # typed as the column reads it
    assert claims(db) == [([3],)]
    assert audit(db)[0] == ("ana", "poller.release")


def test_all_that_is_parked_is_released_and_what_is_polled_only_when_asked_for(
    poll: Run, db: Db, declared: Rota
) -> None:
    claim(db, "fetch", [1])
    claim(db, "fetch", [2], member=uuid4(), parked=False)

    everything = poll("release", "fetch", "--all")
    left = poll("release", "fetch", "2")
    taken = poll("release", "fetch", "2", "--held")

    assert everything.err == "released: 1 row(s) of poller fetch\n"
    assert "released: 0 row(s)" in left.err
    assert "--held" in left.err
    assert taken.err == "released: 1 row(s) of poller fetch\n"
    assert claims(db) == []


def test_a_poller_without_a_worker_is_forgotten_with_what_is_remembered_of_its_rows(
    poll: Run, db: Db, declared: Rota
) -> None:
    feeds(db, "a", "b", "c")
    claim(db, "fetch", [1])
    claim(db, "fetch", [2], parked=False)
    claim(db, "fetch", [3], member=uuid4(), parked=False)  # of one that is long gone
    claim(db, "pairs", ["a", "2030-01-31"])
    db.execute(
        "insert into rota.poll_intervals values ('fetch', '[1]', '1 hour', now()), ('pairs', '[1]', '1 hour', now())"
    )

    tried = poll("forget", "fetch", "--dry-run")
    before = len(claims(db))
    done = poll("forget", "fetch", "--by", "ana")
    again = poll("forget", "fetch")

    counts = "poller fetch, with 2 row(s) that waited, 1 parked, 1 pace(s)\n"
    assert (tried.err, done.err) == (f"would forget: {counts}", f"forgotten: {counts}")
    assert (before, again.code, audit(db)) == (4, 1, [("ana", "poller.forget")])
    assert claims(db) == [(["a", "2030-01-31"],)]
    assert db.execute("select poller from rota.poll_intervals").fetchall() == [("pairs",)]
    assert db.execute("select count(*) from feeds").fetchone() == (3,)
    assert [line.split()[0] for line in poll("list").out.splitlines()] == ["name", "pairs"]


def test_a_poller_that_a_live_process_polls_for_is_not_forgotten(poll: Run, db: Db, declared: Rota) -> None:
    worker = join(db)
    db.execute("update rota.members set work = %s where id = %s", ['{"pollers": ["fetch", "other"]}', worker])
    by_hand = join(db)
    claim(db, "pairs", ["a", "2030-01-31"], member=by_hand, parked=False)
    names = dict(db.execute("select id, name from rota.members").fetchall())

    shown = [line.split()[3] for line in poll("list").out.splitlines()]
    refused = poll("forget", "fetch")
    held = poll("forget", "pairs")

    assert shown == ["workers", "1", "none"]
    assert (refused.code, held.code) == (1, 1)
    assert f"Poller 'fetch' cannot be forgotten: {names[worker]} of `rota members` poll for it." in refused.err
    assert f"Poller 'pairs' cannot be forgotten: {names[by_hand]} of" in held.err
    assert (len(claims(db)), audit(db)) == (1, [])

    db.execute("update rota.members set ended_at = now(), end_reason = 'left'")
    assert poll("forget", "fetch", "pairs").code == 0
    assert claims(db) == []


async def test_pollers_are_forgotten_from_code_as_well(rota_app: TestRota, db: Db, declared: Rota) -> None:
    claim(db, "fetch", [1])

    would = await rota_app.pollers.forget("fetch", dry_run=True)
    done = await rota_app.pollers.forget("fetch")

    assert would == done
    assert (done.name, done.waiting, done.parked, done.paces) == ("fetch", 0, 1, 0)
    assert [view.name for view in await rota_app.pollers.list()] == ["pairs"]


@pytest.mark.parametrize(
    ("named", "polled"), [("pairs", ["pairs"]), (" fetch , pairs", ["feeds", "pairs"]), ("none", [])]
)
def test_a_worker_polls_for_what_it_is_told_to(
    rota: Run, dsn: str, db: Db, app_file: str, named: str, polled: list[str]
) -> None:
    feeds(db, "a")
    db.execute("insert into pairs values ('a', '2030-01-31')")

    assert rota("worker", app_file, "--drain", "--pollers", named, "--dsn", dsn).code == 0

    stamped = "select 'feeds' from feeds where polled_at is not null union select 'pairs' from pairs where polled_at is not null"
    assert sorted(table for (table,) in db.execute(stamped)) == polled


def test_a_worker_refuses_a_poller_that_its_app_does_not_have(rota: Run, dsn: str, db: Db, app_file: str) -> None:
    refused = rota("worker", app_file, "--pollers", "fetch,feeds", "--dsn", dsn)

    assert refused.code == 2
    assert "This app has no poller 'feeds'; it has fetch, pairs." in refused.err


def test_a_schema_whose_name_holds_a_dot_is_no_riddle(rota_app: TestRota, poll: Run, db: Db) -> None:
    db.execute('create schema "my.schema"; create table "my.schema".t (id uuid primary key, polled_at timestamptz)')
    rota_app.poller(table=("my.schema", "t"), last="polled_at", interval="1h", name="dotted")(print).run_once_sync()
    claim(db, "dotted", ["6ba7b810-9dad-41d1-80b4-00c04fd430c8"])

    assert poll("list").out.splitlines()[1].split()[:2] == ["dotted", "my.schema.t"]
    assert "released: 1 row(s)" in poll("release", "dotted", "6BA7B8109DAD41D180B400C04FD430C8").err
