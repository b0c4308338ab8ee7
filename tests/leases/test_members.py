from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.interleave import Sessions, Step, orders

from rota.jobs.claim import ClaimedJob, claim, claim_flow, claim_named, claim_suspect
from rota.jobs.lanes import Lane
from rota.jobs.rescue import rescue
from rota.leases.member_view import list_members
from rota.leases.members import (
    Watched,
    attach_member,
    hold_lock,
    join_member,
    leave_member,
    watch_members,
)
from rota.postgres.query import Query

LEASE = timedelta(seconds=15)
GRACE = timedelta(seconds=0.75)


def ask(connection: psycopg.Connection[Any], query: Query[Any]) -> Any:
    cursor = connection.execute(query.statement.sql("rota"), query.params)
    return query.read(cursor.fetchall() if cursor.description else [])


def join(connection: psycopg.Connection[Any], key: int | None = None) -> UUID:
    member = uuid4()
    ask(connection, join_member(member, name="m", host="h", pid=1, release="0", lease=LEASE, key=key, work={}))
    return member


LATER = datetime(9999, 1, 1, tzinfo=UTC)


def beat(
    member: UUID, *, settled: bool = True, let_in_at: datetime | None = LATER, within: timedelta | None = None
) -> Query[Watched]:
    return watch_members(member, LEASE, grace=GRACE, settled=settled, let_in_at=let_in_at, within=within)


def watch(
    connection: psycopg.Connection[Any], *, settled: bool = True, let_in: timedelta | None = timedelta(0)
) -> Watched:
    """A look by someone who is not on the list, and was let in so long ago."""
    (now,) = connection.execute("select statement_timestamp()").fetchone()  # type: ignore[misc]
    let_in_at = None if let_in is None else now - let_in
    return ask(connection, beat(uuid4(), settled=settled, let_in_at=let_in_at))  # type: ignore[no-any-return]


def renew(connection: psycopg.Connection[Any], member: UUID) -> bool:
    return ask(connection, beat(member)).renewed  # type: ignore[no-any-return]


def age(connection: psycopg.Connection[Any], member: UUID, **columns: str) -> None:
    """Set columns of a member to a moment so long ago."""
    for column, ago in columns.items():
        connection.execute(
            f"update rota.members set {column} = statement_timestamp() - %s::interval where id = %s", [ago, member]
        )


