"""Job logs: what bodies log is kept with their runs, bounded, on the side, and never at the cost of a body."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.jobs.statements import ask
from tests.jobs.test_cancel import at_work

from rota import ConfigurationError, JobNotFound, Retry, Rota, current_job
from rota.cli.target import find_app
from rota.facts import DatabaseLost, LogLinesDropped
from rota.jobs.claim import ClaimedJob
from rota.jobs.erase import Erasing, erase_batch
from rota.jobs.logs import notes as notes_room
from rota.jobs.logs import write as write_room
from rota.jobs.logs.level import OFF, read_app_level
from rota.jobs.logs.notes import Parcel
from rota.jobs.logs.run import FIRST_LINES, NEWEST_LINES, Line, Run
from rota.jobs.logs.write import append_lines
from rota.postgres.query import Query, Steps, statement
from rota.testing import TestRota, fact, until, until_sync

pytestmark = pytest.mark.usefixtures("history_aside", "patient_logs")

logger = logging.getLogger("shop")
SECRET = "open sesame, said the thief"


@pytest.fixture
def db(rota_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(rota_database, autocommit=True) as connection:
        yield connection


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    """As a program has it that shows more than warnings."""
    caplog.set_level(logging.INFO)


def leave_out_pytest(monkeypatch: pytest.MonkeyPatch, *handlers: logging.Handler) -> None:
    """Its handlers raise what is wrong with a record, keep all of them, and are there for the length of a test alone."""
    monkeypatch.setattr(logging.root, "handlers", list(handlers))


def told(lines: Any) -> list[tuple[int, str]]:
    return [(line.attempt, line.message) for line in lines]


async def test_what_a_body_logs_is_kept_with_its_attempt(rota_app: TestRota) -> None:
    @rota_app.task(logs="info", retry=Retry(2, base=0.0))
    async def by_loop() -> None:
        logger.info("begun %s", current_job().attempt)
        await asyncio.to_thread(logger.warning, "in a thread of its own")
        await asyncio.create_task(_in_a_task())
        if current_job().attempt == 1:
            raise ConnectionError

    @rota_app.task(logs="info")
    def by_thread() -> None:
        logging.getLogger("shop.till").error("in a thread")

    first, second = await by_loop.enqueue(), await by_thread.enqueue()
    before = datetime.now(UTC)
    await rota_app.drain()
    await rota_app.drain()

    lines = await rota_app.jobs.logs(first.id)
    assert told(lines) == [
        (1, "begun 1"),
        (1, "in a thread of its own"),
        (1, "in a task of its own"),
        (2, "begun 2"),
        (2, "in a thread of its own"),
        (2, "in a task of its own"),
    ]
    assert [line.number for line in lines] == [1, 2, 3, 1, 2, 3]
    assert lines == rota_app.jobs.logs_sync(first.id)
    assert told(await rota_app.jobs.logs(first.id, attempt=2)) == told(lines[3:])
    (line,) = await rota_app.jobs.logs(second.id)
    assert (line.job, line.level, line.logger, line.message) == (second.id, "error", "shop.till", "in a thread")
    assert abs(line.logged_at - before) < timedelta(minutes=1)


async def _in_a_task() -> None:
    logger.info("in a task of its own")


@pytest.mark.parametrize(
    ("of_the_app", "of_the_task", "kept"),
    [
        (None, None, ["warning", "error"]),
        ("info", None, ["info", "warning", "error"]),
        (logging.ERROR, None, ["error"]),
        ("off", None, []),
        ("off", "WARNING", ["warning", "error"]),
        ("info", False, []),
    ],
)
async def test_records_are_kept_from_the_level_on_that_app_or_task_say(
    rota_database: str, of_the_app: Any, of_the_task: Any, kept: list[str]
) -> None:
    async with Rota(rota_database, job_logs=of_the_app) as app:

        @app.task(logs=of_the_task)
        async def chat() -> None:
            for level in ("debug", "info", "warning", "error"):
                getattr(logger, level)(level)

        job = await chat.enqueue()
        await app.work(drain=True)

        assert [line.level for line in await app.jobs.logs(job.id)] == kept


@pytest.mark.parametrize(
    ("variable", "level"), [("", 30), ("info", 20), ("OFF", OFF), ("15", 15), ("error", 40), ("critical", 50)]
)
def test_the_environment_says_it_where_the_app_does_not(variable: str, level: int) -> None:
    assert read_app_level(None, {"ROTA_JOB_LOGS": variable}) == level
    assert read_app_level("debug", {"ROTA_JOB_LOGS": variable}) == 10


@pytest.mark.parametrize("level", ["loud", True, -1, 2.5, None])
def test_what_is_no_level_is_refused(level: Any) -> None:
    app = Rota("postgresql://nowhere/x")
    with pytest.raises(ConfigurationError, match="logs cannot be .*debug, info, warning"):
        app.task(logs=level if level is not None else "")
    with pytest.raises(ConfigurationError, match="job_logs cannot be"):
        Rota("postgresql://nowhere/x", job_logs=level if level is not None else "")


async def test_the_handler_is_there_while_a_worker_keeps_logs_and_only_then(rota_database: str) -> None:
    async def handlers(job_logs: Any) -> int:
        async with Rota(rota_database, job_logs=job_logs) as app:

            @app.task
            async def count() -> int:
                return len(logging.root.handlers)

            job = await count.enqueue()
            await app.work(drain=True)
            number: int = await job.wait()
            return number

    before = len(logging.root.handlers)

    assert (await handlers("info"), await handlers("off")) == (before + 1, before)
    assert len(logging.root.handlers) == before


async def test_a_job_that_logs_nothing_writes_nothing(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task
    async def quiet() -> bool:
        logger.info("below what is kept")
        return hasattr(current_job()._held, "log")

    job = await quiet.enqueue()
    await rota_app.drain()

    assert await job.wait() is False
    assert db.execute("select is_called from rota.log_ids").fetchone() == (False,)


async def test_what_nobody_handles_is_printed_as_without_us(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    last = logging.Handler(logging.WARNING)
    last.emit = lambda record: printed.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(logging, "lastResort", last)
    leave_out_pytest(monkeypatch)
    handled = logging.getLogger("handled")
    monkeypatch.setattr(handled, "handlers", [logging.NullHandler()])

    @rota_app.task
    async def chat() -> None:
        logger.info("hidden")
        logger.warning("shown")
        handled.warning("someone has it")
        logging.getLogger("handled.within").warning("and this")

    job = await chat.enqueue()
    await rota_app.drain()

    assert printed == ["shown"]
    assert [line.message for line in await rota_app.jobs.logs(job.id)] == ["shown", "someone has it", "and this"]


class Broken:
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = object.__repr__


async def test_whatever_is_logged_neither_harms_the_body_nor_the_lines_of_others(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_pytest(monkeypatch, logging.NullHandler())

    @rota_app.task
    async def chat() -> str:
        logger.warning("null \0 and half a character \udce9")
        logger.warning("%d items", "many")
        logger.warning("%s", Broken())
        logger.warning("a" * 50_000 + "b" * 50_000)
        logging.getLogger("x" * 1000).warning("")
        logging.getLogger("shop").log(99_999, "beyond")
        return "unharmed"

    job = await chat.enqueue()
    await rota_app.drain()

    assert await job.wait() == "unharmed"
    lines = await rota_app.jobs.logs(job.id)
    assert [line.message for line in lines[:2]] == [
        "null \\0 and half a character \\udce9",
        "'%d items' does not go with ('many',)",
    ]
    assert "does not go with" in lines[2].message
    assert lines[3].message == "a" * 2000 + "…" + "b" * 1999
    assert len(lines[4].logger) == 200
    assert (lines[5].level, lines[5].message) == ("level 32767", "beyond")


async def test_an_exception_is_kept_with_the_end_of_its_trace(rota_app: TestRota) -> None:
    @rota_app.task
    async def stumble() -> None:
        try:
            raise ValueError("v" * 5000 + " at the end")
        except ValueError:
            logger.exception("it went wrong")

    job = await stumble.enqueue()
    await rota_app.drain()

    (line,) = await rota_app.jobs.logs(job.id)
    assert line.message.startswith("it went wrong\nTraceback (most recent call last):\n")
    assert line.message.endswith("vvv at the end")
    assert len(line.message) == 4000


async def test_redacted_arguments_are_blotted_out(rota_app: TestRota) -> None:
    @rota_app.task(redact=["password"])
    async def log_in(user: str, password: str) -> None:
        logger.warning("%s comes with %s", user, password)
        logger.warning("x" * 3990 + password + "y" * 90_000)

    job = await log_in.enqueue("ada", SECRET)
    await rota_app.drain()

    lines = await rota_app.jobs.logs(job.id)
    assert lines[0].message == "ada comes with •••"
    assert not any(SECRET[at : at + 6] in line.message for line in lines for at in range(len(SECRET) - 6))


async def test_where_secrets_cannot_be_told_nothing_is_shown(rota_database: str) -> None:
    class Moody:
        calls = 0

        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            self.calls += 1
            if self.calls > 1:  # the body has had its arguments
                raise OSError("no key today")
            return text[::-1]

    async with Rota(rota_database, codec=Moody()) as app:

        @app.task(redact=["password"])
        async def log_in(password: str) -> None:
            logger.warning(password)

        job = await log_in.enqueue(SECRET)
        await app.work(drain=True)
        found = app.database.run_sync(_messages(job.id))

    assert found == ["•••"]


async def test_what_is_logged_while_lines_are_written_is_not_noted(rota_app: TestRota, rota_database: str) -> None:
    class Talkative:
        def encode(self, text: str) -> str:
            return text

        def decode(self, text: str) -> str:
            logger.warning("decoding")
            return text

    inner = Rota(rota_database, schema="inner", codec=Talkative())
    await inner.migrate()

    @inner.task(redact=["password"])
    async def log_in(password: str) -> None:
        logger.warning("within")

    @rota_app.task
    async def work() -> int:
        # a worker in the context of a job: what it writes its lines in is not that job's
        async with inner:
            job = await log_in.enqueue(SECRET)
            await inner.work(drain=True)
            return len(await inner.jobs.logs(job.id))

    job = await work.enqueue()
    await rota_app.drain()

    assert await job.wait() == 2
    assert [line for line in await rota_app.jobs.logs(job.id) if line.message == "decoding"] == []


def _messages(id: int) -> Query[list[str]]:
    return statement("messages", "select message from {schema}.logs where job_id = %(id)s").query(
        {"id": id}, read=lambda rows: [row[0] for row in rows]
    )


TASKS = f"""
import logging, os, signal, sys
from rota import Retry, Rota

