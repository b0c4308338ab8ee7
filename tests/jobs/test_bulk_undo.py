"""What a bulk has changed is put back as it was, as far as it is still where the bulk put it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.jobs.bulk_turns import begin, done, turned, undone

from rota import Job, JobNotFound, Limit, NotPossible, Unique
from rota.jobs.bulk.turn import prune_bulks
from rota.jobs.repeat import lock_settled, repeat_jobs
from rota.testing import TestRota, until

pytestmark = pytest.mark.usefixtures("history_aside")


def rows(dsn: str, table: str) -> list[Any]:
    """All there is in a table but what a line says of a place."""
    with psycopg.connect(dsn) as db:
        found = db.execute(f"select to_jsonb(row) - 'place' from rota.{table} as row order by id").fetchall()
        return [row for (row,) in found]


ACTIONS: dict[str, dict[str, Any]] = {
    "retry": {},
    "cancel": {},
    "discard": {},
    "acknowledge": {},
    "move": {"to": "slow"},
    "prioritise": {"priority": 7},
    "put_off": {"delay": "3h"},
}


@pytest.mark.parametrize("action", ACTIONS)
async def test_all_is_as_it_was(action: str, rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="task", retry=None, unique=Unique(by=lambda n: str(n)), redact=["n"])(lambda n: 1 / 0)
    limited = rota_app.task(name="limited", limit=Limit(running=1))(lambda n: None)
    for n in range(3):
        await task.using(tags=["blue"], key=f"key {n}").enqueue(n)
    await rota_app.drain()
    await rota_app.enqueue_many([task.using(delay="2h", priority=n).bind(n + 10) for n in range(3)])
    await rota_app.enqueue_many([limited.using(tags=["red"]).bind(n) for n in range(3)])
    before = rows(rota_database, "jobs"), rows(rota_database, "dead")

    bulk = await done(rota_app, action, **ACTIONS[action])
    changed = rows(rota_database, "jobs"), rows(rota_database, "dead")
    back = await undone(rota_app, bulk)

    assert bulk.done >= 3
    assert changed != before
    assert (back.state, back.undone, back.kept) == ("undone", bulk.done, 0)
    assert (rows(rota_database, "jobs"), rows(rota_database, "dead")) == before


async def test_jobs_that_were_cancelled_run_after_it_is_undone(rota_app: TestRota) -> None:
    ran: list[int] = []
    task = rota_app.task(name="task", limit=Limit(running=1))(ran.append)
    plain = rota_app.task(name="plain")(ran.append)
    jobs = [await each.enqueue(n) for n, each in enumerate([task, task, plain])]

    bulk = await done(rota_app, "cancel")
    await rota_app.drain()
    assert ran == []
    await undone(rota_app, bulk)
    await rota_app.drain()

    assert sorted(ran) == [0, 1, 2]
    assert {(await job.refresh()).state for job in jobs} == {"succeeded"}


async def test_a_line_is_in_the_order_of_the_priorities_that_were_given(rota_app: TestRota) -> None:
    ran: list[int] = []
    task = rota_app.task(name="task", limit=Limit(running=1))(ran.append)
    jobs = [await task.enqueue(n) for n in range(4)]

    await done(rota_app, "prioritise", ids=[jobs[2].id, jobs[3].id], priority=5)
    await rota_app.drain()

    assert ran == [2, 3, 0, 1]


async def test_what_has_begun_or_was_changed_since_stays(rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    begun, moved, waits = [await task.enqueue(n) for n in range(3)]
    bulk = await done(rota_app, "move", to="slow")
    begin(rota_database, begun.id)
    await done(rota_app, "move", ids=[moved.id], to="third")

    back = await undone(rota_app, bulk)

    assert (back.undone, back.kept, back.reasons) == (1, 2, {"since": 2})
    assert [(await job.refresh()).queue for job in (begun, moved, waits)] == ["slow", "third", "default"]


async def test_a_retry_that_has_begun_stays_and_the_others_are_letters_again(
    rota_app: TestRota, rota_database: str
) -> None:
    task = rota_app.task(name="task", retry=None)(lambda n: 1 / 0)
    letters = [await task.enqueue(n) for n in range(2)]
    await rota_app.drain()
    bulk = await done(rota_app, "retry", state="dead")
    successors = [(await rota_app.dead.get(letter.id)).successor or 0 for letter in letters]
    begin(rota_database, successors[0])

    back = await undone(rota_app, bulk)

    assert (back.undone, back.kept) == (1, 1)
    assert [(await rota_app.dead.get(letter.id)).resolution for letter in letters] == ["retried", None]
    assert [(await rota_app.jobs.get(each)).state for each in successors] == ["running", "cancelled"]


async def test_a_unique_key_that_was_taken_since_keeps_its_new_holder(rota_app: TestRota) -> None:
    task = rota_app.task(name="task", unique=Unique(by=lambda n: str(n)))(lambda n: None)
    old, other = await task.using(delay="1h").enqueue(1), await task.using(delay="1h").enqueue(2)
    bulk = await done(rota_app, "cancel")
    new = await task.enqueue(1)

    back = await undone(rota_app, bulk)
    again = await task.enqueue(2)

    assert (back.undone, back.kept, back.reasons) == (1, 1, {"since": 1})
    assert [(await job.refresh()).state for job in (old, other, new)] == ["cancelled", "queued", "queued"]
    assert (again.id, again.existing) == (other.id, True)


async def test_jobs_of_a_chain_are_told_of_before_and_stay(rota_app: TestRota) -> None:
    first = rota_app.task(name="first")(lambda n: n)
    second = rota_app.task(name="second")(lambda n: n)
    flow = await first.using(delay="1h").bind(1).then(second).enqueue()
    alone = await first.using(delay="1h").enqueue(2)

    preview = await rota_app.bulk.preview("cancel", task="first")
    bulk = await done(rota_app, "cancel", task="first")
    back = await undone(rota_app, bulk)

    assert (preview.count, preview.for_good) == (2, 1)
    assert (back.undone, back.kept, back.reasons) == (1, 1, {"chained": 1})
    assert (await alone.refresh()).state == "queued"
    assert (await rota_app.jobs.get(flow.jobs[0].id)).state == "cancelled"


async def test_runs_of_a_schedule_are_told_of_before_and_stay(rota_app: TestRota) -> None:
    task = rota_app.task(name="task", retry=None)(lambda n: 1 / 0)
    await rota_app.schedules.put("nightly", task=task, args={"n": 1})
    dead = await rota_app.schedules.trigger("nightly")
    await rota_app.drain()
    waits = await rota_app.schedules.trigger("nightly")
    alone = await task.using(delay="1h").enqueue(2)

    moving = await rota_app.bulk.preview("move", task="task", to="slow")
    preview = await rota_app.bulk.preview("discard", task="task")
    back = await undone(rota_app, await done(rota_app, "discard", task="task"))

    assert (moving.count, moving.for_good) == (2, 0)
    assert (preview.count, preview.for_good) == (3, 2)
    assert (back.undone, back.kept, back.reasons) == (1, 2, {"chained": 2})
    states = [(await rota_app.jobs.get(job.id)).state for job in (dead, waits, alone)]
    assert states == ["cancelled", "cancelled", "queued"]


async def test_it_can_be_undone_for_as_long_as_was_said(rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    await rota_app.enqueue_many([task.using(delay="9h").bind(n) for n in range(3)])
    bulk = await done(rota_app, "cancel", undo_for="10m")
    with psycopg.connect(rota_database, autocommit=True) as db:
        kept = "select count(*) from rota.bulk_jobs"
        await rota_app.database.run(prune_bulks())
        assert db.execute(kept).fetchone() == (3,)

        rota_app.advance("11m")
        await rota_app.database.run(prune_bulks())

        assert db.execute(kept).fetchone() == (0,)
    late = await rota_app.bulk.get(bulk.id)
    assert (late.undoable, late.done) == (False, 3)
    with pytest.raises(NotPossible, match="could be undone until"):
        await rota_app.bulk.undo(bulk.id)
    rota_app.advance("31d")
    await rota_app.database.run(prune_bulks())
    assert list(await rota_app.bulk.list()) == []


async def test_one_that_goes_on_is_stopped_first_and_what_it_did_is_put_back(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    jobs = await rota_app.enqueue_many([task.using(delay="1h").bind(n) for n in range(4)])
    bulk = await turned(rota_app, await rota_app.bulk.start("cancel", pace=0.01))

    with pytest.raises(NotPossible, match="Stop it first: rota bulk stop 1"):
        await rota_app.bulk.undo(bulk.id)
    await rota_app.bulk.stop(bulk.id)
    back = await undone(rota_app, bulk)

    assert (back.done, back.undone, back.state) == (1, 1, "undone")
    assert {(await job.refresh()).state for job in jobs} == {"queued"}
    with pytest.raises(NotPossible, match="nothing that could be put back any more"):
        await rota_app.bulk.undo(bulk.id)


async def test_what_is_erased_is_not_put_back_and_nothing_of_it_is_remembered(
    rota_app: TestRota, rota_database: str
) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    erased = await task.using(delay="1h", tags=["user:42"]).enqueue(1)
    stays = await task.using(delay="1h", tags=["user:43"]).enqueue(2)
    bulk = await done(rota_app, "cancel")

    await rota_app.jobs.erase(tag="user:42")
    with psycopg.connect(rota_database) as db:
        remembered = [job for (job,) in db.execute("select job from rota.bulk_jobs")]
    back = await undone(rota_app, bulk)

    assert remembered == [stays.id]
    assert back.undone == 1
    with pytest.raises(JobNotFound):
        await erased.refresh()
    assert (await stays.refresh()).state == "queued"


async def test_a_job_that_comes_back_while_it_is_retried_is_found(rota_app: TestRota) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    job: Job[Any] = await task.using(delay="1h").enqueue(1)
    bulk = await done(rota_app, "cancel")
    await undone(rota_app, bulk)

    again = await job.retry()

    assert (again.id, again.state) == (job.id, "queued")
    assert again.due_at < job.due_at


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize("by", ["job", "bulk"])
async def test_a_job_that_was_tried_again_since_does_not_come_back(by: str, has_run: bool, rota_app: TestRota) -> None:
    ran: list[int] = []
    task = rota_app.task(name="task")(ran.append)
    job: Job[Any] = await task.enqueue(1)
    bulk = await done(rota_app, "cancel")

    await (job.retry() if by == "job" else done(rota_app, "retry", state="cancelled"))
    await rota_app.drain(queues=["default" if has_run else "other"])
    back = await undone(rota_app, bulk)
    await rota_app.drain()

    assert (back.undone, back.kept, back.reasons) == (0, 1, {"since": 1})
    assert ran == [1]


async def test_a_letter_whose_next_try_has_died_too_does_not_come_back(rota_app: TestRota) -> None:
    task = rota_app.task(name="task", retry=None)(lambda n: 1 / 0)
    letter: Job[Any] = await task.enqueue(1)
    await rota_app.drain()
    bulk = await done(rota_app, "discard", state="dead")
    again = await letter.retry()
    await rota_app.drain()

    back = await undone(rota_app, bulk)

    assert (back.undone, back.kept, back.reasons) == (0, 1, {"since": 1})
    assert [each.id for each in await rota_app.dead.list()] == [again.id]


async def test_bulks_that_are_undone_the_last_first_leave_nothing_behind(rota_app: TestRota) -> None:
    ran: list[int] = []
    task = rota_app.task(name="task")(ran.append)
    job: Job[Any] = await task.enqueue(1)
    cancel = await done(rota_app, "cancel")
    retry = await done(rota_app, "retry", state="cancelled")

    await undone(rota_app, retry)
    back = await undone(rota_app, cancel)
    await rota_app.drain()

    assert (back.undone, back.kept) == (1, 0)
    assert (await job.refresh()).state == "succeeded"
    assert ran == [1]


async def test_a_second_try_after_one_that_never_began_counts(rota_app: TestRota) -> None:
    ran: list[int] = []
    task = rota_app.task(name="task")(ran.append)
    job: Job[Any] = await task.enqueue(1)
    bulk = await done(rota_app, "cancel")
    unbegun = await job.retry()
    await unbegun.cancel()
    await unbegun.retry()

    back = await undone(rota_app, bulk)
    await rota_app.drain()

    assert (back.undone, back.kept) == (0, 1)
    assert ran == [1]


async def test_an_undo_waits_for_who_tries_the_job_again_at_that_moment(rota_app: TestRota, rota_database: str) -> None:
    task = rota_app.task(name="task")(lambda n: None)
    job: Job[Any] = await task.enqueue(1)
    bulk = await rota_app.bulk.undo((await done(rota_app, "cancel")).id)

    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(rota_database, autocommit=True) as db, psycopg.connect(rota_database) as other:
        for query in (lock_settled([job.id]), repeat_jobs([job.id], "wake")):
            other.execute(query.statement.sql("rota").encode(), query.params)
        undoing = asyncio.create_task(turned(rota_app, bulk))
        await until(lambda: db.execute(waiting).rowcount == 1, what="the turn waits for who tries it again")
        other.commit()
    back = await undoing

    assert (back.undone, back.kept, back.reasons) == (0, 1, {"since": 1})
