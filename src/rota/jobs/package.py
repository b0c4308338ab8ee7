"""A registry of tasks and what they share: what `@app.task(...)` accepts, and under which names its tasks are known."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from rota.clock import Duration, seconds
from rota.errors import ConfigurationError, UnknownTask
from rota.jobs.checks import check_priority, check_redact
from rota.jobs.definition import AsyncTask, Home, SyncTask, Task, TaskOptions
from rota.jobs.limit import Limit, read_limit
from rota.jobs.logs.level import Level, read_level
from rota.jobs.places import check_process_task
from rota.jobs.unique import AnyUnique, read_unique
from rota.postgres.names import check_name
from rota.retry import Retry
from rota.service.inject import Key, wanted
from rota.service.resources import Resources, Scope, define

__all__ = ["Package"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


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
        self.resources = Resources()
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
        unique: AnyUnique | str | bool | None = None,
        limit: Limit | int | None = None,
        executor: Literal["process"] | None = None,
        redact: list[str] | tuple[str, ...] = (),
        retention: str | None = None,
        logs: Level | None = None,
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
        unique: AnyUnique | str | bool | None = None,
        limit: Limit | int | None = None,
        executor: Literal["process"] | None = None,
        redact: list[str] | tuple[str, ...] = (),
        retention: str | None = None,
        logs: Level | None = None,
        **unknown: Any,
    ) -> Any:
        """Register a function, async or not, as a task; use it bare or with options.

        `name` is what the row carries (the function's qualified name without it); keep it when you move the function. `retry`
        is a Retry, a number of attempts, or None for one attempt. `timeout` bounds one attempt. `version` grows when the
        arguments change: workers leave jobs of a version above theirs to newer ones. `unique` says which jobs exist only once.
        `limit`, a Limit or a number, says how many run at once or begin in a period, wherever they run.
        `executor="process"` runs the body in a process of its own. Arguments named in `redact` are not shown to people.
        `retention` is the class by whose rules the settled job is kept. `logs` is the level from which on what the body logs is kept
        with the job, or "off"; by default that of the app.
        """
        if unknown:
            raise ConfigurationError(
                f"@task does not know {', '.join(sorted(unknown))}: its options are name, queue, priority, retry, timeout, version, "
                "unique, limit, executor, redact, retention and logs."
            )
        options = TaskOptions(
            queue=check_name("queue", queue, 200),
            priority=check_priority(priority),
            retry=_retry(retry),
            timeout=None if timeout is None else _positive(seconds(timeout, "timeout")),
            version=_version(version),
            unique=read_unique(unique),
            limit=read_limit(limit),
            executor=_executor(executor),
            redact=check_redact(redact),
            retention=None if retention is None else check_name("retention", retention, 40),
            logs=None if logs is None else read_level(logs, "logs"),
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

    @overload
    def resource(self, function: F, /) -> F: ...

    @overload
    def resource(self, *, scope: Scope = "worker") -> Callable[[F], F]: ...

    def resource(  # type: ignore[misc]  # the overloads say which combinations there are
        self, function: Any = None, /, *, scope: Scope = "worker"
    ) -> Any:
        """Register a function as the provider of what its return annotation says: `-> Pool`, or `-> AsyncIterator[Pool]`.

        It may be async or not, return it, yield it, or be a context manager; its own parameters may default to
        `rota.inject()`. With scope "worker" it is opened once, before the worker's first job, and closed after its last; with
        "job" for each attempt. The function stays what it is.
        """

        def register(function: F) -> F:
            self.resources.add(define(function, scope))
            return function

        return register if function is None else register(function)

    def needs(self, others: Mapping[str, Callable[..., Any]]) -> list[Key]:
        """What a worker opens for its tasks and these others. Raises ConfigurationError for what nothing provides."""
        asked = {who: wanted(function, who) for who, function in others.items()}
        self.resources.check({**{f"task {name!r}": task.wants for name, task in self.items()}, **asked})
        # a child opens what it needs itself, when it needs it
        ours = [task.wants for task in self.values() if task.options.executor != "process"]
        return [key for wants in (*ours, *asked.values()) for key in wants.values()]

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
        self.resources.join(registry.resources)
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
    if task.options.limit is not None:
        task.options.limit.check(task.signature)


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
    code = getattr(inspect.unwrap(function), "__code__", None)  # what an app puts around bodies is not where they are
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
