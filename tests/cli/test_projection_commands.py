"""`rota projections`: what an operator sees of projections and does to them, and what is left on record of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, append, append_many, positions, restore_elsewhere, rows

from rota import Rota
from rota.failure import describe
from rota.projections.checkpoint import Owned, declare_projection, fail_projection, move_checkpoint, take_projection
from rota.projections.feed import START, FeedRow, Pair
from rota.projections.parked import Unfit, set_aside
from rota.testing import DatabaseServer, TestRota, until_sync

Run = Callable[..., Any]
OWNED = Owned("totals", 1, 1)

APP = """
from tests.projections.logs import Log
from rota import Rota

app = Rota()

@app.projection("totals", source=Log())
async def totals(event, connection): ...
"""

BUILT = """
from tests.projections.logs import Log
from rota import Rota

app = Rota()

async def prepare(connection, build): ...
async def switch(connection, build): ...

@app.projection("seen", source=Log(), prepare=prepare, switch=switch)
async def seen(event, connection, build): ...

@app.projection("plain", source=Log())
async def plain(event, connection): ...
"""


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture
def dsn(rota_app: TestRota) -> str:
    assert rota_app.settings.dsn is not None
    rota_app.database.run_sync(declare_projection("totals", 1, {"source": "orders", "on_error": "stop"}))
    rota_app.database.run_sync(take_projection(OWNED))
    return rota_app.settings.dsn.conninfo


@pytest.fixture
def db(dsn: str) -> Iterator[Db]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app_file(tmp_path: Path) -> str:
    (file := tmp_path / "projecting_app.py").write_text(APP)
    return str(file)


def place(db: Db, number: int) -> Pair:
    return Pair(*rows(db, "select order_xid::text::bigint, position from rota.events order by 1, 2")[number])


def test_the_list_tells_where_each_is_and_with_its_app_what_waits(
    rota: Run, rota_app: TestRota, dsn: str, db: Db, app_file: str
) -> None:
    append_many(db, 3)
    rota_app.database.run_sync(move_checkpoint(OWNED, START, place(db, 0)))

    plain = rota("projections", "list", "--dsn", dsn)
    told = json.loads(rota("projections", "list", "--dsn", dsn, "--app", app_file, "--json").out)

    assert "totals  1        orders  running  none   1" in plain.out
    assert (told[0]["position"], told[0]["lag"]["events"]) == (positions(db)[0], 2)


def test_show_tells_of_the_last_error(rota: Run, rota_app: TestRota, dsn: str, db: Db, app_file: str) -> None:
    append(db)
    rota_app.database.run_sync(fail_projection(OWNED, START, describe(ValueError("no sum")), stop=True))

    shown = rota("projections", "show", "totals", "--dsn", dsn, "--app", app_file)

    assert "stopped" in shown.out
    assert "ValueError: no sum" in shown.err
    assert json.loads(rota("projections", "show", "totals", "--dsn", dsn, "--json").out)["failures"] == 1


def test_pause_and_resume_are_on_record_and_a_dry_run_changes_nothing(rota: Run, dsn: str, db: Db) -> None:
    tried = rota("projections", "pause", "totals", "--dsn", dsn, "--dry-run")
    before = rows(db, "select state from rota.projections")
    paused = rota("projections", "pause", "totals", "--dsn", dsn, "--by", "ann")
    again = rota("projections", "pause", "totals", "--dsn", dsn)
    resumed = rota("projections", "resume", "totals", "--dsn", dsn, "--by", "ann")
    unknown = rota("projections", "pause", "sums", "--dsn", dsn)

    assert (tried.err, before) == ("would pause projection totals\n", [("running",)])
    assert paused.err == "projection totals is paused\n"
    assert "nothing to do: projection totals is paused" in again.err
    assert resumed.err == "projection totals is running\n"
    assert (unknown.code, "no process has declared one" in unknown.err) == (1, True)
    assert rows(db, "select actor, action from rota.audit order by id") == [
        ("ann", "projection.pause"),
        ("ann", "projection.resume"),
    ]


def test_rewind_goes_back_to_the_first_or_to_a_position_and_not_ahead(
    rota: Run, rota_app: TestRota, dsn: str, db: Db, app_file: str
) -> None:
    append_many(db, 3)
    rota_app.database.run_sync(move_checkpoint(OWNED, START, place(db, 1)))
    ahead, there = positions(db)[2], positions(db)[1]

    refused = rota("projections", "rewind", "totals", "--to", str(ahead + 1), "--dsn", dsn, "--app", app_file)
    unknown = rota("projections", "rewind", "totals", "--to", str(there), "--dsn", dsn)
    rota("projections", "rewind", "totals", "--to", str(there), "--dsn", dsn, "--app", app_file)
    placed = rows(db, "select position from rota.projections")
    rota("projections", "rewind", "totals", "--dsn", dsn)

    assert (refused.code, "no event at position" in refused.err) == (1, True)
    assert (unknown.code, "--app" in unknown.err) == (1, True)
    assert placed == [(there - 1,)]
    assert rows(db, "select position from rota.projections") == [(START.position,)]


def test_skip_passes_over_the_event_that_comes_next(rota: Run, dsn: str, db: Db, app_file: str) -> None:
    first, _ = append(db, "a", "Paid")
    until_sync(
        lambda: rota("projections", "skip", "totals", "--dsn", dsn, "--app", app_file, "--dry-run").code == 0,
        what="it can be read",
    )

    skipped = rota("projections", "skip", "totals", "--dsn", dsn, "--app", app_file)
    none = rota("projections", "skip", "totals", "--dsn", dsn, "--app", app_file)

    assert skipped.err == f"skipped: position {first} of projection totals, Paid\n"
    assert rows(db, "select position from rota.projections") == [(first,)]
    assert (none.code, "at the end of what can be read" in none.err) == (1, True)


def test_what_is_parked_is_listed_replayed_and_dropped(rota: Run, rota_app: TestRota, dsn: str, db: Db) -> None:
    position, _ = append(db, "a", "Paid")
    row = FeedRow(position, place(db, 0).order_xid, "a", 1, "Paid", 1, "{}", None, None)
    rota_app.database.run_steps_sync(set_aside(OWNED, START, Unfit(row, 2, describe(ValueError("no sum")))))

    listed = rota("projections", "parked", "totals", "--dsn", dsn)
    told = json.loads(rota("projections", "parked", "totals", "--dsn", dsn, "--json").out)
    replayed = rota("projections", "parked", "totals", "--replay", "--dsn", dsn)
    asked = rows(db, "select replay_at is not null from rota.parked_events")
    missing = rota("projections", "parked", "totals", "99", "--drop", "--dsn", dsn)
    dropped = rota("projections", "parked", "totals", str(position), "--drop", "--dsn", dsn)

    assert "ValueError: no sum" in listed.out
    assert (told[0]["position"], told[0]["attempts"]) == (position, 2)
    assert (replayed.err, asked) == ("to be tried again: 1 event(s) of projection totals\n", [(True,)])
    assert (missing.code, "not parked" in missing.err) == (1, True)
    assert dropped.err == "dropped: 1 event(s) of projection totals\n"
    assert not rows(db, "select from rota.parked_events")


def test_what_no_code_has_any_more_can_be_forgotten(rota: Run, dsn: str, db: Db) -> None:
    assert rota("projections", "forget", "totals", "--dsn", dsn).err == "forgotten: projection totals, version 1\n"
    assert rows(db, "select from rota.projections") == []


def test_rebase_tells_how_much_it_has_numbered_anew(rota: Run, dsn: str, db: Db) -> None:
    append(db)
    restore_elsewhere(db)

    tried = rota("projections", "rebase", "--dsn", dsn, "--dry-run")
    done = rota("projections", "rebase", "--dsn", dsn)
    again = rota("projections", "rebase", "--dsn", dsn)

    assert tried.err == "would rebase: 1 event(s), 1 checkpoint(s)\n"
    assert done.err == "rebased: 1 event(s), 1 checkpoint(s)\n"
    assert (again.code, "nothing to rebase" in again.err) == (1, True)


def test_a_table_is_told_what_it_lacks_and_can_be_read_then(rota: Run, rota_database: str) -> None:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table happened (number bigint primary key, what jsonb not null)")
        db.execute("""insert into happened values (1, '{"a": 1}')""")

        said = rota("projections", "ddl", "happened", "--xid", "txid", "--dsn", rota_database).out.splitlines()
        for statement in said:
            db.execute(statement)  # type: ignore[arg-type]
        db.execute("""insert into happened values (2, '{"a": 2}')""")

        assert db.execute("select number, txid is null from happened order by number").fetchall() == [
            (1, True),
            (2, False),
        ]
        again = rota("projections", "ddl", "happened", "--xid", "txid", "--dsn", rota_database).out
        assert again == 'create index concurrently on "public"."happened" ("txid", "number");\n'
    with Rota(rota_database) as app:
        table = app.event_table("happened", position="number", xid="txid", data="what")
        # whoever writes anywhere on the server holds the horizon
        read = until_sync(
            lambda: found if len(found := table.read_all_sync()) == 2 else None, timeout=60, what="both can be read"
        )
        assert [event.data for event in read] == [{"a": 1}, {"a": 2}]


def test_a_table_that_is_not_there_is_told(rota: Run, rota_database: str) -> None:
    ended = rota("projections", "ddl", "nowhere", "--dsn", rota_database)

    assert ended.code == 2
    assert "nowhere" in ended.err


def test_the_command_begins_a_build_or_says_what_to_change(
    rota: Run, rota_app: TestRota, rota_database: str, db: Db, tmp_path: Path
) -> None:
    (file := tmp_path / "built_app.py").write_text(BUILT)
    options = ("--app", str(file), "--dsn", rota_database)
    rota("projections", "list", *options)
    db.execute("update rota.projections set live_at = now(), prepared_at = now()")

    tried = rota("projections", "rebuild", "seen", *options, "--dry-run")
    begun = rota("projections", "rebuild", "seen", *options)
    append(db)
    shown = rota("projections", "show", "seen", *options)
    told = json.loads(rota("projections", "show", "seen", *options, "--json").out)
    listed = rota("projections", "list", *options)
    given_up = rota("projections", "rebuild", "seen", *options, "--cancel")
    plain = rota("projections", "rebuild", "plain", *options)

    assert tried.err == "would begin with the first event: projection seen, version 1, build 2\n"
    assert begun.err == "begins with the first event: projection seen, version 1, build 2\n"
    assert "build 2 is to take its place and is running: 0% of the log, 1 event(s) left" in shown.err
    assert (told["build"], told["rebuild"]["build"], told["rebuild"]["lag"]["events"]) == (1, 2, 1)
    assert "1, build 2" in listed.out
    assert given_up.err == "given up: the rebuild of projection seen; build 1 stays\n"
    assert (plain.code, "readers use it" in plain.err, "take `build`" in plain.err) == (1, True, True)
