"""A task: a function that can be called here, or enqueued to be called elsewhere."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack

from rota.blot import forms
from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.arguments import Signature
from rota.jobs.by import check_key
from rota.jobs.checks import check_at, check_delay, check_priority, check_tags
from rota.jobs.job import Job, NewJob, call_of
from rota.jobs.limit import Limit
from rota.jobs.redact import texts_in
from rota.jobs.unique import AnyUnique, Debounce, Throttle, read_unique
from rota.postgres.foreign import foreign
from rota.postgres.names import check_name
from rota.retry import Retry
from rota.service.inject import wanted

__all__ = ["AsyncTask", "BoundTask", "Home", "JobOptions", "SyncTask", "Task", "TaskOptions"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Upgrade = Callable[[dict[str, Any], int], Mapping[str, Any]]


class Home(Protocol):
    """Where a task's jobs go: the app it is registered on. `on` is a connection of the user's."""

    async def enqueue(self, new: NewJob, *, on: Any = None) -> Job[Any]: ...

    def enqueue_sync(self, new: NewJob, *, on: Any = None) -> Job[Any]: ...

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What `@app.task(...)` says about every job of the task."""

    queue: str = "default"
    priority: int = 0
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None
    version: int = 1
    unique: AnyUnique | None = None
    limit: Limit | None = None
    executor: str | None = None
    redact: tuple[str, ...] = ()
    retention: str | None = None
    #: the level from which on log records are kept, None for that of the app
    logs: int | None = None


class JobOptions(TypedDict, total=False):
    """What `task.using(...)` says about the next job."""

    delay: Duration | None
    at: datetime | None
    queue: str | None
    priority: int | None
    tags: list[str] | tuple[str, ...] | None
    wake: bool
    unique: AnyUnique | str | bool | None
    key: str | int | None


