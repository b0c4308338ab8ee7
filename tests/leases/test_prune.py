"""Forgetting those who are gone, and never what something still depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from rota.leases.prune import prune_leases
from rota.testing import TestRota, until

Db = psycopg.Connection[Any]


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def member(db: Db, *, ended: str | None = None, reason: str | None = None) -> UUID:
    """One that ended so long ago, or lives."""
    id = uuid4()
    db.execute(
        """
        insert into rota.members (id, name, host, pid, release, expires_at, ended_at, end_reason)
        values (%s, 'm', 'h', 1, '0', now(), now() - %s::interval, %s)
        """,
        [id, ended, reason],
    )
    return id


def term(db: Db, epoch: int, member: UUID, *, ended: str | None) -> None:
    db.execute(
        """
        insert into rota.terms (name, epoch, member, holder, host, pid, acquired_at, ended_at, end_reason)
        values ('led', %s, %s, 'm', 'h', 1, now() - interval '40 days', now() - %s::interval, %s)
        """,
        [epoch, member, ended, None if ended is None else "resigned"],
    )


def kept(db: Db) -> set[UUID]:
    return {id for (id,) in db.execute("select id from rota.members").fetchall()}


async def test_members_are_forgotten_a_day_after_they_left_and_a_week_after_they_were_ended(
    rota_app: TestRota, db: Db
) -> None:
    wanted = {member(db), member(db, ended="23h", reason="left"), member(db, ended="6 days", reason="expired")}
    for ended, reason in (("25h", "left"), ("8 days", "expired"), ("8 days", "suspected")):
        member(db, ended=ended, reason=reason)

    await rota_app.database.run(prune_leases())

    assert kept(db) == wanted


async def test_a_member_that_a_lease_or_a_job_names_is_not_forgotten(rota_app: TestRota, db: Db) -> None:
    leading, resigned = (member(db, ended="30 days", reason="left") for _ in range(2))
    running = member(db, ended="30 days", reason="expired")
    db.execute(
        "insert into rota.leases (name, epoch, member, acquired_at) values ('led', 1, %s, now()), ('free', 1, null, now())",
        [leading],
    )
    rota_app.task(name="hold")(lambda: None)
    job = await rota_app.tasks["hold"].enqueue()
    db.execute(
        "update rota.jobs set state = 'running', member = %s, token = 1, claimed_at = now() where id = %s",
        [running, job.id],
    )

    await rota_app.database.run(prune_leases())

    assert kept(db) == {leading, running}
    assert resigned not in kept(db)
    async with rota_app.leadership("led"):  # which could not be told free if nobody knew that its member has ended
        pass


async def test_old_terms_and_standbys_of_the_gone_are_forgotten(rota_app: TestRota, db: Db) -> None:
    live, ended = member(db), member(db, ended="1 minute", reason="expired")
    for epoch, ago in ((1, "31 days"), (2, "29 days"), (3, None)):
        term(db, epoch, live, ended=ago)
    for waiting in (live, ended, uuid4()):
        db.execute("insert into rota.standbys (name, member) values ('led', %s)", [waiting])

    await rota_app.database.run(prune_leases())

    assert db.execute("select epoch from rota.terms order by epoch").fetchall() == [(2,), (3,)]
    assert db.execute("select member from rota.standbys").fetchall() == [(live,)]


async def test_names_that_nobody_has_led_for_a_month_are_forgotten(rota_app: TestRota, db: Db) -> None:
    live, dead, long_dead = (
        member(db),
        member(db, ended="29 days", reason="expired"),
        member(db, ended="31 days", reason="left"),
    )
    leases = {
        "led for long": (live, "60 days", None),
        "resigned for long": (None, "60 days", "31 days"),
        "resigned lately": (None, "60 days", "29 days"),
        "taken lately": (None, "29 days", "31 days"),
        "left by the dead": (dead, "60 days", None),
        "left by the long dead": (long_dead, "60 days", None),
    }
    for name, (leader, acquired, ended) in leases.items():
        db.execute(
            "insert into rota.leases (name, epoch, member, acquired_at) values (%s, 1, %s, now() - %s::interval)",
            [name, leader, acquired],
        )
        db.execute(
            """
            insert into rota.terms (name, epoch, member, holder, host, pid, acquired_at, ended_at, end_reason)
            values (%s, 1, %s, 'm', 'h', 1, now() - interval '60 days', now() - %s::interval, %s)
            """,
            [name, leader or live, ended, ended and "resigned"],
        )

    for _ in range(2):  # the member that a lease named goes after it
        await rota_app.database.run(prune_leases())

    assert [view.name for view in await rota_app.leaders.list()] == [
        "led for long",
        "left by the dead",
        "resigned lately",
        "taken lately",
    ]
    assert db.execute("select from rota.terms where name = 'left by the long dead'").fetchall() == []
    assert kept(db) == {live, dead}
    async with rota_app.leadership("resigned for long") as term:
        assert term.epoch > 1_700_000_000_000


async def test_a_name_that_fenced_work_holds_fast_is_not_forgotten(rota_app: TestRota, db: Db) -> None:
    db.execute("insert into rota.leases (name, epoch, acquired_at) values ('led', 1, now() - interval '60 days')")
    with psycopg.connect(db.info.dsn) as other:
        other.execute("select from rota.leases for share")

        await rota_app.database.run(prune_leases())

        assert [view.name for view in await rota_app.leaders.list()] == ["led"]


async def test_a_round_forgets_so_many_and_leaves_alone_what_someone_has_locked(rota_app: TestRota, db: Db) -> None:
    locked = member(db, ended="8 days", reason="left")
    for epoch in range(3):
        term(db, epoch, member(db, ended="8 days", reason="left"), ended="31 days")
    with psycopg.connect(db.info.dsn) as other:
        other.execute("select from rota.members where id = %s for update", [locked])

        await rota_app.database.run(prune_leases(limit=2))

        assert len(kept(db)) == 2
        assert db.execute("select count(*) from rota.terms").fetchone() == (1,)
        await rota_app.database.run(prune_leases(limit=2))
        assert kept(db) == {locked}


async def test_whoever_is_a_member_forgets_those_who_are_gone_without_any_worker(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then: with every beat here."""
    monkeypatch.setattr("rota.leases.control._PRUNE_SHARE", 1.0)
    gone = member(db, ended="8 days", reason="expired")
    term(db, 1, gone, ended="31 days")

    async with rota_app.leadership("indexer"):
        await until(lambda: gone not in kept(db), what="the member is forgotten")

    assert db.execute("select from rota.terms where name = 'led'").fetchall() == []


async def test_a_member_that_is_not_allowed_to_forget_keeps_its_term(
    rota_app: TestRota, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.leases.control._PRUNE_SHARE", 1.0)
    monkeypatch.setattr("rota.leases.control.prune_leases", lambda: prune_leases(limit=-1))  # which PostgreSQL refuses

    async with rota_app.leadership("indexer") as term:
        beats = "select renewed_at from rota.members where ended_at is null"
        first = db.execute(beats).fetchone()
        await until(lambda: db.execute(beats).fetchone() != first, what="a beat after the refusal")

        await term.confirm()
