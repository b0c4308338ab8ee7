"""The queue's statements, run one by one on a plain connection, and what is in its tables afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
from tests.interleave import Step

from rota.jobs.enqueue import put_jobs
from rota.jobs.job import NewJob, NewUnique, Owner
from rota.leases.members import join_member
from rota.postgres.query import Query

Db = psycopg.Connection[Any]

LEASE = timedelta(seconds=15)
CHANNEL = "channel"
LIVE = ("queued", "blocked", "running")  # the states in which a unique job counts if nothing else is said


def ask(db: Db, query: Query[Any]) -> Any:
    cursor = db.execute(query.statement.sql("rota"), query.params)
    return query.read(cursor.fetchall() if cursor.description else [])


def step(query: Query[Any]) -> Step:
    return lambda connection: ask(connection, query)


def commit(db: Db) -> None:
    db.commit()


def roll_back(db: Db) -> None:
    db.rollback()


def join(db: Db, member: UUID | None = None) -> UUID:
    member = member or uuid4()
    ask(db, join_member(member, name="m", host="h", pid=1, release="0", lease=LEASE, key=None, work={}))
    return member


def put(*new: NewJob) -> Query[Any]:
    return put_jobs(new, cast(Owner, None))


def unique(key: str, *, task: str = "t", conflict: str = "return", states: Sequence[str] = LIVE, **more: Any) -> NewJob:
    """A job that says when it conflicts with another."""
    return NewJob(task, "{}", unique=NewUnique(key, tuple(states), None, conflict), **more)
