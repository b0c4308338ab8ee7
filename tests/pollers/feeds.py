"""A table of the user's with rows to poll, and what is in it and in our tables afterwards."""

from __future__ import annotations

from typing import Any

import psycopg

Db = psycopg.Connection[Any]
Row = dict[str, Any]

FEEDS = """
    create table public.feeds (
        id bigint primary key,
        name text not null default '',
        minutes integer not null default 5,
        enabled boolean not null default true,
        status text not null default 'new',
        notes jsonb not null default '{"a": [1]}',
        fetched_at timestamptz
    )
"""

#: for @app.poller: each row every five minutes
EVERY_FIVE_MINUTES: dict[str, Any] = {"table": "feeds", "last": "fetched_at", "interval": "5m"}


def make_feeds(db: Db, count: int) -> None:
    """So many feeds that were never polled."""
    db.execute(FEEDS)
    add_feeds(db, 1, count)


def add_feeds(db: Db, first: int, last: int) -> None:
    db.execute(
        "insert into feeds (id, name) select n, 'feed ' || n from generate_series(%s::int, %s::int) n", [first, last]
    )


def rows_of(db: Db) -> list[Row]:
    """The table as a whole, as JSON, by id."""
    return [row for (row,) in db.execute("select to_jsonb(feeds) from feeds order by id")]


def stamped(db: Db) -> list[int]:
    return [id for (id,) in db.execute("select id from feeds where fetched_at is not null order by id")]


def claims(db: Db) -> dict[Any, Row]:
    """What Rota remembers of rows, by the only value of their keys."""
    return {key[0]: row for key, row in db.execute("select key, to_jsonb(claim) from rota.poll_claims as claim")}


def taken(db: Db) -> list[Any]:
    return sorted(key for key, claim in claims(db).items() if claim["member"] is not None)


def one(db: Db, sql: str, *params: Any) -> Any:
    row = db.execute(sql, params).fetchone()
    return row and row[0]
