"""Clocks that are wrong: by libfaketime, for whatever a program asks its C library, or by a time namespace of the kernel."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from rota.clock import boottime

__all__ = ["libfaketime", "namespaces_of_time"]


@functools.cache
def libfaketime() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


@functools.cache
def namespaces_of_time() -> bool:
    """Whether `unshare --time` gives a program other clocks of durations: it takes the right to, and a recent kernel."""
    command = ["unshare", "--time", "--monotonic=3600", "--boottime=3600", "--", "cat", "/proc/uptime"]
    try:
        shown = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return False
    return float(shown[0]) > boottime() + 3000
