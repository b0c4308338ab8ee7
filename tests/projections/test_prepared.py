"""Transactions that are prepared: they are running until someone ends them, whoever that is."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.conftest import OwnServer
from tests.projections.logs import SOURCE, Db, append

from rota.projections.checkpoint import declare_projection
from rota.projections.feed import Feed
from rota.testing import TestRota


@pytest.fixture
def rota_database(own_server: OwnServer) -> str:
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("alter system set max_prepared_transactions = 10")
    own_server.restart("fast")
    return own_server.dsn


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def test_a_prepared_transaction_is_waited_for(rota_app: TestRota, rota_database: str, db: Db) -> None:
    feed = Feed("totals", 1, SOURCE)
    rota_app.database.run_sync(declare_projection("totals", 1, {}))
    with psycopg.connect(rota_database, autocommit=True) as writer:
        writer.execute("begin")
        first, _ = append(writer, "a", wake=False)  # who notifies cannot prepare
        writer.execute("prepare transaction 'late'")
    second, _ = append(db, "b")

    before = rota_app.database.run_sync(feed.look(10))
    db.execute("commit prepared 'late'")
    after = rota_app.database.run_sync(feed.look(10))

    assert before is not None
    assert (before.rows, before.pending) == ([], True)
    assert after is not None
    assert [row.position for row in after.rows] == [first, second]
