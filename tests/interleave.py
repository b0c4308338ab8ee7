"""Runs the steps of several sessions in every order, as PostgreSQL's isolation tester does.

Each session keeps its own order. A step that waits for a lock is left waiting while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import psycopg

from rota.testing import until_sync

Step = Callable[[psycopg.Connection[Any]], Any]


def orders(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every order of sessions in which session n takes lengths[n] steps."""
    if not any(lengths):
        yield ()
        return
    for session, left in enumerate(lengths):
        if left:
            rest = [n - (place == session) for place, n in enumerate(lengths)]
            yield from ((session, *order) for order in orders(rest))


class Sessions:
    """Connections that each run their steps in a thread of their own."""

    def __init__(self, dsn: str, count: int) -> None:
        self._connections = [psycopg.connect(dsn) for _ in range(count)]
        self._threads = [ThreadPoolExecutor(1) for _ in range(count)]
        self._watcher = psycopg.connect(dsn, autocommit=True)

    def run(self, scripts: Sequence[Sequence[Step]], order: Sequence[int]) -> list[list[Any]]:
        """What each step of each session returned, when the steps were begun in this order."""
        steps = [iter(script) for script in scripts]
        begun: list[list[Future[Any]]] = [[] for _ in scripts]
        for session in order:
            future = self._threads[session].submit(next(steps[session]), self._connections[session])
            begun[session].append(future)
            self._wait(session, future)
        return [[future.result(timeout=10) for future in futures] for futures in begun]

    def close(self) -> None:
        for connection, thread in zip(self._connections, self._threads, strict=True):
            thread.shutdown()
            connection.close()
        self._watcher.close()

    def _wait(self, session: int, future: Future[Any]) -> None:
        while not wait([future], timeout=0.002).done:
            if self._is_blocked(session):
                return

    def _is_blocked(self, session: int) -> bool:
        pid = self._connections[session].info.backend_pid
        row = self._watcher.execute("select cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone()
        return bool(row and row[0])


def at_once(
    db: psycopg.Connection[Any], lock: str, calls: list[Callable[[], Any]], then: Callable[[], None] = lambda: None
) -> list[Future[Any]]:
    """The calls, made to wait for one lock in this order and let go together, when `then` is done."""
    with ThreadPoolExecutor(len(calls)) as threads:
        db.execute("begin")
        db.execute(lock)
        futures = []
        for call in calls:
            futures.append(threads.submit(call))
            until_sync(lambda: _waiting(db) == len(futures), what="the call waits for the lock")
        then()
        db.execute("commit")
    return futures


def _waiting(db: psycopg.Connection[Any]) -> int:
    # a look from within the transaction sees one moment only, unless told otherwise
    db.execute("select pg_stat_clear_snapshot()")
    row = db.execute(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return int(row[0])
