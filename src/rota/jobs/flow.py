"""A chain or a group in hand, once it is enqueued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rota.clock import Deadline, Duration, seconds
from rota.errors import ConfigurationError
from rota.jobs.job import Job

__all__ = ["Flow"]


@dataclass(frozen=True, slots=True)
class Flow:
    """The jobs of a chain or a group, as they were when they were enqueued: `jobs` in the order written, `ends` the last of them."""

    jobs: tuple[Job[Any], ...]
    ends: tuple[Job[Any], ...]
    _joined: bool = False

    @property
    def last(self) -> Job[Any]:
        """The job at its end. A group has several: see `ends`."""
        if self._joined:
            raise ConfigurationError("This ends with a group, so there is no last job: use ends, or wait().")
        return self.ends[0]

    async def wait(self, timeout: Duration | None = None) -> Any:
        """Wait until the last job is settled and return its result; the list of results if it ends with a group.

        Raises JobFailed, JobCancelled or WaitTimedOut, a TimeoutError.
        """
        until = None if timeout is None else Deadline.after(seconds(timeout, "timeout"))
        results = [await job.wait(None if until is None else max(0.0, until.left)) for job in self.ends]
        return results if self._joined else results[0]

    def wait_sync(self, timeout: Duration | None = None) -> Any:
        until = None if timeout is None else Deadline.after(seconds(timeout, "timeout"))
        results = [job.wait_sync(None if until is None else max(0.0, until.left)) for job in self.ends]
        return results if self._joined else results[0]

    async def cancel(self, reason: str = "") -> None:
        """Cancel all its jobs that have not settled; those that run are told. See app.jobs.cancel."""
        for job in reversed(self.jobs):  # from the end, so that none is begun meanwhile
            await job.cancel(reason)

    def cancel_sync(self, reason: str = "") -> None:
        for job in reversed(self.jobs):
            job.cancel_sync(reason)
