"""Successes that PostgreSQL has taken, but may not have on disk yet: those of queues that someone has relaxed.

A server that crashes forgets what it took in the last moments, three times `wal_writer_delay` at most. Whoever said it still knows,
and says it again; a job that is in history already is not there under its token any more, so that changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rota.clock import boottime
from rota.jobs.outcome import Succeeded

__all__ = ["Relaxed"]

# Ten times what it takes a server as it comes (three times 0.2 s), so that one that was told to take its time is trusted in as well.
_ON_DISK_SECONDS = 6.0


class Relaxed:
    """What one worker has written in the last moments. A crash ends all sessions: until it is seen that they have not, it is kept."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, Sequence[Succeeded]]] = deque()
        self._sessions: tuple[int, ...] = ()
        #: what the server may have forgotten, to be said again
        self.doubtful: list[Succeeded] = []

    def add(self, outcomes: Sequence[Succeeded]) -> None:
        self._batches.append((boottime(), outcomes))

    @property
    def tokens(self) -> set[int]:
        """Of the claims that these came of: what of them still runs by the account of the server, we have not forgotten."""
        kept = [outcome for _, outcomes in self._batches for outcome in outcomes]
        return {outcome.job.token for outcome in (*kept, *self.doubtful)}

    def doubt(self) -> None:
        """Have all be said again that is not known to be on disk."""
        self.doubtful += [outcome for _, outcomes in self._batches for outcome in outcomes]
        self._batches.clear()

    def answered(self, asked_at: float, sessions: tuple[int, ...], *, on_disk: bool) -> bool:
        """The server has answered what it was asked then, which had to be `on_disk` and so all before it, or not. `sessions` tells
        the how-manieth of each kind this worker has. Returns whether there is something to say again since."""
        before, self._sessions = self._sessions, sessions
        if any(0 < old < new for old, new in zip(before, sessions, strict=False)):
            self.doubt()
            return bool(self.doubtful)
        since = asked_at if on_disk else asked_at - _ON_DISK_SECONDS
        while self._batches and self._batches[0][0] < since:
            self._batches.popleft()
        return False
