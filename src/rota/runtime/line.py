"""A line to the database for questions of health: apart from all others, so that their being busy is not taken for its absence.

It is a thread with one connection. They come with the first question, and go when nobody has asked for a while, so that a
process that is not probed has neither. A question is asked once however many want to know, and its answer is good for a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import psycopg

from rota.app import Rota
from rota.clock import boottime
from rota.errors import DatabaseUnavailable
from rota.postgres.ask import ask_sync
from rota.postgres.connection import BoundedConnection, is_alive, translated
from rota.postgres.query import Query

__all__ = ["Line", "Question"]

T = TypeVar("T")

# Longer than the usual time between two probes, so that the connection is not made anew for each.
_LINGER_SECONDS = 15.0
_GOOD_FOR_SECONDS = 1.0
# What a question may take before its connection is given up. Whoever asks waits for less.
_PATIENCE_SECONDS = 5.0
# As for claims: a plan must not flip to a scan of all jobs because statistics are stale.
_SETTINGS = {
    "statement_timeout": "5s",
    "lock_timeout": "1s",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}


class Line:
    """Safe from any thread, and in a forked child, which gets a line of its own."""

    def __init__(self, app: Rota) -> None:
        self._app = app
        #: where an async pool of the user's can be used, if there is no other way to the database
        self.loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._connection: BoundedConnection | None = None
        self._leads_to: object = None

    def put(self, query: Query[T]) -> Future[tuple[T, float]]:
        """Have it run, after those before it. What comes is the answer, and how many seconds that took."""
        answer: Future[tuple[T, float]] = Future()
        answer.set_running_or_notify_cancel()

        def call() -> None:
            try:
                answer.set_result(self._ask(query))
            except BaseException as error:
                answer.set_exception(error)

        with self._lock:
            if self._pid != os.getpid():
                # the thread stayed with the parent, as did the connection: it is not ours to close
                self._pid, self._thread, self._connection = os.getpid(), None, None
                self._calls = queue.SimpleQueue()
            self._calls.put(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rota-health", daemon=True)
                self._thread.start()
        return answer

    def close(self) -> None:
        """Let go of the connection, once what was asked is answered. The next question opens it again."""
        with self._lock:
            if self._thread is not None and self._pid == os.getpid():
                self._calls.put(None)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_LINGER_SECONDS)
            except queue.Empty:
                call = None
            if call is not None:
                call()
                continue
            with self._lock:
                if not self._calls.empty():
                    continue
                self._thread = None
                self._drop()
                return

    def _ask(self, query: Query[T]) -> tuple[T, float]:
        database = self._app.database
        if database.is_users and self._app.settings.dsn is None:
            return self._through_users_pool(query)
        # one that was closed while nobody asked says nothing about the database now
        if self._connection is None or not is_alive(self._connection) or self._leads_to is not database:
            self._drop()
            connector = database.connector("health", settings=_SETTINGS, patience=_PATIENCE_SECONDS)
            self._connection, self._leads_to = connector.connect_sync(), database
        began = boottime()
        try:
            answer = ask_sync(self._connection, database.schema, query)
        except psycopg.Error as error:
            if not error.sqlstate:
                self._drop()  # it did not answer, and may be half-way
            raise translated(error, database.dsn, database.schema) from error
        return answer, boottime() - began

    def _through_users_pool(self, query: Query[T]) -> tuple[T, float]:
        """There is no address that we know, and asking for one would start a server."""
        database, began = self._app.database, boottime()
        if database.users_sync:
            return database.run_sync(query), boottime() - began
        if self.loop is None or not self.loop.is_running():
            raise DatabaseUnavailable(
                "The only way to the database is an async pool of the application's, and no event loop is known to run it on."
            )
        answer: Any = asyncio.run_coroutine_threadsafe(database.run(query), self.loop).result(_PATIENCE_SECONDS)
        return answer, boottime() - began

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()


class Question(Generic[T]):
    """One question, whoever asks it."""

    def __init__(self, line: Line, query: Callable[[], Query[T]]) -> None:
        self._line = line
        self._query = query
        self._lock = threading.Lock()
        self._answer: Future[tuple[T, float]] | None = None
        self._asked_at = 0.0
        self._good_until = 0.0

    def ask(self) -> tuple[Future[tuple[T, float]], float]:
        """The answer to come, or the one that is still good; and when it was asked, on the clock of `boottime`."""
        with self._lock:
            now = boottime()
            if self._answer is None or (self._answer.done() and now > self._good_until):
                self._answer, self._asked_at, self._good_until = self._line.put(self._query()), now, float("inf")
                self._answer.add_done_callback(self._answered)
            return self._answer, self._asked_at

    def forget(self) -> None:
        """Ask anew next time, as in a forked child, or when the app leads elsewhere."""
        with self._lock:
            self._answer = None

    def _answered(self, answer: Future[tuple[T, float]]) -> None:
        self._good_until = boottime() + _GOOD_FOR_SECONDS
