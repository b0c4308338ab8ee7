from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.leases.test_members import LEASE, ask

from rota.failure import Failure
from rota.jobs.cancel import discard_jobs
from rota.jobs.chores import find_chores
from rota.jobs.claim import ClaimedJob, claim, claim_suspect, give_back_claim, new_token
from rota.jobs.lanes import find_lanes
from rota.jobs.outcome import Buried, Cancelled, HandedBack, Lost, Retried, Snoozed, Succeeded, Unsuccessful
from rota.jobs.report import report_progress, save_checkpoint
from rota.jobs.rescue import rescue
from rota.jobs.settle import LOST_LIMIT, Attempt, find_settled, settle, succeed
from rota.leases.members import join_member, leave_member
from rota.postgres.query import Query

FAILURE = Failure("ValueError", "no", "trace")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def member(db: psycopg.Connection[Any]) -> UUID:
    return joined(db)


def joined(db: psycopg.Connection[Any]) -> UUID:
    member = uuid4()
    ask(db, join_member(member, name="m", host="h", pid=1, release="0", lease=LEASE, key=None, work={}))
    return member


def take(
    db: psycopg.Connection[Any], member: UUID, limit: int = 100, tasks: tuple[str, ...] = ("t",)
) -> list[ClaimedJob]:
    lanes = [(lane, None) for lane in ask(db, find_lanes(None)).lanes if lane.due_in <= 0]
    jobs: list[ClaimedJob] = ask(
        db, claim(lanes=lanes, tasks=dict.fromkeys(tasks, 1), limit=limit, token=new_token(), member=member)
    )
    return sorted(jobs, key=lambda job: (-job.priority, job.due_at, job.id))


def take_suspect(db: psycopg.Connection[Any], member: UUID, tasks: tuple[str, ...] = ("t",)) -> list[ClaimedJob]:
    jobs: list[ClaimedJob] = ask(
        db, claim_suspect(queues=None, most_losses=9, tasks=dict.fromkeys(tasks, 1), token=new_token(), member=member)
    )
    return jobs


def settled(db: psycopg.Connection[Any], *outcomes: Unsuccessful) -> dict[Attempt, str]:
    return {(each.id, each.token): each.fate for each in ask(db, settle(outcomes, "channel"))}


def add(db: psycopg.Connection[Any], count: int = 1, **columns: Any) -> None:
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", %({name})s" for name in columns)
    db.execute(f"insert into rota.jobs (task{names}) select 't'{values} from generate_series(1, {count})", columns)


def everything(db: psycopg.Connection[Any]) -> dict[str, int]:
    tables = ("jobs", "history", "dead", "attempts")
    return {table: db.execute(f"select count(*) from rota.{table}").fetchone()[0] for table in tables}  # type: ignore[index]


def forged(job: ClaimedJob) -> ClaimedJob:
    return job._replace(token=job.token ^ 1)


def test_a_claim_takes_what_is_due_the_most_urgent_first(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 2, priority=0)
    add(db, 1, priority=5)
    add(db, 1, due_at=datetime(2999, 1, 1, tzinfo=UTC))
    add(db, 1, state="blocked")

    jobs = take(db, member)

    assert [(job.id, job.priority, job.attempt) for job in jobs] == [(3, 5, 1), (1, 0, 1), (2, 0, 1)]
    assert len({job.token for job in jobs}) == 1
    assert take(db, member) == []


def test_a_claim_walks_lanes_in_order_and_takes_no_more_than_its_limit(
    db: psycopg.Connection[Any], member: UUID
) -> None:
    add(db, 3, queue="a")
    add(db, 3, queue="b", priority=1)

    assert [job.queue for job in take(db, member, limit=4)] == ["b", "b", "b", "a"]
    assert db.execute("select count(*) from rota.jobs where state = 'queued'").fetchone() == (2,)


def test_unknown_tasks_are_never_claimed(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 3)
    db.execute("insert into rota.jobs (task) values ('new_in_the_next_release')")

    assert {job.task for job in take(db, member)} == {"t"}
    assert db.execute("select task, state, attempt from rota.jobs where task <> 't'").fetchall() == [
        ("new_in_the_next_release", "queued", 0)
    ]


def test_lanes_tell_when_their_first_job_is_due(db: psycopg.Connection[Any]) -> None:
    add(db, 1, queue="b", priority=-3)
    add(db, 1, queue="a", priority=2)
    add(db, 5, queue="a", priority=2)
    db.execute("insert into rota.jobs (task, queue, due_at) values ('t', 'a', rota.now() + interval '1 hour')")

    lanes = ask(db, find_lanes(None)).lanes

    assert [(lane.queue, lane.priority) for lane in lanes] == [("a", 2), ("a", 0), ("b", -3)]
    assert [lane.due_in <= 0 for lane in lanes] == [True, False, True]
    assert 3590 < lanes[1].due_in <= 3600
    assert [lane.queue for lane in ask(db, find_lanes(["b", "nowhere"])).lanes] == ["b"]


