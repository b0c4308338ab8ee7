from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from rota import DatabaseUnavailable, ForkedProcess, InvalidDsn, Rota
from rota.postgres import pool as pool_room
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.postgres.query import scalar, statement
from rota.postgres.session import Session
from rota.testing import DatabaseServer, until_sync

ONE = statement("one", "select 1").query(read=scalar)
PID = statement("pid", "select pg_backend_pid()").query(read=scalar)
SLOW = statement("slow", "select pg_sleep(30)").query(read=scalar)


def test_every_connection_says_who_it_is_and_gives_up_in_time(rota_database: str) -> None:
    with Connector(Dsn(rota_database), "claim").connect_sync() as connection:
        settings = dict(
            connection.execute(
                "select name, setting from pg_settings where name = any (%s)",
                [
                    [
                        "application_name",
                        "statement_timeout",
                        "lock_timeout",
                        "idle_in_transaction_session_timeout",
                        "TimeZone",
                    ]
                ],
            ).fetchall()
        )
        parameters = connection.info.get_parameters()

    assert settings["application_name"].startswith("rota:claim@")
    assert settings["statement_timeout"] == "30000"
    assert settings["lock_timeout"] == "10000"
    assert settings["idle_in_transaction_session_timeout"] == "15000"
    assert settings["TimeZone"] == "UTC"
    assert parameters["keepalives_idle"] == "3"
    assert parameters["tcp_user_timeout"] == "5000"
    assert parameters["connect_timeout"] == "5"


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_a_default_isolation_of_the_users_does_not_change_ours(rota_database: str, isolation: str) -> None:
    dsn = psycopg.conninfo.make_conninfo(
        rota_database, options=f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    )

    with Connector(Dsn(dsn), "claim").connect_sync() as connection:
        assert connection.execute("show transaction_isolation").fetchone() == ("read committed",)


async def test_a_session_connects_anew_after_its_connection_broke(rota_database: str) -> None:
    session = Session(Connector(Dsn(rota_database), "claim"), "rota")
    pid = await session.run(PID)
    with psycopg.connect(rota_database, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(%s, 5000)", [pid])

    with pytest.raises(DatabaseUnavailable):
        await session.run(ONE)

    assert await session.run(ONE) == 1
    await session.close()


async def test_a_statement_that_hangs_is_given_up(rota_database: str) -> None:
    session = Session(Connector(Dsn(rota_database), "claim"), "rota", deadline=0.2)

    with pytest.raises(DatabaseUnavailable, match="did not answer 'slow' within 0.2 s"):
        await session.run(SLOW)

    assert await session.run(ONE) == 1
    await session.close()


async def test_a_cancelled_statement_leaves_the_session_usable(rota_database: str) -> None:
    session = Session(Connector(Dsn(rota_database), "claim"), "rota")
    await session.run(ONE)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.run(SLOW), 0.1)

    assert await session.run(ONE) == 1
    await session.close()


