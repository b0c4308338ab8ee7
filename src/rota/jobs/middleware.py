"""What goes around every job of an app: around its run, where it sees the result or the error, and around its enqueue.

The first that is declared is the outermost: it is the first to see a job and the last to see what came of it. The body's
timeout is the body's; what is around it sees that as an error like any other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

from rota.conversion.plain import read_json
from rota.errors import ConfigurationError
from rota.jobs.by import check_key
from rota.jobs.checks import check_at, check_delay, check_priority, check_tags
from rota.jobs.given import check_mapping
from rota.jobs.job import NewJob
from rota.jobs.package import Package
from rota.jobs.running import RunningJob
from rota.postgres.names import check_name
from rota.service.filling import filling
from rota.service.inject import Key, wanted

__all__ = ["Middleware"]

M = TypeVar("M")
CallNext = Callable[[], Awaitable[Any]]
AroundRun = Callable[[RunningJob, CallNext], Awaitable[Any]]
AtEnqueue = Callable[[NewJob], NewJob]

# What it may change. All else makes the job this task's, or was made of the call as it was written.
_OPTIONS = ("queue", "priority", "delay", "at", "tags", "key", "retention", "wake")
_FIXED = [each.name for each in fields(NewJob) if each.name not in ("args", *_OPTIONS)]


class Middleware:
    """The middleware of one app. `tasks` are the app's."""

    def __init__(self, tasks: Package) -> None:
        self._tasks = tasks
        #: what goes around a run, with its name, the outermost first
        self.around_run: list[tuple[str, AroundRun]] = []
        self.at_enqueue: list[tuple[str, AtEnqueue]] = []

    def add(self, middleware: M) -> M:
        """Have this go around every job of the app: a function, or a class with methods `run` and `enqueue`, or one of them.

        `async def run(job, call_next)` goes around each attempt: `await call_next()` runs it and returns its result, or raises
        what it raised; what `run` returns or raises is what becomes of the attempt. `def enqueue(new)` is given each NewJob and
        returns it, changed or not, or raises what refuses it. An async function is a `run`, a plain one an `enqueue`.
        """
        name = getattr(middleware, "__qualname__", type(middleware).__qualname__).rpartition("<locals>.")[2]
        run = enqueue = None
        if inspect.isfunction(middleware):
            run, enqueue = (middleware, None) if inspect.iscoroutinefunction(middleware) else (None, middleware)
        else:
            made = middleware() if isinstance(middleware, type) else middleware
            run, enqueue = getattr(made, "run", None), getattr(made, "enqueue", None)
        if run is None and enqueue is None:
            raise ConfigurationError(
                f"Middleware {name!r} does nothing: it has neither `async def run(self, job, call_next)` nor `def enqueue(self, new)`."
            )
        if run is not None:
            if not inspect.iscoroutinefunction(run):
                raise ConfigurationError(
                    f"Middleware {name!r} cannot go around a run: let its `run` be an `async def`."
                )
            _check_takes(run, 2, f"Middleware {name!r} cannot go around a run: let it take (job, call_next)")
            self.around_run.append((name, filling(self._tasks.resources, run, f"Middleware {name!r}")))
        if enqueue is not None:
            if inspect.iscoroutinefunction(enqueue):
                raise ConfigurationError(
                    f"Middleware {name!r} cannot be asked at an enqueue: let its `enqueue` be a `def`, as sync code enqueues too."
                )
            _check_takes(enqueue, 1, f"Middleware {name!r} cannot be asked at an enqueue: let it take (new)")
            self.at_enqueue.append((name, enqueue))
        return middleware

    async def run(self, job: RunningJob, call: CallNext) -> Any:
        """Call this with all around it."""
        for _, around in reversed(self.around_run):
            call = functools.partial(around, job, call)
        return await call()

    def wants(self) -> list[Key]:
        """The resources that what goes around a run wants."""
        return [key for name, run in self.around_run for key in wanted(run, name).values()]

    def admit(self, new: NewJob) -> NewJob:
        """The job as it is to be enqueued. Raises what one of them raises, and InvalidArguments for what does not fit."""
        if not self.at_enqueue:
            return new
        admitted = new
        for name, enqueue in self.at_enqueue:
            admitted = enqueue(admitted)
            if not isinstance(admitted, NewJob):
                raise ConfigurationError(
                    f"Middleware {name!r} returned {admitted!r} for a job of {new.task!r}. Let it return the job, or raise why not."
                )
        return admitted if admitted is new else self._checked(new, admitted)

    def admit_all(self, new: Iterable[NewJob]) -> list[NewJob]:
        return [self.admit(each) for each in new] if self.at_enqueue else list(new)

    def _checked(self, new: NewJob, changed: NewJob) -> NewJob:
        if touched := [name for name in _FIXED if getattr(new, name) != getattr(changed, name)]:
            raise ConfigurationError(
                f"Middleware changed {', '.join(touched)} of a job of {new.task!r}, which makes it what it is. It may change the "
                f"arguments, {', '.join(_OPTIONS)}; to enqueue another job, do so and refuse this one."
            )
        if changed.delay is not None and changed.at is not None:
            raise ConfigurationError(
                f"Middleware gave a job of {new.task!r} both a delay and a time. Set the other to None."
            )
        checked = replace(
            changed,
            args=new.args if changed.args == new.args else self._arguments(changed),
            queue=check_name("queue", changed.queue, 200),
            priority=check_priority(changed.priority),
            delay=None if changed.delay is None else check_delay(changed.delay),
            at=None if changed.at is None else check_at(changed.at),
            tags=check_tags(changed.tags),
            key=None if changed.key is None else check_key(changed.key),
            retention=None if changed.retention is None else check_name("retention", changed.retention, 40),
        )
        return self._lined_up(new, checked)

    def _lined_up(self, new: NewJob, changed: NewJob) -> NewJob:
        """In the line of the key that it has now: the one that was given, or that of its arguments."""
        task = self._tasks.get(new.task)
        limit = None if task is None else task.options.limit
        if task is None or limit is None or (changed.key, changed.args) == (new.key, new.args):
            return changed

        def of_arguments(job: NewJob) -> str | None:
            args, kwargs = task.signature.decode(job.arguments)
            return limit.key_of(replace(job, key=None), task.signature, args, kwargs)

        follows = changed.key is None or (changed.key == new.key and of_arguments(new) == new.key)
        key = of_arguments(changed) if follows else changed.key
        return replace(changed, key=key, line=limit.line_of(new.task, key))

    def _arguments(self, changed: NewJob) -> str:
        """Changed arguments as they are stored, if they fit the task."""
        given = check_mapping(read_json(changed.args), "arguments")
        task = self._tasks.get(changed.task)
        if task is None:
            return changed.args
        args, kwargs = task.signature.read(
            given,
            f"Task {changed.task!r} was not enqueued, as middleware changed its arguments",
            whole=changed.lacks is None,
        )
        return task.signature.encode(args, kwargs, whole=changed.lacks is None)


def _check_takes(function: Callable[..., Any], count: int, refused: str) -> None:
    """Refuse what cannot be called with so many arguments, where it is declared rather than at the first job."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise ConfigurationError(f"{refused}. It is {function.__name__}{inspect.signature(function)}.") from error
