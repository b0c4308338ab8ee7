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
from datetime import UTC, date, datetime, time, timedelta, timezone
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


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


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


Pair = namedtuple("Pair", "a b")


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
    def paint(*args: *tuple[int, str]): ...

    subject = Signature(paint, "paint")

    assert subject.decode(json.loads(subject.encode((1, "a"), {}))) == ((1, "a"), {})
    with pytest.raises(InvalidArguments, match="args"):
        subject.encode((), {})


def test_skipped_parameters_are_neither_accepted_nor_stored_nor_converted() -> None:
    def charge(amount: int, database: object, gateway: threading_lock = None, retries: int = 0): ...

    subject = Signature(charge, "charge", skip=frozenset({"database", "gateway"}))

    assert subject.encode((1, 2), {}) == '{"amount":1,"retries":2}'
    assert subject.decode({"amount": 1, "retries": 2}) == ((), {"amount": 1, "retries": 2})
    with pytest.raises(InvalidArguments, match="database is filled in where the job runs"):
        subject.encode((1,), {"database": 1})
    with pytest.raises(InvalidArguments, match="database is filled in where the job runs"):
        subject.decode({"amount": 1, "database": 1})


threading_lock = type("Lock", (), {})


def test_a_skipped_parameter_is_not_accepted_among_the_extras_either() -> None:
    def charge(amount: int, *, database: object, **extra: int): ...

    subject = Signature(charge, "charge", skip=frozenset({"database"}))

    with pytest.raises(InvalidArguments, match="database is filled in where the job runs"):
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
        (Mode, Mode.READ | Mode.WRITE, 3),
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
        (Pair, Pair(1, "x"), {"a": 1, "b": "x"}),
        (Search, {"text": "a"}, {"text": "a"}),
        (Line, Line(SOME_ID, Decimal(1)), {"product": str(SOME_ID), "price": "1", "count": 1}),
        (
            Box[date],
            Box(date(2026, 1, 2), Box(date(2026, 1, 3))),
            {"content": "2026-01-02", "inner": {"content": "2026-01-03", "inner": None}},
        ),
        (Invoice, Invoice(no=1, total=Decimal("2.5")), {"no": 1, "total": "2.5"}),
        (Event, Event(SOME_ID, (1, 2)), {"id": str(SOME_ID), "span": [1, 2]}),
        (Any, {"a": [1, None, True, "x", 1.5]}, {"a": [1, None, True, "x", 1.5]}),
    ],
)
def test_each_type_has_its_form_as_json_and_comes_back(annotation: Any, value: Any, form: Any) -> None:
    assert stored(annotation, value) == form
    assert read(annotation, form) == value
    assert type(read(annotation, form)) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "given"),
    [
        (int, "7", "'7' (str)"),
        (int, True, "True (bool)"),
        (int, 7.0, "7.0 (float)"),
        (float, "1.5", "'1.5' (str)"),
        (float, True, "True (bool)"),
        (bool, 1, "1 (int)"),
        (str, 7, "7 (int)"),
        (str, b"a", "b'a' (bytes)"),
        (bytes, "a", "'a' (str)"),
        (bytes, bytearray(b"a"), "bytearray(b'a') (bytearray)"),
        (date, datetime(2026, 1, 2, tzinfo=UTC), "(datetime)"),
        (datetime, "2026-01-02T00:00:00Z", "(str)"),
        (UUID, str(SOME_ID), "(str)"),
        (Decimal, 1, "1 (int)"),
        (Path, "/tmp", "'/tmp' (str)"),
        (Colour, "red", "'red' (str)"),
        (Literal[1], True, "True (bool)"),
        (list[int], (1,), "(1,) (tuple)"),
        (tuple[int, int], (1,), "(1,) (tuple)"),
        (set[int], [1], "[1] (list)"),
        (Sequence[str], "abc", "'abc' (str)"),
        (dict[str, int], [("a", 1)], "(list)"),
        (Line, {"product": str(SOME_ID), "price": "1"}, "(dict)"),
        (Invoice, {"no": 1, "total": "1"}, "(dict)"),
        (Event, Line(SOME_ID, Decimal(1)), "(Line)"),
        (int | str, 1.5, "1.5 (float), expected int | str"),
        (None, 0, "0 (int)"),
    ],
)
def test_nothing_is_coerced_when_a_job_is_enqueued(annotation: Any, value: Any, given: str) -> None:
    assert given in refusal(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, True),
        (int, 7.0),
        (float, "1.5"),
        (float, float("inf")),
        (bool, 1),
        (str, 7),
        (bytes, "not base64!"),
        (datetime, "2026-01-02T00:00:00"),
        (datetime, 1767312000),
        (date, "2026-01-02T00:00:00Z"),
        (timedelta, 5),
        (timedelta, "P"),
        (timedelta, "P1M"),
        (timedelta, "P99999999999D"),
        (UUID, "{5b7ea560-e01b-47b6-9101-52c011e4f74e}"),
        (Decimal, 1),
        (Decimal, "NaN"),
        (Decimal, "x"),
        (Colour, "RED"),
        (Level, True),
        (Literal["a"], "b"),
        (Mode, 8),
        (list[int], {"0": 1}),
        (tuple[int, int], [1]),
        (dict[int, int], {"a": 1}),
        (dict[int, int], {"1.0": 1}),
        (dict[float, int], {"1": 1, "1.0": 1}),
        (Line, []),
        (Even, {"number": 3}),
        (Invoice, {"no": "x"}),
        (Event, {"id": 1}),
        (None, 0),
    ],
)
def test_nothing_is_coerced_when_a_payload_is_read(annotation: Any, value: Any) -> None:
    assert "The stored arguments of task 'task' do not fit" in refusal_of_stored(annotation, value)


