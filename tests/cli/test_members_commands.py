"""`rota members`: which processes there are, how they are, and having one rest or end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from rota.testing import TestRota, WorkerProcess, until_sync

pytestmark = [pytest.mark.usefixtures("history_aside"), pytest.mark.one_server]

Run = Callable[..., Any]
StartWorker = Callable[..., WorkerProcess]

APP = """
import asyncio
from rota import Rota

app = Rota(release="2024.1")

@app.task(name="nap")
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)
"""


@pytest.fixture
def app(rota_app: TestRota) -> TestRota:
    @rota_app.task(name="nap")
    async def nap(seconds: float) -> None:
        raise AssertionError("runs in another process")

    return rota_app


def test_a_process_is_shown_with_how_it_is_rests_goes_on_and_ends(
    rota: Run, app: TestRota, rota_worker: StartWorker, rota_database: str
) -> None:
    worker = rota_worker(APP)
    job = app.tasks["nap"].enqueue_sync(600)
    until_sync(lambda: app.jobs.get_sync(job.id).state == "running", 20)
    (view,) = app.members_sync()

    def members(*arguments: str) -> Any:
        return rota("members", *arguments, "--dsn", rota_database)

    def condition() -> dict[str, Any]:
        return json.loads(members("show", view.name, "--json").out)["condition"] or {}

    until_sync(lambda: condition().get("running") == 1, 20, "it tells that one of its slots is taken")
    told = condition()
    shown, listed = members("show", str(view.id)).out, members("list").out
    quieted = members("quiet", view.name, "--by", "ana")
    until_sync(lambda: "quiet since" in members("list").out, 20)
    resumed = members("resume", view.name)
    until_sync(lambda: "quiet since" not in members("list").out, 20)
    refused = members("resume", view.name)
    would = members("drain", view.name, "--dry-run")
    late = members("drain", view.name, "--wait", "300ms")
    until_sync(lambda: "draining since" in members("list").out, 20)
    worker.terminate()  # what it runs takes too long: the second signal hands it back
    assert worker.wait(20) == 0
    ended = members("list", "--all").out

    assert told["rss"] > 1_000_000
    assert (told["slots"], told["pools"]["app"]["most"]) == (20, 10)
    assert all(f"{name} " in shown for name in ("memory", "loop", "slots", "pool app", "drain"))
    assert f"nap {job.id}" in shown
    assert "it would exit with 0" in shown
    assert ("1 of 20" in listed, "2024.1" in listed, " MB" in listed) == (True, True, True)
    assert (quieted.code, "is asked to take on nothing new" in quieted.err) == (0, True)
    assert (resumed.code, "is asked to work again" in resumed.err) == (0, True)
    assert (refused.code, "Nobody wanted" in refused.err) == (1, True)
    assert (would.code, "would be asked to end" in would.err) == (0, True)
    assert (late.code, "is not done" in late.err) == (1, True)
    assert "stopped cleanly" in ended


def test_how_processes_ended_is_told_in_words(rota: Run, rota_database: str) -> None:
    with psycopg.connect(rota_database, autocommit=True) as db:
        for reason in ("left", "expired", "suspected"):
            db.execute(
                "insert into rota.members (id, name, host, pid, release, expires_at, ended_at, end_reason) "
                "values (%s, %s, 'h', 1, '0.1', now(), now(), %s)",
                [uuid4(), f"was {reason}", reason],
            )

    listed = rota("members", "list", "--all", "--dsn", rota_database).out
    unknown = rota("members", "show", "nobody", "--dsn", rota_database)

    assert "stopped cleanly" in listed
    assert "died (silent for a whole lease)" in listed
    assert "died (its session ended)" in listed
    assert (unknown.code, "No process is called 'nobody'" in unknown.err) == (1, True)
