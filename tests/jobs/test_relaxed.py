"""Relaxed queues: their successes count before they are on disk, and a crash of the server loses none that a worker still knows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from tests.jobs.test_explain import add
from tests.jobs.test_queues import RUNNING, Db, audit, row

from rota import ConfigurationError, Rota, RotaError
from rota.clock import boottime
from rota.facts import SuccessesRepeated, WorkerStarted
from rota.jobs.claim import ClaimedJob
from rota.jobs.outcome import Succeeded
from rota.jobs.relaxed import Relaxed
from rota.jobs.settle import succeed
from rota.jobs.worker import WorkerSettings
from rota.postgres.ask import ask_sync
from rota.testing import TestRota, fact, until, until_sync


@pytest.fixture
def db(rota_database: str) -> Iterator[Db]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


async def test_a_queue_is_relaxed_and_tightened(rota_app: TestRota, db: Db) -> None:
    queues = rota_app.queues
    assert not queues.get_sync("metrics").relaxed
    assert (await queues.relax("metrics", by="ana")).relaxed
    assert [queue.name for queue in await queues.list()] == ["metrics"]
    assert not (await queues.tighten("metrics", by="bo")).relaxed
    assert queues.relax_sync("metrics", by="ana", dry_run=True).relaxed
    assert not queues.tighten_sync("metrics", by="bo", dry_run=True).relaxed
    assert row(db, "metrics", "relaxed, changed_by") == (False, "bo")
    assert audit(db) == [
        ("ana", "queue.relax", {"queue": "metrics"}),
        ("bo", "queue.tighten", {"queue": "metrics"}),
    ]
    with pytest.raises(ConfigurationError, match="each queue is relaxed, or not, by itself"):
        await queues.relax(None)  # type: ignore[arg-type]


def wait_until_it_answers(dsn: str) -> psycopg.Connection[Any]:
    def connection() -> psycopg.Connection[Any] | None:
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(dsn, autocommit=True)
        return None

    found = until_sync(connection, timeout=60, what="PostgreSQL has recovered")
    assert found is not None
    return found


@contextmanager
def nothing_written_by_others(dsn: str) -> Iterator[Callable[[], None]]:
    """While what is committed without waiting for the disk stays in memory. Gives what crashes the server, and waits for that."""
    with wait_until_it_answers(dsn) as db:
        # whose commits would take all before them to the disk
        db.execute("alter system set autovacuum = off")
        db.execute("alter system set bgwriter_lru_maxpages = 0")
        db.execute("select pg_reload_conf()")
        found = db.execute("select pid from pg_stat_activity where backend_type = 'walwriter'").fetchone()
        assert found is not None
        (writer,) = found
        os.kill(writer, signal.SIGSTOP)

        def crash() -> None:
            # PostgreSQL begins anew from its disk when one of its processes dies
            os.kill(writer, signal.SIGKILL)
            until_sync(lambda: _is_gone(db), what="the crash")

        try:
            yield crash
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(writer, signal.SIGCONT)


def _is_gone(db: psycopg.Connection[Any]) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        db.execute("select")
    return db.closed


@pytest.mark.parametrize(
    ("queues", "may_relax", "is_lost"),
    [
        (("metrics",), True, True),
        (("money",), True, False),
        (("metrics", "money"), True, False),
        (("metrics",), False, False),
    ],
)
def test_only_successes_of_relaxed_queues_may_be_lost_by_a_server(
    own_server: Any, queues: tuple[str, ...], may_relax: bool, is_lost: bool
) -> None:
    # something else may take it to the disk in that moment
    assert any(_forgets(own_server.dsn, queues, may_relax) for _ in range(5 if is_lost else 1)) is is_lost


def _forgets(dsn: str, queues: tuple[str, ...], may_relax: bool) -> bool:
    """Whether a server that crashes has forgotten successes of these queues."""
    with wait_until_it_answers(dsn) as db:
        db.execute(
            "delete from rota.jobs; insert into rota.queues (name, relaxed) values ('metrics', true) on conflict do nothing"
        )
        for queue in queues:
            add(db, 1, queue=queue, **RUNNING)
        ids = [id for (id,) in db.execute("select id from rota.jobs order by id").fetchall()]
        with nothing_written_by_others(dsn) as crash:
            written = ask_sync(db, "rota", succeed([_success(id) for id in ids], may_relax=may_relax))
            assert written == {(id, 1) for id in ids}
            assert written.relaxed is (may_relax and queues == ("metrics",))
            crash()
    with wait_until_it_answers(dsn) as db:
        return bool(db.execute("select from rota.jobs").fetchall())


def _success(id: int) -> Succeeded:
    return Succeeded(ClaimedJob(id, "metrics", "t", 0, 1, 0, 0.0, "{}", 1), None, 0.1)


@pytest.mark.parametrize("then", ["it goes on", "it rests", "it stops"])
async def test_what_a_server_has_forgotten_its_worker_says_again(
    own_server: Any, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.workers.WorkerSettings", functools.partial(WorkerSettings, rescue_every=0.5))
    ran: list[int] = []
    async with Rota(own_server.dsn) as app:

        @app.task(queue="metrics")
        async def note(n: int) -> int:
            ran.append(n)
            return n

        await app.queues.relax("metrics")
        started = fact(app.facts, WorkerStarted)
        working = asyncio.create_task(app.work(grace=60))
        await started
        # the first settles of a worker make its connection, and know nothing of it
        await (await note.enqueue(0)).wait()
        for n in range(1, 6):
            with app.facts.recorded(SuccessesRepeated) as repeated, nothing_written_by_others(own_server.dsn) as crash:
                job = await note.enqueue(n)
                await job.wait()
                if then == "it rests":
                    app.workings[0]._worker.pause()
                crash()
                if then == "it stops":
                    app.stop()
                    await working
                else:
                    await until(lambda: _settled(app, job.id), timeout=60, what="what was forgotten is on record again")  # noqa: B023
            # unless something else took it to the disk in that moment
            if then == "it stops" or repeated:
                break
            app.workings[0]._worker.resume()
        if then != "it stops":
            app.stop()
            await working
            assert [told.jobs for told in repeated] == [1]
        with wait_until_it_answers(own_server.dsn) as db:
            assert db.execute("select from rota.jobs").fetchall() == []
            assert db.execute("select result from rota.history order by id").fetchall() == [
                (each,) for each in range(n + 1)
            ]
        assert ran == list(range(n + 1))


async def _settled(app: Rota, id: int) -> bool:
    with contextlib.suppress(RotaError):
        return (await app.jobs.get(id)).state == "succeeded"
    return False


def test_what_is_on_disk_is_not_kept() -> None:
    relaxed, batch = Relaxed(), [_success(1)]
    relaxed.answered(boottime(), (1, 0), on_disk=True)
    relaxed.add(batch)
    relaxed.answered(boottime(), (1, 1), on_disk=False)  # a session that was not there before
    assert relaxed.doubtful == []

    relaxed.answered(boottime(), (2, 1), on_disk=True)
    assert relaxed.doubtful == batch, "a new session may be that of a server that has forgotten it"

    relaxed.doubtful = []
    relaxed.add(batch)
    relaxed.answered(boottime() + 0.001, (2, 1), on_disk=True)
    relaxed.answered(boottime() + 0.002, (3, 1), on_disk=True)
    assert relaxed.doubtful == [], "what came later is on disk, and so is this"

    relaxed.add(batch)
    relaxed.answered(boottime() + 7, (3, 1), on_disk=False)
    relaxed.answered(boottime() + 8, (3, 2), on_disk=False)
    assert relaxed.doubtful == [], "the server has lived on for longer than it takes its time"