def test_an_int_is_taken_for_a_float_it_is_equal_to() -> None:
    assert type(read(float, stored(float, 3))) is float
    assert read(float, stored(float, 2**60)) == 2**60
    assert "which no float is equal to" in refusal(float, 2**53 + 1)
    assert "range of float" in refusal(float, 10**400)


def test_a_large_float_survives_jsonb_writing_it_without_an_exponent() -> None:
    assert stored(float, 1.4251532420240418e17) == 142515324202404176
    assert read(float, 142515324202404176) == 1.4251532420240418e17
    assert type(read(float, 142515324202404176)) is float


def test_values_of_subclasses_of_str_and_int_are_stored_as_what_they_are() -> None:
    class Name(str): ...

    assert stored(str, Name("a")) == "a"
    assert stored(int, Level.HIGH) == 2
    assert stored(Any, [Name("a"), Level.HIGH, OrderedDict(a=1)]) == ["a", 2, {"a": 1}]


def test_a_naive_datetime_is_refused_for_it_names_no_instant() -> None:
    said = refusal(datetime, datetime(2026, 1, 2))

    assert "is 2026-01-02 00:00:00, a naive datetime, which names no instant. Give it a time zone" in said


def test_a_datetime_keeps_its_instant_and_offset_whatever_its_zone() -> None:
    in_prague = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Prague"))

    back = read(datetime, stored(datetime, in_prague))

    assert back.timestamp() == in_prague.timestamp()
    assert back.utcoffset() == in_prague.utcoffset()


def test_a_datetime_is_read_with_z_as_with_an_offset() -> None:
    assert read(datetime, "2026-01-02T03:04:05Z") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_datetime_whose_offset_has_a_fraction_of_a_second_keeps_its_instant() -> None:
    odd = datetime(2026, 1, 2, tzinfo=timezone(timedelta(microseconds=1)))

    assert read(datetime, stored(datetime, odd)) == odd


def test_a_time_whose_zone_has_no_offset_without_a_date_is_refused() -> None:
    assert "has no offset in whole seconds without a date" in refusal(time, time(1, tzinfo=ZoneInfo("Europe/Prague")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("PT5S", timedelta(seconds=5)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("P1W2DT3H4M5.6S", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5.6)),
        ("-P1DT1H", -timedelta(days=1, hours=1)),
        ("PT-0.5S", -timedelta(milliseconds=500)),
    ],
)
def test_any_iso_duration_without_months_is_read(text: str, value: timedelta) -> None:
    assert read(timedelta, text) == value


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity")])
def test_a_decimal_that_is_no_number_is_refused(value: Decimal) -> None:
    assert "expected a finite Decimal" in refusal(Decimal, value)


