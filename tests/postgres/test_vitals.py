"""How the database is, as people are shown it."""

from __future__ import annotations

import psycopg

from rota.testing import TestRota


async def test_tables_are_told_with_all_their_partitions(rota_app: TestRota) -> None:
    told = await rota_app.vitals()

    tables = {table.name: table for table in told.tables}
    assert {"jobs", "history", "attempts", "dead", "members", "audit"} <= tables.keys()
    assert tables["jobs"].partitions == 0
    assert tables["history"].partitions >= 5
    assert not [name for name in tables if name.startswith("history_")]
    assert all(table.bytes >= table.index_bytes >= 0 for table in told.tables)
    assert told.connections[0].most > told.connections[0].used >= 1
    assert 0 <= told.notify_usage < 1
    assert told.oldest_ids.age > 0
    assert told.version.split(".")[0].isdigit()


async def test_an_open_transaction_is_told_with_what_it_holds_and_whom_it_waits_for(rota_app: TestRota) -> None:
    dsn = rota_app.database.dsn.conninfo
    with (
        psycopg.connect(dsn, application_name="idler") as idler,
        psycopg.connect(dsn, application_name="waiter", autocommit=True) as waiter,
    ):
        pid = idler.info.backend_pid
        idler.execute("insert into rota.audit (actor, action) values ('a', 'b')")

        told = await rota_app.vitals(deadline="10s")

        (open_one,) = [each for each in told.transactions if each.pid == pid]
        assert (open_one.application, open_one.state, open_one.pins) == ("idler", "idle in transaction", True)
        assert open_one.blocked_by == ()
        assert waiter.info.backend_pid not in {each.pid for each in told.transactions}  # none is open there
        assert f"pid {pid} (idler" in " ".join(held.name for held in told.horizon)
        assert told.oldest_transaction_seconds >= open_one.seconds >= 0
    assert pid not in {each.pid for each in rota_app.vitals_sync().transactions}
