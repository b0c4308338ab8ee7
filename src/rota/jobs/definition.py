"""A task: a function that can be called here, or enqueued to be called elsewhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, UnknownTask
from rota.jobs.arguments import Signature
from rota.jobs.conversion.plain import dumps
from rota.jobs.enqueue import check_at, check_delay, check_name, check_priority, check_redact, check_tags
from rota.jobs.job import Job, NewJob
from rota.jobs.places import check_process_task
from rota.jobs.retry import Retry
from rota.jobs.unique import Unique, read_unique
from rota.postgres.foreign import foreign

__all__ = ["AsyncTask", "BoundTask", "JobOptions", "Package", "SyncTask", "Task", "TaskOptions"]

# Shorter texts show up by chance: blotting them out would only make an error unreadable.
_SHORTEST_SECRET = 4

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Upgrade = Callable[[dict[str, Any], int], Mapping[str, Any]]


class Home(Protocol):
    """Where a task's jobs go: the app it is registered on. `on` is a connection of the user's."""

    async def enqueue(self, new: NewJob, *, on: Any = None) -> Job[Any]: ...

    def enqueue_sync(self, new: NewJob, *, on: Any = None) -> Job[Any]: ...


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What `@app.task(...)` says about every job of the task."""

    queue: str = "default"
    priority: int = 0
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None
    version: int = 1
    unique: Unique | None = None
    executor: str | None = None
    redact: tuple[str, ...] = ()
    retention: str | None = None


