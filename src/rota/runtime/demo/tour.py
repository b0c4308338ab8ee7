"""The demo as a whole: a feeder, a crew of workers, someone who kills them, and the account at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from rota.app import Rota
from rota.errors import DatabaseUnavailable
from rota.jobs.inspect import database_time, held_by_member, ledger, succeeded_by_member, taken_over_from
from rota.leases.inspect import list_leaders
from rota.leases.member_view import MemberView
from rota.runtime.demo.crew import Crew, Hand
from rota.runtime.demo.events import Events
from rota.runtime.demo.feed import Feeder
from rota.runtime.demo.ledger import Ledger
from rota.runtime.demo.slots import SlotBook, Slots
from rota.runtime.demo.takeover import Takeover
from rota.runtime.supervisor import describe_exit
from rota.schedules.scheduler import LEADERSHIP

__all__ = ["Snapshot", "Tour", "WorkerView"]

BUSY = 6  # jobs held by a worker that is worth killing
BUSY_WITHIN = 1.5  # seconds; then the busiest there is will do
TAKEOVER_WITHIN = 15.0  # seconds; a whole lease, which is what it takes without the proof of life
RATE_OVER = 2.0  # seconds that a rate is taken over


@dataclass(frozen=True, slots=True)
class WorkerView:
    name: str
    pid: int
    state: str  # starting, live, suspected, stopping; or how it ended
    running: int
    done: int
    leads: bool = False  # the schedules


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a viewer sees at one moment. `away` says that the database did not answer and this is what was last seen."""

    workers: tuple[WorkerView, ...] = ()
    counts: dict[str, int] | None = None
    enqueued: int = 0
    rate: float = 0.0
    slots: Slots = field(default_factory=Slots)
    away: bool = False

    @property
    def live(self) -> int:
        return sum(worker.state == "live" for worker in self.workers)


