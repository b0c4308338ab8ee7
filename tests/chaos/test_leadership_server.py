"""The server ends sessions, restarts, stops, or fails over: a healthy leader keeps its term, and never are there two."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.chaos.contenders import Arena, arena_at, of
from tests.chaos.faults import Admin, end_sessions
from tests.chaos.test_faults_of_the_database import standby as standby
from tests.leases.history import violations

from rota import DatabaseUnavailable
from rota.leases.door import is_being_replaced
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.testing import until_sync

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

PATIENCE = 0.75  # for which a member without its session is believed to be alive


@pytest.fixture
def arena(own_server: Any, tmp_path: Path) -> Iterator[Arena]:
    with arena_at(own_server.dsn, tmp_path) as arena:
        for who in "abc":
            arena.start(who)
        arena.wait_for_leader()
        arena.wait_for_standbys(2)
        yield arena


@pytest.fixture
def admin(own_server: Any) -> Iterator[Admin]:
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        yield connection


def ended_bodies(arena: Arena) -> list[Any]:
    return [note for note in arena.notes() if note["what"] in ("interrupted", "lost")]


def well(arena: Arena, seconds: float = 1.0) -> None:
    """Return when whoever leads has been seen to lead, without a break, for a while from now on."""
    at = time.clock_gettime(time.CLOCK_BOOTTIME)
    arena.wait_for_leader(at + seconds)


def test_a_healthy_leader_whose_sessions_are_ended_keeps_its_term(arena: Arena, admin: Admin) -> None:
    """Its own, alone; and those of everyone at once."""
    for _ in range(3):
        ended = admin.execute(CUT_LEADER).fetchall()
        assert ended == [(True,)]
        until_sync(lambda: admin.execute(CONTROL_OF_LEADER).rowcount, what="it is back")
    for _ in range(3):
        end_sessions(admin, "control")
        until_sync(lambda: admin.execute(CONTROLS).rowcount == 3, what="all are back")
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


CONTROLS = """
    select lock.pid from rota.members join pg_locks as lock
        on lock.locktype = 'advisory' and (lock.classid::bigint << 32 | lock.objid::bigint) = lock_key
    """
CONTROL_OF_LEADER = f"{CONTROLS} where id = (select member from rota.leases)"
CUT_LEADER = f"select pg_terminate_backend(pid) from ({CONTROL_OF_LEADER}) as leader"


def test_a_crash_of_the_server_leaves_one_leader(own_server: Any, arena: Arena) -> None:
    """For a moment nobody is there to say what goes on: a leader that waits longer for it than it may steps down."""
    own_server.restart("immediate")
    well(arena)

    assert arena.violations() == []


def test_a_healthy_leader_keeps_its_term_when_the_server_restarts(own_server: Any, arena: Arena) -> None:
    own_server.restart("fast")
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


def test_a_crash_of_one_session_which_ends_all_of_them_costs_no_term(arena: Arena, admin: Admin) -> None:
    os.kill(admin.info.backend_pid, signal.SIGKILL)
    until_sync(lambda: not refused(arena.dsn), what="the server has recovered")
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


def test_a_restart_that_takes_longer_than_anyone_waits_for_a_session_costs_no_term(
    own_server: Any, arena: Arena, admin: Admin
) -> None:
    """The server says that it is shutting down, for as long as one of its processes does not end."""
    hanging = admin.info.backend_pid
    leader = arena.leader()
    assert leader is not None

    os.kill(hanging, signal.SIGSTOP)
    try:
        restarting = threading.Thread(target=own_server.restart, args=("fast",))
        restarting.start()
        arena.wait_for_leader(leader["at"] + 3 * PATIENCE)
    finally:
        os.kill(hanging, signal.SIGCONT)
    restarting.join()
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


def test_a_server_that_stops_the_patient_way_has_no_second_leader(own_server: Any, arena: Arena, admin: Admin) -> None:
    """It lets nobody in, but serves those it has: they must not end a leader that cannot come back."""
    stop_patiently(own_server.dsn, admin)
    assert admin.execute(CUT_LEADER).fetchall() == [(True,)]
    suspected = "select from rota.members where suspected_at < statement_timestamp() - interval '1.5 seconds'"
    until_sync(lambda: admin.execute(suspected).rowcount, what="the others have suspected it for long")

    assert violations(arena.looks()) == []
    assert len(arena.spans()) == 1


def test_one_of_several_servers_that_lets_nobody_in_says_nothing_of_the_others(own_server: Any, admin: Admin) -> None:
    one = conninfo_to_dict(own_server.dsn)
    two = make_conninfo(own_server.dsn, host=f"{one['host']},127.0.0.1", port=f"{one['port']},1")
    stop_patiently(own_server.dsn, admin)

    said = []
    for dsn in (own_server.dsn, two):
        with pytest.raises(DatabaseUnavailable, match="the database system is shutting down") as refusal:
            Connector(Dsn(dsn), "control").connect_sync()
        said.append(is_being_replaced(refusal.value))

    assert said == [True, False]


def stop_patiently(dsn: str, admin: Admin) -> None:
    """The way that waits until the last session ends by itself."""
    (folder,) = admin.execute("show data_directory").fetchone()  # type: ignore[misc]
    os.kill(int(Path(folder, "postmaster.pid").read_text().split()[0]), signal.SIGTERM)
    until_sync(lambda: refused(dsn), what="nobody is let in")


def refused(dsn: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(dsn).close()
        return False
    return True


def test_a_failover_to_a_replica_that_missed_the_last_terms_goes_on_above_them(
    own_server: Any, standby: str, tmp_path: Path
) -> None:
    both = [conninfo_to_dict(address) for address in (standby, own_server.dsn)]
    dsn = make_conninfo(own_server.dsn, **{part: ",".join(str(one[part]) for one in both) for part in ("host", "port")})
    (tmp_path / "arena").mkdir()
    with contextlib.ExitStack() as stack:
        arena = stack.enter_context(arena_at(own_server.dsn, tmp_path / "arena"))
        replica = stack.enter_context(psycopg.connect(standby, autocommit=True))
        for who in "abc":
            arena.start(who, dsn=dsn, lease="2s")
        first = arena.wait_for_leader()
        arena.wait_for_standbys(2)
        until_sync(lambda: replica.execute("select from rota.leases").rowcount, what="the replica knows of it")
        replica.execute("alter system set primary_conninfo = ''")
        replica.execute("select pg_reload_conf()")
        until_sync(lambda: not replica.execute("select from pg_stat_wal_receiver").rowcount, what="it follows no more")
        last = first
        for _ in range(2):
            at = arena.contenders[of(last)].resign()
            last = arena.wait_for_leader(at, last["epoch"])
            arena.wait_for_standbys(2)

        own_server.server.close()
        replica.execute("select pg_promote()")
        after = arena.wait_for_leader(last["at"] + 1, last["epoch"])
        well(arena)

        assert after["epoch"] > last["epoch"] > first["epoch"]
        assert violations(arena.looks()) == []
        arena.dsn = standby
        written = [write.epoch for write in arena.writes()]
        assert written == sorted(written)
        assert after["epoch"] in written
