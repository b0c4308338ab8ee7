from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.events.reading import read_to_end

from rota import Appended, ConfigurationError, InvalidArguments, PayloadTooLarge, WrongVersion
from rota.events.append import LARGEST, MOST_EVENTS
from rota.postgres.keys import channel
from rota.testing import until
from rota.testing.app import TestRota

# the longest there are, of the largest letters
LONG_LOG, LONG_STREAM = "🐘" * 100, "🐘" * 500


def stored(dsn: str, columns: str = "stream, version, type, data, metadata") -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"select {columns} from rota.events order by position").fetchall()


def waits(dsn: str) -> bool:
    """Whether someone waits for a lock in this database."""
    with psycopg.connect(dsn) as connection:
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        return bool(connection.execute(waiting).fetchall())


@pytest.fixture
def watcher(direct_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(direct_database, autocommit=True) as connection:
        yield connection


async def test_an_append_returns_what_is_there_then(rota_app: TestRota, rota_database: str) -> None:
    orders = rota_app.event_log("orders")

    first = await orders.append("order-7", "OrderPlaced", {"total": 10.5, "lines": [1, None]}, metadata={"user": "ü"})
    second = await orders.append("order-7", "OrderPaid")
    other = await orders.append("order-8", "OrderPlaced", {"total": 1})

    assert [(each.stream, each.version) for each in (first, second, other)] == [
        ("order-7", 1),
        ("order-7", 2),
        ("order-8", 1),
    ]
    assert first.position < second.position < other.position
    assert first.order_xid < second.order_xid < other.order_xid
    assert stored(rota_database) == [
        ("order-7", 1, "OrderPlaced", {"total": 10.5, "lines": [1, None]}, {"user": "ü"}),
        ("order-7", 2, "OrderPaid", {}, None),
        ("order-8", 1, "OrderPlaced", {"total": 1}, None),
    ]


def test_sync_callers_append_and_read_as_well(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    first = orders.append_sync("order-7", "OrderPlaced", {"total": 10}, expected_version=0)
    second, third = orders.append_many_sync(
        [orders.bind("order-7", "OrderPaid", None), orders.bind("order-8", "OrderPlaced")],
        expected_versions={"order-7": 1},
    )

    events = orders.read_sync("order-7")
    assert [(event.version, event.type, event.data) for event in events] == [
        (1, "OrderPlaced", {"total": 10}),
        (2, "OrderPaid", None),
    ]
    everything = read_to_end(orders, 3)
    assert [(event.order_xid, event.position) for event in everything] == [
        (each.order_xid, each.position) for each in (first, second, third)
    ]


async def test_logs_know_nothing_of_each_other(rota_app: TestRota) -> None:
    orders, visits = rota_app.event_log("orders"), rota_app.event_log("visits")

    await orders.append("7", "OrderPlaced")
    visited = await visits.append("7", "Visited", expected_version=0)

    assert visited.version == 1
    assert [event.type for event in await orders.read("7")] == ["OrderPlaced"]
    assert [event.type for event in read_to_end(visits, 1)] == ["Visited"]


def test_a_log_asked_for_again_is_the_same(rota_app: TestRota) -> None:
    assert rota_app.event_log("orders") is rota_app.event_log("orders")


async def test_a_stream_that_is_not_there_has_no_events(rota_app: TestRota) -> None:
    assert await rota_app.event_log("orders").read("order-7") == []


async def test_a_stream_is_read_from_a_version_on_and_no_further_than_asked(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")
    await orders.append_many([orders.bind("order-7", "Changed", {"n": n}) for n in range(1, 6)])

    assert [event.data["n"] for event in await orders.read("order-7", after=2)] == [3, 4, 5]
    assert [event.data["n"] for event in await orders.read("order-7", after=2, limit=2)] == [3, 4]


async def test_a_long_stream_is_read_to_its_end(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")
    await orders.append_many([orders.bind("order-7", "Changed", n) for n in range(2_500)])

    assert [event.data for event in await orders.read("order-7")] == list(range(2_500))


async def test_an_append_that_expects_the_version_there_is_goes_through(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    begun = await orders.append("order-7", "OrderPlaced", expected_version=0)
    paid = await orders.append("order-7", "OrderPaid", expected_version=1)

    assert (begun.version, paid.version) == (1, 2)


@pytest.mark.parametrize(("expected", "actual"), [(0, 2), (1, 2), (3, 2)])
async def test_an_append_that_expects_another_version_says_which_and_changes_nothing(
    expected: int, actual: int, rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")
    await orders.append_many([orders.bind("order-7", "OrderPlaced"), orders.bind("order-7", "OrderPaid")])

    with pytest.raises(WrongVersion) as caught:
        await orders.append("order-7", "OrderShipped", expected_version=expected)

    error = caught.value
    assert (error.log, error.stream, error.expected, error.actual) == ("orders", "order-7", expected, actual)
    assert str(error) == (
        f"Nothing was appended to stream 'order-7' of event log 'orders': it is at version 2, and expected_version is {expected}. "
        "Read what was appended since, decide again, and append with the version it is at then."
    )
    assert len(stored(rota_database)) == 2
    assert (await orders.append("order-7", "OrderShipped", expected_version=2)).version == 3


async def test_a_stream_that_is_not_there_is_at_no_version(rota_app: TestRota, rota_database: str) -> None:
    orders = rota_app.event_log("orders")

    with pytest.raises(WrongVersion, match="it does not exist, and expected_version is 4. Check its name"):
        await orders.append("order-7", "OrderPaid", expected_version=4)

    assert stored(rota_database) == []
    with psycopg.connect(rota_database) as connection:
        assert connection.execute("select * from rota.streams").fetchall() == []


def test_a_wrong_version_goes_from_process_to_process() -> None:
    error = pickle.loads(pickle.dumps(WrongVersion("orders", "order-7", 1, 2)))

    assert (error.log, error.stream, error.expected, error.actual) == ("orders", "order-7", 1, 2)


async def test_many_are_appended_to_many_streams_in_the_order_given(rota_app: TestRota, rota_database: str) -> None:
    orders = rota_app.event_log("orders")
    await orders.append("b", "Begun")

    appended = await orders.append_many(
        [orders.bind(stream, "Changed", {"n": n}) for n, stream in enumerate(["b", "a", "c", "b", "a", "b"])]
    )

    assert [(each.stream, each.version) for each in appended] == [
        ("b", 2),
        ("a", 1),
        ("c", 1),
        ("b", 3),
        ("a", 2),
        ("b", 4),
    ]
    assert [each.position for each in appended] == sorted(each.position for each in appended)
    assert len({each.order_xid for each in appended}) == 1
    assert [data for (data,) in stored(rota_database, "data")] == [{}, *({"n": n} for n in range(6))]


async def test_of_many_none_is_appended_where_one_stream_is_at_another_version(
    rota_app: TestRota, rota_database: str
) -> None:
    orders = rota_app.event_log("orders")
    await orders.append("b", "Begun")

    with pytest.raises(WrongVersion, match="stream 'b'"):
        await orders.append_many(
            [orders.bind(stream, "Changed") for stream in ("a", "b", "c")], expected_versions={"a": 0, "b": 4, "c": 0}
        )

    assert stored(rota_database, "stream, version") == [("b", 1)]
    with psycopg.connect(rota_database) as connection:
        assert connection.execute("select stream, version from rota.streams").fetchall() == [("b", 1)]
    appended = await orders.append_many(
        [orders.bind(stream, "Changed") for stream in ("a", "b", "c")], expected_versions={"a": 0, "b": 1, "c": 0}
    )
    assert [each.version for each in appended] == [1, 2, 1]


async def test_appending_none_does_nothing(rota_app: TestRota) -> None:
    assert await rota_app.event_log("orders").append_many([]) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("s" * 501, "T", {}), "the name of a stream cannot be 'sss"),
        (("", "T", {}), "the name of a stream cannot be ''"),
        (("a\0b", "T", {}), "the name of a stream cannot be 'a\\x00b'"),
        ((7, "T", {}), "the name of a stream cannot be 7"),
        (("s", "t" * 501, {}), "the type of an event cannot be 'ttt"),
        (("s", "a\nb", {}), "the type of an event cannot be 'a\\nb'"),
        (("s", "T", {"a": {"b": "x\0y"}}), "data['a']['b'] is 'x\\x00y' (str), which has a NUL character"),
        (("s", "T", {"a\0": 1}), "which has a NUL character"),
        (("s", "T", [math.nan]), "data[0] is nan (float), expected a finite float"),
        (("s", "T", {"when": object}), "data['when'] is"),
        (("s", "T", {7: 1}), "has the key 7 (int), and a JSON key is text"),
        (("s", "T", "\ud800"), "which has a lone surrogate"),
        (("s", "T", {}, None, ["user"]), "metadata is ['user'] (list), and must be a mapping"),
        (("s", "T", {}, None, {"user": "\0"}), "metadata['user'] is '\\x00' (str), which has a NUL character"),
        (("s", "T", {}, -1), "the expected version of stream 's' is -1 (int)"),
        (("s", "T", {}, True), "the expected version of stream 's' is True (bool)"),
        (("s", "T", {}, "1"), "the expected version of stream 's' is '1' (str)"),
    ],
)
@pytest.mark.writes_nothing
def test_what_cannot_be_stored_is_refused_in_words(arguments: tuple[Any, ...], told: str, rota_app: TestRota) -> None:
    with pytest.raises(InvalidArguments) as caught:
        rota_app.event_log("orders").append_sync(*arguments)

    assert str(caught.value).startswith("Nothing was appended to ")
    assert told in str(caught.value)


@pytest.mark.writes_nothing
def test_what_is_too_large_is_refused_in_words(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    with pytest.raises(PayloadTooLarge, match="data would take more than 1,048,576 bytes"):
        orders.append_sync("s", "T", "x" * LARGEST)
    with pytest.raises(PayloadTooLarge, match="metadata would take more than"):
        orders.append_sync("s", "T", {}, metadata={"x": "x" * LARGEST})
    with pytest.raises(PayloadTooLarge, match="these are 10,001 events"):
        orders.append_many_sync([orders.bind("s", "T")] * (MOST_EVENTS + 1))


@pytest.mark.writes_nothing
def test_only_what_the_log_itself_bound_is_appended(rota_app: TestRota) -> None:
    orders, visits = rota_app.event_log("orders"), rota_app.event_log("visits")

    with pytest.raises(InvalidArguments, match="item 1 is"):
        orders.append_many_sync([orders.bind("s", "T"), ("s", "T", {})])  # type: ignore[list-item]
    with pytest.raises(InvalidArguments, match="item 0 was made by the event log 'visits'"):
        orders.append_many_sync([visits.bind("s", "T")])
    with pytest.raises(InvalidArguments, match="a version is expected of 'x', and nothing is to be appended there"):
        orders.append_many_sync([orders.bind("s", "T")], expected_versions={"x": 1})


@pytest.mark.parametrize("name", ["", "x" * 101, "a\0b", 7])
def test_a_log_needs_a_name_that_can_be_one(name: Any, rota_app: TestRota) -> None:
    with pytest.raises(ConfigurationError, match="the name of an event log cannot be"):
        rota_app.event_log(name)


@pytest.mark.writes_nothing
def test_where_to_read_on_is_an_event_or_its_pair(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")

    for after in (7, (7,), (-1, 7), (True, 7), "ab", (7, 2**63)):
        with pytest.raises(InvalidArguments, match="A position alone would pass over what is committed later"):
            orders.read_all_sync(after=after)  # type: ignore[arg-type]
    for limit in (0, -1, True, "7"):
        with pytest.raises(InvalidArguments, match="limit cannot be"):
            orders.read_all_sync(limit=limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="limit cannot be"):
            orders.read_sync("s", limit=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="after cannot be"):
        orders.read_sync("s", after=-1)


async def test_the_longest_names_fit(rota_app: TestRota) -> None:
    log = rota_app.event_log(LONG_LOG)

    await log.append(LONG_STREAM, LONG_STREAM)

    (event,) = await log.read(LONG_STREAM)
    assert (event.stream, event.type) == (LONG_STREAM, LONG_STREAM)


async def test_numbers_and_texts_come_back_as_they_were(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")
    data = {"huge": 10**40, "half": 0.5, "text": "a'b\"c\\d\u2028%s %(x)s {schema} 🐘", "deep": [[[{}]]], "no": False}

    await orders.append("s", "T", data, metadata=data)

    (event,) = await orders.read("s")
    assert event.data == event.metadata == data
    assert event.created_at is not None
    assert event.created_at.utcoffset() is not None


async def test_names_that_look_like_sql_are_names(rota_app: TestRota) -> None:
    log = rota_app.event_log("o'r\"d %s")

    await log.append("a'; drop table rota.events; --", "%(type)s")

    (event,) = read_to_end(log, 1)
    assert (event.stream, event.type) == ("a'; drop table rota.events; --", "%(type)s")


async def test_who_listens_hears_of_an_append_when_it_is_committed(
    rota_app: TestRota, rota_database: str, watcher: psycopg.Connection
) -> None:
    orders = rota_app.event_log("orders")
    watcher.execute(f"listen {channel('rota', 'event')}")

    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        await orders.on(connection).append("s", "T")
        before = list(watcher.notifies(timeout=0))
        await connection.commit()
    heard = list(watcher.notifies(timeout=10, stop_after=1))

    assert before == []
    assert [each.payload for each in heard] == ["orders"]


async def test_an_append_that_was_refused_wakes_nobody(rota_app: TestRota, watcher: psycopg.Connection) -> None:
    orders, visits = rota_app.event_log("orders"), rota_app.event_log("visits")
    watcher.execute(f"listen {channel('rota', 'event')}")

    with pytest.raises(WrongVersion):
        await orders.append("s", "T", expected_version=1)
    await visits.append("s", "T")

    assert [each.payload for each in watcher.notifies(timeout=10, stop_after=1)] == ["visits"]


async def test_of_appends_in_a_moment_the_first_wakes_and_in_your_transaction_each(
    rota_app: TestRota, rota_database: str, watcher: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.postgres.notify.boottime", lambda: 100.0)
    orders, visits = rota_app.event_log("orders"), rota_app.event_log("visits")
    watcher.execute(f"listen {channel('rota', 'event')}")

    for _ in range(3):
        await orders.append("s", "T")
        await orders.append_many([orders.bind("s", "T")])
    async with await psycopg.AsyncConnection.connect(rota_database, autocommit=True) as connection:
        await orders.on(connection).append("s", "T")
    await visits.append("s", "T")

    assert [each.payload for each in watcher.notifies(timeout=10, stop_after=3)] == ["orders", "orders", "visits"]


async def test_after_an_append_that_was_refused_the_next_one_wakes(
    rota_app: TestRota, watcher: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.postgres.notify.boottime", lambda: 100.0)
    orders, visits = rota_app.event_log("orders"), rota_app.event_log("visits")
    watcher.execute(f"listen {channel('rota', 'event')}")

    with pytest.raises(WrongVersion):
        await orders.append("s", "T", expected_version=1)
    await orders.append("s", "T")
    await orders.append("s", "T")
    with pytest.raises(WrongVersion):
        orders.append_sync("s", "T", expected_version=1)
    await visits.append("s", "T")

    assert [each.payload for each in watcher.notifies(timeout=10, stop_after=2)] == ["orders", "visits"]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_who_relied_on_the_word_of_an_append_that_never_came_speaks_itself(
    rota_app: TestRota,
    rota_database: str,
    watcher: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    sync: bool,
) -> None:
    orders = rota_app.event_log("orders")
    await orders.append("slow", "T")
    monkeypatch.setattr("rota.postgres.notify.boottime", lambda: 1e9)
    watcher.execute(f"listen {channel('rota', 'event')}")

    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        await connection.execute("select from rota.streams where stream = 'slow' for update")
        admitted = asyncio.create_task(orders.append("slow", "T"))
        await until(lambda: waits(rota_database), what="it waits for the stream")
        appended = orders.append_sync("fast", "T") if sync else await orders.append("fast", "T")
        admitted.cancel()
        await asyncio.wait([admitted])

    assert [each.payload for each in watcher.notifies(timeout=10, stop_after=1)] == ["orders"]
    assert appended.version == 1
    assert admitted.cancelled()


async def test_an_append_that_was_left_out_and_took_long_speaks_itself(
    rota_app: TestRota, rota_database: str, watcher: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, now = rota_app.event_log("orders"), [100.0]
    await orders.append("slow", "T")
    monkeypatch.setattr("rota.postgres.notify.boottime", lambda: now[0])
    now[0] = 1e9
    watcher.execute(f"listen {channel('rota', 'event')}")

    async with await psycopg.AsyncConnection.connect(rota_database) as connection:
        await connection.execute("select from rota.streams where stream = 'slow' for update")
        await orders.append("fast", "T")
        left_out = asyncio.create_task(orders.append("slow", "T"))
        await until(lambda: waits(rota_database), what="it waits for the stream")
        now[0] += 1
    await left_out

    assert [each.payload for each in watcher.notifies(timeout=10, stop_after=2)] == ["orders", "orders"]


def test_an_event_that_was_appended_says_where_one_may_go_on(rota_app: TestRota) -> None:
    orders = rota_app.event_log("orders")
    appended = orders.append_sync("s", "First")
    orders.append_sync("s", "Second")
    read_to_end(orders, 2)

    assert isinstance(appended, Appended)
    assert [event.type for event in orders.read_all_sync(after=appended)] == ["Second"]
    assert [event.type for event in orders.read_all_sync(after=orders.read_sync("s")[0])] == ["Second"]
    assert [event.type for event in orders.read_all_sync(after=(appended.order_xid, appended.position))] == ["Second"]


@pytest.mark.writes_nothing
def test_a_log_says_what_projections_read_it_by(rota_app: TestRota) -> None:
    source = rota_app.event_log("orders").source

    assert (source.name, source.table, source.log) == ("orders", '"rota"."events"', "orders")
    assert (source.position, source.order_xid, source.shape) == ('"position"', '"order_xid"', '"shape"')
