"""What `@app.projection(...)` accepts: everything that can be known of a projection without asking the database."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rota.errors import ConfigurationError
from rota.events.source import EventSource
from rota.postgres.names import check_name
from rota.projections.feed import Feed, Readable
from rota.projections.trouble import OnError, check_policy, told

__all__ = ["ProjectionDefinition", "define", "lease_name"]

_MOST_EVENTS = 10_000
_LARGEST_VERSION = 2**31 - 1


def lease_name(name: str, version: int) -> str:
    """Under which it is led."""
    return f"rota.projection/{name}/{version}"


@dataclass(frozen=True, slots=True)
class ProjectionDefinition:
    """A projection, checked."""

    name: str
    version: int
    handler: Callable[..., Any]
    is_async: bool
    #: whether the handler takes a list of events at once
    in_batches: bool
    readable: Readable
    types: tuple[str, ...] | None
    streams: tuple[str, ...] | None
    batch: int
    on_error: OnError
    #: makes the tables of this version
    prepare: Callable[..., Any] | None
    #: has readers use them, when it has caught up
    switch: Callable[..., Any] | None

    @property
    def source(self) -> EventSource:
        return self.readable.source

    @property
    def feed(self) -> Feed:
        return Feed(self.name, self.version, self.source, types=self.types, streams=self.streams)

    def told(self) -> dict[str, Any]:
        """What people are shown of it who do not have this app."""
        given = {
            "source": self.source.name,
            "kind": "table" if self.source.log is None else "log",  # which may have the same name
            "types": None if self.types is None else list(self.types),
            "streams": None if self.streams is None else list(self.streams),
            "batch": self.batch,
            "on_error": told(self.on_error),
        }
        return {name: value for name, value in given.items() if value is not None}


def define(
    handler: Callable[..., Any],
    *,
    name: str,
    source: Any,
    types: Sequence[str] | None,
    streams: Sequence[str] | None,
    batch: int,
    version: int,
    on_error: Any,
    prepare: Any = None,
    switch: Any = None,
) -> ProjectionDefinition:
    """Check the options, and raise ConfigurationError with all that is wrong with them."""
    checked = check_name("a projection's name", name, 150)
    problems: list[str] = []
    if not callable(handler) or isinstance(handler, type):
        raise ConfigurationError(
            f"{handler!r} cannot be a projection: it is a function, async or not, that takes an event and a connection."
        )
    if not isinstance(getattr(source, "source", None), EventSource) or not callable(getattr(source, "decode", None)):
        problems.append(f"source is {source!r}; it is an event log or an event table of the app")
    for what, value, largest in (("batch", batch, _MOST_EVENTS), ("version", version, _LARGEST_VERSION)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
            problems.append(f"{what} is {value!r}; it is a whole number from 1 to {largest:,}")
    for what, names, column in (("types", types, "type"), ("streams", streams, "stream")):
        if names is None:
            continue
        if isinstance(names, str) or not names or not all(isinstance(each, str) and each for each in names):
            problems.append(f"{what} is {names!r}; it is a list of names, or None for all")
        elif getattr(getattr(source, "source", None), column, "") is None:
            problems.append(f"{what} cannot be chosen: {source.source.name} has no column that says the {column}")
    for what, hook in (("prepare", prepare), ("switch", switch)):
        if hook is not None and (not callable(hook) or _is_async(hook) != _is_async(handler)):
            problems.append(f"{what} is {hook!r}; it is a function that takes a connection, async if the handler is")
    try:
        policy = check_policy(on_error)
    except ConfigurationError as error:
        problems.append(str(error).rstrip("."))
    if problems:
        raise ConfigurationError(f"Projection {checked!r} cannot work: {'; '.join(problems)}.")
    return ProjectionDefinition(
        name=checked,
        version=version,
        handler=handler,
        is_async=_is_async(handler),
        in_batches=_takes_many(handler),
        readable=source,
        types=None if types is None else tuple(dict.fromkeys(types)),
        streams=None if streams is None else tuple(dict.fromkeys(streams)),
        batch=batch,
        on_error=policy,
        prepare=prepare,
        switch=switch,
    )


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    )


def _takes_many(handler: Callable[..., Any]) -> bool:
    """Whether its first parameter is annotated as a list of events: then it is given a whole batch at once."""
    parameters = list(inspect.signature(handler).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str):  # as all are under `from __future__ import annotations`
        return annotation.partition("[")[0].rpartition(".")[2] in ("list", "List", "Sequence")
    return typing.get_origin(annotation) in (list, Sequence) or annotation is list