def row(connection: psycopg.Connection[Any], member: UUID) -> dict[str, Any]:
    cursor = connection.execute("select * from rota.members where id = %s", [member])
    found = cursor.fetchone()
    assert found is not None
    assert cursor.description is not None
    return dict(zip([column.name for column in cursor.description], found, strict=True))


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def other(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def test_a_member_whose_lock_is_held_is_left_alone(db: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
    assert ask(other, hold_lock(-42))
    member = join(other, key=-42)

    assert watch(db).ended == ()
    assert row(db, member)["suspected_at"] is None


def test_a_free_lock_is_a_suspicion_first_and_death_when_it_has_stood(db: psycopg.Connection[Any]) -> None:
    member = join(db, key=42)

    first = watch(db)
    assert first.ended == ()
    assert 0 < first.ripens_in <= 0.75
    assert row(db, member)["suspected_at"] is not None

    age(db, member, suspected_at="1 second")
    assert [ended.id for ended in watch(db).ended] == [member]
    assert row(db, member)["end_reason"] == "suspected"


def test_renewing_clears_a_suspicion(db: psycopg.Connection[Any]) -> None:
    member = join(db, key=42)
    watch(db)

    assert renew(db, member)

    assert row(db, member)["suspected_at"] is None


def test_a_lock_taken_again_in_time_saves_a_suspected_member(
    db: psycopg.Connection[Any], other: psycopg.Connection[Any]
) -> None:
    member = join(db, key=42)
    watch(db)
    age(db, member, suspected_at="1 second")
    ask(other, hold_lock(42))

    assert watch(db).ended == ()


def test_a_member_behind_a_pooler_is_ended_by_its_lease_alone(db: psycopg.Connection[Any]) -> None:
    member = join(db, key=None)

    assert watch(db).ended == ()
    assert row(db, member)["suspected_at"] is None

    age(db, member, expires_at="1 second")
    assert [ended.id for ended in watch(db).ended] == [member]
    assert row(db, member)["end_reason"] == "expired"


def test_a_peer_that_was_away_itself_does_not_believe_in_the_expiry_of_others(db: psycopg.Connection[Any]) -> None:
    member = join(db, key=None)
    age(db, member, expires_at="1 second")

    assert watch(db, settled=False).ended == ()
    assert row(db, member)["ended_at"] is None


@pytest.mark.parametrize("sign", [{"expires_at": "1 second"}, {"suspected_at": "1 second"}])
def test_a_peer_that_sees_the_clock_set_forward_ends_nobody(db: psycopg.Connection[Any], sign: dict[str, str]) -> None:
    member, peer = join(db, key=42), join(db)
    renewal = ask(db, beat(peer, within=timedelta(seconds=2)))
    age(db, member, **sign)
    age(db, peer, renewed_at="3 seconds")  # and by its own clock it was a second

    after = ask(db, beat(peer, within=timedelta(seconds=2)))
    assert (renewal.stepped, after.stepped, after.renewed, after.ended) == (False, True, True, ())
    later = ask(db, beat(peer, within=timedelta(seconds=2)))
    assert (later.stepped, [ended.id for ended in later.ended]) == (False, [member])


@pytest.mark.parametrize("let_in", [None, timedelta(seconds=0.5)])
def test_a_peer_that_was_not_let_in_since_ends_nobody_for_a_free_lock(
    db: psycopg.Connection[Any], let_in: timedelta | None
) -> None:
    """It may be that nobody is let in: then the member could not have come back."""
    member = join(db, key=42)
    watch(db)
    age(db, member, suspected_at="1 second")

    assert watch(db, let_in=let_in).ended == ()
    assert [ended.id for ended in watch(db).ended] == [member]


@pytest.mark.parametrize("other_server", ["- interval '1 second'", "+ interval '1 day'"])
def test_a_lock_taken_on_another_server_or_before_its_start_proves_nothing(
    db: psycopg.Connection[Any], other_server: str
) -> None:
    """After a restart, and on a replica that was promoted, which may have started long before."""
    member = join(db, key=42)
    watch(db)
    age(db, member, suspected_at="1 second")
    db.execute(f"update rota.members set server_started_at = pg_postmaster_start_time() {other_server}")

    assert watch(db).ended == ()

    assert ask(db, attach_member(member, LEASE, 42))
    watch(db)
    age(db, member, suspected_at="1 second")
    assert [ended.id for ended in watch(db).ended] == [member]


def test_an_ended_member_can_neither_renew_nor_attach_nor_claim(db: psycopg.Connection[Any]) -> None:
    member = join(db)
    db.execute("insert into rota.jobs (task) values ('t')")
    ask(db, leave_member(member))
    lanes = [(Lane("default", 0, 0.0), None)]

    assert not renew(db, member)
    assert not ask(db, attach_member(member, LEASE, 1))
    assert ask(db, claim(lanes=lanes, tasks={"t": 1}, limit=1, token=1, member=member)) == []
    assert row(db, member)["end_reason"] == "left"


LANES = [(Lane("default", 0, 0.0), None)]
WAYS: dict[str, Callable[[UUID, int], Query[list[ClaimedJob]]]] = {
    "lane": lambda member, _: claim(lanes=LANES, tasks={"t": 1}, limit=1, token=1, member=member),
    "named": lambda member, job: claim_named(ids=[job], queues=None, tasks={"t": 1}, limit=1, token=1, member=member),
    "flow": lambda member, _: claim_flow(lanes=LANES, tasks={"t": 1}, limit=1, most_losses=0, token=1, member=member),
    "suspect": lambda member, _: claim_suspect(queues=None, tasks={"t": 1}, most_losses=9, token=1, member=member),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_member_that_is_suspected_claims_nothing_until_it_has_renewed(db: psycopg.Connection[Any], way: str) -> None:
    """It may be ended at any moment: what it took then would be begun twice."""
    member = join(db)
    db.execute("insert into rota.jobs (task, losses) values ('t', %s)", [int(way == "suspect")])
    (job,) = db.execute("select id from rota.jobs").fetchone()  # type: ignore[misc]
    age(db, member, suspected_at="1 ms")

    assert ask(db, WAYS[way](member, job)) == []
    assert renew(db, member)
    assert [taken.id for taken in ask(db, WAYS[way](member, job))] == [job]


def test_a_member_past_its_expiry_that_nobody_ended_may_renew(db: psycopg.Connection[Any]) -> None:
    """Nobody took anything from it, so an outage that let every lease run out costs nobody anything."""
    member = join(db)
    age(db, member, expires_at="1 hour")

    assert renew(db, member)
    assert watch(db).ended == ()


def test_members_are_listed_the_live_ones_first(db: psycopg.Connection[Any]) -> None:
    gone, live = join(db), join(db)
    ask(db, leave_member(gone))

    assert [m.id for m in ask(db, list_members())] == [live]
    assert [(m.id, m.state) for m in ask(db, list_members(ended=True))] == [(live, "live"), (gone, "ended")]


@pytest.mark.parametrize("why", ["suspected", "expired"])
def test_renewal_and_ending_never_both_succeed_and_rescue_follows_the_ending(
    rota_database: str, db: psycopg.Connection[Any], why: str
) -> None:
    sessions = Sessions(rota_database, 3)
    member = uuid4()

    def set_up() -> None:
        db.execute("delete from rota.jobs; delete from rota.members; delete from rota.attempts")
        key = 42 if why == "suspected" else None
        ask(db, join_member(member, name="m", host="h", pid=1, release="0", lease=LEASE, key=key, work={}))
        age(db, member, **({"suspected_at": "1 second"} if why == "suspected" else {"expires_at": "1 second"}))
        db.execute(
            "insert into rota.jobs (task, state, token, member, attempt) values ('t', 'running', 7, %s, 1)", [member]
        )

    def step(query: Query[Any]) -> Step:
        return lambda connection: ask(connection, query)

    def commit(connection: psycopg.Connection[Any]) -> None:
        connection.commit()

    scripts: list[list[Step]] = [
        [step(beat(member)), commit],
        [step(beat(uuid4())), commit],
        [step(rescue("channel")), commit],
    ]
    try:
        for order in orders([2, 2, 2]):
            set_up()

            (renewed, _), (watched, _), (rescued, _) = sessions.run(scripts, order)

            assert renewed.renewed != bool(watched.ended), order
            assert not (rescued and renewed.renewed), order
            state = db.execute("select state, token from rota.jobs").fetchone()
            assert state == (("queued", None) if rescued else ("running", 7)), order
    finally:
        sessions.close()
