"""How a row reaches a handler: which columns are chosen, what is made of them, and which handlers are refused."""

import contextlib
import dataclasses
import enum
import functools
import inspect
import keyword
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import (  # noqa: UP035
    Annotated,
    Any,
    Dict,
    Generic,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase

from rota.errors import ConfigurationError
from rota.pollers.rows import RowReader, columns_for, reader_of

T = TypeVar("T")


@dataclasses.dataclass
class Source:
    id: int
    url: str
    tries: int = 3


ROW = {"id": 7, "url": "https://example.org", "tries": 1}


def reading(annotation: Any) -> RowReader:
    def handler(row): ...

    handler.__annotations__["row"] = annotation
    return reader_of(handler, "fetch")


def refusal(handler: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        reader_of(handler, "fetch")
    return str(refused.value)


# the shapes of handlers


class Fetcher:
    def method(self, source: Source) -> None: ...

    @classmethod
    def of_class(cls, source: Source) -> None: ...

    @staticmethod
    def of_no_one(source: Source) -> None: ...

    async def __call__(self, source: "Source", *, dry: bool = False) -> None: ...


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def nothing() -> Iterator[None]:  # decorates with a function of another module, where Source is no name
    yield


def sync_handler(source: Source) -> None: ...


async def async_handler(source: Source) -> None: ...


def by_position(source: Source, /) -> None: ...


def with_defaults(source: Source, retries: int = 3, *more: int, loud: bool = False, **rest: Any) -> None: ...


def with_a_default(source: Optional["Source"] = None) -> None: ...


def of_all(*sources: Source) -> None: ...


def client_first(client: object, source: "Source", *, page: int) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        sync_handler,
        async_handler,
        by_position,
        with_defaults,
        with_a_default,
        of_all,
        Fetcher().method,
        Fetcher.of_class,
        Fetcher.of_no_one,
        Fetcher(),
        functools.partial(Fetcher()),
        functools.partial(client_first, object(), page=1),
        wrapped(functools.partial(client_first, object(), page=1)),
        functools.partial(wrapped(client_first), object(), page=1),
        wrapped(Fetcher().method),
        nothing()(Fetcher().method),
        functools.partial(nothing()(client_first), object(), page=1),
        lambda source: None,
        lambda *args, **kwargs: None,
    ],
)
def test_whatever_can_be_called_with_a_row_alone_is_a_handler(handler: Any) -> None:
    reader = reader_of(handler, "fetch")

    assert reader.kind == ("mapping" if getattr(handler, "__name__", "") == "<lambda>" else "dataclass")


def without_row() -> None: ...


def keywords_only(*, source: Source) -> None: ...


def anything_by_name(**rest: Any) -> None: ...


@pytest.mark.parametrize("handler", [without_row, keywords_only, anything_by_name])
def test_handler_that_takes_no_row_by_position_is_refused(handler: Any) -> None:
    assert "Poller 'fetch' cannot be declared" in refusal(handler)
    assert "no row by position. Let its first parameter be the row" in refusal(handler)


def test_handler_that_needs_more_than_the_row_is_refused_with_all_that_it_needs() -> None:
    def handler(source: Source, client: object, limit: int = 3, *, page: int, dry: bool = False): ...

    assert "nothing but the row. Give client, page a default, bind what it needs with functools.partial." in refusal(
        handler
    )


def test_function_that_waits_for_its_self_is_refused_with_the_way_to_give_it() -> None:
    assert "or pass the method of an instance" in refusal(Fetcher.method)


def test_partial_that_gives_the_row_itself_leaves_none_to_pass() -> None:
    assert "no row by position" in refusal(functools.partial(sync_handler, source=None))


@pytest.mark.parametrize("handler", [min, 7, None])
def test_what_has_no_signature_is_refused(handler: Any) -> None:
    assert "has no signature" in refusal(handler)


def test_annotation_that_cannot_be_resolved_is_refused_with_its_text() -> None:
    def handler(source: "Nowhere"): ...  # noqa: F821

    assert "parameter 'source' of its handler is annotated Nowhere, which cannot be resolved" in refusal(handler)
    assert "not only for type checkers" in refusal(handler)


