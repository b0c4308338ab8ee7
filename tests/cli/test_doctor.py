"""`rota doctor`: every check finds its fault on a real server, says what mends it, and finds nothing where all is well."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import click
import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo
from tests.commands import Command
from tests.conftest import OwnServer, installed
from tests.faketime import libfaketime
from tests.jobs.test_explain import join
from tests.pgbouncer import transaction_pooler

from rota import Retry
from rota.cli.main import rota as rota_command
from rota.embedded import EmbeddedServer
from rota.runtime.doctor import server as server_checks
from rota.runtime.doctor import upkeep
from rota.testing import DatabaseServer, TcpProxy, TestRota, WorkerProcess

Run = Callable[..., Any]
Db = psycopg.Connection[Any]

APP = """
from rota import Rota

app = Rota()

@app.task(name="t")
def t() -> None: ...

@app.every("1h", name="hourly")
def hourly() -> None: ...
"""


@dataclass(frozen=True)
class Diagnosed:
    code: int
    findings: dict[str, dict[str, Any]]

    def grade(self, check: str) -> str:
        return str(self.findings[check]["grade"])

    def found(self, check: str) -> str:
        return str(self.findings[check]["found"])

    def mend(self, check: str) -> list[str]:
        return list(self.findings[check]["mend"])

    def but(self, grade: str = "ok") -> set[str]:
        return {name for name, finding in self.findings.items() if finding["grade"] != grade}


def read(code: int, out: str) -> Diagnosed:
    told = json.loads(out)
    assert told["exit_code"] == code
    assert told["seconds"] < 10
    return Diagnosed(code, {finding["check"]: finding for finding in told["findings"]})


@pytest.fixture
def doctor(rota: Run, rota_database: str) -> Callable[..., Diagnosed]:
    """The command's JSON, on the test's database unless another is named."""

    def run(*arguments: str, dsn: str = rota_database) -> Diagnosed:
        ended = rota("doctor", *arguments, "--json", "--dsn", dsn)
        return read(ended.code, ended.out)

    return run


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def app_file(tmp_path: Path) -> str:
    (file := tmp_path / "patient_app.py").write_text(APP)
    return str(file)


@pytest.fixture
def sound_database(rota: Run, postgres_version: str, tmp_path: Path) -> Iterator[str]:
    """On a server that is set up to last, which those of tests are not."""
    with EmbeddedServer(tmp_path / "server", binaries=installed()[postgres_version]) as server:
        dsn = make_conninfo(server.start())
        assert rota("migrate", "--dsn", dsn).code == 0
        yield dsn


@pytest.mark.long
def test_where_all_is_well_nothing_is_said_against_it(rota: Run, sound_database: str, app_file: str) -> None:
    with WorkerProcess(app_file, dsn=sound_database) as worker:
        worker.wait_until_working()
        rota("jobs", "enqueue", "t", "--dsn", sound_database)

        ended = rota("doctor", app_file, "--termination-grace", "40", "--json", "--dsn", sound_database)
        words = rota("doctor", app_file, "--dsn", sound_database)

    told = read(ended.code, ended.out)
    assert (told.code, {name: told.findings[name] for name in told.but("ok")}) == (0, {})
    assert "1 task(s)" in told.found("app") or "2 task(s)" in told.found("app")
    assert "1 of them worker" in told.found("members")
    assert "from --dsn" in told.found("connection")
    assert "ms" in told.found("listening")
    assert (words.code, "problem" in words.out, "nothing is wrong" in words.err) == (0, False, True)


@pytest.mark.long
def test_without_a_database_it_ends_with_4_and_makes_what_checks_it_can(rota: Run) -> None:
    address = "postgresql://ana:s3cret@127.0.0.1:1/x"
    words = rota("doctor", "--dsn", address)
    ended = rota("doctor", "--json", "--dsn", address)

    told = read(ended.code, ended.out)
    assert (told.code, told.grade("connection"), told.grade("schema")) == (4, "problem", "unknown")
    assert told.grade("python") == "ok"
    assert "s3cret" not in ended.out + words.out + words.err
    assert "there is no connection" in words.out


@pytest.mark.long
def test_a_server_that_never_answers_ends_with_4_in_time(rota: Run, rota_database: str) -> None:
    with TcpProxy(rota_database) as proxy:
        proxy.blackhole()
        began = time.monotonic()
        ended = rota("doctor", "--json", "--dsn", proxy.dsn(rota_database))
    assert ended.code == 4
    assert time.monotonic() - began < 15  # a connection may take three, and the machine is busy


def test_a_check_whose_connection_breaks_leaves_the_others(rota: Run, rota_database: str) -> None:
    with TcpProxy(rota_database) as proxy:
        proxy.cut_after(b"rota:look_at_vacuum")
        ended = rota("doctor", "--json", "--dsn", proxy.dsn(rota_database))

    told = read(ended.code, ended.out)
    assert (told.code, told.grade("autovacuum"), told.grade("schema"), told.grade("members")) == (
        0,
        "unknown",
        "ok",
        "ok",
    )


@pytest.mark.long
def test_a_server_that_falls_silent_meanwhile_is_waited_for_once(
    rota: Run, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy(rota_database) as proxy:
        autovacuum = upkeep.LOOK_AT_VACUUM.query

        def falls_silent(*arguments: Any, **named: Any) -> Any:
            proxy.blackhole()
            return autovacuum(*arguments, **named)

        monkeypatch.setattr(upkeep, "LOOK_AT_VACUUM", SimpleNamespace(query=falls_silent))
        began = time.monotonic()
        ended = rota("doctor", "--json", "--dsn", proxy.dsn(rota_database))

    told = json.loads(ended.out)
    grades = {finding["check"]: finding["grade"] for finding in told["findings"]}
    assert (grades["transaction_ids"], grades["autovacuum"], grades["schema"]) == ("ok", "unknown", "unknown")
    assert time.monotonic() - began < 20  # three for the answer, three for another connection, and none for the rest


@pytest.mark.long
def test_a_check_that_waits_for_a_lock_is_given_up_and_the_others_are_made(rota: Run, rota_database: str) -> None:
    with psycopg.connect(rota_database) as other:
        other.execute("lock table rota.dead in access exclusive mode")
        ended = rota("doctor", "--json", "--dsn", rota_database)

    told = read(ended.code, ended.out)
    assert (told.code, told.grade("dead_letters"), told.grade("schedules")) == (0, "unknown", "ok")
    assert "lock timeout" in told.found(
        "dead_letters"
    )  # the server gave up, and nobody waits on in the queue for that lock


@pytest.mark.long
def test_without_tables_it_ends_with_5_and_says_to_migrate(doctor: Run, rota: Run, db: Db, rota_database: str) -> None:
    db.execute("drop schema rota cascade")

    told = doctor()

    assert (told.code, told.grade("schema"), told.grade("grants")) == (5, "problem", "unknown")
    (command,) = told.mend("schema")
    assert command.startswith("rota migrate --dsn ")
    assert rota("migrate", "--dsn", rota_database).code == 0
    assert doctor().code == 0


@pytest.mark.long
@pytest.mark.parametrize("how", ["--dsn", "code"])
def test_commands_meet_the_same_database_and_show_no_password(
    rota: Run, db: Db, rota_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", "dbname=elsewhere")
    address = make_conninfo(rota_database, password="s3cret")
    (file := tmp_path / f"{how.strip('-')}_patient.py").write_text(f"from rota import Rota\napp = Rota({address!r})\n")
    db.execute("drop schema rota cascade")

    ended = rota("doctor", "--json", *(["--dsn", address] if how == "--dsn" else [str(file)]))
    told = read(ended.code, ended.out)
    (command,) = told.mend("schema")
    mended = rota(*shlex.split(command)[1:])  # where it asked for a password, libpq would look in PGPASSWORD
    again = rota("doctor", "--json", str(file))

    assert told.code == 5
    assert "PGPASSWORD" in told.found("connection")
    assert ("s3cret" in ended.out, "***" in command) == (False, False)
    assert mended.code == 0
    assert read(again.code, again.out).grade("schema") == "ok"


@pytest.mark.long
def test_under_the_command_of_another_it_proposes_what_can_be_typed_there(rota_database: str, db: Db) -> None:
    theirs = click.Group("theirs")
    theirs.add_command(rota_command)
    db.execute("update rota.meta set database = 'production'")
    db.execute("select rota.enqueue('t')")

    ended = CliRunner().invoke(theirs, ["rota", "doctor", "--json", "--dsn", rota_database])

    told = read(ended.exit_code, ended.stdout)
    assert "`theirs rota adopt`" in told.found("identity")
    assert told.mend("identity")[0].startswith("theirs rota adopt --dsn ")
    assert told.mend("queued_jobs")[0].startswith("theirs rota worker APP --dsn ")


@pytest.mark.long
def test_tables_of_a_newer_release_are_noted_or_refused(doctor: Run, db: Db) -> None:
    db.execute("insert into rota.migrations values (9998, 'later', 'x', true)")
    assert doctor().grade("schema") == "note"

    db.execute("insert into rota.migrations values (9999, 'contract', 'x', false)")
    assert (doctor().code, doctor().grade("schema")) == (5, "problem")


@pytest.mark.long
def test_a_copy_is_found_and_adopting_mends_it(doctor: Run, rota: Run, db: Db, rota_database: str) -> None:
    db.execute("update rota.meta set database = 'production'")

    told = doctor()

    assert (told.code, told.grade("identity")) == (6, "problem")
    assert "rota adopt" in told.mend("identity")[0]
    rota("adopt", "--dsn", rota_database)
    assert (doctor().code, doctor().grade("identity")) == (0, "ok")


@pytest.mark.long
def test_missing_and_invalid_indexes_are_found_and_what_is_said_mends_them(doctor: Run, db: Db) -> None:
    db.execute("drop index rota.jobs_claimable")
    db.execute(
        "update pg_index set indisvalid = false where indexrelid = 'rota.jobs_held'::regclass"
    )  # as a build that was not finished

    told = doctor()

    assert (told.code, told.found("indexes")) == (6, "jobs_claimable is missing, jobs_held is invalid")
    for statement in told.mend("indexes"):
        db.execute(statement)
    assert doctor().grade("indexes") == "ok"


@pytest.mark.direct("a role of its own logs in")
def test_what_a_role_may_do_is_told_and_what_is_said_mends_it(
    doctor: Run, rota: Run, db: Db, rota_database: str
) -> None:
    role, schema = f"r{uuid4().hex[:8]}", f"s{uuid4().hex[:8]}"
    dsn = make_conninfo(rota_database, user=role)
    rota("migrate", "--roles", "--schema", schema, "--dsn", rota_database)
    db.execute(f"create role {role} login nosuperuser")
    try:
        nothing = doctor("--schema", schema, dsn=dsn)
        db.execute(f"grant {schema}_read to {role}")
        reads = doctor("--schema", schema, dsn=dsn)
        db.execute(f"grant {schema}_enqueue to {role}")
        enqueues = doctor("--schema", schema, dsn=dsn)
        db.execute(enqueues.mend("grants")[-1])
        works = doctor("--schema", schema, dsn=dsn)
        db.execute(works.mend("old_transactions")[0])
        sees = doctor("--schema", schema, dsn=dsn)
        db.execute(f"revoke update on {schema}.dead from {schema}_worker")
        stale = doctor("--schema", schema, dsn=dsn)
    finally:
        db.execute(f"drop owned by {role}; drop role {role}; drop schema {schema} cascade")
        db.execute(f"drop role {schema}_read, {schema}_enqueue, {schema}_worker")

    assert (nothing.code, nothing.grade("grants")) == (6, "problem")
    assert "usage on the schema" in nothing.found("grants")
    assert (nothing.grade("members"), nothing.grade("encryption")) == ("unknown", "ok")
    assert (reads.grade("grants"), enqueues.grade("grants"), works.grade("grants")) == ("note", "note", "ok")
    assert "may look and change nothing" in reads.found("grants")
    assert "may enqueue and not work" in enqueues.found("grants")
    assert (works.grade("old_transactions"), sees.grade("old_transactions")) == ("note", "ok")
    assert "lacks update on dead" in stale.found("grants")
    assert (stale.grade("grants"), "rota migrate --roles" in stale.mend("grants")[0]) == ("problem", True)


@pytest.mark.long
@pytest.mark.direct("a pooler of its own stands in front")
def test_a_pooler_in_transaction_mode_is_found(doctor: Run, rota_database: str, db: Db, tmp_path: Path) -> None:
    name = psycopg.conninfo.conninfo_to_dict(rota_database)["dbname"]
    db.execute(f"alter database {name} set statement_timeout = '5s'")
    db.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    with transaction_pooler(rota_database, tmp_path) as pooled:
        told = doctor(dsn=pooled)

    assert (told.code, told.grade("pooler"), told.grade("listening")) == (0, "warning", "unknown")
    assert "direct address" in told.mend("pooler")[0]
    assert {told.grade("isolation"), told.grade("timeouts")} == {"warning"}  # they cost round trips there
    assert told.grade("members") == "ok"


@pytest.mark.long
@pytest.mark.direct("settings of a session are read")
def test_settings_that_hurt_your_own_statements_are_noted_and_what_is_said_mends_them(
    doctor: Run, db: Db, rota_database: str
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(rota_database)["dbname"]
    db.execute(f"alter database {name} set statement_timeout = '5s'")
    db.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    db.execute(f"alter database {name} set synchronous_commit = 'off'")

    told = doctor()

    assert (told.grade("timeouts"), told.found("timeouts")) == ("note", "statement_timeout is 5 s")
    assert (told.grade("isolation"), told.found("isolation")) == ("note", "transactions begin at serializable")
    for statement in told.mend("timeouts") + told.mend("isolation"):
        db.execute(statement)
    assert (doctor().grade("timeouts"), doctor().grade("isolation")) == ("ok", "ok")


@pytest.mark.long
def test_a_server_that_may_lose_what_was_committed_is_found(doctor: Run, sound_database: str) -> None:
    told = doctor()  # a server for tests
    assert (told.code, told.grade("durability")) == (0, "warning")
    assert told.found("durability") == "fsync and full_page_writes are off"

    with psycopg.connect(sound_database, autocommit=True) as db:
        db.execute("alter database postgres set synchronous_commit = off")
        told = doctor(dsn=sound_database)
        assert (told.grade("durability"), told.found("durability")) == ("warning", "synchronous_commit is off")
        for statement in told.mend("durability"):
            db.execute(statement)
    assert doctor(dsn=sound_database).grade("durability") == "ok"


@pytest.mark.long
@pytest.mark.direct("default_transaction_read_only keeps a session of ours away")
def test_a_database_that_is_read_only_is_told_from_one_that_is_away(doctor: Run, db: Db, rota_database: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(rota_database)["dbname"]
    db.execute(f"alter database {name} set default_transaction_read_only = on")

    told = doctor()

    assert (told.code, told.grade("connection"), told.grade("writable")) == (6, "ok", "problem")
    db.execute(told.mend("writable")[0])
    assert doctor().grade("writable") == "ok"


@pytest.mark.long
def test_a_standby_is_told_from_a_primary_and_every_check_can_be_made_without_writing(
    doctor: Run, own_server: OwnServer
) -> None:
    home = own_server.server.home
    assert home is not None
    (home / "data" / "standby.signal").touch()
    own_server.restart("fast")

    told = doctor(dsn=own_server.dsn)

    assert (told.code, told.grade("writable")) == (6, "problem")
    assert "standby" in told.found("writable")
    unknown = {name for name, finding in told.findings.items() if finding["grade"] == "unknown"}
    assert unknown == {"listening"}  # there nobody can


@pytest.mark.long
def test_an_old_transaction_is_named_with_what_ends_it(doctor: Run, db: Db, rota_database: str) -> None:
    with psycopg.connect(rota_database, application_name="report") as old:
        old.execute("select txid_current(), 'a secret of others'")
        pid = old.info.backend_pid
        told = doctor("--old-transaction", "0")
        look, *ends = told.mend("old_transactions")
        looked = db.execute(look).fetchall()

    assert (told.code, told.grade("old_transactions")) == (0, "warning")
    assert f"pid {pid} (report, role {db.info.user})" in told.found("old_transactions")
    assert "idle in transaction" in told.found("old_transactions")
    assert "secret" not in json.dumps(told.findings)
    assert f"select pg_terminate_backend({pid});" in ends
    assert (pid, "select txid_current(), 'a secret of others'") in looked
    assert doctor("--old-transaction", "86400").grade("old_transactions") == "ok"


@pytest.fixture
def prepared_server(own_server: OwnServer) -> str:
    with psycopg.connect(own_server.dsn, autocommit=True) as db:
        db.execute("alter system set max_prepared_transactions = 5")
        db.execute("alter system set wal_level = logical")
        db.execute("alter system set autovacuum = off")
    own_server.restart("fast")
    return own_server.dsn


@pytest.mark.long
def test_what_keeps_vacuum_from_its_work_is_found_and_what_is_said_mends_it(doctor: Run, prepared_server: str) -> None:
    dsn = prepared_server
    with psycopg.connect(dsn) as forgetful:
        forgetful.execute("create table orders (id int)")
        forgetful.execute("prepare transaction 'it''s me'")
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("select pg_create_physical_replication_slot('gone', true)")
        db.execute("update pg_database set datfrozenxid = ((txid_current() - 1200000000) & 4294967295)::text::xid")

        told = doctor("--old-transaction", "0", dsn=dsn)
        assert (told.code, told.grade("autovacuum"), told.found("autovacuum")) == (6, "problem", "autovacuum is off")
        assert (told.grade("prepared_transactions"), "it's me" in told.found("prepared_transactions")) == (
            "warning",
            True,
        )
        assert (told.grade("replication_slots"), "gone" in told.found("replication_slots")) == ("warning", True)
        assert (told.grade("transaction_ids"), "1,200,0" in told.found("transaction_ids")) == ("warning", True)
        db.execute("update pg_database set datfrozenxid = ((txid_current() - 1700000000) & 4294967295)::text::xid")
        assert doctor(dsn=dsn).grade("transaction_ids") == "problem"

        for check in ("prepared_transactions", "replication_slots", "autovacuum"):
            for statement in told.mend(check):
                db.execute(statement)
        told = doctor("--old-transaction", "0", dsn=dsn)
        grades = {told.grade(check) for check in ("prepared_transactions", "replication_slots", "autovacuum")}
        assert grades == {"ok"}


@pytest.mark.long
def test_tables_that_nobody_vacuums_are_found(doctor: Run, db: Db) -> None:
    db.execute("alter table rota.jobs set (autovacuum_enabled = false)")
    db.execute("insert into rota.jobs (task) select 't' from generate_series(1, 110000)")
    db.execute("delete from rota.jobs")
    if db.info.server_version >= 150000:
        db.execute("select pg_stat_force_next_flush()")
    db.execute("select 1")

    told = doctor()

    assert (told.code, told.found("autovacuum")) == (6, "it is off for rota.jobs")
    assert (told.grade("dead_rows"), "110,000 dead" in told.found("dead_rows")) == ("note", True)
    for statement in told.mend("autovacuum") + told.mend("dead_rows"):
        db.execute(statement)
    assert doctor().grade("autovacuum") == "ok"


@pytest.mark.long
def test_a_full_queue_of_notifications_is_found_with_who_holds_it(doctor: Run, own_server: OwnServer) -> None:
    if own_server.binaries.major < 17:
        pytest.skip("before PostgreSQL 17 the queue always has 8 GB, which take minutes to fill")
    with psycopg.connect(own_server.dsn, autocommit=True) as db:
        db.execute("alter system set max_notify_queue_pages = 64")
    own_server.restart("fast")
    with (
        psycopg.connect(own_server.dsn, autocommit=True) as db,
        psycopg.connect(own_server.dsn, autocommit=True) as listener,
    ):
        listener.execute("listen something")
        listener.execute("begin")
        listener.execute("select 1")
        with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
            while True:
                db.execute("select pg_notify('something', repeat('x', 4000) || n) from generate_series(1, 5) as n")

        told = doctor(dsn=own_server.dsn)

        assert (told.code, told.grade("notifications")) == (6, "problem")
        assert f"select pg_terminate_backend({listener.info.backend_pid});" in told.mend("notifications")[0]


@pytest.mark.long
def test_messages_that_do_not_come_back_are_found(doctor: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy that drops them: we listen to one channel and notify another."""
    monkeypatch.setattr(server_checks, "_HEARD_WITHIN", 0.2)
    execute = psycopg.Connection.execute

    def swallowing(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
        return execute(self, "select 1" if "listen rota_" in str(query) else query, *arguments, **named)

    monkeypatch.setattr(psycopg.Connection, "execute", swallowing)

    told = doctor()

    assert (told.code, told.grade("listening")) == (6, "problem")


@pytest.mark.long
@pytest.mark.one_server
def test_a_server_far_away_is_found(doctor: Run, rota_database: str) -> None:
    with TcpProxy(rota_database) as proxy:
        proxy.delay = 0.01
        told = doctor(dsn=proxy.dsn(rota_database))

    assert (told.code, told.grade("latency")) == (0, "warning")


@pytest.mark.long
@pytest.mark.one_server
def test_a_connection_over_a_network_without_tls_is_found(
    doctor: Run, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "host", "db.example.com")

    told = doctor()

    assert (told.grade("encryption"), "sslmode" in told.mend("encryption")[0]) == ("warning", True)


@pytest.mark.long
@pytest.mark.one_server
def test_a_clock_that_is_off_is_noted(rota_database: str, tmp_path: Path) -> None:
    if (faking := libfaketime()) is None:
        pytest.skip("the clock of a process is set by libfaketime: apt-get install faketime")
    env = {"LD_PRELOAD": str(faking), "FAKETIME": "-1h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    with Command("doctor", "--json", "--dsn", rota_database, folder=tmp_path, env=env) as command:
        told = read(command.wait(), command.out)

    assert (told.code, told.grade("clock")) == (0, "note")
    assert told.found("clock").startswith("the database is 3600")
    assert "ahead of this machine" in told.found("clock")


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "today", "grade"),
    [
        (130011, date(2025, 1, 1), "problem"),
        (140002, date(2025, 1, 1), "ok"),
        (140002, date(2026, 7, 1), "warning"),
        (180001, date(2026, 7, 1), "ok"),
    ],
)
def test_versions_that_are_too_old_or_soon_without_corrections_are_found(number: int, today: date, grade: str) -> None:
    assert server_checks.supported(number, today).grade == grade


