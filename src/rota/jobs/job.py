"""A job as its owner sees it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from rota.clock import Duration
from rota.errors import RotaError
from rota.jobs.codec import Codec
from rota.jobs.conversion.plain import read_json

__all__ = ["AttemptError", "Job", "JobId", "NewJob", "NewUnique", "OnFailure", "Owner", "Source"]

if TYPE_CHECKING:
    from rota.jobs.arguments import Signature
    from rota.jobs.chains import Chain, Child

JobId = int
OnFailure = Literal["block", "cancel", "run"]
R_co = TypeVar("R_co", covariant=True)


class Source(Protocol):
    """The task that a new job is a call of."""

    @property
    def name(self) -> str: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def home(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class NewUnique:
    """What a new job says about others of its task with the same key."""

    key: str
    states: tuple[str, ...]
    within: float | None
    conflict: str
    #: of the calls that are collapsed, the one whose arguments count: first or last
    keep: str | None = None
    #: how many seconds after the first call the last may put the job off to
    longest: float | None = None
    #: how many seconds after a job has begun the next one may
    hold: float | None = None


@dataclass(frozen=True)  # without slots: made by copying what is the same in all calls of a task
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
    version: int = 1
    key: str | None = None
    unique: NewUnique | None = None
    retention: str | None = None
    redact: tuple[str, ...] = ()
    lost_limit: int | None = None
    #: the line it waits in for its turn
    line: UUID | None = None
    #: the batch it belongs to, the batch it waits for, and the argument that takes what came of that
    batch: int | None = None
    after: int | None = None
    takes: str | None = None
    #: the parameter that is not given: a job before it gives it, see `then`
    lacks: str | None = None
    #: the task it is a call of
    source: Source | None = field(default=None, repr=False, compare=False)

    def then(self, child: Child, *, on_failure: OnFailure = "block", **rest: Any) -> Chain:
        """This job, and when it has succeeded another: `resize.bind(7).then(publish)`.

        `child` is a task, a call of one made by `bind`, a chain or a group. What this job returns is given to its first parameter
        that has no value; `rest` are values for others of a task. `on_failure` says what becomes of it when this job is dead: it
        waits until someone has decided about the letter (block), is cancelled (cancel), or runs all the same (run).
        """
        from rota.jobs.chains import Chain

        return Chain.of(self, child, on_failure, rest)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as they are stored: plain JSON."""
        arguments: dict[str, Any] = json.loads(self.args)
        return arguments

    def with_arguments(self, **changes: Any) -> NewJob:
        """The same call with these arguments changed, or added: for middleware. The values are plain JSON."""
        return replace(self, args=json.dumps(self.arguments | changes))

    def but(self, **changes: Any) -> NewJob:
        """As `dataclasses.replace`, for the hot path: that one takes several times as long."""
        made = object.__new__(NewJob)
        vars(made).update(_told(self), **changes)
        return made

    def calling(self, args: str) -> NewJob:
        """The same with these arguments. It remembers that nothing else is different, see `kind_of_each`."""
        said = vars(self)
        told = said.get("_told")
        if told is None:
            told = said["_told"] = _told(self)
        made = object.__new__(NewJob)
        vars(made).update(told, args=args, _kind=self)
        return made


def _told(record: Any) -> dict[str, Any]:
    """What a record says that is not said by default: what its class says need not be copied for each."""
    names, default = record.__dataclass_fields__, type(record)
    return {
        name: value
        for name, value in vars(record).items()
        if name in names and value is not getattr(default, name, _NO_DEFAULT)
    }


_NO_DEFAULT = object()


def kind_of_each(new: Iterable[NewJob]) -> list[NewJob]:
    """For each a job that it differs from in its arguments alone: the same one for many, where it is known that they are alike."""
    return [vars(each).get("_kind", each) for each in new]


def kinds(new: Iterable[NewJob]) -> list[NewJob]:
    """The same, each once: what is true of these, arguments aside, is true of all."""
    return list({id(kind): kind for kind in kind_of_each(new)}.values())


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


