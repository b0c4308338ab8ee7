"""Queries of ours run at READ COMMITTED and without hogging locks, whatever the default of the session they run in."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from tests.pgbouncer import transaction_pooler

from rota import Rota
from rota.errors import DatabaseUnavailable
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.keys import lock_key
from rota.postgres.query import Query, Steps, scalar, statement
from rota.postgres.schema import migrate, migration_files
from rota.postgres.session import Session
from rota.testing import until_sync

LEVEL = statement("level", "select current_setting('transaction_isolation')").query(read=scalar)
LIMITS = statement(
    "limits",
    """
    select concat_ws(
        ' ', current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('transaction_timeout', true)
    )
    """,
).query(read=scalar)
IDLE = statement("idle", "select current_setting('idle_in_transaction_session_timeout')").query(read=scalar)
#: refused at all levels but one, as a query may be that meets others there
REFUSABLE = statement("refusable", "select public.refusable()").query(read=scalar)
REFUSED_COMMIT = statement("refused_commit", "insert into public.refused values (1) returning 1").query(read=scalar)
CREATE = """
    create function public.refusable() returns text language plpgsql as $$
    begin
        if current_setting('transaction_isolation') <> 'read committed' then
            raise serialization_failure;
        end if;
        return current_setting('transaction_isolation');
    end $$;
    create function public.refuse() returns trigger language plpgsql as 'begin perform public.refusable(); return null; end';
    create table public.refused (n int);
    create constraint trigger refuse after insert on public.refused initially deferred
        for each row execute function public.refuse();
