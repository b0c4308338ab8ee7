"""A database per test: cloned, adopted, apart from all others, and gone afterwards."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from rota import Rota
from rota.postgres.keys import lock_key
from rota.testing import DatabaseServer, TestRota


def names(server: DatabaseServer, like: str = "rota\\_test\\_%") -> set[str]:
    with psycopg.connect(server.url) as connection:
        rows = connection.execute("select datname from pg_database where datname like %s", [like]).fetchall()
    return {name for (name,) in rows}


def database_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


async def test_a_clone_is_accepted_by_workers(rota_database: str) -> None:
    async with Rota(rota_database) as app:
        await app.check()


async def test_two_databases_do_not_see_each_other(rota_app: TestRota, rota_server: DatabaseServer) -> None:
    with rota_server.database() as elsewhere, TestRota(elsewhere) as other:

        @other.task
        async def work() -> None: ...

        work.enqueue_sync()

        other.advance("1h")
        assert rota_app.enqueued() == []
        assert clock(other) == (True,)
        assert clock(rota_app) == (False,)


def clock(app: Rota) -> tuple[bool, ...] | None:
    with psycopg.connect(app.database.dsn.conninfo) as connection:
        return connection.execute("select rota.now() > now() + interval '30 minutes'").fetchone()


def test_a_database_is_dropped_whoever_is_connected(rota_server: DatabaseServer) -> None:
    dsn = rota_server.create_database()
    with psycopg.connect(dsn) as connection:
        rota_server.drop_database(dsn)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert database_of(dsn) not in names(rota_server)


@pytest.mark.parametrize("schema", ["jobs", 'so "odd" 100%'])
async def test_the_tables_are_in_the_schema_asked_for(rota_server: DatabaseServer, schema: str) -> None:
    with rota_server.database(schema) as dsn:
        async with TestRota(dsn, schema=schema) as app:
            await app.check()
            app.advance("1h")


def test_the_template_is_built_once_and_kept(rota_server: DatabaseServer) -> None:
    with rota_server.database():
        before = names(rota_server, "rota\\_template\\_%")
    again = DatabaseServer(rota_server.url)
    try:
        with again.database():
            assert names(rota_server, "rota\\_template\\_%") == before
    finally:
        again.close()


def test_databases_of_killed_runs_are_dropped_and_those_of_living_ones_kept(rota_server: DatabaseServer) -> None:
    with rota_server.database() as alive, psycopg.connect(rota_server.url, autocommit=True) as connection:
        connection.execute("create database rota_test_killed_1")
        connection.execute("create database rota_test_living_1")
        connection.execute("select pg_advisory_lock(%s)", [lock_key("", "test", "run living")])
        newcomer = DatabaseServer(rota_server.url)

        with newcomer.database():
            left = names(rota_server)

        newcomer.close()
        connection.execute("drop database rota_test_living_1")
        assert "rota_test_killed_1" not in left
        assert {"rota_test_living_1", database_of(alive)} <= left
