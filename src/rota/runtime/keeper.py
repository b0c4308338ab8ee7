"""The keeper of a program that runs under a term: ends it, and all it has started, when nobody else does.

Run as a script, so that it needs nothing but Python. It leads the program's process group, and has a line to the process that
holds the term. On it come moments, each the time until which the program may run; when the last one has passed, because that
process is frozen, or the line is closed, because it is gone, the whole group is killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# the same clock as rota.clock.boottime: it goes on while the machine sleeps, and both processes read it
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LOOK_SECONDS = 0.1


def keep(until: float) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the program
    os.write(1, b"!")  # only now may the program begin
    os.close(1)
    while time.clock_gettime(_CLOCK) < until:
        if not select.select([0], [], [], _LOOK_SECONDS)[0]:
            continue
        said = os.read(0, 4096)
        if not said:
            break
        until = float(said.split()[-1])
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    keep(float(sys.argv[1]))
