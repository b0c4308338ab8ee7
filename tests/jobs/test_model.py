"""The queue's statements against a model of the queue, in any order that Hypothesis can think of.

The model is the promise in plain Python: where each job is, who holds it under which token, what its attempts came to. Each
step runs one statement on a real PostgreSQL and asks the model what it should have returned; then all tables must be as the
model says. Nothing forgets an attempt: its outcome may be reported again at any later time, by when it must change nothing.

By default it runs a few examples that are always the same, and shows a failure as it was found. `ROTA_MODEL_EXAMPLES=5000`
runs so many random ones instead, and takes the minutes it needs to find the shortest that fails.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.jobs.statements import CHANNEL, LIVE, Db, ask, join, put

from rota.errors import JobExists
from rota.failure import Failure
from rota.jobs.cancel import cancel_jobs, discard_jobs, end_cancelled, find_unwanted
from rota.jobs.chores import find_chores
from rota.jobs.claim import (
    ClaimedJob,
    claim,
    claim_suspect,
    give_back_claim,
)
from rota.jobs.enqueue import enqueue, enqueue_many, refuse_twins
from rota.jobs.job import NewJob, NewUnique, Owner
from rota.jobs.lanes import Lane, Start, find_lanes, revisit_lanes
from rota.jobs.outcome import Buried, Cancelled, HandedBack, Lost, Retried, Snoozed, Succeeded, Unsuccessful
from rota.jobs.report import report_progress, save_checkpoint
from rota.jobs.rescue import rescue
from rota.jobs.settle import Attempt, find_settled, settle, succeed, succeed_one
from rota.leases.members import leave_member
from rota.postgres.query import Query

EXAMPLES = int(os.environ.get("ROTA_MODEL_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 7,
    stateful_step_count=50,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])],
    suppress_health_check=list(HealthCheck),
)
LOST_LIMIT = 2  # a shorter way to the same end
FAILURE = Failure("ValueError", "no", "trace")
NOBODY = cast(Owner, None)
NONE_LOCKED: frozenset[int] = frozenset()
Knows = dict[str, int]


@dataclass
class Row:
    """A job as it should be."""

    id: int
    new: NewJob
    created_at: datetime
    due_at: datetime
    state: str = "queued"
    attempt: int = 0
    losses: int = 0
    token: int | None = None
    member: UUID | None = None
    marked: bool = False
    reason: str | None = None
    progress: float | None = None
    saved: Any = None
    result: Any = None

    @property
    def unique_key(self) -> tuple[str, str] | None:
        return (self.new.task, self.new.unique.key) if self.new.unique else None

    @property
    def attempt_key(self) -> Attempt:
        assert self.token is not None
        return self.id, self.token

    @property
    def claimed(self) -> ClaimedJob:
        new = self.new
        return ClaimedJob(
            id=self.id,
            queue=new.queue,
            task=new.task,
            priority=new.priority,
            attempt=self.attempt,
            losses=self.losses,
            due_at=self.due_at.timestamp(),
            args=new.args,
            token=self.attempt_key[1],
            version=new.version,
            saved=None if self.saved is None else json.dumps(self.saved),
        )

    @property
    def stored(self) -> tuple[Any, ...]:
        """The job as `STORED` finds it."""
        new, live, settled = self.new, self.state in LIVE, self.state in ("succeeded", "cancelled")
        return (
            *(self.id, self.state, new.task, new.queue, new.priority, new.version, json.loads(new.args)),
            *(self.created_at, self.due_at, self.attempt, self.losses, self.token, self.member),
            self.marked if live else None,
            self.reason if live or settled else None,
            self.progress if live else None,
            self.saved if not settled else None,
            self.result if settled else None,
        )

    def let_go(self) -> None:
        self.state, self.token, self.member = "queued", None, None


STORED = """
    select id, state, task, queue, priority, version, args, created_at, due_at, attempt, losses, token, member,
           cancel_requested_at is not null, cancel_reason, progress, saved, null
    from rota.jobs
    union all
    select id, state, task, queue, priority, version, args, created_at, due_at, attempt, losses, token, member,
           null, reason, null, null, result
    from rota.history
    union all
    select id, 'dead', task, queue, priority, version, args, created_at, due_at, attempt, losses, token, member,
           null, null, null, saved, null
    from rota.dead
    order by id
