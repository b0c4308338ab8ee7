"""Chains against a model of them, in any order that Hypothesis can think of: every join comes exactly once.

The model is the promise in plain Python: what became of each job, which batches lost one since they were last looked at, and
what becomes of those that wait when they are. Each step runs the real statements on a real PostgreSQL, some while another
transaction is under way; then the tables must be as the model says, with what each job was given.

By default it runs a few examples that are always the same. `ROTA_MODEL_EXAMPLES=1000` runs so many random ones instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.jobs.statements import CHANNEL, Db, ask, join

from rota import Rota, group
from rota.failure import Failure
from rota.jobs.cancel import cancel_jobs, discard_jobs
from rota.jobs.chains import Chain, Plan, plan, put_plan
from rota.jobs.claim import ClaimedJob
from rota.jobs.close import close_batches
from rota.jobs.job import OnFailure, Owner
from rota.jobs.outcome import Buried, Cancelled, Lost, Retried, Succeeded
from rota.jobs.resolve import acknowledge_letter, retry_letter
from rota.jobs.settle import settle, succeed
from rota.postgres.query import Steps

EXAMPLES = int(os.environ.get("ROTA_MODEL_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 8,
    stateful_step_count=40,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, *([Phase.shrink] if EXAMPLES else [])],
    suppress_health_check=list(HealthCheck),
)
FAILURE = Failure("ValueError", "no", "trace")

app = Rota("dbname=nowhere")


@app.task(name="taking")
def taking(given: Any = None) -> Any: ...


@app.task(name="deaf")
def deaf() -> Any: ...


# Graphs, as a user writes them

POLICIES: st.SearchStrategy[OnFailure] = st.sampled_from(["block", "block", "cancel", "run"])
CALLS = st.sampled_from([taking, taking, deaf]).map(lambda task: task.bind())


def followed(nodes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A node with another behind it: a job, a group of jobs, or several behind one, joined again."""
    ones = st.tuples(nodes, CALLS, POLICIES).map(lambda said: said[0].then(said[1], on_failure=said[2]))
    joins = st.tuples(st.lists(nodes, min_size=1, max_size=3), CALLS, POLICIES).map(
        lambda said: group(said[0]).then(said[1], on_failure=said[2])
    )
    fans = st.tuples(nodes, st.lists(st.tuples(CALLS, POLICIES), min_size=2, max_size=3), CALLS, POLICIES).map(
        lambda said: group([said[0].then(call, on_failure=policy) for call, policy in said[1]]).then(
            said[2], on_failure=said[3]
        )
    )
    return ones | joins | fans


GRAPHS = st.recursive(CALLS, followed, max_leaves=5).filter(lambda node: isinstance(node, Chain))


@dataclass
class Node:
    """A job as it should be. `gave` is what it returned."""

    id: int
    state: str
    batch: int | None
    after: int | None
    takes: str | None
    gave: Any = None
    given: Any = None
    put_away: bool = False
    retried: bool = False
    place: int = 0


@dataclass
class Model:
    nodes: dict[int, Node] = field(default_factory=dict)
    #: by the id of a way to wait: the batch, what it gives, and what becomes of those who wait when a job fails
    ways: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    closings: set[int] = field(default_factory=set)

    def members(self, batch: int) -> list[Node]:
        """Those that count, in the order written: not the letters in whose place another stands."""
        found = [node for node in self.nodes.values() if node.batch == batch and not node.retried]
        return sorted(found, key=lambda node: node.place)

    def live(self, batch: int) -> bool:
        return any(node.state in ("queued", "blocked", "running") for node in self.members(batch))

    def end(self, id: int, state: str, gave: Any = None) -> None:
        node = self.nodes[id]
        node.state, node.gave = state, gave
        if node.batch is not None:
            self.closings.add(node.batch)

    def close(self) -> int:
        """What one look does; returns how many batches had ended."""
        looked = [batch for batch in sorted(self.closings) if not self.live(batch)]
        self.closings = set()
        fates = [
            (node, self.fate(batch, policy), self.given(batch, gives))
            for batch in looked
            for way, (of, gives, policy) in self.ways.items()
            if of == batch
            for node in self.nodes.values()
            if node.after == way and node.state == "blocked"
        ]
        for node, fate, given in fates:
            if fate == "queued":
                node.state, node.after, node.given = "queued", None, given if node.takes else None
            elif fate == "cancelled":
                self.end(node.id, "cancelled")
        return len(looked)

    def fate(self, batch: int, policy: str) -> str:
        members = self.members(batch)
        if policy == "run" or all(node.state == "succeeded" for node in members):
            return "queued"
        if policy == "cancel" or any(node.state == "cancelled" or node.put_away for node in members):
            return "cancelled"
        return "blocked"

    def given(self, batch: int, gives: str) -> Any:
        results = [node.gave for node in self.members(batch)]
        return (
            {"takes": "given", "results": results} if gives == "results" else {"takes": "given", "result": results[0]}
        )


