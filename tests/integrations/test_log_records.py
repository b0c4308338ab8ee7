"""Log records: which job, row, term and process they belong to, in text, as JSON, and for structlog."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import structlog
from structlog.testing import LogCapture

from rota import Retry
from rota.errors import ConfigurationError
from rota.facts import Fact, Facts, JobCancelled, JobFailed, JobSucceeded, MemberJoined, MemberLeft
from rota.integrations import logging as rota_logging
from rota.integrations.log_records import FIELDS, current_context
from rota.integrations.logging import Context, JsonFormatter, log_facts, set_up_logging, structlog_context
from rota.testing import TestRota, WorkerProcess

pytestmark = pytest.mark.usefixtures("history_aside")

logger = logging.getLogger("shop")


class Log:
    """What a handler wrote."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.addFilter(Context())
        self.handler.setFormatter(formatter)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log(JsonFormatter())
    for each in (logger, logging.getLogger("rota")):
        each.addHandler(log.handler)
        each.setLevel(logging.DEBUG)
    yield log
    for each in (logger, logging.getLogger("rota")):
        each.removeHandler(log.handler)
        each.setLevel(logging.NOTSET)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_what_a_body_logs_names_its_job(rota_app: TestRota, log: Log, colour: str) -> None:
    if colour == "async":

        @rota_app.task(name="send", queue="mail")
        async def send() -> None:
            logger.info("to %s", "ada", extra={"provider": "smtp"})
    else:

        @rota_app.task(name="send", queue="mail")
        def send() -> None:
            logger.info("to %s", "ada", extra={"provider": "smtp"})

    job = await send.enqueue()
    await rota_app.drain()
    logger.info("afterwards")

    inside, after = [told for told in log.told if told["logger"] == "shop"]
    assert (inside["job"], inside["task"], inside["queue"], inside["attempt"]) == (job.id, "send", "mail", 1)
    assert (inside["message"], inside["level"], inside["provider"]) == ("to ada", "info", "smtp")
    assert not set(after) & set(FIELDS)


async def test_what_a_handler_of_a_poller_logs_names_its_row(rota_app: TestRota, rota_database: str, log: Log) -> None:
    with psycopg.connect(rota_database, autocommit=True) as db:
        db.execute("create table feeds (id bigint primary key, polled_at timestamptz)")
        db.execute("insert into feeds values (7)")

    @rota_app.poller(table="feeds", last="polled_at", interval="1h", name="fetch")
    async def fetch(row: dict[str, Any]) -> None:
        logger.info("polled")

    await fetch.run_once(1)

    (told,) = [told for told in log.told if told["message"] == "polled"]
    assert (told["poller"], told["row"], told["attempt"]) == ("fetch", 7, 1)


async def test_what_a_leader_logs_names_its_term(rota_app: TestRota, log: Log) -> None:
    async with rota_app.leadership("outer") as outer:
        async with rota_app.leadership("inner") as inner:
            logger.info("inner")
        logger.info("outer")
    logger.info("after")

    shown = [(told["message"], told.get("leader"), told.get("epoch")) for told in log.told if told["logger"] == "shop"]
    assert shown == [("inner", "inner", inner.epoch), ("outer", "outer", outer.epoch), ("after", None, None)]


def test_what_a_leader_in_a_thread_logs_names_its_term(rota_app: TestRota) -> None:
    with rota_app.leadership("a") as term:
        inside = current_context()

    assert (inside["leader"], inside["epoch"]) == ("a", term.epoch)
    assert "leader" not in current_context()


def test_records_name_the_lease_of_their_process(log: Log) -> None:
    stop = log_facts(facts := Facts())
    member = uuid4()

    facts.emit(MemberJoined(member, "web"))
    logger.info("joined")
    facts.emit(MemberLeft(member))
    logger.info("left")
    stop()

    assert [told.get("member") for told in log.told if told["logger"] == "shop"] == [str(member), None]


def test_the_record_of_a_fact_has_its_fields(log: Log) -> None:
    stop = log_facts(facts := Facts())

    facts.emit(JobSucceeded(7, "send", "mail", 2, 0.5, 1.5))
    facts.emit(JobFailed(8, "send", "mail", 1, 0.5, ValueError("no"), None))
    stop()

    first, second = log.told
    expected = {
        "fact": "JobSucceeded",
        "job": 7,
        "task": "send",
        "queue": "mail",
        "attempt": 2,
        "seconds": 0.5,
        "waited": 1.5,
    }
    assert first | expected == first
    assert (second["error_type"], second["error"]) == ("ValueError", "no")
    assert "ValueError: no" in second["exception"]


async def test_what_is_redacted_stays_so_in_json(rota_app: TestRota, log: Log) -> None:
    stop = log_facts(rota_app.facts)

    @rota_app.task(redact=["password"], retry=Retry(attempts=1))
    async def login(password: str) -> None:
        raise ValueError(f"wrong: {password}")

    await login.enqueue("hunter2-hunter2")
    await rota_app.drain()
    stop()

    assert any(told.get("fact") == "JobFailed" for told in log.told)
    assert not any("hunter2" in line for line in log.lines)


def test_a_job_that_was_cancelled_before_its_first_attempt_is_said_to_have_had_none() -> None:
    _, early = rota_logging.words(JobCancelled(7, "send", "mail", 0, 0.0, "job 6 is dead")) or (0, "")
    _, late = rota_logging.words(JobCancelled(7, "send", "mail", 2, 0.1, None)) or (0, "")

    assert early == "job 7 (send) cancelled before its first attempt: job 6 is dead"
    assert late == "job 7 (send) cancelled in attempt 2"


