"""Putting jobs there, whatever the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from rota import Retry
from rota.testing import TestRota


@pytest.fixture
def fill_notifications(own_server: Any) -> Iterator[Callable[[], None]]:
    """Brings its server to refuse every commit that notifies: some session listens, and sleeps in a transaction."""
    if own_server.binaries.major < 17:
        pytest.skip("before PostgreSQL 17 the queue always has 8 GB, which take minutes to fill")
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        admin.execute("alter system set max_notify_queue_pages = 64")
    own_server.restart("fast")
    with (
        psycopg.connect(own_server.dsn, autocommit=True) as admin,
        psycopg.connect(own_server.dsn, autocommit=True) as listener,
    ):

        def fill() -> None:
            listener.execute("listen something")
            listener.execute("begin")
            listener.execute("select 1")
            with contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
                while True:
                    admin.execute(
                        "select pg_notify('something', repeat('x', 4000) || n) from generate_series(1, 5) as n"
                    )

        yield fill


def test_a_full_queue_of_notifications_stops_nobody_who_adds_repeats_or_erases_jobs(
    own_server: Any, fill_notifications: Callable[[], None]
) -> None:
    app = TestRota(own_server.dsn)

    @app.task(retry=Retry(attempts=1))
    def invert(n: int) -> float:
        return 1 / n

    settled, dead = app.enqueue_many_sync([invert.bind(1), invert.bind(0)])
    app.drain_sync()
    waiting = invert.using(delay="1h").enqueue_sync(2)
    running = invert.using(tags=["ada"]).enqueue_sync(0)
    with psycopg.connect(own_server.dsn, autocommit=True) as db:
        db.execute(
            "update rota.jobs set state = 'running', token = 1, member = gen_random_uuid() where id = %s", [running.id]
        )
        fill_notifications()

        app.jobs.retry_sync(waiting.id)
        app.jobs.retry_sync(settled.id)
        app.dead.retry_sync(dead.id)
        app.jobs.erase_sync(tag="ada")
        invert.enqueue_sync(3)
        app.enqueue_many_sync([invert.bind(4)])
        invert.using(unique="once").enqueue_sync(5)
        db.execute("""select rota.enqueue('invert', '{"n": 6}')""")
        with psycopg.connect(own_server.dsn) as user:
            invert.on(user).enqueue_sync(7)

    assert sorted(job.args["n"] for job in app.jobs.list_sync(state="queued")) == list(range(8))
    app.close_everywhere()


def test_a_wake_up_costs_no_call_of_its_own(rota_database: str) -> None:
    with psycopg.connect(rota_database) as db:
        rows = db.execute("explain (verbose, costs off) select rota.notify('channel', 'queue')").fetchall()

    assert "CASE WHEN (pg_notification_queue_usage() < '0.9'" in rows[-1][0]
