"""PostgreSQL refuses root, so it runs as someone else, and nobody's folders are opened up for that."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.embedded import Binaries, EmbeddedServer, status
from rota.errors import DataDirectoryError, PostgresNotFound

NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def open_folder(tools: Any) -> Iterator[Path]:
    """A folder every user can reach; pytest's own is for its owner only."""
    folder = Path(tempfile.mkdtemp(prefix="rota-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    tools.nothing_runs(folder)
    shutil.rmtree(folder)


def owner_of_process(pid: int | None) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def capabilities(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)


def test_root_works_in_a_closed_folder_without_changing_owner_or_mode(
    as_root: None, fresh: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_POSTGRES_PRIVILEGES", "namespace")
    fresh.parent.chmod(0o700)
    accounts = Path("/etc/passwd").read_bytes()

    with EmbeddedServer(fresh) as server:
        tools.write_row(server.start())
        assert capabilities(status(fresh).postmaster) == 0
        assert (fresh / "data").stat().st_uid == 0

    assert tools.rows(fresh) == 1
    assert fresh.parent.stat().st_mode & 0o777 == 0o700
    assert fresh.stat().st_mode & 0o777 == 0o700
    assert Path("/etc/passwd").read_bytes() == accounts


@pytest.mark.long
def test_root_without_namespaces_runs_the_server_as_nobody(
    as_root: None, open_folder: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_POSTGRES_PRIVILEGES", "nobody")
    home = open_folder / "home"

    with EmbeddedServer(home) as server:
        tools.write_row(server.start())
        server.restart()
        assert owner_of_process(status(home).postmaster) == NOBODY
        assert owner_of_process(status(home).keeper) == NOBODY
        assert (home / "data").stat().st_uid == NOBODY
        assert home.stat().st_mode & 0o777 == 0o700

    assert tools.rows(home) == 1
    monkeypatch.delenv("ROTA_POSTGRES_PRIVILEGES")
    assert tools.rows(home) == 1


@pytest.mark.long
def test_the_server_of_nobody_ends_with_its_keeper_and_recovers(
    as_root: None, open_folder: Path, programs: Any, tools: Any
) -> None:
    home = open_folder / "home"
    user = programs(home, environment={"ROTA_POSTGRES_PRIVILEGES": "nobody"})
    found = user.answer()
    tools.write_row(found["url"])

    tools.kill_all([user.pid, found["keeper"]])

    tools.nothing_runs(home)
    assert tools.rows(home) == 1


def test_an_ephemeral_server_of_nobody_leaves_nothing(as_root: None, programs: Any, tools: Any) -> None:
    user = programs(None, ephemeral=True, environment={"ROTA_POSTGRES_PRIVILEGES": "nobody"})
    folder = Path(user.answer()["home"])

    user.kill()

    tools.eventually(lambda: not folder.exists())


def test_a_home_or_binaries_nobody_can_reach_are_named_in_the_error(
    as_root: None, open_folder: Path, wheel: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_POSTGRES_PRIVILEGES", "nobody")
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "bin").symlink_to(wheel.directory)

    with pytest.raises(DataDirectoryError, match=f"{closed} is closed to it"):
        EmbeddedServer(closed / "home").start()
    hidden = Binaries(closed / "bin", wheel.version, "hidden")
    with pytest.raises(PostgresNotFound, match=f"{closed} is closed to it.*ROTA_POSTGRES_BIN"):
        EmbeddedServer(open_folder / "home", binaries=hidden).start()

    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_an_ordinary_user_runs_the_server_and_root_joins_as_that_user(
    as_root: None, open_folder: Path, installed: Binaries, programs: Any, tools: Any
) -> None:
    os.chown(open_folder, NOBODY, NOBODY)
    python = readable_python()
    home = open_folder / "home"
    user = programs(
        home, python=python, user=NOBODY, environment={"ROTA_POSTGRES_BIN": str(installed.directory), "HOME": "/"}
    )
    found = user.answer()
    assert owner_of_process(found["keeper"]) == NOBODY
    tools.write_row(found["url"])
    user.leave()
    assert tools.processes_of(home) == []

    with EmbeddedServer(home) as joined:
        assert tools.ask(joined.start(), "select count(*) from kept") == 1
        assert owner_of_process(status(home).postmaster) == NOBODY

    again = programs(home, python=python, user=NOBODY)
    assert again.answer()["running"]
    again.leave()


def test_another_users_home_is_refused_with_words(as_root: None, home: Path, open_folder: Path, programs: Any) -> None:
    moved = open_folder / "home"
    home.rename(moved)
    stranger = programs(moved, python=readable_python(), user=NOBODY)

    answer = stranger.answer()

    assert answer["error"] == "DataDirectoryError"
    assert "belongs to another user" in answer["message"]
    moved.rename(home)


def test_the_socket_is_closed_to_other_users_even_in_an_open_home(
    as_root: None, open_folder: Path, home: Path, installed: Binaries
) -> None:
    opened = open_folder / "home"
    home.rename(opened)
    opened.chmod(0o755)

    with EmbeddedServer(opened) as server:
        stranger = as_nobody([installed.psql, server.start(), "-c", "select 1"])

    assert stranger.returncode != 0
    assert "Permission denied" in stranger.stderr
    opened.rename(home)
    home.chmod(0o700)


@pytest.mark.long
def test_a_user_without_an_account_can_run_the_server(
    as_root: None, open_folder: Path, installed: Binaries, programs: Any, tools: Any
) -> None:
    os.chown(open_folder, 54321, 54321)
    user = programs(
        open_folder / "home",
        python=readable_python(),
        user=54321,
        environment={"ROTA_POSTGRES_BIN": str(installed.directory)},
    )

    answer = user.answer()

    assert answer.get("running"), answer
    user.leave()
    assert (open_folder / "home" / "data").stat().st_uid == 54321


def as_nobody(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=False
    )


def readable_python() -> str:
    """An interpreter that other users can start: the one of the tests may be in root's own folder."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        try:
            tried = as_nobody([candidate, "-c", code])
        except OSError:
            continue
        if tried.returncode == 0:
            return candidate
    pytest.skip("no Python 3.11 that another user could start")
