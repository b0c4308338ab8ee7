"""What a command works on: an app, found by its path, or just a database."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

from rota.app import Rota
from rota.errors import AppNotFound

__all__ = ["app_option", "database_options", "find_app", "open_app", "reading_app_option"]

F = TypeVar("F", bound=Callable[..., Any])


def database_options(command: F) -> F:
    """`--dsn`, `--schema` and `--data`, which beat the environment."""
    for option in (
        click.option(
            "--data",
            type=click.Path(file_okay=False, path_type=Path),
            expose_value=False,
            callback=_use_data,
            help="Folder of the embedded server. [env: ROTA_POSTGRES_DATA; default: .rota/postgres]",
        ),
        click.option("--schema", help="Schema of Rota's tables. [env: ROTA_SCHEMA; default: rota]"),
        click.option("--dsn", help="Database address. [env: ROTA_DATABASE_URL, DATABASE_URL, PG*; default: embedded]"),
    ):
        command = option(command)
    return command


def _use_data(ctx: click.Context, option: click.Parameter, folder: Path | None) -> None:
    if folder is not None:
        os.environ["ROTA_POSTGRES_DATA"] = str(folder.absolute())  # also for the processes this command starts


def app_option(text: str) -> Callable[[F], F]:
    """`--app`, for commands that can do without one."""
    return click.option("--app", "app_path", metavar="APP", help=text)


reading_app_option = app_option("Show payloads as this app reads them: by its codec, without what its tasks redact.")


def open_app(dsn: str | None, schema: str | None, path: str | None = None) -> Rota:
    """The app at the path; without one an app without tasks, for commands that only need the database."""
    return Rota(dsn, schema=schema) if path is None else find_app(path, dsn, schema)


def find_app(path: str, dsn: str | None = None, schema: str | None = None) -> Rota:
    """The app that `module:attribute`, `module` or a .py file holds; pointed elsewhere when a database is named."""
    name, _, attribute = path.partition(":")
    module = _load_file(Path(name)) if name.endswith(".py") else _load_module(name, path)
    app = _named(module, attribute, path) if attribute else _only(module, path)
    if dsn is not None or schema is not None:
        app.use(dsn=dsn, schema=schema)
    return app


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise AppNotFound(
            f"There is no file {str(file)!r} (looked in {Path.cwd()}). Give a .py file that makes a Rota, or module:attribute."
        )
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    _executing(str(file), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _load_module(name: str, path: str) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise AppNotFound(
            f"{path!r} is no path to an app: write module:attribute (for example main:app), or a .py file."
        )
    sys.path.insert(0, os.getcwd())
    try:
        return _executing(name, lambda: importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name and (error.name == name or name.startswith(f"{error.name}.")):
            raise AppNotFound(
                f"There is no module {error.name!r} to find the app {path!r} in (looked from {os.getcwd()})."
            ) from error
        raise


T = TypeVar("T")


def _executing(name: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except SyntaxError as error:
        raise AppNotFound(f"{name} cannot be read as Python: {error}") from error


def _named(module: ModuleType, attribute: str, path: str) -> Rota:
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Rota):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise AppNotFound(f"{path!r} names {what}, not a Rota. {_holds(module)}")
    return found


def _only(module: ModuleType, path: str) -> Rota:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, Rota)}
    if len(apps) != 1:
        how_many = "no Rota" if not apps else f"{len(apps)} Rotas"
        raise AppNotFound(f"{path!r} holds {how_many}. {_holds(module)}")
    return next(iter(apps.values()))


def _holds(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Rota))
    if not names:
        return f"{module.__name__} makes none at its top level: write `app = Rota()` there."
    return f"{module.__name__} holds {', '.join(names)}: say which, as in {module.__name__}:{names[0]}."
