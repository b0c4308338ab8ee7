"""The worker's end of the line to a child: one question at a time, and its answer. What is said: see `errand`.

The answer wakes its job and nothing before it does: that a body has begun is noted where it is read, and what it logged is handed
on from there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from rota.jobs.errand import BEGUN, LINE_LIMIT, LINES

__all__ = ["Line", "ignore"]


def ignore(said: dict[str, Any]) -> None:
    pass


class Line(asyncio.Protocol):
    """Belongs to the event loop that it was opened on."""

    def __init__(self) -> None:
        self.begun_at: float | None = None  # when the body of this question began, by `perf_counter`
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes | None] | None = None
        self._timeout: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._logged: Callable[[dict[str, Any]], None] = ignore
        self._rest = bytearray()
        self._over = False

    def say(self, message: bytes) -> None:
        """Say something that is not answered."""
        self._transport.write(message)

    async def ask(
        self, question: bytes, timeout: float | None = None, logged: Callable[[dict[str, Any]], None] = ignore
    ) -> bytes | None:
        """Say this, and return the answer; None when there is none to come. `logged` is handed the lines that come before it.

        Raises TimeoutError when a body that it began takes longer than `timeout`.
        """
        if self._over:
            return None
        self.begun_at, self._timeout, self._logged = None, timeout, logged
        self._answer = self._loop.create_future()
        try:
            self._transport.write(question)
            return await self._answer
        finally:
            self._answer, self._logged = None, ignore
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def end(self) -> None:
        """Say that nothing more comes."""
        if not self._over:
            self._transport.write_eof()

    def close(self) -> None:
        self.give_up()
        self._transport.close()

    def give_up(self) -> None:
        """Expect no answer any more."""
        self._over = True
        self._tell(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.give_up()

    def data_received(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        if whole and self._rest:
            whole[0] = bytes(self._rest) + whole[0]
            self._rest.clear()
        self._rest += rest
        for said in whole:
            if said == BEGUN:
                self.begun_at = perf_counter()
                if self._timeout is not None:
                    self._timer = self._loop.call_later(self._timeout, self._time_is_up)
            elif said.startswith(LINES):
                self._logged(json.loads(said))
            else:
                self._tell(said)
        if len(self._rest) > LINE_LIMIT:
            self._transport.abort()

    def _tell(self, said: bytes | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(said)

    def _time_is_up(self) -> None:
        # once the line is over its end is what counts
        if self._answer is not None and not self._answer.done() and not self._over:
            self._answer.set_exception(TimeoutError())
