"""A task: a function that can be called here, or enqueued to be called elsewhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, UnknownTask
from rota.jobs.arguments import Signature
from rota.jobs.enqueue import check_at, check_delay, check_name, check_priority, check_tags
from rota.jobs.job import Job, NewJob
from rota.jobs.retry import Retry

__all__ = ["AsyncTask", "BoundTask", "Package", "SyncTask", "Task", "TaskOptions"]

P = ParamSpec("P")
R = TypeVar("R")


class Home(Protocol):
    """Where a task's jobs go: the app it is registered on."""

    async def enqueue(self, new: NewJob) -> Job[Any]: ...

    def enqueue_sync(self, new: NewJob) -> Job[Any]: ...


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What `@app.task(...)` says about every job of the task."""

    queue: str = "default"
    priority: int = 0
    retry: Retry = field(default_factory=Retry)
    timeout: float | None = None


class Task(Generic[P, R]):
    """A registered function. Calling it runs it here and now; `enqueue` has a worker run it."""

    def __init__(self, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(function, name)
        self._home: Home | None = None
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The call as a value, checked now: for `app.enqueue_many`."""
        return self._new(self.signature.encode(args, kwargs))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Have a worker make this call. Raises InvalidArguments before anything is stored when the call does not fit."""
        return await self.home.enqueue(self._new(self.signature.encode(args, kwargs)))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        return self.home.enqueue_sync(self._new(self.signature.encode(args, kwargs)))

    def using(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tags: list[str] | tuple[str, ...] | None = None,
        wake: bool = True,
        **unknown: Any,
    ) -> BoundTask[P, R]:
        """The same task with options for the next job: `task.using(delay="5m").enqueue(7)`.

        `delay` and `at` exclude each other; a higher `priority` runs first; `wake=False` leaves it to the workers' polling.
        """
        if unknown:
            raise ConfigurationError(
                f"{self.name!r} cannot be enqueued using {', '.join(sorted(unknown))}: "
                "the options are delay, at, queue, priority, tags and wake."
            )
        if delay is not None and at is not None:
            raise ConfigurationError(
                f"{self.name!r} cannot be enqueued with both delay={delay!r} and at={at!r}: give one of them."
            )
        new = self._new("")
        return BoundTask(
            self,
            replace(
                new,
                delay=None if delay is None else check_delay(delay),
                at=None if at is None else check_at(at),
                queue=new.queue if queue is None else check_name("queue", queue, 200),
                priority=new.priority if priority is None else check_priority(priority),
                tags=() if tags is None else check_tags(tags),
                wake=wake,
            ),
        )

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

    def _new(self, args: str) -> NewJob:
        return NewJob(task=self.name, args=args, queue=self.options.queue, priority=self.options.priority)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


class AsyncTask(Task[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return result


class SyncTask(Task[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


@dataclass(frozen=True, slots=True)
class BoundTask(Generic[P, R]):
    """A task with the options of its next job."""

    task: Task[P, R]
    template: NewJob

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        return replace(self.template, args=self.task.signature.encode(args, kwargs))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        return await self.task.home.enqueue(replace(self.template, args=self.task.signature.encode(args, kwargs)))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        return self.task.home.enqueue_sync(replace(self.template, args=self.task.signature.encode(args, kwargs)))


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
        **unknown: Any,
    ) -> Any:
        """Register a function, async or not, as a task; use it bare or with options.

        `name` is what the row carries (the function's qualified name without it); keep it when you move the function. `retry`
        is a Retry, a number of attempts, or None for one attempt. `timeout` bounds one attempt.
        """
        if unknown:
            raise ConfigurationError(
                f"@task does not know {', '.join(sorted(unknown))}: its options are name, queue, priority, retry and timeout."
            )
        options = TaskOptions(
            queue=check_name("queue", queue, 200),
            priority=check_priority(priority),
            retry=_retry(retry),
            timeout=None if timeout is None else _positive(seconds(timeout, "timeout")),
        )

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            if not callable(function) or isinstance(function, type | Task):
                raise ConfigurationError(f"{function!r} cannot be a task: a task is a function, async or not.")
            kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
            return self.add(kind(function, self._named(function, name), options))

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
            else getattr(function, "__qualname__", type(function).__name__).replace(".<locals>", "")
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
