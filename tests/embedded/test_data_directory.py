"""Folders and disks as they come: each works or is refused with words, and nothing in them is deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rota.embedded import Binaries, EmbeddedServer, status
from rota.embedded.cluster import socket_folder
from rota.embedded.home import Home
from rota.errors import DataDirectoryError, PostgresNotFound, PostgresStartFailed


@pytest.mark.parametrize(
    "name", ["with spaces and ünïcode", "with, a comma", "with \"quotes\" and 'more'", "p%20c?&#", "space at the end "]
)
@pytest.mark.long
def test_a_path_with_unusual_letters_works(home: Path, tools: Any, name: str) -> None:
    strange = home.parent / name
    home.rename(strange)

    with EmbeddedServer(strange) as server:
        assert tools.ask(server.start(), "show data_directory") == str(strange / "data")

    assert tools.processes_of(strange) == []
    strange.rename(home)


def test_a_very_long_path_works_and_its_socket_is_private(home: Path, tools: Any) -> None:
    deep = home.parent.joinpath(*["a-folder-with-quite-a-long-name"] * 8) / "home"
    deep.parent.mkdir(parents=True)
    home.rename(deep)
    assert len(str(deep)) > 200

    with EmbeddedServer(deep) as server:
        assert tools.ask(server.start(), "select 1") == 1
        folder = Path(tools.ask(server.start(), "show unix_socket_directories").strip('"'))
        assert folder.stat().st_mode & 0o777 == 0o700

    assert not folder.exists()
    deep.rename(home)


def test_a_socket_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / (uuid4().hex * 7))
    folder = socket_folder(home)
    folder.chmod(0o755)

    with pytest.raises(DataDirectoryError, match=f"{folder}, which would be used instead, is not a private folder"):
        socket_folder(home)

    folder.rmdir()


def test_the_default_home_is_in_the_current_folder_and_kept_out_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with EmbeddedServer(), EmbeddedServer(".rota/postgres"):
        assert status().home == str(tmp_path / ".rota" / "postgres")
        assert status().running

    assert (tmp_path / ".rota" / ".gitignore").read_text() == "*\n"
    assert (tmp_path / ".rota" / "postgres").stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_data_of_another_major_version_take_the_binaries_that_fit(fresh: Path, installed: Binaries, tools: Any) -> None:
    with EmbeddedServer(fresh, binaries=installed) as server:
        tools.write_row(server.start())
        assert tools.ask(server.start(), "select lower('ÄÉ')") == "äé"

    assert tools.rows(fresh) == 1
    with EmbeddedServer(fresh):
        assert status(fresh).version == installed.version


def test_data_without_binaries_that_fit_are_refused_and_left_alone(
    home: Path, wheel: Binaries, installed: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DataDirectoryError, match=rf"by PostgreSQL {wheel.major} .*given are PostgreSQL {installed.version}"
    ):
        EmbeddedServer(home, binaries=installed).start()
    (home / "data" / "PG_VERSION").write_text("12\n")
    home.rename(spoiled := home.with_name("spoiled"))
    with pytest.raises(DataDirectoryError, match=rf"(?s)by PostgreSQL 12 .*wheel is PostgreSQL {wheel.version}"):
        EmbeddedServer(spoiled).start()

    assert (spoiled / "data" / "global" / "pg_control").exists()
    assert not status(spoiled).running


def test_missing_binaries_are_an_error_that_says_what_to_install(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_POSTGRES_BIN", str(tmp_path / "nowhere"))

    with pytest.raises(PostgresNotFound, match="pip install"):
        EmbeddedServer(fresh).start()
    with pytest.raises(PostgresNotFound, match="pip install"):
        EmbeddedServer(ephemeral=True).start()


@pytest.mark.long
def test_a_data_directory_given_as_home_is_refused(home: Path) -> None:
    before = sorted(os.listdir(home / "data"))

    with pytest.raises(DataDirectoryError, match="is itself a PostgreSQL data directory"):
        EmbeddedServer(home / "data").start()

    assert sorted(os.listdir(home / "data")) == before


def test_a_folder_named_data_with_other_things_in_it_is_refused(fresh: Path) -> None:
    (fresh / "data").mkdir(parents=True)
    (fresh / "data" / "letters.txt").write_text("mine")

    with pytest.raises(DataDirectoryError, match="is not empty and is not a PostgreSQL data directory"):
        EmbeddedServer(fresh).start()

    assert (fresh / "data" / "letters.txt").read_text() == "mine"


def test_other_files_in_the_home_are_left_alone(home: Path) -> None:
    (home / "letters.txt").write_text("mine")
    (home / "data.incomplete-1").mkdir()

    with EmbeddedServer(home):
        pass

    assert (home / "letters.txt").read_text() == "mine"
    assert not (home / "data.incomplete-1").exists()


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(DataDirectoryError, match="Name another folder"):
        EmbeddedServer(tmp_path / "file").start()


def test_a_setting_the_server_refuses_is_in_the_error(home: Path, tools: Any) -> None:
    with pytest.raises(PostgresStartFailed, match=r'(?s)It said:.*"no_such_setting"'):
        EmbeddedServer(home, options={"no_such_setting": "1"}).start()

    tools.nothing_runs(home)
    with EmbeddedServer(home):
        pass


@pytest.fixture
def small_disk(as_root: None, tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_too_small_for_initdb_is_named_in_the_error(small_disk: Path, tools: Any) -> None:
    fill(small_disk, leave=20 * 2**20)

    with pytest.raises(PostgresStartFailed, match="The disk is full"):
        EmbeddedServer(small_disk / "home").start()

    tools.nothing_runs(small_disk)
    assert not (small_disk / "home" / "data").exists()
    (small_disk / "filler").unlink()
    with EmbeddedServer(small_disk / "home"):
        pass


@pytest.mark.parametrize("leave", [0, 4096])
@pytest.mark.long
def test_a_disk_that_filled_up_is_named_in_the_error_and_nothing_is_lost(
    small_disk: Path, home: Path, tools: Any, leave: int
) -> None:
    subprocess.run(["cp", "-a", home, small_disk], check=True)
    home = small_disk / "home"
    with EmbeddedServer(home) as server:
        tools.write_row(server.start())
    fill(small_disk, leave=leave)

    with pytest.raises((PostgresStartFailed, DataDirectoryError), match="The disk is full"):
        EmbeddedServer(home).start()

    tools.nothing_runs(small_disk)
    (small_disk / "filler").unlink()
    assert tools.rows(home) == 1


def fill(disk: Path, leave: int) -> None:
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - leave)
