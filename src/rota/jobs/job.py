"""A job as its owner sees it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar
from uuid import UUID

from rota.clock import Duration
from rota.conversion.plain import read_json
from rota.errors import RotaError
from rota.jobs.codec import Codec

__all__ = ["AttemptError", "Job", "JobId", "NewJob", "NewUnique", "OnFailure", "Owner", "Source"]

if TYPE_CHECKING:
    from rota.jobs.arguments import Signature
    from rota.jobs.chains import Chain, Child

JobId = int
OnFailure = Literal["block", "cancel", "run"]
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


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


class _Like:
    """May be like another of its class: what it was not given is asked of that one.

    Of a thousand jobs that are put together each has an id and arguments, and all else is the same. So one is made in a tenth of
    the time that its constructor takes.
    """

    _like: ClassVar[Any] = None

    if not TYPE_CHECKING:  # who checks types knows what there is

        def __getattr__(self, name: str) -> Any:
            if self._like is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            return getattr(self._like, name)


def _asks(cls: type[T]) -> type[T]:
    """Leave the defaults of its fields to its constructor: in the class they would be found before the other is asked."""
    for each in fields(cls):  # type: ignore[arg-type]
        if each.name in vars(cls):
            delattr(cls, each.name)
    return cls


_put = object.__setattr__  # frozen is for others
_like = attrgetter("_like")


@_asks
@dataclass(frozen=True)
class NewJob(_Like):
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
        vars(made).update(vars(self._like or self), **changes)
        if self._like is not None and "args" not in changes:
            _put(made, "args", self.args)
        return made


def call_of(template: NewJob, args: str) -> NewJob:
    """The same with these arguments; it is known of it that nothing else is different."""
    made = object.__new__(NewJob)
    _put(made, "args", args)
    _put(made, "_like", template)
    return made


def kind_of(new: NewJob) -> NewJob:
    """What it is like, if it is known of it that only the arguments differ; else itself."""
    return new._like or new


def kind_of_each(new: Sequence[NewJob]) -> list[NewJob]:
    return [like or each for like, each in zip(map(_like, new), new, strict=True)]


def kinds(new: Sequence[NewJob]) -> list[NewJob]:
    """The same, each once: what is true of these, arguments aside, is true of all."""
    like = list(map(_like, new))
    if like and like[0] is not None and like.count(like[0]) == len(like):
        return [like[0]]
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


@_asks
@dataclass(frozen=True)
class Job(_Like, Generic[R_co]):
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
    #: the arguments of one that was just enqueued, which most callers never look at
    _text: ClassVar[str | None] = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "args" and self._text is not None:
                args = read_json(self._text)
                _put(self, "args", args)
                return args
            return super().__getattr__(name)

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


def enqueued(like: Job[Any], ids: Sequence[JobId], args: Sequence[str]) -> list[Job[Any]]:
    """Jobs like this one, under these ids, with the arguments of these texts."""
    jobs: list[Any] = list(map(object.__new__, repeat(Job, len(ids))))
    for name, values in (("id", ids), ("_text", args), ("_like", repeat(like))):
        deque(map(object.__setattr__, jobs, repeat(name), values), maxlen=0)  # a loop that no line of Python is run for
    return jobs
