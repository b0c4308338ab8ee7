"""What a schedule may say, and what is said to whoever wrote it wrong."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rota import ConfigurationError, InvalidArguments, Limit, Rota
from rota.schedules.definition import ScheduleDefinition, define
from rota.schedules.exclude import Exclude

app = Rota("dbname=nowhere")


@app.task(queue="reports", priority=3, redact=["token"], version=2)
def report(day: date, *, copies: int = 1, token: str = "") -> None: ...


@app.task
def tick() -> None: ...


@app.task(limit=Limit(running=1, by=lambda order: order % 10))
def ship(order: int) -> None: ...


@app.task(limit=Limit(running=1, by="order"))
def bill(order: int) -> None: ...


NOON = datetime(2027, 5, 1, 12, tzinfo=UTC)


def defined(name: str = "s", task: Any = tick, args: Any = None, **options: Any) -> ScheduleDefinition:
    return define(name, task, args, options, app.tasks)


def test_a_schedule_takes_what_its_task_says_unless_it_says_otherwise() -> None:
    plain = defined(task=report, args={"day": date(2026, 1, 2)}, cron="0 9 * * *")
    moved = defined(task="report", args={"day": date(2026, 1, 2)}, queue="q", priority=0, key=7, tags=["a"], note="n")

    assert (plain.task, plain.version, plain.queue, plain.priority) == ("report", 2, "reports", 3)
    assert (plain.redact, plain.args) == (("token",), '{"day":"2026-01-02"}')
    assert (moved.queue, moved.priority, moved.key, moved.tags, moved.note) == ("q", 0, "7", ("a",), "n")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"cron": "0 9 * * *"}, "cron"),
        ({"every": "30s"}, "every"),
        ({"every": "30s", "counted_from": "start"}, "every"),
        ({"every": "1 month", "counted_from": "end"}, "delay"),
        ({"at": NOON}, "once"),
        ({"after": "other"}, "after"),
        ({"on": "order.paid"}, "event"),
        ({}, "manual"),
    ],
)
def test_what_says_when_tells_the_kind(options: dict[str, Any], kind: str) -> None:
    assert defined(**options).kind == kind


@pytest.mark.parametrize(
    ("given", "kept"),
    [("1 month", "1 month"), (timedelta(hours=1), "3600s"), (30, "30s"), (0.25, "250.000ms"), (" 2h 5m ", "2h 5m")],
)
def test_an_interval_is_kept_as_text(given: Any, kept: str) -> None:
    assert defined(every=given).every == kept


def test_arguments_may_be_pythons_values_or_json_as_it_is_stored() -> None:
    assert defined(task=report, args={"day": date(2026, 1, 2)}).args == '{"day":"2026-01-02"}'
    assert defined(task=report, args={"day": "2026-01-02"}).args == '{"day":"2026-01-02"}'


def test_a_task_that_is_not_known_takes_plain_json() -> None:
    unknown = defined(task="elsewhere.run", args={"n": [1, None]})

    assert (unknown.task, unknown.args, unknown.version) == ("elsewhere.run", '{"n":[1,null]}', 1)
    with pytest.raises(InvalidArguments, match="plain JSON"):
        defined(task="elsewhere.run", args={"day": date(2026, 1, 2)})


def test_what_brings_arguments_along_may_leave_them_open() -> None:
    assert defined(task=report, on="day.closed").args == "{}"
    assert defined(task=report, after="other", dormant=True, args={"copies": 2}).args == '{"copies":2}'
    with pytest.raises(InvalidArguments, match="day is missing"):
        defined(task=report, cron="0 9 * * *")
    with pytest.raises(InvalidArguments, match="nonsense"):
        defined(task=report, on="day.closed", args={"nonsense": 1})


def test_rules_are_checked_and_put_in_order() -> None:
    rules = defined(
        cron="0 9 * * *",
        tz="Europe/Berlin",
        start_at=NOON.astimezone(ZoneInfo("Asia/Tokyo")),
        end_at=NOON + timedelta(days=9),
        max_runs=5,
        jitter="5m",
        exclude={"weekdays": ["sun", "saturday"]},
        misfire="all",
        misfire_grace=90,
        misfire_limit=7,
        overlap="allow",
        dst_gap="skip",
        dst_overlap="twice",
    )

    assert rules.start_at == NOON
    assert (rules.jitter, rules.misfire_grace) == (timedelta(minutes=5), timedelta(seconds=90))
    assert rules.exclude == {"weekdays": ["sat", "sun"]}
    assert (rules.misfire, rules.misfire_limit, rules.max_runs) == ("all", 7, 5)
    assert (rules.overlap, rules.dst_gap, rules.dst_overlap) == ("allow", "skip", "twice")


def test_what_follows_something_waits_for_its_turn_by_default() -> None:
    assert defined(cron="0 9 * * *").overlap == "skip"
    assert defined(after=["b", "a", "b"]).overlap == "queue"
    assert defined(after=["b", "a", "b"]).parents == ("a", "b")
    assert defined(on="x").overlap == "queue"
    assert defined(on="x", overlap="skip").overlap == "skip"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cron": "61 * * * *"}, "the minute cannot be '61'"),
        ({"cron": "0 9 * * *", "tz": "Europe/Berln"}, "tz='Europe/Berln'.*Europe/Berlin"),
        ({"cron": "0 9 * * *", "every": "1h"}, "cron= and every= cannot go together"),
        ({"every": "0s"}, "every='0s'"),
        ({"every": True}, "every"),
        ({"every": ["1s"]}, r"every=\['1s'\]: it is a timedelta"),
        ({"cron": ["x"]}, r"cron=\['x'\]: it is text"),
        ({"cron": "* * * * *", "tz": ["x"]}, r"tz=\['x'\]"),
        ({"every": "1h", "counted_from": "middle"}, "counted_from cannot be 'middle'"),
        ({"counted_from": "end"}, "counted_from= means nothing"),
        ({"at": datetime(2027, 1, 1)}, "at=.*time zone"),
        ({"at": NOON, "start_at": NOON}, "start_at= means nothing with at="),
        ({"cron": "0 9 * * *", "start_at": NOON, "end_at": NOON}, "end_at=.*not after start_at"),
        ({"cron": "0 9 * * *", "max_runs": 0}, "max_runs cannot be 0"),
        ({"cron": "0 9 * * *", "jitter": "-5s"}, "jitter cannot be"),
        ({"cron": "0 9 * * *", "jitter": -5}, "jitter cannot be -5: it is at least 0"),
        ({"cron": "0 9 * * *", "exclude": {"weekdays": ["someday"]}}, "exclude weekdays: 'someday'"),
        ({"cron": "0 9 * * *", "exclude": 7}, "exclude=7"),
        (
            {"cron": "0 9 * * *", "misfire": "sometimes"},
            "misfire cannot be 'sometimes': it is 'once' or 'skip' or 'all'",
        ),
        ({"cron": "0 9 * * *", "misfire_limit": 10_001}, "misfire_limit cannot be 10001"),
        ({"cron": "0 9 * * *", "overlap": "no"}, "overlap cannot be 'no'"),
        ({"cron": "0 9 * * *", "dormant": True}, "dormant= means nothing with cron="),
        ({"on": "x", "max_runs": 3}, "max_runs= means nothing with on="),
        ({"jitter": "5s"}, "jitter= means nothing where nothing says when to run"),
        ({"after": []}, r"after cannot be \[\]"),
        ({"after": "s"}, "wait for itself: s -> s"),
        ({"cron": "0 9 * * *", "priority": "high"}, "priority cannot be 'high'"),
        ({"cron": "0 9 * * *", "when": "now"}, "when is no option of a schedule"),
    ],
)
def test_what_is_wrong_is_refused_with_the_field_and_the_reason(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Schedule 's' was not put: .*{told}"):
        defined(**options)


def test_a_key_that_only_python_can_make_is_to_be_given() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'s' was not put: key is missing: Limit\(by=...\) of task 'ship' is a function"
    ):
        defined(task=ship, args={"order": 7})

    assert defined(task=ship, args={"order": 7}, key="7").key == "7"
    assert defined(task=bill, args={"order": 7}).key is None


def test_names_tasks_and_arguments_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a schedule's name cannot be ''"):
        defined(name="")
    with pytest.raises(ConfigurationError, match="task cannot be 7"):
        defined(task=7)
    with pytest.raises(ConfigurationError, match="args cannot be"):
        defined(args=[1])
    with pytest.raises(InvalidArguments, match="Schedule 's' was not put: argument day is 7"):
        defined(task=report, args={"day": 7})
    with pytest.raises(InvalidArguments, match="token is redacted") as refused:
        defined(task=report, args={"day": date(2026, 1, 2), "token": 4711})
    assert "4711" not in str(refused.value)


def test_a_digest_stands_for_all_that_is_said_and_nothing_else() -> None:
    said = defined(task=report, args={"day": "2026-01-02", "copies": 2}, cron="0 9 * * *", note="n")
    same = defined(task=report, args={"copies": 2, "day": date(2026, 1, 2)}, cron="0 9 * * *", note="n", tz="UTC")

    assert said.digest() == same.digest()
    assert said.digest() != defined(task=report, args={"day": "2026-01-03"}, cron="0 9 * * *", note="n").digest()
    assert said.digest() != defined(task=report, args={"day": "2026-01-02", "copies": 2}, cron="0 9 * * *").digest()


def test_a_digest_is_the_same_in_every_release() -> None:
    exclude = Exclude(weekdays=("sun",))
    said = defined(every="1 day", start_at=NOON, jitter="5s", exclude=exclude, tags=["a"])

    assert str(said.digest()) == "f5219128-3395-990d-4399-e64ff939a86b"