def test_success_moves_a_job_to_history_with_its_result(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 1, args=json.dumps({"a": 1}))
    (job,) = take(db, member)

    assert ask(db, succeed([Succeeded(job, '{"b": 2}', 1.5)])) == {(job.id, job.token)}

    assert everything(db) == {"jobs": 0, "history": 1, "dead": 0, "attempts": 0}
    row = db.execute(
        "select state, args, result, attempt, token, member, finished_at - started_at from rota.history"
    ).fetchone()
    assert row is not None
    assert row[:6] == ("succeeded", {"a": 1}, {"b": 2}, 1, job.token, member)
    assert row[6].total_seconds() == 1.5


def test_a_failure_with_attempts_left_is_queued_again_later_and_on_record(
    db: psycopg.Connection[Any], member: UUID
) -> None:
    add(db)
    (job,) = take(db, member)

    assert settled(db, Retried(job, FAILURE, 0.5, pause=60.0)) == {(job.id, job.token): "queued"}

    state, due_in, token, holder = db.execute(
        "select state, extract(epoch from due_at - rota.now())::float8, token, member from rota.jobs"
    ).fetchone()  # type: ignore[misc]
    assert (state, token, holder) == ("queued", None, None)
    assert 55 < due_in <= 60
    recorded = db.execute(
        "select attempt, token, outcome, error_type, error_message, member from rota.attempts"
    ).fetchall()
    assert recorded == [(1, job.token, "failed", "ValueError", "no", member)]


