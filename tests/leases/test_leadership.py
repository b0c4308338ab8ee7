"""Leading something, as a caller sees it: trying, waiting, knowing, stepping down; in both colours, on a real database."""

# ruff: noqa: PT012 - what is raised into a body is raised somewhere inside it

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from rota import (
    ConfigurationError,
    DatabaseUnavailable,
    LeadershipHeld,
    LeadershipLost,
    NotPossible,
    Retry,
    Rota,
    RotaError,
)
from rota.facts import LeadershipEnded, LeadershipGained, MemberJoined, MemberLeft, StandingBy
from rota.testing import TestRota, until

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def app(rota_database: str) -> AsyncIterator[Rota]:
    async with Rota(rota_database) as app:
        yield app


@pytest.fixture
async def other(rota_database: str) -> AsyncIterator[Rota]:
    """Another process, as far as the database knows."""
    async with Rota(rota_database) as app:
        yield app


async def test_who_leads_is_told_to_who_tries_and_it_does_not_wait(app: Rota, other: Rota) -> None:
    async with app.leadership("indexer") as term:
        assert term.valid
        with pytest.raises(LeadershipHeld) as refused:
            async with other.leadership("indexer"):
                pass
        async with other.leadership("another"):
            pass

    held = refused.value
    assert (held.name, held.epoch, held.since) == ("indexer", term.epoch, term.since)
    assert held.exit_code == 3
    assert (held.host, held.holder) == (socket.gethostname(), f"{held.host}:{os.getpid()}")
    assert held.holder in str(held)


async def test_a_database_that_is_away_is_another_error(rota_database: str) -> None:
    async with Rota("host=127.0.0.1 port=1 dbname=nowhere user=nobody") as app:
        with pytest.raises(DatabaseUnavailable):
            async with app.leadership("indexer"):
                pass


async def test_every_term_has_a_greater_epoch_and_its_end_is_on_record(app: Rota, other: Rota) -> None:
    epochs = []
    for each in (app, other, app):
        async with each.leadership("indexer") as term:
            epochs.append(term.epoch)
            assert not (await other.leaders.terms("indexer"))[0].ended_at

    assert epochs == sorted(set(epochs))
    terms = await app.leaders.terms("indexer")
    assert [(term.epoch, term.end_reason) for term in terms] == [(epoch, "resigned") for epoch in reversed(epochs)]


async def test_an_epoch_is_never_behind_the_clock(app: Rota, db: Db) -> None:
    """So that it grows even where the last terms are not known, as on a replica that was behind."""
    before = db.execute("select (extract(epoch from clock_timestamp()) * 1000)::bigint").fetchone()[0]  # type: ignore[index]
    async with app.leadership("indexer") as first:
        assert first.epoch >= before
    db.execute("update rota.leases set epoch = epoch + 1000000")
    async with app.leadership("indexer") as second:
        assert second.epoch == first.epoch + 1_000_001


async def test_who_waits_leads_within_moments_of_a_resignation(app: Rota, other: Rota) -> None:
    took = []
    with other.facts.recorded(StandingBy) as standing:
        for turn in range(1, 4):
            async with app.leadership("indexer") as term:
                waiting = asyncio.create_task(_lead_once(other))
                await until(lambda: len(standing) == turn, what="the other stands by")  # noqa: B023
                (view,) = await app.leaders.list()
                assert (view.epoch, view.standbys) == (term.epoch, [view.holder])
                await term.resign()
                resigned_at = time.perf_counter()
                took.append(await waiting - resigned_at)
                assert not term.valid
    # who only looks now and then takes half a second; a busy machine may spoil one of them
    assert statistics.median(took) < 0.4
    assert [fact.name for fact in standing] == ["indexer"] * 3


async def _lead_once(app: Rota) -> float:
    async with app.leadership("indexer").wait():
        return time.perf_counter()


async def test_a_wait_has_an_end(app: Rota, other: Rota) -> None:
    async with app.leadership("indexer"):
        began = time.perf_counter()
        with pytest.raises(LeadershipHeld):
            async with other.leadership("indexer").wait("0.3s"):
                pass
    assert 0.3 <= time.perf_counter() - began < 5


async def test_a_policy_says_how_often_it_is_tried_again(app: Rota, other: Rota) -> None:
    tries: list[int] = []

    def pause(failures: int) -> float:
        tries.append(failures)
        return 0.01

    async with app.leadership("indexer"):
        with pytest.raises(LeadershipHeld):
            async with other.leadership("indexer").retry(Retry(attempts=3, backoff=pause)):
                pass
    assert tries == [1, 2]
    async with other.leadership("indexer").retry(Retry(attempts=3)) as term:
        assert term.valid