@pytest.mark.long
@pytest.mark.direct("a limit counts for those who log in")
def test_connections_that_do_not_suffice_are_found(doctor: Run, db: Db, rota_database: str) -> None:
    most = int(db.execute("show max_connections").fetchone()[0])  # type: ignore[index]
    join(db, "greedy", concurrency=most)
    told = doctor()
    assert (told.code, told.grade("connections")) == (0, "warning")
    assert "alter system set max_connections" in told.mend("connections")[0]

    db.execute("delete from rota.members")
    join(db, "modest")
    assert doctor().grade("connections") == "ok"
    name = psycopg.conninfo.conninfo_to_dict(rota_database)["dbname"]
    db.execute(f"alter database {name} connection limit 3")
    told = doctor()
    assert (told.code, told.grade("connections")) == (6, "problem")
    assert f"alter database {name} connection limit" in told.mend("connections")[0]
    db.execute(told.mend("connections")[0])
    assert doctor().grade("connections") == "ok"


def test_jobs_that_nobody_will_take_are_found(doctor: Run, db: Db, rota_app: TestRota) -> None:
    db.execute("select rota.enqueue('t')")
    join(db, "dead", lease=-1)  # it knew the task
    alone = doctor()
    assert (alone.code, alone.grade("queued_jobs")) == (6, "problem")
    assert "no worker is running" in alone.found("queued_jobs")
    assert alone.mend("queued_jobs")[0].startswith("rota worker APP")

    join(db, queues=["mail"])
    assert "default, and no running worker takes from there" in doctor().found("queued_jobs")

    join(db, tasks={"other": 1})
    told = doctor()
    assert "no running worker knows these tasks: t (version 1) in default: 1 or more" in told.found("queued_jobs")

    join(db, tasks={"t": 1})
    assert (doctor().code, doctor().grade("queued_jobs")) == (0, "ok")

    db.execute("select rota.enqueue('later', due_at => rota.now() + interval '1 hour')")
    assert doctor().grade("queued_jobs") == "ok"