async def test_an_idle_connection_that_the_server_closed_is_not_used(rota_database: str) -> None:
    """An enqueue after a server restart works at once, and nobody has to wonder whether the first try ran."""
    async with Rota(rota_database, pool_size=1) as app:
        pid = await app.database.run(PID)
        with psycopg.connect(rota_database, autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(%s, 5000)", [pid])

        assert await app.database.run(ONE) == 1


def test_the_same_for_sync_callers(rota_database: str) -> None:
    with Rota(rota_database, pool_size=1) as app:
        pid = app.database.run_sync(PID)
        with psycopg.connect(rota_database, autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(%s, 5000)", [pid])

        assert app.database.run_sync(ONE) == 1


async def test_who_is_cancelled_when_a_connection_comes_is_told_of_it(rota_database: str) -> None:
    async with Rota(rota_database, pool_size=1) as app:
        for turns in range(60):
            async with app.database.transaction():
                waiting = asyncio.create_task(app.database.run(ONE))
                await asyncio.sleep(0.002)  # until it waits; where it does not yet, nothing is tried
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            if waiting.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await waiting


def test_who_finds_no_connection_is_told_what_would_give_one(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_room, "_WAIT_SECONDS", 0.1)
    with Rota(rota_database, pool_size=1) as app:
        apart = app.database.apart("job", size=1)
        with (
            app.database.transaction_sync(),
            apart.transaction_sync(),
            pytest.raises(DatabaseUnavailable, match=r"all 1 connections of this app.+Rota\(pool_size=...\)"),
        ):
            app.database.run_sync(ONE)
        with (
            apart.transaction_sync(),
            pytest.raises(DatabaseUnavailable, match="one for each body that runs.+check it, and its max_connections"),
        ):
            apart.run_sync(ONE)
        apart.close_sync()


@pytest.mark.parametrize("wrong", [{"dbname": "no_such_database"}, {"user": "nobody_at_all"}])
def test_a_wrong_address_is_told_from_an_absent_server(rota_database: str, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidDsn), Rota(psycopg.conninfo.make_conninfo(rota_database, **wrong)) as app:
        app.database.run_sync(ONE)
    with pytest.raises(DatabaseUnavailable), Rota("host=127.0.0.1 port=1 password=s3cret") as app:
        app.database.run_sync(ONE)


async def test_the_users_own_pools_are_used(rota_database: str) -> None:
    async with AsyncConnectionPool(rota_database, min_size=1, kwargs={"application_name": "mine"}, open=False) as pool:
        await pool.open()
        with ConnectionPool(rota_database, min_size=1, kwargs={"application_name": "mine"}, open=True) as sync_pool:
            app = Rota(rota_database, pool=[pool, sync_pool])
            name = statement("name", "select current_setting('application_name')").query(read=scalar)

            @app.task
            def f() -> None: ...

            assert await app.database.run(name) == "mine"
            assert app.database.run_sync(name) == "mine"
            assert (await f.enqueue()).id < f.enqueue_sync().id


def test_each_event_loop_has_connections_of_its_own(rota_database: str) -> None:
    app = Rota(rota_database)

    async def ask() -> int:
        async with app:
            return int(await app.database.run(ONE))

    assert asyncio.run(ask()) == asyncio.run(ask()) == 1


@pytest.mark.direct("sessions are the pooler's there")
def test_a_pool_opens_one_connection_for_its_first_caller(rota_database: str, rota_server: DatabaseServer) -> None:
    """The one that shows whether there is a server is the one that is used."""
    app, name = Rota(rota_database), Dsn(rota_database).database
    with psycopg.connect(rota_server.url, autocommit=True) as admin:

        def sessions() -> int:
            living = "select 1 from pg_stat_activity where datname = %s"
            until_sync(lambda: not admin.execute(living, [name]).fetchall(), what="all have told that they were there")
            (number,) = admin.execute(
                "select sessions from pg_stat_database where datname = %s", [name]
            ).fetchone() or (0,)
            return int(number)

        before = sessions()
        app.database.run_sync(ONE)
        app.close_sync()
        after_sync = sessions()
        asyncio.run(_ask_once(app))
        after_async = sessions()

    assert after_sync - before == 1
    assert after_async - after_sync == 1


async def _ask_once(app: Rota) -> None:
    async with app:
        await app.database.run(ONE)


def test_a_loop_may_end_while_its_pool_opens_another_connection(
    rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second caller has one opened, and does not need it in the end."""
    app, prepare, prepared = Rota(rota_database), Connector.prepare, 0
    opening = threading.Event()

    async def hold_up(self: Connector, connection: Any) -> None:
        nonlocal prepared
        prepared += 1
        if prepared > 2:  # the first of the pool: when it is made, and when the pool takes it in
            opening.set()
            await asyncio.Event().wait()
        await prepare(self, connection)

    async def ask() -> None:
        async def twice() -> None:
            async with app.database.transaction():
                await app.database.run(ONE)

        asking = asyncio.create_task(twice())
        await asyncio.to_thread(opening.wait, 20)
        asking.cancel()

    monkeypatch.setattr(Connector, "prepare", hold_up)
    thread = threading.Thread(target=lambda: asyncio.run(ask()), daemon=True)
    thread.start()
    thread.join(20)

    assert opening.is_set()
    assert not thread.is_alive()


@pytest.mark.direct("sessions are the pooler's there")
def test_connections_of_loops_that_are_closed_do_not_add_up(rota_database: str) -> None:
    app, most = Rota(rota_database), 0
    with psycopg.connect(rota_database, autocommit=True) as admin:

        def opened() -> int:
            ours = "datname = current_database() and starts_with(application_name, 'rota:')"
            (number,) = admin.execute(f"select count(*) from pg_stat_activity where {ours}").fetchone() or (0,)
            return int(number)

        for _ in range(10):
            asyncio.run(app.database.run(ONE))
            most = max(most, opened())
        app.close_sync()

        assert 0 < most <= 4  # of one loop, and of the one before, whose end the server is about to see
        until_sync(lambda: opened() == 0, what="all are closed")


def test_a_fork_after_the_start_is_refused_in_the_child(rota_database: str) -> None:
    with Rota(rota_database) as app:
        app.database.run_sync(ONE)
        child = os.fork()
        if child == 0:
            try:
                app.database.run_sync(ONE)
            except ForkedProcess as error:
                os._exit(7 if "spawn" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 7
        assert app.database.run_sync(ONE) == 1


def test_a_fork_before_the_start_is_fine(rota_database: str) -> None:
    app = Rota(rota_database)
    child = os.fork()
    if child == 0:
        os._exit(7 if app.database.run_sync(ONE) == 1 else 8)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7
