"""Events that cannot be taken in: never passed over in silence, and nothing before them is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest
from tests.projections.logs import Db, Log, append, append_many, make_seen, rows, seen, working

from rota import ConfigurationError, Park, Retry, Stop
from rota.events.event import Event
from rota.facts import DatabaseLost, EventParked, ProjectionFailed, ProjectionHindered, ProjectionStopped
from rota.projections.trouble import OnError, check_policy, decide
from rota.runtime.health import health_of
from rota.testing import TestRota, fact, until

SEE = "insert into public.seen (position) values (%s)"


@pytest.fixture(autouse=True)
def _table(db: Db) -> None:
    make_seen(db)


def sieve(app: TestRota, on_error: OnError, *, batch: int = 500) -> Any:
    """A projection that cannot take in events that say so."""

    @app.projection("totals", source=Log(), on_error=on_error, batch=batch)
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        if event.data.get("bad"):
            raise KeyError("sum")

    return totals


def fill(db: Db, *kinds: dict[str, Any]) -> list[int]:
    return [append(db, "a", "Paid", kind)[0] for kind in kinds]


GOOD, BAD, BROKEN = {}, {"bad": True}, {"broken": True}


# the policies


@pytest.mark.parametrize("kind", [BAD, BROKEN], ids=["handler", "decode"])
async def test_it_stops_at_an_event_with_all_before_it_committed_and_goes_on_when_resumed(
    rota_app: TestRota, db: Db, kind: dict[str, Any]
) -> None:
    given = fill(db, GOOD, GOOD, kind, GOOD)
    totals = sieve(rota_app, Stop())
    stopped = fact(rota_app.facts, ProjectionStopped)

    async with working(rota_app):
        told = await stopped
        status = await totals.status()
        db.execute("update rota.events set data = '{}' where position = %s", [given[2]])
        await rota_app.projections.resume("totals")
        await totals.wait_caught_up(timeout=10)

    assert (told.position, told.attempt) == (given[2], 1)
    assert (status.view.state, status.view.position, status.lag.events) == ("stopped", given[1], 2)
    assert status.view.error_type in ("KeyError", "ValueError")
    assert seen(db) == given
    assert (await totals.status()).view.state == "running"


async def test_it_tries_again_as_often_as_said_and_then_stops(rota_app: TestRota, db: Db) -> None:
    given = fill(db, GOOD, BAD)
    sieve(rota_app, Retry(attempts=3, base=0.01))
    stopped = fact(rota_app.facts, ProjectionStopped)

    with rota_app.facts.recorded(ProjectionFailed) as failed:
        async with working(rota_app):
            told = await stopped

    assert [each.attempt for each in failed] == [1, 2]
    assert (told.position, told.attempt) == (given[1], 3)
    assert seen(db) == given[:1]


@pytest.mark.parametrize("kind", [BAD, BROKEN], ids=["handler", "decode"])
async def test_what_is_parked_waits_on_a_list_in_the_order_of_the_log_while_others_go_on(
    rota_app: TestRota, db: Db, kind: dict[str, Any]
) -> None:
    given = fill(db, GOOD, kind, GOOD, kind, GOOD)
    totals = sieve(rota_app, Park())

    with rota_app.facts.recorded(EventParked) as told:
        async with working(rota_app):
            await totals.wait_caught_up(timeout=10)

    parked = await rota_app.projections.parked("totals")
    assert seen(db) == [given[0], given[2], given[4]]
    assert [each.position for each in parked] == [given[1], given[3]] == [each.position for each in told]
    assert {(each.stream, each.type, each.attempts) for each in parked} == {("a", "Paid", 1)}


@pytest.mark.parametrize("kinds", [(BROKEN, BAD), (BAD, BROKEN), (BROKEN, BROKEN, BAD, GOOD)], ids=str)
async def test_what_cannot_be_read_is_parked_beside_what_cannot_be_taken_in(
    rota_app: TestRota, db: Db, kinds: tuple[dict[str, Any], ...]
) -> None:
    given = fill(db, *kinds)
    totals = sieve(rota_app, Park())

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    parked = [each.position for each in await rota_app.projections.parked("totals")]
    assert sorted([*parked, *seen(db)]) == given
    assert seen(db) == [position for position, kind in zip(given, kinds, strict=True) if kind == GOOD]


async def test_a_thousand_that_cannot_be_decoded_do_not_hide_the_one_behind_them(rota_app: TestRota, db: Db) -> None:
    append_many(db, 1000)
    db.execute("""update rota.events set data = '{"broken": true}'""")
    good, _ = append(db, "b")
    totals = sieve(rota_app, Park(), batch=100)

    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)

    assert seen(db) == [good]
    assert (await totals.status()).view.parked == 1000


async def test_a_batch_is_taken_apart_so_that_only_the_event_at_fault_is_parked(rota_app: TestRota, db: Db) -> None:
    given = fill(db, GOOD, GOOD, BAD, GOOD)

    @rota_app.projection("totals", source=Log(), on_error=Park())
    async def totals(events: list[Event], connection: Any) -> None:
        for event in events:
            await connection.execute(SEE, [event.position])
            assert not event.data.get("bad")

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert seen(db) == [given[0], given[1], given[3]]
    assert [each.position for each in await rota_app.projections.parked("totals")] == [given[2]]


async def test_what_fails_at_the_commit_is_found_as_well(rota_app: TestRota, db: Db) -> None:
    given = fill(db, GOOD, BAD, GOOD)
    db.execute("create table public.once (n int unique deferrable initially deferred)")

    @rota_app.projection("totals", source=Log(), on_error=Park())
    def totals(event: Event, connection: Any) -> None:
        connection.execute(SEE, [event.position])
        if event.data.get("bad"):
            connection.execute("insert into public.once values (1), (1)")

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    parked = await rota_app.projections.parked("totals")
    assert seen(db) == [given[0], given[2]]
    assert [(each.position, each.error_type) for each in parked] == [(given[1], "psycopg.errors.UniqueViolation")]


async def test_an_error_that_the_handler_swallows_commits_nothing_of_its_event(rota_app: TestRota, db: Db) -> None:
    given = fill(db, GOOD, BAD)

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        if event.data.get("bad"):
            with contextlib.suppress(psycopg.Error):
                await connection.execute("select 1 / 0")

    stopped = fact(rota_app.facts, ProjectionStopped)
    async with working(rota_app):
        assert (await stopped).position == given[1]

    assert seen(db) == given[:1]


# replays


async def test_what_is_replayed_leaves_the_list_in_the_transaction_that_takes_it_in(rota_app: TestRota, db: Db) -> None:
    given = fill(db, BAD, BAD, GOOD)
    totals = sieve(rota_app, Park())

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
        db.execute("update rota.events set data = '{}' where position = %s", [given[1]])
        again = fact(rota_app.facts, EventParked)
        count = await rota_app.projections.replay("totals")
        failed = await again
        await until(lambda: len(seen(db)) == 2, what="the other is taken in")

    parked = await rota_app.projections.parked("totals")
    assert (count, failed.position, failed.attempt) == (2, given[0], 2)
    assert seen(db) == [given[2], given[1]]
    assert [(each.position, each.attempts, each.replay_at) for each in parked] == [(given[0], 2, None)]
    assert (await totals.status()).view.position == given[2]


async def test_what_is_read_again_after_a_rewind_is_no_longer_parked(rota_app: TestRota, db: Db) -> None:
    given = fill(db, BAD, GOOD, BAD)
    totals = sieve(rota_app, Park())

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)
    db.execute("update rota.events set data = '{}'")
    await rota_app.projections.rewind("totals", given[1])
    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert [each.position for each in await rota_app.projections.parked("totals")] == given[:1]
    assert seen(db) == [given[1], given[1], given[2]]


# no fault of the event


async def test_a_connection_that_is_lost_is_no_fault_of_the_event(rota_app: TestRota, db: Db) -> None:
    given = fill(db, GOOD)
    cut: list[int] = []

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        if not cut:
            cut.append(connection.info.backend_pid)
            db.execute("select pg_terminate_backend(%s)", cut)
            await connection.execute("select 1")

    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)

    assert seen(db) == given
    assert (await totals.status()).view.error_type is None


async def test_a_deadlock_is_tried_again(rota_app: TestRota, db: Db) -> None:
    given = fill(db, GOOD)
    raised: list[bool] = []

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        await connection.execute(SEE, [event.position])
        if len(raised) < 3:
            raised.append(True)
            raise psycopg.errors.DeadlockDetected

    async with working(rota_app):
        await totals.wait_caught_up(timeout=10)

    assert seen(db) == given


async def test_a_checkpoint_that_a_person_moves_meanwhile_undoes_what_the_handler_wrote(
    rota_app: TestRota, db: Db
) -> None:
    given = fill(db, GOOD, GOOD)
    entered, go_on = asyncio.Event(), asyncio.Event()

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        entered.set()
        await go_on.wait()
        await connection.execute(SEE, [event.position])

    async with working(rota_app):
        await asyncio.wait_for(entered.wait(), 10)
        skipped = await rota_app.projections.skip("totals")
        go_on.set()
        await totals.wait_caught_up(timeout=10)

    assert skipped.position == given[0]
    assert seen(db) == given[1:]


# the horizon


@pytest.mark.direct("the pid that a client knows is not that of its server session")
async def test_who_holds_the_horizon_is_named_with_pid_age_and_query(
    rota_app: TestRota, rota_database: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.projections.standing._HINDERED_SECONDS", 0.1)
    totals = sieve(rota_app, Stop())
    with psycopg.connect(rota_database) as idle:
        pid = idle.info.backend_pid
        idle.execute("select pg_current_xact_id() /* forgotten */")
        append(db)
        mine = fact(rota_app.facts, ProjectionHindered, where=lambda told: str(pid) in told.holder)

        async with working(rota_app):
            told = await mine
            status = await totals.status()
            health = await health_of(rota_app).detail()
            idle.rollback()
            await totals.wait_caught_up(timeout=10)

    assert "forgotten" in told.holder
    assert str(pid) in health.body["workers"][0]["projections"]["totals"]["held_by"]
    assert status.held_by is not None
    assert (status.held_by.pid, status.held_by.state) == (pid, "idle in transaction")
    assert status.held_by.seconds is not None
    assert status.held_by.seconds > 0
    assert rows(db, "select count(*) from public.seen") == [(1,)]


# decisions


def test_what_becomes_of_a_failure_is_what_the_policy_says() -> None:
    error = ValueError()
    retry = Retry(attempts=2, base=1, jitter=False)

    assert decide(Stop(), 1, error) == "stop"
    assert decide(Park(), 1, error) == "park"
    assert [decide(retry, failures, error) for failures in (1, 2)] == [1.0, "stop"]
    assert [decide(Park(retry), failures, error) for failures in (1, 2)] == [1.0, "park"]


@pytest.mark.parametrize("policy", [None, "stop", 3, Park("twice")])  # type: ignore[arg-type]
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"rota\.Stop"):
        check_policy(policy)


def test_those_who_try_again_after_a_failure_do_not_all_come_at_once() -> None:
    policy = Retry(attempts=9, base=8, cap=60)

    pauses = [decide(policy, 2, ValueError("no")) for _ in range(50)]

    assert all(isinstance(pause, float) and 8 <= pause <= 16 for pause in pauses)
    assert len(set(pauses)) > 10


async def test_a_connection_that_is_lost_is_no_fault_of_the_event_whatever_the_handler_raises(
    rota_app: TestRota, db: Db
) -> None:
    append(db)
    tries: list[int] = []

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        tries.append(event.position)
        if len(tries) == 1:
            try:
                await connection.execute("select pg_terminate_backend(pg_backend_pid())")
            except psycopg.Error as error:
                raise RuntimeError("the totals cannot be written") from error

    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)

    assert len(tries) == 2
    assert rows(db, "select state, failures, error_type from rota.projections") == [("running", 0, None)]


async def test_a_server_that_has_no_more_to_give_is_waited_for_and_no_event_is_blamed(
    rota_app: TestRota, db: Db
) -> None:
    append(db)
    lost = fact(rota_app.facts, DatabaseLost, where=lambda lost: "no space left" in lost.error)
    tries: list[int] = []

    @rota_app.projection("totals", source=Log())
    async def totals(event: Event, connection: Any) -> None:
        tries.append(event.position)
        if len(tries) <= 2:
            await connection.execute("do $$ begin raise disk_full using message = 'no space left'; end $$")

    async with working(rota_app):
        await totals.wait_caught_up(timeout=20)
    await lost

    assert len(tries) == 3
    assert rows(db, "select state, failures, error_type from rota.projections") == [("running", 0, None)]
