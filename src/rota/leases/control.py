"""The control thread: keeps this process's lease, watches the peers, and hears wake-ups.

It has a thread and a connection of its own, so that neither a blocked event loop nor a busy pool makes a live process
look dead. Twice a second it renews the lease and looks at the peers; in between it sleeps on its socket, so that a
wake-up or the end of the session is noticed at once. Among many, one that holds nothing does so less often (see `ease`).

What the rest of the process may rely on:

- `may_act` is True only while the session stands and the local deadline has not passed (see `trust`).
- When a peer has ended us, `on_identity_lost` is called: everything held is void. The thread then joins again under a
  new identity.
- When the database is away, nothing is given up here: the deadline passes, nothing new is started, and with the
  database comes the renewal.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg

from rota.clock import boottime
from rota.errors import RotaError
from rota.facts import (
    ControlLost,
    ControlRestored,
    Facts,
    MemberEnded,
    MemberIdentityLost,
    MemberJoined,
    MemberLeft,
    PoolerDetected,
)
from rota.leases.bell import Bell
from rota.leases.condition import Condition
from rota.leases.door import Door
from rota.leases.ease import Ease
from rota.leases.hearing import Hearing
from rota.leases.members import (
    EndedMember,
    Saying,
    Wish,
    attach_member,
    describe_member,
    join_member,
    leave_member,
    watch_members,
)
from rota.leases.neighbours import Neighbours
from rota.leases.progress import Progress
from rota.leases.prune import prune_leases
from rota.leases.questions import Questions
from rota.leases.session import ControlSession
from rota.leases.trust import LeaseSettings, Trust
from rota.postgres.connection import BoundedConnection, Connector, check_fork
from rota.postgres.identity import check_identity, compare_identity
from rota.postgres.notify import (
    cancel_channel,
    event_channel,
    lead_channel,
    poll_channel,
    schedule_channel,
    wish_channel,
)
from rota.postgres.query import Query

__all__ = ["Control", "Reactions"]

T = TypeVar("T")

# After we were cut off ourselves, how long others may take to come back before their free locks mean anything to us: a
# connection attempt and its retry.
_UNSTEADY_SECONDS = 5.0
# Those who see that a peer has had its time do not all ask at once whether it could have come back.
_RIPE_SECONDS = (0.005, 0.05)
_LOOK_SECONDS = 0.25
# What the server takes to see that the session of a process that has just died is gone.
_FREED_SECONDS = 0.05
# In how many of its beats a process forgets who is gone: every ten minutes or so. By chance, so that they do not all do it at
# once, and that also those do who are here for a moment only: they may be all there are.
_PRUNE_SHARE = 0.001
# A stop has its own deadline, and the server may be what is wrong.
_LEAVE_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class Reactions:
    """What the process does with the news. Called in the control thread: hand over, do not work.

    `at_ease` tells whether this part of it holds nothing now; it then says so to `Control.take_hold` as soon as that changes.
    `on_beat` comes after each beat: what it asks is answered at once, and does not wake this thread again.
    """

    on_cancel: Callable[[], None] = lambda: None
    on_schedule: Callable[[], None] = lambda: None
    on_poll: Callable[[str], None] = lambda poller: None
    on_event: Callable[[str], None] = lambda log: None
    on_ended: Callable[[tuple[EndedMember, ...]], None] = lambda members: None
    on_identity_lost: Callable[[UUID], None] = lambda member: None
    on_doubt: Callable[[], None] = lambda: None
    on_vacant: Callable[[Collection[str]], None] = lambda names: None
    on_wish: Callable[[Wish | None], None] = lambda wish: None
    on_leading: Callable[[Control, Mapping[str, int], Collection[str]], None] = lambda control, epochs, asked: None
    on_beat: Callable[[Control], None] = lambda control: None
    at_ease: Callable[[], bool] = lambda: False


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
        environment: str | None = None,
        app_release: str | None = None,
        condition: Condition | None = None,
    ) -> None:
        self.settings = settings or LeaseSettings()
        #: what is carried by the next beat
        self.progress = Progress()
        self._release = release
        self._app_release = app_release
        self._condition = condition or Condition(dict)
        self._draining = self._quiet = False
        self._wish: Wish | None = None
        self._environment = environment
        self._facts = facts
        self._work = dict(work)
        self._reactions = reactions or Reactions()
        self._identity = _Identity()
        self._pid = os.getpid()
        self._bell = Bell()
        self._session = ControlSession(connector, schema, self._bell)
        self._neighbours = Neighbours(self._bell, self._neighbour_died)
        self._trust = Trust(self.settings)
        self._ease = Ease(self.settings)
        self._unsteady_until = 0.0
        self._stepped_at = 0.0
        self._look_at = math.inf
        self._came_round_at = boottime()
        self._seeking: frozenset[str] = frozenset()
        self._leading: frozenset[str] = frozenset()
        self._beat_now = False
        #: how many members there were at the last beat, we among them
        self.live = 1
        self._questions = Questions()
        self._reasons: set[str] = set()
        self._door = Door(connector, self._beat)
        self._hearing = Hearing(
            schema,
            facts,
            {
                cancel_channel(schema): self._heard_of_cancelling,
                lead_channel(schema): self._heard_of_leading,
                schedule_channel(schema): lambda _: self._reactions.on_schedule(),
                poll_channel(schema): self._reactions.on_poll,
                event_channel(schema): self._reactions.on_event,
                wish_channel(schema): self._heard_of_wish,
            },
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rota-control", daemon=True)

    @property
    def member(self) -> UUID:
        return self._identity.id

    @property
    def may_act(self) -> bool:
        """Whether this process may start something in its name."""
        return self._session.stands and self._trust.left > 0

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that is the member: it has neither its thread nor its session."""
        return self._pid != os.getpid()

    def trusted_for(self, member: UUID) -> float:
        """For how many seconds from now what this member holds is certainly its own; not more than 0 if nobody can tell."""
        if self.forked:
            return 0.0
        return self._trust.left if member == self.member else 0.0

    def trusts(self, member: UUID) -> bool:
        """Whether what this member holds is its own at this very moment.

        More than the deadline: who was frozen knows nothing of its session until someone has looked at it again. The control
        thread does, but may not have had its turn yet.
        """
        session, well_at = self._session, self._session.well_at
        looked = (
            well_at is None
            or session.pooled
            or boottime() - well_at < self.settings.grace.total_seconds()
            or session.still_stands
        )
        return looked and self.trusted_for(member) > 0

    def seek(self, names: Collection[str]) -> None:
        """Tell with every beat which of these nobody leads."""
        self._seeking = frozenset(names)

    def describe(self, work: Mapping[str, Any]) -> None:
        """Show peers and people what this process does from now on: neither that it ends nor that it rests."""
        self._work = dict(work)
        self._draining = self._quiet = False
        self._wish = None
        self.ask(describe_member(self.member, self._work))

    def ask(self, query: Query[T]) -> Future[T]:
        """Have the query run on the control session, between two beats: for what is short and never waits for a lock."""
        check_fork(self._pid)
        answer = self._questions.put(query)
        if threading.current_thread() is not self._thread:
            self._bell.ring()
        if not self._thread.is_alive():
            self._questions.refuse(
                RotaError("The thread that keeps this process's lease has ended; restart the process.")
            )
        return answer

    def show_draining(self) -> None:
        """Show peers and people from now on that this process ends. Waits for nothing; safe from any thread."""
        self._draining = True
        self._beat()

    def show_quiet(self, quiet: bool) -> None:
        """Show whether this process rests, the same way."""
        self._quiet = quiet
        self._beat()

    def take_hold(self) -> None:
        """Something is held from now on: the next beat comes as soon as it does for who holds something. Safe from any thread."""
        if self._ease.end():
            self._bell.ring()

    @property
    def pause(self) -> float:
        """Seconds until the next beat, as far as this one knows."""
        return self._ease.pause

    @property
    def longest_pause(self) -> float:
        """Seconds between two beats at most, as long as the database answers."""
        return self._ease.longest

    @property
    def renewed_ago(self) -> float:
        """How many seconds ago the last renewal of the lease was asked for."""
        return boottime() - self._trust.renewed_at

    @property
    def silent_for(self) -> float:
        """For how many seconds the thread has not come round; 0 while it waits for the database, which is no fault of its own."""
        return 0.0 if self._session.asking else boottime() - self._came_round_at

    @property
    def hears(self) -> bool:
        """Whether wake-ups arrive; polling more often is the answer while they do not."""
        return self._hearing.hears

    def start(self) -> None:
        """Join, then keep the lease in the background. Raises what stands in the way; then nothing was started."""
        try:
            self._join()
        except BaseException:
            self._session.close()
            self._bell.close()
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
        self._bell.ring()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_SECONDS)

    def _beat(self) -> None:
        """Let the next beat come at once."""
        self._beat_now = True
        self._bell.ring()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._came_round_at = boottime()
            try:
                if not self._session.stands:
                    self._attach()
                pause = self._tick()
                failures = 0  # what is cut while we wait is a new story, and replaced at once
                self._wait(pause)
            except Exception as error:  # whatever it is, a process that holds work keeps trying to keep its lease
                self._detached(error)
                self._questions.refuse(error)
                # at once the first time: a session that was merely cut is replaced before anyone suspects much
                if failures:
                    self._bell.rest(min(0.5, 0.05 * 2**failures) * random.uniform(0.5, 1.0))
                failures = min(failures + 1, 10)
        self._questions.refuse(RotaError("This process has left the list of members."))
        self._leave()
        self._neighbours.close()
        self._bell.close()

    def _tick(self) -> float:
        """Renew, look at the peers, probe the listener; returns how long to rest at most."""
        asked_at = boottime()
        self._look_at = math.inf
        steady = asked_at > self._unsteady_until
        progress = self.progress.untold()
        condition = self._condition.news()
        watched = self._session.ask(
            watch_members(
                self.member,
                self.settings.lease,
                grace=self.settings.grace,
                settled=asked_at - max(self._session.opened_at, self._stepped_at) > self.settings.lease.total_seconds(),
                let_in_at=self._door.open_at if steady else None,
                # a step that is smaller than the margin ends nobody before its own deadline
                within=timedelta(seconds=asked_at - self._trust.renewed_at) + self.settings.margin,
                seeking=self._seeking,
                progress=progress,
                probed=None if self._session.pooled else self._hearing.due(),
                saying=Saying(self._draining, self._quiet, condition),
            )
        )
        self.progress.told(progress)
        self._condition.told(condition)
        if not watched.renewed:
            self._identity_lost()
            return 0.0
        if watched.stepped:
            # by the clock of before, others may have their lease, and have just been suspected
            self._stepped_at = boottime()
            self._unsteady_until = max(self._unsteady_until, self._stepped_at + self.settings.grace.total_seconds())
        self._trust.renewed(asked_at)
        if watched.vacant:
            self._reactions.on_vacant(watched.vacant)
        self._leading = frozenset(watched.leads)
        self._neighbours.watch(watched.neighbours)
        # who takes hold of something from here on ends it, whatever the answer to the question is
        self.live = watched.live
        self._ease.begin(watched.live)
        if self._leading or not self.hears or not self._reactions.at_ease():
            self._ease.end()
        self._reactions.on_leading(self, watched.leads, watched.asked)
        self._reactions.on_beat(self)
        if watched.wish != self._wish:
            self._wish = watched.wish
            self._reactions.on_wish(watched.wish)
        if watched.ended:
            for peer in watched.ended:
                self._facts.emit(MemberEnded(peer.id, peer.name, peer.reason))
            self._reactions.on_ended(watched.ended)
        if random.random() < _PRUNE_SHARE:
            self.ask(prune_leases())  # whether it was done concerns nobody: others do it too
        if watched.ripens_in == 0 and steady:
            self._door.knock()  # and if it opens, the next beat comes at once
        # a suspicion is looked at again the moment it is ripe, not at the next tick
        return watched.ripens_in + random.uniform(*_RIPE_SECONDS) if watched.ripens_in else math.inf

    def _join(self) -> None:
        """Connect and enter the list under a fresh identity."""
        was, self._identity = self.member, _Identity()
        connection = self._connect()
        check_identity(self._session.ask(compare_identity()), self._environment)
        # a suspicion from before may be older than a crash that ended every session
        self._unsteady_until = boottime() + self.settings.grace.total_seconds()
        host = socket.gethostname()
        asked_at = boottime()
        self._session.ask(
            join_member(
                self.member,
                name=f"{host}:{os.getpid()}",
                host=host,
                pid=os.getpid(),
                release=self._release,
                lease=self.settings.lease,
                key=self._prove(),
                work=self._work,
                app_release=self._app_release,
                was=was,
            )
        )
        self._condition.forget()
        self._trust.renewed(asked_at)
        self._facts.emit(MemberJoined(self.member, f"{host}:{os.getpid()}"))
        self._listen(connection)

    def _attach(self) -> None:
        """Connect again under the identity we have, if nobody has ended it meanwhile."""
        # whatever cut us off may have cut off the others too, and they may take a little longer to come back
        self._unsteady_until = boottime() + _UNSTEADY_SECONDS
        connection = self._connect()
        asked_at = boottime()
        if not self._session.ask(attach_member(self.member, self.settings.lease, self._prove())):
            self._identity_lost()
            return
        self._trust.renewed(asked_at)
        self._facts.emit(ControlRestored(self.member))
        self._listen(connection)  # only now: peers may be waiting to end us

    def _identity_lost(self) -> None:
        lost = self.member
        self._trust.void()
        self._facts.emit(MemberIdentityLost(lost))
        self._reactions.on_identity_lost(lost)
        self._session.close()
        self._join()

    def _connect(self) -> BoundedConnection:
        was_pooled = self._session.pooled
        connection = self._session.open()
        self._hearing.reset()
        if self._session.pooled and not was_pooled:
            self._facts.emit(PoolerDetected())
        return connection

    def _prove(self) -> int | None:
        """Take the session lock that shows we are alive; a new key each time, as a dead session may still hold the last."""
        self._identity.attachments += 1
        return self._session.prove(f"{self.member}/{self._identity.attachments}")

    def _listen(self, connection: BoundedConnection) -> None:
        if not self._session.pooled:
            with self._session.in_words():
                self._hearing.listen(connection)

    def _detached(self, error: Exception) -> None:
        well_at = self._session.well_at
        if well_at is not None:
            self._trust.broken(well_at)
            self._session.close()
            self._reasons = set()
            self._reactions.on_doubt()
        else:
            self._trust.refused(error, self._session.asked_at)
        # each once: that the session was ended is one story, that the next one is refused another
        if str(error) not in self._reasons:
            self._reasons.add(str(error))
            self._facts.emit(ControlLost(self.member, str(error)))

    def _leave(self) -> None:
        if self._session.stands:
            with contextlib.suppress(RotaError, psycopg.Error, OSError):
                self._session.ask(leave_member(self.member))
                self._facts.emit(MemberLeft(self.member))
        self._session.close()

    def _wait(self, pause: float) -> None:
        """Rest, but hand on wake-ups as they come, and return at once when the session ends or we are to stop."""
        began = boottime()
        while (connection := self._session.connection) is not None:
            self._hearing.hand_on(connection)
            until = min(began + min(pause, self._ease.pause), self._look_at)
            self._questions.answer(self._session, until)
            left = until - boottime()
            if left <= 0 or self._stopping.is_set() or self._beat_now:
                self._beat_now = False
                return
            # that the session is well is asked for what is held, and nothing is
            self._session.rest(left if self._ease.is_on else min(left, _LOOK_SECONDS), self._hearing.hand_on)

    def _neighbour_died(self) -> None:
        self._look_at = boottime() + _FREED_SECONDS

    def _heard_of_cancelling(self, member: str) -> None:
        if member == str(self.member):
            self._reactions.on_cancel()

    def _heard_of_wish(self, member: str) -> None:
        self._beat_now = self._beat_now or member == str(self.member)

    def _heard_of_leading(self, name: str) -> None:
        if name in self._seeking:
            self._reactions.on_vacant((name,))
        self._beat_now = self._beat_now or name in self._leading
