from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.cli.output import as_json
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")

Run = Callable[..., Any]


@pytest.fixture
def empty_database(rota_database: str) -> str:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("drop schema rota cascade")
    return rota_database


def test_migrate_makes_the_tables_and_the_second_time_nothing(rota: Run, empty_database: str) -> None:
    assert rota("migrate", "--check", "--dsn", empty_database).code == 5
    assert "0001 kernel" in rota("migrate", "--dry-run", "--dsn", empty_database).err

    first = rota("migrate", "--dsn", empty_database)
    second = rota("migrate", "--dsn", empty_database)

    assert (first.code, "applied 0001 kernel" in first.err) == (0, True)
    assert (second.code, "nothing to apply" in second.err) == (0, True)
    assert rota("migrate", "--check", "--dsn", empty_database).code == 0


def test_the_printed_sql_makes_the_same_tables_as_migrating(rota: Run, empty_database: str) -> None:
    def columns(schema: str) -> list[Any]:
        with psycopg.connect(empty_database) as connection:
            return connection.execute(
                "select table_name, column_name, data_type, column_default is null from information_schema.columns "
                "where table_schema = %s order by 1, 2",
                [schema],
            ).fetchall()

    printed = rota("migrate", "--sql", "--schema", "printed", "--dsn", empty_database)
    with psycopg.connect(empty_database) as connection:
        connection.execute(printed.out)
    rota("migrate", "--schema", "migrated", "--dsn", empty_database)

    assert columns("printed") == columns("migrated") != []
    assert rota("migrate", "--check", "--schema", "printed", "--dsn", empty_database).code == 0


def test_a_worker_without_tables_ends_with_5_and_says_what_to_run(
    rota: Run, empty_database: str, tmp_path: Path
) -> None:
    (tmp_path / "some_app.py").write_text("from rota import Rota\napp = Rota()\n")

    ended = rota("worker", str(tmp_path / "some_app.py"), "--drain", "--dsn", empty_database)

    assert ended.code == 5
    assert "rota migrate" in ended.err


def test_an_unreachable_database_ends_with_4_and_a_wrong_address_with_2(rota: Run) -> None:
    away = rota("jobs", "list", "--dsn", "postgresql://ana:s3cret@127.0.0.1:1/x")
    wrong = rota("jobs", "list", "--dsn", "mysql://ana:s3cret@host/x")

    assert away.code == 4
    assert wrong.code == 2
    assert "s3cret" not in away.err + wrong.err


def test_wrong_usage_ends_with_2(rota: Run, rota_database: str) -> None:
    assert rota("jobs", "list", "--state", "lost", "--dsn", rota_database).code == 2
    assert rota("frobnicate").code == 2
    assert rota("worker").code == 2
    assert rota("worker", "nowhere:app", "--dsn", rota_database).code == 2


def test_jobs_are_listed_and_shown_as_tables_and_as_json(rota: Run, rota_app: TestRota) -> None:
    @rota_app.task
    def fail(word: str) -> None:
        raise ValueError(f"no {word}")

    @rota_app.task(queue="mail")
    def greet(name: str) -> str:
        return f"hello {name}"

    dsn = rota_app.settings.dsn.conninfo  # type: ignore[union-attr]
    greeted, failed = greet.using(tags=["user:1"]).enqueue_sync("ana"), fail.enqueue_sync("way")
    rota_app.drain_sync()

    listed = json.loads(rota("jobs", "list", "--json", "--dsn", dsn).out)
    assert [(job["id"], job["state"]) for job in listed] == [(failed.id, "queued"), (greeted.id, "succeeded")]
    assert [j["id"] for j in json.loads(rota("jobs", "list", "--queue", "mail", "--json", "--dsn", dsn).out)] == [
        greeted.id
    ]
    assert [j["id"] for j in json.loads(rota("jobs", "list", "--tag", "user:1", "--json", "--dsn", dsn).out)] == [
        greeted.id
    ]
    assert "greet" in rota("jobs", "list", "--state", "succeeded", "--dsn", dsn).out

    shown = json.loads(rota("jobs", "show", str(failed.id), "--json", "--dsn", dsn).out)
    assert shown["args"] == {"word": "way"}
    assert [(e["attempt"], e["kind"], e["type"], e["message"]) for e in shown["errors"]] == [
        (1, "failed", "ValueError", "no way")
    ]
    assert json.loads(rota("jobs", "show", str(greeted.id), "--json", "--dsn", dsn).out)["result"] == "hello ana"
    assert "hello ana" in rota("jobs", "show", str(greeted.id), "--dsn", dsn).out
    assert rota("jobs", "show", "999999", "--dsn", dsn).code == 1


