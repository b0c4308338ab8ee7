"""What may be asked of `app.jobs` and `app.dead`, and what is refused before the database is asked."""

from __future__ import annotations

from typing import Any

import pytest

from rota import ConfigurationError, JobNotFound, Rota
from rota.testing import TestRota

pytestmark = pytest.mark.usefixtures("history_aside")


async def test_jobs_and_letters_are_found_by_their_task_or_its_name(rota_app: TestRota) -> None:
    good = rota_app.task(name="good")(lambda: None)
    bad = rota_app.task(name="bad", retry=None)(lambda: 1 / 0)
    (first, second) = (await good.enqueue(), await bad.enqueue())
    await rota_app.drain()

    for task in (good, "good"):
        assert [job.id for job in await rota_app.jobs.list(task=task)] == [first.id]
        assert [job.id for job in rota_app.jobs.list_sync(task=task)] == [first.id]
    for task in (bad, "bad"):
        assert [letter.id for letter in await rota_app.dead.list(task=task)] == [second.id]
    assert await rota_app.dead.list(task=good) == []
    assert await rota_app.dead.retry_many(task=bad, dry_run=True) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"after": "x"}, "after cannot be 'x': it is the id of a job, the last of the page before"),
        ({"after": 0}, "after cannot be 0"),
        ({"after": True}, "after cannot be True"),
        ({"after": 2**63}, "after cannot be 9223372036854775808"),
        ({"limit": "x"}, "limit cannot be 'x': it is a number from 1 to 10000"),
        ({"limit": True}, "limit cannot be True"),
        ({"task": len}, "task cannot be <built-in function len>: it is a text to choose by, or None"),
        ({"queue": ["mail"]}, "queue cannot be \\['mail'\\]: it is a text to choose by, or None"),
        ({"tag": 7}, "tag cannot be 7: it is a text to choose by, or None"),
    ],
)
def test_what_nothing_can_be_chosen_by_is_refused(wrong: dict[str, Any], says: str) -> None:
    app = Rota("dbname=nowhere")

    with pytest.raises(ConfigurationError, match=says):
        app.jobs.list_sync(**wrong)
    with pytest.raises(ConfigurationError, match=says):
        app.dead.list_sync(**wrong)


async def test_a_dry_run_tells_what_would_be_and_leaves_all_as_it_is(rota_app: TestRota) -> None:
    job = await rota_app.task(name="t")(lambda: None).using(delay="1h").enqueue()

    assert (await rota_app.jobs.cancel(job.id, "why", dry_run=True)).state == "cancelled"
    assert (await rota_app.jobs.discard(job.id, dry_run=True)).state == "cancelled"
    assert (await rota_app.jobs.retry(job.id, dry_run=True)).due_at < job.due_at
    with pytest.raises(JobNotFound):
        await rota_app.jobs.cancel(999, dry_run=True)
    assert await job.refresh() == await rota_app.jobs.get(job.id) == job


async def test_a_dry_run_leaves_a_letter_open(rota_app: TestRota) -> None:
    await rota_app.task(name="t", retry=None)(lambda: 1 / 0).enqueue()
    await rota_app.drain()
    (letter,) = await rota_app.dead.list()

    assert (await rota_app.dead.retry(letter.id, dry_run=True)).origin == letter.id
    assert (await rota_app.dead.acknowledge(letter.id, "note", dry_run=True)).note == "note"
    assert await rota_app.dead.list() == [letter]
    assert rota_app.enqueued() == []
