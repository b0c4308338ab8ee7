"""What the rest of the process asks on the control session, answered between two beats: each gets its answer or an error."""

from __future__ import annotations

import contextlib
import queue
from concurrent.futures import Future
from typing import Any, TypeVar

from rota.clock import boottime
from rota.leases.session import ControlSession
from rota.postgres.query import Query

__all__ = ["Questions"]

T = TypeVar("T")


class Questions:
    """Asked in any thread, answered in that of the session."""

    def __init__(self) -> None:
        self._open: queue.SimpleQueue[tuple[Query[Any], Future[Any]]] = queue.SimpleQueue()

    def put(self, query: Query[T]) -> Future[T]:
        answer: Future[T] = Future()
        self._open.put((query, answer))
        return answer

    def answer(self, session: ControlSession, until: float) -> None:
        """Answer all that are open, or as many as there is time for: however many there are, the beat comes first.

        Raises what ended the session, and leaves the others open then.
        """
        while boottime() < until:
            try:
                query, answer = self._open.get_nowait()
            except queue.Empty:
                return
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(session.ask(query))
            except Exception as error:
                answer.set_exception(error)
                if session.lost:
                    raise

    def refuse(self, error: Exception) -> None:
        """Answer all that are open with this error."""
        with contextlib.suppress(queue.Empty):
            while True:
                _, answer = self._open.get_nowait()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)
