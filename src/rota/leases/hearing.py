"""What others say on the channels, handed on as it comes; and whether we would hear it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from psycopg import Connection
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

from rota.facts import Facts, ListenerDeaf, ListenerHeard
from rota.postgres.notify import Probe, probe_channel

__all__ = ["Hearing"]


class Hearing:
    """Given, for each channel, what to do with a message there: in the thread that uses the connection."""

    def __init__(self, schema: str, facts: Facts, channels: Mapping[str, Callable[[str], None]]) -> None:
        self._facts = facts
        self._channels = channels
        self._probe = Probe()
        self._probed = probe_channel(schema)

    @property
    def hears(self) -> bool:
        """Whether messages arrive; polling more often is the answer while they do not."""
        return self._probe.hears

    def reset(self) -> None:
        """A new connection has proved nothing yet."""
        self._probe.reset()

    def listen(self, connection: Connection[TupleRow]) -> None:
        """Hear the channels on this connection, and what is said to find out whether anyone hears."""
        connection.add_notify_handler(lambda note: self._heard(note.channel, note.payload))
        channels = (SQL("listen {}").format(Identifier(channel)) for channel in (*self._channels, self._probed))
        connection.execute(SQL("; ").join(channels), prepare=False)

    def hand_on(self, connection: Connection[TupleRow]) -> None:
        """What arrived while we slept; what arrives during a statement comes through the connection's handler."""
        while note := connection.pgconn.notifies():
            self._heard(note.relname.decode(), note.extra.decode("utf-8", "replace"))

    def due(self) -> str | None:
        """The channel to say something on now, if it is time to; tells if what we said last was not heard."""
        if self._probe.check():
            self._facts.emit(ListenerDeaf())
        return self._probed if self._probe.due() else None

    def _heard(self, channel: str, payload: str) -> None:
        if channel in self._channels:
            self._channels[channel](payload)
        elif self._probe.heard():
            self._facts.emit(ListenerHeard())