def run_steps(db: Db, steps: Steps[Any]) -> Any:
    answer = None
    with db.transaction():
        while True:
            try:
                answer = ask(db, steps.send(answer))
            except StopIteration as end:
                return end.value


STORED = """
    select id, state, after, inputs from rota.jobs
    union all
    select id, state, null, null from rota.history
    union all
    select id, 'dead', null, null from rota.dead
    order by id
"""


class Chains(RuleBasedStateMachine):
    def __init__(self, db: Db, other: Db) -> None:
        super().__init__()
        self.db = db
        self.other = other
        self.model = Model()
        self.member = join(db)
        self.token = 0

    @initialize(graph=GRAPHS)
    def begin(self, graph: Any) -> None:
        self.enqueue(graph)

    @rule(graph=GRAPHS)
    def enqueue(self, graph: Any) -> None:
        if len(self.model.nodes) > 40:
            return
        planned: Plan = plan(graph)
        put = run_steps(self.db, put_plan(planned, cast(Owner, None)))
        for place, job in enumerate(put.jobs):
            batch, after = (
                None if at is None else put.batches[at] for at in (planned.batch[place], planned.after[place])
            )
            self.model.nodes[job.id] = Node(job.id, job.state, batch, after, planned.jobs[place].takes, place=job.id)
        for id, wait in zip(put.batches, planned.waits, strict=True):
            of = id if wait.of is None else put.batches[wait.of]
            self.model.ways[id] = (of, wait.gives, wait.on_failure)

    @rule(
        pick=st.integers(0, 99),
        how=st.sampled_from(["succeeded"] * 4 + ["buried", "buried", "lost", "discarded", "retried"]),
    )
    def run(self, pick: int, how: str) -> None:
        for id in self.some("queued", pick):
            self.settle(self.db, id, how)()

    @rule(
        pick=st.integers(0, 99),
        how=st.sampled_from(["succeeded", "succeeded", "buried", "discarded"]),
        commits=st.booleans(),
    )
    def close_beside(self, pick: int, how: str, commits: bool) -> None:
        """Who looks while another settles sees none of it, and what it leaves is seen afterwards."""
        for id in self.some("queued", pick):
            claimed = self.claimed(id)
            with self.other.transaction(force_rollback=not commits):
                told = self.settle(self.other, id, how, claimed)
                self.close()
            if commits:
                told()
            else:
                self.db.execute(
                    "update rota.jobs set state = 'queued', token = null, member = null where id = %s", [id]
                )

    @rule(pick=st.integers(0, 99), commits=st.booleans())
    def settle_beside(self, pick: int, commits: bool) -> None:
        """Who settles while another looks leaves a closing that this one does not take."""
        for id in self.some("queued", pick):
            claimed = self.claimed(id)
            before = set(self.model.closings)
            with self.other.transaction(force_rollback=not commits):
                taken, ended, _ = ask(self.other, close_batches())
                told = self.settle(self.db, id, "succeeded", claimed)
            if commits:
                assert (taken > 0) == bool(before)
                assert self.model.close() == ended
            told()

    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        for id in self.some("queued", pick) or self.some("blocked", pick):
            ask(self.db, cancel_jobs([id], "not wanted", CHANNEL))
            self.model.end(id, "cancelled")

    @rule(pick=st.integers(0, 99), verb=st.sampled_from(["retry", "retry", "acknowledge", "discard"]))
    def decide(self, pick: int, verb: str) -> None:
        for id in self.some("dead", pick):
            node = self.model.nodes[id]
            if verb == "retry":
                new = run_steps(self.db, retry_letter(id, CHANNEL, "me"))
                node.retried = True
                self.model.nodes[new] = Node(new, "queued", node.batch, None, None, given=node.given, place=node.place)
                continue
            if verb == "acknowledge":
                run_steps(self.db, acknowledge_letter(id, "me", ""))
                node.put_away = True
            else:
                ask(self.db, discard_jobs([id], None, CHANNEL))
                node.state = "cancelled"
            if node.batch is not None:
                self.model.closings.add(node.batch)

    @rule()
    def close(self) -> None:
        taken, ended, _ = ask(self.db, close_batches())
        assert (taken > 0) == bool(self.model.closings)
        assert ended == self.model.close()

    @invariant()
    def the_tables_are_as_the_model_says(self) -> None:
        stored = {id: (state, after, inputs) for id, state, after, inputs in self.db.execute(STORED)}
        assert stored == {
            node.id: (
                node.state,
                node.after if node.state == "blocked" else None,
                node.given if node.state == "queued" else None,
            )
            for node in self.model.nodes.values()
        }

    def teardown(self) -> None:
        """When all that can run has run, and all letters are decided about, nothing waits for ever."""
        while self.model.closings or (waiting := self.some("queued", 0) or self.some("dead", 0)):
            if self.model.closings:
                self.close()
            elif self.model.nodes[waiting[0]].state == "dead":
                self.decide(self.letters().index(waiting[0]), "acknowledge")
            else:
                self.settle(self.db, waiting[0], "succeeded")()
            self.the_tables_are_as_the_model_says()
        assert self.some("blocked", 0) == []

    def letters(self) -> list[int]:
        return [
            node.id
            for node in self.model.nodes.values()
            if node.state == "dead" and not node.retried and not node.put_away
        ]

    def some(self, state: str, pick: int) -> list[int]:
        """One job in this state, if there is any."""
        among = self.letters() if state == "dead" else [n.id for n in self.model.nodes.values() if n.state == state]
        return [among[pick % len(among)]] if among else []

    def claimed(self, id: int) -> ClaimedJob:
        self.token += 1
        self.db.execute(
            "update rota.jobs set state = 'running', token = %s, member = %s, attempt = attempt + 1, claimed_at = now() "
            "where id = %s",
            [self.token, self.member, id],
        )
        return ClaimedJob(id, "default", "taking", 0, 1, 0, 0.0, "{}", self.token)

    def settle(self, db: Db, id: int, how: str, claimed: ClaimedJob | None = None) -> Callable[[], None]:
        """Settle the job; what is returned tells the model."""
        job = claimed or self.claimed(id)
        if how == "succeeded":
            assert ask(db, succeed([Succeeded(job, f'"by {id}"', 0.1)]))
            return lambda: self.model.end(id, "succeeded", f"by {id}")
        outcome, fate = {
            "buried": (Buried(job, FAILURE, 0.1), "dead"),
            "lost": (Lost(job, FAILURE, 0.1, 1), "dead"),
            "discarded": (Cancelled(job, 0.1, "no use"), "cancelled"),
            "retried": (Retried(job, FAILURE, 0.1, 0.0), "queued"),
        }[how]
        (settled,) = ask(db, settle([outcome], CHANNEL))
        assert settled.fate == fate
        return lambda: None if fate == "queued" else self.model.end(id, fate)


@pytest.fixture
def connections(direct_database: str, rota_database: str) -> Iterator[tuple[Db, Db]]:
    with psycopg.connect(direct_database, autocommit=True) as admin:
        # nobody here may wait for a lock, so one that is waited for is an error and not a hang
        admin.execute(f"alter database {admin.info.dbname} set lock_timeout = '1s'")
    with (
        psycopg.connect(rota_database, autocommit=True) as db,
        psycopg.connect(rota_database, autocommit=True) as other,
    ):
        yield db, other


@pytest.mark.one_server
@pytest.mark.timeout(0 if EXAMPLES else 120)
@pytest.mark.parametrize(
    "part", [0] if EXAMPLES else [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 6))]
)
def test_chains_do_what_their_model_does(connections: tuple[Db, Db], part: int) -> None:
    db, other = connections

    def emptied() -> Chains:
        db.execute(
            "delete from rota.jobs; delete from rota.history; delete from rota.dead; delete from rota.attempts; "
            "delete from rota.members; delete from rota.closings; delete from rota.batches",
            prepare=False,
        )
        return Chains(db, other)

    machine = emptied if EXAMPLES else seed(part)(emptied)
    run_state_machine_as_test(machine, settings=SETTINGS)  # type: ignore[no-untyped-call]
