"""How a row of the user's table reaches the handler: as what its first parameter is annotated with.

    dataclass, attrs class          the parameters of its constructor choose the columns; one with a default may be missing
    NamedTuple                      likewise
    TypedDict                       its keys; one that is not required may be missing
    Pydantic model                  its fields, by validation alias where there is one, validated
    msgspec Struct                  its fields, as they are renamed, converted strictly: text never becomes a number
    class mapped by SQLAlchemy      the columns of its own table, as a query would load it, then detached
    dict, Mapping, Any, none        all columns, as a dict

`X | None` is as `X`: a poller never passes None. Where a class checks its values, what it raises is the row's failure.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any, NewType

from rota.errors import ConfigurationError

POSSIBLE = (
    "a dataclass, NamedTuple, TypedDict, attrs class, Pydantic 2 model, msgspec Struct or class mapped by SQLAlchemy, "
    "whose fields choose the columns, or with dict[str, Any] for all of them"
)

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

WHOLE_ROWS = (dict, abc.Mapping, abc.MutableMapping, Any, object, Parameter.empty)

MARKS = [typing.Annotated, typing.Required, typing.NotRequired]
if hasattr(typing, "ReadOnly"):  # from Python 3.13 on
    MARKS.append(typing.ReadOnly)

NUMERIC_OID = 1700

Row = Mapping[str, Any]  # by column name, with the values psycopg gives


@dataclass(frozen=True, slots=True)
class RowReader:
    """What a handler's row is made of, and how. `build` leaves alone what a row has besides its fields."""

    kind: str
    fields: tuple[str, ...] | None  # the columns it needs; None: all there are
    optional: frozenset[str]  # those with a default, which a table may lack
    build: Callable[[Row], Any]
    instead: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)  # columns that do as well


class Unreadable(Exception):
    """Why no row can become this; completes the sentence "its handler's parameter is annotated X, ..."."""


def reader_of(handler: Callable[..., Any], name: str) -> RowReader:
    """How rows reach the handler of the poller of this name; decided once, when the poller is declared.

    Raises ConfigurationError where it cannot be called with a row alone, or its annotation is nothing a row can become.
    """
    parameter = row_parameter(handler, name)
    try:
        reader = reader_for(plain(resolved(parameter.annotation, handler)))
        if reader.fields == ():
            raise Unreadable("which has no fields to choose the columns by: give it some, or annotate dict[str, Any]")
    except Unreadable as error:
        raise ConfigurationError(
            f"Poller {name!r} cannot be declared: parameter {parameter.name!r} of its handler is annotated "
            f"{worded(parameter.annotation)}, {error}."
        ) from error.__cause__
    return reader


def columns_for(reader: RowReader, columns: Collection[str], *, poller: str, table: str) -> tuple[str, ...]:
    """Those of the table's columns that the reader needs, in the table's order.

    Raises ConfigurationError, naming them all, where the table lacks any that have no default.
    """
    if reader.fields is None:
        return tuple(columns)
    chosen: set[str] = set()
    missing: list[str] = []
    for name in reader.fields:
        names = (name, *reader.instead.get(name, ()))
        found = next((each for each in names if each in columns), None)
        if found is not None:
            chosen.add(found)
        elif name not in reader.optional:
            missing.append(" or ".join(names))
    if missing:
        raise ConfigurationError(
            f"Poller {poller!r} cannot read rows of {table}: its handler takes a {reader.kind} that needs "
            f"{', '.join(missing)}, and the table has only {', '.join(columns)}. "
            f"Name the fields as the columns are, or give those that are no columns a default."
        )
    return tuple(column for column in columns if column in chosen)


def row_parameter(handler: Callable[..., Any], name: str) -> Parameter:
    """The parameter that takes the row: the first, and the only one that must be given."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Poller {name!r} cannot be declared: {handler!r} has no signature ({error}). Wrap it in a def that takes a row."
        ) from error
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in POSITIONAL:
        raise ConfigurationError(
            f"Poller {name!r} cannot be declared: its handler takes {signature}, and so no row by position. "
            f"Let its first parameter be the row, annotated with what that should be."
        )
    others = [p.name for p in parameters[1:] if p.default is Parameter.empty and p.kind not in VARIADIC]
    if others:
        hint = ", or pass the method of an instance" if parameters[0].name == "self" else ""
        raise ConfigurationError(
            f"Poller {name!r} cannot be declared: its handler takes {signature}, and a poller passes nothing but the row. "
            f"Give {', '.join(others)} a default, bind what it needs with functools.partial{hint}."
        )
    return parameters[0]


def resolved(annotation: Any, handler: Any) -> Any:
    """The annotation with the names in it looked up where the handler was written."""
    code = handler
    while isinstance(code, functools.partial) or hasattr(code, "__wrapped__"):
        code = code.func if isinstance(code, functools.partial) else code.__wrapped__
    if not hasattr(code, "__globals__"):
        code = inspect.unwrap(type(code).__call__)
    names = {each.__name__: each for each in getattr(code, "__type_params__", ())}
    holder = types.SimpleNamespace(__annotations__={"row": annotation})
    try:
        return typing.get_type_hints(holder, getattr(code, "__globals__", {}), names, include_extras=True)["row"]
    except Exception as error:
        raise Unreadable(
            f"which cannot be resolved ({error}): define or import it at the top of the module, not only for type checkers"
        ) from error


def plain(annotation: Any) -> Any:
    """The annotation without what says nothing of how a row is read: Annotated, None, and other names for a type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return plain(args[0])
    if origin in (typing.Union, types.UnionType):
        members = [each for each in args if each is not types.NoneType]
        return plain(members[0]) if len(members) == 1 else annotation
    if isinstance(annotation, NewType):
        return plain(annotation.__supertype__)
    if hasattr(annotation, "__value__") and not isinstance(annotation, type):  # `type Name = ...`
        return plain(annotation.__value__)
    return annotation