class Tour:
    """Runs from `start` until `close`, which returns the account. Everything is on one event loop."""

    def __init__(self, app: Rota, workers: int, events: Events) -> None:
        self._app = app
        self._events = events
        self._feeder = Feeder(app)
        self._crew = Crew(workers, app.database.dsn.conninfo, app.settings.schema, events)
        self._tasks: set[asyncio.Task[None]] = set()
        self._shows: set[asyncio.Task[None]] = set()
        self._seen = Snapshot()
        self._done: deque[tuple[float, int]] = deque()
        self._before = 0
        self._book = SlotBook(app)
        self._closing = False
        self._hurried = False
        self.takeovers: list[Takeover] = []
        self.slots = Slots()

    async def start(self) -> None:
        """Begin to feed and to work; returns before the workers are up."""
        await self._book.begin()
        self._before = sum((await self._app.database.run(ledger())).values())
        self._tasks = {asyncio.create_task(self._feeder.run()), asyncio.create_task(self._crew.run())}

    async def look(self) -> Snapshot:
        """What there is to see now. Raises what ended a part of the tour that should not have ended."""
        for task in self._tasks | self._shows:
            if task.done() and (error := task.exception()) is not None:
                raise _first(error)
        try:
            self._seen = await self._read()
        except DatabaseUnavailable:
            self._seen = replace(self._seen, enqueued=self._feeder.enqueued, rate=0.0, away=True)
        return self._seen

    def burst(self) -> None:
        """Add many jobs at once."""
        self._events.tell("a burst of load")
        self._feeder.burst()

    def kill_one(self) -> None:
        """kill -9 a busy worker, the one that leads the schedules if it is, and watch others take over."""
        self._shows.add(asyncio.create_task(self._kill_one()))

    def stop_one(self) -> None:
        """Ask a worker to stop and watch it leave."""
        self._shows.add(asyncio.create_task(self._stop_one()))

    async def close(self) -> Ledger:
        """Stop feeding, let a takeover come to its end, stop the workers, and count."""
        self._closing = True
        self._feeder.stop()
        await _all_ended(self._shows)
        await self._crew.close()
        await _all_ended(self._tasks)
        self.slots = await self._book.read()
        return Ledger(
            enqueued=self._feeder.enqueued,
            scheduled=self.slots.runs,
            unanswered=self._feeder.unanswered,
            before=self._before,
            **await self._app.database.run(ledger()),
        )

    def hurry(self) -> None:
        """Wait for nothing any more: the workers are killed, and what they ran stays in their name."""
        self._hurried = True
        self._crew.hurry()

    async def _read(self) -> Snapshot:
        members = await self._know_members()
        held = await self._app.database.run(held_by_member())
        done = await self._app.database.run(succeeded_by_member())
        counts = await self._app.database.run(ledger())
        leader = await self._leader()
        return Snapshot(
            workers=tuple(self._view(hand, members, held, done, leader) for hand in self._crew.hands),
            counts=counts,
            enqueued=self._feeder.enqueued,
            rate=self._rate(counts["succeeded"]),
            slots=await self._book.read(),
        )

    async def _leader(self) -> UUID | None:
        """The member that gives out slots now."""
        leaders = await self._app.database.run(list_leaders(LEADERSHIP))
        return leaders[0].member if leaders else None

    async def _know_members(self) -> dict[str, MemberView]:
        """The members by id; tells each of the crew under which identities it is known."""
        found = await self._app.members(ended=True)
        here = socket.gethostname()
        for hand in self._crew.hands:
            hand.members = [m.id for m in reversed(found) if m.host == here and m.pid == hand.process.pid]
        return {str(member.id): member for member in found}

    def _view(
        self,
        hand: Hand,
        members: dict[str, MemberView],
        held: dict[str, int],
        done: dict[str, int],
        leader: UUID | None,
    ) -> WorkerView:
        ids = [str(member) for member in hand.members]
        return WorkerView(
            name=hand.name,
            pid=hand.process.pid,
            state=_state(hand, members[ids[-1]].state if ids else None),
            running=sum(held.get(member, 0) for member in ids),
            done=sum(done.get(member, 0) for member in ids),
            leads=leader in hand.members,
        )

    def _rate(self, succeeded: int) -> float:
        now = time.monotonic()
        self._done.append((now, succeeded))
        while len(self._done) > 2 and now - self._done[1][0] > RATE_OVER:
            self._done.popleft()
        since, then = self._done[0]
        return (succeeded - then) / (now - since) if now > since else 0.0

    async def _kill_one(self) -> None:
        with contextlib.suppress(DatabaseUnavailable):
            self._feeder.burst()
            victim, holds, leads = await self._find_busy()
            if victim is None:
                self._events.tell("there is no worker to kill just now")
                return
            killed_at = await self._app.database.run(database_time())
            if self._closing:
                return
            self._crew.kill(victim)
            led = " and led the schedules" if leads else ""
            self._events.tell(f"kill -9 {victim.name} (pid {victim.process.pid}), which was running {holds} jobs{led}")
            takeover = await self._watch_takeover(victim, killed_at)
            self.takeovers.append(takeover)
            self._events.tell(str(takeover))

    async def _find_busy(self) -> tuple[Hand | None, int, bool]:
        """Whom to kill, how many jobs it holds, and whether it leads the schedules."""
        until = time.monotonic() + BUSY_WITHIN
        while True:
            await self._know_members()
            held = await self._app.database.run(held_by_member())
            holds = {hand: sum(held.get(str(member), 0) for member in hand.members) for hand in self._crew.running}
            leader = await self._leader()
            leads = {hand: leader in hand.members for hand in holds}
            busiest = max(holds, key=lambda hand: (min(holds[hand], BUSY), leads[hand], holds[hand]), default=None)
            if busiest is not None and (holds[busiest] >= BUSY or time.monotonic() > until):
                return busiest, holds[busiest], leads[busiest]
            if time.monotonic() > until:
                return None, 0, False
            await asyncio.sleep(0.05)

    async def _watch_takeover(self, victim: Hand, killed_at: datetime) -> Takeover:
        """Look until nothing of the victim's is left undone, or for as long as it may take at worst."""
        until = time.monotonic() + TAKEOVER_WITHIN
        takeover = Takeover(victim.name, killed_at, None)
        while not takeover.complete and time.monotonic() < until and not self._hurried:
            await asyncio.sleep(0.1)
            members = await self._know_members()
            member = members.get(str(victim.members[-1])) if victim.members else None
            if member is None:  # it was killed before it had joined, so there is nothing to take
                break
            jobs = await self._app.database.run(taken_over_from(member.id))
            takeover = Takeover(
                worker=victim.name,
                killed_at=killed_at,
                ended_at=member.ended_at,
                jobs=tuple(jobs),
                still_held=(await self._app.database.run(held_by_member())).get(str(member.id), 0),
            )
        return takeover

    async def _stop_one(self) -> None:
        if not self._crew.running:
            self._events.tell("there is no worker to stop just now")
            return
        hand = self._crew.running[0]
        began = time.monotonic()
        self._crew.ask_to_stop(hand)
        self._events.tell(f"SIGTERM to {hand.name} (pid {hand.process.pid})")
        code = await hand.process.wait()
        took = time.monotonic() - began
        self._events.tell(f"{hand.name} finished what it ran and left after {took:.2f} s, {describe_exit(code)}")


def _state(hand: Hand, membership: str | None) -> str:
    """The process as we know it, together with the member as its peers do."""
    if hand.process.running:
        return "stopping" if hand.asked else membership or "starting"
    if hand.killed:
        return {"live": "killed", "suspected": "killed, suspected", "ended": "killed, taken over"}.get(
            membership or "", "killed"
        )
    return "left" if hand.process.exit_code == 0 else describe_exit(hand.process.exit_code or 0)


async def _all_ended(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)


def _first(error: BaseException) -> BaseException:
    """What is inside the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
