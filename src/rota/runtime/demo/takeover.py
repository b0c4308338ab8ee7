"""How long it took until others went on with what a killed worker was doing, counted from the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rota.jobs.inspect import TakenOver

__all__ = ["Takeover"]


@dataclass(frozen=True, slots=True)
class Takeover:
    """`killed_at` was read from the database just before the signal; `jobs` are the attempts recorded as lost with it."""

    worker: str
    killed_at: datetime
    ended_at: datetime | None
    jobs: tuple[TakenOver, ...] = ()
    still_held: int = 0

    @property
    def complete(self) -> bool:
        """Nothing is held in its name any more, and each of its jobs was started again."""
        return self.ended_at is not None and self.still_held == 0 and all(job.started_at for job in self.jobs)

    @property
    def starts(self) -> list[float]:
        """Seconds from the kill until a peer started on each of the jobs, in order."""
        return sorted((job.started_at - self.killed_at).total_seconds() for job in self.jobs if job.started_at)

    @property
    def ended_after(self) -> float | None:
        return None if self.ended_at is None else (self.ended_at - self.killed_at).total_seconds()

    def __str__(self) -> str:
        if self.ended_after is None:
            return f"{self.worker} has not been missed yet"
        missed = f"{self.worker} was missed after {self.ended_after:.2f} s"
        if not self.jobs:
            return f"{missed}; it was running nothing"
        recorded = f"{missed}; {_jobs(len(self.jobs))} recorded as lost with it"
        starts = self.starts
        if not starts:
            return f"{recorded}, none started again yet"
        whole = "all" if len(starts) == len(self.jobs) else f"{len(starts)} of them"
        return f"{recorded}, {whole} started again by peers within {starts[-1]:.2f} s of the kill"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