def test_lines_that_nobody_will_take_from_are_found(doctor: Run, db: Db) -> None:
    db.execute("insert into rota.limits (task, running) values ('t', 1)")
    db.execute("select rota.enqueue('t', due_at => rota.now() + interval '1 hour')")
    assert doctor().grade("queued_jobs") == "ok"

    db.execute("select rota.enqueue('t')")
    told = doctor()
    assert (told.code, told.grade("queued_jobs")) == (6, "problem")
    assert "1 or more jobs are due" in told.found("queued_jobs")

    join(db, tasks={"other": 1})
    assert "no running worker knows these tasks: t (version 1) in default: 1" in doctor().found("queued_jobs")

    join(db, tasks={"t": 1})
    assert doctor().grade("queued_jobs") == "ok"


def test_jobs_that_nobody_will_put_into_their_line_are_found(doctor: Run, db: Db, rota_app: TestRota) -> None:
    db.execute("insert into rota.limits (task, running) values ('t', 1)")
    db.execute("select rota.enqueue('t', due_at => rota.now() + interval '1 hour')")
    rota_app.advance("2h")

    told = doctor()

    assert (told.code, told.grade("queued_jobs")) == (6, "problem")
    assert "1 or more jobs are due, the oldest for 36" in told.found("queued_jobs")