"""


@dataclass
class Model:
    """The queue as it should be. Each method does what a statement does, and returns what that should return."""

    now: datetime
    rows: dict[int, Row] = field(default_factory=dict)
    #: attempts that settled nothing: job, number, token, how they ended
    attempts: list[tuple[int, int, int | None, str]] = field(default_factory=list)
    #: attempts that find their own outcome on record
    settled: set[Attempt] = field(default_factory=set)
    #: the last job of each unique key
    last: dict[tuple[str, str], int] = field(default_factory=dict)
    ended: set[UUID] = field(default_factory=set)

    def live(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state in LIVE]

    def queued(self, locked: Collection[int] = NONE_LOCKED) -> list[Row]:
        """What waits, the most urgent first."""
        waiting = [row for row in self.rows.values() if row.state == "queued" and row.id not in locked]
        return sorted(waiting, key=lambda row: (-row.new.priority, row.due_at, row.id))

    def running(self, member: UUID | None = None) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "running" and member in (None, row.member)]

    def held(self, attempts: Iterable[Attempt]) -> list[Row]:
        """The jobs of those attempts that still have their claim."""
        running = {row.attempt_key: row for row in self.running()}
        return [running[attempt] for attempt in attempts if attempt in running]

    # Enqueuing

    def holder(self, new: NewJob) -> Row | None:
        """The job that keeps a new one out."""
        if new.unique is None:
            return None
        key, since = (new.task, new.unique.key), new.unique.within
        same = [row for row in self.live() if row.unique_key == key]
        same += [self.rows[id] for id in [self.last.get(key)] if id and self.rows[id] not in same]
        counted = [
            row
            for row in same
            if row.state in new.unique.states
            and (since is None or row.created_at > self.now - timedelta(seconds=since))
        ]
        return max((row for row in counted), key=lambda row: (row.state in LIVE, row.id), default=None)

    def refuses(self, new: Iterable[NewJob]) -> bool:
        return any(each.unique and each.unique.conflict == "raise" and self.holder(each) for each in new)

    def put(self, new: NewJob, id: int) -> tuple[Any, ...]:
        """The job that is there then; `id` is the one that a new row was given."""
        due_at = self.now + timedelta(seconds=new.delay or 0)
        there = self.holder(new)
        if there is None:
            self.rows[id] = row = Row(id, new, self.now, due_at)
            if row.unique_key:
                self.last[row.unique_key] = id
            return id, self.now, due_at, "queued", False
        assert new.unique is not None
        if new.unique.conflict == "replace" and there.state == "queued":
            there.new, there.due_at, there.saved, there.attempt, there.losses = new, due_at, None, 0, 0
            self.attempts = [attempt for attempt in self.attempts if attempt[0] != there.id]
            self.settled = {attempt for attempt in self.settled if attempt[0] != there.id}
        return there.id, there.created_at, there.due_at, there.state, True

    # Claiming

    def lanes(self) -> list[Lane]:
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self.queued():
            found.setdefault((row.new.queue, row.new.priority), []).append(row)
        suspects = any(row.losses for row in self.queued())
        lanes = []
        for lane, rows in found.items():
            due_in = [(row.due_at - self.now).total_seconds() for row in rows]
            next_due_in = next((each for each in due_in if each > 0), None)
            lanes.append(Lane(*lane, due_in[0], suspects, next_due_in, Start(rows[0].due_at, rows[0].id - 1)))
        return lanes

    def claim(
        self,
        lanes: Sequence[tuple[Lane, Start | None]],
        knows: Knows,
        limit: int,
        token: int,
        member: UUID,
        locked: Collection[int],
    ) -> list[ClaimedJob]:
        wanted = [
            row
            for lane, start in lanes
            for row in self.queued(locked)
            if (row.new.queue, row.new.priority) == (lane.queue, lane.priority)
            and (start is None or (row.due_at, row.id) > (start.due_at, start.id))
            and row.losses == 0
        ]
        return self._taken(wanted, knows, limit, token, member)

    def claim_suspect(
        self,
        queues: Sequence[str] | None,
        most_losses: int,
        knows: Knows,
        token: int,
        member: UUID,
        locked: Collection[int],
    ) -> list[ClaimedJob]:
        wanted = [
            row
            for row in self.queued(locked)
            if (queues is None or row.new.queue in queues) and 0 < row.losses <= most_losses
        ]
        return self._taken(wanted, knows, 1, token, member)

    def _taken(self, wanted: Sequence[Row], knows: Knows, limit: int, token: int, member: UUID) -> list[ClaimedJob]:
        may = [
            row
            for row in wanted
            if row.due_at <= self.now and row.new.version <= knows.get(row.new.task, 0) and not row.marked
        ]
        taken = [] if member in self.ended else may[:limit]
        for row in taken:
            row.state, row.token, row.member, row.attempt = "running", token, member, row.attempt + 1
        return [row.claimed._replace(waited=(self.now - row.due_at).total_seconds()) for row in taken]

    def give_back(self, member: UUID, token: int) -> int:
        given_back = [row for row in self.running(member) if row.token == token]
        for row in given_back:
            row.let_go()
            row.attempt -= 1
        return len(given_back)

    # Settling

    def succeed(self, outcomes: Sequence[Succeeded], locked: Collection[int] = NONE_LOCKED) -> set[Attempt]:
        results = {(each.job.id, each.job.token): each.result for each in outcomes}
        ours = {row.attempt_key: row for row in self.held(results)}
        for attempt, row in ours.items():
            row.state, row.reason, row.result = "succeeded", None, json.loads(results[attempt] or "null")
        self.settled |= set(ours)
        return set(ours)

    def settle(self, outcomes: Sequence[Unsuccessful]) -> set[tuple[int, int, str]]:
        told = set()
        for each in outcomes:
            for row in self.held([(each.job.id, each.job.token)]):
                fate = self._move(row, each.kind, each.pause, each.reason if isinstance(each, Cancelled) else None)
                # where the job is queued again, only a failure is on record as such
                if fate != "queued" or each.kind == "retried":
                    self.settled.add((each.job.id, each.job.token))
                told.add((each.job.id, each.job.token, fate))
        return told

    def rescue(self, locked: Collection[int]) -> set[tuple[int, str, int, UUID | None, str]]:
        lost = [row for row in self.running() if row.member in self.ended and row.id not in locked]
        told = {(row.id, row.new.task, row.attempt, row.member, self._move(row, "lost", None, None)) for row in lost}
        for row in lost:
            row.token = None
        return told

    def _move(self, row: Row, kind: str, pause: float | None, reason: str | None) -> str:
        if kind in ("retried", "buried", "lost"):
            self.attempts.append((row.id, row.attempt, row.token, "lost" if kind == "lost" else "failed"))
        row.losses += kind == "lost"
        if kind == "cancelled" or row.marked:
            row.state, row.reason = "cancelled", reason or row.reason
            return "cancelled"
        if kind == "buried" or (kind == "lost" and row.losses >= LOST_LIMIT):
            row.state = "dead"
            return "dead"
        row.let_go()
        row.attempt -= kind in ("handed_back", "snoozed")
        row.due_at = row.due_at if pause is None else self.now + timedelta(seconds=pause)
        row.progress = None
        return "queued"

    # Ending

    def cancel(self, ids: Collection[int], reason: str | None) -> set[tuple[int, str]]:
        told = set()
        for row in self.live():
            if row.id not in ids:
                continue
            if row.state == "running":
                row.marked, row.reason = True, row.reason or reason
            else:
                row.state, row.reason = "cancelled", reason or row.reason
            told.add((row.id, row.state))
        return told

    def discard(self, ids: Collection[int], reason: str | None) -> set[tuple[int, str]]:
        told = set()
        for id in ids:
            row = self.rows[id]
            if row.state in (*LIVE, "dead"):
                told.add((id, row.state))
                row.token = row.token if row.state == "dead" else None
                row.state, row.reason = "cancelled", reason or (row.reason if row.state in LIVE else None)
        return told

    def end_cancelled(self) -> None:
        for row in self.queued():
            if row.marked:
                row.state = "cancelled"


@dataclass(frozen=True)
class Act:
    """A statement, and what it should do and return while others have these jobs locked."""

    query: Query[Any]
    expect: Callable[[Model, Collection[int]], Any]
    #: what it returned, so that it can be compared
    told: Callable[[Any], Any] = lambda returned: returned
    #: the jobs of what it returned
    ids: Callable[[Any], set[int]] = lambda told: {each[0] for each in told}


PICKS = st.integers(0, 99)
MOSTLY_NOT = st.sampled_from([False, False, True])
SOME_PICKS = st.lists(PICKS, min_size=1, max_size=3, unique=True)
REASONS = st.sampled_from([None, "not wanted"])
KNOWS = st.sampled_from([{"a": 3, "b": 3}, {"b": 2, "a": 1}, {"a": 1}])
UNIQUE = st.builds(
    NewUnique,
    key=st.sampled_from(["k", "l"]),
    states=st.sampled_from([LIVE, ("queued", "blocked"), (*LIVE, "succeeded"), ("succeeded", "cancelled", "dead")]),
    within=st.sampled_from([None, None, 30.0]),
    conflict=st.sampled_from(["return", "raise", "replace"]),
)
JOBS = st.builds(
    NewJob,
    task=st.sampled_from(["a", "b"]),
    args=st.integers(0, 9).map(lambda n: json.dumps({"n": n})),
    queue=st.sampled_from(["x", "y"]),
    priority=st.sampled_from([0, 0, 5]),
    delay=st.sampled_from([None, None, None, None, 5.0, 60.0]),
    version=st.sampled_from([1, 1, 1, 2, 3]),
    unique=st.none() | UNIQUE,
)
OUTCOMES: dict[str, Callable[[ClaimedJob], Unsuccessful]] = {
    "retried at once": lambda job: Retried(job, FAILURE, 0.1, 0.0),
    "retried later": lambda job: Retried(job, FAILURE, 0.1, 30.0),
    "buried": lambda job: Buried(job, FAILURE, 0.1),
    "lost": lambda job: Lost(job, FAILURE, 0.1),
    "snoozed": lambda job: Snoozed(job, 0.1, 5.0),
    "discarded": lambda job: Cancelled(job, 0.1, "no use"),
    "cancelled": lambda job: Cancelled(job, 0.1),
    "handed back": lambda job: HandedBack(job),
}
SETTLED = ("succeeded", "buried", "discarded", "cancelled")
KINDS = st.lists(
    st.sampled_from([*SETTLED, *2 * [kind for kind in OUTCOMES if kind not in SETTLED]]), min_size=3, max_size=3
)
BATCH = st.sampled_from(["batch", "one by one"])
OVERLAPS = [
    *[("claim", "claim"), ("suspect", "suspect"), ("rescue", "rescue"), ("claim", "rescue"), ("rescue", "claim")],
    *[("cancel", "claim"), ("cancel", "suspect"), ("cancel", "rescue"), ("succeed", "rescue"), ("succeed", "claim")],
]


def often(times: int, what: str, *how: st.SearchStrategy[Any]) -> list[st.SearchStrategy[tuple[Any, ...]]]:
    return [st.tuples(st.just(what), *how)] * times


STEPS = [
    *often(1, "look", PICKS, st.sampled_from([None, ["x"]])),
    *often(5, "enqueue", st.lists(JOBS, min_size=1, max_size=3), st.sampled_from(["put", "many", "one"])),
    *often(2, "advance", st.sampled_from([5, 1, 30, 3600])),
    *often(5, "claim", PICKS, st.integers(1, 4), PICKS, st.sampled_from([None, None, None, 0, 1, 2])),
    *often(3, "claim_suspect", PICKS, st.sampled_from([None, None, ["x"]]), st.sampled_from([9, 1])),
    *often(5, "overlap", st.sampled_from(OVERLAPS), PICKS, st.integers(1, 4), st.booleans()),
    *often(4, "settle", SOME_PICKS, KINDS, BATCH),
    *often(2, "settle_again", SOME_PICKS, KINDS, BATCH),
    *often(2, "succeed_again", st.lists(PICKS, min_size=1, max_size=6, unique=True), BATCH),
    *often(1, "join", KNOWS),
    *often(3, "end_member", PICKS, st.sampled_from(["nothing", "nothing", "rescue", "rescue one by one"])),
    *often(2, "cancel", SOME_PICKS, REASONS),
    *often(1, "discard", SOME_PICKS, REASONS),
    *often(1, "end_cancelled"),
    *often(2, "report", PICKS, st.booleans(), st.sampled_from([0.25, 0.5])),
    *often(2, "give_back", PICKS, MOSTLY_NOT, st.none() | PICKS),
]


class Queue(RuleBasedStateMachine):
    def __init__(self, db: Db, other: Db, now: datetime) -> None:
        super().__init__()
        self.db = db
        self.other = other
        self.model = Model(now)
        self.knows: dict[UUID, Knows] = {}
        self.taken: list[tuple[ClaimedJob, UUID]] = []  # every attempt there ever was
        self.tokens = count(1)
        self.join({"a": 3, "b": 3})

    # What happens to the queue

    @initialize(new=st.lists(JOBS, min_size=2, max_size=4))
    def begin(self, new: list[NewJob]) -> None:
        for each in new:
            self.enqueue([each], "put")

    @rule(step=st.sampled_from(STEPS).flatmap(lambda step: step))
    def then(self, step: tuple[Any, ...]) -> None:
        """All steps are one rule, since Hypothesis leaves out half the rules in each example, and here each needs the others."""
        what, *how = step
        getattr(self, what)(*how)

    def enqueue(self, new: list[NewJob], way: str) -> None:
        try:
            refuse_twins(new)
        except JobExists:
            return
        if any(each.unique for each in new) or way == "put":
            query: Query[Any] = put(*new)
        elif way == "many":
            query = enqueue_many(new, "rota", NOBODY)
        else:
            new = new[:1]
            query = enqueue(new[0], "rota", NOBODY, wake=True)
        if self.model.refuses(new):
            with pytest.raises(JobExists):
                ask(self.db, query)
            return

        answer = ask(self.db, query)

        jobs = answer if isinstance(answer, list) else [answer]
        stored = [(job.id, job.created_at, job.due_at, job.state, job.existing) for job in jobs]
        assert stored == [self.model.put(each, job.id) for each, job in zip(new, jobs, strict=True)]

    def advance(self, seconds: int) -> None:
        self.db.execute("update rota.test_clock set shift = shift + %s * interval '1 second'", [seconds])
        self.model.now += timedelta(seconds=seconds)

    def claim(self, pick: int, limit: int, turn: int, behind: int | None) -> None:
        if not any(row.due_at <= self.model.now for row in self.model.queued()):
            self.advance(30)
        member = self.member(pick)
        self.take(self.claiming(member, limit, turn, behind), member)

    def claim_suspect(self, pick: int, queues: list[str] | None, most_losses: int) -> None:
        if not any(row.losses for row in self.model.queued()) and self.model.running():
            self.end_member(pick, "rescue")
        member = self.member(pick)
        self.take(self.claiming_suspect(member, queues, most_losses), member)

    def overlap(self, acts: tuple[str, str], pick: int, limit: int, commits: bool) -> None:
        """What one has under way and not committed yet is passed by, at once, by those who choose what to take."""
        one, two = self.member(pick), self.member(pick + 1)
        before = copy.deepcopy(self.model)
        act = self.act(acts[0], one, limit, pick)
        with self.other.transaction(force_rollback=not commits):
            told = self.perform(act, self.other)
            if commits:
                self.keep(told, one)
            else:
                self.model = before
            self.take(self.act(acts[1], two, 4, pick), two, locked=act.ids(told))

    def settle(self, picks: list[int], kinds: list[str], way: str) -> None:
        self.write(kinds, self.attempts(picks, past=False), way)

    def settle_again(self, picks: list[int], kinds: list[str], way: str) -> None:
        """Any attempt there ever was, of which most have lost their claim or were settled long ago."""
        self.write(kinds, self.attempts(picks, past=True), way)

    def succeed_again(self, picks: list[int], way: str) -> None:
        self.write(["succeeded"] * len(picks), self.attempts(picks, past=True), way)

    def join(self, knows: Knows) -> None:
        self.knows[join(self.db, UUID(int=len(self.knows)))] = knows

    def end_member(self, pick: int, then: str) -> None:
        self.leave(chosen({row.member: None for row in self.model.running()} or self.knows, pick))
        if then == "rescue":
            self.perform(self.rescuing())
        elif then == "rescue one by one":
            self.rescue_one_by_one()

    def cancel(self, picks: list[int], reason: str | None) -> None:
        self.perform(self.cancelling(self.ids(picks), reason))

    def discard(self, picks: list[int], reason: str | None) -> None:
        ids = self.ids(picks)
        query = discard_jobs(list(ids), reason, CHANNEL)
        self.perform(Act(query, lambda model, _: model.discard(ids, reason), ended))

    def end_cancelled(self) -> None:
        ask(self.db, end_cancelled())
        self.model.end_cancelled()

    def report(self, pick: int, past: bool, value: float) -> None:
        for job in self.attempts([pick], past):
            held = self.model.held([(job.id, job.token)])
            assert ask(self.db, report_progress(job.id, job.token, value, "so far")) == bool(held)
            assert ask(self.db, save_checkpoint(job.id, job.token, json.dumps({"page": value}))) == bool(held)
            for row in held:
                row.progress, row.saved = value, {"page": value}

    def give_back(self, pick: int, past: bool, whose: int | None) -> None:
        for job in self.attempts([pick], past):
            member = dict(self.taken)[job] if whose is None else chosen(self.knows, whose)
            assert ask(self.db, give_back_claim(member, job.token)) == self.model.give_back(member, job.token)

    # What anyone may ask

    def look(self, pick: int, queues: list[str] | None) -> None:
        member = chosen(self.knows, pick)
        running = self.model.running(member)

        lanes = ask(self.db, find_lanes(queues)).lanes
        assert lanes == ask(self.db, revisit_lanes({(each.queue, each.priority): each.start for each in lanes})).lanes
        assert lanes == sorted(lanes, key=lambda lane: -lane.priority)
        assert set(lanes) == {lane for lane in self.model.lanes() if queues is None or lane.queue in queues}
        assert ask(self.db, find_chores(member)).held == {row.token for row in running}
        taken = [job for job, _ in self.taken]
        attempts = [(job.id, job.token) for job in taken]
        held = self.model.held(attempts)
        unwanted = ask(self.db, find_unwanted(attempts))
        assert unwanted.cancelled == {row.attempt_key for row in held if row.marked}
        assert unwanted.void == set(attempts) - {row.attempt_key for row in held}
        assert ask(self.db, find_settled(taken)).keys() == self.model.settled

    # What must hold

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        jobs = self.db.execute(STORED, prepare=True).fetchall()
        attempts = self.db.execute("select job_id, attempt, token, outcome from rota.attempts", prepare=True).fetchall()

        # each job in one place, each attempt that failed or was lost on record once and under a number of its own
        assert jobs == [row.stored for _, row in sorted(self.model.rows.items())]
        assert sorted(attempts) == sorted(self.model.attempts)
        assert len({attempt[:2] for attempt in attempts}) == len(attempts)

    def teardown(self) -> None:
        """Whatever happened, all that is left can be done."""
        if sys.exc_info()[0] is not None:
            return
        for place, member in enumerate(self.knows):
            self.look(place, None)
            self.leave(member)
        self.perform(self.rescuing())
        self.end_cancelled()
        self.advance(86400)
        self.join({"a": 3, "b": 3})
        while self.model.live():
            before = len(self.model.live())
            self.claim_suspect(0, None, 9)
            self.claim(0, 4, 0, None)
            self.write(["succeeded"] * 5, self.attempts(range(5), past=False), "batch")
            assert len(self.model.live()) < before
            self.everything_is_as_it_should_be()
        self.look(0, None)

    # How it is done

    def leave(self, member: UUID) -> None:
        ask(self.db, leave_member(member))
        self.model.ended.add(member)

    def member(self, pick: int) -> UUID:
        """One that is alive or, now and then, one that has ended."""
        if not self.knows.keys() - self.model.ended:
            self.join({"a": 3, "b": 3})
        live = [member for member in self.knows if member not in self.model.ended]
        return cast(UUID, chosen(self.knows if pick > 90 else live, pick))

    def rescue_one_by_one(self) -> None:
        expected = self.model.rescue(NONE_LOCKED)
        told = set()
        for _ in range(len(expected) + 1):
            rescued = ask(self.db, rescue(CHANNEL, limit=1, lost_limit=LOST_LIMIT))
            assert len(rescued) <= 1
            told |= {(job.id, job.task, job.attempt, job.member, job.fate) for job in rescued}
        assert told == expected

    def write(self, kinds: Sequence[str], jobs: Sequence[ClaimedJob], way: str) -> None:
        """Write down what became of these attempts: all at once, or one by one."""
        if way == "one by one":
            for kind, job in zip(kinds, jobs, strict=False):
                self.write([kind], [job], "alone")
            return
        which = list(zip(kinds, jobs, strict=False))
        succeeded = [Succeeded(job, '{"b": 2}', 0.5) for kind, job in which if kind == "succeeded"]
        others = [OUTCOMES[kind](job) for kind, job in which if kind != "succeeded"]
        if succeeded and way == "alone":
            job = succeeded[0].job
            query = succeed_one(job.id, job.token, succeeded[0].result, 0.5)
            self.perform(Act(query, lambda model, _: bool(model.succeed(succeeded))))
        elif succeeded:
            self.perform(self.succeeding(succeeded))
        if others:
            query = settle(others, CHANNEL, lost_limit=LOST_LIMIT)
            self.perform(Act(query, lambda model, _: model.settle(others), lambda told: {tuple(each) for each in told}))

    def act(self, what: str, member: UUID, limit: int, pick: int) -> Act:
        if what == "claim":
            return self.claiming(member, limit, pick, None)
        if what == "suspect":
            return self.claiming_suspect(member, None, 9)
        if what == "rescue":
            return self.rescuing()
        if what == "cancel":
            return self.cancelling(self.ids([pick]), None)
        held = [row.claimed for row in self.model.running()][:limit]
        return self.succeeding([Succeeded(job, None, 0.1) for job in held])

    def claiming(self, member: UUID, limit: int, turn: int, behind: int | None) -> Act:
        lanes = [lane for lane in self.model.lanes() if lane.due_in <= 0]
        turned = lanes[turn % len(lanes) :] + lanes[: turn % len(lanes)] if lanes else []
        start = None
        if behind is not None and self.model.queued():
            row = chosen(self.model.queued(), behind)
            start = Start(row.due_at, row.id)
        walk = [(lane, start) for lane in sorted(turned, key=lambda lane: -lane.priority)]
        token, knows = next(self.tokens), self.knows[member]
        return Act(
            claim(lanes=walk, tasks=knows, limit=limit, token=token, member=member),
            lambda model, locked: sorted(model.claim(walk, knows, limit, token, member, locked)),
            sorted,
        )

    def claiming_suspect(self, member: UUID, queues: list[str] | None, most_losses: int) -> Act:
        token, knows = next(self.tokens), self.knows[member]
        return Act(
            claim_suspect(queues=queues, most_losses=most_losses, tasks=knows, token=token, member=member),
            lambda model, locked: model.claim_suspect(queues, most_losses, knows, token, member, locked),
        )

    def rescuing(self) -> Act:
        return Act(
            rescue(CHANNEL, lost_limit=LOST_LIMIT),
            lambda model, locked: model.rescue(locked),
            lambda rescued: {(job.id, job.task, job.attempt, job.member, job.fate) for job in rescued},
        )

    def cancelling(self, ids: Collection[int], reason: str | None) -> Act:
        return Act(cancel_jobs(list(ids), reason, CHANNEL), lambda model, _: model.cancel(ids, reason), ended)

    def succeeding(self, outcomes: Sequence[Succeeded]) -> Act:
        return Act(succeed(outcomes), lambda model, _: model.succeed(outcomes))

    def perform(self, act: Act, db: Db | None = None, locked: Collection[int] = NONE_LOCKED) -> Any:
        told = act.told(ask(db or self.db, act.query))
        assert told == act.expect(self.model, locked)
        return told

    def take(self, act: Act, member: UUID, locked: Collection[int] = NONE_LOCKED) -> None:
        self.keep(self.perform(act, locked=locked), member)

    def keep(self, told: Any, member: UUID) -> None:
        self.taken += [(job, member) for job in told if isinstance(job, ClaimedJob)]

    def attempts(self, picks: Sequence[int], past: bool) -> list[ClaimedJob]:
        """Some attempts: such that have their claim or, of the past, often such whose job someone else has by now."""
        held = [job for job, _ in self.taken if self.model.held([(job.id, job.token)])]
        runs = {job.id for job in held}
        lost = [job for job, _ in self.taken if job.id in runs and job not in held]
        ways = [lost, lost + held, []] if past else [held]
        jobs = chosen(ways, picks[0]) or [job for job, _ in self.taken]
        return list(dict.fromkeys(chosen(jobs, pick) for pick in picks if jobs))

    def ids(self, picks: Sequence[int]) -> set[int]:
        """Some jobs: half of the time such as have not ended."""
        rows = [row.id for row in self.model.live()] if picks[0] % 2 else list(self.model.rows)
        return {chosen(rows, pick) for pick in picks if rows}


def chosen(among: Collection[Any], pick: int) -> Any:
    return list(among)[pick % len(among)]


def ended(told: Iterable[Any]) -> set[tuple[int, str]]:
    return {(each.id, each.state) for each in told}


@pytest.mark.one_server
@pytest.mark.timeout(0 if EXAMPLES else 120)
# A few examples each: with more, Hypothesis would spend most of them on variants of one.
@pytest.mark.parametrize(
    "part", [0] if EXAMPLES else [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 10))]
)
def test_the_queue_does_what_its_model_does(direct_database: str, rota_database: str, part: int) -> None:
    with psycopg.connect(direct_database, autocommit=True) as admin:
        # nobody here may wait for a lock, so one that is waited for is an error and not a hang
        admin.execute(f"alter database {admin.info.dbname} set lock_timeout = '1s'")
    # a clock that moves only when told
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    with (
        psycopg.connect(rota_database, autocommit=True) as db,
        psycopg.connect(rota_database, autocommit=True) as other,
    ):
        db.execute(
            "create or replace function rota.now() returns timestamptz language sql stable parallel safe "
            f"return (select timestamptz '{noon.isoformat()}' + clock.shift from rota.test_clock as clock)"
        )

        def emptied() -> Queue:
            db.execute(
                "delete from rota.jobs; delete from rota.history; delete from rota.dead; delete from rota.attempts; "
                "delete from rota.uniques; delete from rota.members; update rota.test_clock set shift = '0'; "
                "alter sequence rota.jobs_id_seq restart",
                prepare=False,
            )
            return Queue(db, other, noon)

        machine = emptied if EXAMPLES else seed(part)(emptied)
        run_state_machine_as_test(machine, settings=SETTINGS)  # type: ignore[no-untyped-call]