async def test_waiting_and_trying_again_do_not_mix(app: Rota) -> None:
    for mix in (
        lambda: app.leadership("indexer").wait("1s").retry(Retry()),
        lambda: app.leadership("indexer").wait().retry(Retry()),
        lambda: app.leadership("indexer").retry(Retry()).wait(),
    ):
        with pytest.raises(ConfigurationError, match="waited for"):
            mix()


async def test_the_loss_of_a_term_is_raised_into_the_body(app: Rota, db: Db) -> None:
    with app.facts.recorded(LeadershipEnded) as ended, pytest.raises(LeadershipLost) as lost:
        async with app.leadership("indexer") as term:
            end_members(db)
            await asyncio.sleep(60)
    assert not term.valid
    assert (lost.value.name, lost.value.epoch) == ("indexer", term.epoch)
    assert [(fact.name, fact.epoch, fact.reason, fact.kind) for fact in ended] == [
        ("indexer", term.epoch, lost.value.reason, "lost")
    ]
    with pytest.raises(LeadershipLost):
        term.check()


def end_members(db: Db) -> None:
    """What peers do to a process that they take for dead."""
    db.execute(
        "update rota.members set ended_at = statement_timestamp(), end_reason = 'expired' where ended_at is null"
    )


async def test_a_body_that_is_cancelled_by_others_is_cancelled_and_resigns(app: Rota, other: Rota) -> None:
    begun = asyncio.Event()

    async def lead() -> None:
        async with app.leadership("indexer"):
            begun.set()
            await asyncio.sleep(60)

    leading = asyncio.create_task(lead())
    await begun.wait()
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading
    async with other.leadership("indexer"):
        pass


async def test_what_the_body_raises_is_raised_and_the_term_is_resigned(app: Rota, other: Rota) -> None:
    with pytest.raises(ValueError, match="no"):
        async with app.leadership("indexer"):
            raise ValueError("no")
    async with other.leadership("indexer"):
        pass


async def test_confirming_asks_the_database(app: Rota, db: Db) -> None:
    with pytest.raises(LeadershipLost):
        async with app.leadership("indexer") as term:
            await term.confirm()
            db.execute("update rota.leases set epoch = epoch + 1, member = gen_random_uuid()")
            await term.confirm()


@pytest.fixture
def ledger(db: Db) -> Db:
    db.execute("create table public.ledger (entry text)")
    return db


async def test_fenced_work_commits_while_the_term_is_on_and_is_refused_afterwards(app: Rota, ledger: Db) -> None:
    async with app.leadership("indexer") as term:
        async with term.transaction() as connection:
            await connection.execute("insert into public.ledger values ('good')")
        # as someone who took over would: what this process believes does not matter
        ledger.execute("update rota.leases set epoch = epoch + 1 where name = 'indexer'")
        with pytest.raises(LeadershipLost):
            async with term.transaction() as connection:
                await connection.execute("insert into public.ledger values ('late')")
        ledger.execute("update rota.leases set epoch = epoch - 1 where name = 'indexer'")
        end_members(ledger)
        with pytest.raises(LeadershipLost):
            async with term.transaction() as connection:
                await connection.execute("insert into public.ledger values ('late')")
        await term.resign()
    assert ledger.execute("select entry from public.ledger").fetchall() == [("good",)]


async def test_no_term_begins_while_fenced_work_of_the_last_is_under_way(app: Rota, other: Rota, ledger: Db) -> None:
    """It is ended for that if its member has ended, and can then never commit."""
    with pytest.raises((LeadershipLost, psycopg.Error)):
        async with app.leadership("indexer") as term, term.transaction() as connection:
            await connection.execute("insert into public.ledger values ('late')")
            with pytest.raises(LeadershipHeld):
                async with other.leadership("indexer"):
                    pass
            ledger.execute(
                "update rota.members set ended_at = statement_timestamp(), end_reason = 'expired' where id = %s",
                [term.member],
            )
            async with other.leadership("indexer").wait("20s") as next_term:
                assert next_term.epoch > term.epoch
                await connection.execute("select 1")
    assert ledger.execute("select entry from public.ledger").fetchall() == []