app = Rota("postgresql://nobody@127.0.0.1:1/nowhere", job_logs="info")
logger = logging.getLogger("shop")
logging.basicConfig(level=logging.INFO, handlers=[logging.NullHandler()])


@app.task(executor="process", redact=["password"])
def chat(password: str) -> int:
    logger.debug("below")
    logger.info("from %s", "afar")
    logger.warning("with %s", password)
    if os.fork() == 0:
        logger.warning("from a fork")
        os._exit(0)
    os.wait()
    return os.getpid()


@app.task(executor="process")
async def flood() -> None:
    for number in range({3 * (FIRST_LINES + NEWEST_LINES)}):
        logger.info("line %s", number + 1)


@app.task(executor="process", retry=Retry(2, base=0.0))
def die(told: str) -> None:
    logger.info("last words")
    while not os.path.exists(told):
        pass
    os.remove(told)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def remote(rota_app: TestRota, tmp_path: Path) -> Iterator[TestRota]:
    """An app whose bodies run in processes of their own."""
    file = tmp_path / "logging_tasks.py"
    file.write_text(TASKS)
    before = dict(sys.modules)
    assert rota_app.settings.dsn is not None
    yield TestRota(rota_app.settings.dsn.conninfo, of=find_app(str(file)))
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


async def test_lines_of_a_body_in_a_process_come_back(remote: TestRota) -> None:
    job = await remote.enqueue(remote.tasks["chat"].bind(SECRET))
    await remote.drain()

    assert await job.wait() != os.getpid()
    lines = await remote.jobs.logs(job.id)
    assert [(line.level, line.message) for line in lines] == [("info", "from afar"), ("warning", "with •••")]


