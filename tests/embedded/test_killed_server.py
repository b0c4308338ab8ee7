"""`kill -9` of anyone leaves nothing running, and the next start finds all that was committed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.embedded import EmbeddedServer, status, stop
from rota.errors import DataDirectoryError

pytestmark = pytest.mark.long

BUSY = "do $$ begin loop end loop; end $$"  # a backend that computes does not notice that its server is gone


def test_killing_one_user_leaves_the_server_to_the_other(home: Path, programs: Any, tools: Any) -> None:
    killed, staying = programs(home), programs(home)
    killed.answer()
    url = staying.answer()["url"]

    killed.kill()

    tools.eventually(lambda: status(home).users == (staying.pid,))
    assert tools.ask(url, "select 1") == 1
    staying.leave()
    assert tools.processes_of(home) == []


def test_killing_all_users_stops_the_server(home: Path, programs: Any, tools: Any) -> None:
    users = [programs(home) for _ in range(3)]
    urls = [user.answer()["url"] for user in users]
    tools.write_row(urls[0])

    tools.kill_all([user.pid for user in users])

    tools.nothing_runs(home)
    assert status(home).state == "stopped"
    assert not (home / "server.json").exists()
    assert tools.rows(home) == 1


def test_killing_the_keeper_ends_the_server_and_start_brings_it_back(home: Path, tools: Any) -> None:
    with EmbeddedServer(home) as used:
        tools.write_row(used.start())
        before = status(home)

        tools.kill_all([before.keeper])

        tools.nothing_runs(home)
        assert tools.ask(used.start(), "select count(*) from kept") == 1
        assert status(home).keeper != before.keeper
    assert tools.processes_of(home) == []


@pytest.mark.long
def test_a_start_while_the_server_of_a_killed_keeper_still_ends_waits_for_it(home: Path, tools: Any) -> None:
    with EmbeddedServer(home) as used:
        tools.write_row(used.start())
        tools.kill_all([status(home).keeper])
        tools.eventually(lambda: status(home).state == "stopped")

        assert tools.ask(used.start(), "select count(*) from kept") == 1


def test_a_killed_server_is_started_again_at_the_same_address(home: Path, tools: Any) -> None:
    with EmbeddedServer(home) as used:
        url, before = used.start(), status(home)
        tools.write_row(url)
        busy = in_background(url)

        tools.kill_all([before.postmaster])

        tools.eventually(lambda: status(home).postmaster != before.postmaster)
        assert used.start() == url
        assert tools.ask(url, "select count(*) from kept") == 1
        assert status(home).keeper == before.keeper
        busy.join(20)
        assert not busy.is_alive()


def test_killing_everything_at_once_leaves_nothing_and_loses_nothing(home: Path, programs: Any, tools: Any) -> None:
    user = programs(home)
    tools.write_row(user.answer()["url"])

    tools.kill_all(tools.processes_of(home))

    tools.nothing_runs(home)
    assert tools.rows(home) == 1


@pytest.mark.long
def test_a_backend_that_outlived_keeper_and_server_does_not_block_the_next_start(
    home: Path, programs: Any, tools: Any
) -> None:
    user = programs(home)
    found = user.answer()
    tools.write_row(found["url"])
    busy = in_background(found["url"])
    os.kill(found["keeper"], signal.SIGSTOP)  # neither may see the other die, or it would end the backend
    tools.kill_all([found["postmaster"], found["keeper"], user.pid])
    assert len(tools.processes_of(home)) >= 1

    assert tools.rows(home) == 1

    busy.join(20)
    assert not busy.is_alive()


@pytest.mark.long
def test_a_lock_file_that_names_a_stranger_does_not_block_the_next_start(home: Path, programs: Any, tools: Any) -> None:
    user = programs(home)
    tools.write_row(user.answer()["url"])
    tools.kill_all(tools.processes_of(home))
    tools.nothing_runs(home)
    left = [home / "data" / "postmaster.pid", home / ".s.PGSQL.5432.lock"]
    for file in left:
        file.write_text("\n".join([str(os.getpid()), *file.read_text().split("\n")[1:]]))

    assert tools.rows(home) == 1


@pytest.mark.long
def test_a_home_that_was_moved_after_a_kill_starts(home: Path, programs: Any, tools: Any) -> None:
    user = programs(home)
    tools.write_row(user.answer()["url"])
    tools.kill_all(tools.processes_of(home))
    tools.nothing_runs(home)
    lock = home / ".s.PGSQL.5432.lock"
    lock.write_text("\n".join([str(os.getpid()), *lock.read_text().split("\n")[1:]]))
    home.rename(moved := home.with_name("moved"))

    assert tools.rows(moved) == 1

    moved.rename(home)


@pytest.mark.parametrize("victim", ["program", "keeper", "initdb", "all"])
@pytest.mark.long
def test_a_kill_during_initdb_leaves_a_home_that_starts(fresh: Path, programs: Any, tools: Any, victim: str) -> None:
    user = programs(fresh)
    tools.eventually(lambda: any(fresh.glob("data.incomplete-*/base")))
    keeper = [pid for pid in tools.processes_of(fresh) if b"rota-postgres-keeper" in command(pid)]
    initdb = [pid for pid in tools.processes_of(fresh) if b"/initdb\0" in command(pid)]
    victims = {"program": [user.pid], "keeper": keeper, "initdb": initdb, "all": tools.processes_of(fresh)}

    tools.kill_all(victims[victim])

    user.process.wait(60)
    with EmbeddedServer(fresh) as next_one:
        assert tools.ask(next_one.start(), "select 1") == 1
    assert list(fresh.glob("data.incomplete-*")) == []
    assert tools.processes_of(fresh) == []


def test_a_signal_to_the_programs_group_does_not_reach_the_server(home: Path, programs: Any, tools: Any) -> None:
    with EmbeddedServer(home) as used:
        used.start()
        found = status(home)

        assert os.getsid(found.keeper or 0) != os.getsid(0)
        assert os.getpgid(found.keeper or 0) != os.getpgid(0)


def test_a_terminated_keeper_stops_its_server_properly(home: Path, programs: Any, tools: Any) -> None:
    user = programs(home)

    os.kill(user.answer()["keeper"], signal.SIGTERM)

    tools.eventually(lambda: status(home).state == "stopped")
    assert "database system is shut down" in (home / "server.log").read_text()


@pytest.mark.long
def test_a_server_that_dies_again_and_again_is_given_up_loudly(home: Path, programs: Any, tools: Any) -> None:
    user = programs(home)
    found = user.answer()
    (home / "data" / "global" / "pg_control").rename(home / "pg_control")
    tools.kill_all([found["postmaster"]])

    tools.eventually(lambda: "died 6 times in a row" in (home / "server.log").read_text(), within=60)
    tools.eventually(lambda: status(home).state == "stopped")

    (home / "pg_control").rename(home / "data" / "global" / "pg_control")


def test_a_server_someone_else_started_is_left_alone(home: Path, programs: Any, tools: Any) -> None:
    user = programs(home)
    found = user.answer()
    record = home / "server.json"
    forged = record.read_text().replace(f'"postmaster": {found["postmaster"]}', '"postmaster": 1')
    os.kill(found["postmaster"], signal.SIGSTOP)
    tools.kill_all([user.pid, found["keeper"]])
    tools.eventually(lambda: status(home).state == "stopped")
    record.write_text(forged)

    with pytest.raises(DataDirectoryError, match=rf"that Rota did not start \(pid {found['postmaster']}\)"):
        EmbeddedServer(home).start()

    assert tools.is_running(found["postmaster"])
    os.kill(found["postmaster"], signal.SIGCONT)
    tools.nothing_runs(home)
    assert stop(home) is False


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def in_background(url: str) -> threading.Thread:
    """A connection that computes without end; returns once it does."""
    begun = threading.Event()

    def compute() -> None:
        with suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
            begun.set()
            connection.execute(BUSY)

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    begun.wait(20)
    with psycopg.connect(url, autocommit=True) as watching:
        while watching.execute("select 1 from pg_stat_activity where query = %s", [BUSY]).fetchone() is None:
            pass
    return thread