@pytest.mark.parametrize("where", ["inside", "at the end", "on a connection of the user's"])
async def test_work_that_was_thrown_out_is_told_that_its_term_is_over(
    app: Rota, other: Rota, ledger: Db, where: str
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        on = None
        if where == "on a connection of the user's":
            on = await stack.enter_async_context(await psycopg.AsyncConnection.connect(ledger.info.dsn))
        async with app.leadership("indexer") as term:
            term.on_news = lambda: None  # which would tell the body as well, now or a moment later
            with pytest.raises(LeadershipLost) as lost:
                async with term.transaction(on=on) as connection:
                    await other.leaders.resign("indexer", force=True)
                    if where == "inside":
                        await connection.execute("insert into public.ledger values ('late')")
    assert isinstance(lost.value.__cause__, psycopg.Error | DatabaseUnavailable)


async def test_fenced_work_whose_session_was_ended_in_a_term_that_is_on_is_told_that_the_database_is_away(
    app: Rota, ledger: Db
) -> None:
    async with app.leadership("indexer") as term:
        with pytest.raises(DatabaseUnavailable):
            async with term.transaction() as connection:
                ledger.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):  # of a statement of the user's
            async with term.transaction() as connection:
                ledger.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
                await connection.execute("select 1")
        assert term.valid


async def test_a_resignation_waits_for_fenced_work_and_holds_up_nothing_else(app: Rota, other: Rota, db: Db) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with term.transaction():
            entered.set()
            await leave.wait()

    def renewed_at() -> Any:
        (found,) = db.execute("select renewed_at from rota.members where ended_at is null").fetchone() or (None,)
        return found

    async with app.leadership("another") as another, app.leadership("indexer") as term:
        working = asyncio.create_task(work())
        await entered.wait()
        before, valid = renewed_at(), []
        resigning = asyncio.create_task(term.resign())

        def beaten() -> bool:
            valid.append(another.valid)
            return (renewed_at() - before).total_seconds() > 2

        await until(beaten, what="several beats")

        assert all(valid)
        assert not resigning.done()
        assert (await other.leaders.terms("indexer"))[0].end_reason is None
        leave.set()
        await asyncio.gather(resigning, working)  # whose transaction is committed
        assert (await other.leaders.terms("indexer"))[0].end_reason == "resigned"


async def test_a_term_is_not_resigned_inside_its_own_transaction(app: Rota) -> None:
    async with app.leadership("indexer") as term:
        async with term.transaction():
            with pytest.raises(NotPossible, match="inside its own transaction"):
                await term.resign()
        await term.confirm()
        with term.transaction(), pytest.raises(NotPossible, match="inside its own transaction"):
            term.resign_sync()
        assert term.valid


async def test_a_transaction_that_outlives_the_block_of_its_term_keeps_nobody_waiting_and_then_nobody_out(
    app: Rota, other: Rota
) -> None:
    async with app.leadership("another"):
        async with app.leadership("indexer") as term:
            late = term.transaction()
            await late.__aenter__()
        with pytest.raises(LeadershipHeld):
            async with other.leadership("indexer"):
                pass
        await late.__aexit__(None, None, None)
        async with other.leadership("indexer").wait("5s") as following:
            assert following.epoch > term.epoch


async def test_an_acquisition_whose_answer_never_came_is_given_up(app: Rota, other: Rota, db: Db) -> None:
    """The database says that this process leads, and nobody in it knows: as after a cut, or a cancel at the wrong moment."""
    async with app.leadership("something else") as term:
        db.execute(
            "insert into rota.leases (name, epoch, member, acquired_at) values ('indexer', 1, %s, now())", [term.member]
        )
        async with other.leadership("indexer").wait("10s"):
            pass


async def test_who_waits_gives_up_what_it_leads_without_knowing(app: Rota, other: Rota, db: Db) -> None:
    """Also what it waits for: as after a failover that forgot that it had resigned."""
    with app.facts.recorded(StandingBy) as standing, pytest.raises(LeadershipLost):
        async with other.leadership("indexer"):
            waiting = asyncio.create_task(_lead_once(app))
            await until(lambda: standing, what="it waits")
            (member,) = db.execute("select member from rota.standbys").fetchone()  # type: ignore[misc]
            db.execute("update rota.leases set epoch = epoch + 1, member = %s where name = 'indexer'", [member])
            db.execute("insert into rota.leases values ('another', 1, %s, now())", [member])
            await asyncio.sleep(60)
    async with other.leadership("another").wait("10s"):
        pass
    await waiting


async def test_a_leader_steps_down_when_it_is_asked_to(app: Rota, other: Rota) -> None:
    with pytest.raises(LeadershipLost, match="asked to step down"):
        async with app.leadership("indexer"):
            (before,) = await other.leaders.list()
            asked = await other.leaders.resign("indexer")
            assert (asked.epoch, asked.holder) == (before.epoch, before.holder)
            await asyncio.sleep(60)
    with pytest.raises(NotPossible, match="Nobody leads"):
        await other.leaders.resign("indexer")


