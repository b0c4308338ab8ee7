"""Any number of writers, with transactions held open, savepoints, rollbacks and prepared transactions: what is taken in is what
is committed, once each, ascending in each stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import OwnServer
from tests.projections.logs import Db, Log, working
from tests.projections.writers import APPLY, MAKE, Writers, check

from rota.events.event import Event
from rota.testing import TestRota, until


@pytest.fixture
def rota_database(own_server: OwnServer) -> str:
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("alter system set max_prepared_transactions = 50")
    own_server.restart("fast")
    return own_server.dsn


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute(MAKE)
        yield connection


@pytest.mark.parametrize(
    ("seed", "writers", "transactions"),
    [
        pytest.param(1, 8, 60),
        *(pytest.param(seed, 16, 200, marks=pytest.mark.long) for seed in range(2, 5)),
        pytest.param(99, 16, 2500, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
async def test_what_is_taken_in_is_what_is_committed(
    rota_app: TestRota,
    rota_database: str,
    db: Db,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    writers: int,
    transactions: int,
) -> None:
    monkeypatch.setattr("rota.projections.projector._POLL_SECONDS", 0.01)
    monkeypatch.setattr("rota.projections.projector._POLL_DEAF_SECONDS", 0.01)
    monkeypatch.setattr("rota.projections.standing._PENDING_LONGEST", 0.01)

    @rota_app.projection("totals", source=Log(), batch=1 + seed * 7)
    async def totals(event: Event, connection: Any) -> None:
        assert event.version is not None
        given = {"stream": event.stream, "version": event.version, "sum": event.data["sum"], "position": event.position}
        await connection.execute(APPLY, given)

    writing = Writers(
        rota_database, seed, writers=writers, transactions=transactions, prepared=True, streams=transactions // 5
    )
    async with working(rota_app):
        with writing.running():
            await until(lambda: not writing.alive, timeout=40 + transactions / 5, what="all is written")
        await totals.wait_caught_up(timeout=60 + transactions / 10)

    check(db)
    assert db.execute("select count(*) > 1000 from rota.events").fetchone() == (True,)
    assert (await totals.status()).lag.events == 0
