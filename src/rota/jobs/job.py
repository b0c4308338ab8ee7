"""A job as its owner sees it, and as its body sees it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from rota.clock import Duration
from rota.errors import RotaError

__all__ = ["AttemptError", "Job", "JobId", "NewJob", "RunningJob", "current_job"]

JobId = int
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A call that has been checked and turned to JSON, on its way into the queue."""

    task: str
    args: str
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    at: datetime | None = None
    tags: tuple[str, ...] = ()
    wake: bool = True


@dataclass(frozen=True, slots=True)
class AttemptError:
    """How an attempt ended that did not settle its job. `kind` is failed or lost."""

    attempt: int
    kind: str
    type: str | None
    message: str | None
    trace: str | None
    member: UUID | None
    started_at: datetime | None
    finished_at: datetime


class Waiter(Protocol):
    """What a job in hand needs of the app it came from."""

    def wait(self, job: Job[Any], timeout: Duration | None) -> Awaitable[Any]: ...

    def wait_sync(self, job: Job[Any], timeout: Duration | None) -> Any: ...

    def refresh(self, job: Job[Any]) -> Awaitable[Job[Any]]: ...

    def refresh_sync(self, job: Job[Any]) -> Job[Any]: ...


@dataclass(frozen=True, slots=True)
class Job(Generic[R]):
    """A job as it was when it was read: queued, blocked, running, succeeded, dead or cancelled."""

    id: JobId
    task: str
    queue: str
    state: str
    priority: int
    attempt: int
    created_at: datetime
    due_at: datetime
    args: Any = None
    result: R | None = None
    errors: tuple[AttemptError, ...] = ()
    losses: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    member: UUID | None = None
    tags: tuple[str, ...] = ()
    _app: Waiter | None = field(default=None, repr=False, compare=False)

    async def wait(self, timeout: Duration | None = None) -> R:
        """Wait until the job is settled and return its result; raises JobFailed, JobCancelled or TimeoutError."""
        result: R = await self._owner().wait(self, timeout)
        return result

    def wait_sync(self, timeout: Duration | None = None) -> R:
        result: R = self._owner().wait_sync(self, timeout)
        return result

    async def refresh(self) -> Job[R]:
        """The same job as it is now."""
        return await self._owner().refresh(self)

    def refresh_sync(self) -> Job[R]:
        return self._owner().refresh_sync(self)

    def _owner(self) -> Waiter:
        if self._app is None:
            raise RotaError(
                f"Job {self.id} was not read through an app, so it cannot ask for news. Use app.jobs.get({self.id})."
            )
        return self._app


class Claim(Protocol):
    """What is known of a job that is running."""

    @property
    def id(self) -> JobId: ...

    @property
    def task(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def token(self) -> int: ...


class RunningJob:
    """The job whose body is running here."""

    __slots__ = ("_claim", "_scope", "_stop")

    def __init__(self, claim: Claim, scope: str, stop: Callable[[], bool]) -> None:
        self._claim = claim
        self._scope = scope
        self._stop = stop

    @property
    def id(self) -> JobId:
        return self._claim.id

    @property
    def task(self) -> str:
        return self._claim.task

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """1 for the first; grows with every attempt, lost ones included."""
        return self._claim.attempt

    @property
    def token(self) -> int:
        """Changes with every claim; what this attempt writes is valid only while it holds this."""
        return self._claim.token

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this job: hand it to a service that forgets repeats."""
        return f"{self._scope}:{self.id}"

    @property
    def stopping(self) -> bool:
        """Whether the worker wants to stop: a long body that sees it should come to an end soon."""
        return self._stop()

    def __repr__(self) -> str:
        return f"RunningJob(id={self.id}, task={self.task!r}, attempt={self.attempt})"


running: contextvars.ContextVar[RunningJob] = contextvars.ContextVar("rota_running_job")


def current_job() -> RunningJob:
    """The job this code runs for. Raises RotaError outside of a task's body."""
    try:
        return running.get()
    except LookupError:
        raise RotaError(
            "There is no current job here: current_job() works inside the body of a task while a worker runs it "
            f"(this is thread {threading.current_thread().name!r})."
        ) from None
