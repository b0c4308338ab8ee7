"""The control thread: keeps this process's lease, watches the peers, and hears wake-ups.

It has a thread and a connection of its own, so that neither a blocked event loop nor a busy pool makes a live process
look dead. Twice a second it renews the lease and looks at the peers; in between it sleeps on its socket, so that a
wake-up or the end of the session is noticed at once.

What the rest of the process may rely on:

- `may_act` is True only while the session stands and the local deadline has not passed. The deadline is the time *before*
  the last renewal was asked for, plus the lease, less a margin, on a clock that counts sleep. When the session breaks,
  peers may end us as soon as their suspicion has stood its time, so the deadline shrinks to that.
- When a peer has ended us, `on_identity_lost` is called: everything held is void. The thread then joins again under a
  new identity.
- When the database is away, nothing is given up here: the deadline passes, nothing new is started, and with the
  database comes the renewal.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow
from psycopg.sql import SQL, Identifier

from rota.clock import boottime
from rota.errors import RotaError
from rota.facts import (
    ControlLost,
    ControlRestored,
    Facts,
    ListenerDeaf,
    ListenerHeard,
    MemberEnded,
    MemberIdentityLost,
    MemberJoined,
    MemberLeft,
    PoolerDetected,
)
from rota.leases.members import (
    EndedMember,
    attach_member,
    hold_lock,
    join_member,
    leave_member,
    renew_member,
    watch_members,
)
from rota.postgres.ask import ask_sync
from rota.postgres.connection import Connector, is_direct, translated
from rota.postgres.keys import lock_key
from rota.postgres.notify import Probe, cancel_channel, notify, probe_channel, wake_channel
from rota.postgres.query import Query

__all__ = ["Control", "LeaseSettings"]

T = TypeVar("T")

# After we were cut off ourselves, how long others may take to come back before their free locks mean anything to us: a
# connection attempt and its retry.
_UNSTEADY_SECONDS = 5.0
# A stop has its own deadline, and the server may be what is wrong.
_LEAVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How long a silent process is believed to be alive."""

    lease: timedelta = timedelta(seconds=15)  # rides out a failover or a long pause; a real death is seen by its lock
    interval: timedelta = timedelta(seconds=0.5)  # half of what a peer may take to notice a free lock
    grace: timedelta = timedelta(seconds=0.75)  # one interval to notice a broken session, and a moment to stop
    margin: timedelta = timedelta(seconds=3)  # between stopping by ourselves and being ended by others

    @classmethod
    def of(cls, lease: timedelta) -> LeaseSettings:
        """Settings for a lease of this length; the margin stays a fifth of it."""
        return cls(lease=lease, margin=min(cls().margin, lease / 5))


@dataclass(slots=True)
class Reactions:
    """What the process does with the news. Called in the control thread: hand over, do not work."""

    on_wake: Callable[[str], None] = lambda queue: None
    on_cancel: Callable[[], None] = lambda: None
    on_ended: Callable[[tuple[EndedMember, ...]], None] = lambda members: None
    on_identity_lost: Callable[[UUID], None] = lambda member: None


@dataclass(slots=True)
class _Identity:
    """Who we are to the database; a new one after every start and every loss."""

    id: UUID = field(default_factory=uuid4)
    attachments: int = 0


