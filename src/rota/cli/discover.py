"""Finding the app of a project that did not name one."""

from __future__ import annotations

import tomllib
from pathlib import Path

from rota.errors import AppNotFound, ConfigurationError

__all__ = ["app_paths"]

CONVENTION = ("main.py", "app.py", "tasks.py", "jobs.py")


def app_paths(folder: Path) -> list[str]:
    """Where to look for the app, in order: what `[tool.rota] app` in pyproject.toml says, else the usual files.

    A usual file that never mentions rota is left out: importing it might do anything, and would find nothing. Raises AppNotFound
    when there is no place to look.
    """
    named = _named_in_pyproject(folder / "pyproject.toml")
    if named is not None:
        return [named]
    found = [name for name in CONVENTION if _mentions_rota(folder / name)]
    if not found:
        raise AppNotFound(
            f"No app was named, and none is to be found in {folder}: there is no {', '.join(CONVENTION[:-1])} or "
            f"{CONVENTION[-1]} that makes a Rota, and no `app` under [tool.rota] in pyproject.toml. "
            "Name it, as in `rota dev package.module:app` or `rota dev file.py`."
        )
    return found


def _named_in_pyproject(file: Path) -> str | None:
    try:
        settings = tomllib.loads(file.read_text()).get("tool", {}).get("rota", {})
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}. Mend it, or name the app.") from error
    named = settings.get("app") if isinstance(settings, dict) else None
    if named is not None and not isinstance(named, str):
        raise ConfigurationError(f"`app` under [tool.rota] in {file} is {named!r}; it is a text such as main:app.")
    return named


def _mentions_rota(file: Path) -> bool:
    try:
        return b"rota" in file.read_bytes().lower()
    except OSError:
        return False
