"""Where a module is, said so that another process finds the same one: by its name, or where that leads elsewhere by its file."""

from __future__ import annotations

import contextvars
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["Place", "check_process_task", "load", "loading", "place_of"]

# What multiprocessing calls the main module in its children: a program that knows about that name knows about ours.
_MAIN = "__mp_main__"

# Whether a module is being loaded for a task in it, and so must not start what it starts for itself.
loading: contextvars.ContextVar[bool] = contextvars.ContextVar("rota_loading", default=False)


class Place(NamedTuple):
    module: str
    file: str | None

    def __str__(self) -> str:
        return self.file or self.module


def check_process_task(function: Callable[..., Any]) -> str | None:
    """Why no other process could find this function, as a clause that follows its name; None when one can."""
    if "<locals>" in getattr(function, "__qualname__", ""):
        return (
            f"is defined inside another function ({function.__qualname__}), where no other process can find it: define it "
            "at the top level of a module (if a decorator is what wraps it, use functools.wraps there)"
        )
    if function.__module__ == "__main__" and not hasattr(sys.modules.get("__main__"), "__file__"):
        return "is defined in an interactive session, which no other process can load: put it into a file"
    return None


def place_of(module: str) -> Place:
    """Where this process has a module from; the main one under a name that runs nothing behind `if __name__ == "__main__"`."""
    loaded = sys.modules.get(module)
    if module == "__main__":
        spec = getattr(loaded, "__spec__", None)  # there is one if it was started by `python -m`
        module = _MAIN if spec is None else spec.name
    return Place(module, _absolute(getattr(loaded, "__file__", None)))


def load(place: Place) -> ModuleType:
    """The module at this place, loaded once. What its code raises is raised."""
    token = loading.set(True)
    try:
        known = sys.modules.get(place.module)
        if known is not None and _absolute(getattr(known, "__file__", None)) == place.file:
            return known
        if place.file is None or _leads_there(place):
            return importlib.import_module(place.module)
        return _load_file(place.module, place.file)
    finally:
        loading.reset(token)


def _leads_there(place: Place) -> bool:
    """Whether importing the name gives the file; a script may be called like a module that comes before it."""
    if place.module == _MAIN:
        return False
    try:
        spec = importlib.util.find_spec(place.module)
    except (ImportError, ValueError):
        return False
    return spec is not None and _absolute(spec.origin) == place.file


def _load_file(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    replaced = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if replaced is not None:
            sys.modules[name] = replaced
        raise
    if name == _MAIN:
        sys.modules["__main__"] = module  # for those who import __main__, and for processes that a body starts
    return module


def _absolute(file: str | None) -> str | None:
    return None if file is None else os.path.abspath(file)
