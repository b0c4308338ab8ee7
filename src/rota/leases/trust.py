"""Until when what this process holds is certainly its own, told by its own clock.

The deadline is the time *before* the last renewal was asked for, plus the lease, less a margin, on a clock that counts sleep.
When the session breaks, peers may end us as soon as their suspicion has stood its time, so the deadline shrinks to that,
counted from when the session was last seen to be well. While the server says of itself that it stops or starts it lets nobody
in, and who was not let in ends nobody for a free lock (see `door`): then the lease's own deadline holds. While it recovers from
a crash nobody is connected, and the deadline is put off with every such answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rota.clock import boottime
from rota.leases.door import is_being_replaced, is_recovering

__all__ = ["LeaseSettings", "Trust"]


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How long a silent process is believed to be alive."""

    lease: timedelta = timedelta(seconds=15)  # rides out a failover or a long pause; a real death is seen by its lock
    interval: timedelta = timedelta(seconds=0.5)  # half of what a peer may take to notice a free lock
    grace: timedelta = timedelta(seconds=0.75)  # one interval to notice a broken session, and a moment to stop
    margin: timedelta = timedelta(seconds=3)  # between stopping by ourselves and being ended by others

    @classmethod
    def of(cls, lease: timedelta) -> LeaseSettings:
        """Settings for a lease of this length; the margin stays a fifth of it."""
        return cls(lease=lease, margin=min(cls().margin, lease / 5))


class Trust:
    """Written by the control thread, read by any."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._lease = (settings.lease - settings.margin).total_seconds()
        self._grace = settings.grace.total_seconds()
        self._until = 0.0
        self._lease_ends = 0.0
        #: when the last renewal was asked for
        self.renewed_at = 0.0

    @property
    def left(self) -> float:
        """For how many seconds from now; not more than 0 if nobody can tell."""
        return self._until - boottime()

    def renewed(self, asked_at: float) -> None:
        """The database prolonged the lease at some time after this one."""
        self.renewed_at = asked_at
        self._until = self._lease_ends = asked_at + self._lease

    def broken(self, well_at: float) -> None:
        """The session has ended: nobody can have suspected us before it was last seen to be well."""
        self._until = min(self._until, well_at + self._grace)

    def refused(self, error: Exception, asked_at: float) -> None:
        """We asked for a new session at this time, and this is what we were told."""
        if self.left <= 0:
            return
        if is_being_replaced(error):
            # nobody can end us before it lets someone in; and once it was down, a free lock proves nothing
            self._until = self._lease_ends
        elif is_recovering(error):
            # who comes in after we asked has to stay for a while before it ends anyone
            self._until = min(self._lease_ends, asked_at + self._grace)

    def void(self) -> None:
        """We were ended."""
        self._until = 0.0
