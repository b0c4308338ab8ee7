"""Each pair of statements that can meet, in every order of their steps.

A statement and its commit are two steps, so that the other may come before, between and after; one that waits for a lock is
left waiting while the others go on. Nobody may get an error, and what each was told must be what is in the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.interleave import Sessions, Step, orders
from tests.jobs.statements import CHANNEL, Db, ask, commit, join, put, roll_back, step, unique

from rota import Retry, Unique
from rota.errors import JobExists
from rota.facts import ControlLost, DatabaseLost, JobClaimLost
from rota.failure import Failure
from rota.jobs.cancel import cancel_jobs, discard_jobs
from rota.jobs.claim import ClaimedJob, claim, claim_suspect, give_back_claim
from rota.jobs.job import NewJob, NewUnique
from rota.jobs.lanes import Lane
from rota.jobs.outcome import Buried, Cancelled, HandedBack, Lost, Retried, Snoozed, Succeeded
from rota.jobs.report import report_progress, save_checkpoint
from rota.jobs.rescue import rescue
from rota.jobs.settle import settle, succeed, succeed_one
from rota.jobs.worker import _PLANNING
from rota.leases.members import leave_member
from rota.postgres.query import Query
from rota.testing import TestRota

pytestmark = pytest.mark.long

ONE, TWO, GONE = UUID(int=1), UUID(int=2), UUID(int=9)
TASKS = {"t": 1}
FAILURE = Failure("ValueError", "no", "trace")
OUTCOMES: dict[str, Callable[[ClaimedJob], Query[Any]]] = {
    "succeeded": lambda job: succeed([Succeeded(job, None, 0.1)]),
    "succeeded in a transaction": lambda job: succeed_one(job.id, job.token, None, 0.1),
    "retried": lambda job: settle([Retried(job, FAILURE, 0.1, 0.0)], CHANNEL),
    "buried": lambda job: settle([Buried(job, FAILURE, 0.1)], CHANNEL),
    "lost": lambda job: settle([Lost(job, FAILURE, 0.1)], CHANNEL),
    "snoozed": lambda job: settle([Snoozed(job, 0.1, 60.0)], CHANNEL),
    "cancelled": lambda job: settle([Cancelled(job, 0.1)], CHANNEL),
    "handed back": lambda job: settle([HandedBack(job)], CHANNEL),
}
#: where the job goes if nothing comes between
STATES = {
    "succeeded": "succeeded",
    "succeeded in a transaction": "succeeded",
    "retried": "queued",
    "buried": "dead",
    "lost": "queued",
    "snoozed": "queued",
    "cancelled": "cancelled",
    "handed back": "queued",
}
every_outcome = pytest.mark.parametrize("kind", list(OUTCOMES))
every_conflict = pytest.mark.parametrize("conflict", ["return", "raise", "replace"])
every_strict_level = pytest.mark.parametrize("level", ["repeatable read", "serializable"])

Given = Callable[[Db], object]


class Stage:
    """A queue that is set up anew for every order of the steps that meet in it."""

    def __init__(self, db: Db, dsn: str, planning: Mapping[str, str]) -> None:
        self.db = db
        self.dsn = dsn
        self.planning = planning

    def play(self, *scripts: Sequence[Step], given: Given, may_wait: bool = True) -> Iterator[list[Any]]:
        """What the step before the commit of each script returned, for every order of all steps."""
        # rows are met in the order in which workers meet them
        how = {**self.planning, "lock_timeout": "10s" if may_wait else "1ms"}
        options = " ".join(f"-c {name}={value}" for name, value in how.items())
        sessions = Sessions(make_conninfo(self.dsn, options=options), len(scripts))
        try:
            for order in orders([len(script) for script in scripts]):
                self._clear()
                given(self.db)
                returned = sessions.run(scripts, order)
                self._check()
                yield [steps[-2] for steps in returned]
        finally:
            sessions.close()

    def have_others(self) -> None:
        """More jobs wait and run elsewhere, so many that these here are looked up by their ids."""
        self.db.execute(
            "insert into rota.jobs (id, task, queue, state, token, member) "
            "select id, 't', 'elsewhere', 'running', 1, gen_random_uuid() from generate_series(1001, 4000) as id; "
            "analyze rota.jobs"
        )

    def _clear(self) -> None:
        """Nothing here but two members, and one that has ended."""
        self.db.execute(
            "delete from rota.jobs where queue = 'default'; delete from rota.history; delete from rota.dead; "
            "delete from rota.attempts; delete from rota.uniques; delete from rota.members; "
            "alter sequence rota.jobs_id_seq restart"
        )
        for member in (ONE, TWO, GONE):
            join(self.db, member)
        ask(self.db, leave_member(GONE))

    def _check(self) -> None:
        """Every job is in one place, and each attempt that failed or was lost is on record once."""
        jobs = [id for id, *_ in self.rows()]
        attempts = self.db.execute("select job_id, attempt from rota.attempts").fetchall()
        assert len(set(jobs)) == len(jobs)
        assert len(set(attempts)) == len(attempts)

    def rows(self) -> list[tuple[Any, ...]]:
        """All jobs: id, state, token of who holds it, losses."""
        return self.db.execute(
            "select id, state, token, losses from rota.jobs where queue = 'default' "
            "union all select id, state, null, losses from rota.history "
            "union all select id, 'dead', null, losses from rota.dead order by id"
        ).fetchall()

    def states(self) -> list[str]:
        return [state for _, state, *_ in self.rows()]

    def column(self, name: str) -> list[Any]:
        """A column of the live jobs."""
        return [
            value for (value,) in self.db.execute(f"select {name} from rota.jobs where queue = 'default' order by id")
        ]

    def failures(self) -> int:
        return len(self.db.execute("select from rota.attempts").fetchall())


@pytest.fixture
def stage(direct_database: str, pytestconfig: pytest.Config) -> Iterator[Stage]:
    # what meets are sessions, which we must know apart; behind a pooler they are as here, but nobody has set them up
    planning = {} if pytestconfig.getoption("--pooled") else _PLANNING
    with psycopg.connect(direct_database, autocommit=True) as db:
        yield Stage(db, direct_database, planning)


@pytest.fixture
def callers(stage: Stage) -> Stage:
    """Where those meet who put jobs on connections of their own, which nobody has set up for it."""
    return Stage(stage.db, stage.dsn, planning={})


def queued(count: int, losses: int = 0) -> Given:
    jobs = "insert into rota.jobs (task, losses) select 't', %s from generate_series(1, %s)"
    return lambda db: db.execute(jobs, [losses, count])


def running(count: int, *, member: UUID = GONE) -> Given:
    """Jobs that a member holds under token 7: one that has ended, if nothing else is said."""
    jobs = (
        "insert into rota.jobs (task, state, token, member, attempt, claimed_at) "
        "select 't', 'running', 7, %s, 1, rota.now() from generate_series(1, %s)"
    )
    return lambda db: db.execute(jobs, [member, count])


def held(id: int) -> ClaimedJob:
    """One of them as its holder knows it."""
    return ClaimedJob(id, "default", "t", 0, 1, 0, 0.0, "{}", 7)


def claiming(member: UUID, limit: int = 10) -> Query[Any]:
    return claim(lanes=[(Lane("default", 0, 0.0), None)], tasks=TASKS, limit=limit, token=member.int, member=member)


def claiming_suspect(member: UUID) -> Query[Any]:
    return claim_suspect(queues=None, most_losses=9, tasks=TASKS, token=member.int, member=member)


def putting(*new: NewJob) -> Step:
    """Id, whether it was there before, and state of each job; who minds learns of the one in the way by its error."""

    def run(connection: Db) -> Any:
        try:
            return [(job.id, job.existing, job.state) for job in ask(connection, put(*new))]
        except JobExists as error:
            there: Any = error.job
            return [(there.id, True, there.state)]

    return run


def ids(jobs: Sequence[Any]) -> list[int]:
    return sorted(job.id for job in jobs)


def test_two_claims_never_take_the_same_job_and_none_waits_for_the_other(stage: Stage) -> None:
    one, two = [step(claiming(ONE, limit=2)), commit], [step(claiming(TWO, limit=2)), commit]
    for first, second in stage.play(one, two, given=queued(3), may_wait=False):
        assert sorted([ids(first), ids(second)]) == [[1, 2], [3]]
        assert {(job.id, "running", job.token, 0) for job in [*first, *second]} == set(stage.rows())


def test_a_claim_that_is_rolled_back_leaves_its_jobs_to_the_next(stage: Stage) -> None:
    one, two = [step(claiming(ONE, limit=2)), roll_back], [step(claiming(TWO, limit=2)), commit]
    for _, taken in stage.play(one, two, given=queued(3), may_wait=False):
        left = {(id, "queued", None, 0) for id in (1, 2, 3) if id not in ids(taken)}
        assert ids(taken) in ([1, 2], [3])
        assert {(job.id, "running", job.token, 0) for job in taken} | left == set(stage.rows())


def test_two_claims_of_suspects_take_one_each_and_none_waits_for_the_other(stage: Stage) -> None:
    one, two = [step(claiming_suspect(ONE)), commit], [step(claiming_suspect(TWO)), commit]
    for first, second in stage.play(one, two, given=queued(2, losses=1), may_wait=False):
        assert sorted([ids(first), ids(second)]) == [[1], [2]]
        assert {(job.id, "running", job.token, 1) for job in [*first, *second]} == set(stage.rows())


def test_what_is_rescued_is_claimed_once_and_as_a_suspect_only(stage: Stage) -> None:
    rescues = [step(rescue(CHANNEL)), commit]
    fresh, suspect = [step(claiming(ONE)), commit], [step(claiming_suspect(TWO)), commit]
    for rescued, nothing, claimed in stage.play(rescues, fresh, suspect, given=running(1), may_wait=False):
        assert ids(rescued) == [1]
        assert nothing == []
        assert stage.rows() == [(1, "running", TWO.int, 1) if claimed else (1, "queued", None, 1)]


def test_two_rescues_take_over_a_job_once_and_none_waits_for_the_other(stage: Stage) -> None:
    rescues = [step(rescue(CHANNEL)), commit]
    for one, two in stage.play(rescues, rescues, given=running(2), may_wait=False):
        assert sorted([ids(one), ids(two)]) == [[], [1, 2]]
        assert stage.rows() == [(1, "queued", None, 1), (2, "queued", None, 1)]
        assert stage.failures() == 2


def test_what_a_member_claims_while_it_is_ended_is_rescued_sooner_or_later(stage: Stage) -> None:
    claims, ends = [step(claiming(ONE)), commit], [step(leave_member(ONE)), commit]
    rescues = [step(rescue(CHANNEL)), commit]
    for claimed, _, rescued in stage.play(claims, ends, rescues, given=queued(1)):
        later = ask(stage.db, rescue(CHANNEL))

        assert ids(claimed) == ids([*rescued, *later])
        assert stage.rows() == [(1, "queued", None, len(claimed))]


@every_outcome
def test_an_outcome_and_a_rescue_never_both_count(stage: Stage, kind: str) -> None:
    settles, rescues = [step(OUTCOMES[kind](held(1))), commit], [step(rescue(CHANNEL)), commit]
    for settled, rescued in stage.play(settles, rescues, given=running(1)):
        assert bool(settled) != bool(rescued)
        assert stage.states() == [STATES[kind] if settled else "queued"]
        assert stage.failures() == (rescued != [] or kind in ("retried", "buried", "lost"))


@every_outcome
def test_an_outcome_that_is_rolled_back_is_rescued_sooner_or_later(stage: Stage, kind: str) -> None:
    settles, rescues = [step(OUTCOMES[kind](held(1))), roll_back], [step(rescue(CHANNEL)), commit]
    for _, rescued in stage.play(settles, rescues, given=running(1)):
        later = ask(stage.db, rescue(CHANNEL))

        assert ids([*rescued, *later]) == [1]
        assert stage.rows() == [(1, "queued", None, 1)]


@every_outcome
def test_a_settle_that_is_repeated_while_it_is_under_way_counts_once(stage: Stage, kind: str) -> None:
    settles = [step(OUTCOMES[kind](held(1))), commit]
    for one, two in stage.play(settles, settles, given=running(1)):
        assert bool(one) != bool(two)
        assert stage.states() == [STATES[kind]]


@every_outcome
def test_a_zombie_never_settles_the_next_attempt(stage: Stage, kind: str) -> None:
    settles, rescues = [step(OUTCOMES[kind](held(1))), commit], [step(rescue(CHANNEL)), commit]
    claims = [step(claiming_suspect(ONE)), commit]
    for settled, rescued, claimed in stage.play(settles, rescues, claims, given=running(1)):
        assert bool(settled) != bool(rescued)
        assert stage.states() == ["running" if claimed else STATES[kind] if settled else "queued"]


@every_outcome
def test_a_job_whose_cancelling_was_accepted_is_never_queued_again(stage: Stage, kind: str) -> None:
    settles = [step(OUTCOMES[kind](held(1))), commit]
    cancels = [step(cancel_jobs([1], "not wanted", CHANNEL)), commit]
    for settled, told in stage.play(settles, cancels, given=running(1, member=ONE)):
        # success beats a wish that came too late; all else gives way to it
        expected = "cancelled" if told and STATES[kind] != "succeeded" else STATES[kind]
        assert settled
        assert stage.states() == [expected]
        assert [each.state for each in told] in ([], ["running"], [expected])
        assert told or expected != "queued"


def test_a_claim_and_a_cancel_agree_on_who_was_first(stage: Stage) -> None:
    claims, cancels = [step(claiming(ONE)), commit], [step(cancel_jobs([1], "not wanted", CHANNEL)), commit]
    for claimed, told in stage.play(claims, cancels, given=queued(1)):
        assert [each.state for each in told] == stage.states() == ["running" if claimed else "cancelled"]
        assert stage.column("cancel_reason") == (["not wanted"] if claimed else [])


def test_a_job_whose_claim_is_undone_after_it_was_cancelled_is_not_claimed_again(stage: Stage) -> None:
    """If another has it at the end, then because it was free before anyone wanted it to end."""
    stage.db.execute("""
        create function public.refuse() returns trigger language plpgsql
            as $$ begin raise 'what is to be cancelled was claimed'; end $$;
        create trigger refuse before update on rota.jobs for each row
            when (old.state = 'queued' and old.cancel_requested_at is not null and new.state = 'running')
            execute function public.refuse()
    """)
    undoes, cancels = [step(give_back_claim(ONE, 7)), commit], [step(cancel_jobs([1], None, CHANNEL)), commit]
    for undone, told, _ in stage.play(undoes, cancels, [step(claiming(TWO)), commit], given=running(1, member=ONE)):
        assert (undone, len(told)) == (1, 1)


def test_a_job_that_is_cancelled_while_it_is_rescued_ends(stage: Stage) -> None:
    rescues, cancels = [step(rescue(CHANNEL)), commit], [step(cancel_jobs([1], None, CHANNEL)), commit]
    for _, told in stage.play(rescues, cancels, given=running(1)):
        ask(stage.db, rescue(CHANNEL))

        assert len(told) == 1
        assert stage.states() == ["cancelled"]


@every_outcome
def test_a_discard_and_an_outcome_never_both_count(stage: Stage, kind: str) -> None:
    settles = [step(OUTCOMES[kind](held(1))), commit]
    discards = [step(discard_jobs([1], "not wanted", CHANNEL)), commit]
    for settled, told in stage.play(settles, discards, given=running(1, member=ONE)):
        was = [each.state for each in told]
        assert stage.states() == ["cancelled" if told else STATES[kind]]
        assert was in ([["queued"], ["dead"], []] if settled else [["running"]])
        # only what has settled for good is passed by
        assert told or STATES[kind] != "queued"


def test_what_an_attempt_reports_is_refused_once_its_job_is_rescued(stage: Stage) -> None:
    reports, rescues = [step(report_progress(1, 7, 0.5, "half")), commit], [step(rescue(CHANNEL)), commit]
    for accepted, rescued in stage.play(reports, rescues, given=running(1)):
        assert accepted or rescued
        assert stage.column("progress") == [None if rescued else 0.5]


def test_a_checkpoint_that_was_accepted_outlives_the_rescue(stage: Stage) -> None:
    saves, rescues = [step(save_checkpoint(1, 7, '{"page": 3}')), commit], [step(rescue(CHANNEL)), commit]
    for accepted, _ in stage.play(saves, rescues, given=running(1)):
        ask(stage.db, rescue(CHANNEL))

        assert stage.states() == ["queued"]
        assert stage.column("saved") == [{"page": 3} if accepted else None]


@every_conflict
def test_one_of_two_unique_jobs_is_put_and_the_other_learns_which(stage: Stage, conflict: str) -> None:
    puts = [putting(unique("k", conflict=conflict)), commit]
    for one, two in stage.play(puts, puts, given=queued(0)):
        assert sorted(one + two) == [(1, False, "queued"), (1, True, "queued")]
        assert stage.states() == ["queued"]


@every_conflict
def test_a_unique_job_that_is_rolled_back_keeps_nobody_out(stage: Stage, conflict: str) -> None:
    job = unique("k", conflict=conflict)
    for _, told in stage.play([putting(job), roll_back], [putting(job), commit], given=queued(0)):
        assert [existing for _, existing, _ in told] == [False]
        assert stage.states() == ["queued"]


@pytest.mark.long
def test_bulk_puts_of_the_same_keys_in_other_orders_never_wait_in_a_circle(stage: Stage) -> None:
    a, b, c = unique("a"), unique("b"), unique("c")
    scripts = [putting(a, b, c), commit], [putting(c, b, a), commit], [putting(b, a), commit]
    for one, two, three in stage.play(*scripts, given=queued(0)):
        keys = [id for id, *_ in one]
        assert [id for id, *_ in two] == [keys[2], keys[1], keys[0]]
        assert [id for id, *_ in three] == [keys[1], keys[0]]
        assert sum(not existing for _, existing, _ in one + two + three) == 3
        assert stage.states() == ["queued"] * 3


def test_who_replaces_a_job_that_is_being_claimed_learns_whether_it_did(stage: Stage) -> None:
    new = replace(unique("k", conflict="replace"), args='{"new": true}')
    claims = [step(claiming(ONE)), commit]
    for claimed, told in stage.play(claims, [putting(new), commit], given=lambda db: ask(db, put(unique("k")))):
        replaced = stage.column("args") == [{"new": True}]
        assert told == [(1, True, "queued" if replaced else "running")]
        assert [job.args for job in claimed] in ([], ['{"new": true}' if replaced else "{}"])
        assert stage.states() == ["running" if claimed else "queued"]


def collapsed(kind: str, keep: str, n: int) -> NewJob:
    """A call that a debounce or a throttle collapses with others."""
    period = {"hold": 3600.0} if kind == "throttle" else {}
    conflict = "return" if (kind, keep) == ("throttle", "first") else "replace"
    asked = NewUnique("k", ("queued", "blocked"), None, conflict, keep, **period)
    return NewJob("t", json.dumps({"n": n}), unique=asked, delay=None if kind == "throttle" else 0.0)


every_collapse = pytest.mark.parametrize(
    ("kind", "keep"), [(kind, keep) for kind in ("debounce", "throttle") for keep in ("first", "last")]
)


@every_collapse
def test_of_calls_that_are_collapsed_one_puts_the_job_and_the_others_learn_which(
    stage: Stage, kind: str, keep: str
) -> None:
    scripts = [[putting(collapsed(kind, keep, n)), commit] for n in (1, 2)]
    for one, two in stage.play(*scripts, given=queued(0)):
        first = 1 if one == [(1, False, "queued")] else 2
        assert sorted(one + two) == [(1, False, "queued"), (1, True, "queued")]
        assert stage.column("args") == [{"n": first if keep == "first" else 3 - first}]


@every_collapse
def test_a_call_that_is_rolled_back_collapses_with_none(stage: Stage, kind: str, keep: str) -> None:
    undone, done = [putting(collapsed(kind, keep, 1)), roll_back], [putting(collapsed(kind, keep, 2)), commit]
    for _, [(_, existing, _)] in stage.play(undone, done, given=queued(0)):
        assert not existing
        assert stage.column("args") == [{"n": 2}]


@every_collapse
def test_a_call_for_a_job_that_is_being_claimed_is_one_with_it_or_comes_after_it(
    stage: Stage, kind: str, keep: str
) -> None:
    claims, calls = [step(claiming(ONE)), commit], [putting(collapsed(kind, keep, 2)), commit]
    given = lambda db: ask(db, put(collapsed(kind, keep, 1)))  # noqa: E731
    for claimed, [(id, existing, state)] in stage.play(claims, calls, given=given):
        ran = [json.loads(job.args)["n"] for job in claimed]
        left = [value["n"] for value in stage.column("args")]
        if keep == "last":
            # the last call is never lost: it runs, or waits
            assert (ran, left) in (([2], [2]), ([], [2]), ([1], [1, 2]))
        if existing:
            assert id == 1
            assert state == "queued" or (kind, keep, state) == ("throttle", "first", "running")
            assert stage.states() == ["running" if claimed else "queued"]
        else:
            assert (id, ran, stage.states()) == (2, [1], ["running", "queued"])
            assert kind == "debounce" or keep == "last"
        if kind == "throttle" and not existing:
            began, due = stage.column("claimed_at")[0], stage.column("due_at")[1]
            assert due == began + timedelta(hours=1)


@pytest.mark.parametrize("outcome", list(OUTCOMES))
@every_collapse
def test_a_call_while_an_attempt_settles_is_never_lost_and_never_adds_two_that_wait(
    stage: Stage, kind: str, keep: str, outcome: str
) -> None:
    def given(db: Db) -> None:
        ask(db, put(collapsed(kind, keep, 1)))
        ask(db, replace(claiming(ONE), params={**claiming(ONE).params, "token": 7}))

    settles, calls = [step(OUTCOMES[outcome](held(1))), commit], [putting(collapsed(kind, keep, 2)), commit]
    for settled, [(id, existing, _)] in stage.play(settles, calls, given=given):
        assert settled
        assert id == (1 if existing else 2)
        assert len(stage.rows()) == id
        if (kind, keep) != ("throttle", "first"):
            assert {"n": 2} in stage.column("args") or (existing and keep == "first")


@every_outcome
def test_a_key_is_held_until_its_job_has_settled_and_by_one_job_only(stage: Stage, kind: str) -> None:
    def given(db: Db) -> None:
        ask(db, put(unique("k")))
        ask(db, replace(claiming(ONE), params={**claiming(ONE).params, "token": 7}))

    settles, puts = [step(OUTCOMES[kind](held(1))), commit], [putting(unique("k")), commit]
    for settled, [(id, existing, _)] in stage.play(settles, puts, given=given):
        assert settled
        assert stage.states() == ([STATES[kind]] if existing else [STATES[kind], "queued"])
        assert id == (1 if existing else 2)
        assert existing or STATES[kind] != "queued"


def in_the_way(id: int) -> list[Step]:
    """Holds up all who come to this job, so that they stand in the middle of their work."""
    return [lambda db: db.execute("select from rota.jobs where id = %s for update", [id]), commit]


# whoever takes 2, 3 and 1 in the order given is held up at 3, and whoever takes them from the end at 2
held_up = pytest.mark.parametrize(("ended", "left"), [([1, 2], 3), ([1, 3], 2)], ids=["at 3", "at 2"])


@held_up
@pytest.mark.parametrize("ends", [cancel_jobs, discard_jobs], ids=["cancel", "discard"])
@pytest.mark.parametrize("kind", ["succeeded", "retried"])
@pytest.mark.long
def test_jobs_that_are_ended_while_they_settle_in_another_order_never_wait_in_a_circle(
    stage: Stage, kind: str, ends: Callable[..., Query[Any]], ended: list[int], left: int
) -> None:
    stage.have_others()
    jobs = [held(id) for id in (2, 3, 1)]
    writes: Query[Any] = (
        succeed([Succeeded(job, None, 0.1) for job in jobs])
        if kind == "succeeded"
        else settle([Retried(job, FAILURE, 0.1, 0.0) for job in jobs], CHANNEL)
    )
    settles, stops = [step(writes), commit], [step(ends(ended, None, CHANNEL)), commit]
    for settled, told, _ in stage.play(settles, stops, in_the_way(left), given=running(3, member=ONE)):
        assert len(settled) + len(told) >= 3
        assert stage.states()[left - 1] == STATES[kind]


@held_up
@pytest.mark.long
def test_jobs_that_are_cancelled_while_they_are_replaced_in_another_order_never_wait_in_a_circle(
    stage: Stage, ended: list[int], left: int
) -> None:
    stage.have_others()
    a, b, c = [unique(key, conflict="replace") for key in "abc"]
    puts, cancels = [putting(b, c, a), commit], [step(cancel_jobs(ended, None, CHANNEL)), commit]
    for told, stopped, _ in stage.play(puts, cancels, in_the_way(left), given=lambda db: ask(db, put(a, b, c))):
        assert len(stopped) == 2
        assert [id for id, state, *_ in stage.rows() if state == "cancelled"] == ended
        assert told[(2, 3, 1).index(left)] == (left, True, "queued")


@pytest.mark.long
def test_keys_of_a_bulk_put_are_taken_before_the_first_of_its_jobs_is_put(stage: Stage) -> None:
    def given(db: Db) -> None:
        ask(db, put(unique("a"), unique("b")))
        ask(db, cancel_jobs([2], None, CHANNEL))

    bulk, single = [putting(unique("a", conflict="replace"), unique("b")), commit], [putting(unique("b")), commit]
    for told, other, _ in stage.play(bulk, single, in_the_way(1), given=given):
        assert told[1][0] == other[0][0]
        assert stage.states() == ["queued", "cancelled", "queued"]


def by_default(stage: Stage, level: str) -> None:
    """Have every new session of this database begin with this isolation."""
    stage.db.execute(f"alter database {stage.db.info.dbname} set default_transaction_isolation = '{level}'")


def teammate(dsn: str, failed: set[int]) -> TestRota:
    """An app like those of its peers. What is flaky fails once, whoever runs it."""
    app = TestRota(dsn)

    @app.task(name="report", unique=True)
    async def report(n: int) -> int:
        return n

    @app.task(name="flaky", retry=Retry(2, "constant", 0, jitter=False))
    async def flaky(n: int) -> int:
        if n not in failed:
            failed.add(n)
            raise ValueError("not yet")
        return n

    return app


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_the_default_isolation_of_the_database_changes_nothing_for_apps_and_workers(
    stage: Stage, rota_database: str, level: str
) -> None:
    by_default(stage, level)
    failed: set[int] = set()
    apps = [teammate(rota_database, failed) for _ in range(4)]

    def enqueue(app: TestRota) -> list[list[int]]:
        report, flaky = app.tasks["report"], app.tasks["flaky"]
        same = [report.enqueue_sync(n) for n in range(10)]
        many = app.enqueue_many_sync([report.bind(n) for n in range(19, -1, -1)])
        app.enqueue_many_sync([flaky.bind(apps.index(app) * 10 + n) for n in range(10)])
        later = [flaky.using(delay="1h").enqueue_sync(0) for _ in range(5)]
        return [[job.id for job in jobs] for jobs in (same, many, later)]

    def work(app: TestRota) -> list[Any]:
        with app.facts.recorded(DatabaseLost, ControlLost, JobClaimLost) as trouble:
            app.drain_sync()
        return trouble

    with ThreadPoolExecutor(8) as threads:
        put_by_each = list(threads.map(enqueue, apps))
        unwanted = [id for *_, later in put_by_each for id in later]
        working = threads.map(work, apps)
        cancelled = list(threads.map(lambda job: apps[0].jobs.cancel_sync(job).state, unwanted))
        trouble = [fact for facts in [*working, work(apps[0])] for fact in facts]

    assert trouble == []
    assert len({(tuple(same), tuple(many)) for same, many, _ in put_by_each}) == 1
    assert cancelled == ["cancelled"] * 20
    done = stage.db.execute("select task, state, attempt, count(*) from rota.history group by 1, 2, 3 order by 1, 2, 3")
    assert done.fetchall() == [
        ("flaky", "cancelled", 0, 20),
        ("flaky", "succeeded", 2, 40),
        ("report", "succeeded", 1, 20),
    ]
    assert stage.column("id") == []
    for app in apps:
        app.close_everywhere()


def refused(act: Step) -> Step:
    """None where PostgreSQL refuses, as it may at the stricter levels, and the caller is to begin anew."""

    def run(connection: Db) -> Any:
        try:
            return act(connection)
        except psycopg.errors.SerializationFailure:
            connection.rollback()
            return None

    return run


def look_around(connection: Db) -> None:
    """What comes later in this transaction may see things as they are now."""
    connection.execute("select 1")


@every_strict_level
def test_plain_jobs_of_callers_at_a_stricter_isolation_never_conflict(
    callers: Stage, rota_app: TestRota, level: str
) -> None:
    by_default(callers, level)
    task = rota_app.task(name="t")(lambda: None)
    puts = [look_around, lambda connection: task.on(connection).enqueue_sync(), commit]

    for one, two in callers.play(puts, puts, given=queued(0)):
        assert sorted(callers.column("id")) == sorted([one.id, two.id])


@every_strict_level
@every_conflict
@pytest.mark.long
def test_unique_jobs_of_callers_at_a_stricter_isolation_are_put_once_or_refused(
    callers: Stage, rota_app: TestRota, level: str, conflict: str
) -> None:
    by_default(callers, level)
    task = rota_app.task(name="t", unique=Unique(conflict=conflict))(lambda: None)  # type: ignore[arg-type]

    def enqueue(connection: Db) -> Any:
        try:
            return task.on(connection).enqueue_sync()
        except JobExists as error:
            return error.job

    puts = [look_around, refused(enqueue), refused(commit)]

    for one, two in callers.play(puts, puts, given=queued(0)):
        assert len(callers.column("id")) == 1
        assert {job.id for job in (one, two) if job} >= set(callers.column("id"))


@every_strict_level
def test_a_caller_at_a_stricter_isolation_replaces_a_job_or_is_refused_but_never_one_that_runs(
    callers: Stage, rota_app: TestRota, level: str
) -> None:
    by_default(callers, level)

    @rota_app.task(name="t", unique=Unique(by="k", conflict="replace"))
    def task(n: int) -> None: ...

    claims = [lambda db: db.execute("set transaction isolation level read committed"), step(claiming(ONE)), commit]
    puts = [look_around, refused(lambda connection: task.on(connection).enqueue_sync(2)), refused(commit)]

    for claimed, told in callers.play(claims, puts, given=lambda _: task.enqueue_sync(1)):
        (args,) = callers.column("args")
        assert [json.loads(job.args) for job in claimed] in ([], [args])
        assert args == {"n": 2 if told and told.state == "queued" else 1}