@pytest.mark.parametrize("annotation", [float, Any, list[float], dict[str, Any]])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_json_cannot_hold_is_refused_wherever_it_is(annotation: Any, value: float) -> None:
    nested = {float: value, Any: [value], list[float]: [value], dict[str, Any]: {"a": value}}

    assert "JSON has no NaN and no infinity" in refusal(annotation, nested[annotation])


@pytest.mark.parametrize(("text", "said"), [("a\0b", "NUL character"), ("a\ud800b", "lone surrogate")])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: [s], lambda s: {s: 1}, lambda s: {"a": {"b": s}}])
def test_text_that_jsonb_cannot_hold_is_refused_wherever_it_is(text: str, said: str, wrap: Any) -> None:
    assert said in refusal(Any, wrap(text))


def test_the_six_characters_that_spell_a_nul_escape_are_no_nul() -> None:
    assert stored(str, "\\u0000") == "\\u0000"


def test_integers_of_any_size_that_python_reads_back_are_stored() -> None:
    assert stored(int, 10**4299) == 10**4299
    assert "more than 4300 digits" in refusal(int, 10**4300)
    assert "more than 4300 digits" in refusal(Any, -(10**5000))


@pytest.mark.parametrize("annotation", [Any, list[Any], dict[str, Any]])
def test_a_structure_that_contains_itself_is_refused_as_such(annotation: Any) -> None:
    knot: Any = {} if annotation == dict[str, Any] else []
    knot.update(a=knot) if annotation == dict[str, Any] else knot.append(knot)

    assert "contains itself" in refusal(annotation, knot)


def test_an_instance_that_contains_itself_is_refused_as_such() -> None:
    node = Node("a")
    node.next = node

    assert "contains itself" in refusal(Node, node)


def test_nesting_beyond_a_hundred_levels_is_refused() -> None:
    deep: Any = functools.reduce(lambda inner, _: [inner], range(99), [])

    assert stored(Any, deep) == deep
    assert "nested more than 100 levels deep" in refusal(Any, [deep])
    assert len(refusal(Any, [deep])) < 1000


@pytest.mark.parametrize("value", [{1: "a"}, {None: "a"}, {(1, 2): "a"}, {"a": {1: 2}}])
def test_untyped_keys_that_are_no_text_are_refused(value: Any) -> None:
    assert "a JSON key is text" in refusal(Any, value)


@pytest.mark.parametrize("value", [(1, 2), {1}, b"a", SOME_ID, date(2026, 1, 2), object(), [Decimal(1)]])
def test_an_untyped_value_that_is_no_json_is_refused_with_the_advice_to_annotate(value: Any) -> None:
    assert "annotate it with its type" in refusal(Any, value)


def test_an_unannotated_parameter_takes_plain_json_as_it_is() -> None:
    def task(value, /, other=None): ...

    subject = Signature(task, "task")

    assert subject.decode(json.loads(subject.encode(({"a": [1]},), {"other": "x"}))) == (({"a": [1]},), {"other": "x"})


def test_a_fault_deep_inside_is_named_by_its_path() -> None:
    order = Order([Line(SOME_ID, Decimal(1)), Line(SOME_ID, 2.5)])

    assert "argument value.lines[1].price is 2.5 (float), expected Decimal" in refusal(Order, order)
    assert "argument value['a'][0].lines[1].price is 2.5" in refusal(dict[str, list[Order]], {"a": [order]})


def test_a_stored_fault_deep_inside_is_named_by_its_path() -> None:
    line = {"product": str(SOME_ID), "price": 2}

    assert "value.lines[0].price is 2 (int), expected decimal number as text" in refusal_of_stored(
        Order, {"lines": [line]}
    )


def test_a_field_with_a_default_may_be_missing_and_one_without_may_not() -> None:
    assert read(Line, {"product": str(SOME_ID), "price": "1"}) == Line(SOME_ID, Decimal(1), 1)
    assert read(Point, {"x": 1}) == Point(1, 0)
    assert "value lacks price: Line has product, price, count" in refusal_of_stored(Line, {"product": str(SOME_ID)})
    assert "value lacks text" in refusal_of_stored(Search, {"limit": 1})
    assert "value lacks text" in refusal(Search, {"limit": 1})


@pytest.mark.parametrize(("annotation", "value"), [(Point, {"x": 1, "z": 2}), (Search, {"text": "", "z": 2})])
def test_an_unknown_field_is_refused_by_name(annotation: Any, value: Any) -> None:
    assert "value.z is unknown" in refusal_of_stored(annotation, value)