class JobOptions(TypedDict, total=False):
    """What `task.using(...)` says about the next job."""

    delay: Duration | None
    at: datetime | None
    queue: str | None
    priority: int | None
    tags: list[str] | tuple[str, ...] | None
    wake: bool
    unique: Unique | str | bool | None
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
        self.signature = Signature(function, name)
        self._home: Home | None = None
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The call as a value, checked now: for `app.enqueue_many`."""
        return self._next.bind(*args, **kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Have a worker make this call. Raises InvalidArguments before anything is stored when the call does not fit."""
        return await self._next.enqueue(*args, **kwargs)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        return self._next.enqueue_sync(*args, **kwargs)

    def using(self, **options: Unpack[JobOptions]) -> BoundTask[P, R_co]:
        """The same task with options for the next job: `task.using(delay="5m").enqueue(7)`.

        `delay` or `at`: when it is due. `queue`, `priority`: the higher runs first. `unique`: a Unique, a key, or True for all
        arguments. `key`: what it is ordered and limited by. `tags`: texts to find it by. `wake=False` leaves it to the workers'
        polling.
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

    def secrets_in(self, payload: Any) -> list[str]:
        """The texts of redacted arguments, to be blotted out where they show up."""
        values = [payload.get(name) for name in self.options.redact] if isinstance(payload, dict) else []
        texts = [value if isinstance(value, str) else dumps(value) for value in values if value is not None]
        return [text for text in texts if len(text) >= _SHORTEST_SECRET]

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
    unique: Unique | None = None
    connection: Any = None

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        signature = self.task.signature
        new = replace(self.template, args=signature.encode(args, kwargs))
        if self.unique is not None:
            new = replace(new, unique=self.unique.of(self.task.name, signature, args, kwargs))
        return new

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        return await self.task.home.enqueue(self.bind(*args, **kwargs), on=self.connection)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        return self.task.home.enqueue_sync(self.bind(*args, **kwargs), on=self.connection)

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
            changes["key"] = check_name("key", str(key), 500)
        if "wake" in options:
            changes["wake"] = bool(options["wake"])
        unique = self.unique
        if "unique" in options:
            unique = read_unique(options["unique"])
            if unique is not None:
                unique.check(self.task.signature)
        return replace(self, template=replace(self.template, **changes), unique=unique)

    def on(self, connection: Any) -> Self:
        """The same in the transaction of a connection of yours; see Task.on."""
        foreign(connection)  # refuses what is none
        return replace(self, connection=connection)


class Decorator(Protocol):
    """What `@app.task(...)` returns: keeps the function's signature and result type."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class Package(Mapping[str, Task[..., Any]]):
    """A registry of tasks. An app has one; a library makes its own and lets an app take it in, without importing it."""

    def __init__(self, name: str = "") -> None:
        """Tasks of a named package are called `name.function`."""
        self.name = check_name("a package name", name, 200) if name else ""
        self._tasks: dict[str, Task[..., Any]] = {}
        self._home: Home | None = None
        self._joined: Package | None = None

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: Retry | int | None = ...,
        timeout: Duration | None = None,
        version: int = 1,
        unique: Unique | str | bool | None = None,
        executor: Literal["process"] | None = None,
        redact: list[str] | tuple[str, ...] = (),
        retention: str | None = None,
    ) -> Decorator: ...

    def task(  # type: ignore[misc]  # the overloads say which combinations there are
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: Retry | int | None = Retry(),  # noqa: B008 - frozen, and shown as the default it is
        timeout: Duration | None = None,
        version: int = 1,
        unique: Unique | str | bool | None = None,
        executor: Literal["process"] | None = None,
        redact: list[str] | tuple[str, ...] = (),
        retention: str | None = None,
        **unknown: Any,
    ) -> Any:
        """Register a function, async or not, as a task; use it bare or with options.

        `name` is what the row carries (the function's qualified name without it); keep it when you move the function. `retry`
        is a Retry, a number of attempts, or None for one attempt. `timeout` bounds one attempt. `version` grows when the
        arguments change: workers leave jobs of a version above theirs to newer ones. `unique` says which jobs exist only once.
        `executor="process"` runs the body in a process of its own. Arguments named in `redact` are not shown to people.
        `retention` is the class by whose rules the settled job is kept.
        """
        if unknown:
            raise ConfigurationError(
                f"@task does not know {', '.join(sorted(unknown))}: its options are name, queue, priority, retry, timeout, version, "
                "unique, executor, redact and retention."
            )
        options = TaskOptions(
            queue=check_name("queue", queue, 200),
            priority=check_priority(priority),
            retry=_retry(retry),
            timeout=None if timeout is None else _positive(seconds(timeout, "timeout")),
            version=_version(version),
            unique=read_unique(unique),
            executor=_executor(executor),
            redact=check_redact(redact),
            retention=None if retention is None else check_name("retention", retention, 40),
        )

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            if not callable(function) or isinstance(function, type | Task):
                raise ConfigurationError(f"{function!r} cannot be a task: a task is a function, async or not.")
            kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
            task: Task[..., Any] = kind(function, self._named(function, name), options)
            _check_names(task)
            if options.executor == "process" and (why := check_process_task(function)):
                raise ConfigurationError(f"Task {task.name!r} cannot run in a process of its own: it {why}.")
            return self.add(task)

        return register if function is None else register(function)

    def add(self, task: Task[..., Any]) -> Task[..., Any]:
        """Take in a task; two of one name cannot be told apart by their rows, so the second is refused."""
        known = self._tasks.get(task.name)
        if known is not None and known is not task and not _same_source(known.function, task.function):
            raise ConfigurationError(
                f"Two tasks are called {task.name!r}: {_where(known.function)} and {_where(task.function)}. "
                "Give one of them another name with @task(name=...)."
            )
        self._tasks[task.name] = task
        if self._home is not None:
            task.settle_in(self._home)
        if self._joined is not None:
            self._joined.add(task)
        return task

    def settle_in(self, home: Home) -> None:
        """Be an app's own registry from now on."""
        self._home = home
        for task in self._tasks.values():
            task.settle_in(home)

    def join(self, registry: Package) -> None:
        """Belong to an app's registry from now on, with all tasks there are and will be."""
        if self._joined is not None and self._joined is not registry:
            raise ConfigurationError(
                f"Package {self.name!r} belongs to another app already; it can be taken in by one only."
            )
        self._joined = registry
        for task in self._tasks.values():
            registry.add(task)

    def find(self, name: str) -> Task[..., Any]:
        try:
            return self._tasks[name]
        except KeyError:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise UnknownTask(
                f"This process has no task called {name!r}. It knows: {known}. Is its module imported?"
            ) from None

    def _named(self, function: Callable[..., Any], name: str | None) -> str:
        given = (
            name
            if name is not None
            else getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
        )
        return check_name("a task name", f"{self.name}.{given}" if self.name else given, 500)

    def __getitem__(self, name: str) -> Task[..., Any]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def _retry(retry: Retry | int | None) -> Retry:
    if retry is None:
        return Retry(attempts=1)
    if isinstance(retry, Retry):
        return retry
    return Retry(attempts=retry)


def _version(version: Any) -> int:
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 32767:
        raise ConfigurationError(f"version cannot be {version!r}: it is a whole number from 1 to 32767.")
    return version


def _executor(executor: Any) -> str | None:
    if executor not in (None, "process"):
        raise ConfigurationError(
            f"executor cannot be {executor!r}: it is 'process', or None for the event loop (async) or a thread (sync)."
        )
    return executor  # type: ignore[no-any-return]


def _check_names(task: Task[..., Any]) -> None:
    """What the options say of parameters must speak of parameters there are."""
    if unknown := set(task.options.redact) - set(task.signature.names):
        raise ConfigurationError(
            f"Task {task.name!r} cannot redact {', '.join(sorted(unknown))}: it has no such parameter, only "
            f"{', '.join(task.signature.names) or 'none at all'}."
        )
    if task.options.unique is not None:
        task.options.unique.check(task.signature)


def _positive(timeout: float) -> float:
    if timeout <= 0:
        raise ConfigurationError(
            f"timeout cannot be {timeout!r}: it is a duration longer than nothing, or None for no limit."
        )
    return timeout


def _same_source(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """A module imported twice (as `__main__` and by name, or reloaded) defines the same task again."""
    return _where(one) == _where(other)


def _where(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
