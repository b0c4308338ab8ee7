"""For every type a task may take: what goes in comes out, and what cannot is refused in one way only."""

import dataclasses
import enum
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rota.errors import ConfigurationError, InvalidArguments
from rota.jobs.arguments import Signature

# how long an example takes says more about what else the machine does
unhurried = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("unhurried", unhurried)
settings.load_profile("unhurried")


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2
    NONE = None
    LIGHT = Decimal("0.5")


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Size(enum.StrEnum):
    SMALL = "s"
    LARGE = "l"


@dataclasses.dataclass(frozen=True)
class Address:
    street: str
    since: date
    floor: int | None = None


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Filter(TypedDict, total=False):
    name: str
    ids: list[UUID]


@dataclasses.dataclass
class Tree:
    label: str
    children: list["Tree"] = dataclasses.field(default_factory=list)


class Invoice(pydantic.BaseModel):
    number: int
    total: Decimal
    issued_at: datetime
    tags: set[str] = set()


class Event(msgspec.Struct):
    id: UUID
    span: tuple[int, str]
    data: bytes = b""


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
offsets = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
whole_offsets = st.builds(timezone, st.integers(-1000, 1000).map(lambda minutes: timedelta(minutes=minutes)))
datetimes = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets | whole_offsets)
instants = st.datetimes(timezones=st.just(UTC))
addresses = st.builds(Address, texts, st.dates(), st.none() | st.integers())
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)

Kind = tuple[Any, st.SearchStrategy[Any]]

KEYS: list[Kind] = [
    (bool, st.booleans()),
    (int, st.integers()),
    (float, floats),
    (str, texts),
    (bytes, st.binary(max_size=20)),
    (datetime, datetimes),
    (date, st.dates()),
    (time, st.times(timezones=st.none() | whole_offsets)),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, decimals),
    (Path, texts.map(Path)),
    (PurePosixPath, texts.map(PurePosixPath)),
    (Size, st.sampled_from(Size)),
    (Permission, st.integers(0, 7).map(Permission)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
]
HASHABLE: list[Kind] = [
    *KEYS,
    (type(None), st.none()),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (Address, addresses),
    (Point, st.builds(Point, floats, floats)),
]
OTHER: list[Kind] = [
    (Any, plain),
    (dict, st.dictionaries(texts, plain)),
    (list, st.lists(plain)),
    (Filter, st.fixed_dictionaries({}, optional={"name": texts, "ids": st.lists(st.uuids(), max_size=3)})),
    (Tree, st.recursive(st.builds(Tree, texts), lambda inner: st.builds(Tree, texts, st.lists(inner, max_size=3)))),
    (
        Invoice,
        st.builds(Invoice, number=st.integers(), total=decimals, issued_at=instants, tags=st.sets(texts)),
    ),
    (Event, st.builds(Event, st.uuids(), st.tuples(st.integers(-(2**60), 2**60), texts), st.binary())),
]


def containers(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        kinds.map(lambda kind: (list[kind[0]], st.lists(kind[1], max_size=3))),
        kinds.map(lambda kind: (tuple[kind[0], ...], st.lists(kind[1], max_size=3).map(tuple))),
        # a member that is null as JSON is refused where None may stand as well
        kinds.filter(lambda kind: kind[0] is not Any).map(
            lambda kind: (kind[0] | None, st.none() | kind[1].filter(lambda value: value is not Colour.NONE))
        ),
        st.tuples(kinds, kinds).map(lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))),
        st.sampled_from(HASHABLE).map(lambda kind: (set[kind[0]], st.sets(kind[1], max_size=3))),
        st.sampled_from(HASHABLE).map(lambda kind: (frozenset[kind[0]], st.frozensets(kind[1], max_size=3))),
        st.tuples(st.sampled_from(KEYS), kinds).map(
            lambda two: (dict[two[0][0], two[1][0]], st.dictionaries(two[0][1], two[1][1], max_size=3))
        ),
    )


kinds = st.recursive(st.sampled_from([*HASHABLE, *OTHER]), containers, max_leaves=5)


class Hostile:
    """Fails whatever is asked of it as a value."""

    def fail(self, *_: Any) -> Any:
        raise RuntimeError("no")

    __len__ = __iter__ = __eq__ = __hash__ = __str__ = __int__ = __float__ = fail


class HostileText(str):
    __len__ = __str__ = isascii = encode = __contains__ = Hostile.fail


class HostileList(list[Any]):
    __iter__ = Hostile.fail


junk = st.recursive(
    plain
    | st.one_of(*(strategy for _, strategy in KEYS))
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(), max_size=5)
    | st.datetimes()
    | st.binary().map(bytearray)
    | st.builds(Hostile)
    | st.builds(HostileText)
    | st.builds(HostileList)
    | st.sampled_from([object, ..., range(3), Decimal("sNaN"), "\0", "\ud800"])
    | st.just(5000).map(lambda digits: 10**digits),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | texts | st.none() | st.text(st.characters(), max_size=3), inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Address, inner, inner)
        | st.builds(Tree, inner, inner)
        | st.builds(lambda value: Invoice.model_construct(number=value), inner)
        | st.builds(Event, inner, inner)
    ),
    max_leaves=6,
)


