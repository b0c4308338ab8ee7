"""Processes of this machine that lead what this one waits for: their death is noticed at once, where the system tells of it.

That is a hint and no proof: the number may be another process's by now, or one in a container of its own that has the name of this
host. So nobody is ended for it. The next beat only comes at once, and finds the dead one's lock free half a second earlier; from
there on all is as it is for a death on another machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from functools import partial

from rota.leases.bell import Bell

__all__ = ["Neighbours"]

# `None` where no system call tells of the end of a process that is not a child
_OPEN = getattr(os, "pidfd_open", None)
# Each takes a file descriptor, and what is led has few leaders.
_MOST = 50


class Neighbours:
    """Used by the thread that rests on the bell."""

    def __init__(self, bell: Bell, on_death: Callable[[], None]) -> None:
        self._bell = bell
        self._on_death = on_death
        self._watched: dict[int, int] = {}
        #: those who are dead and lead all the same, as far as the database knows: told of once
        self._dead: set[int] = set()

    def watch(self, pids: Collection[int]) -> None:
        """Watch these from now on, and no others."""
        self._dead &= set(pids)
        for pid in self._watched.keys() - set(pids):
            self._forget(pid)
        if _OPEN is None:
            return
        for pid in sorted(set(pids) - self._watched.keys() - self._dead)[: _MOST - len(self._watched)]:
            with contextlib.suppress(OSError):  # it is not here, or there is no room
                self._watched[pid] = _OPEN(pid)
                self._bell.watch(self._watched[pid], partial(self._died, pid))

    def close(self) -> None:
        self.watch(())

    def _died(self, pid: int) -> None:
        self._forget(pid)
        self._dead.add(pid)
        self._on_death()

    def _forget(self, pid: int) -> None:
        watched = self._watched.pop(pid)
        self._bell.unwatch(watched)
        os.close(watched)