@pytest.mark.long
def test_members_that_do_not_answer_are_found(doctor: Run, db: Db) -> None:
    join(db, "silent", lease=-1)
    told = doctor()
    assert (told.code, told.grade("members")) == (6, "problem")
    assert "silent (last heard" in told.found("members")

    join(db, "healthy")
    assert (doctor().code, doctor().grade("members")) == (0, "warning")

    db.execute("delete from rota.members where name = 'silent'")
    join(db, "newer")
    db.execute("update rota.members set release = '9.9' where name = 'newer'")
    assert (doctor().grade("members"), "9.9" in doctor().found("members")) == ("note", True)


@pytest.mark.long
def test_dead_letters_are_counted(doctor: Run, rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(attempts=1))
    def fail() -> None:
        raise ValueError

    fail.enqueue_sync()
    rota_app.drain_sync()

    told = doctor()

    assert (told.code, told.grade("dead_letters"), told.found("dead_letters")) == (0, "warning", "1 open")
    assert told.mend("dead_letters")[0].startswith("rota dead list")


@pytest.mark.long
def test_schedules_that_are_broken_or_left_behind_are_found(
    doctor: Run, db: Db, app_file: str, rota_app: TestRota
) -> None:
    @rota_app.every("1h", name="tick")
    def tick() -> None: ...

    rota_app.drain_sync()
    told = doctor(app_file)
    assert (told.code, told.grade("schedules"), "tick" in told.found("schedules")) == (0, "note", True)
    assert told.mend("schedules")[0].startswith("rota schedules delete tick")

    db.execute("update rota.schedules set problem = 'no such zone', next_at = null, next_slot = null")
    told = doctor(app_file)
    assert (told.code, told.grade("schedules"), told.found("schedules")) == (6, "problem", "1 broken: tick")

    db.execute("update rota.schedules set name = 'tick; rm -r *'")
    assert shlex.split(doctor(app_file).mend("schedules")[0])[:4] == ["rota", "schedules", "show", "tick; rm -r *"]


