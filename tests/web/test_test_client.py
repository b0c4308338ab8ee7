"""An attached application under the client that FastAPI and Starlette bring for tests: each gives it a loop in a thread of its own."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI

from rota import Rota
from rota.service.ending import ENDING
from rota.testing import until_sync

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have another library for HTTP
    from fastapi.testclient import TestClient

pytestmark = [pytest.mark.one_server, pytest.mark.direct("sessions are the pooler's there")]

Attached = Callable[[], tuple[Rota, FastAPI]]
SESSIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'rota:app%'"
)


@pytest.fixture
def sessions(rota_database: str) -> Iterator[Callable[[], int]]:
    """How many connections of apps there are."""
    with psycopg.connect(rota_database, autocommit=True) as admin:

        def count() -> int:
            row = admin.execute(SESSIONS).fetchone()
            assert row is not None
            return int(row[0])

        yield count


@pytest.fixture
def attached(rota_database: str) -> Iterator[Attached]:
    """Makes a web application with a Rota; not one of the test kit's, which has its own way with event loops."""
    with contextlib.ExitStack() as stack:

        def make() -> tuple[Rota, FastAPI]:
            app, api = stack.enter_context(Rota(rota_database)), FastAPI()

            @app.task(name="double")
            async def double(number: int) -> int:
                return number * 2

            @api.post("/jobs/{number}")
            async def enqueue(number: int, wait: bool = False) -> dict[str, Any]:
                job = await double.enqueue(number)
                return {"job": job.id, "result": await job.wait(timeout=20) if wait else None}

            app.attach(api)
            return app, api

        yield make


def ready(client: TestClient) -> tuple[int, Any]:
    answer = client.get("/health/ready")
    return answer.status_code, answer.json()


def test_in_a_block_there_is_a_worker_and_after_it_nothing_is_left(
    attached: Attached, sessions: Callable[[], int]
) -> None:
    app, api = attached()
    for _ in range(2):  # an application may be started again
        with TestClient(api) as client:
            assert client.post("/jobs/21?wait=true").json()["result"] == 42
            until_sync(lambda: ready(client) == (200, {"ready": True}))
        until_sync(lambda: sessions() == 0, what="the pool is closed")

    assert [member.end_reason for member in app.members_sync(ended=True)] == ["left", "left"]


def test_without_a_block_jobs_wait_and_connections_do_not_add_up(
    attached: Attached, sessions: Callable[[], int]
) -> None:
    """Such a client has a loop for each request, which is closed behind it: nothing of Rota's hears of that."""
    app, api = attached()
    client, most = TestClient(api), 0
    for number in range(10):
        assert client.post(f"/jobs/{number}").json()["result"] is None
        most = max(most, sessions())

    assert most <= 4  # of one loop, and of the one before, whose end the server is about to see
    assert len(app.jobs.list_sync(state="queued")) == 10
    app.close_sync()
    until_sync(lambda: sessions() == 0, what="all is closed")


def test_two_rotas_in_one_process_each_have_a_worker_and_one_end(attached: Attached) -> None:
    (first, one), (second, other) = attached(), attached()
    with TestClient(one) as client, TestClient(other) as beside:
        until_sync(lambda: ready(client)[0] == ready(beside)[0] == 200)
        assert len(first.members_sync()) == 2  # each is its own
        assert [each.post("/jobs/21?wait=true").json()["result"] for each in (client, beside)] == [42, 42]

        ENDING.begin("SIGTERM")

        assert ready(client) == ready(beside) == (503, {"ready": False, "reason": "shutting_down"})
        assert client.post("/jobs/21").status_code == 200

    assert [member.end_reason for member in second.members_sync(ended=True)] == ["left", "left"]
