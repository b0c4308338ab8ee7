"""One server for everyone who names the same home, for as long as anyone uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rota.embedded import EmbeddedServer, server, shared_server, status, stop
from rota.errors import ConfigurationError, EmbeddedError


def test_a_first_start_makes_a_server_and_the_next_finds_its_data(fresh: Path, tools: Any) -> None:
    with EmbeddedServer(fresh) as first:
        tools.write_row(first.start())
        assert tools.ask(first.start(), "show fsync") == "on"
        assert tools.ask(first.start(), "show max_connections") == "200"
        assert tools.ask(first.start(), "select lower('ÄÉ') || current_setting('server_encoding')") == "äéUTF8"

    assert status(fresh).state == "stopped"
    assert tools.processes_of(fresh) == []
    assert tools.rows(fresh) == 1


def test_programs_share_one_server_and_the_last_to_leave_stops_it(home: Path, programs: Any, tools: Any) -> None:
    first, second = programs(home), programs(home)
    keepers = {first.answer()["keeper"], second.answer()["keeper"]}

    first.leave()
    alive = status(home)
    second.leave()

    assert keepers == {alive.keeper}
    assert alive.users == (second.pid,)
    assert tools.processes_of(home) == []


@pytest.mark.long
def test_eight_programs_starting_at_the_same_instant_get_one_server(fresh: Path, programs: Any, tools: Any) -> None:
    crowd = [programs(fresh) for _ in range(8)]

    answers = [program.answer() for program in crowd]

    assert len({answer["postmaster"] for answer in answers}) == 1
    assert tools.ask(answers[0]["url"], "select 1") == 1
    for program in crowd:
        program.leave()
    assert tools.processes_of(fresh) == []


@pytest.mark.long
def test_a_program_that_arrives_while_the_server_stops_gets_a_new_one(home: Path, programs: Any, tools: Any) -> None:
    for _ in range(3):
        leaving = programs(home)
        leaving.answer()
        leaving.process.stdin.close()
        arriving = programs(home)
        assert tools.ask(arriving.answer()["url"], "select 1") == 1
        leaving.process.wait(60)
        arriving.leave()


@pytest.mark.long
def test_a_start_just_after_the_last_user_was_killed_gets_a_server_that_stays(
    home: Path, programs: Any, tools: Any
) -> None:
    for _ in range(3):
        killed = programs(home)
        killed.answer()
        killed.kill()
        with EmbeddedServer(home) as arriving:
            arriving.restart("fast")  # only a keeper that means to stay answers
            assert tools.ask(arriving.start(), "select 1") == 1


def test_start_and_close_may_be_repeated_and_used_from_threads(home: Path, tools: Any) -> None:
    shared = EmbeddedServer(home)
    urls: list[str] = []
    threads = [threading.Thread(target=lambda: urls.append(shared.start())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(urls)) == 1
    assert len(urls) == 8
    shared.close()
    shared.close()
    assert tools.processes_of(home) == []
    assert tools.ask(shared.start(), "select 1") == 1
    shared.close()


def test_a_process_has_one_shared_server_per_home(home: Path, tools: Any) -> None:
    code = (
        "import sys; from pathlib import Path; from rota.embedded import shared_server; home = Path(sys.argv[1]);"
        "assert shared_server(home) is shared_server(home / '..' / home.name); print(shared_server(home).start())"
    )

    subprocess.run([sys.executable, "-c", code, home], check=True, env={**os.environ, "PYTHONPATH": str(tools.source)})

    assert tools.processes_of(home) == []
    assert shared_server(home) is shared_server(str(home))


def test_an_ephemeral_server_is_fast_and_leaves_nothing(tools: Any) -> None:
    with EmbeddedServer(ephemeral=True) as thrown_away:
        folder = thrown_away.home
        assert folder is not None
        assert tools.ask(thrown_away.start(), "show fsync") == "off"

    assert not folder.exists()
    assert tools.processes_of(folder) == []
    assert thrown_away.home is None


def test_an_ephemeral_server_is_removed_after_its_user_was_killed(programs: Any, tools: Any) -> None:
    user = programs(None, ephemeral=True)
    folder = Path(user.answer()["home"])
    assert folder.exists()

    user.kill()

    tools.eventually(lambda: not folder.exists())
    tools.nothing_runs(folder)


@pytest.mark.long
def test_what_a_killed_keeper_of_an_ephemeral_server_left_is_removed_by_the_next(
    programs: Any, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(server, "ABANDONED", 0.0)
    user = programs(None, ephemeral=True, environment={"TMPDIR": str(tmp_path)})
    folder = Path(user.answer()["home"])
    used = programs(None, ephemeral=True, environment={"TMPDIR": str(tmp_path)})
    used_folder = Path(used.answer()["home"])
    tools.kill_all([user.pid, *tools.processes_of(folder)])
    tools.nothing_runs(folder)
    assert folder.exists()

    home = server.ephemeral_home()

    assert not folder.exists()
    assert used_folder.exists()
    home.ephemeral_mark.unlink()
    home.path.rmdir()


@pytest.mark.long
def test_over_tcp_the_password_is_needed_and_never_shown(home: Path, tools: Any) -> None:
    password = (home / "pgpass").read_text().strip().rpartition(":")[2]

    with EmbeddedServer(home, tcp=True, options={"log_statement": "all"}) as over_tcp:
        url = over_tcp.start()
        assert tools.ask(url, "select host(inet_server_addr())") == "127.0.0.1"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(url.partition("&passfile")[0] + "&passfile=/nonexistent")
        seen = url + repr(status(home)) + (home / "server.log").read_text() + (home / "server.json").read_text()

    assert password not in seen
    assert "select host" in seen
    assert (home / "pgpass").stat().st_mode & 0o777 == 0o600


def test_asking_for_tcp_where_a_server_runs_without_it_is_an_error(home: Path, programs: Any) -> None:
    programs(home).answer()

    with pytest.raises(EmbeddedError, match="was started without TCP"):
        EmbeddedServer(home, tcp=True).start()


def test_settings_reach_the_server_and_its_address_is_not_among_them(home: Path, tools: Any) -> None:
    with EmbeddedServer(home, options={"work_mem": "7MB", "max_connections": "31"}) as tuned:
        assert tools.ask(tuned.start(), "show work_mem") == "7MB"
        assert tools.ask(tuned.start(), "show max_connections") == "31"

    with pytest.raises(ConfigurationError, match="port"):
        EmbeddedServer(home, options={"port": "1"})


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.long
def test_a_restart_keeps_the_address_and_what_was_committed(home: Path, tools: Any, tcp: bool, mode: Any) -> None:
    with EmbeddedServer(home, tcp=tcp) as restarted:
        url, before = restarted.start(), status(home)
        tools.write_row(url)

        restarted.restart(mode)

        after = status(home)
        assert tools.ask(url, "select count(*) from kept") == 1
        assert restarted.start() == url
        assert after.keeper == before.keeper
        assert after.postmaster != before.postmaster


def test_a_server_stopped_under_its_user_is_brought_back_by_start(home: Path, tools: Any) -> None:
    with EmbeddedServer(home) as used:
        with pytest.raises(EmbeddedError, match=rf"is in use \(process {os.getpid()}\)"):
            stop(home)
        assert stop(home, force=True)
        assert tools.processes_of(home) == []

        assert tools.ask(used.start(), "select 1") == 1


def test_a_long_log_is_put_aside_at_the_next_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, tools: Callable[..., Any]
) -> None:
    (home / "server.log").write_bytes(b"x" * (5 * 2**20 + 1))

    with EmbeddedServer(home):
        pass

    assert (home / "server.log").stat().st_size < 10_000
    assert (home / "server.log.1").stat().st_size > 5 * 2**20