def test_no_words_are_found_for_a_success_that_nobody_reads_of(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    worded: list[Fact] = []
    monkeypatch.setattr(rota_logging, "words", lambda fact: worded.append(fact))
    facts = Facts()
    log_facts(facts)

    logging.getLogger("rota").setLevel(logging.INFO)
    facts.emit(JobSucceeded(7, "send", "mail", 1, 0.01))
    assert worded == []
    logging.getLogger("rota").setLevel(logging.DEBUG)
    facts.emit(JobSucceeded(7, "send", "mail", 1, 0.01))
    assert len(worded) == 1


def test_what_json_has_no_word_for_is_told_all_the_same(log: Log) -> None:
    circle: list[Any] = []
    circle.append(circle)

    logger.info("odd", extra={"ids": {uuid4()}, "by": {(1, 2): 3}})
    logger.info("circle", extra={"circle": circle})
    logger.info('lines\nand "quotes"')

    assert [told["message"] for told in log.told] == ["odd", "circle", 'lines\nand "quotes"']
    assert log.told[0]["by"] == "{(1, 2): 3}"


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


DEEP: dict[str, Any] = functools.reduce(lambda inner, _: {"in": inner}, range(100_000), {})


@pytest.mark.parametrize("odd", [float("nan"), Unshowable(), DEEP], ids=["nan", "unshowable", "deep"])
def test_what_cannot_be_told_takes_nothing_else_with_it(log: Log, odd: Any) -> None:
    logger.info("odd", extra={"odd": odd, "took": 0.25, "when": datetime(2027, 1, 1)})

    (line,) = log.lines
    told = json.loads(line, parse_constant=pytest.fail)
    assert (told["message"], told["took"], told["when"]) == ("odd", 0.25, "2027-01-01T00:00:00")
    assert isinstance(told["odd"], str)


def test_half_a_character_is_written_to_a_file(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log", encoding="utf-8")
    handler.setFormatter(JsonFormatter())
    with contextlib.closing(handler):
        handler.handle(logging.makeLogRecord({"msg": "cannot read \udc80 of Jürgen"}))

    text = (tmp_path / "log").read_text("utf-8")
    assert json.loads(text)["message"] == "cannot read \udc80 of Jürgen"
    assert "Jürgen" in text


def test_the_stack_that_an_author_asks_for_is_told(log: Log) -> None:
    logger.info("here", stack_info=True)

    assert "test_the_stack_that_an_author_asks_for_is_told" in log.told[0]["stack"]


def test_what_the_author_gave_a_record_is_kept(log: Log) -> None:
    logger.info("mine", extra={"task": "my own"})

    assert log.told[0]["task"] == "my own"


def test_a_format_of_the_users_may_name_every_field() -> None:
    log = Log(logging.Formatter("%(job)s %(task)s %(epoch)s %(trace_id)s %(message)s"))
    log.handler.handle(logging.makeLogRecord({"msg": "hello"}))

    assert log.lines == ["None None None None hello"]


async def test_structlog_knows_the_job(rota_app: TestRota) -> None:
    captured = LogCapture()
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[structlog_context, captured])

    @rota_app.task(name="send")
    async def send() -> None:
        log.info("sent", attempt="mine")

    job = await send.enqueue()
    await rota_app.drain()
    log.info("after")

    inside, after = captured.entries
    assert (inside["job"], inside["task"], inside["attempt"]) == (job.id, "send", "mine")
    assert "job" not in after


APP = """
import logging
from rota import Rota
app = Rota()
logger = logging.getLogger("shop")

@app.task(name="work")
def work():
    logger.warning("from a body")
    logger.info("quiet")
"""


@pytest.mark.parametrize(
    ("args", "env"),
    [pytest.param(["--log-format", "json"], {}, marks=pytest.mark.long), ([], {"ROTA_LOG_FORMAT": "json"})],
    ids=["option", "environment"],
)
def test_a_worker_logs_json(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess], args: list[str], env: dict[str, str]
) -> None:
    rota_app.task(name="work")(lambda: None).enqueue_sync()
    worker = rota_worker(APP, args=args, env=env)
    worker.wait_for_output("from a body")
    worker.terminate()
    worker.wait()

    told = [json.loads(line) for line in worker.output().splitlines()]
    (body,) = [each for each in told if each["logger"] == "shop"]
    assert (body["message"], body["task"], body["attempt"]) == ("from a body", "work", 1)
    assert body["member"] == next(each["member"] for each in told if each.get("fact") == "MemberJoined")


def test_a_worker_logs_from_the_level_on_that_it_is_told(
    rota_app: TestRota, rota_worker: Callable[..., WorkerProcess]
) -> None:
    rota_app.task(name="work")(lambda: None).enqueue_sync()
    worker = rota_worker(APP, env={"ROTA_LOG_LEVEL": "DEBUG"})
    worker.wait_for_output("succeeded in")

    assert "quiet [job=1 task=work attempt=1]" in worker.output()


@pytest.mark.parametrize("name", ["ROTA_LOG_FORMAT", "ROTA_LOG_LEVEL"])
def test_a_format_or_level_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "loud")

    with pytest.raises(ConfigurationError, match=name):
        set_up_logging()
