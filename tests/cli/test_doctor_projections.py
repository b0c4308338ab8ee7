"""`rota doctor`: projections that have stopped, wait for someone, or that nobody reads for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from tests.cli.test_doctor import Diagnosed, read
from tests.jobs.test_explain import join
from tests.projections.logs import Db, append, restore_elsewhere

from rota.failure import describe
from rota.projections.checkpoint import Owned, declare_projection, fail_projection, take_projection
from rota.projections.feed import START
from rota.testing import DatabaseServer, TestRota, until_sync

Run = Callable[..., Any]
OWNED = Owned("totals", 1, 1)
SECRET = "the sum of ann@example.com"

APP = """
from tests.projections.logs import Log
from rota import Rota

app = Rota()

@app.projection("totals", source=Log())
async def totals(event, connection): ...
"""


@pytest.fixture(scope="session")
def rota_server(event_server: DatabaseServer) -> DatabaseServer:
    return event_server


@pytest.fixture
def doctor(rota: Run, rota_database: str, tmp_path: Path) -> Callable[[], Diagnosed]:
    (file := tmp_path / "examined_app.py").write_text(APP)

    def run() -> Diagnosed:
        ended = rota("doctor", str(file), "--json", "--dsn", rota_database)
        assert SECRET not in ended.out
        return read(ended.code, ended.out)

    return run


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def worker(rota_app: TestRota, db: Db) -> UUID:
    """One that has the projection, and leads it."""
    rota_app.database.run_sync(declare_projection("totals", 1, {"source": "orders", "on_error": "stop"}))
    rota_app.database.run_sync(take_projection(OWNED))
    member = join(db)
    db.execute("update rota.members set work = %s", [Jsonb({"tasks": {}, "projections": {"totals": 1}})])
    db.execute(
        "insert into rota.leases (name, epoch, member, acquired_at) values ('rota.projection/totals/1', 1, %s, now())",
        [member],
    )
    return member


def test_what_is_in_order_is_said_to_be(doctor: Run, db: Db, worker: UUID) -> None:
    append(db)

    assert doctor().findings["projections"]["found"] == "1 in order, 1 event(s) wait"


def test_one_that_stopped_is_a_problem_with_the_command_that_resumes_it_and_not_what_its_error_says(
    doctor: Run, rota_app: TestRota, db: Db, worker: UUID
) -> None:
    append(db)
    rota_app.database.run_sync(fail_projection(OWNED, START, describe(ValueError(SECRET)), stop=True))

    diagnosed = doctor()

    assert (diagnosed.code, diagnosed.grade("projections")) == (6, "problem")
    assert diagnosed.found("projections") == "1 stopped at an event that cannot be taken in: totals (ValueError)"
    assert diagnosed.mend("projections")[1].startswith("rota projections resume totals --dsn ")


def test_one_that_no_worker_has_is_a_problem_while_events_wait_for_it(
    doctor: Run, rota_app: TestRota, db: Db, worker: UUID
) -> None:
    db.execute("update rota.members set ended_at = now(), end_reason = 'left'")
    idle = doctor()
    append(db)
    waited_for = doctor()

    assert (idle.grade("projections"), waited_for.grade("projections")) == ("warning", "problem")
    assert waited_for.found("projections") == "no running worker has totals (version 1)"


def test_one_that_hangs_is_told_from_one_that_is_only_late(doctor: Run, db: Db, worker: UUID) -> None:
    append(db)
    db.execute("update rota.events set created_at = now() - interval '10 minutes'")
    db.execute("update rota.projections set progress_at = now() - interval '1 second'")
    late = doctor()
    db.execute("update rota.projections set progress_at = now() - interval '5 minutes'")
    db.execute("update rota.leases set acquired_at = now() - interval '5 minutes'")
    hangs = doctor()

    assert late.grade("projections") == "warning"
    assert "totals is behind: 1 event(s) wait, the first for 60" in late.found("projections")
    assert hangs.grade("projections") == "problem"
    assert "totals has not come further for 30" in hangs.found("projections")
    assert "rota leaders resign rota.projection/totals/1 --force" in hangs.mend("projections")[1]


def test_who_holds_what_waits_is_named_and_not_what_it_asks(
    doctor: Run, rota_database: str, db: Db, worker: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.runtime.doctor.projections._LATE", 0.0)
    with psycopg.connect(rota_database) as other:
        other.execute(f"select pg_current_xact_id() -- {SECRET}".encode())
        append(db)

        # others on this server may have been in a transaction before
        named = f"pid {other.info.backend_pid} (idle in transaction, role"
        diagnosed = until_sync(
            lambda: found if named in (found := doctor()).found("projections") else None, timeout=60, what="it is named"
        )

        assert diagnosed.grade("projections") == "warning"
        assert "and totals cannot read past it" in diagnosed.found("projections")
        assert diagnosed.mend("projections")[1] == f"select pg_terminate_backend({other.info.backend_pid});"


def test_parked_events_and_pauses_are_told_together(doctor: Run, rota_app: TestRota, db: Db, worker: UUID) -> None:
    db.execute(
        "insert into rota.parked_events (projection, version, order_xid, position, attempts, error_type, error_message, error_trace) "
        "values ('totals', 1, '3', 1, 1, 'ValueError', %s, '')",
        [SECRET],
    )
    rota_app.projections.pause_sync("totals", by="ann")

    diagnosed = doctor()

    assert diagnosed.grade("projections") == "warning"
    assert diagnosed.found("projections") == "parked: 1 of totals; paused: totals by ann"


@pytest.mark.parametrize("what", ["events", "checkpoints"])
def test_a_database_that_was_restored_from_another_server_needs_a_rebase(
    doctor: Run, db: Db, worker: UUID, what: str
) -> None:
    append(db)
    restore_elsewhere(db)
    if what == "checkpoints":
        db.execute("update rota.projections set order_xid = (select max(order_xid::text) from rota.events)::xid8")
        db.execute("delete from rota.events")

    diagnosed = doctor()

    assert diagnosed.grade("projections") == "problem"
    assert diagnosed.found("projections").startswith("the places of totals are of another server")
    assert diagnosed.mend("projections")[0].startswith("rota projections rebase --dsn ")


def test_where_nobody_has_any_there_is_nothing_to_say(rota: Run, rota_database: str) -> None:
    ended = rota("doctor", "--json", "--dsn", rota_database)

    assert read(ended.code, ended.out).found("projections") == "no process has declared one"