class Task(Generic[P, R_co]):
    """A registered function. Calling it runs it here and now; `enqueue` has a worker run it."""

    def __init__(self, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.version = options.version
        self._upgrade: Upgrade | None = None
        self.is_async = inspect.iscoroutinefunction(function)
        #: the parameters that a worker fills in with resources
        self.wants = wanted(function, f"Task {name!r}")
        self.signature = Signature(function, name, skip=frozenset(self.wants), redact=options.redact)
        self._home: Home | None = None
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The call as a value, checked now: for `app.enqueue_many`, batches and chains.

        One argument may be left out where a job before it in a chain gives that: `a.bind(1).then(b.bind(x=2))`.
        """
        return self._next._called(args, kwargs, whole=False)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Have a worker make this call. Raises InvalidArguments before anything is stored when the call does not fit."""
        return await self._next.enqueue(*args, **kwargs)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        return self._next.enqueue_sync(*args, **kwargs)

    def using(self, **options: Unpack[JobOptions]) -> BoundTask[P, R_co]:
        """The same task with options for the next job: `task.using(delay="5m").enqueue(7)`.

        `delay` or `at`: when it is due. `queue`, `priority`: the higher runs first. `unique`: a Unique, Debounce or Throttle, a
        key, or True for all arguments. `key`: what it is ordered and limited by. `tags`: texts to find it by. `wake=False` leaves
        it to the workers' polling.
        """
        return self._next.using(**options)

    def on(self, connection: Any) -> BoundTask[P, R_co]:
        """The same task, enqueued in the transaction that is open on a connection of yours: the job is there when you commit.

        Takes psycopg, asyncpg and Django connections, and SQLAlchemy's sessions and connections.
        """
        return self._next.on(connection)

    def upgrade(self, function: Upgrade) -> Upgrade:
        """Register how stored arguments of an older version become those of this one: `(arguments, version) -> arguments`."""
        self._upgrade = function
        return function

    def upgraded(self, payload: Any, version: int) -> Any:
        """Stored arguments as this version takes them. What the registered function raises fails that one job."""
        return payload if version == self.version or self._upgrade is None else self._upgrade(payload, version)

    def secrets_in(self, payload: Any, version: int) -> list[str]:
        """The texts of redacted arguments, to be blotted out where they show up: as they are stored, and as the body has them."""
        if not self.options.redact or not isinstance(payload, dict):
            return []
        # one that this version does not know may have been redacted under that name
        hidden = {name for name in payload if name in self.options.redact or name not in self.signature.names}
        found = list(texts_in([payload[name] for name in hidden]))
        with contextlib.suppress(Exception):  # arguments that do not fit are what the error is about
            args, kwargs = self.signature.decode(self.upgraded(payload, version))
            values = self.signature.values(args, kwargs)
            found += texts_in([values[name] for name in self.options.redact])
        return forms(found)

    @functools.cached_property
    def _next(self) -> BoundTask[P, R_co]:
        options = self.options
        template = NewJob(
            task=self.name,
            args="",
            queue=options.queue,
            priority=options.priority,
            version=options.version,
            retention=options.retention,
            redact=options.redact,
            lost_limit=options.retry.losses,
            source=self,
        )
        return BoundTask(self, template, options.unique)

    @property
    def home(self) -> Home:
        if self._home is None:
            raise ConfigurationError(
                f"Task {self.name!r} belongs to a package that no app has taken in. Call app.package(<the package>) before enqueueing."
            )
        return self._home

    def settle_in(self, home: Home) -> None:
        """Belong to an app from now on."""
        if self._home is not None and self._home is not home:
            raise ConfigurationError(
                f"Task {self.name!r} belongs to another app already; a package can be taken in by one app only."
            )
        if self._home is None:
            self.function = home.around(self.function)
        self._home = home

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


class AsyncTask(Task[P, R_co]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        result: Coroutine[Any, Any, R_co] = self.function(*args, **kwargs)
        return result


class SyncTask(Task[P, R_co]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        result: R_co = self.function(*args, **kwargs)
        return result


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R_co]):
    """A task with the options of its next job."""

    task: Task[P, R_co]
    template: NewJob
    unique: AnyUnique | None = None
    connection: Any = None

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """See Task.bind."""
        return self._called(args, kwargs, whole=False)

    def _called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, whole: bool) -> NewJob:
        """The call as a value. One that is not `whole` may lack an argument."""
        signature, limit = self.task.signature, self.task.options.limit
        written, lacks = signature.short(args, kwargs), None
        if written is None:
            written, lacks = (signature.encode(args, kwargs), None) if whole else signature.encode_open(args, kwargs)
        if lacks is None and self.unique is None and limit is None:
            return call_of(self.template, written)
        changes: dict[str, Any] = {"args": written, "lacks": lacks}
        if lacks is not None:
            self._refuse_late_key(lacks)
        if self.unique is not None:
            changes["unique"] = self.unique.of(self.task.name, signature, args, kwargs)
        if isinstance(self.unique, Debounce):
            changes["delay"] = seconds(self.unique.period)
        if limit is not None:
            key = changes["key"] = limit.key_of(self.template, signature, args, kwargs)
            changes["line"] = limit.line_of(self.task.name, key)
        return self.template.but(**changes)

    def _refuse_late_key(self, lacks: str) -> None:
        """A key is known when the job is put, and so are the arguments it is made of."""
        limit = self.task.options.limit
        named = self.unique is None or (
            isinstance(self.unique.by, str) and self.unique.by not in self.task.signature.names
        )
        unique = not named
        if unique or (limit is not None and limit.by is not None and self.template.key is None):
            raise InvalidArguments(
                f"Task {self.task.name!r} was not enqueued: {lacks} is missing, and its {'unique ' if unique else ''}key is made of "
                f"its arguments. Give {lacks}, or name the key: using({'unique' if unique else 'key'}=...)."
            )

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        return await self.task.home.enqueue(self._called(args, kwargs, whole=True), on=self.connection)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        return self.task.home.enqueue_sync(self._called(args, kwargs, whole=True), on=self.connection)

    def using(self, **options: Unpack[JobOptions]) -> Self:
        """The same with more options; see Task.using."""
        if unknown := options.keys() - JobOptions.__annotations__.keys():
            raise ConfigurationError(
                f"{self.task.name!r} cannot be enqueued using {', '.join(sorted(unknown))}: "
                f"the options are {', '.join(JobOptions.__annotations__)}."
            )
        delay, at = options.get("delay"), options.get("at")
        if delay is not None and at is not None:
            raise ConfigurationError(
                f"{self.task.name!r} cannot be enqueued with both delay={delay!r} and at={at!r}: give one of them."
            )
        changes: dict[str, Any] = {}
        if delay is not None or at is not None:
            changes["delay"] = None if delay is None else check_delay(delay)
            changes["at"] = None if at is None else check_at(at)
        if (queue := options.get("queue")) is not None:
            changes["queue"] = check_name("queue", queue, 200)
        if (priority := options.get("priority")) is not None:
            changes["priority"] = check_priority(priority)
        if (tags := options.get("tags")) is not None:
            changes["tags"] = check_tags(tags)
        if (key := options.get("key")) is not None:
            changes["key"] = check_key(key)
        if "wake" in options:
            changes["wake"] = bool(options["wake"])
        unique = self.unique
        if "unique" in options:
            unique = read_unique(options["unique"])
            if unique is not None:
                unique.check(self.task.signature)
        template = replace(self.template, **changes)
        if isinstance(unique, Debounce | Throttle) and (template.delay is not None or template.at is not None):
            raise ConfigurationError(
                f"{self.task.name!r} cannot be enqueued with a delay or a time of its own: its {type(unique).__name__} says when it "
                "is due. Leave one of them out; unique=None undoes what the task says."
            )
        return replace(self, template=template, unique=unique)

    def on(self, connection: Any) -> Self:
        """The same in the transaction of a connection of yours; see Task.on."""
        foreign(connection)  # refuses what is none
        return replace(self, connection=connection)