# the annotations

Alias = NewType("Alias", Source)
NewName = typing_extensions.TypeAliasType("NewName", Source | None)


@pytest.mark.parametrize(
    "annotation",
    [
        Source,
        "Source",
        "Source | None",
        Source | None,
        Optional[Source],  # noqa: UP045
        Annotated[Source, "a note"],
        Annotated[Source | None, "a note"] | None,
        Alias,
        NewName,
    ],
)
def test_annotation_is_read_through_what_is_wrapped_around_it(annotation: Any) -> None:
    reader = reading(annotation)

    assert (reader.kind, reader.fields, reader.optional) == ("dataclass", ("id", "url", "tries"), {"tries"})
    assert reader.build(ROW) == Source(7, "https://example.org", 1)


@pytest.mark.parametrize(
    "annotation",
    [dict, dict[str, Any], Dict[str, Any], Mapping[str, Any], MutableMapping, Mapping | None, Any, object, "dict"],  # noqa: UP006
)
def test_mapping_has_all_columns_and_is_a_dict_of_its_own(annotation: Any) -> None:
    reader = reading(annotation)

    built = reader.build(ROW)

    assert (reader.kind, reader.fields, reader.optional) == ("mapping", None, frozenset())
    assert (built, type(built), built is ROW) == (ROW, dict, False)
    assert columns_for(reader, list(ROW), poller="fetch", table="sources") == ("id", "url", "tries")


class Plain:
    def __init__(self, id: int) -> None: ...


class OldModel:
    __fields__ = ()


@pytest.mark.parametrize(
    "annotation",
    [
        Plain,
        OldModel,
        int,
        str,
        list[int],
        tuple,
        Source | str,
        T,
        None,
        7,
        [1],
        enum.Enum,
        DeclarativeBase,
        pydantic.BaseModel,
    ],
)
def test_anything_else_is_refused_and_what_is_possible_named(annotation: Any) -> None:
    with pytest.raises(
        ConfigurationError, match="Annotate it with a dataclass, .*Pydantic 2 model.* dict\\[str, Any\\]"
    ):
        reading(annotation)


class NoFields(TypedDict): ...


@dataclasses.dataclass
class Hidden:
    id: int

    __signature__ = inspect.signature(lambda *args, **kwargs: None)


