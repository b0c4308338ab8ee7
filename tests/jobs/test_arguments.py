"""What a task accepts, what is stored of it, what a worker gets back, and what is said when something does not fit."""

import dataclasses
import enum
import functools
import json
import subprocess
import sys
import time as clock
import tracemalloc
from collections import OrderedDict, namedtuple
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
import typing_extensions

from rota.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from rota.jobs.arguments import Signature

T = TypeVar("T")
Number = TypeVar("Number", int, str)
UserId = NewType("UserId", int)
SOME_ID = UUID("5b7ea560-e01b-47b6-9101-52c011e4f74e")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Line:
    product: UUID
    price: Decimal
    count: int = 1


@dataclasses.dataclass
class DiscountedLine(Line):
    percent: int = 5


@dataclasses.dataclass
class Order:
    lines: list[Line]
    note: str | None = None


@dataclasses.dataclass
class Node:
    name: str
    next: "Node | None" = None


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    inner: "Box[T] | None" = None


@dataclasses.dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


@dataclasses.dataclass
class Cat:
    kind: Literal["cat"]
    name: str


@dataclasses.dataclass
class Dog:
    kind: Literal["dog"]
    name: str


@dataclasses.dataclass
class Horse:
    name: str


@dataclasses.dataclass
class Donkey:
    name: str


class Point(NamedTuple):
    x: int
    y: int = 0


class Search(TypedDict, total=False):
    text: Required[str]
    limit: int


class Options(TypedDict):
    urgent: bool
    colour: NotRequired[Colour]


