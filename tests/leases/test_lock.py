"""Locks for short sections: one at a time, in both colours, and given up however the section ends."""

# ruff: noqa: PT012 - what is raised at the end of a block is raised after its statements

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.pgbouncer import transaction_pooler
from tests.postgres.test_keys import COLLIDING

from rota import ConfigurationError, DatabaseUnavailable, LockHeld, Rota, RotaError
from rota.postgres import pool
from rota.postgres.keys import lock_key
from rota.testing import until

Db = psycopg.Connection[Any]

# of this test: others share the server
SESSIONS_OF_LOCKS = """
    select from pg_stat_activity where datname = current_database() and application_name like 'rota:lock/%'
"""


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute("create table public.ledger (entry text)")
        yield connection


@pytest.fixture
async def app(rota_database: str) -> AsyncIterator[Rota]:
    async with Rota(rota_database) as app:
        yield app


@pytest.fixture
async def other(rota_database: str) -> AsyncIterator[Rota]:
    """Another process, as far as the database knows."""
    async with Rota(rota_database) as app:
        yield app


def waiting_for(db: Db, name: str) -> bool:
    return bool(
        db.execute(
            "select from pg_stat_activity "
            "where datname = current_database() and application_name = %s and wait_event_type = 'Lock'",
            [name],
        ).fetchall()
    )


def entries(db: Db) -> list[str]:
    return [entry for (entry,) in db.execute("select entry from public.ledger").fetchall()]


async def test_one_at_a_time_is_in_the_section_and_the_others_wait_for_it(app: Rota, other: Rota, db: Db) -> None:
    order: list[str] = []

    async def enter() -> None:
        async with other.lock("refill"):
            order.append("second")

    async with app.lock("refill") as connection:
        entering = asyncio.create_task(enter())
        await until(lambda: waiting_for(db, "rota:lock/refill"), what="the other waits")
        await connection.execute("insert into public.ledger values ('first')")
        order.append("first")
    await entering

    assert order == ["first", "second"]
    assert entries(db) == ["first"]


async def test_who_does_not_wait_is_told_at_once_and_who_waits_for_a_time_after_it(app: Rota, other: Rota) -> None:
    async with app.lock("refill"):
        with pytest.raises(LockHeld, match="not waited for") as refused:
            async with other.lock("refill", wait=False):
                pass
        with pytest.raises(LockHeld, match=r"within 0\.05 s"):
            async with other.lock("refill", wait="50ms"):
                pass
        async with other.lock("another", wait=False):
            pass
    assert refused.value.exit_code == 3
    assert "rota:lock/refill" in str(refused.value)
    for wait in (True, False, "5s"):
        async with other.lock("refill", wait=wait):
            pass


def test_sync_code_locks_as_well(rota_database: str, db: Db) -> None:
    with Rota(rota_database) as app, Rota(rota_database) as other:
        with app.lock("refill") as connection:
            connection.execute("insert into public.ledger values ('good')")
            for wait in (False, "50ms"):
                with pytest.raises(LockHeld), other.lock("refill", wait=wait):
                    pass
        with other.lock("refill", wait=False):
            pass
    assert entries(db) == ["good"]


async def test_an_exception_undoes_the_section_and_frees_the_lock(app: Rota, other: Rota, db: Db) -> None:
    with pytest.raises(ValueError, match="no"):
        async with app.lock("refill") as connection:
            await connection.execute("insert into public.ledger values ('bad')")
            raise ValueError("no")
    async with other.lock("refill", wait=False):
        pass
    assert entries(db) == []


async def test_a_section_in_which_a_statement_failed_does_not_end_as_if_it_were_committed(app: Rota, db: Db) -> None:
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        async with app.lock("refill") as connection:
            await connection.execute("insert into public.ledger values ('bad')")
            with contextlib.suppress(psycopg.Error):
                await connection.execute("select 1/0")
    async with app.lock("refill", wait=False):
        pass
    assert entries(db) == []


async def test_a_section_whose_session_was_ended_is_told_so(app: Rota, other: Rota, db: Db) -> None:
    with pytest.raises(DatabaseUnavailable):
        async with app.lock("refill") as connection:
            await connection.execute("insert into public.ledger values ('bad')")
            db.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
            async with other.lock("refill", wait="10s"):
                pass
    assert entries(db) == []


async def test_whoever_waits_when_its_session_is_ended_is_told_that_the_database_is_away(
    app: Rota, other: Rota, db: Db
) -> None:
    async def enter() -> None:
        async with other.lock("refill"):
            raise AssertionError("it is held")

    async with app.lock("refill"):
        entering = asyncio.create_task(enter())
        await until(lambda: waiting_for(db, "rota:lock/refill"), what="the other waits")
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name = 'rota:lock/refill' and wait_event_type = 'Lock'"
        )
        with pytest.raises(DatabaseUnavailable):
            await entering


@pytest.mark.parametrize("wait", [True, False, "5s"])
@pytest.mark.timeout(20)
async def test_whoever_is_in_the_section_already_is_told_so_instead_of_waiting_for_itself(app: Rota, wait: Any) -> None:
    async with app.lock("refill"), app.lock("another"):
        with pytest.raises(ConfigurationError, match="wait for itself"):
            async with app.lock("refill", wait=wait):
                pass
        with pytest.raises(ConfigurationError), app.lock("refill", wait=wait):
            pass
        # another task is someone else
        with pytest.raises(LockHeld):
            await asyncio.create_task(enter(app, wait="1ms"))
    async with app.lock("refill", wait=False):
        pass


async def enter(app: Rota, wait: Any) -> None:
    async with app.lock("refill", wait=wait):
        pass