"""

every_strict_level = pytest.mark.parametrize("strict", ["repeatable read", "serializable"], indirect=True)
serializable = pytest.mark.parametrize("strict", ["serializable"], indirect=True)


@pytest.fixture
def strict(rota_database: str, request: pytest.FixtureRequest) -> str:
    """A database whose sessions begin at a strict level, with something to be refused by."""
    with psycopg.connect(rota_database, autocommit=True) as admin:
        admin.execute(CREATE)
        admin.execute(f"alter database {admin.info.dbname} set default_transaction_isolation = '{request.param}'")
    return rota_database


@pytest.fixture
def pooled(strict: str, tmp_path: Path) -> Iterator[str]:
    with transaction_pooler(strict, tmp_path) as dsn:
        yield dsn


def sleep(seconds: float) -> Query[Any]:
    return statement("sleep", "select pg_sleep(%(seconds)s)").query({"seconds": seconds}, read=scalar)


@pytest.mark.writes_nothing
async def test_steps_may_take_long_and_each_of_them_may_not(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.postgres.pool._PATIENCE_SECONDS", 2.0)
    async with Rota(rota_database) as app:
        assert len(await app.database.run_steps(both(*[sleep(0.6)] * 4))) == 4
        with pytest.raises(DatabaseUnavailable, match="did not answer within 2 s"):
            await app.database.run_steps(both(sleep(20)))


def both(*queries: Query[Any]) -> Steps[list[Any]]:
    told = []
    for query in queries:
        told.append((yield query))
    return told


@every_strict_level
async def test_behind_a_pooler_every_query_of_ours_runs_at_read_committed(pooled: str) -> None:
    session = Session(Connector(Dsn(pooled), "claim"), "rota")
    async with Rota(pooled) as app:
        levels = [await session.run(LEVEL), await app.database.run(LEVEL), app.database.run_sync(LEVEL)]
        levels += await app.database.run_steps(both(LEVEL, LEVEL))
        levels += app.database.run_steps_sync(both(LEVEL, LEVEL))
    await session.close()

    assert set(levels) == {"read committed"}


@serializable
async def test_behind_a_pooler_no_transaction_of_ours_may_idle_for_longer_than_a_lease(pooled: str) -> None:
    session = Session(Connector(Dsn(pooled), "claim"), "rota")
    async with Rota(pooled) as app:
        limits = [await session.run(IDLE), app.database.run_sync(IDLE)]
        limits += await app.database.run_steps(both(IDLE))
        limits += app.database.run_steps_sync(both(IDLE))
        async with app.database.transaction() as connection:
            limits += await (await connection.execute("show idle_in_transaction_session_timeout")).fetchone() or ()
            level = await (await connection.execute("show transaction_isolation")).fetchone()
        with app.database.transaction_sync() as connection:
            limits += connection.execute("show idle_in_transaction_session_timeout").fetchone() or ()
    await session.close()

    assert set(limits) == {"15s"}
    assert level == ("read committed",)


@pytest.mark.parametrize("short", ["statement_timeout", "lock_timeout", "transaction_timeout"])
async def test_behind_a_pooler_a_limit_of_the_database_that_is_too_short_for_us_does_not_count(
    rota_database: str, tmp_path: Path, short: str
) -> None:
    with psycopg.connect(rota_database, autocommit=True) as admin:
        if not admin.execute("select from pg_settings where name = %s", [short]).rowcount:
            pytest.skip(f"this PostgreSQL knows no {short}")
        admin.execute(f"alter database {admin.info.dbname} set {short} = '1s'")
    with transaction_pooler(rota_database, tmp_path) as pooled:
        session = Session(Connector(Dsn(pooled), "claim"), "rota")
        hasty = Session(Connector(Dsn(pooled), "control", {"statement_timeout": "4s", "lock_timeout": "2s"}), "rota")
        async with Rota(pooled) as app:
            limits = [await session.run(LIMITS), await app.database.run(LIMITS), app.database.run_sync(LIMITS)]
            limits += await app.database.run_steps(both(LIMITS))
            limits += app.database.run_steps_sync(both(LIMITS))
        hasty_limits = await hasty.run(LIMITS)
        await session.close()
        await hasty.close()

    # the third is known since PostgreSQL 17
    assert set(limits) in ({"30s 10s 0"}, {"30s 10s"})
    assert hasty_limits in ("4s 2s 0", "4s 2s")


async def test_behind_a_pooler_a_query_goes_alone_unless_something_must_hold_for_it(
    rota_database: str, tmp_path: Path
) -> None:
    with psycopg.connect(rota_database, autocommit=True) as admin:
        admin.execute(f"alter database {admin.info.dbname} set statement_timeout = '1min'")
    with transaction_pooler(rota_database, tmp_path) as pooled:
        alone = Session(Connector(Dsn(pooled), "claim"), "rota")
        settling = Session(Connector(Dsn(pooled), "settle", everywhere={"lock_timeout": "1s"}), "rota")
        limits = [await alone.run(LIMITS), await settling.run(LIMITS)]
        await alone.close()
        await settling.close()

    assert limits in (["1min 0 0", "30s 1s 0"], ["1min 0", "30s 1s"])


@serializable
async def test_what_another_client_of_the_pooler_left_behind_does_not_make_a_query_fail(
    strict: str, tmp_path: Path
) -> None:
    with psycopg.connect(strict, autocommit=True) as admin:
        admin.execute(f"alter database {admin.info.dbname} reset default_transaction_isolation")
    with transaction_pooler(strict, tmp_path, size=1) as pooled:
        session = Session(Connector(Dsn(pooled), "claim"), "rota")
        async with Rota(pooled) as app:
            assert [await session.run(LEVEL), app.database.run_sync(LEVEL)] == ["read committed"] * 2
            with psycopg.connect(pooled, autocommit=True) as careless:
                careless.execute("set default_transaction_isolation = 'serializable'")

            assert [await session.run(LEVEL), app.database.run_sync(LEVEL)] == ["serializable"] * 2
            assert [await session.run(REFUSABLE), app.database.run_sync(REFUSABLE)] == ["read committed"] * 2
            assert await app.database.run_steps(both(LEVEL)) == ["read committed"]
        await session.close()


@serializable
@pytest.mark.parametrize("autocommit", [True, False], ids=["autocommit", "blocks"])
async def test_a_strict_pool_of_the_users_does_not_make_a_query_fail(strict: str, autocommit: bool) -> None:
    options = {"min_size": 1, "kwargs": {"autocommit": autocommit}}
    async with AsyncConnectionPool(strict, open=False, **options) as pool:  # type: ignore[arg-type]
        with ConnectionPool(strict, open=True, **options) as sync_pool:  # type: ignore[arg-type]
            app = Rota(strict, pool=[pool, sync_pool])

            levels = [await app.database.run(REFUSABLE), app.database.run_sync(REFUSABLE)]
            levels += await app.database.run_steps(both(LEVEL, REFUSABLE))
            levels += app.database.run_steps_sync(both(LEVEL, REFUSABLE))
            # also where it is only the commit that is refused
            assert await app.database.run(REFUSED_COMMIT) == app.database.run_sync(REFUSED_COMMIT) == 1

    assert set(levels) == {"read committed"}
    with psycopg.connect(strict) as db:
        assert db.execute("select n from public.refused").fetchall() == [(1,), (1,)]


@serializable
def test_two_migrations_at_once_behind_a_pooler_apply_everything_once(strict: str, pooled: str) -> None:
    key = lock_key("other", "lock", "migrate")
    connector = Connector(Dsn(pooled), "migrate")
    with psycopg.connect(strict, autocommit=True) as admin, ThreadPoolExecutor(2) as threads:
        admin.execute("select pg_advisory_lock(%s)", [key])
        migrating = [threads.submit(migrate, connector, "other") for _ in range(2)]
        until_sync(lambda: waiting(admin) == 2, what="both wait for their turn")
        admin.execute("select pg_advisory_unlock(%s)", [key])
        applied = [migration.number for each in migrating for migration in each.result()]

    assert sorted(applied) == [migration.number for migration in migration_files()]


def waiting(admin: psycopg.Connection[Any]) -> int:
    """How many wait for an advisory lock in this database."""
    waits = "select from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    return len(admin.execute(waits).fetchall())
