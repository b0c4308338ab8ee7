"""Writers that do everything to a log that makes positions and commits come apart."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import psycopg
from tests.projections.logs import Db, append

# What the projection makes of the log, and what a fold over the log says it must be.
MAKE = """
    create table public.totals (stream text primary key, version bigint not null, total bigint not null);
    create table public.taken (id bigint generated always as identity, stream text, version bigint, position bigint)
"""
APPLY = """
    with total as (
        insert into public.totals as total values (%(stream)s, %(version)s, %(sum)s)
        on conflict (stream) do update set total = total.total + excluded.total, version = excluded.version
    )
    insert into public.taken (stream, version, position) values (%(stream)s, %(version)s, %(position)s)
"""
FOLD = """
    select stream, max(version), sum((data ->> 'sum')::bigint)::bigint
    from rota.events group by stream order by stream
"""
TOTALS = "select stream, version, total from public.totals order by stream"
ONCE = "select stream, version, position from rota.events order by stream, version"
TAKEN = "select stream, version, position from public.taken order by stream, id"


def check(db: Db) -> None:
    """What was taken in is what is committed: once each, ascending in each stream, and to the same sums."""
    assert db.execute(TAKEN).fetchall() == db.execute(ONCE).fetchall()
    assert db.execute(TOTALS).fetchall() == db.execute(FOLD).fetchall()


class Writers:
    """Several threads that write until each has begun so many transactions."""

    def __init__(
        self, dsn: str, seed: int, *, writers: int, transactions: int, prepared: bool, streams: int = 12
    ) -> None:
        self._dsn = dsn
        self._streams = [f"s{n:03}" for n in range(streams)]
        self._prepared = prepared
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(f"{seed}/{n}"), n, transactions), daemon=True)
            for n in range(writers)
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        yield
        for thread in self._threads:
            thread.join(120)
        assert self._errors == []

    @property
    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _write(self, chance: random.Random, number: int, transactions: int) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as db:
                for turn in range(transactions):
                    self._transact(db, chance, f"w{number}-{turn}")
        except BaseException as error:
            self._errors.append(error)

    def _transact(self, db: Db, chance: random.Random, name: str) -> None:
        prepares = self._prepared and chance.random() < 0.1
        db.execute("begin")
        if chance.random() < 0.3:
            db.execute("select pg_current_xact_id()")  # an old transaction that appends late
            self._hold(chance)
        # in one order for all, as each append holds its stream
        for stream in sorted(chance.choices(self._streams, k=chance.randint(1, 6))):
            if chance.random() < 0.2:
                db.execute("savepoint here")
                self._append(db, chance, stream)
                db.execute("rollback to savepoint here")
            if chance.random() < 0.2:
                db.execute("savepoint there")
            self._append(db, chance, stream)
            if chance.random() < 0.3:
                self._hold(chance)
        end = "commit" if chance.random() < 0.85 else "rollback"
        if prepares:
            db.execute(f"prepare transaction '{name}'")
            self._hold(chance)
            db.execute(f"{end} prepared '{name}'")
        else:
            db.execute(end)

    def _append(self, db: Db, chance: random.Random, stream: str) -> None:
        # who notifies cannot prepare: the projection looks without being told
        append(db, stream, "Paid", {"sum": chance.randint(1, 100)}, wake=False)

    def _hold(self, chance: random.Random) -> None:
        time.sleep(chance.uniform(0, 0.02))