def test_json_has_its_times_in_utc_whatever_zone_a_session_has() -> None:
    assert as_json(datetime.fromisoformat("2999-01-31T22:45:00+13:45")) == "2999-01-31T09:00:00+00:00"


def test_members_are_listed(rota: Run, rota_app: TestRota) -> None:
    dsn = rota_app.settings.dsn.conninfo  # type: ignore[union-attr]
    rota_app.drain_sync()

    assert "no worker is running" in rota("members", "list", "--dsn", dsn).err
    (member,) = json.loads(rota("members", "list", "--all", "--json", "--dsn", dsn).out)
    assert (member["state"], member["end_reason"], member["running"]) == ("ended", "left", 0)


def test_a_copy_is_refused_until_it_is_adopted(rota: Run, rota_database: str, tmp_path: Path) -> None:
    (tmp_path / "some_app.py").write_text("from rota import Rota\napp = Rota()\n")
    work = ("worker", str(tmp_path / "some_app.py"), "--drain", "--dsn", rota_database)
    with psycopg.connect(rota_database) as connection:
        connection.execute("update rota.meta set database = 'production'")

    refused = rota(*work)
    assert refused.code == 1
    assert "rota adopt" in refused.err

    assert rota("adopt", "--dry-run", "--dsn", rota_database).code == 0
    assert rota(*work).code == 1
    assert rota("adopt", "--dsn", rota_database).code == 0
    assert rota(*work).code == 0


HINDERED = """
from rota import Rota

app = Rota()
looks = {"last": "fetched_at", "interval": "5m"}

@app.poller(**looks, table="feeds", name="hindered", where="1 / (id - 1) > 0")
def hindered(feed: dict) -> None: ...

@app.poller(**looks, table="others", name="healthy")
def healthy(feed: dict) -> None: ...

@app.task(name="job")
def job() -> None: ...
"""


def test_a_drain_with_a_poller_that_cannot_look_does_all_else_says_so_and_ends_with_1(
    rota: Run, rota_app: TestRota, rota_database: str, tmp_path: Path
) -> None:
    (tmp_path / "some_app.py").write_text(HINDERED)
    rota_app.task(name="job")(lambda: None).enqueue_sync()
    work = ("worker", str(tmp_path / "some_app.py"), "--drain", "--dsn", rota_database)
    with psycopg.connect(rota_database, autocommit=True) as db:
        for table in ("feeds", "others"):
            db.execute(f"create table {table} (id int primary key, fetched_at timestamptz)")  # type: ignore[arg-type]
            db.execute(f"insert into {table} values (1), (2)")  # type: ignore[arg-type]

        ended = rota(*work)

        assert ended.code == 1
        assert "Poller 'hindered' cannot look for rows of public.feeds: PostgreSQL says 'division by zero'" in ended.err
        assert "Mend that" in ended.err
        assert db.execute("select id from others where fetched_at is not null").fetchall() == [(1,), (2,)]
        assert db.execute("select count(*) from rota.jobs").fetchone() == (0,)
        db.execute("delete from feeds where id = 1")
        assert rota(*work).code == 0


def test_every_command_has_help(rota: Run) -> None:
    commands = ["demo", "dev", "worker", "migrate", "jobs", "dead", "members", "postgres", "bench", "adopt"]

    assert all(command in rota("--help").out for command in commands)
    for command in commands:
        assert rota(command, "--help").code == 0
    assert rota("--version").out.startswith("rota, version ")


def test_a_newer_breaking_schema_ends_with_5(rota: Run, rota_database: str, tmp_path: Path) -> None:
    (tmp_path / "some_app.py").write_text("from rota import Rota\napp = Rota()\n")
    with psycopg.connect(rota_database) as connection:
        connection.execute("insert into rota.migrations values (9999, 'contract', 'x', false)")

    ended = rota("worker", str(tmp_path / "some_app.py"), "--drain", "--dsn", rota_database)

    assert ended.code == 5
    assert "9999 contract" in ended.err
    assert "Upgrade" in ended.err
    assert rota("migrate", "--dsn", rota_database).code == 5
