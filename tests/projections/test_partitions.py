"""Partitions: several processes share one projection, and the events of a stream are taken in once and in order all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, make_seen, positions, restore_elsewhere, rows, working

from rota import ConfigurationError, NotPossible, Park
from rota.events.event import Event
from rota.facts import EventsProjected, ProjectionStopped
from rota.projections.checkpoint import CheckpointMoved, Owned, declare_projection, move_checkpoint, take_projection
from rota.projections.feed import START, Pair
from rota.projections.rebuild import may_switch
from rota.testing import TestRota, fact, until

PARTITIONED: Any = {"partition_by": "stream", "partitions": 4}
SEE = "insert into public.seen (position, by) values (%s, %s)"


@pytest.fixture(autouse=True)
def _table(db: Db) -> None:
    make_seen(db)


def append_streams(db: Db, streams: int = 12, each: int = 5) -> None:
    for _ in range(each):
        for number in range(streams):
            append(db, f"order-{number}", wake=False)


def totals_of(app: TestRota, **options: Any) -> Any:
    @app.projection("totals", source=Log(), batch=7, **(PARTITIONED | options))
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position, event.stream])
        assert not event.data.get("bad")

    return totals


def in_order(db: Db) -> bool:
    """Whether each stream was seen once and in the order of its events."""
    streams = rows(
        db,
        "select by, array_agg(position order by id) = array_agg(position order by position) from public.seen group by by",
    )
    return all(ordered for _, ordered in streams) and sorted(
        position for (position,) in rows(db, "select position from public.seen")
    ) == sorted(positions(db))


def test_the_partition_of_a_stream_is_the_same_on_every_server_for_ever(db: Db) -> None:
    streams = ["", "a", "order-7", "order-8", "Bestellung-ä", "注文-1", "x" * 500]

    found = [
        rows(db, "select rota.partition_of(%s, n) from (values (2), (4), (7), (64)) as given(n)", [stream])
        for stream in streams
    ]

    assert [[number for (number,) in each] for each in found] == [
        [0, 2, 1, 2],
        [0, 2, 2, 18],
        [0, 2, 6, 2],
        [0, 2, 3, 18],
        [1, 1, 2, 57],
        [1, 1, 6, 1],
        [1, 3, 1, 51],
    ]
    assert rows(db, "select rota.partition_of(null, 7), rota.partition_of('', 7)") == [(1, 1)]


async def test_events_of_a_stream_are_seen_once_and_in_order_whichever_partition_they_are_in(
    rota_app: TestRota, db: Db
) -> None:
    append_streams(db)
    totals = totals_of(rota_app)

    with rota_app.facts.recorded(EventsProjected) as told:
        async with working(rota_app):
            await totals.wait_caught_up(timeout=20)
            append(db, "order-3")
            await totals.wait_caught_up(timeout=20)
            status = await totals.status()

    of_stream = dict(rows(db, "select distinct stream, rota.partition_of(stream, 4) from rota.events"))
    assert in_order(db)
    assert {each.partition for each in told} == {0, 1, 2, 3} == set(of_stream.values())
    assert (status.lag.events, len(status.view.partitions), status.caught_up) == (0, 4, True)
    assert rows(db, "select count(*) from rota.leases where name like 'rota.projection/totals/1#_'") == [(4,)]


@pytest.mark.long  # it takes some handovers; three processes show it by `make slow`
async def test_partitions_are_spread_over_the_workers_and_each_is_read_by_one(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    other = TestRota(rota_database)
    totals = totals_of(rota_app)
    totals_of(other)

    async with working(rota_app), working(other):
        await until(
            lambda: (
                sorted(
                    count
                    for (count,) in rows(
                        db, "select count(*) from rota.leases where name like 'rota.projection/%%' group by member"
                    )
                )
                == [2, 2]
            ),
            timeout=30,
            what="each leads two",
        )
        append_streams(db)
        await totals.wait_caught_up(timeout=20)

    assert in_order(db)


async def test_another_number_of_partitions_is_refused_and_said_what_to_do(rota_app: TestRota, db: Db) -> None:
    totals_of(rota_app, partitions=8)
    await rota_app.database.run(declare_projection("totals", 1, {}, 4))

    with pytest.raises(ConfigurationError, match=r"has 4 partition\(s\), and this code says 8.*version=2"):
        await rota_app.work()
    with pytest.raises(ConfigurationError, match=r"and this code says 1"):
        await rota_app.database.run(declare_projection("totals", 1, {}))
    assert rows(db, "select partition, partitions from rota.projections order by 1") == [(n, 4) for n in range(4)]


async def test_who_declares_it_at_the_same_moment_with_another_number_is_refused_as_well(
    rota_app: TestRota, rota_database: str, db: Db
) -> None:
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(rota_database) as first:
        query = declare_projection("totals", 1, {}, 4)
        first.execute(query.statement.sql("rota").encode(), query.params)
        late = asyncio.create_task(rota_app.database.run(declare_projection("totals", 1, {}, 8)))
        await until(lambda: rows(db, waiting), what="it waits for the first")

    with pytest.raises(ConfigurationError, match=r"has 4 partition\(s\)"):
        await late
    assert rows(db, "select count(*), max(partitions) from rota.projections") == [(4, 4)]


async def test_a_checkpoint_is_that_of_one_partition(rota_app: TestRota, db: Db) -> None:
    append(db)
    await rota_app.database.run(declare_projection("totals", 1, {}, 2))
    first, second = Owned("totals", 1, 1, partition=0), Owned("totals", 1, 1, partition=1)
    await rota_app.database.run(take_projection(first))
    place = Pair(*rows(db, "select order_xid::text::bigint, position from rota.events")[0])

    with pytest.raises(CheckpointMoved):  # nobody has taken that one
        await rota_app.database.run(move_checkpoint(second, START, place))
    await rota_app.database.run(move_checkpoint(first, START, place))

    assert rows(db, "select partition, epoch, position = %s from rota.projections order by 1", [place.position]) == [
        (0, 1, True),
        (1, 0, False),
    ]


async def test_trouble_stops_one_partition_and_the_others_go_on(rota_app: TestRota, db: Db) -> None:
    append(db, "order-7", data={"bad": True})
    append_streams(db)
    totals = totals_of(rota_app)
    stopped = fact(rota_app.facts, ProjectionStopped)

    async with working(rota_app):
        told = await stopped
        with pytest.raises(NotPossible, match=f"stopped in partition {told.partition}: AssertionError"):
            await totals.wait_caught_up(timeout=20)
        await until(
            lambda: rows(db, "select from public.seen where rota.partition_of(by, 4) <> %s", [told.partition]),
            what="others go on",
        )
        view = await rota_app.projections.show("totals")
        skipped = await rota_app.projections.skip("totals")
        await rota_app.projections.resume("totals")
        await totals.wait_caught_up(timeout=20)

    assert (view.state, view.failures, view.error_type) == ("stopped", 1, "AssertionError")
    assert sorted(each.state for each in view.partitions) == ["running"] * 3 + ["stopped"]
    assert skipped.position == positions(db)[0]
    assert rows(db, "select count(*) from public.seen") == [(60,)]


async def test_verbs_mean_the_whole_or_the_partition_that_is_named(rota_app: TestRota, db: Db) -> None:
    append_streams(db, each=2)
    totals = totals_of(rota_app)
    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)
        await until(lambda: len(set(rows(db, "select position from rota.projections"))) == 1, what="all are at the end")
    projections = rota_app.projections

    await projections.pause("totals", by="ann")
    await projections.resume("totals", partition=2)
    states = [each.state for each in (await projections.show("totals")).partitions]
    middle = positions(db)[12]
    await projections.rewind("totals", middle, partition=2)
    rewound = await projections.show("totals")
    with pytest.raises(NotPossible, match="has no partition 9"):
        await projections.rewind("totals", partition=9)
    with pytest.raises(NotPossible, match="say in which one"):
        await projections.skip("totals")
    await projections.rewind("totals")
    begun = await projections.show("totals")

    assert states == ["paused", "paused", "running", "paused"]
    assert [each.position == middle - 1 for each in rewound.partitions] == [False, False, True, False]
    assert (rewound.position, rewound.state, rewound.state_by) == (middle - 1, "paused", "ann")
    assert [each.position for each in begun.partitions] == [None] * 4


async def test_what_is_parked_is_replayed_by_the_owner_of_its_partition(rota_app: TestRota, db: Db) -> None:
    bad = [append(db, f"order-{number}", data={"bad": True})[0] for number in range(6)]
    totals = totals_of(rota_app, on_error=Park())

    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)
        parked = await rota_app.projections.parked("totals")
        chosen = await rota_app.projections.parked("totals", partition=parked[0].partition)
        db.execute("update rota.events set data = '{}'")
        await rota_app.projections.replay("totals")
        await until(lambda: not rows(db, "select from rota.parked_events"), timeout=20, what="all are taken in")

    assert [each.position for each in parked] == bad
    assert {each.partition for each in chosen} == {parked[0].partition}
    assert in_order(db)


async def test_a_rebase_moves_the_checkpoint_of_each_partition(rota_app: TestRota, db: Db) -> None:
    append_streams(db, each=1)
    totals = totals_of(rota_app)
    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)
    append_streams(db, each=1)
    restore_elsewhere(db)

    await rota_app.projections.rebase()
    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)

    assert in_order(db)


async def test_readers_are_given_a_version_when_all_its_partitions_are_as_far_as_all_of_the_old(
    rota_app: TestRota, db: Db
) -> None:
    append_streams(db, each=1)
    places = [Pair(*row) for row in rows(db, "select order_xid::text::bigint, position from rota.events order by 1, 2")]
    await rota_app.database.run(declare_projection("totals", 1, {}, 2))
    await rota_app.database.run(declare_projection("totals", 2, {}, 2))

    async def at(version: int, partition: int, place: Pair) -> Owned:
        owned = Owned("totals", version, 1, partition=partition)
        await rota_app.database.run(take_projection(owned))
        await rota_app.database.run(move_checkpoint(owned, START, place))
        return owned

    for partition, place in enumerate((places[3], places[5])):
        await at(1, partition, place)
    behind = await at(2, 1, places[4])
    asks = await at(2, 0, places[6])

    waits = await rota_app.database.run(may_switch(asks))
    own = await rota_app.database.run(may_switch(behind))
    await rota_app.database.run(move_checkpoint(behind, places[4], places[5]))
    level = await rota_app.database.run(may_switch(asks))

    assert (waits, own, level) == (None, False, True)


@pytest.mark.parametrize("of", [1, 3], ids=["of one", "of three"])
async def test_a_new_version_takes_over_while_events_are_appended_without_a_gap(
    rota_app: TestRota, rota_database: str, db: Db, of: int
) -> None:
    append_streams(db)
    db.execute("create table public.seen_1 (position bigint); create table public.seen_2 (position bigint)")
    newer = TestRota(rota_database)
    missing: list[Any] = []
    prepared: list[int] = []

    def declare(app: TestRota, version: int, partitions: int) -> Any:
        async def prepare(connection: Any) -> None:
            prepared.append(version)

        async def switch(connection: Any) -> None:
            # at this moment the new one has all that the old one has
            found = await connection.execute(
                "select position from public.seen_1 except select position from public.seen_2"
            )
            missing.extend([(version, await found.fetchall())])

        @app.projection(
            "switched",
            source=Log(),
            batch=10,
            version=version,
            prepare=prepare,
            switch=switch,
            partition_by="stream",
            partitions=partitions,
        )
        async def switched(event: Event, connection: Any) -> None:
            await connection.execute(f"insert into public.seen_{version} values (%s)", [event.position])

        return switched

    declare(rota_app, 1, of)
    new = declare(newer, 2, 4)
    ended = asyncio.Event()

    async def keep_appending() -> None:
        for number in range(2000):
            if ended.is_set():
                return
            await asyncio.to_thread(append, db, f"order-{number % 12}")

    async with working(rota_app):
        await until(lambda: prepared == [1] and len(missing) == 1, timeout=30, what="the first is used")
        appending = asyncio.create_task(keep_appending())
        async with working(newer):
            await until(lambda: len(missing) == 2, timeout=60, what="the second takes over")
            ended.set()
            await appending
            await new.wait_caught_up(timeout=30)

    assert missing[1] == (2, [])
    assert sorted(prepared) == [1, 2]
    assert sorted(position for (position,) in rows(db, "select position from public.seen_2")) == sorted(positions(db))
    states = rows(
        db,
        "select version, count(*), min(state), max(state), count(live_at) from rota.projections group by 1 order by 1",
    )
    assert states == [(1, of, "retired", "retired", 0), (2, 4, "running", "running", 4)]


def test_what_partitions_cannot_be_is_told(rota_app: TestRota) -> None:
    for options, told in (
        ({"partition_by": "type", "partitions": 2}, 'it is "stream"'),
        ({"partition_by": "stream"}, "both or neither"),
        ({"partitions": 2}, "both or neither"),
        ({"partition_by": "stream", "partitions": 0}, "from 1 to 64"),
        ({"partition_by": "stream", "partitions": True}, "from 1 to 64"),
    ):
        with pytest.raises(ConfigurationError, match=told):

            @rota_app.projection("totals", source=Log(), **options)  # type: ignore[arg-type]
            async def totals(event: Event, connection: Any) -> None: ...
