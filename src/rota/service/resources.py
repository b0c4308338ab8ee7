"""What can be asked for by type: who provides what, how it is opened, what it needs itself, and what stands in for it in a test."""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Literal, get_args

from rota.errors import ConfigurationError
from rota.service.inject import Key, key_of, resolved, wanted

__all__ = ["Resource", "Resources", "Scope", "define", "missing"]

Scope = Literal["worker", "job"]
_YIELDED = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)


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
    wants = wanted(function, who)
    if lacking := [name for name, each in inspect.signature(function).parameters.items() if _lacks_a_value(each)]:
        raise ConfigurationError(
            f"{who} cannot be opened: nobody would give it {', '.join(lacking)}. Let each default to rota.inject(), or to a value."
        )
    is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
    is_async = is_async or origin is AbstractAsyncContextManager
    return Resource(function, provides, scope, wants, entered, is_async)


def _lacks_a_value(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind not in (
        Parameter.VAR_POSITIONAL,
        Parameter.VAR_KEYWORD,
    )


class Resources:
    """What can be asked for: who provides what, and what stands in for it in a test."""

    def __init__(self) -> None:
        self.providers: dict[Key, Resource] = {}
        self.overrides: dict[Key, Any] = {}
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
        before = dict(self.overrides)
        self.overrides[key] = value
        try:
            yield
        finally:
            self.overrides.clear()
            self.overrides.update(before)

    def overridden(self, wants: Mapping[str, Key]) -> list[Key]:
        return [key for key in wants.values() if key in self.overrides]

    def check(self, wanting: Mapping[str, Mapping[str, Key]]) -> None:
        """Refuse what cannot be filled in, of these who want something and of the resources. Raises ConfigurationError."""
        every = {**wanting, **{f"resource {each.name!r}": each.wants for each in self.providers.values()}}
        problems = [
            f"{who} wants {key} for {name!r}, and nothing provides it"
            for who, wants in every.items()
            for name, key in wants.items()
            if key not in self.providers and key not in self.overrides
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
            if key in planned or key in self.overrides or key not in self.providers:
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
        available = {**values, **self.overrides}
        if lacking := [key for key in resource.wants.values() if key not in available]:
            raise missing(lacking[0])
        return {name: available[key] for name, key in resource.wants.items()}

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


def missing(key: Key) -> ConfigurationError:
    return ConfigurationError(f"Nothing provides {key}. Declare it with @app.resource, or pass it as an argument.")
