"""What events look like: from a value to the JSON that is stored, and from there to an event in hand.

A type is a name that is stored with its events. A class can be registered for it: then its instances are appended as they are,
and come back as such. When a class changes so that stored data no longer fit, the type gets a new shape, by number, and an upcaster
that makes data of the shape before into those of the next. Stored events are never rewritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, overload

from rota.conversion.build import Builder
from rota.conversion.plain import Converter, Mismatch, Unconvertible, brief, read_json, shown
from rota.errors import ConfigurationError, InvalidArguments, UndecodableEvent
from rota.events.append import NewEvent, event_name, plain_json
from rota.events.event import Event
from rota.postgres.names import check_name

__all__ = ["EventTypes"]

Upcast = Callable[[Any], Any]
C = TypeVar("C")
U = TypeVar("U", bound=Upcast)

_LARGEST_SHAPE = 32_767  # the column is a smallint


@dataclass(frozen=True, slots=True)
class _Type:
    """A class that stands for the events of a name."""

    name: str
    cls: type
    shape: int
    converter: Converter


class EventTypes:
    """The types of the events of one log or table, which has `event` and `upcast` of these as its own."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._by_name: dict[str, _Type] = {}
        self._by_class: dict[type, _Type] = {}
        self._upcasts: dict[str, dict[int, Upcast]] = {}

    @contextlib.contextmanager
    def as_they_are(self) -> Iterator[None]:
        """Forget at the end of a block what is registered within it: for tests."""
        before = dict(self._by_name), dict(self._by_class), {name: dict(each) for name, each in self._upcasts.items()}
        try:
            yield
        finally:
            self._by_name, self._by_class, self._upcasts = before

    @overload
    def event(self, cls: type[C], /) -> type[C]: ...

    @overload
    def event(self, name: str | None = None, /, *, shape: int = 1) -> Callable[[type[C]], type[C]]: ...

    def event(self, given: Any = None, /, *, shape: int = 1) -> Any:
        """Have a class stand for the events of a type: `@orders.event`, or `@orders.event("OrderPaid", shape=2)`.

        Dataclasses, Pydantic models, msgspec structs, named tuples and typed dicts. Its instances are appended as they are, under the
        name of the class or this one, and are the `data` of what is read. `shape` says, by number, how its data are stored: raise it
        when older data no longer fit, and say with `upcast` how they become those of today.
        """

        def register(cls: type[C]) -> type[C]:
            self._register(cls, None if isinstance(given, type) else given, shape)
            return cls

        return register(given) if isinstance(given, type) else register

    def upcast(self, type: str | type[Any], *, from_shape: int) -> Callable[[U], U]:
        """Register a function that makes stored data of this shape into those of the next one, from JSON to JSON.

        `@orders.upcast("OrderPaid", from_shape=1)`. Older data go through one after the other until they have the shape of today.
        """

        def register(function: U) -> U:
            self._upcast(type, from_shape, function)
            return function

        return register

    def _register(self, cls: type, name: str | None, shape: int) -> None:
        """Have the class stand for events of this name, by default its own. Raises ConfigurationError."""
        what = f"{getattr(cls, '__qualname__', cls)!s} cannot be an event of {self._source!r}"
        if not isinstance(cls, type):
            raise ConfigurationError(f"{what}: it is {shown(cls)}, and a type of events is a class.")
        known = check_name("the type of an event", cls.__name__ if name is None else name, 500)
        _check_shape(shape, what)
        if known in self._by_name:
            raise ConfigurationError(
                f"{what}: the type {known!r} is {self._by_name[known].cls.__qualname__} already. Give one of them another name: "
                'event("Name").'
            )
        if cls in self._by_class:
            raise ConfigurationError(f"{what}: it is the type {self._by_class[cls].name!r} already.")
        late = [each for each in self._upcasts.get(known, ()) if each >= shape]
        if late:
            raise ConfigurationError(f"{what}: {_beyond(known, late[0], shape)}")
        try:
            converter = Builder().build(cls)
        except Unconvertible as error:
            raise ConfigurationError(f"{what}: {cls.__qualname__} is a class {error}.") from error
        except RecursionError as error:
            raise ConfigurationError(f"{what}: its fields have no end.") from error
        self._by_name[known] = self._by_class[cls] = _Type(known, cls, shape, converter)

    def _upcast(self, type: Any, from_shape: int, function: Upcast) -> None:
        """Have the function make data of this shape into those of the next one. Raises ConfigurationError."""
        name = type if isinstance(type, str) or type not in self._by_class else self._by_class[type].name
        what = f"{name!r} cannot be upcast from shape {from_shape!r}"
        check_name("the type of an event", name, 500)
        _check_shape(from_shape, what)
        if from_shape in self._upcasts.get(name, {}):
            raise ConfigurationError(f"{what}: there is a function for that already.")
        if name in self._by_name and from_shape >= self._by_name[name].shape:
            raise ConfigurationError(f"{what}: {_beyond(name, from_shape, self._by_name[name].shape)}")
        self._upcasts.setdefault(name, {})[from_shape] = function

    def bind(self, stream: str, type: Any, data: Any = ..., metadata: Any = None) -> NewEvent:
        """The event as it is stored. Raises InvalidArguments or PayloadTooLarge."""
        refused = f"Nothing was appended to event log {self._source!r}"
        event_name("the name of a stream", stream, 500, refused)
        refused = f"Nothing was appended to stream {stream!r} of event log {self._source!r}"
        known, name, data = self._told(type, data, refused)
        return NewEvent(
            log=self._source,
            stream=stream,
            type=event_name("the type of an event", name, 500, refused),
            data=self._json(known, data, refused),
            metadata=None if metadata is None else plain_json(_mapping(metadata, refused), "metadata", refused),
            shape=self._shape(name),
        )

    def _told(self, type_: Any, data: Any, refused: str) -> tuple[_Type | None, Any, Any]:
        """The type that is meant by a name, a class or an instance; its name; and the data."""
        if isinstance(type_, str):
            return self._by_name.get(type_), type_, data
        if isinstance(type_, type):
            known = self._by_class.get(type_)
        else:
            known = self._by_class.get(type(type_))
            if known is not None and data is not ...:
                raise InvalidArguments(
                    f"{refused}: {shown(type_)} is an event with its data, and data is given as well."
                )
            data = type_
        if known is None:
            raise InvalidArguments(
                f"{refused}: {shown(type_)} is no event of this log. Register its class with @log.event, or give the name of a type "
                "and the data."
            )
        return known, known.name, data

    def _json(self, known: _Type | None, data: Any, refused: str) -> str:
        if data is ...:
            data = {}
        if known is None:
            return plain_json(data, "data", refused)
        # the data of a typed dict are a dict like any other
        if known.converter.python is dict or isinstance(data, known.cls):
            return plain_json(data, known.cls.__name__, refused, known.converter.encode)
        text = plain_json(data, "data", refused)
        try:
            known.converter.decode(read_json(text))
        except Mismatch as mismatch:
            raise InvalidArguments(
                f"{refused}: data{mismatch.path} {mismatch.problem}. An event of type {known.name!r} is a {known.cls.__qualname__}."
            ) from mismatch.__cause__
        return text

    def _shape(self, name: str) -> int:
        """The shape that data of this type have now."""
        if name in self._by_name:
            return self._by_name[name].shape
        return max(self._upcasts.get(name, ()), default=0) + 1

    def decode(
        self,
        position: int,
        order_xid: int,
        stream: str | None,
        version: int | None,
        type: str | None,
        shape: int | None,
        data: str,
        metadata: str | None,
        created_at: datetime | None,
    ) -> Event:
        """An event from its row, `data` and `metadata` being JSON text. Raises UndecodableEvent."""
        try:
            value = self._decoded(type, 1 if shape is None else shape, _read(data, "data"))
            told = None if metadata is None else _read(metadata, "metadata")
        except _Unfit as unfit:
            raise UndecodableEvent(self._source, order_xid, position, type, str(unfit)) from unfit.__cause__
        return Event(position, order_xid, stream, version, type, value, told, created_at)

    def _decoded(self, type: str | None, shape: int, data: Any) -> Any:
        if type is None:
            return data
        now = self._shape(type)
        if shape > now and (type in self._by_name or type in self._upcasts):
            raise _Unfit(f"it has shape {shape}, and this process knows none beyond {now}: newer code appended it")
        for each in range(shape, now):
            data = self._upcasted(type, each, data)
        known = self._by_name.get(type)
        if known is None:
            return data
        try:
            return known.converter.decode(data)
        except Mismatch as mismatch:
            raise _Unfit(f"data{mismatch.path} {mismatch.problem}") from (mismatch.__cause__ or mismatch)
        except Exception as error:
            raise _Unfit(f"{known.cls.__qualname__} cannot be made of its data ({brief(error)})") from error

    def _upcasted(self, type: str, shape: int, data: Any) -> Any:
        function = self._upcasts.get(type, {}).get(shape)
        if function is None:
            raise _Unfit(f"it has shape {shape}, and nothing is registered that makes that into shape {shape + 1}")
        try:
            return function(data)
        except Exception as error:
            raise _Unfit(f"the upcast from shape {shape} failed with {brief(error)}") from error


class _Unfit(Exception):
    """Why an event cannot be decoded, as a clause."""


def _read(text: str, what: str) -> Any:
    try:
        return read_json(text.lstrip())
    except (ValueError, RecursionError) as error:  # written by SQL, and perhaps no JSON type
        raise _Unfit(f"its {what} cannot be read as JSON ({brief(error)})") from error


def _check_shape(shape: Any, what: str) -> None:
    if not isinstance(shape, int) or isinstance(shape, bool) or not 1 <= shape <= _LARGEST_SHAPE:
        raise ConfigurationError(f"{what}: a shape is a whole number from 1 to {_LARGEST_SHAPE}, not {shape!r}.")


def _beyond(name: str, from_shape: int, shape: int) -> str:
    return (
        f"its class has shape {shape}, and an upcast from shape {from_shape} would lead beyond that. Register the class with "
        f"event({name!r}, shape={from_shape + 1})."
    )


def _mapping(metadata: Any, refused: str) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise InvalidArguments(
            f"{refused}: metadata is {shown(metadata)}, and must be a mapping, such as {{'user': 7}}."
        )
    return dict(metadata)
