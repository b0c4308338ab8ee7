"""Events whose types are classes, and stored data of older shapes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import psycopg
import pydantic
import pytest

from rota import ConfigurationError, EventLog, InvalidArguments, UndecodableEvent
from rota.testing.app import TestRota


@dataclass
class Line:
    product: UUID
    price: Decimal


@dataclass
class OrderPlaced:
    at: datetime
    lines: list[Line] = field(default_factory=list)


class OrderPaid(pydantic.BaseModel):
    amount: Decimal
    on: date


class OrderShipped(msgspec.Struct):
    parcel: str
    weight: float = 0.5


class OrderNoted(TypedDict):
    text: str
    by: UUID


class OrderRated(NamedTuple):
    stars: int


@dataclass
class OrderClosed:
    pass


KEY = UUID(int=7)
PLACED = OrderPlaced(datetime(2026, 3, 4, tzinfo=UTC), [Line(KEY, Decimal("9.90"))])
PAID = OrderPaid(amount=Decimal("9.90"), on=date(2026, 3, 5))
SHIPPED = OrderShipped("p-1")


@pytest.fixture
def orders(rota_app: TestRota) -> EventLog:
    return rota_app.event_log("orders")


def shapes(dsn: str) -> list[tuple[str, int]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select type, shape from rota.events order by position").fetchall()


async def test_instances_are_appended_as_they_are_and_come_back_as_such(orders: EventLog) -> None:
    for cls in (OrderPlaced, OrderPaid, OrderShipped, OrderRated, OrderClosed):
        orders.event(cls)
    values = [PLACED, PAID, SHIPPED, OrderRated(5), OrderClosed()]

    for value in values:
        await orders.append("order-7", value)

    events = await orders.read("order-7")
    assert [event.data for event in events] == values
    assert [event.type for event in events] == ["OrderPlaced", "OrderPaid", "OrderShipped", "OrderRated", "OrderClosed"]


async def test_a_typed_dict_is_named_by_its_class_or_its_type(orders: EventLog) -> None:
    orders.event(OrderNoted)

    await orders.append("order-7", OrderNoted, {"text": "x", "by": KEY})
    await orders.append("order-7", "OrderNoted", {"text": "y", "by": KEY})

    assert [event.data for event in await orders.read("order-7")] == [
        {"text": "x", "by": KEY},
        {"text": "y", "by": KEY},
    ]


async def test_a_type_can_have_another_name_than_its_class(orders: EventLog, rota_database: str) -> None:
    @orders.event("order.closed", shape=3)
    @dataclass
    class Closed:
        why: str

    await orders.append("order-7", Closed("done"))

    (event,) = await orders.read("order-7")
    assert (event.type, event.data) == ("order.closed", Closed("done"))
    assert shapes(rota_database) == [("order.closed", 3)]


async def test_the_type_of_data_may_be_named_as_well(orders: EventLog) -> None:
    orders.event(OrderShipped)

    await orders.append("order-7", "OrderShipped", OrderShipped("p-1"))
    await orders.append("order-7", "OrderShipped", {"parcel": "p-2"})
    await orders.append("order-7", OrderShipped, {"parcel": "p-3", "weight": 2})

    assert [event.data for event in await orders.read("order-7")] == [
        OrderShipped("p-1"),
        OrderShipped("p-2"),
        OrderShipped("p-3", 2),
    ]


async def test_types_that_nobody_registered_are_plain_json(orders: EventLog) -> None:
    orders.event(OrderShipped)

    await orders.append("order-7", "OrderSeen", {"by": "x"})

    assert (await orders.read("order-7"))[0].data == {"by": "x"}


async def test_many_are_bound_by_their_values(orders: EventLog, rota_database: str) -> None:
    orders.event(OrderShipped)
    orders.event(OrderClosed)

    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        on = orders.on(connection)
        await on.append_many([on.bind("order-7", OrderShipped("p-1")), on.bind("order-7", OrderClosed())])

    assert [event.data for event in await orders.read("order-7")] == [OrderShipped("p-1"), OrderClosed()]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((OrderClosed(),), "OrderClosed() (OrderClosed) is no event of this log. Register its class with @log.event"),
        ((OrderClosed, {}), "is no event of this log"),
        ((7, {}), "7 (int) is no event of this log"),
        ((SHIPPED, {"parcel": "x"}), "is an event with its data, and data is given as well"),
        (("OrderShipped", {"parcels": 1}), "An event of type 'OrderShipped' is a OrderShipped"),
        (("OrderPlaced", {"at": "soon"}), "data.at is 'soon' (str)"),
        (("OrderPlaced", OrderPlaced("soon")), "OrderPlaced.at is 'soon' (str), expected datetime"),  # type: ignore[arg-type]
        ((OrderPlaced(PLACED.at, [Line(KEY, Decimal("NaN"))]),), "OrderPlaced.lines[0].price"),
    ],
)
@pytest.mark.writes_nothing
def test_what_does_not_fit_its_type_is_refused_in_words(given: tuple[Any, ...], told: str, orders: EventLog) -> None:
    orders.event(OrderShipped)
    orders.event(OrderPlaced)

    with pytest.raises(InvalidArguments) as caught:
        orders.append_sync("order-7", *given)

    assert told in str(caught.value)
    assert str(caught.value).startswith("Nothing was appended to stream 'order-7' of event log 'orders': ")


async def test_data_of_older_shapes_go_through_one_upcast_after_the_other(orders: EventLog, rota_database: str) -> None:
    await orders.append("order-7", "OrderShipped", {"package": "p-1"})

    @orders.upcast("OrderShipped", from_shape=1)
    def rename(data: dict[str, Any]) -> dict[str, Any]:
        return {"parcel": data["package"], "grams": 500}

    await orders.append("order-7", "OrderShipped", {"parcel": "p-2", "grams": 700})

    @orders.upcast("OrderShipped", from_shape=2)
    def weigh(data: dict[str, Any]) -> dict[str, Any]:
        return {"parcel": data["parcel"], "weight": data["grams"] / 1000}

    orders.event("OrderShipped", shape=3)(OrderShipped)
    await orders.append("order-7", OrderShipped("p-3", 0.9))

    assert [event.data for event in await orders.read("order-7")] == [
        OrderShipped("p-1", 0.5),
        OrderShipped("p-2", 0.7),
        OrderShipped("p-3", 0.9),
    ]
    assert shapes(rota_database) == [("OrderShipped", 1), ("OrderShipped", 2), ("OrderShipped", 3)]


async def test_plain_json_is_upcast_too(orders: EventLog) -> None:
    await orders.append("order-7", "OrderSeen", {"who": "x"})

    orders.upcast("OrderSeen", from_shape=1)(lambda data: {"by": data["who"]})

    assert (await orders.read("order-7"))[0].data == {"by": "x"}


async def test_an_event_that_cannot_be_decoded_says_where_it_is_and_why(orders: EventLog) -> None:
    appended = await orders.append("order-7", "OrderShipped", {"package": "p-1"})
    orders.event(OrderShipped)

    with pytest.raises(UndecodableEvent) as caught:
        await orders.read("order-7")

    error = caught.value
    assert (error.source, error.position, error.order_xid, error.type) == (
        "orders",
        appended.position,
        appended.order_xid,
        "OrderShipped",
    )
    assert "is no valid OrderShipped" in error.why
    assert (
        f"The event at position {appended.position} of 'orders', of type 'OrderShipped', cannot be decoded: data"
        in str(error)
    )
    assert error.__cause__ is not None
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_an_upcast_that_is_missing_or_fails_is_named(orders: EventLog) -> None:
    await orders.append("order-7", "OrderShipped", {"package": "p-1"})
    orders.event("OrderShipped", shape=3)(OrderShipped)

    with pytest.raises(UndecodableEvent, match="nothing is registered that makes that into shape 2"):
        await orders.read("order-7")
    orders.upcast(OrderShipped, from_shape=1)(lambda data: data["parcel"])
    with pytest.raises(UndecodableEvent, match="the upcast from shape 1 failed with KeyError: 'parcel'"):
        await orders.read("order-7")


async def test_an_event_of_newer_code_is_not_taken_for_something_else(orders: EventLog, rota_database: str) -> None:
    orders.event(OrderShipped)
    await orders.append("order-7", OrderShipped("p-1"))
    with psycopg.connect(rota_database) as connection:
        connection.execute("update rota.events set shape = 2")

    with pytest.raises(UndecodableEvent, match="it has shape 2, and this process knows none beyond 1: newer code"):
        await orders.read("order-7")


async def test_json_that_python_cannot_hold_is_undecodable(orders: EventLog, rota_database: str) -> None:
    await orders.append("order-7", "OrderSeen")
    with psycopg.connect(rota_database) as connection:
        connection.execute("update rota.events set data = to_jsonb(repeat('9', 5000)::numeric)")

    with pytest.raises(UndecodableEvent, match="its data cannot be read as JSON"):
        await orders.read("order-7")


class Odd:
    def __init__(self, x: int) -> None: ...


@dataclass
class Strange:
    what: Odd


def test_what_cannot_be_a_type_is_refused_when_it_is_declared(orders: EventLog) -> None:
    orders.event(OrderShipped)

    with pytest.raises(
        ConfigurationError, match="Odd cannot be an event of 'orders': Odd is a class which is none of the"
    ):
        orders.event(Odd)
    with pytest.raises(ConfigurationError, match=r"and its field Strange.what is Odd"):
        orders.event(Strange)
    with pytest.raises(ConfigurationError, match="the type 'OrderShipped' is OrderShipped already"):
        orders.event("OrderShipped")(OrderClosed)
    with pytest.raises(ConfigurationError, match="it is the type 'OrderShipped' already"):
        orders.event("Again")(OrderShipped)
    with pytest.raises(ConfigurationError, match="a shape is a whole number from 1 to 32767, not 0"):
        orders.event(shape=0)(OrderClosed)
    with pytest.raises(ConfigurationError, match="the type of an event cannot be ''"):
        orders.event("")(OrderClosed)
    with pytest.raises(ConfigurationError, match="and a type of events is a class"):
        orders.event("f")(lambda: None)  # type: ignore[arg-type]


def test_upcasts_lead_to_the_shape_of_the_class_and_no_further(orders: EventLog) -> None:
    orders.event("OrderShipped", shape=2)(OrderShipped)
    orders.upcast("OrderShipped", from_shape=1)(dict)
    orders.upcast("OrderClosed", from_shape=1)(dict)

    with pytest.raises(ConfigurationError, match="there is a function for that already"):
        orders.upcast("OrderShipped", from_shape=1)(dict)
    with pytest.raises(ConfigurationError, match=r"its class has shape 2.* event\('OrderShipped', shape=3\)"):
        orders.upcast("OrderShipped", from_shape=2)(dict)
    with pytest.raises(ConfigurationError, match=r"its class has shape 1.* event\('OrderClosed', shape=2\)"):
        orders.event(OrderClosed)
