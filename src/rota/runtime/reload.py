"""Seeing that code has changed, by looking at the files now and then: works on every file system, with no dependency."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Code", "changed", "pause_after", "read_code"]

#: Every Python file with what tells one version of it from the next.
Code = dict[str, tuple[int, int]]

SKIPPED = {"node_modules", "__pycache__"}
PAUSE = 0.3  # seconds between looks: quicker than a hand goes from the editor to the terminal
SHARE = 0.1  # of a processor, at most: a very large folder is looked at less often


def read_code(folder: Path | str) -> Code:
    """The .py files below a folder; not those in hidden folders, virtual environments and other people's code."""
    code: Code = {}
    for entry in _python_files(str(folder)):
        with contextlib.suppress(OSError):  # gone since it was listed
            found = entry.stat()
            code[entry.path] = (found.st_mtime_ns, found.st_size)
    return code


def changed(before: Code, after: Code) -> list[str]:
    """The files that are new, gone or different."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def pause_after(began: float) -> float:
    """How long to rest after a look that began at this moment of the monotonic clock."""
    return max(PAUSE, (time.monotonic() - began) / SHARE)


def _python_files(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # gone, or not ours to read
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        # a link to a folder may lead back here, and for ever
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in SKIPPED:
                yield from _python_files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry
