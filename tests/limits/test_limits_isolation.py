"""Those who meet at a line or at the row of a queue, in every order of their steps: see tests/jobs/test_isolation.py."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.interleave import Sessions, Step, at_once, orders
from tests.jobs.statements import CHANNEL, Db, ask, commit, join, put, roll_back, step

from rota import Limit
from rota.failure import Failure
from rota.jobs.cancel import cancel_jobs
from rota.jobs.claim import ClaimedJob, claim_flow, join_lines
from rota.jobs.enqueue import digest
from rota.jobs.job import NewJob
from rota.jobs.lanes import Lane
from rota.jobs.limit import declare_limits, mend_lines
from rota.jobs.outcome import HandedBack, Retried, Succeeded
from rota.jobs.settle import settle, succeed, succeed_one
from rota.jobs.worker import _PLANNING
from rota.leases.members import leave_member
from rota.postgres.query import Query, Steps

ONE, TWO, GONE = UUID(int=1), UUID(int=2), UUID(int=9)
FAILURE = Failure("ValueError", "no", "trace")
BY_KEY = Limit(running=1, by="k")
Given = Callable[[Db], object]


class Stage:
    """Lines that are set up anew for every order of the steps that meet there."""

    def __init__(self, db: Db, dsn: str) -> None:
        self.db = db
        self.dsn = dsn

    def play(self, *scripts: Sequence[Step], given: Given, may_wait: bool = True) -> Iterator[tuple[Any, ...]]:
        """The order, and what the step before the commit of each script returned."""
        how = {**_PLANNING, "lock_timeout": "10s" if may_wait else "1ms"}
        options = " ".join(f"-c {name}={value}" for name, value in how.items())
        sessions = Sessions(make_conninfo(self.dsn, options=options), len(scripts))
        try:
            for order in orders([len(script) for script in scripts]):
                self.clear()
                given(self.db)
                returned = sessions.run(scripts, order)
                self.check()
                yield order, *(steps[-2] for steps in returned)
        finally:
            sessions.close()

    def clear(self) -> None:
        self.db.execute(
            "delete from rota.jobs; delete from rota.history; delete from rota.dead; delete from rota.attempts; "
            "delete from rota.lines; delete from rota.limits; delete from rota.queues; delete from rota.members; "
            "alter sequence rota.jobs_id_seq restart"
        )
        for member in (ONE, TWO, GONE):
            join(self.db, member)
        ask(self.db, leave_member(GONE))

    def check(self) -> None:
        """Each line says what its jobs say, and none is left that nobody is in."""
        wrong = self.db.execute(
            """
            select line.id
            from (select distinct line as id from rota.jobs where line is not null and (place > 0 or state = 'running')) as used
            full join rota.lines as line using (id)
            left join rota.limits as rule on rule.task = line.task
            where line.id is null or used.id is null or (line.ready_at is not null) <> (
                exists (select from rota.jobs as job where job.line = line.id and state = 'blocked' and place > 0)
                and coalesce(rule.running > (
                    select count(*) from rota.jobs as job where job.line = line.id and state = 'running'
                ), true)
            )
            """
        ).fetchall()
        assert wrong == []

    def jobs(self) -> list[tuple[Any, ...]]:
        return self.db.execute("select id, state, place > 0 from rota.jobs order by id").fetchall()

    def running(self) -> list[int]:
        return [id for id, state, _ in self.jobs() if state == "running"]

    def says(self, key: str) -> list[tuple[bool, bool]]:
        """Whether it is ready, and whether it is far from full; nothing where there is no such line."""
        return self.db.execute(
            "select ready_at is not null, roomy from rota.lines where id = %s", [line(key)]
        ).fetchall()

    def in_order(self, key: str) -> list[int]:
        rows = self.db.execute(
            "select id from rota.jobs where state = 'blocked' and place > 0 and line = %s order by place", [line(key)]
        )
        return [id for (id,) in rows]


@pytest.fixture
def stage(direct_database: str) -> Iterator[Stage]:
    with psycopg.connect(direct_database, autocommit=True) as db:
        yield Stage(db, direct_database)


def line(key: str) -> UUID:
    return digest("t", key)


def new(*keys: str) -> Query[Any]:
    return put(*(NewJob("t", "{}", key=key, line=line(key)) for key in keys))


def declaring(limit: Limit) -> Step:
    return lambda db: taken(db, declare_limits({"t": limit}))


def taken(db: Db, steps: Steps[None], most: int | None = None) -> None:
    """Take the steps, or only so many: as if whoever takes them died then."""
    answer: Any = None
    with contextlib.suppress(StopIteration):
        for _ in itertools.count() if most is None else range(most):
            answer = ask(db, steps.send(answer))


def waiting(*keys: str, limit: Limit = BY_KEY, begun: int = 0) -> Given:
    """Jobs in the lines of these keys, of which member ONE runs so many under token 1."""

    def given(db: Db) -> None:
        declaring(limit)(db)
        if keys:
            ask(db, new(*keys))
        for _ in range(begun):
            assert ask(db, claiming(ONE, 1))

    return given


def claiming(member: UUID, limit: int = 1) -> Query[Any]:
    lanes = [(Lane("default", 0, 0.0, lines=True), None)]
    return claim_flow(lanes=lanes, tasks={"t": 1}, limit=limit, most_losses=0, token=member.int, member=member)


def claiming_from(*lanes: Lane, most: int = 9) -> Query[Any]:
    of = [(lane, None) for lane in lanes]
    return claim_flow(lanes=of, tasks={"t": 1, "u": 1}, limit=most, most_losses=0, token=ONE.int, member=ONE)


def held(id: int) -> ClaimedJob:
    return ClaimedJob(id, "default", "t", 0, 1, 0, 0.0, "{}", ONE.int)


def ids(jobs: Sequence[Any]) -> list[int]:
    return sorted(job.id for job in jobs)


def arrive_now(db: Db) -> None:
    db.execute("set constraints all immediate")


def limited(stage: Stage, **said: Any) -> None:
    stage.db.execute(
        f"insert into rota.queues (name, {', '.join(said)}) values ('default', {', '.join(['%s'] * len(said))})",
        list(said.values()),
    )


# Claims


@pytest.mark.parametrize("most", [1, 2])
def test_two_claims_of_one_line_take_no_more_than_may_run_and_none_waits(stage: Stage, most: int) -> None:
    one, two = [step(claiming(ONE, 3)), commit], [step(claiming(TWO, 3)), commit]
    given = waiting("k", "k", "k", limit=Limit(running=most, by="k"))
    for _, first, second in stage.play(one, two, given=given, may_wait=False):
        assert sorted([ids(first), ids(second)]) == [[], list(range(1, most + 1))]


def test_a_claim_that_is_rolled_back_leaves_the_line_as_it_was(stage: Stage) -> None:
    one, two = [step(claiming(ONE)), roll_back], [step(claiming(TWO)), commit]
    for _, _, second in stage.play(one, two, given=waiting("k", "k"), may_wait=False):
        assert stage.running() == ids(second)
        assert ids([*second, *ask(stage.db, claiming(TWO))]) == [1]


def test_a_claim_that_is_under_way_has_its_line_for_itself(stage: Stage) -> None:
    """One stands between the moment it sees the line as it is and the moment it locks the first job."""
    stage.clear()
    waiting("k", "k", limit=Limit(running=1, rate="100/1m", by="k"))(stage.db)
    stage.db.execute(
        """
        alter function rota.rate_after rename to rate_really_after;
        create function rota.rate_after(
            count integer, seconds float8, begun integer, clock timestamptz, inout spent integer[], inout slot bigint,
            out room integer, out not_before timestamptz, out over_at timestamptz
        )
            language plpgsql
        as $rate_after$
        begin
            -- asked first by the statement that looks at the jobs
            if set_config('test.calls', (current_setting('test.calls')::integer + 1)::text, false) = '1' then
                perform pg_advisory_xact_lock(7);
            end if;
            select * into spent, slot, room, not_before, over_at
            from rota.rate_really_after(count, seconds, begun, clock, spent, slot);
        end
        $rate_after$
        """
    )
    with (
        psycopg.connect(stage.dsn, autocommit=True, options="-c test.calls=0") as slow,
        psycopg.connect(stage.dsn, autocommit=True, options="-c test.calls=9") as other,
    ):
        taken: list[Any] = []
        first, *_ = at_once(
            stage.db,
            "select pg_advisory_xact_lock(7)",
            [lambda: ask(slow, claiming(ONE))],
            then=lambda: taken.extend(ask(other, claiming(TWO))),
        )
    assert (ids(first.result()), taken) == ([1], [])


def test_what_is_behind_a_locked_job_waits_with_it_and_other_lines_do_not(stage: Stage) -> None:
    stage.clear()
    waiting("a", "a", "a", limit=Limit(running=2, by="k"))(stage.db)
    with psycopg.connect(stage.dsn) as someone:
        someone.execute("select from rota.jobs where id = 1 for update")
        assert ask(stage.db, claiming(ONE, 5)) == []
        (behind,) = ask(stage.db, new("b"))
        # whoever wants one only meets the line that cannot give it first
        assert ids(ask(stage.db, claiming(ONE, 1))) == [behind.id]
    assert len(ask(stage.db, claiming(ONE, 5))) == 2


def test_a_suspect_that_is_locked_is_not_in_the_way_of_another(stage: Stage) -> None:
    stage.clear()
    waiting("a", "b", "c")(stage.db)
    stage.db.execute("update rota.jobs set losses = 1")
    claims = replace(claiming(TWO, 3), params={**claiming(TWO, 3).params, "most_losses": 9})
    with psycopg.connect(stage.dsn) as someone:
        someone.execute("select from rota.jobs where line = (select min(id::text)::uuid from rota.lines) for update")
        assert len(ask(stage.db, claims)) == 1


def test_a_member_that_has_ended_takes_nothing(stage: Stage) -> None:
    stage.clear()
    waiting("k", "k")(stage.db)
    assert ask(stage.db, claiming(GONE)) == []
    assert ids(ask(stage.db, claiming(ONE))) == [1]


NOT_FOR_US = [
    "version = 2",
    "losses = 1",
    "cancel_requested_at = now()",
    "due_at = rota.now() + interval '1 hour'",
]


@pytest.mark.parametrize("said", NOT_FOR_US)
def test_what_may_not_be_taken_keeps_its_line_waiting(stage: Stage, said: str) -> None:
    stage.clear()
    waiting("k", "k", "k", limit=Limit(by="k"))(stage.db)
    stage.db.execute(f"update rota.jobs set {said} where id = 2")
    assert ids(ask(stage.db, claiming(ONE, 5))) == [1]
    assert ask(stage.db, claiming(ONE, 5)) == []


@pytest.mark.parametrize("said", [*NOT_FOR_US, "task = 'unknown'"])
def test_what_may_not_be_taken_stays_in_a_limited_queue(stage: Stage, said: str) -> None:
    stage.clear()
    limited(stage, running_limit=9)
    ask(stage.db, put(*[NewJob("t", "{}")] * 3))
    stage.db.execute(f"update rota.jobs set {said} where id = 2")
    assert ids(ask(stage.db, claiming_from(Lane("default", 0, 0.0, limited=True)))) == [1, 3]


@pytest.mark.parametrize("queue", ["default", ""], ids=["queue", "all queues"])
@pytest.mark.parametrize("said", ["running_limit", "rate_count"])
def test_all_lanes_of_a_limited_queue_share_its_room(stage: Stage, queue: str, said: str) -> None:
    stage.clear()
    waiting("a", "b", "c")(stage.db)
    ask(stage.db, put(*[NewJob("u", "{}", priority=priority) for priority in (1, 0) for _ in range(3)]))
    seconds = 3600.0 if said == "rate_count" else None
    stage.db.execute(f"insert into rota.queues (name, {said}, rate_seconds) values (%s, 5, %s)", [queue, seconds])
    urgent, usual = (Lane("default", priority, 0.0, limited=True) for priority in (1, 0))
    lines = Lane("default", 0, 0.0, lines=True, limited=True)

    assert len(ask(stage.db, claiming_from(urgent, lines, most=4))) == 4
    assert len(ask(stage.db, claiming_from(urgent, lines, usual))) == 1
    assert ask(stage.db, claiming_from(urgent, lines, usual)) == []


def test_a_line_that_was_served_is_behind_the_others(stage: Stage) -> None:
    stage.clear()
    waiting("a", "a", "a", limit=Limit(by="k"))(stage.db)
    ask(stage.db, new("b", "b"))
    in_a, in_b = stage.in_order("a"), stage.in_order("b")
    taken = [ask(stage.db, claiming(ONE, 1))[0].id for _ in range(4)]
    assert taken == [in_a[0], in_b[0], in_a[1], in_b[1]]


def test_what_follows_a_claim_in_its_transaction_is_told_to_the_line(stage: Stage) -> None:
    stage.clear()
    waiting("k", "k")(stage.db)
    with stage.db.transaction():
        ask(stage.db, claiming(ONE))
        ask(stage.db, OUTCOMES["handed back"])

    stage.check()
    assert ids(ask(stage.db, claiming(TWO))) == [1]


OUTCOMES: dict[str, Query[Any]] = {
    "succeeded": succeed([Succeeded(held(1), None, 0.1)]),
    "retried": settle([Retried(held(1), FAILURE, 0.1, 0.0)], CHANNEL),
    "handed back": settle([HandedBack(held(1))], CHANNEL),
    "discarded": cancel_jobs([2], None, CHANNEL),
}


@pytest.mark.parametrize("most", [1, 2])  # of two, one that runs leaves the line far from full
@pytest.mark.parametrize(
    "kind", ["succeeded", *(pytest.param(kind, marks=pytest.mark.long) for kind in list(OUTCOMES)[1:])]
)
def test_a_slot_that_is_freed_while_a_claim_finds_the_line_full_is_not_forgotten(
    stage: Stage, kind: str, most: int
) -> None:
    settles, claims = [step(OUTCOMES[kind]), commit], [step(claiming(TWO, 9)), commit]
    given = waiting("k", "k", "k", "k", limit=Limit(running=most, by="k"), begun=1)
    for _, _, claimed in stage.play(settles, claims, given=given):
        # what a line says of itself was checked: here, that a claim believes it
        later = ask(stage.db, claiming(TWO, 9))
        assert len(claimed) + len(later) == most - (kind == "discarded")


def test_those_who_settle_jobs_of_one_line_wait_for_nobody_where_any_number_may_run(stage: Stage) -> None:
    scripts = [[step(succeed([Succeeded(held(id), None, 0.1)])), commit] for id in (1, 2)]
    for _, *settled in stage.play(*scripts, given=waiting(*"kkk", limit=Limit(by="k"), begun=2), may_wait=False):
        assert [len(each) for each in settled] == [1, 1]


def test_those_who_settle_wait_for_nobody_where_a_line_is_far_from_full(stage: Stage) -> None:
    scripts = [[step(succeed([Succeeded(held(id), None, 0.1)])), commit] for id in (1, 2)]
    claims = [step(claiming(TWO, 1)), commit]
    given = waiting(*"kkkkk", limit=Limit(running=6, by="k"), begun=2)
    for _, *settled, claimed in stage.play(*scripts, claims, given=given, may_wait=False):
        assert [len(each) for each in settled] == [1, 1]
        assert ids(claimed) == [3]


def test_who_settles_the_last_job_of_a_line_that_was_far_from_full_takes_the_line_away(stage: Stage) -> None:
    stage.clear()
    waiting("k", "k", limit=Limit(running=6, by="k"), begun=2)(stage.db)
    ask(stage.db, succeed([Succeeded(held(id), None, 0.1) for id in (1, 2)]))

    stage.check()
    assert stage.says("k") == []


def test_a_line_that_became_full_is_told_of_each_job_that_ends(stage: Stage) -> None:
    stage.clear()
    waiting(*"kkkk", limit=Limit(running=2, by="k"), begun=1)(stage.db)
    assert stage.says("k") == [(True, True)]
    assert ids(ask(stage.db, claiming(ONE, 9))) == [2]
    assert stage.says("k") == [(False, False)]

    ask(stage.db, OUTCOMES["succeeded"])

    stage.check()
    assert ids(ask(stage.db, claiming(TWO, 9))) == [3]


def test_a_line_that_is_full_after_all_is_looked_at_in_vain_once(stage: Stage) -> None:
    """Whoever ends a job of it and takes that back has told the line nothing."""
    stage.clear()
    waiting(*"kkkk", limit=Limit(running=2, by="k"), begun=1)(stage.db)
    with psycopg.connect(stage.dsn) as settling:
        ask(settling, OUTCOMES["succeeded"])
        assert ids(ask(stage.db, claiming(TWO, 9))) == [2]
        assert ask(stage.db, claiming(TWO, 9)) == []
        assert stage.says("k") == [(True, True)]
        settling.rollback()

    assert ask(stage.db, claiming(TWO, 9)) == []

    assert stage.says("k") == [(False, False)]
    stage.check()


def test_who_settles_at_a_stricter_isolation_does_not_leave_alone_what_has_become_full(stage: Stage) -> None:
    stage.clear()
    waiting(*"kkkk", limit=Limit(running=2, by="k"), begun=1)(stage.db)
    with psycopg.connect(stage.dsn) as settling:
        settling.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        settling.execute("select from rota.jobs")
        assert ids(ask(stage.db, claiming(TWO, 9))) == [2]
        with pytest.raises(psycopg.errors.SerializationFailure):
            ask(settling, OUTCOMES["succeeded"])

    assert stage.says("k") == [(False, False)]


def test_a_line_that_its_last_job_left_alone_is_taken_away_by_the_one_who_mends(stage: Stage) -> None:
    stage.clear()
    waiting("k", "k", limit=Limit(running=2, by="k"), begun=1)(stage.db)
    with psycopg.connect(stage.dsn) as settling:
        ask(settling, OUTCOMES["succeeded"])
        ask(stage.db, cancel_jobs([2], None, CHANNEL))
    assert stage.says("k") == [(False, True)]

    taken(stage.db, mend_lines())

    assert stage.says("k") == []


def test_an_older_worker_claims_as_before(stage: Stage) -> None:
    stage.clear()
    waiting(*"aab")(stage.db)
    stage.db.execute("update rota.jobs set losses = 1 where id = 2")

    rows = stage.db.execute(
        """
        select job.id, job.state, job.token, job.member
        from rota.claim_flow(
            '{default}', '{0}', '{yes}', '{-infinity}', '{0}', '{t}', '{1}', '{}', 9, 3, 7, %s
        ) as job
        order by job.id
        """,
        [ONE],
    ).fetchall()

    assert rows == [(1, "running", 7, ONE), (3, "running", 7, ONE)]
    stage.check()


def test_those_who_run_say_how_far_they_are_and_wait_for_nobody_in_line(stage: Stage) -> None:
    def tells(id: int) -> list[Step]:
        return [lambda db: db.execute("update rota.jobs set saved = '1' where id = %s", [id]), commit]

    for _ in stage.play(
        tells(1), tells(2), given=waiting(*"kkk", limit=Limit(running=2, by="k"), begun=2), may_wait=False
    ):
        assert stage.running() == [1, 2]


@pytest.mark.parametrize("last", ["claim", "settle"])
def test_a_job_that_comes_while_the_last_one_goes_is_in_a_line_that_is_there(stage: Stage, last: str) -> None:
    goes = step(claiming(ONE)) if last == "claim" else step(OUTCOMES["succeeded"])
    given = waiting("k", begun=last == "settle", limit=Limit(running=2, by="k"))
    for _, put_last, _ in stage.play([step(new("k")), commit], [goes, commit], given=given):
        assert stage.in_order("k")[-1:] == ids(put_last)
        assert ids(put_last)[0] in ids(ask(stage.db, claiming(TWO, 5)))


def test_a_job_that_comes_while_its_line_is_taken_away_is_in_line_all_the_same(stage: Stage) -> None:
    puts, settles = [step(new("k")), arrive_now, commit], [step(OUTCOMES["succeeded"]), commit]
    for _ in stage.play(puts, settles, given=waiting("k", begun=1)):
        assert len(ask(stage.db, claiming(TWO))) == 1


# Order


def test_jobs_are_in_line_in_the_order_of_the_commits(stage: Stage) -> None:
    scripts = [[step(new("k")), commit], [step(new("k")), commit]]
    for order, *put_by in stage.play(*scripts, given=waiting()):
        committed = [session for place, session in enumerate(order) if session in order[:place]]
        assert stage.in_order("k") == [put_by[session][0].id for session in committed]


@pytest.mark.long
def test_jobs_that_are_in_line_before_the_commit_keep_others_out_until_then(stage: Stage) -> None:
    scripts = [[step(new("k")), arrive_now, commit], [step(new("k")), commit]]
    for order, _, (job,) in stage.play(*scripts, given=waiting()):
        in_line = [place for place, session in enumerate(order) if session == 0][1]
        commits = [place for place, session in enumerate(order) if session == 1][1]
        assert (stage.in_order("k")[0] == job.id) == (commits < in_line)


def test_transactions_with_several_keys_never_wait_in_a_circle(stage: Stage) -> None:
    one = [step(new("a", "b", "c")), arrive_now, commit]
    two = [step(new("c", "b", "a")), arrive_now, commit]
    for _ in stage.play(one, two, given=waiting()):
        # whoever was first at one key was first at all of them
        assert len({owner(stage, stage.in_order(key)[0]) for key in "abc"}) == 1


def owner(stage: Stage, id: int) -> Any:
    row = stage.db.execute("select xmin::text from rota.jobs where id = %s", [id]).fetchone()
    assert row is not None
    return row[0]


def test_bodies_that_end_with_their_transaction_and_enqueue_for_each_other_never_wait_in_a_circle(stage: Stage) -> None:
    def ends(id: int) -> Step:
        return step(succeed_one(id, ONE.int, None, 0.1))

    one, two = [step(new("b")), ends(1), commit], [step(new("a")), ends(2), commit]
    for _ in stage.play(one, two, given=waiting("a", "b", begun=2)):
        assert len(ask(stage.db, claiming(TWO, 5))) == 2


@pytest.mark.long
def test_what_joins_a_line_late_is_behind_what_is_there(stage: Stage) -> None:
    def given(db: Db) -> None:
        waiting("k", begun=1)(db)
        ask(db, settle([Retried(held(1), FAILURE, 0.1, 0.0)], CHANNEL))

    joins, claims = [step(join_lines()), commit], [step(claiming(TWO)), commit]
    for _ in stage.play(joins, [step(new("k")), commit], claims, given=given):
        assert len(stage.in_order("k")) + len(stage.running()) == 2
        assert len(stage.running()) <= 1


def test_what_comes_back_to_a_place_that_was_left_behind_is_first_again(stage: Stage) -> None:
    stage.clear()
    waiting("k", "k", "k", limit=Limit(by="k"), begun=2)(stage.db)
    ask(stage.db, settle([HandedBack(held(1))], CHANNEL))

    assert ids(ask(stage.db, claiming(TWO, 2))) == [1, 3]


def test_a_line_that_is_refreshed_by_someone_is_looked_at_from_its_start(stage: Stage) -> None:
    stage.clear()
    waiting("k", "k")(stage.db)
    stage.db.execute("update rota.lines set first = 1000000, queue = null, ready_at = null")

    stage.db.execute("select rota.refresh_lines(array[%s::uuid])", [line("k")])

    stage.check()
    assert ids(ask(stage.db, claiming(TWO))) == [1]


# Rules that change


def test_once_a_lower_limit_is_acknowledged_no_claim_goes_by_the_old_one(stage: Stage) -> None:
    lowers, claims = [declaring(Limit(running=1, by="k")), commit], [step(claiming(TWO, 3)), commit]
    given = waiting("k", "k", "k", limit=Limit(running=3, by="k"))
    for order, _, claimed in stage.play(lowers, claims, given=given):
        # who comes while it is changed passes the line by
        assert len(claimed) in ((1,) if order[:2] == (0, 0) else (0, 3))
        assert len(ask(stage.db, claiming(ONE, 3))) == (not claimed)


@pytest.mark.parametrize(
    "said", [{"running_limit": 1}, {"rate_count": 1, "rate_seconds": 3600.0}], ids=["running", "rate"]
)
def test_two_claims_of_a_limited_queue_take_no_more_than_may_begin(stage: Stage, said: dict[str, Any]) -> None:
    one, two = [step(claiming(ONE, 3)), commit], [step(claiming(TWO, 3)), commit]

    def given(db: Db) -> None:
        waiting("a", "b", "c")(db)
        limited(stage, **said)

    for _, first, second in stage.play(one, two, given=given):
        assert len(first) + len(second) == 1


@pytest.mark.long
def test_once_a_lower_limit_of_a_queue_is_acknowledged_no_claim_goes_by_the_old_one(stage: Stage) -> None:
    lowers = [lambda db: db.execute("update rota.queues set running_limit = 1"), commit]

    def given(db: Db) -> None:
        waiting("a", "b", "c")(db)
        limited(stage, running_limit=3)

    for order, _, claimed in stage.play(lowers, [step(claiming(TWO, 3)), commit], given=given):
        waited = order[0] == 0  # it begins after the change, and counts when that is there
        assert len(claimed) == (1 if waited else 3)


def test_a_job_that_was_sent_to_a_line_of_a_limit_that_is_gone_is_an_ordinary_one_again(stage: Stage) -> None:
    stage.clear()
    stage.db.execute("insert into rota.jobs (task, args, key, state) values ('t', '{}', 'k', 'blocked')")
    assert ask(stage.db, join_lines()) == 1
    assert stage.db.execute("select state, line, place from rota.jobs").fetchall() == [("queued", None, None)]


def test_a_line_that_is_found_full_while_the_last_of_it_is_settled_by_the_old_rule_is_mended(stage: Stage) -> None:
    """Where any number may run, who settles tells the line nothing; and whoever limits it sees what has not been committed."""
    stage.clear()
    waiting("k", "k", limit=Limit(by="k"), begun=1)(stage.db)
    with psycopg.connect(stage.dsn) as settling:
        ask(settling, OUTCOMES["succeeded"])
        declaring(BY_KEY)(stage.db)
    assert ask(stage.db, claiming(TWO)) == []

    taken(stage.db, mend_lines())

    stage.check()
    assert ids(ask(stage.db, claiming(TWO))) == [2]


@pytest.mark.parametrize(
    ("old", "new_one"),
    [
        (Limit(running=1, by="k"), Limit(running=2, by="k")),
        (Limit(running=1, by="k"), Limit(by="k")),
        (Limit(running=1, by="k"), None),
        (Limit(rate="1/1h", by="k"), Limit(rate="2/1h", by="k")),
        (Limit(rate="1/1h", by="k"), Limit(running=2, by="k")),
        (Limit(rate="1/1h", by="k"), None),
    ],
    ids=["more run", "any number runs", "no limit", "higher rate", "no rate", "no limit instead of a rate"],
)
def test_lines_of_a_rule_whose_author_died_before_they_followed_are_mended(
    stage: Stage, old: Limit, new_one: Limit | None
) -> None:
    stage.clear()
    waiting("k", "k", limit=old, begun=1)(stage.db)
    taken(stage.db, declare_limits({"t": new_one}), most=1)
    assert ask(stage.db, claiming(TWO)) == []

    taken(stage.db, mend_lines())

    stage.check()
    assert ids(ask(stage.db, claiming(TWO))) == [2]


def test_lines_that_are_right_are_not_touched_by_the_one_who_mends(stage: Stage) -> None:
    stage.clear()
    waiting("full", "full", "free", limit=BY_KEY, begun=1)(stage.db)
    before = stage.db.execute("select xmin::text, id from rota.lines order by id").fetchall()

    taken(stage.db, mend_lines())

    assert stage.db.execute("select xmin::text, id from rota.lines order by id").fetchall() == before


# Transactions of every kind


def refused(act: Step) -> Step:
    """None where PostgreSQL refuses, as it may at the stricter levels, and the caller is to begin anew."""

    def run(connection: Db) -> Any:
        try:
            return act(connection) or True
        except psycopg.errors.SerializationFailure:
            connection.rollback()
            return None

    return run


@pytest.mark.parametrize("level", ["repeatable read", pytest.param("serializable", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "meets",
    [
        pytest.param(step(claiming(TWO)), id="claim"),
        pytest.param(step(OUTCOMES["succeeded"]), id="settle"),
        pytest.param(step(new("k")), id="arrival", marks=pytest.mark.long),
    ],
)
def test_a_caller_at_a_stricter_isolation_is_in_line_or_is_refused(stage: Stage, level: str, meets: Step) -> None:
    """What it does not see may have freed a slot, or filled one: it must not write what it believes of the line."""
    puts = [
        lambda db: db.execute(f"set transaction isolation level {level}") and db.execute("select from rota.jobs"),
        refused(step(new("k"))),
        refused(arrive_now),
        refused(commit),
    ]
    for begun in (0, 1):
        for order, told, _ in stage.play(puts, [meets, commit], given=waiting("k", begun=begun)):
            assert told in (True, None)
            # nobody is refused for what came after it
            assert told or order != (0, 0, 0, 0, 1, 1)


def test_jobs_that_are_put_after_constraints_were_checked_come_into_line_as_well(stage: Stage) -> None:
    stage.clear()
    waiting()(stage.db)
    with stage.db.transaction():
        ask(stage.db, new("a", "b"))
        arrive_now(stage.db)
        ask(stage.db, new("b", "a"))
        stage.db.execute("set constraints all deferred")
        ask(stage.db, new("a"))

    stage.check()
    assert [len(stage.in_order(key)) for key in "ab"] == [3, 2]
    assert all(stage.in_order(key) == sorted(stage.in_order(key)) for key in "ab")


def test_what_a_savepoint_takes_back_was_never_in_line(stage: Stage) -> None:
    stage.clear()
    waiting()(stage.db)
    with stage.db.transaction():
        ask(stage.db, new("a"))
        with stage.db.transaction(force_rollback=True):
            ask(stage.db, new("a", "b"))
            arrive_now(stage.db)
        with stage.db.transaction():
            ask(stage.db, new("c", "a"))

    stage.check()
    keys = stage.db.execute("select key from rota.lines order by key").fetchall()
    assert keys == [("a",), ("c",)]
    assert len(stage.in_order("a")) == 2