@pytest.mark.parametrize("annotation", [NoFields, Hidden, msgspec.Struct, namedtuple("Empty", [])])
def test_class_that_chooses_no_columns_is_refused(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no fields to choose the columns by"):
        reading(annotation)


# dataclasses, named tuples, typed dicts


@dataclasses.dataclass(frozen=True, slots=True)
class Odd(Generic[T]):
    id: int
    secret: dataclasses.InitVar[str]
    seed: dataclasses.InitVar[int] = 4
    tags: list[str] = dataclasses.field(default_factory=list)
    size: int = dataclasses.field(init=False, default=0)
    name: T = dataclasses.field(kw_only=True)

    def __post_init__(self, secret: str, seed: int) -> None:
        object.__setattr__(self, "size", len(secret) + seed)


@pytest.mark.parametrize("annotation", [Odd, Odd[str]])
def test_dataclass_is_made_of_what_its_constructor_takes(annotation: Any) -> None:
    reader = reading(annotation)

    assert set(reader.fields or ()) == {"id", "secret", "seed", "tags", "name"}
    assert reader.optional == {"seed", "tags"}
    assert reader.build({"id": 1, "secret": "abc", "name": "n", "size": 99}) == dataclasses.replace(
        Odd(1, "abc", name="n"), secret="abc", seed=4
    )
    assert reader.build({"id": 1, "secret": "abc", "name": "n"}).size == 7


def test_dataclass_of_pydantic_is_validated_under_its_aliases() -> None:
    @pydantic.dataclasses.dataclass
    class Checked:
        number: int = pydantic.Field(alias="id")
        made: int = pydantic.Field(3, init=False)

    reader = reading(Checked)

    assert (reader.fields, reader.optional) == (("id",), frozenset())
    assert reader.build({"id": 3, "made": 9}) == Checked(id=3)
    with pytest.raises(pydantic.ValidationError):
        reader.build({"id": "seven"})


def test_class_of_attrs_is_made_of_what_its_constructor_takes() -> None:
    class Made:  # as attrs leaves a class with `_token` and a default: attrs.has() asks for no more
        __attrs_attrs__ = ("_token", "tries")

        def __init__(self, token: str, tries: int = 3) -> None:
            self._token, self.tries = token, tries

    reader = reading(Made)
    built = reader.build({"token": "t"})

    assert (reader.kind, reader.fields, reader.optional) == ("attrs class", ("token", "tries"), {"tries"})
    assert (built._token, built.tries) == ("t", 3)


class Point(NamedTuple):
    id: int
    y: int = 2


@pytest.mark.parametrize("annotation", [Point, namedtuple("Other", ["id", "y"], defaults=[2])])
def test_named_tuple_is_made_by_name(annotation: Any) -> None:
    reader = reading(annotation)

    assert (reader.kind, reader.fields, reader.optional) == ("named tuple", ("id", "y"), {"y"})
    assert reader.build({"y": 5, "id": 1, "other": 0}) == (1, 5)
    assert reader.build({"id": 1}) == (1, 2)
    assert type(reader.build({"id": 1})) is annotation


class Whole(TypedDict):
    id: int
    url: NotRequired[str]
    note: "Annotated[NotRequired[str], 'as under postponed evaluation']"


class Partly(Whole, total=False):
    extra: int
    must: "Required[int]"


class ReadOnly(typing_extensions.TypedDict):
    id: typing_extensions.ReadOnly[int]
    url: NotRequired[typing_extensions.ReadOnly[str]]


@pytest.mark.parametrize(
    ("annotation", "optional"),
    [(Whole, {"url", "note"}), (Partly, {"url", "note", "extra"}), (ReadOnly, {"url"})],
)
def test_typed_dict_needs_its_required_keys(annotation: Any, optional: set[str]) -> None:
    reader = reading(annotation)

    assert (reader.kind, reader.optional) == ("typed dict", optional)
    assert reader.build({"id": 1, "must": 2, "unknown": 3}) == {
        key: value for key, value in {"id": 1, "must": 2}.items() if key in (reader.fields or ())
    }


def test_typed_dict_with_a_key_that_cannot_be_resolved_is_refused() -> None:
    class Broken(TypedDict):
        id: "Nowhere"  # noqa: F821

    with pytest.raises(ConfigurationError, match="an annotation cannot be resolved \\(name 'Nowhere'"):
        reading(Broken)


# Pydantic and msgspec


class Model(pydantic.BaseModel):
    model_config = {"extra": "forbid"}

    id: int = pydantic.Field(strict=True, gt=0)
    url: str = pydantic.Field(alias="link")
    seen: datetime | None = pydantic.Field(None, validation_alias="last_seen", serialization_alias="ignored")
    note: str = pydantic.Field("-", serialization_alias="ignored")


def test_model_is_validated_from_the_columns_of_its_aliases() -> None:
    reader = reading(Model)
    now = datetime.now(UTC)

    assert (reader.kind, reader.fields) == ("model", ("id", "link", "last_seen", "note"))
    assert reader.optional == {"last_seen", "note"}
    assert reader.build({"id": 1, "link": "u", "last_seen": now, "more": 1}) == Model(id=1, link="u", last_seen=now)


def test_what_pydantic_says_of_a_row_stays_as_it_is() -> None:
    with pytest.raises(pydantic.ValidationError, match="greater than 0"):
        reading(Model).build({"id": 0, "link": "u"})


class ByName(pydantic.BaseModel):
    model_config = {"populate_by_name": True, "extra": "forbid"}

    url: str = pydantic.Field(alias="link")
    size: int = pydantic.Field(0, alias="bytes")


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        (["url"], ("url",)),
        (["link"], ("link",)),
        (["url", "link"], ("link",)),  # as Pydantic does; the other would be one too many
        (["size", "bytes", "link"], ("bytes", "link")),
    ],
)
def test_model_that_takes_either_name_takes_the_column_there_is(columns: list[str], chosen: tuple[str, ...]) -> None:
    reader = reading(ByName)

    assert columns_for(reader, columns, poller="fetch", table="sources") == chosen
    assert reader.build(dict.fromkeys(chosen, "5")).url == "5"