@pytest.mark.long
def test_pollers_that_do_not_fit_their_tables_are_found_and_what_is_said_mends_them(
    doctor: Run, db: Db, tmp_path: Path
) -> None:
    (file := tmp_path / "polling_patient.py").write_text(
        "from rota import Rota\napp = Rota()\n"
        '@app.poller(name="fetch", table="feeds", last="polled_at", interval="1h")\n'
        "def fetch(row): ...\n"
    )
    told = doctor(str(file))
    assert (told.code, told.grade("pollers"), "feeds" in told.found("pollers")) == (6, "problem", True)

    db.execute("create table feeds (id bigint primary key, polled_at timestamptz)")
    db.execute("analyze feeds")
    told = doctor(str(file))
    assert (told.code, "no index leads to the due rows of fetch" in told.found("pollers")) == (6, True)
    assert told.mend("pollers")[1].startswith(f"rota pollers check --app {file} --dsn ")
    db.execute(told.mend("pollers")[0])
    assert doctor(str(file)).grade("pollers") in ("ok", "note")


@pytest.mark.long
@pytest.mark.one_server
def test_an_app_that_cannot_be_imported_or_has_nothing_is_found(doctor: Run, tmp_path: Path) -> None:
    (broken := tmp_path / "broken_patient.py").write_text("import no_such_module_anywhere\n")
    (empty := tmp_path / "empty_patient.py").write_text("from rota import Rota\napp = Rota()\n")

    told = doctor(str(broken))
    assert (told.code, told.grade("app"), told.grade("schema")) == (6, "problem", "ok")
    assert "no_such_module_anywhere" in told.found("app")
    assert "broken_patient.py, line 1)" in told.found("app")
    assert doctor(str(empty)).grade("app") == "warning"