@pytest.mark.parametrize(("force", "kind"), [(False, "asked"), (True, "taken")])
async def test_how_a_term_ended_is_told_apart(app: Rota, other: Rota, force: bool, kind: str) -> None:
    with app.facts.recorded(LeadershipEnded) as ended:
        async with app.leadership("indexer"):
            pass
        with pytest.raises(LeadershipLost):
            async with app.leadership("indexer"):
                await other.leaders.resign("indexer", force=force)
                await asyncio.sleep(60)
    assert [fact.kind for fact in ended] == ["resigned", kind]


@pytest.mark.parametrize(
    "error",
    [
        LeadershipHeld("indexer", "web-1:7", "web-1", datetime(2026, 1, 1, tzinfo=UTC), 5),
        LeadershipLost("indexer", 5, "it was taken away"),
    ],
)
def test_who_leads_can_be_told_to_another_process(error: RotaError) -> None:
    there = pickle.loads(pickle.dumps(error))

    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


def _raised_by(call: Callable[[], object]) -> str:
    try:
        call()
    except BaseException as error:
        return type(error).__name__
    return "nothing"


@pytest.mark.one_server
def test_a_forked_child_leads_nothing(rota_database: str) -> None:
    """It has its parent's memory, and neither its thread nor its session."""
    with Rota(rota_database) as app, app.leadership("indexer") as term:
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            os.write(write, f"{term.valid} {_raised_by(term.check)} {_raised_by(term.resign_sync)}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(read, 1000).decode()
        os.close(read)
        os.close(write)
        assert said == "False LeadershipLost ForkedProcess"
        term.confirm_sync()
        assert term.valid


async def test_a_term_that_is_taken_away_is_over_at_once_for_fenced_work(app: Rota, other: Rota) -> None:
    with pytest.raises(LeadershipLost):
        async with app.leadership("indexer") as term:
            await other.leaders.resign("indexer", force=True)
            async with term.transaction():
                pass
    assert [term.end_reason for term in await other.leaders.terms("indexer")] == ["taken"]


async def test_a_process_is_a_member_only_while_it_leads_or_waits(app: Rota) -> None:
    with app.facts.recorded(MemberJoined) as joined, app.facts.recorded(MemberLeft) as left:
        async with app.leadership("one"), app.leadership("two"):
            assert (len(joined), len(left)) == (1, 0)
        assert (len(joined), len(left)) == (1, 1)


async def test_a_worker_that_leads_is_one_member(app: Rota) -> None:
    working = asyncio.create_task(app.work())
    await until(lambda: app.members_sync(), what="the worker has joined")
    async with app.leadership("indexer") as term:
        assert [member.id for member in await app.members()] == [term.member]
        assert (await app.members())[0].work["concurrency"]
    assert len(await app.members()) == 1
    app.stop()
    await working


def test_sync_code_leads_as_well(rota_database: str, ledger: Db) -> None:
    with Rota(rota_database) as app, Rota(rota_database) as other:
        with app.facts.recorded(LeadershipGained) as gained, app.leadership("indexer") as term:
            term.check()
            term.confirm_sync()
            with term.transaction() as connection:
                connection.execute("insert into public.ledger values ('good')")
            with pytest.raises(LeadershipHeld), other.leadership("indexer"):
                pass
            led: list[int] = []
            waiting = threading.Thread(target=_lead_sync, args=(other, led))
            waiting.start()
            until_waiting(app)
            term.resign_sync()
            waiting.join(20)
        assert [fact.epoch for fact in gained] == [term.epoch]
        assert led[0] > term.epoch
        with pytest.raises(LeadershipLost), app.leadership("indexer") as term:
            end_members(ledger)
            deadline = time.monotonic() + 10
            while term.valid and time.monotonic() < deadline:
                time.sleep(0.01)
    assert ledger.execute("select entry from public.ledger").fetchall() == [("good",)]


def _lead_sync(app: Rota, led: list[int]) -> None:
    with app.leadership("indexer").wait("30s") as term:
        led.append(term.epoch)


def until_waiting(app: Rota) -> None:
    deadline = time.monotonic() + 10
    while not app.leaders.list_sync()[0].standbys and time.monotonic() < deadline:
        time.sleep(0.01)


async def test_a_name_that_cannot_be_one_is_refused(app: Rota) -> None:
    for name in ("", "x" * 201, "a\nb", "\x1b[2J", "a\x00", "\ud800", "rota.scheduler"):
        with pytest.raises(RotaError):
            app.leadership(name)


async def test_leadership_needs_no_worker_and_works_with_the_test_app(rota_app: TestRota) -> None:
    async with rota_app.leadership("indexer") as term:
        assert term.valid