def signature(annotation: Any) -> Signature:
    def task(value): ...  # type: ignore[no-untyped-def]

    task.__annotations__ = {"value": annotation, "return": annotation}
    return Signature(task, "task")


def through_jsonb(text: str) -> Any:
    """As PostgreSQL gives it back: numbers without an exponent."""
    return json.loads(text, parse_float=lambda number: json.loads(f"{Decimal(number):f}"))


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except InvalidArguments:
        return True
    return False


@given(kinds, st.data())
def test_every_argument_comes_back_equal_and_of_its_type(kind: Kind, data: st.DataObject) -> None:
    annotation, values = kind
    subject = signature(annotation)
    value = data.draw(values)

    args, kwargs = subject.decode(through_jsonb(subject.encode((value,), {})))

    assert args == ()
    assert kwargs == {"value": value}
    assert type(kwargs["value"]) is type(value) or annotation is Any


@given(kinds, st.data())
def test_every_result_comes_back_equal(kind: Kind, data: st.DataObject) -> None:
    annotation, values = kind
    subject = signature(annotation)
    value = data.draw(values)

    stored = subject.encode_result(value)

    assert subject.decode_result(None if stored is None else through_jsonb(stored)) == value


@given(kinds, kinds, st.data())
def test_a_member_of_a_union_comes_back_as_itself_or_is_refused(first: Kind, second: Kind, data: st.DataObject) -> None:
    assume(Any not in (first[0], second[0]))
    try:
        subject = signature(first[0] | second[0] if isinstance(first[0], type) else second[0] | first[0])
    except (ConfigurationError, TypeError):
        assume(False)
    value = data.draw(first[1] | second[1])
    if is_refused(lambda: subject.encode((value,), {})):
        return

    back = subject.decode(json.loads(subject.encode((value,), {})))[1]["value"]

    assert back == value
    assert type(back) is type(value)


@given(kinds, junk)
def test_any_value_at_all_comes_back_equal_or_is_refused_as_invalid(kind: Kind, value: Any) -> None:
    subject = signature(kind[0])
    if is_refused(lambda: subject.encode((value,), {})):
        return

    back = subject.decode(through_jsonb(subject.encode((value,), {})))[1]["value"]

    assert back == value


@given(kinds, junk)
def test_any_result_at_all_comes_back_equal_or_is_refused_as_invalid(kind: Kind, value: Any) -> None:
    subject = signature(kind[0])
    if is_refused(lambda: subject.encode_result(value)):
        return

    stored = subject.encode_result(value)

    assert subject.decode_result(None if stored is None else through_jsonb(stored)) == value


@given(kinds, plain)
def test_any_payload_at_all_is_read_as_something_storable_or_refused(kind: Kind, stored: Any) -> None:
    subject = signature(kind[0])
    if is_refused(lambda: subject.decode({"value": stored})):
        return

    _, read = subject.decode({"value": stored})

    assert subject.decode(json.loads(subject.encode((), read))) == ((), read)


@given(junk | st.dictionaries(texts, junk))
def test_a_payload_that_is_no_object_of_its_parameters_is_refused(payload: Any) -> None:
    assume(not isinstance(payload, dict) or "value" not in payload)

    with pytest.raises(InvalidArguments):
        signature(int).decode(payload)


@given(
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "rest", "extra"]), st.integers(), max_size=5),
)
def test_a_call_is_accepted_just_when_python_accepts_it_and_binds_the_same(
    args: list[int], kwargs: dict[str, int]
) -> None:
    def everything(a: int, /, b: int, *rest: int, c: int = 3, **extra: int) -> Any:
        return a, b, rest, c, extra

    subject = Signature(everything, "everything")
    try:
        expected = everything(*args, **kwargs)
    except TypeError:
        assert is_refused(lambda: subject.encode(tuple(args), kwargs))
        return

    read_args, read_kwargs = subject.decode(json.loads(subject.encode(tuple(args), kwargs)))

    assert everything(*read_args, **read_kwargs) == expected


def several(i: int, t: str, /, b: bool, *, a: Any = None, n: int = 0) -> None: ...


simple = (
    st.integers() | st.booleans() | st.text(max_size=5) | st.none() | st.floats() | st.sampled_from([Size.SMALL, 2**63])
)


@settings(max_examples=150)
@given(
    st.lists(simple, max_size=4) | st.tuples(st.integers(), st.text(), st.booleans()),
    st.dictionaries(st.sampled_from(["i", "b", "a", "n", "x"]), simple, max_size=3),
)
def test_a_short_call_is_written_as_the_long_way_writes_it_or_not_at_all(args: Any, kwargs: dict[str, Any]) -> None:
    signature = Signature(several, "several")

    short = signature.short(tuple(args), kwargs)

    assert short is None or short == signature.encode(tuple(args), kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1, "zoë"), {"b": True}), ((-(2**63) + 1, '"\\', False), {"a": "x", "n": 2}), ((0, "", True), {"a": False})],
)
def test_numbers_flags_and_short_texts_are_written_the_short_way(args: Any, kwargs: dict[str, Any]) -> None:
    signature = Signature(several, "several")

    assert signature.short(args, kwargs) == signature.encode(args, kwargs)
