"""The demo's account: what the feeder was told is stored, against what the database holds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ledger"]


@dataclass(frozen=True, slots=True)
class Ledger:
    """`enqueued` counts the jobs whose enqueueing returned; the rest is counted by the database, at one moment.

    `scheduled` are runs of the schedule, which nobody enqueued. `before` is what the tables held before the demo began.
    `unanswered` are jobs whose enqueueing ended in a connection error: each of them may be stored or not.
    """

    enqueued: int
    scheduled: int = 0
    succeeded: int = 0
    queued: int = 0
    blocked: int = 0
    running: int = 0
    dead: int = 0
    cancelled: int = 0
    before: int = 0
    unanswered: int = 0

    @property
    def counted(self) -> int:
        return self.succeeded + self.queued + self.blocked + self.running + self.dead + self.cancelled

    @property
    def adds_up(self) -> bool:
        """Every job we were told is stored, or given out, is in exactly one state, and there is none besides."""
        return 0 <= self.counted - self.expected <= self.unanswered

    @property
    def expected(self) -> int:
        return self.before + self.enqueued + self.scheduled

    @property
    def exit_code(self) -> int:
        return 0 if self.adds_up else 1

    def __str__(self) -> str:
        enqueued = f"enqueued {self.enqueued:,} + scheduled {self.scheduled:,}"
        if self.before:
            enqueued += f" + {self.before:,} from before"
        states = " + ".join(
            f"{name} {getattr(self, name):,}"
            for name in ("succeeded", "queued", "blocked", "running", "dead", "cancelled")
        )
        if self.unanswered:
            enqueued += f" + up to {self.unanswered:,} unanswered"
        return f"{enqueued} {'=' if self.adds_up else '!='} {states}"