async def test_a_flood_in_a_process_is_bounded_there(remote: TestRota) -> None:
    job = await remote.enqueue(remote.tasks["flood"].bind())
    await remote.drain()

    kept = await remote.jobs.logs(job.id)
    numbers = [line.number for line in kept]
    assert numbers == [
        *range(1, FIRST_LINES + 1),
        *range(3 * (FIRST_LINES + NEWEST_LINES) - NEWEST_LINES + 1, 3 * (FIRST_LINES + NEWEST_LINES) + 1),
    ]
    assert [line.message for line in kept] == [f"line {number}" for number in numbers]


async def test_what_a_process_logged_before_it_died_is_kept(remote: TestRota, tmp_path: Path) -> None:
    signal_file = tmp_path / "die"
    job = await remote.enqueue(remote.tasks["die"].bind(str(signal_file)))

    async with at_work(remote):
        await until(lambda: told_by(remote, job.id) == [(1, "last words")], what="the first line")
        signal_file.touch()
        await until(lambda: told_by(remote, job.id)[1:] == [(2, "last words")], what="the line of the next attempt")
        signal_file.touch()
        await until(lambda: remote.jobs.get_sync(job.id).losses == 2, what="lost twice")
        remote.jobs.cancel_sync(job.id)


def told_by(app: TestRota, id: int) -> list[tuple[int, str]]:
    return told(app.jobs.logs_sync(id))