class Owner(Protocol):
    """What a job in hand needs of the app it came from."""

    @property
    def codec(self) -> Codec | None: ...

    def redacted(self, task: str) -> Sequence[str]:
        """The parameters that the app's task of this name redacts, if it has one."""
        ...

    def wait(self, job: Job[Any], timeout: Duration | None) -> Awaitable[Any]: ...

    def wait_sync(self, job: Job[Any], timeout: Duration | None) -> Any: ...

    def refresh(self, job: Job[Any]) -> Awaitable[Job[Any]]: ...

    def refresh_sync(self, job: Job[Any]) -> Job[Any]: ...

    def cancel(self, id: JobId, reason: str = "") -> Awaitable[Job[Any]]: ...

    def cancel_sync(self, id: JobId, reason: str = "") -> Job[Any]: ...

    def retry(self, id: JobId) -> Awaitable[Job[Any]]: ...

    def retry_sync(self, id: JobId) -> Job[Any]: ...


class _Arguments:
    """The arguments of a job that was just enqueued, read from their text by whoever asks first: most callers do not."""

    def __get__(self, job: Job[Any] | None, owner: type[Job[Any]]) -> Any:
        said = {} if job is None else vars(job)
        if "_text" not in said:
            return None  # which is the default of the field
        args = said["args"] = read_json(said["_text"])
        return args


@dataclass(frozen=True)  # without slots, as NewJob
class Job(Generic[R_co]):
    """A job as it was when it was read: queued, blocked, running, succeeded, dead or cancelled."""

    id: JobId
    task: str
    queue: str
    state: str
    priority: int
    attempt: int
    created_at: datetime
    due_at: datetime
    args: Any = _Arguments()  # noqa: RUF009
    result: R_co | None = None
    errors: tuple[AttemptError, ...] = ()
    losses: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    member: UUID | None = None
    tags: tuple[str, ...] = ()
    version: int = 1
    key: str | None = None
    #: how far it says it is, from 0 to 1, and what it says it does
    progress: float | None = None
    progress_note: str | None = None
    cancel_requested_at: datetime | None = None
    #: why it was, or is to be, cancelled
    reason: str | None = None
    #: the dead letter or settled job that this one repeats
    origin: JobId | None = None
    retention: str | None = None
    #: the schedule that gave it out, and the moment it stands for
    schedule: str | None = None
    slot_at: datetime | None = None
    #: the trace it was enqueued in, as W3C writes it: traceparent, and after a space tracestate if there is one
    trace_context: str | None = None
    #: True when enqueueing found this job under its unique key, and added none
    existing: bool = False
    _app: Owner | None = field(default=None, repr=False, compare=False)

    async def wait(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job is settled and return its result; raises JobFailed, JobCancelled or TimeoutError."""
        result: R_co = await self._owner().wait(self, timeout)
        return result

    def wait_sync(self, timeout: Duration | None = None) -> R_co:
        result: R_co = self._owner().wait_sync(self, timeout)
        return result

    async def refresh(self) -> Job[R_co]:
        """The same job as it is now."""
        return await self._owner().refresh(self)

    def refresh_sync(self) -> Job[R_co]:
        return self._owner().refresh_sync(self)

    async def cancel(self, reason: str = "") -> Job[R_co]:
        """Have it never run, or stop running; returns it as it is then. See app.jobs.cancel."""
        return await self._owner().cancel(self.id, reason)

    def cancel_sync(self, reason: str = "") -> Job[R_co]:
        return self._owner().cancel_sync(self.id, reason)

    async def retry(self) -> Job[R_co]:
        """Have it tried (again) now; returns the job that will run. See app.jobs.retry."""
        return await self._owner().retry(self.id)

    def retry_sync(self) -> Job[R_co]:
        return self._owner().retry_sync(self.id)

    def _owner(self) -> Owner:
        if self._app is None:
            raise RotaError(
                f"Job {self.id} was not read through an app, so it cannot ask for news. Use app.jobs.get({self.id})."
            )
        return self._app


def maker(like: Job[Any]) -> Callable[[JobId, str], Job[Any]]:
    """Makes jobs that are like this one but for their id, and their arguments, which are given as JSON text.

    For many at a time: making each from its fields takes several times as long.
    """
    told = _told(like)

    def made(id: JobId, args: str) -> Job[Any]:
        job: Job[Any] = object.__new__(Job)
        vars(job).update(told, id=id, _text=args)
        return job

    return made
