"""Lines and limits against a model of them, in any order that Hypothesis can think of.

The model knows where each job is and in which order those of a line are to begin, who runs, and what began when. A claim may
take only what is first in its line and has room by every limit; and whenever there is such a job, a claim that knows all tasks
must get one. After each step the rows of jobs and lines must be as the model has them.

As in tests/jobs/test_model.py a few examples are run by default, always the same, and `ROTA_MODEL_EXAMPLES=1000` runs so many
random ones instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count, groupby
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.jobs.statements import CHANNEL, Db, ask, join, put
from tests.jobs.test_model import EXAMPLES, FAILURE, NOBODY, PICKS, SETTINGS, chosen, often

from rota import Limit
from rota.jobs.cancel import cancel_jobs, discard_jobs, end_cancelled
from rota.jobs.claim import ClaimedJob, claim, claim_flow, claim_suspect, give_back_claim, join_lines
from rota.jobs.enqueue import digest, enqueue
from rota.jobs.job import NewJob
from rota.jobs.lanes import find_lanes
from rota.jobs.limit import declare_limits
from rota.jobs.outcome import Buried, HandedBack, Lost, Retried, Snoozed, Succeeded
from rota.jobs.rate import Rate
from rota.jobs.rescue import rescue
from rota.jobs.settle import settle, succeed
from rota.jobs.worker import _PLANNING
from rota.leases.members import leave_member

LOST_LIMIT = 3
MOST_LOSSES = 9
#: what each task may declare; None: no limit any more. Whether it has a line for each key is the same in all.
DECLARED: dict[str, list[Limit | None]] = {
    "one": [Limit(running=1, by="k"), Limit(running=3, by="k"), Limit(by="k"), Limit(running=2, by="k"), None],
    "held": [Limit(running=1, by="k", retries="hold_line"), Limit(running=2, by="k", retries="hold_line")],
    "few": [Limit(running=2), Limit(running=1), Limit(running=3), None],
    "rated": [Limit(rate="2/40s", by="k"), Limit(rate="1/40s", by="k"), Limit(rate="3/20s", by="k", running=2), None],
    "plain": [None],
}
BY_KEY = ("one", "held", "rated")
ALL = dict.fromkeys(DECLARED, 1)
QUEUES = ("", "x", "y")


@dataclass(frozen=True)
class Rule:
    """What someone has said about a queue."""

    running: int | None = None
    rate: Rate | None = None


RULES = [Rule(), Rule(), Rule(1), Rule(2), Rule(4), Rule(rate=Rate(3, 40.0)), Rule(2, Rate(4, 80.0))]


@dataclass
class Row:
    """A job as it should be. It is `plain`, `aside` (of a line, and not in it), in `line`, `running` or `gone`."""

    id: int
    task: str
    key: str | None
    queue: str
    priority: int
    due_at: datetime
    line: UUID | None
    where: str
    place: tuple[int, int] | None = None
    losses: int = 0
    marked: bool = False
    member: UUID | None = None
    job: ClaimedJob | None = None

    @property
    def own_line(self) -> UUID:
        return digest(self.task, (self.key or "") if self.task in BY_KEY else "")


JOBS = st.builds(
    lambda task, key, queue, priority, delay: NewJob(
        task, json.dumps({"k": key}), queue=queue, priority=priority, delay=delay, key=key if task in BY_KEY else None
    ),
    task=st.sampled_from(["one", "one", "held", "few", "rated", "plain"]),
    key=st.sampled_from(["k", "k", "l"]),
    queue=st.sampled_from(["x", "x", "y"]),
    priority=st.sampled_from([0, 0, 5]),
    delay=st.sampled_from([None, None, None, None, 5.0]),
)
MANY_JOBS = st.lists(JOBS, min_size=1, max_size=4)
KINDS = st.sampled_from(
    [
        "succeeded",
        "succeeded",
        "succeeded",
        "retried",
        "retried at once",
        "snoozed",
        "handed back",
        "lost",
        "buried",
        "undone",
    ]
)
STEPS = [
    *often(5, "enqueue", MANY_JOBS, st.sampled_from(["put", "put", "put", "unaware"])),
    *often(3, "open", PICKS, MANY_JOBS),
    *often(3, "close", PICKS, st.sampled_from([True, True, True, False])),
    *often(7, "claim", PICKS, st.integers(1, 5)),
    *often(2, "overlap", PICKS, st.integers(1, 3), st.booleans()),
    *often(6, "settle", st.lists(PICKS, min_size=1, max_size=3), KINDS),
    *often(1, "end_member", PICKS),
    *often(2, "cancel", PICKS, st.booleans()),
    *often(1, "end_cancelled"),
    *often(3, "advance", st.sampled_from([1, 5, 20, 41])),
    *often(2, "declare", PICKS, PICKS),
    *often(2, "say", PICKS, PICKS),
    *often(1, "lock", PICKS),
    *often(1, "unlock"),
    *often(1, "join_lines"),
]


class Lines(RuleBasedStateMachine):
    def __init__(self, db: Db, callers: Sequence[Db], other: Db, now: datetime) -> None:
        super().__init__()
        self.db, self.callers, self.other = db, callers, other
        self.now = now
        self.rows: dict[int, Row] = {}
        self.places = count(1)
        self.tokens = count(1)
        self.open_rows: dict[int, list[Row]] = {}
        self.locked: set[int] = set()
        self.limits: dict[str, Limit | None] = {}
        self.said: dict[str, Rule] = dict.fromkeys(QUEUES, Rule())
        #: when jobs of a line, or of a queue, began, as far as its rate counts it
        self.starts: dict[UUID | str, list[datetime]] = {}
        self.members: dict[UUID, tuple[dict[str, int], list[str] | None]] = {}
        for knows, queues in ((ALL, None), ({"one": 1, "plain": 1, "few": 1}, None), (ALL, ["x"])):
            self.members[join(db, UUID(int=len(self.members) + 1))] = (knows, queues)
        self.ended: set[UUID] = set()
        for task in range(len(DECLARED)):
            self.declare(task, 0)

    @initialize(new=MANY_JOBS)
    def begin(self, new: list[NewJob]) -> None:
        self.enqueue(new, "put")

    @rule(step=st.sampled_from(STEPS).flatmap(lambda step: step))
    def then(self, step: tuple[Any, ...]) -> None:
        """All steps are one rule, since Hypothesis leaves out half the rules in each example, and here each needs the others."""
        what, *how = step
        getattr(self, what)(*how)

    # What happens

    def enqueue(self, new: list[NewJob], way: str) -> None:
        if way == "unaware":  # as plain SQL does, or an older release
            for each in new:
                self.rows[id] = self.row(
                    each, id := ask(self.db, enqueue(each, "rota", NOBODY, wake=False)).id, "plain"
                )
        else:
            rows = self.put(self.db, new)
            self.rows |= {row.id: row for row in rows}
            self.arrive(rows)

    def open(self, pick: int, new: list[NewJob]) -> None:
        which = pick % len(self.callers)
        self.open_rows[which] = [*self.open_rows.get(which, []), *self.put(self.callers[which], new)]

    def close(self, pick: int, commits: bool) -> None:
        if not self.open_rows:
            return
        which = chosen(self.open_rows, pick)
        rows = self.open_rows.pop(which)
        if commits:
            self.callers[which].commit()
            self.rows |= {row.id: row for row in rows}
            self.arrive(sorted(rows, key=lambda row: row.id))
        else:
            self.callers[which].rollback()

    def claim(self, pick: int, limit: int) -> None:
        self.join_lines()
        member = self.member(pick)
        self.begun(member, self.taking(self.db, member, limit))
        self.sent_aside()

    def overlap(self, pick: int, limit: int, commits: bool) -> None:
        """While one has a claim under way that is not committed, another neither waits for it nor takes what it must not."""
        if self.locked or any(said != Rule() for said in self.said.values()):
            return  # they take turns at the queue
        self.join_lines()
        one, two = self.member(pick), self.member(pick + 1)
        with self.other.transaction(force_rollback=not commits):
            first = self.taking(self.other, one, limit)
            if commits:
                self.begun(one, first)
                self.begun(two, self.taking(self.db, two, limit))
            else:
                busy = {row.line for row in self.live() if row.id in {job.id for job in first}} - {None}
                second = self.taking(self.db, two, limit)
                assert not busy & {self.rows[job.id].line for job in second}
                self.begun(two, second)
        self.sent_aside()

    def settle(self, picks: list[int], kind: str) -> None:
        held = [row for row in self.live() if row.where == "running"]
        rows = list({row.id: row for row in (chosen(held, pick) for pick in picks if held)}.values())
        jobs = [row.job for row in rows if row.job is not None]
        if kind == "succeeded":
            assert len(ask(self.db, succeed([Succeeded(job, None, 0.1) for job in jobs]))) == len(jobs)
            self.drop(rows)
            return
        if kind == "undone":
            for token, member in {(row.job.token, row.member) for row in rows if row.job and row.member}:
                ask(self.db, give_back_claim(member, token))
                for row in held:
                    if row.job and row.job.token == token:
                        self.waits_again(row, keeps_place=True, pause=None)
            return
        outcomes = {
            "retried": lambda job: Retried(job, FAILURE, 0.1, 30.0),
            "retried at once": lambda job: Retried(job, FAILURE, 0.1, 0.0),
            "snoozed": lambda job: Snoozed(job, 0.1, 5.0),
            "handed back": lambda job: HandedBack(job),
            "lost": lambda job: Lost(job, FAILURE, 0.1),
            "buried": lambda job: Buried(job, FAILURE, 0.1),
        }
        told = ask(self.db, settle([outcomes[kind](job) for job in jobs], CHANNEL, lost_limit=LOST_LIMIT))
        assert len(told) == len(jobs)
        for row in rows:
            self.moved(row, kind)

    def end_member(self, pick: int) -> None:
        live = [member for member in self.members if member not in self.ended]
        member = chosen(live, pick)
        ask(self.db, leave_member(member))
        self.ended.add(member)
        self.members[join(self.db, UUID(int=len(self.members) + 1))] = self.members[member]
        lost = [row for row in self.live() if row.where == "running" and row.member == member]
        assert {each.id for each in ask(self.db, rescue(CHANNEL, lost_limit=LOST_LIMIT))} == {row.id for row in lost}
        for row in lost:
            self.moved(row, "lost")

    def cancel(self, pick: int, discards: bool) -> None:
        rows = [row for row in self.live() if row.id not in self.locked]
        if not rows:
            return
        row = chosen(rows, pick)
        assert ask(self.db, (discard_jobs if discards else cancel_jobs)([row.id], None, CHANNEL))
        if row.where == "running" and not discards:
            row.marked = True
        else:
            self.drop([row])

    def end_cancelled(self) -> None:
        ask(self.db, end_cancelled())
        self.drop([row for row in self.live() if row.marked and row.where != "running" and row.id not in self.locked])

    def advance(self, seconds: int) -> None:
        self.db.execute("update rota.test_clock set shift = shift + %s * interval '1 second'", [seconds])
        self.now += timedelta(seconds=seconds)

    def declare(self, pick: int, which: int) -> None:
        """A worker starts that says something else about the task."""
        task = chosen(DECLARED, pick)
        limit = chosen(DECLARED[task], which)
        steps = declare_limits({task: limit})
        query = next(steps)
        try:
            while True:
                query = steps.send(ask(self.db, query))
        except StopIteration:
            pass
        if period(limit) != period(self.limits.get(task)):
            # what began before is forgotten: it was counted by the slots of another period
            self.starts = {line: times for line, times in self.starts.items() if line not in self.lines_of(task)}
        self.limits[task] = limit

    def say(self, pick: int, which: int) -> None:
        """Someone says something about a queue, as `app.queues` writes it down."""
        name, said = chosen(QUEUES, pick), chosen(RULES, which)
        rate = said.rate
        same = period(said) == period(self.said[name])
        self.db.execute(
            """
            insert into rota.queues (name, running_limit, rate_count, rate_seconds) values (%s, %s, %s, %s)
            on conflict (name) do update
            set (running_limit, rate_count, rate_seconds) = (excluded.running_limit, excluded.rate_count, excluded.rate_seconds),
                (spent, spent_slot, not_before) = (
                    select rate.spent, rate.slot, rate.not_before
                    from rota.rate_after(
                        excluded.rate_count, excluded.rate_seconds, 0, rota.now(),
                        case when %s then queues.spent end, queues.spent_slot
                    ) as rate
                    where excluded.rate_count is not null
                )
            """,
            [name, said.running, rate and rate.count, rate and rate.seconds, same],
        )
        if not same:
            self.starts.pop(name, None)
        self.said[name] = said

    def lock(self, pick: int) -> None:
        """Someone locks a job that waits, and keeps it."""
        rows = [row for row in self.live() if row.where != "running"]
        if rows and not self.locked:
            id = chosen(rows, pick).id
            self.other.execute("begin")
            self.other.execute("select from rota.jobs where id = %s for update", [id])
            self.locked = {id}

    def unlock(self) -> None:
        if self.locked:
            self.other.execute("commit")
            self.locked = set()

    def join_lines(self) -> None:
        joining = sorted(self.joining(), key=lambda row: row.id)
        assert ask(self.db, join_lines()) == len(joining)
        for row in joining:
            if row.line is None and self.limits[row.task] is None:
                row.where = "plain"  # the limit that sent it there is gone
                continue
            row.line = row.line or row.own_line
            self.place(row)

    # What must hold

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        found = self.db.execute(
            "select id, state, line, place, losses, due_at from rota.jobs order by id", prepare=True
        ).fetchall()
        expected = []
        for row in sorted(self.live(), key=lambda row: row.id):
            state = {"plain": "queued", "running": "running"}.get(row.where, "blocked")
            expected.append((row.id, state, row.line, row.losses, row.due_at))
        assert [(id, state, line, losses, due_at) for id, state, line, _, losses, due_at in found] == expected
        for line in {row.line for row in self.live()} - {None}:
            by_place = sorted(
                (place, id) for id, state, at, place, *_ in found if at == line and state == "blocked" and place
            )
            assert [id for _, id in by_place] == [row.id for row in self.waiting(line)]

    @invariant()
    def lines_say_what_is_true(self) -> None:
        found = self.db.execute(
            "select id, task, queue, priority, losses, ready_at, not_before from rota.lines", prepare=True
        ).fetchall()
        lines = {line: rest for line, *rest in found}
        in_use = {row.line for row in self.live() if row.where in ("line", "running")} - {None}
        # where any number may run, a line that nobody waits in may be gone
        assert {row.line for row in self.live() if row.where == "line"} - {None} <= lines.keys()
        # what is left of a line that nobody is in is what its rate remembers
        for line in lines.keys() - in_use:
            task, queue, *_, ready_at, not_before = lines[line]
            assert (queue, ready_at) == (None, None)
            assert not_before is not None
            assert self.limits[task] is not None
            assert not_before <= self.now or self.within(line, 41 / 40 * (period(self.limits[task]) or 0))
        for line in in_use & lines.keys():
            _, queue, priority, losses, ready_at, _ = lines[line]
            waiting = self.waiting(line)
            if not waiting:
                assert ready_at is None
                continue
            head = waiting[0]
            # of a line that is full, who is first is asked when one ends
            if ready_at is not None:
                assert (queue, priority, losses) == (head.queue, head.priority, head.losses)
            if (
                self.room_in_line(line, head.task, sure=False) <= 0
                and self.rate_room(line, rate_of(self.limits[head.task])) > 0
            ):
                assert ready_at is None
            if self.rate_room(line, rate_of(self.limits[head.task]), sure=False) <= 0:
                assert ready_at is None or ready_at > self.now
            if head.due_at <= self.now and self.room_in_line(line, head.task, sure=True) > 0:
                assert ready_at is not None
                assert ready_at <= self.now

    @invariant()
    def what_may_run_is_taken_by_whoever_looks(self) -> None:
        expected = self.may_run()
        if not expected:
            return
        member = self.who_knows_all()
        unaware = sum(row.where == "plain" and self.limits[row.task] is not None for row in self.live())
        with self.db.transaction(force_rollback=True):
            ask(self.db, join_lines())
            # a claim of one may find one that it has to send to its line
            taken = any(self.taking(self.db, member, 1 + len(self.rows) % 3) for _ in range(unaware + 1))
            assert taken, f"nothing was taken, and {expected} may run"

    def teardown(self) -> None:
        """Whatever happened, all that is left can be done."""
        for which, caller in enumerate(self.callers):
            self.open_rows.pop(which, None)
            caller.rollback()
        if sys.exc_info()[0] is not None:
            if self.locked:
                self.other.rollback()
            return
        self.unlock()
        member = self.who_knows_all()
        for _ in range(100):
            if not self.live():
                break
            self.end_cancelled()
            self.settle(list(range(20)), "succeeded")
            self.join_lines()
            self.begun(member, self.taking(self.db, member, 5))
            self.sent_aside()
            self.advance(41)
            self.everything_is_as_it_should_be()
            self.lines_say_what_is_true()
        assert not self.live()

    # The model

    def live(self) -> list[Row]:
        return [row for row in self.rows.values() if row.where != "gone"]

    def waiting(self, line: UUID | None) -> list[Row]:
        rows = [row for row in self.live() if row.where == "line" and row.line == line]
        return sorted(rows, key=lambda row: row.place or (0, 0))

    def joining(self) -> list[Row]:
        return [
            row for row in self.live() if row.where == "aside" and row.due_at <= self.now and row.id not in self.locked
        ]

    def lines_of(self, task: str) -> set[UUID]:
        return {digest(task, key) for key in ("", "k", "l")}

    def running(self, line: UUID) -> int:
        return sum(row.where == "running" and row.line == line for row in self.live())

    def within(self, whose: UUID | str, seconds: float) -> int:
        return sum(at > self.now - timedelta(seconds=seconds) for at in self.starts.get(whose, []))

    def rate_room(self, whose: UUID | str, rate: Rate | None, sure: bool = True) -> int:
        """How many may begin now, by the rate: at least, if one must be `sure`, as what began leaves a slot late."""
        if rate is None:
            return 99
        return rate.count - self.within(whose, rate.seconds * (41 / 40 if sure else 1))

    def room_in_line(self, line: UUID, task: str, *, sure: bool) -> int:
        limit = self.limits[task]
        if limit is None:
            return 99
        room = 99 if limit.running is None else limit.running - self.running(line)
        return min(room, self.rate_room(line, rate_of(self.limits[task]), sure))

    def room_in_queue(self, name: str, *, sure: bool) -> int:
        said = self.said[name]
        runs = sum(row.where == "running" and name in ("", row.queue) for row in self.live())
        room = 99 if said.running is None else said.running - runs
        return min(room, self.rate_room(name, said.rate, sure))

    def may_run(self) -> list[int]:
        """Jobs that a claim of one must find one of."""
        free = [row for row in self.live() if row.where == "plain" and self.limits[row.task] is None]
        joining = sorted(self.joining(), key=lambda row: row.id)
        lines = {row.line for row in self.live() if row.where == "line"} | {row.line for row in joining}
        for line in lines - {None}:
            queue = self.waiting(line) or [row for row in joining if row.line == line]
            task = queue[0].task
            if self.room_in_line(line, task, sure=True) > 0:
                free.append(queue[0])
        return [
            row.id
            for row in free
            if row.due_at <= self.now
            and not row.marked
            and row.id not in self.locked
            and min(self.room_in_queue("", sure=True), self.room_in_queue(row.queue, sure=True)) > 0
        ]

    def begun(self, member: UUID, jobs: Collection[ClaimedJob]) -> None:
        """These were taken: each must have been first in its line, and nothing is over its limit now."""
        knows, queues = self.members[member]
        order = {line: self.waiting(line) for line in {self.rows[job.id].line for job in jobs}}
        taken: dict[UUID | None, list[Row]] = {}
        for job in jobs:
            row = self.rows[job.id]
            assert row.where in ("line", "plain")
            assert row.due_at <= self.now
            assert not row.marked
            assert row.id not in self.locked
            assert row.task in knows
            assert queues is None or row.queue in queues
            assert row.where == "line" or self.limits[row.task] is None
            if row.where == "line":
                assert job.in_line
                taken.setdefault(row.line, []).append(row)
            row.where, row.member, row.job = "running", member, job
            for whose in (row.line, row.queue, ""):
                if whose is not None:
                    self.starts.setdefault(whose, []).append(self.now)
        for line, rows in taken.items():
            assert line is not None
            assert {row.id for row in rows} == {row.id for row in order[line][: len(rows)]}
            assert self.room_in_line(line, rows[0].task, sure=False) >= 0
        for queue in {"", *(self.rows[job.id].queue for job in jobs)} if jobs else ():
            assert self.room_in_queue(queue, sure=False) >= 0
        assert sum(job.losses > 0 for job in jobs) <= 1

    def sent_aside(self) -> None:
        """Those whose callers did not know of the limit of their task have been sent to their lines."""
        for (id,) in self.db.execute(
            "select id from rota.jobs where state = 'blocked' and place is null", prepare=True
        ):
            row = self.rows[id]
            if row.where == "plain":
                assert self.limits[row.task] is not None
                row.where = "aside"

    def moved(self, row: Row, kind: str) -> None:
        """Its attempt has ended in this way."""
        row.losses += kind == "lost"
        if kind == "buried" or row.marked or (kind == "lost" and row.losses >= LOST_LIMIT):
            self.drop([row])
            return
        limit = self.limits[row.task]
        hold = kind.startswith("retried") and limit is not None and limit.retries == "hold_line"
        pause = {"retried": 30.0, "retried at once": 0.0, "snoozed": 5.0}.get(kind)
        self.waits_again(row, keeps_place=hold or kind in ("handed back", "lost"), pause=pause)

    def waits_again(self, row: Row, *, keeps_place: bool, pause: float | None) -> None:
        row.member = row.job = None
        if pause is not None:
            row.due_at = self.now + timedelta(seconds=pause)
        if row.line is None:
            row.where = "plain"
        elif keeps_place:
            row.where = "line"
        else:
            row.where, row.place = "aside", None

    def drop(self, rows: Iterable[Row]) -> None:
        for row in rows:
            row.where = "gone"

    def arrive(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.where == "arriving":
                self.place(row)

    def place(self, row: Row) -> None:
        """At the end of its line; where there is one for all, before what is less urgent."""
        row.where = "line"
        row.place = (0 if row.task in BY_KEY else -row.priority, next(self.places))

    # How it is done

    def put(self, db: Db, new: Sequence[NewJob]) -> list[Row]:
        """As an app does that knows what its tasks declare."""
        limits = [self.limits[each.task] for each in new]
        new = [
            each if limit is None else replace(each, line=limit.line_of(each.task, each.key))
            for each, limit in zip(new, limits, strict=True)
        ]
        jobs = ask(db, put(*new))
        return [
            self.row(each, job.id, "plain" if each.line is None else "aside" if each.delay else "arriving")
            for each, job in zip(new, jobs, strict=True)
        ]

    def row(self, new: NewJob, id: int, where: str) -> Row:
        due_at = self.now + timedelta(seconds=new.delay or 0)
        return Row(id, new.task, new.key, new.queue, new.priority, due_at, new.line, where)

    def member(self, pick: int) -> UUID:
        live = [member for member in self.members if member not in self.ended]
        member: UUID = chosen(live, pick)
        return member

    def who_knows_all(self) -> UUID:
        return next(member for member, how in self.members.items() if how == (ALL, None) and member not in self.ended)

    def taking(self, db: Db, member: UUID, limit: int) -> list[ClaimedJob]:
        """A claim as the claimer makes it, from a look to the last lane."""
        knows, queues = self.members[member]
        limited = [task for task in knows if self.limits[task] is not None]
        lanes = [(lane, lane.start) for lane in ask(db, find_lanes(queues)).lanes if lane.due_in <= 0]
        taken: list[ClaimedJob] = []
        if any(lane.suspects for lane, _ in lanes):
            token = next(self.tokens)
            taken = ask(
                db,
                claim_suspect(
                    queues=queues, tasks=knows, limited=limited, most_losses=MOST_LOSSES, token=token, member=member
                ),
            )
            taken = [job for job in taken if job.token is not None]
        for flows, group in groupby(lanes, lambda entry: entry[0].lines or entry[0].limited):
            if len(taken) >= limit:
                break
            how: dict[str, Any] = {
                "lanes": list(group),
                "tasks": knows,
                "limited": limited,
                "limit": limit - len(taken),
                "token": next(self.tokens),
                "member": member,
            }
            losses = 0 if any(job.losses for job in taken) else MOST_LOSSES
            found = ask(db, claim_flow(**how, most_losses=losses) if flows else claim(**how))
            taken += [job for job in found if job.token is not None]
        assert len(taken) <= limit
        return taken


def rate_of(said: Limit | Rule | None) -> Rate | None:
    return said.rate if said is not None and isinstance(said.rate, Rate) else None


def period(said: Limit | Rule | None) -> float | None:
    rate = rate_of(said)
    return rate and rate.seconds


@pytest.mark.one_server
@pytest.mark.timeout(0 if EXAMPLES else 120)
@pytest.mark.parametrize(
    "part", [0] if EXAMPLES else [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 10))]
)
def test_lines_do_what_their_model_does(direct_database: str, rota_database: str, part: int) -> None:
    with psycopg.connect(direct_database, autocommit=True) as admin:
        # nobody here may wait for a lock, so one that is waited for is an error and not a hang; the rest is as workers have it
        for name, value in {"lock_timeout": "1s", **_PLANNING}.items():
            admin.execute(f"alter database {admin.info.dbname} set {name} = '{value}'")
    # a clock that moves only when told
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    with (
        psycopg.connect(rota_database, autocommit=True) as db,
        psycopg.connect(rota_database, autocommit=True) as other,
        psycopg.connect(rota_database) as one,
        psycopg.connect(rota_database) as two,
    ):
        db.execute(
            "create or replace function rota.now() returns timestamptz language sql stable parallel safe "
            f"return (select timestamptz '{noon.isoformat()}' + clock.shift from rota.test_clock as clock)"
        )

        def emptied() -> Lines:
            db.execute(
                "delete from rota.jobs; delete from rota.history; delete from rota.dead; delete from rota.attempts; "
                "delete from rota.lines; delete from rota.limits; delete from rota.queues; delete from rota.members; "
                "update rota.test_clock set shift = '0'; alter sequence rota.jobs_id_seq restart",
                prepare=False,
            )
            return Lines(db, [one, two], other, noon)

        machine = emptied if EXAMPLES else seed(part)(emptied)
        run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=EXAMPLES or 3))  # type: ignore[no-untyped-call]
