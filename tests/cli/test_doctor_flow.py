"""`rota doctor`: queues that were paused and forgotten, and lines that stand still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.cli.test_doctor import Diagnosed, read
from tests.jobs.test_explain import join
from tests.jobs.test_explain_flow import declare, put, take

from rota.testing import TestRota

Run = Callable[..., Any]
Db = psycopg.Connection[Any]


@pytest.fixture
def doctor(rota: Run, rota_database: str) -> Callable[[], Diagnosed]:
    def run() -> Diagnosed:
        ended = rota("doctor", "--json", "--dsn", rota_database)
        return read(ended.code, ended.out)

    return run


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def test_queues_that_are_paused_for_long_are_found(doctor: Run, rota_app: TestRota) -> None:
    assert doctor().found("paused_queues") == "none is paused"
    rota_app.queues.pause_sync("mail", "provider is down", by="ana")
    rota_app.queues.pause_sync("images", for_="30d")
    assert (doctor().grade("paused_queues"), doctor().found("paused_queues")) == ("ok", "2 paused")
    rota_app.advance("50h")

    diagnosed = doctor()

    assert diagnosed.grade("paused_queues") == "warning"
    assert diagnosed.found("paused_queues") == "1 paused for long: mail for 2 day(s) by ana (provider is down)"
    assert diagnosed.mend("paused_queues")[0].startswith("rota queues resume mail --dsn ")


def test_lines_that_stand_still_are_found_and_what_is_said_mends_them(doctor: Run, rota_app: TestRota, db: Db) -> None:
    declare(db, running=1, by_key=True)
    member = join(db)
    put(db, 2, key="ada")
    (stuck,) = put(db, key="bob")
    put(db, key="carl")
    take(db, member, 1)
    rota_app.advance("2m")
    assert doctor().found("lines") == "none stands still"
    db.execute("update rota.lines set ready_at = null where key = 'bob'")

    diagnosed = doctor()
    refresh, explain = diagnosed.mend("lines")
    db.execute(refresh.encode())

    assert diagnosed.grade("lines") == "problem"
    assert "1 with jobs that wait though none of theirs runs: t with the key 'bob' for 12" in diagnosed.found("lines")
    assert explain.startswith(f"rota jobs explain {stuck} ")
    assert doctor().found("lines") == "none stands still"