class Control:
    """This process's membership, from `start` until `stop`."""

    def __init__(
        self,
        connector: Connector,
        schema: str,
        *,
        release: str,
        facts: Facts,
        work: Mapping[str, Any],
        settings: LeaseSettings | None = None,
        reactions: Reactions | None = None,
    ) -> None:
        self.settings = settings or LeaseSettings()
        self._connector = connector
        self._schema = schema
        self._release = release
        self._facts = facts
        self._work = dict(work)
        self._reactions = reactions or Reactions()
        self._identity = _Identity()
        self._connection: Connection[TupleRow] | None = None
        self._attached_at = boottime()
        self._unsteady_until = 0.0
        self._deadline = 0.0
        self._reasons: set[str] = set()
        self._probe = Probe()
        self._pooled = False
        self._stopping = threading.Event()
        self._bell, self._ear = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="rota-control", daemon=True)

    @property
    def member(self) -> UUID:
        return self._identity.id

    @property
    def may_act(self) -> bool:
        """Whether this process may start something in its name."""
        return self._connection is not None and boottime() < self._deadline

    @property
    def hears(self) -> bool:
        """Whether wake-ups arrive; polling more often is the answer while they do not."""
        return self._probe.hears

    def start(self) -> None:
        """Join, then keep the lease in the background. Raises what stands in the way; then nothing was started."""
        try:
            self._join()
        except BaseException:
            self._disconnect()
            self._close_bell()
            raise
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Leave the list of members, and end the thread; harmless the second time.

        Waits for it, but not for a server that does not answer: then the lease runs out, and peers end us.
        """
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._bell.send(b"!")
        if self._thread.is_alive():
            self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._connection is None:
                    self._attach()
                pause = self._tick()
                failures = 0  # what is cut while we wait is a new story, and replaced at once
                self._wait(pause)
            except Exception as error:  # whatever it is, a process that holds work keeps trying to keep its lease
                self._detached(error)
                # at once the first time: a session that was merely cut is replaced before anyone suspects much
                if failures:
                    self._rest(min(0.5, 0.05 * 2**failures) * random.uniform(0.5, 1.0))
                failures = min(failures + 1, 10)
        self._leave()
        self._close_bell()

    def _close_bell(self) -> None:
        self._bell.close()
        self._ear.close()

    def _tick(self) -> float:
        """Renew, look at the peers, probe the listener; returns how long to rest."""
        asked_at = boottime()
        if not self._query(renew_member(self.member, self.settings.lease)):
            self._identity_lost()
            return 0.0
        self._trust_until(asked_at)
        watched = self._query(
            watch_members(
                self.member,
                grace=self.settings.grace,
                settled=boottime() - self._attached_at > self.settings.lease.total_seconds(),
                steady=boottime() > self._unsteady_until,
            )
        )
        if watched.ended:
            for peer in watched.ended:
                self._facts.emit(MemberEnded(peer.id, peer.name, peer.reason))
            self._reactions.on_ended(watched.ended)
        self._listen_to_ourselves()
        interval = self.settings.interval.total_seconds()
        # a suspicion is looked at again the moment it is ripe, not at the next tick; one that is ripe and still stands
        # is not for us to act upon
        return min(interval, watched.ripens_in + 0.005) if watched.ripens_in else interval

    def _join(self) -> None:
        """Connect and enter the list under a fresh identity."""
        self._identity = _Identity()
        connection = self._connect()
        host = socket.gethostname()
        asked_at = boottime()
        self._query(
            join_member(
                self.member,
                name=f"{host}:{os.getpid()}",
                host=host,
                pid=os.getpid(),
                release=self._release,
                lease=self.settings.lease,
                key=self._prove(connection),
                work=self._work,
            )
        )
        self._trust_until(asked_at)
        self._facts.emit(MemberJoined(self.member, f"{host}:{os.getpid()}"))
        self._listen(connection)

    def _attach(self) -> None:
        """Connect again under the identity we have, if nobody has ended it meanwhile."""
        # whatever cut us off may have cut off the others too, and they may take a little longer to come back
        self._unsteady_until = boottime() + _UNSTEADY_SECONDS
        connection = self._connect()
        asked_at = boottime()
        if not self._query(attach_member(self.member, self.settings.lease, self._prove(connection))):
            self._identity_lost()
            return
        self._trust_until(asked_at)
        self._facts.emit(ControlRestored(self.member))
        self._listen(connection)  # only now: peers may be waiting to end us

    def _identity_lost(self) -> None:
        lost = self.member
        self._deadline = 0.0
        self._facts.emit(MemberIdentityLost(lost))
        self._reactions.on_identity_lost(lost)
        self._disconnect()
        self._join()

    def _connect(self) -> Connection[TupleRow]:
        self._disconnect()
        self._connection = connection = self._connector.connect_sync()
        self._attached_at = boottime()
        self._probe.reset()
        if not is_direct(connection):
            if not self._pooled:
                self._pooled = True
                self._facts.emit(PoolerDetected())
            return connection
        self._pooled = False
        return connection

    def _listen(self, connection: Connection[TupleRow]) -> None:
        if self._pooled:
            return
        connection.add_notify_handler(lambda note: self._notified(note.channel, note.payload))
        for channel in (
            wake_channel(self._schema),
            cancel_channel(self._schema),
            probe_channel(self._schema, str(self.member)),
        ):
            connection.execute(SQL("listen {}").format(Identifier(channel)), prepare=False)

    def _prove(self, connection: Connection[TupleRow]) -> int | None:
        """Take the session lock that shows we are alive; a new key each time, as a dead session may still hold the last."""
        if not is_direct(connection):
            return None
        self._identity.attachments += 1
        key = lock_key(self._schema, "member", f"{self.member}/{self._identity.attachments}")
        return key if self._query(hold_lock(key)) else None

    def _trust_until(self, asked_at: float) -> None:
        self._deadline = asked_at + (self.settings.lease - self.settings.margin).total_seconds()

    def _detached(self, error: Exception) -> None:
        if self._connection is not None:
            reaction = (self.settings.grace - self.settings.interval).total_seconds()
            self._deadline = min(self._deadline, boottime() + reaction)
            self._disconnect()
            self._reasons = set()
        # each once: that the session was ended is one story, that the next one is refused another
        if str(error) not in self._reasons:
            self._reasons.add(str(error))
            self._facts.emit(ControlLost(self.member, str(error)))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()

    def _leave(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(RotaError, psycopg.Error, OSError):
                self._query(leave_member(self.member))
                self._facts.emit(MemberLeft(self.member))
        self._disconnect()

    def _query(self, query: Query[T]) -> T:
        assert self._connection is not None
        try:
            return ask_sync(self._connection, self._schema, query)
        except psycopg.Error as error:
            raise translated(error, self._connector.dsn) from error

    def _listen_to_ourselves(self) -> None:
        if self._pooled:
            return
        if self._probe.check():
            self._facts.emit(ListenerDeaf())
        if message := self._probe.due():
            self._query(notify(probe_channel(self._schema, str(self.member)), message))

    def _wait(self, pause: float) -> None:
        """Rest, but hand on wake-ups as they come, and return at once when the session ends or we are to stop."""
        until = boottime() + pause
        while self._connection is not None:
            self._hand_on_notifications()
            left = until - boottime()
            if left <= 0 or self._stopping.is_set():
                return
            if self._rest(left, self._connection.fileno()):
                self._connection.pgconn.consume_input()  # raises when the session has ended

    def _rest(self, seconds: float, *also: int) -> bool:
        """Sleep until there is something to read there, or we are to stop. Knows no limit on file descriptors."""
        with selectors.DefaultSelector() as selector:
            for source in (self._ear.fileno(), *also):
                selector.register(source, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds)}
        return bool(ready & set(also))

    def _hand_on_notifications(self) -> None:
        """What arrived while we slept; what arrives during a statement comes through the connection's handler."""
        while self._connection is not None and (note := self._connection.pgconn.notifies()):
            self._notified(note.relname.decode(), note.extra.decode("utf-8", "replace"))

    def _notified(self, channel: str, payload: str) -> None:
        if channel == wake_channel(self._schema):
            self._reactions.on_wake(payload)
        elif channel == cancel_channel(self._schema):
            if payload == str(self.member):
                self._reactions.on_cancel()
        elif self._probe.heard(payload):
            self._facts.emit(ListenerHeard())
