"""Things that bodies share: opened once per worker, or once per call, and handed to the parameters that ask for them by type.

What lives as long as a worker is opened before it becomes a member of the cluster, in the order of who needs whom, and closed
the other way round when it has left: no job is claimed that would fail for want of one, and one that does not close holds up
nobody else. Each lives in a task of its own, which opens and closes it, as some (task groups, cancel scopes) demand.

What lives as long as a call is opened before the body and closed after it, where the body is: on the event loop for a
coroutine; for a function in its thread, unless it is async. It sees what the body raised, and what it raises itself is as if
the body had.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import contextvars
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

from rota.errors import ConfigurationError, ResourceUnavailable, RotaError
from rota.service.inject import Key, key_of, resolved, wanted

__all__ = ["Opened", "Resource", "Resources", "Scope", "define", "refuse_overridden"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Scope = Literal["worker", "job"]
_Filling = Generator[tuple["Resource", dict[str, Any]], Any, dict[str, Any]]

_YIELDED = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
# A thread that waits for the event loop looks this often whether that is still there.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """A function that provides something, and how."""

    function: Callable[..., Any]
    provides: Key
    scope: Scope
    wants: Mapping[str, Key]
    #: whether what it returns is to be entered and left
    is_entered: bool
    is_async: bool

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", self.function)).rpartition("<locals>.")[2]

    @property
    def where(self) -> str:
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{self.name} ({code.co_filename}:{code.co_firstlineno})" if code else repr(self.function)

    async def open(self, given: Mapping[str, Any], stack: AsyncExitStack) -> Any:
        """Open it with what it wants; the stack closes it."""
        made = self.function(**given)
        if inspect.isawaitable(made):
            made = await made
        if not self.is_entered:
            return made
        if inspect.isasyncgen(made):
            made = _context_of(made)
        if hasattr(made, "__aenter__"):
            return await stack.enter_async_context(made)
        return stack.enter_context(_context_of_sync(made))

    def open_sync(self, given: Mapping[str, Any], stack: ExitStack) -> Any:
        """The same for one that is not async."""
        made = self.function(**given)
        return stack.enter_context(_context_of_sync(made)) if self.is_entered else made


def _context_of(made: AsyncIterator[Any]) -> AbstractAsyncContextManager[Any]:
    return contextlib.asynccontextmanager(lambda: made)()


def _context_of_sync(made: Any) -> AbstractContextManager[Any]:
    return contextlib.contextmanager(lambda: made)() if inspect.isgenerator(made) else made


def define(function: Callable[..., Any], scope: Any) -> Resource:
    """Read what a function provides from its return annotation. Raises ConfigurationError."""
    who = f"Resource {getattr(function, '__qualname__', function)!r}"
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(
            f"{who} cannot be a resource: it is a function whose return annotation says what it provides."
        )
    if scope not in get_args(Scope):
        raise ConfigurationError(
            f"{who} cannot have scope={scope!r}: it is 'worker', opened once per worker, or 'job', opened for each attempt."
        )
    code = inspect.unwrap(function)
    yields = inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)
    said = inspect.signature(function).return_annotation
    if said is inspect.Signature.empty:
        raise ConfigurationError(
            f"{who} does not say what it provides: annotate what it returns or yields, such as -> Pool."
        )
    try:
        annotation = resolved(said, function)
        origin = typing.get_origin(annotation)
        entered = yields or origin in (AbstractContextManager, AbstractAsyncContextManager)
        if yields and (origin not in _YIELDED or not typing.get_args(annotation)):
            raise ValueError("it yields what it provides: write Iterator[Pool], or AsyncIterator[Pool] if it is async")
        provides = key_of(typing.get_args(annotation)[0] if entered else annotation)
    except Exception as error:
        raise ConfigurationError(
            f"{who} does not say what it provides: its return annotation {said!r} cannot be read ({error}). Annotate it with the "
            "type by which others ask for it, defined or imported at the top of the module."
        ) from error
    is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
    is_async = is_async or origin is AbstractAsyncContextManager
    return Resource(function, provides, scope, wanted(function, who), entered, is_async)


class Resources:
    """What can be asked for: who provides what, and what stands in for it in a test."""

    def __init__(self) -> None:
        self.providers: dict[Key, Resource] = {}
        self._overrides: dict[Key, Any] = {}
        self._joined: Resources | None = None

    def add(self, resource: Resource) -> None:
        """Take one in. Raises ConfigurationError where another provides the same, or where it would need itself."""
        known = self.providers.get(resource.provides)
        if known is not None and known is not resource and known.where != resource.where:
            named = Key(resource.provides.type, "a name")
            raise ConfigurationError(
                f"Two resources provide {resource.provides}: {known.where} and {resource.where}. Leave one out, or give one of "
                f"them a name by which it is provided and asked for: {named}."
            )
        if circle := self._circle(resource):
            raise ConfigurationError(
                f"Resource {resource.name!r} cannot be opened: it needs itself, by way of "
                f"{' -> '.join(str(key) for key in circle)}. Let one of them do without the other."
            )
        self.providers[resource.provides] = resource
        if self._joined is not None:
            self._joined.add(resource)

    def join(self, others: Resources) -> None:
        """Be part of these from now on, with all there are and will be."""
        self._joined = others
        for resource in self.providers.values():
            others.add(resource)

    @contextlib.contextmanager
    def override(self, kind: Any, value: Any) -> Iterator[None]:
        """Have this value stand in for the resource of a type; nothing is opened or closed for it. For tests.

        It holds for all of this process, at once, until the block ends. In the children of `executor="process"` it does not.
        """
        try:
            key = key_of(kind)
        except ValueError as error:
            raise ConfigurationError(
                f"Nothing can be overridden by {kind!r}: {error}. Name the type that is asked for."
            ) from error
        before = dict(self._overrides)
        self._overrides[key] = value
        try:
            yield
        finally:
            self._overrides.clear()
            self._overrides.update(before)

    def overridden(self, wants: Mapping[str, Key]) -> list[Key]:
        return [key for key in wants.values() if key in self._overrides]

    def check(self, wanting: Mapping[str, Mapping[str, Key]]) -> None:
        """Refuse what cannot be filled in, of these who want something and of the resources. Raises ConfigurationError."""
        every = {**wanting, **{f"resource {each.name!r}": each.wants for each in self.providers.values()}}
        problems = [
            f"{who} wants {key} for {name!r}, and nothing provides it"
            for who, wants in every.items()
            for name, key in wants.items()
            if key not in self.providers and key not in self._overrides
        ]
        problems += [
            f"resource {each.name!r} lives as long as a worker and wants {key}, which lives as long as a job"
            for each in self.providers.values()
            for key in each.wants.values()
            if each.scope == "worker" and key in self.providers and self.providers[key].scope == "job"
        ]
        if problems:
            known = ", ".join(sorted(map(str, self.providers))) or "none"
            raise ConfigurationError(
                f"Resources are missing: {'; '.join(problems)}. Provided are: {known}. Declare what is missing with @app.resource, "
                "under exactly the type that is asked for, and import its module."
            )

    def plan(self, keys: Iterable[Key]) -> list[Resource]:
        """Those of a worker that these need, each after those it needs itself."""
        planned: dict[Key, Resource | None] = {}

        def visit(key: Key) -> None:
            if key in planned or key in self._overrides or key not in self.providers:
                return
            resource = self.providers[key]
            for each in resource.wants.values():
                visit(each)
            planned[key] = resource if resource.scope == "worker" else None

        for key in keys:
            visit(key)
        return [each for each in planned.values() if each is not None]

    def given(self, resource: Resource, values: Mapping[Key, Any]) -> dict[str, Any]:
        """What a resource of a worker is opened with. Raises ConfigurationError."""
        available = {**values, **self._overrides}
        if lacking := [key for key in resource.wants.values() if key not in available]:
            raise _missing(lacking[0])
        return {name: available[key] for name, key in resource.wants.items()}

    def filling(self, function: Callable[..., Any], who: str = "") -> Callable[..., Any]:
        """The function, with what it wants filled in wherever it is called; the very function if it wants nothing."""
        wants = wanted(function, who or getattr(function, "__qualname__", repr(function)))
        if not wants:
            return function
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}

        def lacking(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Key]:
            return {name: key for name, key in wants.items() if name not in kwargs and places[name] >= len(args)}

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                async with AsyncExitStack() as stack:
                    return await function(*args, **kwargs, **await self.fill(lacking(args, kwargs), stack))

            return coroutine

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                return function(*args, **kwargs, **self.fill_sync(lacking(args, kwargs), stack))

        return body

    async def fill(self, wants: Mapping[str, Key], stack: AsyncExitStack) -> dict[str, Any]:
        """The values for these parameters; what is opened for this call, the stack closes. Raises RotaError."""
        filling = self._filling(wants)
        step = _begin(filling)
        while isinstance(step, tuple):
            resource, given = step
            step = _go_on(filling, await resource.open(given, stack))
        return step

    def fill_sync(self, wants: Mapping[str, Key], stack: ExitStack) -> dict[str, Any]:
        filling = self._filling(wants)
        step = _begin(filling)
        while isinstance(step, tuple):
            resource, given = step
            if resource.is_async:
                value = _standing(self, resource).open_for_thread(resource, given, stack)
            else:
                value = resource.open_sync(given, stack)
            step = _go_on(filling, value)
        return step

    def _filling(self, wants: Mapping[str, Key]) -> _Filling:
        """Yields what is to be opened for this call, and with what; is sent what came of it."""
        values: dict[Key, Any] = {}

        def value_of(key: Key) -> Generator[tuple[Resource, dict[str, Any]], Any, Any]:
            if key in self._overrides:
                return self._overrides[key]
            if key not in values:
                resource = self.providers.get(key)
                if resource is None:
                    raise _missing(key)
                if resource.scope == "worker":
                    return _standing(self, resource).value(resource)
                given = {}
                for name, each in resource.wants.items():
                    given[name] = yield from value_of(each)
                values[key] = yield resource, given
            return values[key]

        filled = {}
        for name, key in wants.items():
            filled[name] = yield from value_of(key)
        return filled

    def _circle(self, new: Resource) -> list[Key]:
        """How a new one would come to need itself; empty if it would not."""

        def search(key: Key, way: list[Key]) -> list[Key]:
            if key == new.provides and len(way) > 1:
                return way
            resource = new if key == new.provides else self.providers.get(key)
            for each in () if resource is None or way.count(key) > 1 else resource.wants.values():
                if found := search(each, [*way, each]):
                    return found
            return []

        return search(new.provides, [new.provides])


def _begin(filling: _Filling) -> tuple[Resource, dict[str, Any]] | dict[str, Any]:
    return _go_on(filling, None)


def _go_on(filling: _Filling, value: Any) -> tuple[Resource, dict[str, Any]] | dict[str, Any]:
    """The next to be opened, or the values when all are there."""
    try:
        return filling.send(value)
    except StopIteration as done:
        filled: dict[str, Any] = done.value
        return filled


def _missing(key: Key) -> ConfigurationError:
    return ConfigurationError(f"Nothing provides {key}. Declare it with @app.resource, or pass it as an argument.")


class Opened:
    """What is open for one worker, or one call that runs as in a worker. Belongs to the event loop it is made on."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._values: dict[Key, Any] = {}
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Have what is called in this block, and in the tasks and threads it starts, filled in from here."""
        token = _opened.set(self)
        try:
            yield
        finally:
            _opened.reset(token)

    async def open(
        self,
        keys: Iterable[Key],
        enter: Callable[[str, AbstractAsyncContextManager[None]], Awaitable[object]],
        wait: Callable[[ResourceUnavailable], Awaitable[None]] | None = None,
    ) -> None:
        """Open what these need and is not open yet. `enter` enters each, under its name, and sees that it is left in the end.

        One that cannot be opened is tried again after `wait`. Raises ResourceUnavailable, if there is none.
        """
        for resource in self.resources.plan(keys):
            while resource.provides not in self._values:
                try:
                    await enter(f"resource {resource.name}", _Life(resource, self.resources, self._values))
                except ConfigurationError:
                    raise  # nothing to wait for
                except Exception as error:
                    unavailable = ResourceUnavailable(
                        f"Resource {resource.name!r}, which provides {resource.provides}, could not be opened: "
                        f"{type(error).__name__}: {error}"
                    )
                    unavailable.__cause__ = error
                    if wait is None:
                        raise unavailable from error
                    await wait(unavailable)

    def value(self, resource: Resource) -> Any:
        try:
            return self._values[resource.provides]
        except KeyError:
            raise RotaError(
                f"{resource.provides} is not open here: resource {resource.name!r} was declared, or asked for, after this worker "
                "started. Declare it where the app is made, so that it is known before."
            ) from None

    def open_for_thread(self, resource: Resource, given: Mapping[str, Any], stack: ExitStack) -> Any:
        """Open an async one on the event loop for a body in a thread, whose stack closes it there."""
        values: dict[Key, Any] = {}
        life = _Life(resource, self.resources, values, given)
        self._wait_for(life.__aenter__())
        stack.push(lambda *raised: self._wait_for(life.__aexit__(*raised)))
        return values[resource.provides]

    def _wait_for(self, coroutine: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                coroutine.close()
                raise RotaError(
                    "A function that wants an async resource was called on the event loop that would have to open it, and would wait "
                    "for itself. Call it with asyncio.to_thread(), or pass the resource."
                )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                if not self._loop.is_running():
                    raise RotaError(
                        "The worker that has this resource has ended, and cannot open or close it."
                    ) from None


_opened: contextvars.ContextVar[Opened] = contextvars.ContextVar("rota_resources")


def refuse_overridden(wants: Mapping[str, Key], who: str) -> None:
    """Refuse to send to another process what stands in for something in this one. Raises ConfigurationError."""
    opened = _opened.get(None)
    if opened is not None and (stood_in := opened.resources.overridden(wants)):
        raise ConfigurationError(
            f"{who} runs in a process of its own, where app.override({stood_in[0]}, ...) does not hold. Call its function with what "
            "it wants instead, or use app.inline()."
        )


def _standing(resources: Resources, resource: Resource) -> Opened:
    opened = _opened.get(None)
    if opened is None or opened.resources is not resources:
        raise RotaError(
            f"{resource.provides} is not open here: it is filled in for what a worker runs. Called by hand, pass it as an argument; "
            f"in a test, `with app.override({resource.provides}, ...):` stands in for it."
        )
    return opened


@dataclass(eq=False)
class _Life(AbstractAsyncContextManager[None]):
    """A resource from its opening to its closing, both of which are done by one task."""

    resource: Resource
    resources: Resources
    values: dict[Key, Any]
    given: Mapping[str, Any] | None = None
    _task: asyncio.Task[None] | None = None
    _raised: BaseException | None = None
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> None:
        there = asyncio.Event()
        task = self._task = asyncio.create_task(self._live(there))
        waiting = asyncio.ensure_future(there.wait())
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            waiting.cancel()
        if not there.is_set():
            task.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._task is not None
        self._raised = error
        self._closing.set()
        try:
            await self._task
        except BaseException as raised:
            if raised is error:
                return False
            raise
        return error is not None

    async def _live(self, there: asyncio.Event) -> None:
        key = self.resource.provides
        given = self.resources.given(self.resource, self.values) if self.given is None else self.given
        async with AsyncExitStack() as stack:
            self.values[key] = await self.resource.open(given, stack)
            there.set()
            try:
                await self._closing.wait()
                if self._raised is not None:
                    raise self._raised
            finally:
                del self.values[key]
