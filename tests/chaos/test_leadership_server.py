"""The server ends sessions, restarts, stops, or fails over: a healthy leader keeps its term, and never are there two."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.chaos.contenders import Arena, arena_at, of
from tests.chaos.faults import Admin, end_sessions
from tests.chaos.test_faults_of_the_database import standby as standby
from tests.conftest import OwnServer, installed
from tests.leases.history import violations

from rota import DatabaseUnavailable
from rota.clock import boottime
from rota.leases.door import is_being_replaced
from rota.postgres.connection import Connector
from rota.postgres.dsn import Dsn
from rota.testing import until_sync
from rota.testing.servers import throwaway_server

pytestmark = [pytest.mark.chaos, pytest.mark.one_server]

PATIENCE = 0.75  # for which a member without its session is believed to be alive


@contextlib.contextmanager
def contending(dsn: str, folder: Path) -> Iterator[Arena]:
    with arena_at(dsn, folder) as arena:
        for who, apps in {"a": 1, "bc": 2}.items():  # a process takes a second to start
            arena.start(who, apps=apps)
        arena.wait_for_leader()
        arena.wait_for_standbys(2)
        yield arena


@pytest.fixture(scope="module")
def shared(postgres_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnServer, Arena]]:
    """A server, and three that contend on it, for tests after which both are well."""
    server = throwaway_server(installed()[postgres_version])
    try:
        own = OwnServer(server, installed()[postgres_version])
        with contending(own.dsn, tmp_path_factory.mktemp("arena")) as arena:
            yield own, arena
    finally:
        server.close()


@pytest.fixture
def server(shared: tuple[OwnServer, Arena]) -> OwnServer:
    return shared[0]


@pytest.fixture
def arena(shared: tuple[OwnServer, Arena]) -> Arena:
    """With nothing in its diary but that someone leads."""
    arena = shared[1]
    arena.wait_for_leader(boottime())
    arena.wait_for_standbys(2)
    arena.forget()
    arena.wait_for_leader()
    return arena


@pytest.fixture
def admin(server: OwnServer) -> Iterator[Admin]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield connection


def ended_bodies(arena: Arena) -> list[Any]:
    return [note for note in arena.notes() if note["what"] in ("interrupted", "lost")]


def well(arena: Arena, seconds: float = 1.0) -> None:
    """Return when whoever leads has been seen to lead, without a break, for a while from now on."""
    arena.wait_for_leader(boottime() + seconds)


def test_a_healthy_leader_whose_sessions_are_ended_keeps_its_term(arena: Arena, admin: Admin) -> None:
    """Its own, alone; and those of everyone at once."""

    def sessions(of: str, since: set[int]) -> set[int]:
        """Those that stand: one that is ended holds its lock for a moment more."""
        return {pid for (pid,) in admin.execute(of).fetchall()} - since  # type: ignore[call-overload]

    ended: set[int] = set()
    for _ in range(3):
        (leader,) = sessions(CONTROL_OF_LEADER, ended)
        admin.execute("select pg_terminate_backend(%s)", [leader])
        ended.add(leader)
        until_sync(lambda: sessions(CONTROL_OF_LEADER, ended), what="it is back")
    for _ in range(3):
        ended.update(end_sessions(admin, "control"))
        until_sync(lambda: len(sessions(CONTROLS, ended)) == 3, what="all are back")
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


def test_a_crash_of_the_server_leaves_one_leader(server: OwnServer, arena: Arena) -> None:
    """For a moment nobody is there to say what goes on: a leader that waits longer for it than it may steps down."""
    server.restart("immediate")
    well(arena)

    assert arena.violations() == []


def test_a_healthy_leader_keeps_its_term_when_the_server_restarts(server: OwnServer, arena: Arena) -> None:
    server.restart("fast")
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


@pytest.mark.long
def test_a_crash_of_one_session_which_ends_all_of_them_costs_no_term(arena: Arena, admin: Admin) -> None:
    os.kill(admin.info.backend_pid, signal.SIGKILL)
    until_sync(lambda: not refused(arena.dsn), what="the server has recovered")
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


@pytest.mark.long
def test_a_restart_that_takes_longer_than_anyone_waits_for_a_session_costs_no_term(
    server: OwnServer, arena: Arena, admin: Admin
) -> None:
    """The server says that it is shutting down, for as long as one of its processes does not end."""
    hanging = admin.info.backend_pid
    leader = arena.leader()
    assert leader is not None

    os.kill(hanging, signal.SIGSTOP)
    try:
        restarting = threading.Thread(target=server.restart, args=("fast",))
        restarting.start()
        arena.wait_for_leader(leader["at"] + 3 * PATIENCE)
    finally:
        os.kill(hanging, signal.SIGCONT)
    restarting.join()
    well(arena)

    assert len(arena.spans()) == 1
    assert ended_bodies(arena) == []
    assert arena.violations() == []


@pytest.mark.long
def test_a_server_that_stops_the_patient_way_has_no_second_leader(own_server: Any, tmp_path: Path) -> None:
    """It lets nobody in, but serves those it has: they must not end a leader that cannot come back.

    And one of several servers that lets nobody in says nothing of the others.
    """
    one = conninfo_to_dict(own_server.dsn)
    two = make_conninfo(own_server.dsn, host=f"{one['host']},127.0.0.1", port=f"{one['port']},1")
    with contending(own_server.dsn, tmp_path) as arena, psycopg.connect(own_server.dsn, autocommit=True) as admin:
        stop_patiently(own_server.dsn, admin)
        assert admin.execute(CUT_LEADER).fetchall() == [(True,)]
        suspected = "select from rota.members where suspected_at < statement_timestamp() - interval '1.5 seconds'"
        until_sync(lambda: admin.execute(suspected).rowcount, what="the others have suspected it for long")

        assert [is_being_replaced(refusal(dsn)) for dsn in (own_server.dsn, two)] == [True, False]
        assert violations(arena.looks()) == []
        assert len(arena.spans()) == 1


def refusal(dsn: str) -> Exception:
    with pytest.raises(DatabaseUnavailable, match="the database system is shutting down") as refused:
        Connector(Dsn(dsn), "control").connect_sync()
    return refused.value


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


@pytest.mark.long
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