def test_model_that_takes_either_name_is_missing_both() -> None:
    with pytest.raises(ConfigurationError, match="needs link or url, and the table has only id"):
        columns_for(reading(ByName), ["id"], poller="fetch", table="sources")


def test_model_that_goes_by_alias_alone_does_not_take_a_column_of_the_field_s_name() -> None:
    with pytest.raises(ConfigurationError, match="needs link, and the table has only id, url"):
        columns_for(reading(Model), ["id", "url"], poller="fetch", table="sources")


def test_model_that_goes_by_name_alone_has_no_aliases() -> None:
    class Named(pydantic.BaseModel):
        model_config = {"validate_by_name": True, "validate_by_alias": False}
        url: str = pydantic.Field(alias="link")

    assert reading(Named).fields == ("url",)
    assert reading(Named).instead == {"url": ()}
    assert reading(Named).build({"url": "u", "link": "l"}).url == "u"


def test_model_with_paths_and_choices_takes_the_columns_they_begin_with() -> None:
    class Deep(pydantic.BaseModel):
        first: int = pydantic.Field(1, validation_alias=pydantic.AliasPath("data", "first"))
        second: int = pydantic.Field(validation_alias=pydantic.AliasPath("data", "second"))
        name: str = pydantic.Field(validation_alias=pydantic.AliasChoices("title", "label"))

    reader = reading(Deep)
    row = {"label": "n", "data": {"second": 2}}

    assert (reader.fields, reader.optional) == (("data", "title"), frozenset())
    assert columns_for(reader, ["label", "id", "data"], poller="fetch", table="sources") == ("label", "data")
    assert reader.build(row).model_dump() == {"first": 1, "second": 2, "name": "n"}


def test_aliases_of_a_generator_count() -> None:
    class Shouted(pydantic.BaseModel):
        model_config = {"alias_generator": str.upper}
        last_seen: int

    assert reading(Shouted).fields == ("LAST_SEEN",)


def test_root_model_is_the_whole_row() -> None:
    reader = reading(pydantic.RootModel[dict[str, int]])

    assert reader.fields is None
    assert reader.build({"id": 1}).root == {"id": 1}


def test_model_that_is_not_complete_is_refused() -> None:
    class Waiting(pydantic.BaseModel):
        id: "NotYetDefined"  # noqa: F821

    with pytest.raises(
        ConfigurationError, match="define what they name before the poller, and call Waiting.model_rebuild"
    ):
        reading(Waiting)


class Struct(msgspec.Struct, Generic[T], rename="camel", forbid_unknown_fields=True):
    id: int
    last_seen: datetime | None = None
    value: T | None = None


def test_struct_is_converted_under_its_names_in_the_data() -> None:
    reader = reading(Struct)
    now = datetime(2026, 1, 1)

    assert (reader.kind, reader.fields) == ("struct", ("id", "lastSeen", "value"))
    assert reader.optional == {"lastSeen", "value"}
    assert reader.build({"id": 1, "lastSeen": now, "more": 1}) == Struct(1, now)


