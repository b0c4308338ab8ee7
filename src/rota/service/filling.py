"""Functions called with the resources they want, and what is open for a worker to fill them in from.

What lives as long as a worker is opened before it becomes a member of the cluster, in the order of who needs whom, and closed
the other way round when it has left: no job is claimed that would fail for want of one, and one that does not close holds up
nobody else. Each lives in a task of its own, which opens and closes it, as some (task groups, cancel scopes) demand.

What lives as long as a call is opened before the body and closed after it, where the body is: on the event loop for a
coroutine; for a function in its thread, unless it is async. It sees what the body raised, and what it raises itself is as if
the body had.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rota.errors import ConfigurationError, ResourceUnavailable, RotaError
from rota.service.inject import Key, wanted
from rota.service.resources import Resource, Resources, missing

__all__ = ["Opened", "fill", "filling", "refuse_overridden"]

_Filling = Generator[tuple[Resource, dict[str, Any]], Any, dict[str, Any]]

# A thread that waits for the event loop looks this often whether that is still there.
_LOOK_SECONDS = 1.0


def filling(resources: Resources, function: Callable[..., Any], who: str = "") -> Callable[..., Any]:
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
                return await function(*args, **kwargs, **await fill(resources, lacking(args, kwargs), stack))

        return coroutine

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            return function(*args, **kwargs, **fill_sync(resources, lacking(args, kwargs), stack))

    return body


async def fill(resources: Resources, wants: Mapping[str, Key], stack: AsyncExitStack) -> dict[str, Any]:
    """The values for these parameters; what is opened for this call, the stack closes. Raises RotaError."""
    steps = _filling(resources, wants)
    step = _go_on(steps, None)
    while isinstance(step, tuple):
        resource, given = step
        step = _go_on(steps, await resource.open(given, stack))
    return step


def fill_sync(resources: Resources, wants: Mapping[str, Key], stack: ExitStack) -> dict[str, Any]:
    steps = _filling(resources, wants)
    step = _go_on(steps, None)
    while isinstance(step, tuple):
        resource, given = step
        if resource.is_async:
            value = _standing(resources, resource).open_for_thread(resource, given, stack)
        else:
            value = resource.open_sync(given, stack)
        step = _go_on(steps, value)
    return step


def _filling(resources: Resources, wants: Mapping[str, Key]) -> _Filling:
    """Yields what is to be opened for this call, and with what; is sent what came of it."""
    values: dict[Key, Any] = {}

    def value_of(key: Key) -> Generator[tuple[Resource, dict[str, Any]], Any, Any]:
        if key in resources.overrides:
            return resources.overrides[key]
        if key not in values:
            resource = resources.providers.get(key)
            if resource is None:
                raise missing(key)
            if resource.scope == "worker":
                return _standing(resources, resource).value(resource)
            given = {}
            for name, each in resource.wants.items():
                given[name] = yield from value_of(each)
            values[key] = yield resource, given
        return values[key]

    filled = {}
    for name, key in wants.items():
        filled[name] = yield from value_of(key)
    return filled


def _go_on(steps: _Filling, value: Any) -> tuple[Resource, dict[str, Any]] | dict[str, Any]:
    """The next to be opened, or the values when all are there."""
    try:
        return steps.send(value)
    except StopIteration as done:
        filled: dict[str, Any] = done.value
        return filled


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
                f"{resource.provides} is not open here: nothing wanted resource {resource.name!r} when this worker started. It was "
                "declared or asked for later, or something stood in for it. Declare it before, where the app is made."
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
        if not self._loop.is_running():
            coroutine.close()
            raise _ended()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                if not self._loop.is_running():
                    raise _ended() from None


def _ended() -> RotaError:
    return RotaError("The worker whose event loop has this resource has ended: it cannot be opened or closed any more.")


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
