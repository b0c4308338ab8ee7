"""A server that has given out fewer ids than the events of a restored log need: some are used up first."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.conftest import OwnServer
from tests.projections.logs import Db, append, positions, rows

from rota import NotPossible
from rota.testing import TestRota

# each overtaken by the next, so that each needs a number of its own: more of them than the server has given out ids
RESTORED = """
    insert into rota.events (position, order_xid, log, stream, version, type, data)
    overriding system value
    select -n, (1000000000 + n)::text::xid8, 'orders', 's' || n, 1, 'Paid', '{}'
    from generate_series(1, (select pg_current_xact_id()::text::int + 5000)) as n
"""


@pytest.fixture
def rota_database(own_server: OwnServer) -> str:
    return own_server.dsn


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def test_ids_are_used_up_first_and_nothing_is_done_while_an_older_transaction_is_open(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    db.execute(RESTORED)
    before = positions(db)
    with psycopg.connect(rota_database) as older:
        older.execute("select pg_current_xact_id() /* forgotten */")

        with pytest.raises(NotPossible, match=f"pid {older.info.backend_pid} .*forgotten"):
            rota_app.projections.rebase_sync()
        untouched = positions(db)
        older.rollback()
    rebased = rota_app.projections.rebase_sync()
    last, _ = append(db, "s0")

    assert untouched == before
    assert rebased.events == len(before)
    assert positions(db) == [*before, last]
    assert rows(db, "select count(distinct order_xid) from rota.events") == [(len(before) + 1,)]
