"""Logs go with the jobs of their class, a day at a time, by dropping tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.jobs.test_cancel import at_work
from tests.jobs.test_retention import KEY, MANY, ask

from rota import Rota
from rota.jobs.retention import Retention, Upkeep, declare_retention, keep_logs
from rota.testing import TestRota, until

Db = psycopg.Connection[Any]

IDLE = Upkeep(created=0, dropped=0, deleted=0, forgotten=0, hindered=[], unfinished=False)


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    """A database where it is noon, so that no test meets midnight."""
    with psycopg.connect(rota_database, autocommit=True) as connection:
        connection.execute(
            "update rota.test_clock set shift = date_trunc('day', now(), 'UTC') + interval '1 day 12 hours' - now()"
        )
        keep(connection)
        yield connection


def keep(db: Db) -> Upkeep:
    """Rounds until nothing is left to do, and what they did together."""
    done: Upkeep = ask(db, keep_logs(KEY))
    while done.unfinished:
        more: Upkeep = ask(db, keep_logs(KEY))
        done = Upkeep(
            done.created + more.created,
            done.dropped + more.dropped,
            done.deleted + more.deleted,
            0,
            more.hindered,
            more.unfinished,
        )
    return done


def advance(db: Db, by: str) -> None:
    db.execute("update rota.test_clock set shift = shift + %s::interval", [by])


def note(db: Db, count: int = 1, *, retention: str | None = None) -> None:
    db.execute(
        "insert into rota.logs (job_id, token, logged_at, attempt, number, level, logger, message, retention) "
        "select 7, 1, rota.now(), 1, n, 30, 'shop', 'line', %s from generate_series(1, %s) as n",
        [retention, count],
    )


def tables(db: Db) -> dict[str, int]:
    """Where lines are, and how many."""
    return dict(db.execute("select tableoid::regclass::text, count(*) from rota.logs group by 1").fetchall())


def count(db: Db) -> int:
    return sum(tables(db).values())


def test_lines_are_in_the_partition_of_their_day_from_the_first_on(db: Db) -> None:
    note(db)
    advance(db, "1 day")
    note(db)
    assert ask(db, keep_logs(KEY)).created == 1

    assert len(tables(db)) == 2
    assert not any("rest" in table for table in tables(db))
    assert keep(db) == IDLE


def test_lines_go_with_the_jobs_of_their_class_by_dropping_tables(db: Db) -> None:
    ask(db, declare_retention({"short": Retention("1d"), "long": Retention("60d")}))
    keep(db)
    for retention in (None, "short", "long", "unheard_of"):
        note(db, retention=retention)

    advance(db, "3 days")
    done = keep(db)
    assert (count(db), done.deleted) == (3, 0)
    assert done.dropped > 0
    assert not any("short" in table for table in tables(db))

    advance(db, "6 days")
    done = keep(db)
    # a class that nobody declared has the standard rules, and no table of its own
    assert (list(tables(db)), done.deleted) == ([table for table in tables(db) if "logs_long_" in table], 1)

    advance(db, "65 days")
    keep(db)
    assert count(db) == 0
    assert keep(db) == IDLE


def test_lines_in_the_nets_are_moved_when_they_are_few_and_age_there_when_they_are_many(db: Db) -> None:
    advance(db, "30 days")
    note(db, 3)
    assert list(tables(db)) == ["rota.logs_standard_rest"]
    keep(db)
    assert not any("rest" in table for table in tables(db))

    advance(db, "30 days")
    note(db, MANY)
    keep(db)
    assert tables(db)["rota.logs_standard_rest"] == MANY

    advance(db, "8 days")
    assert keep(db).deleted == MANY
    assert count(db) == 0


def test_a_class_that_is_declared_late_takes_its_lines_along(db: Db) -> None:
    note(db, 3, retention="late")
    assert list(tables(db)) == ["rota.logs_rest"]

    ask(db, declare_retention({"late": Retention("2d")}))
    keep(db)

    (table,) = tables(db)
    assert table.startswith("rota.logs_late_2")


def test_one_at_a_time_and_a_lock_in_the_way_is_told(db: Db, rota_database: str) -> None:
    advance(db, "30 days")
    with psycopg.connect(rota_database) as other:
        other.execute("select pg_advisory_xact_lock(%s)", [KEY])
        assert ask(db, keep_logs(KEY)) is None
        other.rollback()
        other.execute("lock table rota.logs_standard in access share mode")
        done = ask(db, keep_logs(KEY))

    assert [text.partition(":")[0] for text in done.hindered] == [
        "adding partitions to rota.logs_standard",
        "dropping partitions of rota.logs_standard",
    ]


@pytest.mark.usefixtures("patient_logs")
async def test_lines_are_kept_with_the_class_of_their_job(rota_database: str, db: Db) -> None:
    async with Rota(rota_database, retention={"short": "1d"}) as app:

        @app.task(retention="short")
        async def chat() -> None:
            logging.getLogger("shop").warning("soon gone")

        await chat.enqueue()
        await app.work(drain=True)

    assert db.execute("select retention from rota.logs").fetchall() == [("short",)]


async def test_workers_see_to_it(rota_app: TestRota, db: Db) -> None:
    note(db)
    advance(db, "30 days")

    async with at_work(rota_app):
        await until(lambda: count(db) == 0, what="the old line is gone")