@pytest.mark.one_server
def test_budgets_that_are_too_short_are_found(doctor: Run) -> None:
    told = doctor("--probe-period", "10", "--termination-grace", "29")
    assert (told.code, told.grade("drain_window"), told.grade("termination_grace")) == (6, "problem", "problem")
    assert told.mend("drain_window")[0] == "rota serve --drain-window 32"
    assert told.mend("termination_grace")[0].startswith("terminationGracePeriodSeconds: 30")

    # the grace counts from the signal on, beside the window; the server waits for requests after it
    told = doctor("--probe-period", "10", "--drain-window", "32", "--pre-stop", "5", "--termination-grace", "42")
    assert (told.code, told.grade("drain_window"), told.grade("termination_grace")) == (0, "ok", "ok")
    assert doctor("--graceful-timeout", "20", "--termination-grace", "30").grade("termination_grace") == "ok"
    assert doctor("--graceful-timeout", "21", "--termination-grace", "30").grade("termination_grace") == "problem"
    assert doctor().grade("termination_grace") == "note"


@pytest.mark.long
@pytest.mark.one_server
def test_budgets_are_those_of_the_environment_unless_told(doctor: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DRAIN_WINDOW", "12s")
    monkeypatch.setenv("ROTA_GRACE", "50")

    told = doctor("--probe-period", "3", "--termination-grace", "55")
    assert (told.grade("drain_window"), told.grade("termination_grace")) == ("ok", "ok")
    assert doctor("--termination-grace", "54").grade("termination_grace") == "problem"
    assert doctor("--grace", "49", "--termination-grace", "54").grade("termination_grace") == "ok"


@pytest.mark.one_server
def test_a_machine_that_is_not_fit_is_found(doctor: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class ProactorEventLoop(asyncio.SelectorEventLoop):
        pass

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(psycopg.pq, "__impl__", "python")
    monkeypatch.setattr(asyncio, "new_event_loop", ProactorEventLoop)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        told = doctor()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (told.code, told.grade("event_loop")) == (6, "problem")
    assert (told.grade("driver"), told.mend("driver")) == ("warning", ['pip install "psycopg[binary]"'])
    assert (told.grade("open_files"), told.found("open_files")) == ("warning", "at most 512 at once")


@pytest.mark.long
@pytest.mark.one_server
def test_the_embedded_server_is_named_and_not_started(
    rota: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROTA_DATABASE_URL", "DATABASE_URL", "PGHOST", "PGDATABASE", "PGSERVICE", "PGUSER", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_POSTGRES_DATA", str(tmp_path / "postgres"))

    ended = rota("doctor", "--json")
    told = read(ended.code, ended.out)
    assert (told.code, told.grade("embedded_server"), told.grade("connection")) == (0, "note", "unknown")
    assert not (tmp_path / "postgres").exists()

    with EmbeddedServer(tmp_path / "postgres"):
        ended = rota("doctor", "--json")
    told = read(ended.code, ended.out)
    assert (told.code, told.grade("embedded_server"), told.grade("schema")) == (5, "note", "problem")
    assert "in use" in told.found("embedded_server")


@pytest.mark.long
@pytest.mark.one_server
@pytest.mark.parametrize("name", ["ROTA_DATABASE_URL", "DATABASE_URL"])
def test_where_the_address_comes_from_is_told(
    rota: Run, rota_database: str, app_file: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in ("ROTA_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, rota_database)
    (Path(app_file).parent / "coded_patient.py").write_text(f"from rota import Rota\napp = Rota({rota_database!r})\n")

    assert f"(from {name})" in rota("doctor", app_file).out
    monkeypatch.setenv(name, "dbname=elsewhere")
    assert "(from the code of the app)" in rota("doctor", str(Path(app_file).parent / "coded_patient.py")).out


@pytest.mark.long
@pytest.mark.one_server
def test_what_is_said_to_people_has_the_reason_and_what_mends_it(rota: Run, rota_database: str, db: Db) -> None:
    db.execute("select rota.enqueue('t')")

    quiet = rota("doctor", "--dsn", rota_database)
    verbose = rota("doctor", "--verbose", "--dsn", rota_database)

    assert (quiet.code, "1 problem" in quiet.err) == (6, True)
    place = quiet.out.splitlines().index(next(line for line in quiet.out.splitlines() if line.startswith("problem")))
    assert quiet.out.splitlines()[place + 1].strip() == "Nobody does them."
    assert quiet.out.splitlines()[place + 2].strip().startswith("-> rota worker APP")
    assert len(verbose.out) > len(quiet.out)


@pytest.mark.long
def test_a_million_jobs_are_looked_at_as_fast_as_none(doctor: Run, db: Db, rota_server: DatabaseServer) -> None:
    db.execute("insert into rota.jobs (task, queue) select 't', 'q' || n % 50 from generate_series(1, 1000000) as n")

    began = time.monotonic()
    told = doctor()

    assert (told.code, told.grade("queued_jobs")) == (6, "problem")
    assert time.monotonic() - began < 3
    assert "unknown" not in {finding["grade"] for finding in told.findings.values()}