def test_a_class_that_refuses_the_stored_fields_is_quoted() -> None:
    assert "value is no valid Even: ValueError: odd" in refusal_of_stored(Even, {"number": 3})


def test_an_instance_of_a_subclass_is_refused_rather_than_cut_down() -> None:
    assert "without what DiscountedLine adds" in refusal(Line, DiscountedLine(SOME_ID, Decimal(1)))


class Transfer(msgspec.Struct):
    amount: Annotated[int, msgspec.Meta(gt=0)]
    to: list[str]


class Payment(pydantic.BaseModel):
    amount: int = pydantic.Field(gt=0)
    card: str = pydantic.Field(max_length=4)


def changed_later() -> Payment:
    payment = Payment(amount=1, card="1234")
    payment.amount = -1
    return payment


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Transfer, Transfer("7", []), "Expected `int`, got `str` - at `$.amount`"),  # type: ignore[arg-type]
        (Transfer, Transfer(0, []), "Expected `int` >= 1 - at `$.amount`"),
        (Transfer, Transfer(1, [b"\xff"]), "which would be read back as Transfer(amount=1, to=['/w=='])"),  # type: ignore[list-item]
        (list[Transfer], [Transfer(1, []), Transfer(0, [])], "argument value[1] is no valid Transfer"),
        (Transfer | None, Transfer(0, []), "`$.amount`"),
        (Payment, Payment.model_construct(amount=-1, card="1234"), "amount Input should be greater than 0"),
        (Payment, Payment.model_construct(amount=1), "card Field required"),
        (Payment, changed_later(), "amount Input should be greater than 0"),
    ],
)
def test_an_instance_that_its_own_class_would_refuse_is_refused_with_the_field_named(
    annotation: Any, value: Any, said: str
) -> None:
    assert said in refusal(annotation, value)


def test_pydantic_and_msgspec_faults_name_the_field() -> None:
    assert "total" in refusal_of_stored(Invoice, {"no": 1})
    assert "$.id" in refusal_of_stored(Event, {"id": "x"})


def test_a_model_that_holds_what_json_cannot_is_refused() -> None:
    class Reading(pydantic.BaseModel):
        value: float

    assert "JSON has no NaN" in refusal(Reading, Reading(value=float("nan")))
    assert "cannot be written as JSON" in refusal(Reading, Reading.model_construct(value=object()))


def test_a_struct_that_was_made_of_anything_is_refused_when_it_is_put_and_not_when_it_is_read() -> None:
    assert "value is no valid Event: ValidationError: Expected `uuid`, got `int` - at `$.id`" in refusal(
        Event,
        Event(7),  # type: ignore[arg-type]
    )


def test_a_value_of_a_union_goes_to_the_member_of_exactly_its_class() -> None:
    assert type(read(float | int, stored(float | int, 1))) is int
    assert type(read(float | int, stored(float | int, 1.0))) is float
    assert type(read(str | UUID, stored(str | UUID, SOME_ID))) is UUID
    assert type(read(str | UUID, stored(str | UUID, "a"))) is str
    assert type(read(str | Colour, stored(str | Colour, Colour.RED))) is Colour
    assert type(read(date | datetime, stored(date | datetime, datetime.now(UTC)))) is datetime
    assert read(list[int] | list[str], stored(list[int] | list[str], ["a"])) == ["a"]
    assert read(Cat | Dog | None, stored(Cat | Dog | None, Dog("dog", "Rex"))) == Dog("dog", "Rex")


def test_a_value_that_would_come_back_as_another_member_of_its_union_is_refused() -> None:
    assert "would be read back as UUID in str | UUID" in refusal(str | UUID, str(SOME_ID))
    assert "would be read back as Horse in Horse | Donkey" in refusal(Horse | Donkey, Donkey("Jack"))
    assert "Tell them apart" in refusal(Horse | Donkey, Donkey("Jack"))


def test_a_fault_inside_the_one_member_meant_is_named_by_its_path() -> None:
    assert "value.name is 1 (int), expected str" in refusal(Cat | str, Cat("cat", 1))
    assert "value.next.name is 1 (int), expected str" in refusal(Node, Node("a", Node(1)))


