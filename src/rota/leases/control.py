"""The control thread: keeps this process's lease, watches the peers, and hears wake-ups.

It has a thread and a connection of its own, so that neither a blocked event loop nor a busy pool makes a live process
look dead. Twice a second it renews the lease and looks at the peers; in between it sleeps on its socket, so that a
wake-up or the end of the session is noticed at once.

What the rest of the process may rely on:

- `may_act` is True only while the session stands and the local deadline has not passed. The deadline is the time *before*
  the last renewal was asked for, plus the lease, less a margin, on a clock that counts sleep. When the session breaks,
  peers may end us as soon as their suspicion has stood its time, so the deadline shrinks to that, counted from when the
  session was last seen to be well. While the server says of itself that it stops or starts it lets nobody in, and who was not
  let in ends nobody for a free lock (see `door`): then the lease's own deadline holds. While it recovers from a crash nobody
  is connected, and the deadline is put off with every such answer.
- When a peer has ended us, `on_identity_lost` is called: everything held is void. The thread then joins again under a
  new identity.
- When the database is away, nothing is given up here: the deadline passes, nothing new is started, and with the
  database comes the renewal.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import selectors
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
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
from rota.leases.door import Door, is_being_replaced, is_recovering
from rota.leases.members import (
    EndedMember,
    attach_member,
    describe_member,
    hold_lock,
    join_member,
    leave_member,
    watch_members,
)
from rota.postgres.ask import ask_sync
from rota.postgres.connection import BoundedConnection, Connector, is_direct, translated
from rota.postgres.keys import lock_key
from rota.postgres.notify import Probe, cancel_channel, lead_channel, notify, probe_channel, wake_channel
from rota.postgres.query import Query

__all__ = ["Control", "LeaseSettings"]

T = TypeVar("T")

# After we were cut off ourselves, how long others may take to come back before their free locks mean anything to us: a
# connection attempt and its retry.
_UNSTEADY_SECONDS = 5.0
# Those who see that a peer has had its time do not all ask at once whether it could have come back.
_RIPE_SECONDS = (0.005, 0.05)
_LOOK_SECONDS = 0.25
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


@dataclass(slots=True, eq=False)
class Reactions:
    """What the process does with the news. Called in the control thread: hand over, do not work."""

    on_wake: Callable[[str], None] = lambda queue: None
    on_cancel: Callable[[], None] = lambda: None
    on_ended: Callable[[tuple[EndedMember, ...]], None] = lambda members: None
    on_identity_lost: Callable[[UUID], None] = lambda member: None
    on_doubt: Callable[[], None] = lambda: None
    on_vacant: Callable[[Collection[str]], None] = lambda names: None
    on_leading: Callable[[Control, Mapping[str, int], Collection[str]], None] = lambda control, epochs, asked: None


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
        self._connection: BoundedConnection | None = None
        self._asked_at = self._attached_at = boottime()
        self._unsteady_until = 0.0
        self._deadline = 0.0
        self._lease_ends = 0.0
        self._seeking: frozenset[str] = frozenset()
        self._leading: frozenset[str] = frozenset()
        self._beat_now = False
        self._questions: queue.SimpleQueue[tuple[Query[Any], Future[Any]]] = queue.SimpleQueue()
        self._reasons: set[str] = set()
        self._door = Door(connector, self._beat)
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

    def trusted_for(self, member: UUID) -> float:
        """For how many seconds from now what this member holds is certainly its own; not more than 0 if nobody can tell."""
        return self._deadline - boottime() if member == self.member else 0.0

    def trusts(self, member: UUID) -> bool:
        """Whether what this member holds is its own at this very moment.

        More than the deadline: who was frozen knows nothing of its session until this thread has looked at it again.
        """
        connection = self._connection
        looked = (
            connection is None or self._pooled or boottime() - connection.well_at < self.settings.grace.total_seconds()
        )
        return looked and self.trusted_for(member) > 0

    def seek(self, names: Collection[str]) -> None:
        """Tell with every beat which of these nobody leads."""
        self._seeking = frozenset(names)

    def describe(self, work: Mapping[str, Any]) -> None:
        """Show peers and people what this process does from now on."""
        self._work = dict(work)
        self.ask(describe_member(self.member, self._work))

    def ask(self, query: Query[T]) -> Future[T]:
        """Have the query run on the control session, between two beats: for what is short and never waits for a lock."""
        answer: Future[T] = Future()
        self._questions.put((query, answer))
        self._ring()
        if not self._thread.is_alive():
            self._refuse_questions(
                RotaError("The thread that keeps this process's lease has ended; restart the process.")
            )
        return answer

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
        self._ring()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_SECONDS)

    def _beat(self) -> None:
        """Let the next beat come at once."""
        self._beat_now = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it is closed, or so full that it rings already
            self._bell.send(b"!")

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
                self._refuse_questions(error)
                # at once the first time: a session that was merely cut is replaced before anyone suspects much
                if failures:
                    self._rest(min(0.5, 0.05 * 2**failures) * random.uniform(0.5, 1.0))
                failures = min(failures + 1, 10)
        self._refuse_questions(RotaError("This process has left the list of members."))
        self._leave()
        self._close_bell()

    def _close_bell(self) -> None:
        self._bell.close()
        self._ear.close()

    def _tick(self) -> float:
        """Renew, look at the peers, probe the listener; returns how long to rest."""
        asked_at = boottime()
        steady = asked_at > self._unsteady_until
        watched = self._query(
            watch_members(
                self.member,
                self.settings.lease,
                grace=self.settings.grace,
                settled=asked_at - self._attached_at > self.settings.lease.total_seconds(),
                let_in_at=self._door.open_at if steady else None,
                seeking=self._seeking,
            )
        )
        if not watched.renewed:
            self._identity_lost()
            return 0.0
        self._trust_until(asked_at)
        if watched.vacant:
            self._reactions.on_vacant(watched.vacant)
        self._leading = frozenset(watched.leads)
        self._reactions.on_leading(self, watched.leads, watched.asked)
        if watched.ended:
            for peer in watched.ended:
                self._facts.emit(MemberEnded(peer.id, peer.name, peer.reason))
            self._reactions.on_ended(watched.ended)
        self._listen_to_ourselves()
        interval = self.settings.interval.total_seconds()
        if watched.ripens_in == 0 and steady:
            self._door.knock()  # and if it opens, the next beat comes at once
        # a suspicion is looked at again the moment it is ripe, not at the next tick
        return min(interval, watched.ripens_in + random.uniform(*_RIPE_SECONDS)) if watched.ripens_in else interval

    def _join(self) -> None:
        """Connect and enter the list under a fresh identity."""
        self._identity = _Identity()
        connection = self._connect()
        # a suspicion from before may be older than a crash that ended every session
        self._unsteady_until = boottime() + self.settings.grace.total_seconds()
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

    def _connect(self) -> BoundedConnection:
        self._disconnect()
        self._asked_at = boottime()
        self._connection = connection = self._connector.connect_sync()
        connection.well_at = self._asked_at
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
            lead_channel(self._schema),
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
        self._deadline = self._lease_ends = asked_at + (self.settings.lease - self.settings.margin).total_seconds()

    def _detached(self, error: Exception) -> None:
        if self._connection is not None:
            # nobody can have suspected us before the session was last seen to be well
            self._deadline = min(self._deadline, self._connection.well_at + self.settings.grace.total_seconds())
            self._disconnect()
            self._reasons = set()
            self._reactions.on_doubt()
        elif boottime() < self._deadline:
            if is_being_replaced(error):
                # nobody can end us before it lets someone in; and once it was down, a free lock proves nothing
                self._deadline = self._lease_ends
            elif is_recovering(error):
                # who comes in after we asked has to stay for a while before it ends anyone
                self._deadline = min(self._lease_ends, self._asked_at + self.settings.grace.total_seconds())
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

    def _answer_questions(self) -> None:
        while self._connection is not None:
            try:
                query, answer = self._questions.get_nowait()
            except queue.Empty:
                return
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(self._query(query))
            except Exception as error:
                answer.set_exception(error)
                if self._connection.closed:
                    raise

    def _refuse_questions(self, error: Exception) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                _, answer = self._questions.get_nowait()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)

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
            self._answer_questions()
            left = until - boottime()
            if left <= 0 or self._stopping.is_set() or self._beat_now:
                self._beat_now = False
                return
            if self._readable(min(left, _LOOK_SECONDS)):
                self._connection.pgconn.consume_input()  # raises when the session has ended
                self._readable(0.0)

    def _readable(self, seconds: float) -> bool:
        """Rest until the server says something; as long as it does not, the session is well: a goodbye would be something."""
        assert self._connection is not None
        looked_at = boottime()
        if self._rest(seconds, self._connection.fileno()):
            return True
        self._connection.well_at = looked_at
        return False

    def _rest(self, seconds: float, *also: int) -> bool:
        """Sleep until there is something to read there, or we are to stop. Knows no limit on file descriptors."""
        with selectors.DefaultSelector() as selector:
            for source in (self._ear.fileno(), *also):
                selector.register(source, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds)}
        if self._ear.fileno() in ready and not self._stopping.is_set():
            self._ear.recv(4096)
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
        elif channel == lead_channel(self._schema):
            if payload in self._seeking:
                self._reactions.on_vacant((payload,))
            self._beat_now = self._beat_now or payload in self._leading
        elif self._probe.heard(payload):
            self._facts.emit(ListenerHeard())
