"""Why a job is not running, in words that tell what to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.leases.test_members import ask

from rota import JobNotFound, Retry, current_job
from rota.leases.members import join_member, leave_member
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


def add(db: psycopg.Connection[Any], count: int = 1, **columns: Any) -> int:
    """Jobs of task t; returns the id of the last."""
    row = {"task": "t", **columns}
    names, values = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    made = db.execute(
        f"insert into rota.jobs ({names}) select {values} from generate_series(1, {count}) returning id", row
    ).fetchall()
    return int(made[-1][0])


def join(
    db: psycopg.Connection[Any],
    name: str = "host:1",
    *,
    queues: list[str] | None = None,
    concurrency: int = 2,
    tasks: dict[str, int] | None = None,
    lease: float = 60,
) -> UUID:
    """A worker, as far as the database knows."""
    member = uuid4()
    work = {"queues": queues, "concurrency": concurrency, "tasks": {"t": 1} if tasks is None else tasks}
    ask(
        db,
        join_member(
            member, name=name, host="h", pid=1, release="0", lease=timedelta(seconds=lease), key=None, work=work
        ),
    )
    return member


def why(app: TestRota, id: int) -> str:
    return " ".join(app.jobs.explain_sync(id).reasons)


def test_nobody_is_there_to_run_it(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    job = add(db)
    assert why(rota_app, job) == "No worker is running. Start one: rota worker APP."

    ask(db, leave_member(join(db, "left:1")))
    join(db, "died:1", lease=-1)
    assert why(rota_app, job).startswith("No worker is running (died:1 was last heard of at ")


def test_nobody_takes_its_queue(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    job = add(db, queue="mail")
    join(db, queues=["images", "default"])

    assert why(rota_app, job) == (
        "No running worker takes jobs from queue 'mail': they take those from default, images. Start one that does: "
        "rota worker APP --queues mail."
    )


def test_nobody_knows_its_task(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    job = add(db)
    join(db, tasks={"other": 1})
    join(db, queues=["elsewhere"])

    assert "No running worker on queue 'default' knows the task 't'" in why(rota_app, job)


def test_nobody_knows_its_version(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    job = add(db, version=3)
    join(db, tasks={"t": 2})
    join(db)

    assert "version 3 of its task, and the running workers know 't' up to version 2" in why(rota_app, job)


def test_all_who_could_take_it_are_busy(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    busy = join(db)
    join(db, queues=["elsewhere"])
    add(db, 2, state="running", member=busy, token=1, attempt=1, claimed_at="2024-01-01 UTC")
    add(db, 3, priority=5)
    add(db, 4)
    add(db, 1, priority=5, due_at="2999-01-01 UTC")
    add(db, 1, queue="elsewhere")
    job = add(db)
    add(db, 2)
    add(db, 1, priority=-1)

    assert why(rota_app, job) == (
        "Due jobs ahead of it in queue 'default': 7. They are taken first. Every worker that could take it is busy: all of "
        "their 2 slot(s) are taken. It starts when one of those ends; more workers, or a higher --concurrency, would start it sooner."
    )


def test_counting_those_ahead_ends_somewhere(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    join(db)
    add(db, 6_000, priority=2)
    add(db, 6_000, priority=1)
    job = add(db, priority=1)

    assert "Due jobs ahead of it in queue 'default': 10000+." in why(rota_app, job)


def test_it_was_just_now_due(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    join(db, "host:42")
    job = add(db)

    assert "host:42 has room for it: it is taken within moments" in why(rota_app, job)


def test_it_went_down_with_its_process(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    join(db)
    job = add(db, losses=2)

    assert "(losses: 2), so it is taken on probation" in why(rota_app, job)


def test_it_is_blocked(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    assert "It joins its line within moments." in why(rota_app, add(db, state="blocked", key="k"))


def test_it_is_due_later_and_nobody_would_run_it_then(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    job = rota_app.task(name="t")(lambda: None).using(delay="90m").enqueue_sync()

    explanation = rota_app.jobs.explain_sync(job.id)

    due, nobody = explanation.reasons
    assert "UTC, in 1 h 29 min. To run it now: rota jobs retry" in due
    assert nobody.startswith("No worker is running")
    assert (explanation.state, explanation.job.id) == ("queued", job.id)
    assert str(explanation) == f"Job {job.id} (t) is queued.\n{due}\n{nobody}"


async def test_it_failed_and_waits_for_its_next_attempt(rota_app: TestRota) -> None:
    @rota_app.task(retry=Retry(3, base="30m", cap="1h", jitter=False))
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue()
    await rota_app.drain()

    failed, due, _ = (await rota_app.jobs.explain(job.id)).reasons
    assert failed.startswith("Attempt 1 failed at ")
    assert failed.endswith(" with ValueError: no.")
    assert "UTC, in 29 min 5" in due


async def test_it_is_running(rota_app: TestRota) -> None:
    told: list[str] = []

    @rota_app.task
    def run() -> None:
        current_job().progress_sync(0.4, "resizing")
        told.append(why(rota_app, current_job().id))
        rota_app.jobs.cancel_sync(current_job().id, "enough")
        told.append(why(rota_app, current_job().id))

    await run.enqueue()
    await rota_app.drain()

    before, after = told
    assert before.startswith("Attempt 1 is run by ")
    assert before.endswith("It reports 40%: resizing")
    assert (
        "it is to be cancelled (enough), and its body has not ended yet. If it never does: rota jobs discard" in after
    )


def test_it_runs_where_nobody_answers(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    gone = join(db, "gone:7", lease=-1)
    job = add(db, state="running", member=gone, token=1, attempt=1, claimed_at="2024-01-01 UTC")

    assert "is run by gone:7 since 2024-01-01 00:00:00 UTC" in why(rota_app, job)
    assert "That process does not answer any more" in why(rota_app, job)


async def test_it_has_settled(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def do(well: bool) -> None:
        if not well:
            raise ValueError("badly")

    done, dead, cancelled = await do.enqueue(True), await do.enqueue(False), await do.using(delay=60).enqueue(True)
    await cancelled.cancel("too late")
    await rota_app.drain()

    assert "It succeeded at" in why(rota_app, done.id)
    assert f"for this reason: too late. For the same call after all: rota jobs retry {cancelled.id}." in why(
        rota_app, cancelled.id
    )
    assert "Attempt 1, its last, failed at" in why(rota_app, dead.id)
    assert "with ValueError: badly. It stays until someone decides: `rota dead retry" in why(rota_app, dead.id)

    again = await rota_app.dead.retry(dead.id, by="ana")
    assert why(rota_app, dead.id).endswith(f"see job {again.id}.")
    assert why(rota_app, again.id).endswith(f"It repeats job {dead.id}.")
    with pytest.raises(JobNotFound):
        await rota_app.jobs.explain(999)


async def test_a_letter_tells_how_it_was_put_away(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    db.execute(
        "insert into rota.dead (id, created_at, due_at, attempt, losses, priority, version, reason, queue, task, args) "
        "values (5, rota.now(), rota.now(), 3, 3, 0, 1, 'lost', 'default', 't', '{}')"
    )
    assert "It went down with its process 3 times" in why(rota_app, 5)

    await rota_app.dead.acknowledge(5, "a bad machine", by="ana")
    assert "ana acknowledged it at" in why(rota_app, 5)
    assert why(rota_app, 5).endswith(": a bad machine")


def test_looking_around_reads_no_more_than_it_counts(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    from rota.jobs.explain import _look_around

    add(db, 60_000)
    add(db, 30_000, priority=3, due_at="2999-01-01 UTC")
    db.execute("analyze rota.jobs")
    query = _look_around(rota_app.jobs.get_sync(50_000))
    plan = db.execute(
        "explain (analyze, format json) " + query.statement.sql("rota"), query.params, prepare=False
    ).fetchone()
    assert plan is not None

    assert _rows_read(plan[0][0]["Plan"]) < 12_000


def _rows_read(node: dict[str, Any]) -> int:
    own = 0
    if node.get("Relation Name") == "jobs":
        own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return int(own) + sum(_rows_read(each) for each in node.get("Plans", ()))