def test_a_member_that_is_null_as_json_is_not_taken_for_none() -> None:
    class Choice(enum.Enum):
        NOTHING = None
        SOMETHING = 1

    assert read(Choice, stored(Choice, Choice.NOTHING)) is Choice.NOTHING
    assert "would be read back as None" in refusal(Choice | None, Choice.NOTHING)


def test_equal_sets_are_stored_equally() -> None:
    letters = [chr(number) for number in range(97, 123)]

    assert stored(set[str], set(letters)) == stored(set[str], {*letters[::-1]}) == letters


def test_an_abstract_collection_takes_any_of_its_kind_and_comes_back_as_the_plain_one() -> None:
    assert read(Sequence[int], stored(Sequence[int], (1, 2))) == [1, 2]
    assert read(Sequence[int], stored(Sequence[int], range(2))) == [0, 1]
    assert read(Mapping[str, int], stored(Mapping[str, int], OrderedDict(a=1))) == {"a": 1}


def test_a_type_may_contain_itself() -> None:
    nodes = Node("a", Node("b", Node("c")))

    assert read(Node, stored(Node, nodes)) == nodes


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is new in Python 3.12")
def test_a_type_alias_may_contain_itself() -> None:
    names: dict[str, Any] = {"date": date}
    exec("type Tree = date | dict[str, Tree]", names)
    value = {"a": date(2026, 1, 2), "b": {"c": date(2026, 1, 3)}}

    assert read(names["Tree"], stored(names["Tree"], value)) == value


def test_a_generic_alias_takes_its_arguments() -> None:
    pair = typing_extensions.TypeAliasType("pair", tuple[T, T], type_params=(T,))

    assert read(pair[date], stored(pair[date], (date(2026, 1, 2), date(2026, 1, 3)))) == (
        date(2026, 1, 2),
        date(2026, 1, 3),
    )


def test_annotations_written_as_text_are_resolved() -> None:
    def task(order: "Order", *, on: "date | None" = None) -> "Line": ...

    subject = Signature(task, "task")
    order = Order([], "x")

    assert subject.decode(json.loads(subject.encode((order,), {"on": date(2026, 1, 2)}))) == (
        (),
        {"order": order, "on": date(2026, 1, 2)},
    )
    assert subject.decode_result({"product": str(SOME_ID), "price": "1"}) == Line(SOME_ID, Decimal(1))


def test_all_annotations_that_cannot_be_resolved_or_converted_are_named_at_once() -> None:
    def task(a: "Missing", b: int, c: threading_lock, d: list[complex]): ...  # noqa: F821

    with pytest.raises(ConfigurationError) as caught:
        Signature(task, "task")

    assert "parameter 'a' is annotated Missing, which cannot be resolved (name 'Missing' is not defined)" in str(
        caught.value
    )
    assert "parameter 'c' is annotated Lock, which is none of the supported types: None, bool, int" in str(caught.value)
    assert "parameter 'd' is annotated list[complex]" in str(caught.value)
    assert "'b'" not in str(caught.value)


def test_an_unsupported_field_of_a_class_is_named() -> None:
    @dataclasses.dataclass
    class Holder:
        lock: threading_lock

    with pytest.raises(ConfigurationError, match=r"annotated .*Holder, and its field Holder\.lock is Lock"):
        taking(Holder)


@dataclasses.dataclass
class WithInitVar:
    seed: dataclasses.InitVar[int]


class Doubled(enum.Enum):
    TEXT = str(SOME_ID)
    ID = SOME_ID


