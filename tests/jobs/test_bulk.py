"""Many jobs are changed at once: those that fit when it begins, each once, and none that runs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.jobs.bulk_turns import begin, counts, done, turned
from tests.projections.logs import working

from rota import BulkNotFound, ConfigurationError, Job, NotPossible, Unique
from rota.facts import BulkEnded, WorkerStarted
from rota.jobs.bulk import turn, turns
from rota.jobs.bulk.turns import BulkTurns
from rota.testing import TestRota, fact

pytestmark = pytest.mark.usefixtures("history_aside")


async def jobs_of_all_states(app: TestRota, dsn: str) -> dict[str, Job[Any]]:
    good = app.task(name="good")(lambda n: None)
    bad = app.task(name="bad", retry=None)(lambda n: 1 / 0)
    succeeded, dead = await good.enqueue(1), await bad.enqueue(2)
    await app.drain()
    cancelled = await app.jobs.cancel((await good.enqueue(3)).id)
    running = await good.enqueue(4)
    begin(dsn, running.id)
    due, later = await good.enqueue(5), await good.using(delay="1h", tags=["later"]).enqueue(6)
    return {
        "succeeded": succeeded,
        "dead": dead,
        "cancelled": cancelled,
        "running": running,
        "due": due,
        "later": later,
    }


ENDED = {"settled": 2}
CONCERNED: list[tuple[str, dict[str, Any], set[str], dict[str, int]]] = [
    ("retry", {}, {"dead", "later"}, {"running": 1, "due": 1, "repeated": 2}),
    ("cancel", {}, {"due", "later"}, {"running": 1, "dead": 1, **ENDED}),
    ("discard", {}, {"due", "later", "dead"}, {"running": 1, **ENDED}),
    ("acknowledge", {}, {"dead"}, {"running": 1, "live": 2, **ENDED}),
    ("move", {"to": "slow"}, {"due", "later"}, {"running": 1, "dead": 1, **ENDED}),
    ("prioritise", {"priority": 7}, {"due", "later"}, {"running": 1, "dead": 1, **ENDED}),
    ("put_off", {"delay": "30m"}, {"due"}, {"running": 1, "there": 1, "dead": 1, **ENDED}),
]


@pytest.mark.parametrize(("action", "options", "concerned", "excluded"), CONCERNED, ids=[each[0] for each in CONCERNED])
async def test_an_action_concerns_those_that_it_means_something_to(
    action: str,
    options: dict[str, Any],
    concerned: set[str],
    excluded: dict[str, int],
    rota_app: TestRota,
    rota_database: str,
) -> None:
    jobs = await jobs_of_all_states(rota_app, rota_database)

    preview = await rota_app.bulk.preview(action, **options)
    bulk = await done(rota_app, action, **options)

    assert {job.id for job in preview.samples} == {jobs[name].id for name in concerned}
    assert (preview.count, preview.exact, preview.excluded) == (len(concerned), True, excluded)
    assert counts(bulk) == ("finished", len(concerned), 0, 0)
    assert (bulk.total, bulk.excluded, bulk.progress) == (len(concerned), excluded, 1.0)
    now = {name: await rota_app.jobs.get(job.id) for name, job in jobs.items()}
    untouched = {name: (now[name].state, now[name].queue, now[name].due_at) for name in jobs.keys() - concerned}
    first = {"due": "queued", "later": "queued"}
    assert untouched == {
        name: (first.get(name, name), jobs[name].queue, jobs[name].due_at) for name in jobs.keys() - concerned
    }


async def test_each_action_does_what_it_does_to_one_job(rota_app: TestRota, rota_database: str) -> None:
    jobs = await jobs_of_all_states(rota_app, rota_database)
    due, later = jobs["due"].id, jobs["later"].id

    moved = await done(rota_app, "move", to="slow", state="queued")
    first = await rota_app.jobs.get(due)
    await done(rota_app, "prioritise", ids=[due, later], priority=7)
    second = await rota_app.jobs.get(due)
    await done(rota_app, "put_off", ids=[due], delay="30m")
    third = await rota_app.jobs.get(due)
    await done(rota_app, "retry", state="queued")
    fourth = await rota_app.jobs.get(later)
    await done(rota_app, "cancel", queue="slow", reason="not wanted")
    fifth = await rota_app.jobs.get(due)
    await done(rota_app, "retry", state="dead")
    letter = await rota_app.dead.get(jobs["dead"].id)

    assert (first.queue, moved.total) == ("slow", 2)
    assert second.priority == 7
    assert third.due_at > jobs["due"].due_at
    assert fourth.due_at < jobs["later"].due_at
    assert (fifth.state, fifth.reason) == ("cancelled", "not wanted")
    assert letter.resolution == "retried"
    assert letter.successor is not None
    assert (await rota_app.jobs.get(letter.successor)).origin == letter.id


@pytest.mark.parametrize(
    "filters",
    [
        {"queue": "mail"},
        {"task": "wanted"},
        {"tag": "blue"},
        {"args": {"n": 1}},
        {"error": "zerodivision"},
        {"attempt": 1},
        {"state": "queued", "until": "0s"},
    ],
    ids=lambda filters: next(iter(filters)),
)
async def test_jobs_are_chosen_by_what_they_are_searched_by(filters: dict[str, Any], rota_app: TestRota) -> None:
    wanted = rota_app.task(name="wanted", queue="mail")(lambda n: 1 / 0)
    other = rota_app.task(name="other")(lambda n: None)
    one = await wanted.using(tags=["blue"]).enqueue(1)
    await rota_app.drain()  # once, and then it waits for its next attempt
    two = await other.using(delay="1h").enqueue(2)
    found = {job.id for job in (await rota_app.jobs.search(**filters)).jobs}

    preview = await rota_app.bulk.preview("cancel", **filters)
    bulk = await done(rota_app, "cancel", **filters)

    cancelled = {job.id for job in (one, two) if (await job.refresh()).state == "cancelled"}
    assert cancelled == found == {job.id for job in preview.samples}
    assert counts(bulk) == ("finished", len(found), 0, 0)
    assert found


async def test_what_comes_to_fit_later_is_not_touched(rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="bad", retry=None)(lambda n: 1 / 0)
    dead = await task.enqueue(1)
    await rota_app.drain()
    dies_later = await task.enqueue(2)

    letters = await rota_app.bulk.start("acknowledge", state="dead")
    waiting = await rota_app.bulk.start("move", state="queued", to="slow")
    await rota_app.drain(queues=["default"])  # which runs the turns last, when the other job is dead as well
    enqueued_later = await task.enqueue(3)
    await turned(rota_app, letters)

    assert (await rota_app.dead.get(dead.id)).resolution == "acknowledged"
    assert (await rota_app.dead.get(dies_later.id)).resolution is None
    assert (await enqueued_later.refresh()).queue == "default"
    assert counts(await rota_app.bulk.get(letters.id)) == ("finished", 1, 0, 0)
    assert counts(await rota_app.bulk.get(waiting.id)) == ("finished", 0, 1, 0)


async def test_what_no_longer_fits_when_its_turn_comes_is_skipped(rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    moved, ended, begun, stays = [await task.enqueue(n) for n in range(4)]

    bulk = await rota_app.bulk.start("cancel", queue="default")
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("update rota.jobs set queue = 'slow' where id = %s", [moved.id])
    await ended.cancel("by hand")
    begin(rota_database, begun.id)
    told = await turned(rota_app, bulk)

    assert counts(told) == ("finished", 1, 3, 0)
    assert told.reasons == {"changed": 1, "settled": 1, "running": 1}
    states = [(await job.refresh()).state for job in (moved, ended, begun, stays)]
    assert states == ["queued", "cancelled", "running", "cancelled"]
    assert (await begun.refresh()).cancel_requested_at is None
    assert (await ended.refresh()).reason == "by hand"


async def test_succeeded_jobs_are_run_again_only_where_that_is_said(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    jobs = [await task.enqueue(n) for n in range(3)]
    await rota_app.drain()

    with pytest.raises(NotPossible, match="no job to retry.*3 fit and are left out"):
        await rota_app.bulk.start("retry", task="task")
    named = await done(rota_app, "retry", ids=[jobs[0].id])
    by_state = await done(rota_app, "retry", state="succeeded")

    assert counts(named) == ("finished", 1, 0, 0)
    assert counts(by_state) == ("finished", 2, 1, 0)
    assert by_state.reasons == {"again": 1}
    assert sorted(job.origin or 0 for job in rota_app.enqueued(task)) == [job.id for job in jobs]


async def test_a_unique_key_that_is_taken_is_told_and_the_others_are_retried(rota_app: TestRota) -> None:
    task = rota_app.task(name="task", retry=None, unique=Unique(by=lambda n: str(n)))(lambda n: 1 / 0)
    letters = [await task.enqueue(n) for n in range(3)]
    await rota_app.drain()
    await task.enqueue(1)

    bulk = await done(rota_app, "retry", state="dead")

    assert counts(bulk) == ("finished", 2, 0, 1)
    assert bulk.reasons == {"key": 1}
    assert [(await rota_app.dead.get(letter.id)).resolution for letter in letters] == ["retried", None, "retried"]


async def test_it_is_on_record_once_with_its_filter_and_never_with_values_of_arguments(
    rota_app: TestRota, rota_database: str
) -> None:
    task = rota_app.task(name="task")(lambda user: None)
    for _ in range(3):
        await task.enqueue({"mail": "ana@example.org"})

    bulk = await rota_app.bulk.start("cancel", args={"user.mail": "ana@example.org"}, queue="default", by="ana")
    told = await turned(rota_app, bulk)

    entries = (await rota_app.audit.list()).entries
    assert [entry.action for entry in entries] == ["bulk.end", "bulk.start"]
    assert (entries[1].actor, entries[0].details["by"]) == ("ana", "ana")
    start = entries[1].details
    assert (start["action"], start["jobs"]) == ("cancel", 3)
    assert start["filter"] == {"queue": "default", "args": ["user.mail"]}
    assert entries[0].details["done"] == 3
    assert told.filter == {"queue": "default", "args": ["user.mail"]}
    with psycopg.connect(rota_database) as db:
        kept = db.execute(
            "select b::text || i::text from rota.bulks b join rota.bulk_jobs i on i.bulk = b.id"
        ).fetchall()
    assert "ana@" not in str(kept)
    assert "ana@" not in str(entries)


async def test_a_pace_holds_whoever_takes_the_turns(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.bind(n) for n in range(100)])

    bulk = await rota_app.bulk.start("move", to="slow", pace=0.01)
    once = await turned(rota_app, bulk)
    again = await turned(rota_app, bulk)

    assert [each.done for each in (once, again)] == [1, 1]
    assert (again.state, again.progress, again.eta is not None) == ("running", 0.01, True)


async def test_one_that_is_stopped_changes_no_more(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.bind(n) for n in range(10)])
    bulk = await turned(rota_app, await rota_app.bulk.start("cancel", task="task", pace=0.01))

    stopped = await rota_app.bulk.stop(bulk.id, by="ana")
    after = await turned(rota_app, bulk)

    assert (stopped.state, stopped.done, after.done, after.undoable) == ("stopped", 1, 1, True)
    with pytest.raises(NotPossible, match="is stopped already"):
        await rota_app.bulk.stop(bulk.id)
    assert [entry.action for entry in (await rota_app.audit.list()).entries] == ["bulk.stop", "bulk.start"]


async def test_two_bulks_over_the_same_jobs_change_each_once(rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.bind(n) for n in range(1200)])

    cancel = await rota_app.bulk.start("cancel", queue="default")
    move = await rota_app.bulk.start("move", queue="default", to="slow")
    await turned(rota_app, cancel)
    one, other = await rota_app.bulk.get(cancel.id), await rota_app.bulk.get(move.id)

    assert (one.total, other.total) == (1200, 1200)
    assert one.done + other.done == 1200
    assert (one.done + one.skipped, other.done + other.skipped) == (1200, 1200)
    with psycopg.connect(rota_database) as db:
        left = db.execute("select count(*) from rota.jobs where queue = 'slow'").fetchone()
        gone = db.execute("select count(*), count(distinct id) from rota.history").fetchone()
    assert left == (other.done,)
    assert gone == (one.done, one.done)


async def test_a_job_that_postgres_refuses_to_change_is_passed_over(
    rota_app: TestRota, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PAUSE", 0.01)
    task = rota_app.task(name="task")(lambda n: None)
    jobs = await rota_app.enqueue_many([task.bind(n) for n in range(20)])
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute(
            "create function public.refuse() returns trigger language plpgsql as "
            "$$ begin if new.id = 7 and new.queue = 'slow' then raise 'not this one'; end if; return new; end $$"
        )
        db.execute("create trigger refuse before update on rota.jobs for each row execute function public.refuse()")

    told = await done(rota_app, "move", to="slow")

    assert counts(told) == ("finished", 19, 0, 1)
    assert told.reasons == {"refused": 1}
    assert [(await job.refresh()).queue for job in jobs if job.id == 7] == ["default"]


async def test_a_job_that_someone_has_locked_keeps_no_other_waiting_for_good(
    rota_app: TestRota, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(turns, "_PAUSE", 0.01)
    task = rota_app.task(name="task")(lambda n: None)
    jobs = await rota_app.enqueue_many([task.bind(n) for n in range(20)])

    with psycopg.connect(rota_database) as db:
        db.execute("select from rota.jobs where id = %s for update", [jobs[6].id])
        bulk = await done(rota_app, "cancel", task="task")

    assert counts(bulk) == ("finished", 19, 0, 1)
    assert bulk.reasons == {"locked": 1}
    assert (await jobs[6].refresh()).state == "queued"


async def test_a_bulk_whose_jobs_are_locked_holds_up_no_other(
    rota_app: TestRota, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(turns, "_PAUSE", 0.1)
    task = rota_app.task(name="task")(lambda n: None)
    jobs = await rota_app.enqueue_many([task.using(tags=["red" if n < 3 else "blue"]).bind(n) for n in range(1200)])
    ended: list[BulkEnded] = []
    rota_app.facts.subscribe(ended.append, BulkEnded)

    with psycopg.connect(rota_database) as db:
        db.execute("select from rota.jobs where id = %s for update", [jobs[1].id])
        held = await rota_app.bulk.start("cancel", tag="red")
        free = await rota_app.bulk.start("cancel", tag="blue")
        held = await turned(rota_app, held)

    assert [(each.bulk, each.done) for each in ended] == [(free.id, 1197), (held.id, 2)]
    assert held.reasons == {"locked": 1}


async def test_a_worker_hears_of_it_and_says_when_it_has_ended(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await task.using(delay="1h").enqueue(1)

    started, ended = fact(rota_app.facts, WorkerStarted), fact(rota_app.facts, BulkEnded)
    async with working(rota_app):
        await started
        bulk = await rota_app.bulk.start("cancel", task="task")
        told = await ended

    assert (told.bulk, told.action, told.state, told.done) == (bulk.id, "cancel", "finished", 1)
    assert bulk.workers == 1


async def test_a_worker_that_rests_leaves_it_to_others(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.using(delay="1h").bind(n) for n in range(3)])
    bulk = await rota_app.bulk.start("cancel", task="task")

    await BulkTurns(rota_app.database, rota_app.facts, rests=lambda: True).take()

    assert (await rota_app.bulk.get(bulk.id)).done == 0


async def test_a_preview_counts_to_its_bound_and_says_so(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.bind(n) for n in range(30)])

    bounded = await rota_app.bulk.preview("cancel", task="task", reach=10)
    whole = rota_app.bulk.preview_sync("cancel", task="task")

    assert (bounded.count, bounded.exact, bounded.searched_to is not None) == (10, False, True)
    assert (whole.count, whole.exact, len(whole.samples), whole.workers) == (30, True, 5, 0)


async def test_samples_show_nothing_that_is_redacted(rota_app: TestRota) -> None:
    task = rota_app.task(name="task", redact=["card"])(lambda card, n: None)
    await task.enqueue("4111-1111", 7)

    preview = await rota_app.bulk.preview("cancel", task="task")

    assert "4111" not in str(preview)
    assert preview.samples[0].args["n"] == 7


async def test_what_is_redacted_cannot_be_chosen_by(rota_app: TestRota) -> None:
    task = rota_app.task(name="task", redact=["card"])(lambda card: None)
    job = await task.enqueue("4111-1111")

    with pytest.raises(NotPossible):
        await rota_app.bulk.start("cancel", args={"card": "4111-1111"})

    assert (await job.refresh()).state == "queued"


async def test_a_try_begins_nothing(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await task.enqueue(1)

    would = await rota_app.bulk.start("cancel", task="task", dry_run=True)

    assert would.total == 1
    assert list(await rota_app.bulk.list()) == []
    assert (await rota_app.audit.list()).entries == ()


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("action", "choice", "words"),
    [
        ("delete", {}, "Nothing is called 'delete'"),
        ("move", {}, "move needs to"),
        ("put_off", {"delay": "1h", "at": "soon"}, "put_off needs delay or at"),
        ("cancel", {"priority": 3}, "priority means nothing to cancel"),
        ("cancel", {"ids": [1], "queue": "mail"}, "not both"),
        ("cancel", {"ids": []}, "0 jobs are named"),
        ("cancel", {"ids": list(range(1, 10_002))}, "10001 jobs are named"),
        ("cancel", {"ids": "7"}, "a list of jobs' ids"),
        ("cancel", {"pace": 0}, "pace cannot be 0"),
        ("cancel", {"undo_for": "90d"}, "30 days at most"),
        ("cancel", {"colour": "blue"}, "knows no colour"),
        ("cancel", {"state": "lost"}, "No job is ever"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    action: str, choice: dict[str, Any], words: str, rota_app: TestRota
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        await rota_app.bulk.start(action, **choice)


async def test_nothing_to_change_and_nothing_of_that_id_are_told(rota_app: TestRota) -> None:
    with pytest.raises(NotPossible, match="There is no job to cancel"):
        rota_app.bulk.start_sync("cancel")
    for ask in (rota_app.bulk.get, rota_app.bulk.stop, rota_app.bulk.undo):
        with pytest.raises(BulkNotFound, match="no bulk 99"):
            await ask(99)


async def test_bulks_are_listed_the_last_first(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.bind(n) for n in range(4)])
    first = await done(rota_app, "move", to="slow")
    second = await rota_app.bulk.start("move", to="other")

    assert [each.id for each in await rota_app.bulk.list()] == [second.id, first.id]
    assert [each.id for each in rota_app.bulk.list_sync(open=True)] == [second.id]
    assert [each.id for each in await rota_app.bulk.list(open=False)] == [first.id]
    assert [each.id for each in await rota_app.bulk.list(after=second.id, limit=1)] == [first.id]