def worded(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def reader_for(annotation: Any) -> RowReader:
    """The reader of an annotation that is resolved and plain. Raises Unreadable."""
    cls = typing.get_origin(annotation) or annotation
    if any(cls is each for each in WHOLE_ROWS):
        return RowReader("mapping", None, frozenset(), dict)
    if not isinstance(cls, type):
        raise Unreadable(f"and a row cannot become that. Annotate it with {POSSIBLE}")
    # a class of one of these libraries is only ever met after its library was imported
    sqlalchemy, pydantic, msgspec = (sys.modules.get(each) for each in ("sqlalchemy.orm", "pydantic", "msgspec"))
    # a mapped class may be a dataclass or a model as well
    if sqlalchemy and (mapper := sys.modules["sqlalchemy"].inspect(cls, raiseerr=False)) is not None:
        return mapped_reader(mapper)
    if pydantic and issubclass(cls, pydantic.BaseModel) and cls is not pydantic.BaseModel:
        return model_reader(cls)
    if msgspec and issubclass(cls, msgspec.Struct):
        return struct_reader(cls, annotation, msgspec)
    if issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
        return typed_dict_reader(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return constructed_reader(cls, "named tuple")
    if dataclasses.is_dataclass(cls):
        return constructed_reader(cls, "dataclass")
    if hasattr(cls, "__attrs_attrs__"):
        return constructed_reader(cls, "attrs class")
    raise Unreadable(f"a class that no row can become. Annotate it with {POSSIBLE}")


def picker(names: Iterable[str]) -> Callable[[Row], dict[str, Any]]:
    """Takes from a row what goes by these names, as far as it is there."""
    wanted = tuple(names)
    return lambda row: {name: row[name] for name in wanted if name in row}


def constructed_reader(cls: Any, kind: str) -> RowReader:
    """By the constructor, which knows best: of InitVar, `init=False`, aliases, and when it is the user's own."""
    parameters = [each for each in inspect.signature(cls).parameters.values() if each.kind in NAMED]
    pick = picker(each.name for each in parameters)
    return RowReader(
        kind,
        tuple(each.name for each in parameters),
        frozenset(each.name for each in parameters if each.default is not Parameter.empty),
        lambda row: cls(**pick(row)),
    )


def typed_dict_reader(cls: Any) -> RowReader:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as error:
        raise Unreadable(
            f"in which an annotation cannot be resolved ({error}): import what it names at the top of the module, not only "
            f"for type checkers"
        ) from error
    required = set(cls.__required_keys__)
    for name, hint in hints.items():
        # under `from __future__ import annotations` the class itself does not see these
        if typing.NotRequired in marks(hint):
            required.discard(name)
        elif typing.Required in marks(hint):
            required.add(name)
    return RowReader("typed dict", tuple(hints), frozenset(hints.keys() - required), picker(hints))


def marks(hint: Any) -> list[Any]:
    """What is written around the type of a key."""
    found = []
    while (origin := typing.get_origin(hint)) in MARKS:
        found.append(origin)
        hint = typing.get_args(hint)[0]
    return found


def model_reader(cls: Any) -> RowReader:
    validate = cls.model_validate
    if cls.__pydantic_root_model__:  # has no fields: its root is the row
        return RowReader("model", None, frozenset(), lambda row: validate(dict(row)))
    if not cls.__pydantic_complete__ and not cls.model_rebuild(raise_errors=False):
        raise Unreadable(
            "a model whose annotations cannot be resolved yet: define what they name before the poller, "
            f"and call {cls.__name__}.model_rebuild() where that is in another place"
        )
    by_name = cls.model_config.get("validate_by_name") or cls.model_config.get("populate_by_name")
    by_alias = cls.model_config.get("validate_by_alias") is not False
    instead: dict[str, tuple[str, ...]] = {}
    required: set[str] = set()
    for name, info in cls.model_fields.items():
        names = aliases(info.validation_alias) if by_alias else []
        if by_name or not names:
            names.append(name)
        instead[names[0]] = tuple(names[1:])
        if info.is_required():
            required.add(names[0])
    pick = picker(dict.fromkeys([*instead, *(each for names in instead.values() for each in names)]))
    return RowReader(
        "model", tuple(instead), frozenset(instead.keys() - required), lambda row: validate(pick(row)), instead
    )


def aliases(alias: Any) -> list[str]:
    """The keys under which Pydantic looks for a field, in its order."""
    choices = [] if alias is None else getattr(alias, "choices", [alias])
    return [each if isinstance(each, str) else each.path[0] for each in choices]  # an AliasPath leads into its column


def struct_reader(cls: Any, annotation: Any, msgspec: Any) -> RowReader:
    if cls.__struct_config__.array_like:
        raise Unreadable("an array_like struct, which is made from places and not from names: leave that out")
    fields = msgspec.structs.fields(annotation)
    pick, convert = picker(each.encode_name for each in fields), msgspec.convert
    return RowReader(
        "struct",
        tuple(each.encode_name for each in fields),
        frozenset(each.encode_name for each in fields if not each.required),
        # strict: else the text 'null' is None for an int, 1 is a time, and no one ever knows
        lambda row: convert(pick(row), annotation, strict=True),
    )


def mapped_reader(mapper: Any) -> RowReader:
    """Columns as a query of the class would load them: not those that are deferred, and of subclasses in the same table."""
    table = mapper.local_table
    if not isinstance(table, sys.modules["sqlalchemy"].Table):
        raise Unreadable(
            "which is mapped to no table of its own. Annotate a class that is mapped to the poller's table"
        )
    kinds = [mapper, *(each for each in mapper.polymorphic_map.values() if each.isa(mapper))]
    wanted = {
        column.name
        for each in kinds
        for column, attribute in attributes(each, table)
        if not attribute.deferred or column.primary_key
    }
    fields = tuple(column.name for column in table.columns if column.name in wanted)
    return RowReader("mapped class", fields, frozenset(), MappedBuild(mapper))


def attributes(mapper: Any, table: Any) -> list[tuple[Any, Any]]:
    """The table's columns that the mapper knows, with their attributes; asks for nothing that would configure mappers."""
    unmapped = sys.modules["sqlalchemy.orm"].exc.UnmappedColumnError
    found = []
    for column in table.columns:
        try:
            found.append((column, mapper.get_property_by_column(column)))
        except unmapped:
            continue
    return found


class MappedBuild:
    """Makes instances of a mapped class as a query would, and leaves them detached.

    What was not loaded is marked as expired: a session the instance is added to loads it when it is asked for, and without a
    session SQLAlchemy raises DetachedInstanceError, as always.
    """

    def __init__(self, mapper: Any) -> None:
        self._mapper = mapper
        self._orm = sys.modules["sqlalchemy.orm"]
        self._dialect = importlib.import_module("sqlalchemy.dialects.postgresql.psycopg").dialect()
        self._plans: dict[Any, list[tuple[str, str]]] = {}  # by mapper: the names of columns and attributes

    @functools.cached_property
    def _converters(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """What a column's type makes of psycopg's value: enums, and what types of the user's own do."""
        found = []
        for column in self._mapper.local_table.columns:
            # only numbers ask for the column's type, and psycopg's own are those of `numeric`
            convert = column.type.dialect_impl(self._dialect).result_processor(self._dialect, NUMERIC_OID)
            if convert is not None:
                found.append((column.name, convert))
        return found

    @functools.cached_property
    def _discriminator(self) -> str | None:
        """The column that says which subclass a row is of, if it lies in the table."""
        column = self._mapper.polymorphic_on
        return next((each.name for each in self._mapper.local_table.columns if each is column), None)

    def __call__(self, row: Row) -> Any:
        values = dict(row)
        for name, convert in self._converters:
            if name in values:
                values[name] = convert(values[name])
        mapper = self._mapper
        if self._discriminator is not None and (identity := values.get(self._discriminator)) is not None:
            mapper = self._kind(identity)
        plan = self._plans.get(mapper) or self._plan(mapper)

        instance = mapper.class_manager.new_instance()
        state = self._orm.attributes.instance_state(instance)
        state.dict.update({attribute: values[column] for column, attribute in plan if column in values})
        # reconstructors, and what tracks mutable values; before the next line, which takes what they set for loaded
        state.manager.dispatch.load(state, None)
        self._orm.make_transient_to_detached(instance)
        return instance

    def _kind(self, identity: Any) -> Any:
        mapper = self._mapper.polymorphic_map.get(identity)
        if mapper is None or not mapper.isa(self._mapper):
            raise ConfigurationError(
                f"A row of {self._mapper.local_table} has {self._discriminator} = {identity!r}, which is no kind of "
                f"{self._mapper.class_.__name__}. Keep such rows out with where=..., or annotate the class of all of them."
            )
        return mapper

    def _plan(self, mapper: Any) -> list[tuple[str, str]]:
        # at the first row and not at the declaration: classes it refers to may have been defined in between
        self._orm.class_mapper(mapper.class_, configure=True)
        found = attributes(mapper, self._mapper.local_table)
        self._plans[mapper] = [(column.name, attribute.key) for column, attribute in found]
        return self._plans[mapper]