class Compound(enum.Enum):
    PAIR = (1, 2)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (complex, "none of the supported types"),
        (type[int], "none of the supported types"),
        ([int], "none of the supported types"),
        (5, "none of the supported types"),
        (list["Missing"], "cannot be resolved"),  # noqa: F821
        (str | bytes, "str and bytes are both text"),
        (Path | str, "Path and str are both text"),
        (dict[list[int], int], "cannot be the key"),
        (dict[int | str, int], "cannot be the key"),
        (WithInitVar, "InitVar"),
        (Doubled, "two of its values are the same as JSON"),
        (Compound, "is not a simple one"),
    ],
)
def test_an_annotation_that_cannot_work_is_refused_at_declaration(annotation: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        taking(annotation)


def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(PayloadTooLarge, match=r"would take 112 bytes as JSON, and the limit is 111\."):
        taking(str, limit=111).encode(("ř" * 50,), {})

    assert taking(str, limit=112).encode(("ř" * 50,), {})


@pytest.mark.parametrize(
    ("annotation", "make"),
    [
        (str, lambda: "x" * 200_000_000),
        (str, lambda: "ř" * 100_000_000),
        (bytes, lambda: bytes(200_000_000)),
        (list[str], lambda: ["x" * 1_000_000] * 200),
        (list[int], lambda: [1] * 20_000_000),
        (Any, lambda: {str(n): "x" * 1_000_000 for n in range(200)}),
        (Any, lambda: functools.reduce(lambda inner, _: [inner, inner], range(60), "x")),
    ],
)
@pytest.mark.long
def test_a_payload_far_over_the_limit_is_refused_at_once_and_without_a_copy(annotation: Any, make: Any) -> None:
    value = make()
    subject = taking(annotation)
    tracemalloc.start()
    began = clock.perf_counter()

    with pytest.raises(PayloadTooLarge, match="at least"):
        subject.encode((value,), {})

    took = clock.perf_counter() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
    assert took < 60


def test_a_value_that_fails_while_it_is_read_is_refused_with_the_cause() -> None:
    class Broken(list[int]):
        def __iter__(self) -> Any:
            raise RuntimeError("torn page")

        __repr__ = __iter__

    with pytest.raises(InvalidArguments, match="reading it failed with RuntimeError: torn page") as caught:
        taking(list[int]).encode((Broken(),), {})

    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("payload", [None, 7, "text", [1], {"value": 1, "more": 2}, {}, {1: 2}])
def test_a_payload_that_is_not_of_this_signature_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidArguments, match="enqueued by another version of the task"):
        taking(int).decode(payload)


def test_a_result_is_stored_and_read_by_the_return_annotation() -> None:
    subject = returning(list[UUID])

    assert subject.encode_result([SOME_ID]) == f'["{SOME_ID}"]'
    assert subject.decode_result([str(SOME_ID)]) == [SOME_ID]


@pytest.mark.parametrize("annotation", [int, None, Any, str | None])
def test_no_result_is_none_whatever_the_annotation(annotation: Any) -> None:
    assert returning(annotation).encode_result(None) is None
    assert returning(annotation).decode_result(None) is None


@pytest.mark.parametrize("annotation", ["Missing", complex, "list[Missing]"])
def test_a_result_without_a_usable_annotation_is_plain_json(annotation: Any) -> None:
    assert returning(annotation).encode_result({"a": [1]}) == '{"a":[1]}'
    assert returning(annotation).decode_result({"a": [1]}) == {"a": [1]}


def test_a_result_that_cannot_be_stored_is_refused_saying_what_was_returned() -> None:
    with pytest.raises(InvalidArguments, match=r"Task 'task' returned '7' \(str\), which was not stored"):
        returning(int).encode_result("7")
    with pytest.raises(InvalidArguments, match=r"the result\['a'\] is .* expected None, bool"):
        returning(Any).encode_result({"a": object()})
    with pytest.raises(PayloadTooLarge, match="result of task 'task' would take at least 2,000,000 bytes"):
        returning(str).encode_result("x" * 2_000_000)


def test_a_stored_result_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="The stored result of task 'task' is not what its annotation says"):
        returning(int).decode_result("7")


def test_a_partial_and_a_callable_object_have_the_signature_they_are_called_with() -> None:
    class Mailer:
        def __call__(self, to: "UserId", *, subject: str = "") -> None: ...

    def send(sender: int, to: "UserId"): ...

    assert Signature(Mailer(), "mail").encode((1,), {"subject": "x"}) == '{"to":1,"subject":"x"}'
    assert Signature(functools.partial(send, 1), "send").encode((2,), {}) == '{"to":2}'


def test_a_callable_without_a_signature_is_refused_at_declaration() -> None:
    with pytest.raises(ConfigurationError, match="has no signature"):
        Signature(min, "min")


def test_neither_pydantic_nor_msgspec_is_imported_for_a_task_that_does_not_use_them() -> None:
    program = (
        "import sys\n"
        "from rota.jobs.arguments import Signature\n"
        "def task(a: int, b: list[str] | None = None): ...\n"
        "Signature(task, 'task').encode((1,), {'b': ['x']})\n"
        "sys.exit(bool({'pydantic', 'msgspec'} & set(sys.modules)))\n"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
