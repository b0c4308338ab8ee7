"""The protocol of leases and terms as a machine with few states, small enough to look at every one of them.

Time is counted in ticks, and everything that ages is kept relative to now, so the states are finite. One process may be frozen
for as long as it pleases, lose its session at any moment, ask for a renewal and hear of it late, and its control thread may be
kept from looking at the session by others that run; peers may suspect it and end it whenever they are allowed to. The other is
well, and takes over as soon as it may; `faulty=2` lets both suffer, but for the starving, which makes millions of states and
takes minutes.

The rules are those of leases/members.py, control.py and terms.py. GUARDS are the parts of them that can be left out one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

LEASE, MARGIN, GRACE, INTERVAL = 4, 1, 2, 1

GUARDS = {
    "the local deadline": "a process acts for as long as nobody has told it otherwise",
    "the deadline counts from before the question": "it counts from the answer",
    "a lost session shrinks the deadline": "the lease's own is kept",
    "a suspicion has to stand": "a free lock is death",
    "only the living are renewed": "a renewal brings back who was ended",
    "a process that has not looked does not trust": "what it last knew is true",
    "an answer is a look from before its question": "it is one from when it is heard",
    "a lease is taken only from the ended": "it is taken from anyone",
    "fenced work names its epoch": "whoever once led may begin it",
    "a term begins after the fenced work of the last": "it begins beside it",
    "stale sessions are ended before a term begins": "they may commit after all",
}


@dataclass(frozen=True, slots=True)
class Process:
    frozen: bool = False
    session: str = "up"  # or "cut", as the server knows; "lost", when the process knows too
    looked: int = 0  # ticks since its control thread last saw its session well
    ended: bool = False
    expires: int = LEASE  # ticks from now; below 0 it has expired
    suspected: int = -1  # for how many ticks; -1 if not
    trusts: int = LEASE - MARGIN  # ticks from now
    asked: int = -1  # ticks since it asked for a renewal; -1 if it has not
    answer: str = ""  # "renewed" or "ended", on its way
    term: str = ""  # what it believes: "current" as it is, or "stale"
    inside: str = ""  # the same of the fenced transaction it has open


@dataclass(frozen=True, slots=True)
class World:
    processes: tuple[Process, ...]
    leader: int | None = None


class Violation(Exception):
    pass


class Protocol:
    def __init__(self, without: str | None = None, *, faulty: int = 1) -> None:
        assert without is None or without in GUARDS
        self._without = without
        self._faulty = range(faulty)

    def _guarded(self, guard: str) -> bool:
        assert guard in GUARDS
        return guard != self._without

    def explore(self) -> int:
        """Visit every state there is, and return how many; raises Violation with the way to a bad one."""
        start = World((Process(), Process()))
        came_from: dict[World, tuple[World, str] | None] = {start: None}
        waiting = deque([start])
        while waiting:
            world = waiting.popleft()
            for what, step in self._steps(world):
                try:
                    after = step()
                    self._check(after)
                except Violation as violation:
                    raise Violation(f"{violation}: {' → '.join([*_way(came_from, world), what])}") from None
                if after not in came_from:
                    came_from[after] = (world, what)
                    waiting.append(after)
        return len(came_from)

    def valid(self, process: Process) -> bool:
        """What `term.valid` says; nobody who is frozen asks."""
        return (
            bool(process.term)
            and not process.frozen
            and (process.trusts > 0 or not self._guarded("the local deadline"))
            # who has not looked for long looks now: a session that was cut shows it
            and (
                process.looked < GRACE
                or process.session != "cut"
                or not self._guarded("a process that has not looked does not trust")
            )
        )

    def _check(self, world: World) -> None:
        if sum(map(self.valid, world.processes)) > 1:
            raise Violation("two valid terms")

    def _steps(self, world: World) -> Iterator[tuple[str, Callable[[], World]]]:
        for number, process in enumerate(world.processes):
            for name, after in self._moves(number, process):
                yield f"{name} {number}", lambda number=number, after=after: _with(world, number, after)  # type: ignore[misc]
            if self._may_acquire(world, number):
                yield f"acquire {number}", lambda number=number: self._acquired(world, number)  # type: ignore[misc]
            if process.term and not process.inside and not process.frozen and self._may_enter(world, number):
                yield f"enter {number}", lambda n=number, p=process: _with(world, n, replace(p, inside=p.term))  # type: ignore[misc]
            if process.inside and not process.frozen:
                yield f"commit {number}", lambda n=number, p=process: self._committed(world, n, p)  # type: ignore[misc]
        # where control threads do not starve, who is not frozen looks at its session at least every interval
        if len(self._faulty) == 1 or all(each.frozen or each.looked < INTERVAL for each in world.processes):
            yield (
                "tick",
                lambda: replace(world, processes=tuple(self._older(n, p) for n, p in enumerate(world.processes))),
            )

    def _moves(self, number: int, process: Process) -> Iterator[tuple[str, Process]]:
        if number not in self._faulty:
            return
        yield ("thaw", replace(process, frozen=False)) if process.frozen else ("freeze", replace(process, frozen=True))
        if process.session == "up":
            yield "cut", replace(process, session="cut")
        # what peers and the server do
        if not process.ended:
            if process.session != "up" and process.suspected < 0:
                yield "suspect", replace(process, suspected=0)
            stood = process.suspected >= (GRACE if self._guarded("a suspicion has to stand") else 0)
            if process.expires < 0 or (stood and process.session != "up"):
                yield "end", replace(process, ended=True)
        if process.asked >= 0 and not process.answer and process.session == "up":
            if not process.ended or not self._guarded("only the living are renewed"):
                yield "renew", replace(process, ended=False, expires=LEASE, suspected=-1, answer="renewed")
            else:
                yield "refuse", replace(process, answer="ended")
        if process.frozen:
            return
        # what it does itself
        if process.looked or process.session == "cut":
            yield "look", self._looked(process)
        if process.session == "up" and process.asked < 0:
            yield "ask", replace(process, asked=0)
        if process.answer == "renewed":
            age = process.asked if self._guarded("the deadline counts from before the question") else 0
            looked = process.asked if self._guarded("an answer is a look from before its question") else 0
            heard = replace(process, trusts=max(0, LEASE - MARGIN - age), looked=min(process.looked, looked))
            yield "hear", replace(heard, asked=-1, answer="")
        if process.answer == "ended" or (process.session == "lost" and process.ended):
            yield "join anew", Process(inside=process.inside)
        if process.session == "lost" and not process.ended:
            attached = replace(process, session="up", expires=LEASE, suspected=-1, trusts=LEASE - MARGIN, looked=0)
            yield "attach", replace(attached, asked=-1, answer="")

    def _older(self, number: int, process: Process) -> Process:
        if number not in self._faulty:
            return process  # its renewals are always in time
        return replace(
            process,
            looked=min(process.looked + 1, GRACE),
            expires=max(process.expires - 1, -1),
            suspected=min(process.suspected + 1, GRACE) if process.suspected >= 0 else -1,
            trusts=max(process.trusts - 1, 0),
            asked=min(process.asked + 1, LEASE) if process.asked >= 0 else -1,
        )

    def _looked(self, process: Process) -> Process:
        if process.session == "up":
            return replace(process, looked=0)
        trusts = process.trusts
        if process.session == "cut" and self._guarded("a lost session shrinks the deadline"):
            trusts = min(trusts, max(0, GRACE - process.looked))  # nobody suspected it before it last looked
        return replace(process, session="lost", looked=0, trusts=trusts, asked=-1, answer="")

    def _may_acquire(self, world: World, number: int) -> bool:
        me = world.processes[number]
        if me.frozen or me.session != "up" or me.ended or me.term or me.trusts <= 0:
            return False
        if world.leader is None or not self._guarded("a lease is taken only from the ended"):
            return True
        last = world.processes[world.leader]
        # a member that joined anew is another one: the one that led has ended
        free = last.ended or last.term != "current"
        blocked = any(process.inside == "current" for process in world.processes)
        evicts = self._guarded("a term begins after the fenced work of the last")
        return free and (not blocked or last.ended or last.term != "current" or not evicts)

    def _acquired(self, world: World, number: int) -> World:
        def aged(process: Process) -> Process:
            inside = process.inside
            if inside == "current":
                # its session is ended, so that what is inside can never commit; or it is left there
                ends = self._guarded("a term begins after the fenced work of the last") and self._guarded(
                    "stale sessions are ended before a term begins"
                )
                inside = "" if ends else "stale"
            return replace(process, term="stale" if process.term else "", inside=inside)

        processes = [aged(process) for process in world.processes]
        processes[number] = replace(processes[number], term="current")
        return World(tuple(processes), number)

    def _may_enter(self, world: World, number: int) -> bool:
        process = world.processes[number]
        if not self._guarded("fenced work names its epoch"):
            return True
        return world.leader == number and process.term == "current" and not process.ended

    def _committed(self, world: World, number: int, process: Process) -> World:
        if process.inside == "stale":
            raise Violation("work of a term that is over was committed")
        return _with(world, number, replace(process, inside=""))


def _with(world: World, number: int, process: Process) -> World:
    processes = list(world.processes)
    processes[number] = process
    return replace(world, processes=tuple(processes))


def _way(came_from: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    steps = []
    while (before := came_from[world]) is not None:
        world, what = before
        steps.append(what)
    return steps[::-1]
