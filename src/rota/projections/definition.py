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
# Each reads the whole log for its share of it, and is a leadership of its own.
_MOST_PARTITIONS = 64


def lease_name(name: str, version: int, partition: int | None = None) -> str:
    """Under which it is led, or a partition of it; all builds of one by the same process."""
    return f"rota.projection/{name}/{version}" + ("" if partition is None else f"#{partition}")


@dataclass(frozen=True, slots=True)
class ProjectionDefinition:
    """A projection, checked."""

    name: str
    version: int
    handler: Callable[..., Any]
    is_async: bool
    #: whether the handler takes a list of events at once
    in_batches: bool
    #: whether handler and hooks are told the number of the build, so that each has tables of its own
    takes_build: bool
    readable: Readable
    types: tuple[str, ...] | None
    streams: tuple[str, ...] | None
    batch: int
    on_error: OnError
    #: what keeps events in one partition, and how many of these there are; None for a projection that has no partitions
    partition_by: str | None
    partitions: int
    #: makes the tables of this version
    prepare: Callable[..., Any] | None
    #: has readers use them, when it has caught up
    switch: Callable[..., Any] | None

    @property
    def source(self) -> EventSource:
        return self.readable.source

    @property
    def feed(self) -> Feed:
        """Of all that it reads, as its first partition does."""
        return self.feed_of()

    def feed_of(self, *, build: int = 1, partition: int = 0) -> Feed:
        """What one partition of a build reads."""
        return Feed(
            self.name,
            self.version,
            self.source,
            types=self.types,
            streams=self.streams,
            build=build,
            partition=partition,
            partitions=self.partitions,
        )

    def lease(self, partition: int) -> str:
        return lease_name(self.name, self.version, None if self.partitions == 1 else partition)

    def told(self) -> dict[str, Any]:
        """What people are shown of it who do not have this app."""
        given = {
            "source": self.source.name,
            "kind": "table" if self.source.log is None else "log",  # which may have the same name
            "types": None if self.types is None else list(self.types),
            "streams": None if self.streams is None else list(self.streams),
            "batch": self.batch,
            "partition_by": self.partition_by,
            "partitions": None if self.partition_by is None else self.partitions,
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
    partition_by: Any = None,
    partitions: Any = None,
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
    if partition_by is not None and partition_by != "stream":
        problems.append(
            f'partition_by is {partition_by!r}; it is "stream", so that the events of one stay in order, or None'
        )
    elif partition_by is not None and getattr(getattr(source, "source", None), "stream", "") is None:
        problems.append(f"it cannot have partitions: {source.source.name} has no column that says the stream")
    if (partition_by is None) != (partitions is None):
        problems.append('partitions says in how many, partition_by="stream" what stays together: give both or neither')
    elif partitions is not None and (
        not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= _MOST_PARTITIONS
    ):
        problems.append(f"partitions is {partitions!r}; it is a whole number from 1 to {_MOST_PARTITIONS}")
    for what, hook in (("prepare", prepare), ("switch", switch)):
        if hook is not None and (not callable(hook) or _is_async(hook) != _is_async(handler)):
            problems.append(f"{what} is {hook!r}; it is a function that takes a connection, async if the handler is")
        elif _takes_build(handler) and hook is None:
            problems.append(f"it takes a build, and has no {what}=..., without which none can be built beside another")
        elif hook is not None and _takes_build(hook) != _takes_build(handler):
            problems.append(
                f"of the function and its {what} only one takes a build; both have to know which tables it means"
            )
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
        takes_build=_takes_build(handler),
        readable=source,
        types=None if types is None else tuple(dict.fromkeys(types)),
        streams=None if streams is None else tuple(dict.fromkeys(streams)),
        batch=batch,
        on_error=policy,
        partition_by=partition_by,
        partitions=partitions or 1,
        prepare=prepare,
        switch=switch,
    )


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
    )


def _takes_build(function: Callable[..., Any]) -> bool:
    return "build" in inspect.signature(function).parameters


def _takes_many(handler: Callable[..., Any]) -> bool:
    """Whether its first parameter is annotated as a list of events: then it is given a whole batch at once."""
    parameters = list(inspect.signature(handler).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str):  # as all are under `from __future__ import annotations`
        return annotation.partition("[")[0].rpartition(".")[2] in ("list", "List", "Sequence")
    return typing.get_origin(annotation) in (list, Sequence) or annotation is list
