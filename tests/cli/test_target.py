from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import AppNotFound
from rota.cli.target import find_app

ONE = "from rota import Rota\napp = Rota('dbname=x')\nalias = app\n"
TWO = "from rota import Rota\nfirst = Rota('dbname=x')\nsecond = Rota('dbname=y')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_found_by_file_by_module_and_by_attribute(folder: Path) -> None:
    (folder / "one_app.py").write_text(ONE)

    for path in ("one_app.py", "one_app", "one_app:app", "one_app.py:alias", str(folder / "one_app.py")):
        assert find_app(path).settings.dsn is not None


def test_a_database_named_on_the_command_line_beats_the_one_in_the_code(folder: Path) -> None:
    (folder / "one_app.py").write_text(ONE)

    app = find_app("one_app:app", dsn="dbname=other", schema="elsewhere")

    assert app.settings.dsn is not None
    assert app.settings.dsn.database == "other"
    assert app.settings.schema == app.database.schema == "elsewhere"


@pytest.mark.parametrize(
    ("source", "path", "says"),
    [
        ("", "empty_app.py", "holds no Rota.*write `app = Rota"),
        (TWO, "two_apps.py", "holds 2 Rotas.*first, second.*say which"),
        (ONE, "one_app:missing", "names nothing, not a Rota.*alias, app"),
        ("app = 5", "five:app", "names a int, not a Rota"),
        ("app = (", "broken.py", "cannot be read as Python"),
        ("", "nowhere.py", "There is no file 'nowhere.py'"),
        ("", "no.such.module:app", "There is no module 'no'"),
        ("", "what is this", "no path to an app"),
        ("", ":app", "no path to an app"),
    ],
)
def test_a_path_to_no_app_or_to_two_says_what_is_there(folder: Path, source: str, path: str, says: str) -> None:
    if source or path == "empty_app.py":
        (folder / f"{path.split(':')[0].removesuffix('.py')}.py").write_text(source)

    with pytest.raises(AppNotFound, match=f"(?s){says}"):
        find_app(path)


def test_an_error_inside_the_app_is_shown_as_it_is(folder: Path) -> None:
    (folder / "needs_more.py").write_text("import a_module_that_is_not_installed\n")

    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_installed"):
        find_app("needs_more:app")
