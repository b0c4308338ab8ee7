"""Hearing what is said on a channel where it is acted upon: on the event loop, over a session that is asked things as well.

A thread that listens for the loop has to be woken first, then the loop, and the two want the interpreter at the same moment. And
who hears of work over the session on which it takes work hears for exactly as long as it could take any.

While nothing is asked, the loop watches the socket. What comes with an answer is handed on by the driver, and what was read behind
the answer when that is done: nothing more may come that would have the loop look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from rota.postgres.connection import OwnConnection
from rota.postgres.query import identifier

__all__ = ["Listener"]


@dataclass(frozen=True, slots=True)
class Listener:
    """Hears one channel. `ended` is called when the session ends while nothing is asked: what is said from then on is not heard; and
    when there is another in its place, however the last one ended."""

    channel: str
    heard: Callable[[str], None]
    ended: Callable[[], None]

    async def begin(self, connection: OwnConnection) -> None:
        """Hear what is committed from now on. Only a session of ours can: behind a pooler the next statement may be on another."""
        loop, socket = asyncio.get_running_loop(), connection.pgconn.socket

        def listen() -> None:
            try:
                connection.pgconn.consume_input()
            except psycopg.Error:
                # first of all: the driver has closed it, and another may have its number soon
                loop.remove_reader(socket)
                connection.pgconn.finish()
                self.ended()
            else:
                self.hand_on(connection)

        connection.add_notify_handler(lambda note: self.heard(note.payload))
        connection.listen = listen
        await connection.execute(f"/* rota:listen */ listen {identifier(self.channel)}".encode(), prepare=False)

    def hand_on(self, connection: OwnConnection) -> None:
        """What was read, and is no part of an answer."""
        while not connection.closed and (note := connection.pgconn.notifies()):
            self.heard(note.extra.decode("utf-8", "replace"))