def test_generic_struct_knows_its_types() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int | null`, got `str`"):
        reading(Struct[int]).build({"id": 1, "value": "7"})


@pytest.mark.parametrize(("value", "type_"), [("7", int), ("null", int | None), (1, datetime), (1, bool), (2.0, int)])
def test_struct_makes_nothing_else_of_a_value(value: Any, type_: Any) -> None:
    struct = msgspec.defstruct("Guess", [("value", type_)])

    with pytest.raises(msgspec.ValidationError):
        reading(struct).build({"value": value})


def test_struct_that_is_made_from_places_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="annotated Placed, an array_like struct"):
        reading(msgspec.defstruct("Placed", [("id", int)], array_like=True))


# all of them alike

names = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and not hasattr(pydantic.BaseModel, name) and not hasattr(tuple, name)
)
values = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.uuids()
    | st.datetimes() | st.timedeltas() | st.decimals(allow_nan=False) | st.lists(st.integers())
    | st.dictionaries(st.text(), st.integers())
)  # fmt: skip


@pytest.mark.long
@settings(deadline=None)
@given(st.data())
def test_every_kind_of_record_has_the_values_of_the_row_and_its_own_defaults(data: st.DataObject) -> None:
    fields = data.draw(st.lists(names, min_size=1, max_size=6, unique=True))
    required = data.draw(st.integers(0, len(fields)))  # those after it have a default
    must, may = fields[:required], fields[required:]
    row = data.draw(st.fixed_dictionaries(dict.fromkeys(must, values), optional=dict.fromkeys(may, values)))
    other = data.draw(st.dictionaries(names.filter(lambda name: name not in fields), values))
    expected = dict.fromkeys(may, "default") | row
    kinds: dict[Any, Callable[[Any], Any]] = {
        dataclasses.make_dataclass(
            "D", [*((each, Any) for each in must), *((each, Any, "default") for each in may)]
        ): vars,
        namedtuple("N", fields, defaults=["default"] * len(may)): lambda built: built._asdict(),
        pydantic.create_model("M", **dict.fromkeys(must, Any), **dict.fromkeys(may, (Any, "default"))): vars,
        msgspec.defstruct("S", [*((each, Any) for each in must), *((each, Any, "default") for each in may)]): (
            msgspec.structs.asdict
        ),
        TypedDict("T", dict.fromkeys(must, Any) | dict.fromkeys(may, NotRequired[Any])): (  # type: ignore[operator]
            lambda built: dict.fromkeys(may, "default") | built
        ),
    }
    for kind, seen in kinds.items():
        reader = reading(kind)

        assert (reader.fields, reader.optional) == (tuple(fields), set(may))
        assert seen(reader.build(row | other)) == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(names, unique=True), st.sets(names), st.lists(names, unique=True))
def test_columns_are_chosen_in_table_order_unless_a_needed_one_is_missing(
    fields: list[str], optional: set[str], columns: list[str]
) -> None:
    reader = RowReader("dataclass", tuple(fields), frozenset(optional), dict)
    missing = [name for name in fields if name not in optional and name not in columns]

    if missing:
        with pytest.raises(ConfigurationError) as refused:
            columns_for(reader, columns, poller="fetch", table="sources")
        assert f"needs {', '.join(missing)}, and the table has only {', '.join(columns)}." in str(refused.value)
    else:
        chosen = columns_for(reader, columns, poller="fetch", table="sources")
        assert chosen == tuple(name for name in columns if name in fields)


def test_table_that_lacks_fields_is_told_with_all_of_them() -> None:
    with pytest.raises(ConfigurationError) as refused:
        columns_for(reading(Source), ["url_text", "tries"], poller="fetch", table="public.sources")

    assert str(refused.value) == (
        "Poller 'fetch' cannot read rows of public.sources: its handler takes a dataclass that needs id, url, and the "
        "table has only url_text, tries. Name the fields as the columns are, or give those that are no columns a default."
    )


def test_nothing_is_imported_for_a_handler_that_does_not_use_it() -> None:
    program = (
        "import sys, dataclasses\n"
        "from rota.pollers.rows import reader_of\n"
        "@dataclasses.dataclass\n"
        "class Source:\n    id: int\n"
        "def handler(source: Source): ...\n"
        "reader_of(handler, 'fetch').build({'id': 1})\n"
        "sys.exit(bool({'pydantic', 'msgspec', 'sqlalchemy', 'attr'} & set(sys.modules)))\n"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
