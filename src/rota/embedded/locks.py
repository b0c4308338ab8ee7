"""File locks: the kernel frees them when their holder ends, also by `kill -9`, so they never lie about who is alive."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

POLL = 0.005  # seconds; a start takes some hundred milliseconds, so this is not felt


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_lock(path: Path, kind: int, deadline: float) -> int:
    """Lock the file and return the descriptor that holds the lock. Raises TimeoutError at the deadline.

    Whoever removed and made the file anew meanwhile would not see the lock, so the file must still be the one there.
    """
    while True:
        fd = open_lock(path)
        try:
            while not try_lock(fd, kind):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} stayed locked")
                time.sleep(POLL)
            if is_file_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def is_file_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, deadline: float) -> Iterator[None]:
    fd = wait_lock(path, EXCLUSIVE, deadline)
    try:
        yield
    finally:
        os.close(fd)


def is_held(path: Path) -> bool:
    """Whether someone holds the file's exclusive lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd, SHARED)
    finally:
        os.close(fd)


def is_shared(path: Path) -> bool:
    """Whether someone holds the file's shared lock. An exclusive holder is not meant."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd, EXCLUSIVE) and try_lock(fd, SHARED)
    finally:
        os.close(fd)


def sharers(path: Path) -> tuple[int, ...]:
    """The processes that hold the shared lock, where the kernel tells (Linux); empty elsewhere."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ()
    # "12: FLOCK  ADVISORY  READ 4711 fe:00:1234 0 EOF"; a process of another container is shown as 0.
    fields = [line.split() for line in lines if " FLOCK " in line and " -> " not in line]
    found = {int(field[4]) for field in fields if field[3] == "READ" and int(field[5].rpartition(":")[2]) == inode}
    return tuple(sorted(found - {0}))
