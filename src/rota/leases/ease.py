"""How long a process rests between two beats: half a second, and longer for one of many that holds nothing.

A beat is there to show soon that this process has lost its session, which matters while it holds something, and to look
whether peers have died. Fifty processes that look twice a second are a hundred looks, and cost a small machine a tenth of it, while a
dozen in all are enough for a death to be seen at once. So those who hold nothing share these among them. The moment such a process
takes hold of something it beats, unless it has just done so, and from then on as often as anyone.

What it costs: when most of many processes die together, and none of those that are left holds anything, it may be two seconds
until one of them looks.
"""

from __future__ import annotations

import random

from rota.leases.trust import LeaseSettings

__all__ = ["Ease"]

# How often all together look in a second; up to half as many members each of them beats as ever.
_LOOKS_PER_SECOND = 16
_LONGEST_SECONDS = 2.0
# So many beats may fail, and the lease still stands.
_BEATS_PER_LEASE = 5


class Ease:
    """Begun by the control thread after each beat; ended by any thread."""

    def __init__(self, settings: LeaseSettings) -> None:
        self._interval = settings.interval.total_seconds()
        lease = (settings.lease - settings.margin).total_seconds()
        #: seconds that any pause may take
        self.longest = max(self._interval, min(_LONGEST_SECONDS, lease / _BEATS_PER_LEASE))
        self._long = self._interval
        self.is_on = False

    @property
    def pause(self) -> float:
        """Seconds from the last beat to the next."""
        return self._long if self.is_on else self._interval

    def begin(self, members: int) -> None:
        """Rest for as long as one of so many may."""
        share = min(self.longest, members / _LOOKS_PER_SECOND)
        # after a death all of them look at the same time: by chance they drift apart again
        self._long = share * random.uniform(0.8, 1.0)
        self.is_on = self._long > self._interval

    def end(self) -> bool:
        """Rest as one who holds something; tells whether that is a change."""
        was_on, self.is_on = self.is_on, False
        return was_on