def test_so_is_a_thread(rota_database: str) -> None:
    with Rota(rota_database) as app:
        for _ in range(2):
            with app.lock("refill"), pytest.raises(ConfigurationError), app.lock("refill"):
                pass


async def test_locks_leave_fenced_work_its_connections(rota_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_WAIT_SECONDS", 0.3)
    async with Rota(rota_database, pool_size=2) as app, app.leadership("indexer") as term:
        async with app.lock("a"), app.lock("b"):
            async with term.transaction() as connection:
                await connection.execute("select 1")
            with pytest.raises(DatabaseUnavailable, match=r"all 2 .* for locks .*pool_size"):
                async with app.lock("c"):
                    pass
        async with term.transaction(), term.transaction():
            with pytest.raises(DatabaseUnavailable, match=r"all 2 .* for term\.transaction.*pool_size"):
                async with term.transaction():
                    pass


async def test_whoever_waits_can_be_cancelled_and_holds_nothing(app: Rota, other: Rota, db: Db) -> None:
    async def enter() -> None:
        async with other.lock("refill"):
            raise AssertionError("it is held")

    async with app.lock("refill"):
        entering = asyncio.create_task(enter())
        await until(lambda: waiting_for(db, "rota:lock/refill"), what="the other waits")
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        await until(lambda: not waiting_for(db, "rota:lock/refill"), what="nobody waits")
    async with app.lock("refill", wait=False):
        pass


HOLD = """
import sys, time
from rota import Rota

with Rota(sys.argv[1]).lock("refill"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.one_server
async def test_a_process_that_is_killed_holds_nothing(app: Rota, rota_database: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, rota_database], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(LockHeld):
                async with app.lock("refill", wait=False):
                    pass
        finally:
            holder.kill()
    async with app.lock("refill", wait="10s"):
        pass


async def test_what_is_set_for_the_wait_is_not_set_for_the_section(app: Rota, db: Db) -> None:
    usual = "select current_setting('lock_timeout'), current_setting('statement_timeout')"
    for wait in (True, False, "5s"):
        async with app.lock("refill", wait=wait) as connection:
            inside = await (await connection.execute(usual)).fetchone()
            assert inside == db.execute(usual).fetchone()


async def test_whoever_is_silent_in_a_section_for_a_lease_is_thrown_out(app: Rota) -> None:
    async with app.lock("refill") as connection:
        limit = "select setting::int from pg_settings where name = 'idle_in_transaction_session_timeout'"
        ((milliseconds,),) = await (await connection.execute(limit)).fetchall()
    assert 0 < milliseconds <= 15_000


@pytest.mark.parametrize("name", ["refill", "x" * 200, "größe", "9223372036854775807"])
async def test_who_holds_a_lock_can_be_found_by_its_name_and_by_its_key(app: Rota, db: Db, name: str) -> None:
    find = """
        select activity.application_name
        from pg_locks as lock
        join pg_stat_activity as activity using (pid)
        where lock.locktype = 'advisory'
          -- other databases of the server have locks of this name as well
          and activity.datname = current_database()
          and (lock.classid::bigint << 32) | lock.objid::bigint = %s
    """
    lock = app.lock(name)
    async with lock:
        assert db.execute(find, [lock.key]).fetchall() == [(lock.application_name,)]
    assert lock.key == lock_key("rota", "lock", name)
    assert db.execute(find, [lock.key]).fetchall() == []
    assert lock.application_name.startswith(f"rota:lock/{name[:2]}")
    assert db.execute(SESSIONS_OF_LOCKS).fetchall() == []


@pytest.mark.parametrize(("one", "another"), COLLIDING)
async def test_names_that_collide_in_32_bits_are_different_locks(app: Rota, db: Db, one: str, another: str) -> None:
    assert db.execute("select hashtext(%s) = hashtext(%s)", [one, another]).fetchone() == (True,)
    async with app.lock(one), app.lock(another, wait=False):
        pass


async def test_locks_are_apart_from_those_of_others_in_the_database(app: Rota, db: Db) -> None:
    """Two numbers of 32 bits are another space of keys than one of 64, and schemas and names make keys of their own."""
    key = app.lock("refill").key
    with psycopg.connect(db.info.dsn) as theirs:
        theirs.execute("select pg_advisory_xact_lock(%s, %s)", [_signed(key >> 32), _signed(key)])
        async with app.lock("refill", wait=False), app.leadership("refill"):
            pass
    assert app.lock("refill").key != Rota(db.info.dsn, schema="other").lock("refill").key


def _signed(number: int) -> int:
    """The lower 32 bits as PostgreSQL's integer."""
    return int.from_bytes((number & 0xFFFFFFFF).to_bytes(4, "big"), "big", signed=True)


async def test_a_name_that_cannot_be_one_is_refused(app: Rota) -> None:
    with pytest.raises(RotaError):
        app.lock("")


@pytest.mark.one_server
async def test_behind_a_transaction_pooler_it_excludes_as_well_and_leaves_nothing_behind(
    direct_database: str, tmp_path: Path, db: Db
) -> None:
    with transaction_pooler(direct_database, tmp_path) as pooled:
        async with Rota(pooled) as app, Rota(pooled) as other:
            for wait in (True, "5s", False):
                async with app.lock("refill", wait=wait) as connection:
                    await connection.execute("insert into public.ledger values ('good')")
                    with pytest.raises(LockHeld):
                        async with other.lock("refill", wait=False):
                            pass
            async with other.lock("refill", wait=False) as connection:
                shown = await (await connection.execute("show lock_timeout")).fetchall()
        assert (entries(db), shown) == (["good"] * 3, [("0",)])
        assert db.execute(SESSIONS_OF_LOCKS).fetchall() == []
