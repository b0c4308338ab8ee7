"""Events are read in an order that no late commit can break."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.conftest import OwnServer
from tests.events.reading import Reader, read_to_end
from tests.events.writers import Writers

from rota import Rota
from rota.testing.app import TestRota

Connection = psycopg.Connection[Any]


@pytest.fixture
def first(rota_database: str) -> Iterator[Connection]:
    with psycopg.connect(rota_database) as connection:
        yield connection


@pytest.fixture
def second(rota_database: str) -> Iterator[Connection]:
    with psycopg.connect(rota_database) as connection:
        yield connection


def test_what_is_committed_late_with_a_lower_position_is_seen_in_its_place(
    rota_app: TestRota, first: Connection, second: Connection
) -> None:
    orders = rota_app.event_log("orders")
    reader = Reader(orders)

    early = orders.on(first).append_sync("a", "Early")
    late = orders.on(second).append_sync("b", "Late")
    second.commit()
    meanwhile = reader.read()
    first.commit()
    seen = reader.read_until(2)

    assert early.position < late.position
    assert meanwhile == []
    assert [event.type for event in seen] == ["Early", "Late"]
    assert reader.read() == []


def test_a_reader_that_saw_an_event_sees_those_of_an_older_transaction_after_it(
    rota_app: TestRota, first: Connection, second: Connection
) -> None:
    """One that takes its position early and its number late: the number is what counts."""
    orders = rota_app.event_log("orders")
    reader = Reader(orders)
    first.execute("select 1")  # its transaction has begun, and has no number yet

    orders.append_sync("a", "One")
    reader.read_until(1)
    orders.on(second).append_sync("b", "Two")
    orders.on(first).append_sync("c", "Three")
    first.commit()
    held_back = reader.read()
    second.commit()

    assert held_back == []
    assert [event.type for event in reader.read_until(3)] == ["One", "Two", "Three"]


def test_a_transaction_that_began_earlier_and_appends_later_comes_after(
    rota_app: TestRota, rota_database: str, first: Connection, second: Connection
) -> None:
    orders = rota_app.event_log("orders")
    first.execute("create table public.elsewhere (n int)")

    one = orders.on(second).append_sync("order-7", "First")
    second.commit()
    two = orders.on(first).append_sync("order-7", "Second")
    first.commit()

    assert (one.version, two.version) == (1, 2)
    assert two.order_xid == one.order_xid
    assert [event.type for event in read_to_end(orders, 2)] == ["First", "Second"]


def test_of_many_streams_each_keeps_its_own_order(rota_app: TestRota, first: Connection, second: Connection) -> None:
    orders = rota_app.event_log("orders")
    first.execute("create table public.elsewhere (n int)")

    orders.on(second).append_sync("a", "First")
    second.commit()
    on = orders.on(first)
    begun, followed = on.append_many_sync([on.bind("b", "Begun"), on.bind("a", "Second")])
    first.commit()

    assert begun.order_xid < followed.order_xid
    assert [event.type for event in read_to_end(orders, 3)] == ["Begun", "First", "Second"]


def test_what_a_savepoint_took_back_leaves_no_gap(rota_app: TestRota, first: Connection) -> None:
    orders = rota_app.event_log("orders")
    on = orders.on(first)

    on.append_sync("a", "One")
    with first.transaction(force_rollback=True):
        on.append_sync("a", "Taken back")
    on.append_sync("a", "Two")
    first.commit()

    assert [(event.version, event.type) for event in read_to_end(orders, 2)] == [(1, "One"), (2, "Two")]


def test_all_are_read_page_by_page(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")
    orders.append_many_sync([orders.bind(f"s{n % 7}", "Changed", n) for n in range(2_500)])

    assert [event.data for event in read_to_end(orders, 2_500)] == list(range(2_500))


SEEDS = int(os.environ.get("ROTA_SEEDS", "5"))


# a server of its own: no transaction of other tests holds events back, and this one prepares transactions
@pytest.mark.timeout(300)
def test_whatever_writers_do_each_committed_event_is_seen_once_and_streams_are_in_order(own_server: OwnServer) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("alter system set max_prepared_transactions = 20")
    own_server.restart("fast")

    with Rota(own_server.dsn) as app:
        for seed in range(SEEDS):
            with closing(Writers(own_server.dsn, app.event_log(f"log {seed}"), seed)) as writers:
                writers.run(steps=300)
                writers.check()