def test_the_last_failure_buries_a_job(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (job,) = take(db, member)

    assert settled(db, Buried(job, FAILURE, 0.5)) == {(job.id, job.token): "dead"}

    assert everything(db) == {"jobs": 0, "history": 0, "dead": 1, "attempts": 1}
    assert db.execute("select reason, attempt, error_type, error_message from rota.dead").fetchone() == (
        "failed",
        1,
        "ValueError",
        "no",
    )


def test_what_is_handed_back_costs_no_attempt(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (job,) = take(db, member)

    assert settled(db, HandedBack(job)) == {(job.id, job.token): "queued"}

    assert everything(db) == {"jobs": 1, "history": 0, "dead": 0, "attempts": 0}
    assert [again.attempt for again in take(db, member)] == [1]


def test_what_is_snoozed_is_due_later_and_costs_no_attempt(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (job,) = take(db, member)

    assert settled(db, Snoozed(job, 0.1, pause=60.0)) == {(job.id, job.token): "queued"}

    row = db.execute("select state, attempt, due_at > rota.now() + interval '55 seconds' from rota.jobs").fetchone()
    assert row == ("queued", 0, True)
    assert everything(db)["attempts"] == 0


def test_what_discards_itself_is_cancelled_with_its_reason(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (job,) = take(db, member)

    assert settled(db, Cancelled(job, 0.1, "no such user")) == {(job.id, job.token): "cancelled"}

    assert db.execute("select state, reason, attempt from rota.history").fetchone() == ("cancelled", "no such user", 1)
    assert everything(db) == {"jobs": 0, "history": 1, "dead": 0, "attempts": 0}


def outcome(kind: str, job: ClaimedJob) -> Unsuccessful:
    outcomes: dict[str, Unsuccessful] = {
        "retried": Retried(job, FAILURE, 0.1, 1.0),
        "buried": Buried(job, FAILURE, 0.1),
        "lost": Lost(job, FAILURE, 0.1),
        "snoozed": Snoozed(job, 0.1, 1.0),
        "cancelled": Cancelled(job, 0.1),
        "handed back": HandedBack(job),
    }
    return outcomes[kind]


KINDS = ["retried", "buried", "lost", "snoozed", "cancelled", "handed back"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_someone_wants_cancelled_is_never_queued_again(
    db: psycopg.Connection[Any], member: UUID, kind: str
) -> None:
    add(db)
    (job,) = take(db, member)
    db.execute("update rota.jobs set cancel_requested_at = rota.now(), cancel_reason = 'not wanted'")

    assert settled(db, outcome(kind, job)) == {(job.id, job.token): "cancelled"}

    assert db.execute("select state, reason from rota.history").fetchall() == [("cancelled", "not wanted")]
    assert everything(db)["jobs"] == everything(db)["dead"] == 0


def test_success_beats_a_wish_to_cancel_that_came_too_late(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (job,) = take(db, member)
    db.execute("update rota.jobs set cancel_requested_at = rota.now()")

    assert ask(db, succeed([Succeeded(job, None, 0.1)])) == {(job.id, job.token)}

    assert db.execute("select state from rota.history").fetchall() == [("succeeded",)]


@pytest.mark.parametrize("kind", ["succeeded", *KINDS])
def test_an_outcome_of_a_lost_claim_changes_nothing(db: psycopg.Connection[Any], member: UUID, kind: str) -> None:
    add(db, 2)
    first, second = take(db, member)
    before = db.execute("select * from rota.jobs order by id").fetchall()

    def write(job: ClaimedJob) -> set[Attempt]:
        query: Query[Any] = (
            succeed([Succeeded(job, None, 0.1)]) if kind == "succeeded" else settle([outcome(kind, job)], "c")
        )
        return {(attempt[0], attempt[1]) for attempt in ask(db, query)}

    assert write(forged(first)) == set()

    assert db.execute("select * from rota.jobs order by id").fetchall() == before
    assert everything(db) == {"jobs": 2, "history": 0, "dead": 0, "attempts": 0}
    assert write(second) == {(second.id, second.token)}


@pytest.mark.parametrize("state", ["queued", "blocked"])
def test_nothing_has_a_token_unless_it_runs(db: psycopg.Connection[Any], member: UUID, state: str) -> None:
    """An outcome is guarded by its token alone, so the table itself sees to it."""
    add(db)
    take(db, member)

    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute("update rota.jobs set state = %s", [state])


def test_tokens_are_matched_to_their_own_job_only(db: psycopg.Connection[Any], member: UUID) -> None:
    """A process that lost a job and claimed it again may settle the lost attempt beside a good one of the new claim."""
    add(db, 2)
    (stale,) = take(db, member, limit=1)
    ask(db, give_back_claim(member, stale.token))
    first, second = take(db, member)
    assert first.id == stale.id

    assert ask(db, succeed([Succeeded(stale, None, 0.1), Succeeded(second, None, 0.1)])) == {(second.id, second.token)}
    assert db.execute("select id, token from rota.jobs").fetchall() == [(first.id, first.token)]


def test_reports_of_a_lost_claim_change_nothing(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (job,) = take(db, member)
    stale = forged(job)

    assert not ask(db, report_progress(stale.id, stale.token, 0.5, "stale"))
    assert not ask(db, save_checkpoint(stale.id, stale.token, '"stale"'))
    assert db.execute("select progress, progress_note, saved from rota.jobs").fetchone() == (None, None, None)

    assert ask(db, report_progress(job.id, job.token, 0.5, "half"))
    assert ask(db, save_checkpoint(job.id, job.token, '"here"'))
    assert db.execute("select progress, progress_note, saved from rota.jobs").fetchone() == (0.5, "half", "here")


def test_a_settle_whose_reply_was_lost_finds_its_own_token(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 5)
    done, failed, dead, unwanted, stale = take(db, member)
    ask(db, succeed([Succeeded(done, None, 0.1)]))
    fates = settled(db, Retried(failed, FAILURE, 0.1, 1.0), Buried(dead, FAILURE, 0.1), Cancelled(unwanted, 0.1))

    assert ask(db, find_settled([done, failed, dead, unwanted, stale])) == {(done.id, done.token): "succeeded", **fates}
    assert ask(db, find_settled([forged(done), forged(failed), forged(dead)])) == {}


def test_a_settle_of_two_attempts_of_one_job_tells_them_apart(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db)
    (stale,) = take(db, member)
    ask(db, give_back_claim(member, stale.token))
    (good,) = take(db, member)

    assert ask(db, succeed([Succeeded(stale, None, 0.1), Succeeded(good, None, 0.1)])) == {(good.id, good.token)}
    assert ask(db, find_settled([stale, good])) == {(good.id, good.token): "succeeded"}


@pytest.mark.writes_nothing
@pytest.mark.parametrize("due_at", ["infinity", "-infinity", "10000-01-01 UTC"])
def test_a_time_that_no_worker_could_read_is_refused(db: psycopg.Connection[Any], due_at: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute("select rota.enqueue('t', due_at => %s)", [due_at])


def test_a_member_knows_all_that_it_holds(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 3)
    one, other = take(db, member, limit=1)[0].token, take(db, member, limit=2)[0].token
    take(db, joined(db))

    assert ask(db, find_chores(member)).held == {one, other}
    assert ask(db, find_chores(uuid4())).held == set()


def test_a_claim_whose_reply_was_lost_is_given_back_whole(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 3)
    lost = take(db, member, limit=2)
    kept = take(db, member, limit=1)

    assert ask(db, give_back_claim(member, lost[0].token)) == 2

    assert db.execute("select id, state, attempt from rota.jobs order by id").fetchall() == [
        (lost[0].id, "queued", 0),
        (lost[1].id, "queued", 0),
        (kept[0].id, "running", 1),
    ]


def test_rescue_takes_from_ended_members_only(db: psycopg.Connection[Any], member: UUID) -> None:
    other = joined(db)
    add(db, 2)
    (mine,) = take(db, member, limit=1)
    (theirs,) = take(db, other, limit=1)

    assert ask(db, rescue("channel")) == []

    ask(db, leave_member(other))
    assert [job.id for job in ask(db, rescue("channel"))] == [theirs.id]
    assert db.execute("select id, state, losses, attempt from rota.jobs order by id").fetchall() == [
        (mine.id, "running", 0, 1),
        (theirs.id, "queued", 1, 1),
    ]
    assert db.execute("select job_id, attempt, outcome, member from rota.attempts").fetchall() == [
        (theirs.id, 1, "lost", other)
    ]


def test_a_job_that_takes_its_processes_with_it_is_buried_as_lost(db: psycopg.Connection[Any]) -> None:
    add(db)
    for losses in range(LOST_LIMIT):
        victim = joined(db)
        assert len(take_suspect(db, victim) if losses else take(db, victim)) == 1
        ask(db, leave_member(victim))
        ask(db, rescue("channel"))

    assert everything(db) == {"jobs": 0, "history": 0, "dead": 1, "attempts": LOST_LIMIT}
    assert db.execute("select reason, losses, attempt from rota.dead").fetchone() == ("lost", LOST_LIMIT, LOST_LIMIT)


def test_jobs_that_were_lost_before_are_taken_one_by_one(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, 2, losses=1)
    add(db, 1, losses=1, priority=1)
    add(db, 1)

    assert [job.id for job in take(db, member)] == [4]
    assert [[job.id for job in take_suspect(db, member)] for _ in range(4)] == [[3], [1], [2], []]


def test_lanes_tell_whether_there_are_suspects(db: psycopg.Connection[Any]) -> None:
    add(db)
    assert [lane.suspects for lane in ask(db, find_lanes(None)).lanes] == [False]

    add(db, losses=1)
    assert [lane.suspects for lane in ask(db, find_lanes(None)).lanes] == [True]


def test_a_worker_claims_no_version_above_its_own(db: psycopg.Connection[Any], member: UUID) -> None:
    for version in (1, 2, 3):
        add(db, version=version)
        add(db, version=version, losses=1)
    lanes = [(lane, None) for lane in ask(db, find_lanes(None)).lanes]
    tasks = {"other": 9, "t": 2}

    jobs = ask(db, claim(lanes=lanes, tasks=tasks, limit=10, token=new_token(), member=member))
    suspects = [
        ask(db, claim_suspect(queues=None, most_losses=9, tasks=tasks, token=new_token(), member=member))
        for _ in range(3)
    ]

    assert sorted(job.version for job in jobs) == [1, 2]
    assert sorted(job.version for taken in suspects for job in taken) == [1, 2]


def test_a_claim_brings_the_checkpoint_of_an_earlier_attempt(db: psycopg.Connection[Any], member: UUID) -> None:
    add(db, saved=json.dumps({"page": 7}))

    assert [json.loads(job.saved or "null") for job in take(db, member)] == [{"page": 7}]


@pytest.mark.parametrize("end", ["cancelled", "dead", "discarded"])
def test_what_others_wrote_of_a_job_is_not_taken_for_an_outcome_of_its_last_holder(
    db: psycopg.Connection[Any], member: UUID, end: str
) -> None:
    add(db)
    (job,) = take(db, member)
    if end == "discarded":
        ask(db, discard_jobs([job.id], None, "channel"))
    else:
        db.execute(f"update rota.jobs set {'losses = 2' if end == 'dead' else 'cancel_requested_at = rota.now()'}")
        ask(db, leave_member(member))
        assert [each.fate for each in ask(db, rescue("channel"))] == [end]

    assert ask(db, find_settled([job])) == {}


def test_many_claimers_at_once_share_the_jobs_without_one_taken_twice(
    rota_database: str, db: psycopg.Connection[Any]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    add(db, 600)

    def work(_: int) -> list[int]:
        taken: list[int] = []
        with psycopg.connect(rota_database, autocommit=True) as connection:
            member = joined(connection)
            while jobs := take(connection, member, limit=7):
                taken += [job.id for job in jobs]
                ask(connection, succeed([Succeeded(job, None, 0.0) for job in jobs]))
        return taken

    with ThreadPoolExecutor(6) as threads:
        taken = [id for ids in threads.map(work, range(6)) for id in ids]

    taken += work(0)  # a claimer that saw only locked rows has left early: take what is left
    assert sorted(taken) == list(range(1, 601))
    assert everything(db) == {"jobs": 0, "history": 600, "dead": 0, "attempts": 0}
