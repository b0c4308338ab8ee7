"""Debounce and throttle against a model of what they promise, in any order of calls, attempts and moments.

Each step runs statements on a real PostgreSQL whose clock moves only when told, and asks the model what they should have
returned; then all jobs must be as the model says. Beside it stands the promise as users read it, which is checked on what
was seen: no two jobs of a throttled key begin within a period, and what is debounced begins when its calls have been quiet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any, cast
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.jobs.statements import CHANNEL, Db, ask, join
from tests.jobs.test_model import EXAMPLES, SETTINGS, chosen

from rota import Debounce, Rota, Throttle
from rota.failure import Failure
from rota.jobs.cancel import cancel_jobs
from rota.jobs.claim import ClaimedJob, Lane, claim
from rota.jobs.enqueue import put_jobs
from rota.jobs.job import NewJob, Owner
from rota.jobs.outcome import Buried, Retried, Succeeded
from rota.jobs.settle import settle, succeed

PERIOD = timedelta(seconds=10)
LONGEST = timedelta(seconds=25)
WAYS: dict[str, Any] = {
    "debounce, last": Debounce(PERIOD, by="key", longest=LONGEST),
    "debounce, first": Debounce(PERIOD, by="key", keep="first", longest=LONGEST),
    "throttle, first": Throttle(PERIOD, by="key"),
    "throttle, last": Throttle(PERIOD, by="key", keep="last"),
}
FAILURE = Failure("ValueError", "no", "trace")

KEYS = st.sampled_from("xy")
PICKS = st.integers(0, 99)


@pytest.mark.by_default("0-debounce, last", "0-throttle, first")
@dataclass
class Row:
    """A job as it should be."""

    id: int
    key: str
    text: int
    created_at: datetime
    due_at: datetime
    state: str = "queued"
    attempt: int = 0
    #: when it was claimed first, of those attempts that count
    began_at: datetime | None = None
    claimed_at: datetime | None = None
    forgotten: bool = False

    @property
    def stored(self) -> tuple[Any, ...]:
        return self.id, self.state, self.key, self.text, self.due_at, self.attempt


@dataclass
class Key:
    """What is known of the jobs of one key."""

    rows: list[Row] = field(default_factory=list)
    last: Row | None = None
    since: datetime = datetime(1, 1, 1, tzinfo=UTC)
    call: tuple[UUID, int] | None = None
    #: when each call came that put off the job that waits
    calls: list[datetime] = field(default_factory=list)


class Collapse(RuleBasedStateMachine):
    def __init__(self, db: Db, way: Any, noon: datetime) -> None:
        super().__init__()
        self.db, self.way, self.now = db, way, noon
        self.task = Rota("dbname=nowhere").task(name="t", unique=way)(lambda key, text: None)
        self.member = join(db)
        self.texts, self.ids, self.tokens = count(1), count(1), count(1)
        self.keys: dict[str, Key] = {key: Key() for key in "xy"}
        self.held: dict[int, ClaimedJob] = {}
        self.begun: dict[str, list[tuple[int, datetime]]] = {"x": [], "y": []}
        self.called: list[tuple[UUID, list[str], list[NewJob]]] = []

    # What callers do

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3))
    def call(self, keys: list[str]) -> None:
        call, new = uuid4(), [self.task.bind(key, next(self.texts)) for key in keys]
        self.called.append((call, keys, new))

        told = self.put(new, call)

        assert told == [
            self.expect(key, each, (call, turn)) for turn, (key, each) in enumerate(zip(keys, new, strict=True))
        ]

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3))
    def call_and_roll_back(self, keys: list[str]) -> None:
        with self.db.transaction(force_rollback=True):
            self.put([self.task.bind(key, 0) for key in keys], uuid4())
        self.db.execute("select setval('rota.jobs_id_seq', greatest(1, %s), %s)", self.last_id())

    @rule()
    def repeat(self) -> None:
        """The last call again, whose reply was lost: it finds its jobs, whatever became of them, and changes nothing."""
        if self.called:
            call, keys, new = self.called[-1]
            owners = {key: self.keys[key].call for key in keys}
            if all(owner is not None and owner[0] == call for owner in owners.values()):
                told = self.put(new, call)
                assert [id for id, *_ in told] == [cast(Row, self.keys[key].last).id for key in keys]

    # What workers and people do

    @rule(seconds=st.sampled_from([1, 3, 9, 10, 11, 30]))
    def advance(self, seconds: int) -> None:
        self.db.execute("update rota.test_clock set shift = shift + %s * interval '1 second'", [seconds])
        self.now += timedelta(seconds=seconds)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        due = sorted(
            (row for row in self.rows() if row.state == "queued" and row.due_at <= self.now),
            key=lambda row: (row.due_at, row.id),
        )
        query = claim(
            lanes=[(Lane("default", 0, 0.0), None)],
            tasks={"t": 1},
            limit=limit,
            token=next(self.tokens),
            member=self.member,
        )

        claimed = ask(self.db, query)

        assert sorted(job.id for job in claimed) == sorted(row.id for row in due[:limit])
        for job in claimed:
            row = self.row(job.id)
            assert json.loads(job.args) == {"key": row.key, "text": row.text}
            row.state, row.attempt, row.claimed_at = "running", row.attempt + 1, self.now
            if row.began_at is None:
                row.began_at = self.now
                self.begun[row.key].append((row.id, self.now))
                self.check_begin(row)
            self.held[job.id] = job

    @rule(pick=PICKS, kind=st.sampled_from(["succeeded", "retried", "buried"]))
    def settle(self, pick: int, kind: str) -> None:
        if not self.held:
            return
        job = self.held.pop(chosen(self.held, pick))
        row = self.row(job.id)
        assert row.claimed_at is not None
        took = (self.now - row.claimed_at).total_seconds()
        if kind == "succeeded":
            ask(self.db, succeed([Succeeded(job, None, took)]))
            row.state = "succeeded"
        elif kind == "retried":
            ask(self.db, settle([Retried(job, FAILURE, took, 12.0)], CHANNEL))
            row.state, row.due_at = "queued", self.now + timedelta(seconds=12)
        else:
            ask(self.db, settle([Buried(job, FAILURE, took)], CHANNEL))
            row.state = "dead"

    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        if waiting := [row for row in self.rows() if row.state == "queued"]:
            row = chosen(waiting, pick)
            ask(self.db, cancel_jobs([row.id], None, CHANNEL))
            row.state = "cancelled"

    @rule()
    def forget(self) -> None:
        """History and attempts are dropped by their age."""
        gone = [row for row in self.rows() if row.state == "succeeded"]
        ids = [row.id for row in gone]
        self.db.execute("delete from rota.history where id = any (%s)", [ids])
        self.db.execute("delete from rota.attempts where job_id = any (%s)", [ids])
        for row in gone:
            row.forgotten = True

    # What must hold

    @invariant()
    def every_job_is_as_it_should_be(self) -> None:
        stored = self.db.execute(
            "select id, state, args ->> 'key', (args ->> 'text')::integer, due_at, attempt from rota.jobs "
            "union all select id, state, args ->> 'key', (args ->> 'text')::integer, due_at, attempt from rota.history "
            "union all select id, 'dead', args ->> 'key', (args ->> 'text')::integer, due_at, attempt from rota.dead "
            "order by id"
        ).fetchall()
        assert stored == [row.stored for row in self.rows() if not row.forgotten]

    @invariant()
    def at_most_one_of_a_key_waits_to_begin(self) -> None:
        for key in self.keys.values():
            assert sum(row.state == "queued" and row.attempt == 0 for row in key.rows) <= 1

    def check_begin(self, row: Row) -> None:
        if isinstance(self.way, Throttle):
            # what has been forgotten counts from when it was due
            moments = [moment for id, moment in self.begun[row.key] if id == row.id or not self.row(id).forgotten]
            assert all(two - one >= PERIOD for one, two in pairwise(moments))
        elif self.keys[row.key].last is row:
            calls = self.keys[row.key].calls
            assert self.now >= min(calls[-1] + PERIOD, calls[0] + LONGEST)
            assert row.due_at == min(calls[-1] + PERIOD, calls[0] + LONGEST)

    # How it is done

    def put(self, new: list[NewJob], call: UUID) -> list[tuple[int, bool, datetime]]:
        jobs = ask(self.db, put_jobs(new, cast(Owner, Nobody()), call=call))
        return [(job.id, job.existing, job.due_at) for job in jobs]

    def rows(self) -> list[Row]:
        return sorted((row for key in self.keys.values() for row in key.rows), key=lambda row: row.id)

    def row(self, id: int) -> Row:
        return next(row for row in self.rows() if row.id == id)

    def last_id(self) -> list[Any]:
        last = max((row.id for row in self.rows()), default=0)
        return [last, last > 0]

    def expect(self, name: str, new: NewJob, call: tuple[UUID, int]) -> tuple[int, bool, datetime]:
        """What a call is told, by the model."""
        key, text = self.keys[name], json.loads(new.args)["text"]
        waiting = [row for row in key.rows if row.state == "queued"]
        if isinstance(self.way, Debounce):
            found = self.debounce(key, waiting[-1], text) if waiting else None
            due_at, since = self.now + PERIOD, self.now
        else:
            found, due_at = self.throttle(key, [row for row in waiting if row.attempt == 0], text)
            since = due_at
            if found is not None and (self.way.keep == "first" or found.state != "queued"):
                return found.id, True, self.due(found)
        key.call = call
        if found is not None:
            key.last = found
            return found.id, True, found.due_at
        row = Row(next(self.ids), name, text, self.now, due_at)
        key.rows.append(row)
        key.last, key.since, key.calls = row, since, [self.now]
        return row.id, False, row.due_at

    def due(self, row: Row) -> datetime:
        return row.created_at if row.forgotten else row.due_at

    def debounce(self, key: Key, row: Row, text: int) -> Row:
        if row.attempt > 0:
            row.attempt, row.began_at, row.text = 0, None, text
            row.due_at, key.since, key.calls = self.now + PERIOD, self.now, [self.now]
            self.begun[row.key] = [each for each in self.begun[row.key] if each[0] != row.id]
            return row
        if row is not key.last:
            key.calls = [row.created_at]
        key.calls.append(self.now)
        first = max(key.since, row.created_at)
        row.due_at = min(max(self.now + PERIOD, row.due_at), first + LONGEST)
        row.text = text if self.way.keep == "last" else row.text
        return row

    def throttle(self, key: Key, waiting: list[Row], text: int) -> tuple[Row | None, datetime]:
        if waiting:
            row = waiting[-1]
            row.text = text if self.way.keep == "last" else row.text
            return row, self.now
        if key.last is None:
            return None, self.now
        unused = key.last.state == "cancelled" and key.last.attempt == 0
        began_at = None if key.last.forgotten else key.last.began_at
        free_at = max(key.since, began_at or key.since) + (timedelta(0) if unused else PERIOD)
        if unused or free_at <= self.now or self.way.keep == "last":
            return None, max(self.now, free_at)
        return key.last, self.now


class Nobody:
    """Whose jobs these are: only asked which arguments to hide."""

    codec = None

    def redacted(self, task: str) -> tuple[str, ...]:
        return ()


@pytest.mark.one_server
@pytest.mark.timeout(0 if EXAMPLES else 120)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "part", [0] if EXAMPLES else [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 5))]
)
def test_calls_are_collapsed_as_the_model_says(rota_database: str, way: str, part: int) -> None:
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "create or replace function rota.now() returns timestamptz language sql stable parallel safe "
            f"return (select timestamptz '{noon.isoformat()}' + clock.shift from rota.test_clock as clock)"
        )

        def emptied() -> Collapse:
            db.execute(
                "delete from rota.jobs; delete from rota.history; delete from rota.dead; delete from rota.attempts; "
                "delete from rota.uniques; delete from rota.members; update rota.test_clock set shift = '0'; "
                "alter sequence rota.jobs_id_seq restart",
                prepare=False,
            )
            return Collapse(db, WAYS[way], noon)

        machine = emptied if EXAMPLES else seed(part)(emptied)
        run_state_machine_as_test(machine, settings=SETTINGS)  # type: ignore[no-untyped-call]