async def test_of_a_flood_the_first_lines_and_the_newest_are_kept(
    rota_app: TestRota, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_pytest(monkeypatch, logging.NullHandler())

    @rota_app.task
    def flood(id: int) -> None:
        number = 0
        # until some of the newest were written, and pushed out again by newer ones
        while number < 5_000 or len(kept_numbers(db)) <= FIRST_LINES or max(kept_numbers(db)) > number - 2_000:
            for _ in range(1_000):
                number += 1
                logger.warning("line %s of %s", number, id)

    job = await flood.enqueue(7)
    await rota_app.drain()

    lines = await rota_app.jobs.logs(job.id, limit=5_000)
    total = lines[-1].number
    assert [line.number for line in lines] == [*range(1, FIRST_LINES + 1), *range(total - NEWEST_LINES + 1, total + 1)]
    assert lines[-1].message == f"line {total} of 7"
    assert sum(line.dropped for line in lines) == lines[FIRST_LINES].dropped == total - FIRST_LINES - NEWEST_LINES
    page = await rota_app.jobs.logs(job.id, after=lines[FIRST_LINES - 1].id, limit=2)
    assert page == lines[FIRST_LINES : FIRST_LINES + 2]


def kept_numbers(db: psycopg.Connection[Any]) -> list[int]:
    return [number for (number,) in db.execute("select number from rota.logs")]


async def test_what_finds_no_room_is_dropped_and_told(rota_app: TestRota, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_room, "_MOST_WAITING", 10)

    @rota_app.task
    def chat() -> None:
        for number in range(30):
            logger.warning("line %s", number)

    job = await chat.enqueue()
    with rota_app.facts.recorded(LogLinesDropped) as dropped:
        await rota_app.drain()

    kept = await rota_app.jobs.logs(job.id)
    assert len(kept) >= 10
    assert 0 < sum(each.lines for each in dropped) <= 30 - len(kept)


async def test_lines_of_a_run_that_lost_its_claim_are_shown_under_its_attempt(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    taken_over, done = threading.Event(), threading.Event()

    @rota_app.task
    def work() -> None:
        attempt = current_job().attempt
        logger.warning("attempt %s begins", attempt)
        if attempt == 1:
            db.execute("update rota.jobs set state = 'queued', token = null, member = null, claimed_at = null")
            assert taken_over.wait(20)
            logger.warning("attempt 1 goes on")
            done.set()
        else:
            taken_over.set()
            assert done.wait(20)

    job = await work.enqueue()
    async with at_work(rota_app):
        await job.wait(30)

    assert sorted(told(await rota_app.jobs.logs(job.id))) == [
        (1, "attempt 1 begins"),
        (1, "attempt 1 goes on"),
        (2, "attempt 2 begins"),
    ]
    assert [line.number for line in await rota_app.jobs.logs(job.id, attempt=1)] == [1, 2]


async def test_of_an_erased_job_nothing_is_written_any_more(rota_app: TestRota, db: psycopg.Connection[Any]) -> None:
    @rota_app.task
    def work() -> None:
        logger.warning("about someone")
        until_sync(lambda: len(kept_numbers(db)) == 2, what="the line is written")
        erased.append(rota_app.jobs.erase_sync(tag="user:1"))
        logger.warning("more about them")

    erased: list[Any] = []
    await work.using(tags=["user:1"]).enqueue()
    other = await work.using(tags=["user:2"], delay="1h").enqueue()
    db.execute(
        "insert into rota.logs (job_id, token, logged_at, attempt, number, level, logger, message) "
        "values (%s, 1, now(), 1, 1, 30, 'shop', 'someone else')",
        [other.id],
    )
    await rota_app.drain()

    assert (erased[0].live, erased[0].logs) == (1, 1)
    assert db.execute("select job_id, message from rota.logs").fetchall() == [(other.id, "someone else")]


def claim_of(id: int, token: int = 42) -> ClaimedJob:
    return ClaimedJob(id, "default", "t", 0, 1, 0, 0.0, "{}", token)


def parcel(id: int, *texts: str, token: int = 42, first: int = 1) -> Parcel:
    lines = [Line(number, 0.0, 30, "shop", text) for number, text in enumerate(texts, first)]
    return Parcel(Run(claim_of(id, token)), lines)


def drive(db: psycopg.Connection[Any], steps: Steps[Any]) -> None:
    """Run the queries of a step, and leave its transaction open."""
    answer = None
    with contextlib.suppress(StopIteration):
        while True:
            answer = ask(db, steps.send(answer))


def test_lines_that_come_while_their_job_is_erased_wait_and_are_not_written(
    rota_database: str, db: psycopg.Connection[Any]
) -> None:
    (job,) = db.execute("insert into rota.jobs (task, tags) values ('t', '{x}') returning id").fetchone() or ()

    with psycopg.connect(rota_database) as erasing, ThreadPoolExecutor(1) as thread:
        drive(erasing, erase_batch("x", Erasing(walk=3), "channel", "ana"))
        writing = thread.submit(ask, db, append_lines([parcel(job, "late")], 0.0))
        blocked = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%append_log_lines%'"
        with psycopg.connect(rota_database, autocommit=True) as watcher:
            until_sync(lambda: watcher.execute(blocked).fetchone(), what="who writes lines waits for who erases")
        erasing.commit()
        writing.result(20)

    assert kept_numbers(db) == []


def test_a_write_that_is_repeated_as_its_reply_was_lost_adds_only_what_is_missing(
    db: psycopg.Connection[Any],
) -> None:
    (job,) = db.execute("insert into rota.jobs (task) values ('t') returning id").fetchone() or ()

    ask(db, append_lines([parcel(job, "one", "two"), parcel(job, "other run", token=7)], 0.0))
    again = [parcel(job, "one", "two", "three"), parcel(job, "other run", "goes on", token=7), parcel(404, "nobody")]
    ask(db, append_lines(again, 0.0, repeated=True))

    assert db.execute("select token, number, message from rota.logs order by id").fetchall() == [
        (42, 1, "one"),
        (42, 2, "two"),
        (7, 1, "other run"),
        (42, 3, "three"),
        (7, 2, "goes on"),
    ]


async def test_letters_that_the_session_does_not_have_are_escapes(rota_database: str) -> None:
    async with Rota(make_conninfo(rota_database, client_encoding="latin1")) as app:

        @app.task
        async def chat() -> None:
            logger.warning("über → alles")

        job = await chat.enqueue()
        await app.work(drain=True)

        (line,) = await app.jobs.logs(job.id)
        assert line.message == r"\xfcber \u2192 alles"


async def test_a_table_that_is_locked_holds_up_neither_jobs_nor_the_stop(
    rota_app: TestRota, rota_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_room, "_LAST_SECONDS", 2.0)  # as it is

    @rota_app.task
    async def chat() -> None:
        logger.warning("unheard")

    jobs = [await chat.enqueue() for _ in range(3)]
    with psycopg.connect(rota_database) as locking:
        locking.execute("lock table rota.logs in access exclusive mode")
        began = time.monotonic()
        await rota_app.drain()
        took = time.monotonic() - began

        assert [(await job.refresh()).state for job in jobs] == ["succeeded"] * 3
    assert took < 15
    assert [await rota_app.jobs.logs(job.id) for job in jobs] == [[]] * 3


async def test_where_lines_may_not_be_written_that_is_told_once_and_jobs_run(
    rota_app: TestRota, db: psycopg.Connection[Any]
) -> None:
    db.execute("alter table rota.logs add constraint never check (false) not valid")

    @rota_app.task
    async def chat() -> None:
        logger.warning("refused")

    with rota_app.facts.recorded(DatabaseLost) as trouble:
        first = await chat.enqueue()
        async with at_work(rota_app):
            await fact(rota_app.facts, DatabaseLost)
            second = await chat.enqueue()
            await second.wait(20)

    assert [each.part for each in trouble] == ["jobs: keep logs"]
    assert "never" in trouble[0].error
    assert (await first.refresh()).state == "succeeded"


async def test_who_follows_sees_lines_while_the_body_runs_and_the_end(rota_app: TestRota) -> None:
    go_on = asyncio.Event()

    @rota_app.task
    async def work() -> None:
        logger.warning("one")
        await go_on.wait()
        logger.warning("two")

    job = await work.enqueue()
    seen: list[tuple[str, str]] = []
    async with at_work(rota_app):
        async for page in rota_app.jobs.follow_logs(job.id):
            seen += [(line.message, (await job.refresh()).state) for line in page]
            go_on.set()

    assert seen[0] == ("one", "running")
    assert [message for message, _ in seen] == ["one", "two"]


async def test_who_follows_from_sync_code_sees_the_same(rota_app: TestRota) -> None:
    @rota_app.task
    async def work() -> None:
        logger.warning("one")
        logger.warning("two")

    job = await work.enqueue()
    await rota_app.drain()
    (first, second) = await rota_app.jobs.logs(job.id)

    assert await asyncio.to_thread(lambda: list(rota_app.jobs.follow_logs_sync(job.id, after=first.id))) == [[second]]


@pytest.mark.writes_nothing
def test_of_what_is_no_job_there_is_no_log(rota_app: TestRota) -> None:
    with pytest.raises(JobNotFound):
        rota_app.jobs.logs_sync(404)
    with pytest.raises(ConfigurationError, match="limit"):
        rota_app.jobs.logs_sync(1, limit=0)
    with pytest.raises(ConfigurationError, match="after"):
        rota_app.jobs.logs_sync(1, after=-1)
