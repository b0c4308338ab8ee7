"""The clock of the database itself is put back or forward: no slot is doubled, and work goes on when it has caught up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.schedules.rounds import give_out

from rota.testing import TestRota


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def put_back(db: psycopg.Connection[Any], by: str) -> None:
    db.execute("update rota.test_clock set shift = shift - %s::interval", (by,))


def slots(db: psycopg.Connection[Any]) -> tuple[int, int]:
    row = db.execute("select count(*), count(distinct slot_at) from rota.slots").fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize("every", ["1m", "7m", "7m 30s"])
def test_a_clock_that_is_put_back_doubles_no_slot_and_work_goes_on_when_it_has_caught_up(
    rota_app: TestRota, db: psycopg.Connection[Any], every: str
) -> None:
    rota_app.schedules.put_sync("s", task="t", every="1m", overlap="allow", misfire="all")
    rota_app.advance("10m")
    assert give_out(rota_app) == 10

    put_back(db, "8 minutes")
    assert give_out(rota_app) == 0
    # other words count from the last slot, whatever the clock says
    rota_app.schedules.put_sync("s", task="t", every=every, overlap="allow", misfire="all")
    rota_app.advance("8m")
    assert give_out(rota_app) == 0
    rota_app.advance("8m")
    given = give_out(rota_app)

    assert given >= 1
    assert slots(db) == (10 + given, 10 + given)


def test_a_clock_that_is_put_forward_misses_what_its_policy_says(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    rota_app.schedules.put_sync("s", task="t", every="1h", misfire="once")

    rota_app.advance("100h")
    given = give_out(rota_app)
    put_back(db, "100 hours")

    assert (given, rota_app.schedules.get_sync("s").missed) == (1, 99)
    assert give_out(rota_app) == 0
    assert slots(db) == (1, 1)