class Invoice(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no")
    total: Decimal


class Event(msgspec.Struct):
    id: UUID
    span: tuple[int, int] = (0, 0)


async def send_welcome(user_id: int, *, urgent: bool = False) -> str: ...


def taking(annotation: Any, *, limit: int = 1_048_576) -> Signature:
    def task(value): ...

    task.__annotations__ = {"value": annotation}
    return Signature(task, "task", limit=limit)


def returning(annotation: Any) -> Signature:
    def task(): ...

    task.__annotations__ = {"return": annotation}
    return Signature(task, "task")


def stored(annotation: Any, value: Any) -> Any:
    return json.loads(taking(annotation).encode((value,), {}))["value"]


def read(annotation: Any, value: Any) -> Any:
    return taking(annotation).decode({"value": value})[1]["value"]


def refusal(annotation: Any, value: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        taking(annotation).encode((value,), {})
    return str(caught.value)


def refusal_of_stored(annotation: Any, value: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        taking(annotation).decode({"value": value})
    return str(caught.value)


def test_a_call_is_stored_by_parameter_name_as_compact_json() -> None:
    text = Signature(send_welcome, "send_welcome").encode((7,), {"urgent": True})

    assert text == '{"user_id":7,"urgent":true}'


def test_text_is_stored_as_it_is_not_escaped() -> None:
    assert taking(str).encode(("žluť 🦊",), {}) == '{"value":"žluť 🦊"}'


def test_a_default_that_was_not_passed_is_not_stored() -> None:
    subject = Signature(send_welcome, "send_welcome")

    assert subject.encode((7,), {}) == '{"user_id":7}'
    assert subject.decode({"user_id": 7}) == ((), {"user_id": 7})


def test_a_call_without_arguments_is_an_empty_object() -> None:
    def sweep(): ...

    assert Signature(sweep, "sweep").encode((), {}) == "{}"
    assert Signature(sweep, "sweep").decode({}) == ((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "user_id is missing"),
        ((7, True), {}, "2 arguments are given by position, and it takes 1"),
        ((7,), {"user_id": 8}, "user_id is given twice"),
        ((7,), {"urgnt": True}, "urgnt is not a parameter"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_call_that_would(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        Signature(send_welcome, "send_welcome").encode(args, kwargs)

    assert said in str(caught.value)
    assert "The call is send_welcome(user_id: int, *, urgent: bool = False)" in str(caught.value)


def test_a_wrong_type_is_refused_naming_task_parameter_expectation_and_value() -> None:
    with pytest.raises(InvalidArguments) as caught:
        Signature(send_welcome, "send_welcome").encode(("7",), {})

    assert str(caught.value) == (
        "Task 'send_welcome' was not enqueued: argument user_id is '7' (str), expected int. "
        "The call is send_welcome(user_id: int, *, urgent: bool = False) -> str."
    )


def test_positional_only_parameters_come_back_by_position() -> None:
    def move(x: int, y: int = 2, /, z: int = 3): ...

    subject = Signature(move, "move")

    assert subject.encode((1,), {"z": 5}) == '{"x":1,"z":5}'
    assert subject.decode({"x": 1, "y": 4, "z": 5}) == ((1, 4), {"z": 5})
    assert subject.decode({"x": 1, "z": 5}) == ((1,), {"z": 5})


def test_a_positional_only_parameter_cannot_be_passed_by_name() -> None:
    def move(x: int, /): ...

    with pytest.raises(InvalidArguments, match="x is not a parameter to be passed by name"):
        Signature(move, "move").encode((), {"x": 1})


def test_a_gap_between_positional_only_arguments_is_filled_with_the_default() -> None:
    def move(x: int = 1, y: int = 2, /): ...

    assert Signature(move, "move").decode({"y": 5}) == ((1, 5), {})


def test_extra_arguments_are_stored_under_the_names_of_args_and_kwargs() -> None:
    def log(level: int, *words: str, **fields: date): ...

    subject = Signature(log, "log")

    text = subject.encode((1, "a", "b"), {"day": date(2026, 1, 2)})

    assert json.loads(text) == {"level": 1, "words": ["a", "b"], "fields": {"day": "2026-01-02"}}
    assert subject.decode(json.loads(text)) == ((1, "a", "b"), {"day": date(2026, 1, 2)})


def test_defaults_ahead_of_args_keep_their_place() -> None:
    def log(level: int = 1, *words: str): ...

    assert Signature(log, "log").decode({"words": ["a"]}) == ((1, "a"), {})


def test_a_wrong_extra_argument_is_named_with_its_place() -> None:
    def log(*words: str, **fields: int): ...

    subject = Signature(log, "log")

    with pytest.raises(InvalidArguments, match=r"argument words\[1\] is 2 \(int\), expected str"):
        subject.encode(("a", 2), {})
    with pytest.raises(InvalidArguments, match=r"argument fields\['x'\] is 'y' \(str\), expected int"):
        subject.encode((), {"x": "y"})


def test_a_name_may_be_both_positional_only_and_an_extra() -> None:
    def log(level: int, /, **fields: int): ...

    subject = Signature(log, "log")

    assert subject.decode(json.loads(subject.encode((1,), {"level": 2}))) == ((1,), {"level": 2})


def test_a_stored_extra_that_names_a_parameter_is_refused() -> None:
    def log(level: int, **fields: int): ...

    with pytest.raises(InvalidArguments, match="fields has the name of another parameter"):
        Signature(log, "log").decode({"level": 1, "fields": {"level": 2}})


def test_unpacked_kwargs_are_checked_field_by_field() -> None:
    def paint(**options: Unpack[Options]): ...

    subject = Signature(paint, "paint")

    assert subject.decode(json.loads(subject.encode((), {"urgent": True, "colour": Colour.RED}))) == (
        (),
        {"urgent": True, "colour": Colour.RED},
    )
    with pytest.raises(InvalidArguments, match="options lacks urgent"):
        subject.encode((), {})


def test_unpacked_args_are_checked_one_by_one() -> None:
    def paint(*args: Unpack[tuple[int, str]]): ...

    subject = Signature(paint, "paint")

    assert subject.decode(json.loads(subject.encode((1, "a"), {}))) == ((1, "a"), {})
    with pytest.raises(InvalidArguments, match="args"):
        subject.encode((), {})


def test_skipped_parameters_are_neither_accepted_nor_stored_nor_converted() -> None:
    def charge(amount: int, database: object, gateway: threading_lock = None, retries: int = 0): ...

    subject = Signature(charge, "charge", skip=frozenset({"database", "gateway"}))

    assert subject.encode((1, 2), {}) == '{"amount":1,"retries":2}'
    assert subject.decode({"amount": 1, "retries": 2}) == ((), {"amount": 1, "retries": 2})
    with pytest.raises(InvalidArguments, match="database is not a parameter"):
        subject.encode((1,), {"database": 1})
    with pytest.raises(InvalidArguments, match="database is not a parameter"):
        subject.decode({"amount": 1, "database": 1})


threading_lock = type("Lock", (), {})


def test_a_skipped_parameter_is_not_accepted_among_the_extras_either() -> None:
    def charge(amount: int, *, database: object, **extra: int): ...

    subject = Signature(charge, "charge", skip=frozenset({"database"}))

    with pytest.raises(InvalidArguments, match="database is not a parameter"):
        subject.encode((1,), {"database": 1})


def test_a_skipped_parameter_that_only_a_position_reaches_is_refused_at_declaration() -> None:
    def charge(database: object, *amounts: int): ...

    with pytest.raises(ConfigurationError, match="'database' is filled in by Rota"):
        Signature(charge, "charge", skip=frozenset({"database"}))


@pytest.mark.parametrize(
    ("annotation", "value", "form"),
    [
        (bytes, b"\x00\xff", "AP8="),
        (datetime, datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (date, date(2026, 1, 2), "2026-01-02"),
        (time, time(3, 4, 5, 6), "03:04:05.000006"),
        (timedelta, timedelta(days=1, seconds=2, microseconds=3), "P1DT2.000003S"),
        (timedelta, timedelta(seconds=-1), "P-1DT86399S"),
        (UUID, SOME_ID, "5b7ea560-e01b-47b6-9101-52c011e4f74e"),
        (Decimal, Decimal("1.50"), "1.50"),
        (Path, Path("/tmp/a"), "/tmp/a"),
        (Colour, Colour.RED, "red"),
        (Level, Level.HIGH, 2),
        (enum.Flag("Mode", "R W X"), None, None),
        (Literal["a", 1], 1, 1),
        (list[UUID], [SOME_ID], [str(SOME_ID)]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (tuple[()], (), []),
        (tuple, (1, "a"), [1, "a"]),
        (set[str], {"b", "c", "a"}, ["a", "b", "c"]),
        (frozenset[int], frozenset({1}), [1]),
        (dict[int, str], {7: "a"}, {"7": "a"}),
        (dict[bool, int], {True: 1}, {"true": 1}),
        (dict[date, int], {date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        (dict[Level, int], {Level.LOW: 1}, {"1": 1}),
        (dict[Any, Any], {"a": [1]}, {"a": [1]}),
        (Sequence[int], [1], [1]),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (int | None, None, None),
        (Union[int, str], "a", "a"),  # noqa: UP007
        (Annotated[int, "positive"], 1, 1),
        (UserId, UserId(1), 1),
        (Number, 1, 1),
        (Point, Point(1), {"x": 1, "y": 0}),
        (namedtuple("Pair", "a b"), None, None),  # noqa: PYI024
        (Search, {"text": "a"}, {"text": "a"}),
        (Line, Line(SOME_ID, Decimal(1)), {"product": str(SOME_ID), "price": "1", "count": 1}),
        (Box[date], Box(date(2026, 1, 2), Box(date(2026, 1, 3))), None),
        (Invoice, Invoice(no=1, total=Decimal("2.5")), {"no": 1, "total": "2.5"}),
        (Event, Event(SOME_ID, (1, 2)), {"id": str(SOME_ID), "span": [1, 2]}),
        (Any, {"a": [1, None, True, "x", 1.5]}, {"a": [1, None, True, "x", 1.5]}),
    ],
)
def test_each_type_has_its_form_as_json_and_comes_back(annotation: Any, value: Any, form: Any) -> None:
    value = value if value is not None or form is None and annotation == (int | None) else sample(annotation)
    form = form if form is not None else stored(annotation, value)

    assert stored(annotation, value) == form
    assert read(annotation, form) == value
    assert type(read(annotation, form)) is type(value)
